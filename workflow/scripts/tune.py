"""Tunes a method, then trains it with the chosen values; what the store has is not trained again."""

from pathlib import Path

from cgpfl import datasets, partition, results, tables
from cgpfl.experiment import Job
from cgpfl.joblog import TrainingProgress, job_log
from cgpfl.tracking import Guard, TrainingLog
from cgpfl.tuning import Tuning

name = snakemake.config["name"]
home = results.home(name)
job = Job.from_plain(snakemake.params.job)
title = f"tune-{job.dataset}-{job.model}-{job.method}"
output = snakemake.output
with job_log(snakemake.log[0]):
    partitions, validation = (
        {part.seed: part for part in map(partition.load, files)}
        for files in (snakemake.input.partitions, snakemake.input.validation)
    )
    dataset = datasets.load(snakemake.input.data)
    samples = {"dataset": dataset, "partitions": partitions, "validation": validation}
    tuning = Tuning(job, snakemake.params.training, **snakemake.params.tuning, **samples)
    store = results.Store(home / "store")
    guard = Guard(name, title)
    tracked = guard(TrainingLog, name, job.dataset, job.model, job.method, "tuned/")

    def complete(training, split="validation"):
        def log_runs(keys):
            guard(lambda: tracked.add(training.labelled(store, keys), split))

        with TrainingProgress(title) as progress:
            training.complete(store, snakemake.threads, home / "checkpoints" / f"{title}.pt", log_runs, progress)
        log_runs(training.keys)
        return training.gather(store)

    final, choices = tuning.choose(complete)
    results.write(complete(final, "test"), Path(output.runs).parent)
    tables.write_csv(choices, output.choices)
    guard(lambda: tracked.close([output.runs, output.history, output.choices]))
