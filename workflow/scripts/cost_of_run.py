"""Adds up what the parts of an experiment took."""

from pathlib import Path

import pandas as pd

from cgpfl import results, tables
from cgpfl.joblog import job_log

with job_log(snakemake.log[0]):
    home = results.home(snakemake.config["name"])
    runs = {
        part: pd.concat([pd.read_parquet(Path(folder, "runs.parquet")) for folder in folders])
        for part, folders in snakemake.params.runs.items()
    }
    table = results.cost_of_run(runs, results.Store(home / "store"), home / "benchmarks")
    tables.write_csv(table, snakemake.output[0])
