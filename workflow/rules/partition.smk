# A dataset's samples dealt to clients: their indices, statistics, and a picture. Like the data before it ahead of all
# training, so that what cannot be dealt, or cut for tuning, ends the work before it has cost anything.
rule partition:
    input:
        data="data/{dataset}.npz",
        source=SOURCE / "partition.py",
    output:
        partition="<results>/{folder}partitions/{dataset}/seed{seed}.npz",
        statistics="<results>/{folder}partitions/{dataset}/seed{seed}.csv",
        picture=report(
            "<results>/{folder}partitions/{dataset}/seed{seed}.png",
            caption="../report/partition.rst",
            category="Partitions",
            labels={"study": "{folder}", "dataset": "{dataset}", "seed": "{seed}"},
        ),
    log:
        "<results>/logs/{folder}partition/{dataset}/seed{seed}.log",
    benchmark:
        "<results>/benchmarks/{folder}partition/{dataset}/seed{seed}.tsv"
    priority: 1
    conda:
        "../../environment.yml"
    params:
        partition=lambda wildcards: PARTS[wildcards.folder].partition.model_dump(
            exclude_none=True
        ),
        validation=lambda wildcards: (
            None if wildcards.folder else experiment.validation(int(wildcards.seed))
        ),
    message:
        "Dealing {wildcards.dataset} to clients, seed {wildcards.seed}. {wildcards.folder}"
    script:
        "../scripts/partition.py"
