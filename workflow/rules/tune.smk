# Tuning of one method on one dataset and model, on validation data; then its runs with the chosen values, on test data.
# All runs are kept in the store as those of rule train.
rule tune:
    input:
        data="data/{dataset}.npz",
        partitions=lambda wildcards: expand(
            "<results>/partitions/{dataset}/seed{seed}.npz",
            dataset=wildcards.dataset,
            seed=experiment.seeds,
        ),
        validation=lambda wildcards: VALIDATION.get(wildcards.dataset, []),
        source=[os.path.relpath(file) for file in results.engine_files()]
        + [SOURCE / "training.py", SOURCE / "tuning.py"],
        own=lambda wildcards: [
            os.path.relpath(file) for file in experiment.job(**wildcards).sources
        ],
    output:
        runs="<results>/tuned/runs/{dataset}/{model}/{method}/runs.parquet",
        history="<results>/tuned/runs/{dataset}/{model}/{method}/history.parquet",
        assignments="<results>/tuned/runs/{dataset}/{model}/{method}/assignments.parquet",
        clustering="<results>/tuned/runs/{dataset}/{model}/{method}/clustering.parquet",
        heuristic="<results>/tuned/runs/{dataset}/{model}/{method}/heuristic.parquet",
        choices="<results>/tuned/choices/{dataset}/{model}/{method}.csv",
    log:
        "<results>/logs/tune/{dataset}/{model}/{method}.log",
    benchmark:
        "<results>/benchmarks/tune/{dataset}/{model}/{method}.tsv"
    conda:
        "../../environment.yml"
    threads: experiment.training.threads
    resources:
        mem_mb=experiment.training.mem_mb,
        gpu=experiment.training.gpus,
    params:
        job=lambda wildcards: experiment.job(**wildcards).plain(),
        training=experiment.training.model_dump(),
        tuning=lambda wildcards: experiment.tuning(wildcards.method),
    message:
        "Tuning {wildcards.method} ({wildcards.model}) on {wildcards.dataset}."
    script:
        "../scripts/tune.py"


# Table 1 with tuned parameters, and how they were chosen.
rule tuned:
    input:
        runs=[
            f"{folder}/{frame}.parquet"
            for folder in TUNED
            for frame in results.COLUMNS
        ],
        choices=expand(
            "<results>/tuned/choices/{job}.csv",
            job=TUNED_JOBS,
        ),
        paper=HERE / "config/paper_table1.csv",
        source=SOURCE / "tables.py",
    output:
        table=report(
            "<results>/tables/table1_tuned.csv",
            caption="../report/table1_tuned.rst",
            category="Tables",
            labels={"table": "1, tuned", "shows": "accuracy"},
        ),
        choices=report(
            "<results>/tables/tuned_choices.csv",
            caption="../report/tuned_choices.rst",
            category="Tables",
            labels={"table": "tuned choices", "shows": "validation accuracy"},
        ),
        markdown="<results>/tables/table1_tuned.md",
    log:
        "<results>/logs/tuned.log",
    benchmark:
        "<results>/benchmarks/tuned.tsv"
    conda:
        "../../environment.yml"
    params:
        runs=TUNED,
    message:
        "Writing tables of tuned methods."
    script:
        "../scripts/tuned.py"
