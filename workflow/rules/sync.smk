# Logs everything that is not in MLflow yet, for when it could not be reached during the run.
rule sync:
    input:
        data=expand("data/{dataset}.npz", dataset=experiment.sources),
        partitions=expand("<results>/{partition}.png", partition=PARTITIONS),
        runs=[
            f"<results>/{folder}runs/{job}/runs.parquet"
            for folder, jobs in JOBS.items()
            for job in jobs
        ],
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
