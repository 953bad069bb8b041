# All runs of one method on one dataset and model, in one batched program. Runs are kept one by one in a store by what
# they depend on, so a job that is started again trains only what is missing there.
rule train:
    input:
        data="data/{dataset}.npz",
        partitions=expand(
            "<results>/partitions/{{dataset}}/seed{seed}.npz", seed=experiment.seeds
        ),
        tracking=ancient("<results>/tracking/ready"),
        source=[os.path.relpath(file) for file in results.engine_files()]
        + [SOURCE / "training.py"],
        own=lambda wildcards: [
            os.path.relpath(file) for file in experiment.job(**wildcards).sources
        ],
    output:
        runs="<results>/runs/{dataset}/{model}/{method}/runs.parquet",
        history="<results>/runs/{dataset}/{model}/{method}/history.parquet",
        assignments="<results>/runs/{dataset}/{model}/{method}/assignments.parquet",
        clustering="<results>/runs/{dataset}/{model}/{method}/clustering.parquet",
        heuristic="<results>/runs/{dataset}/{model}/{method}/heuristic.parquet",
    log:
        "<results>/logs/train/{dataset}/{model}/{method}.log",
    benchmark:
        "<results>/benchmarks/train/{dataset}/{model}/{method}.tsv"
    conda:
        "../../environment.yml"
    threads: experiment.training.threads
    resources:
        mem_mb=experiment.training.mem_mb,
        gpu=experiment.training.gpus,
    params:
        job=lambda wildcards: experiment.job(**wildcards).plain(),
        training=experiment.training.model_dump(),
    message:
        "Training {wildcards.method} ({wildcards.model}) on {wildcards.dataset}."
    script:
        "../scripts/train.py"
