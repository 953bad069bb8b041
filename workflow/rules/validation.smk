# A validation part, for tuning, cut from the training samples of each client of a partition; test samples are in neither
# part.
rule validation:
    input:
        data="data/{dataset}.npz",
        partition="<results>/partitions/{dataset}/seed{seed}.npz",
        source=SOURCE / "partition.py",
    output:
        "<results>/validation/{dataset}/seed{seed}.npz",
    log:
        "<results>/logs/validation/{dataset}/seed{seed}.log",
    benchmark:
        "<results>/benchmarks/validation/{dataset}/seed{seed}.tsv"
    priority: 1
    conda:
        "../../environment.yml"
    params:
        fraction=experiment.tune.validation if experiment.tune else None,
    message:
        "Cutting {wildcards.dataset} for tuning, seed {wildcards.seed}."
    script:
        "../scripts/validation.py"
