# Logs everything that is not in MLflow yet, for when it could not be reached during the run.
rule sync:
    input:
        data=expand("data/{dataset}.npz", dataset=DATASETS),
        partitions=expand(
            "<results>/partitions/{dataset}/seed{seed}.png",
            dataset=DATASETS,
            seed=experiment.seeds,
        ),
        runs=expand("<results>/runs/{job}/runs.parquet", job=JOBS),
        tables=rules.tables.output,
        figures=rules.figures.output,
    log:
        "<results>/logs/sync.log",
    benchmark:
        "<results>/benchmarks/sync.tsv"
    conda:
        "../../environment.yml"
    message:
        "Logging what MLflow lacks."
    script:
        "../scripts/sync.py"
