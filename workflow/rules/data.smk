# A dataset, fetched or read, verified, in one file.
rule data:
    input:
        source=lambda wildcards: experiment.sources[wildcards.dataset].path or [],
    output:
        "data/{dataset}.npz",
    log:
        "<results>/logs/data/{dataset}.log",
    benchmark:
        "<results>/benchmarks/data/{dataset}.tsv"
    priority: 1
    conda:
        "../../environment.yml"
    params:
        dataset=lambda wildcards: dict(experiment.sources[wildcards.dataset]),
    message:
        "Preparing dataset {wildcards.dataset}."
    script:
        "../scripts/data.py"
