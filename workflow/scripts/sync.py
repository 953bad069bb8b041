"""Logs everything that MLflow lacks; here a tracker that is away is an error."""

import shutil
from pathlib import Path

import pandas as pd

from cgpfl import UserError, datasets, results, tracking
from cgpfl.joblog import job_log
from cgpfl.tracking import Step, TrainingLog, record

name = snakemake.config["name"]
store = results.Store(results.home(name) / "store")


def folder(file: Path, below: int) -> str:
    """The part of the experiment that a result is of: "", or "studies/<name>/"."""
    own = file.relative_to(results.home(name)).parts[:-below]
    return "".join(f"{each}/" for each in own)


def sync() -> None:
    for data in snakemake.input.data:
        record(Step.of_dataset(name, datasets.load(data)))
    for picture in map(Path, snakemake.input.partitions):
        step = f"{folder(picture, 3)}partition/{picture.parent.name}/{picture.stem}"
        record(Step.of_files(name, step, [picture.with_suffix(".csv"), picture]))
    for file in map(Path, snakemake.input.validation):
        record(Step.of_files(name, f"validation/{file.parent.name}/{file.stem}", [file]))
    for file in map(Path, [*snakemake.input.runs, *snakemake.input.tuned_runs]):
        log = TrainingLog(name, *file.parent.parts[-3:], folder(file, 5))
        runs = pd.read_parquet(file)
        log.add((label, store.get(key)) for label, key in zip(runs["label"], runs["run"], strict=True))
        log.close([file, file.with_name("history.parquet")])
    for step in ("tables", "figures", "studies", "tuned", "claims"):
        if files := list(snakemake.input[step]):
            record(Step.of_files(name, step, files))
    shutil.rmtree(tracking.unsent(name), ignore_errors=True)


with job_log(snakemake.log[0]):
    try:
        sync()
    except UserError:
        raise
    except Exception as error:
        raise UserError(tracking.failure(error)) from error
