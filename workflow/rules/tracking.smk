# Logs everything that is not in MLflow yet, for when it could not be reached during the run.
rule sync:
    input:
        data=expand("data/{dataset}.npz", dataset=experiment.sources),
        partitions=expand("<results>/{partition}.png", partition=PARTITIONS),
        validation=list(chain.from_iterable(VALIDATION.values())),
        runs=[
            f"<results>/{folder}runs/{job}/runs.parquet"
            for folder, jobs in JOBS.items()
            for job in jobs
        ],
        tuned_runs=expand(
            "{folder}/runs.parquet", folder=ALL_RUNS.get(tables.TUNED, [])
        ),
        tables=rules.tables.output,
        figures=rules.figures.output,
        studies=rules.studies.output if experiment.studies else [],
        tuned=rules.tuned.output if experiment.tune else [],
        claims=rules.claims.output,
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
