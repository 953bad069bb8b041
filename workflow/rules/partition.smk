# A dataset's samples dealt to clients: their indices, statistics, and a picture.
rule partition:
    input:
        data="data/{dataset}.npz",
        tracking=ancient("<results>/tracking/ready"),
        source=SOURCE / "partition.py",
    output:
        partition="<results>/partitions/{dataset}/seed{seed}.npz",
        statistics="<results>/partitions/{dataset}/seed{seed}.csv",
        picture=report(
            "<results>/partitions/{dataset}/seed{seed}.png",
            caption="../report/partition.rst",
            category="Partitions",
            labels={"dataset": "{dataset}", "seed": "{seed}"},
        ),
    log:
        "<results>/logs/partition/{dataset}/seed{seed}.log",
    benchmark:
        "<results>/benchmarks/partition/{dataset}/seed{seed}.tsv"
    conda:
        "../../environment.yml"
    params:
        partition=experiment.partition.model_dump(exclude_none=True),
    message:
        "Dealing {wildcards.dataset} to clients, seed {wildcards.seed}."
    script:
        "../scripts/partition.py"
