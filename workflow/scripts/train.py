"""Trains the runs of one job that the store lacks, and gathers all of them."""

# ruff: noqa: E402
import gc

gc.disable()  # a third of the time of the imports below would go into looking for garbage in them

import logging
from pathlib import Path

from cgpfl import datasets, partition, results
from cgpfl.experiment import Job
from cgpfl.joblog import TrainingProgress, job_log
from cgpfl.tracking import Guard, TrainingLog
from cgpfl.training import Training

gc.freeze()  # nor need anything of theirs be taken apart at the end
gc.enable()

name = snakemake.config["name"]
home = results.home(name)
job = Job.from_plain(snakemake.params.job)
folder = snakemake.wildcards.folder
title = f"{folder.replace('/', '-')}train-{job.dataset}-{job.model}-{job.method}"
with job_log(snakemake.log[0]):
    partitions = {part.seed: part for part in map(partition.load, snakemake.input.partitions)}
    training = Training(job, snakemake.params.training, datasets.load(snakemake.input.data), partitions)
    store = results.Store(home / "store")
    guard = Guard(name, title)
    tracked = guard(TrainingLog, name, job.dataset, job.model, job.method, folder)

    def log_runs(keys):
        guard(lambda: tracked.add(training.labelled(store, keys)))

    with TrainingProgress(title) as progress:
        checkpoint = home / "checkpoints" / f"{title}.pt"
        trained = training.complete(store, snakemake.threads, checkpoint, log_runs, progress)
    logging.getLogger("cgpfl").info("%d runs, %d of them trained by this job", len(job.runs), trained)
    log_runs(training.keys)
    results.write(training.gather(store), Path(snakemake.output.runs).parent)
    guard(lambda: tracked.close([snakemake.output.runs, snakemake.output.history]))
