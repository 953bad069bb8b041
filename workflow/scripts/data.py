"""Fetches or reads a dataset, verifies it and writes it to one file."""

from pathlib import Path

from cgpfl import datasets
from cgpfl.joblog import job_log
from cgpfl.tracking import Guard, Step, record

name = snakemake.config["name"]
source = snakemake.params.dataset
archives = snakemake.config.get("data", {}).get("archive_dir")
with job_log(snakemake.log[0]):
    dataset = datasets.prepare(out=Path(snakemake.output[0]), **source, archive_dir=archives)
    Guard(name, f"data/{dataset.name}")(record, Step.of_dataset(name, dataset))
