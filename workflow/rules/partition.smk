# A dataset's samples dealt to clients: their indices, statistics, and a picture. Like the data before it ahead of all
# training that is ready, so that what cannot be dealt shows soon.
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
    message:
        "Dealing {wildcards.dataset} to clients, seed {wildcards.seed}. {wildcards.folder}"
    script:
        "../scripts/partition.py"
