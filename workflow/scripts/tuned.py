"""Writes Table 1 of the tuned methods, and what their tuning tried."""

from pathlib import Path

import pandas as pd

from cgpfl import results, tables
from cgpfl.joblog import job_log
from cgpfl.tracking import Guard, Step, record

name = snakemake.config["name"]
output = snakemake.output
with job_log(snakemake.log[0]):
    frames = results.read(snakemake.params.runs)
    table = tables.table1(frames["runs"], frames["history"], tables.read_paper(snakemake.input.paper, any_lam=True))
    tables.write_csv(table, output.table)
    choices = [pd.read_csv(file, dtype={"value": str}) for file in snakemake.input.choices]
    tables.write_csv(pd.concat(choices, ignore_index=True), output.choices)
    Path(output.markdown).write_text(tables.to_markdown(table), encoding="utf-8")
    Guard(name, "tuned")(record, Step.of_files(name, "tuned", list(output)))
