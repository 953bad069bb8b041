# All runs of one method on one dataset and model, in one batched program. Runs are kept one by one in a store by what
# they depend on, so a job that is started again trains only what is missing there.
rule train:
    input:
        data="data/{dataset}.npz",
        partitions=lambda wildcards: expand(
            "<results>/{folder}partitions/{dataset}/seed{seed}.npz",
            folder=wildcards.folder,
            dataset=wildcards.dataset,
            seed=PARTS[wildcards.folder].seeds,
        ),
        # Not used; what cannot be cut for tuning ends the work on a dataset before it has cost anything.
        validation=lambda wildcards: (
            [] if wildcards.folder else VALIDATION.get(wildcards.dataset, [])
        ),
        source=[os.path.relpath(file) for file in results.engine_files()]
        + [SOURCE / "training.py"],
        own=lambda wildcards: [
            os.path.relpath(file)
            for file in PARTS[wildcards.folder]
            .job(wildcards.dataset, wildcards.model, wildcards.method)
            .sources
        ],
    output:
        runs="<results>/{folder}runs/{dataset}/{model}/{method}/runs.parquet",
        history="<results>/{folder}runs/{dataset}/{model}/{method}/history.parquet",
        assignments="<results>/{folder}runs/{dataset}/{model}/{method}/assignments.parquet",
        clustering="<results>/{folder}runs/{dataset}/{model}/{method}/clustering.parquet",
        heuristic="<results>/{folder}runs/{dataset}/{model}/{method}/heuristic.parquet",
    log:
        "<results>/logs/{folder}train/{dataset}/{model}/{method}.log",
    benchmark:
        "<results>/benchmarks/{folder}train/{dataset}/{model}/{method}.tsv"
    conda:
        "../../environment.yml"
    threads: lambda wildcards: PARTS[wildcards.folder].training.threads
    resources:
        mem_mb=lambda wildcards: PARTS[wildcards.folder].training.mem_mb,
        gpu=lambda wildcards: PARTS[wildcards.folder].training.gpus,
    params:
        job=lambda wildcards: PARTS[wildcards.folder]
        .job(wildcards.dataset, wildcards.model, wildcards.method)
        .plain(),
        training=lambda wildcards: PARTS[wildcards.folder].training.model_dump(),
    message:
        "Training {wildcards.method} ({wildcards.model}) on {wildcards.dataset}. {wildcards.folder}"
    script:
        "../scripts/train.py"
