"""Judges the claims on an experiment's runs."""

from pathlib import Path

from cgpfl import claims, results
from cgpfl.joblog import job_log
from cgpfl.tracking import Guard, Step, record

name = snakemake.config["name"]
output = snakemake.output
with job_log(snakemake.log[0]):
    parts = {part: results.read(folders) for part, folders in snakemake.params.runs.items()}
    table = claims.claims(parts, snakemake.params.changes)
    table.to_csv(output.table, index=False, lineterminator="\n")
    Path(output.markdown).write_text(claims.to_markdown(table), encoding="utf-8")
    Guard(name, "claims")(record, Step.of_files(name, "claims", list(output)))
