"""Adds up what the parts of an experiment took."""

from cgpfl import results, tables
from cgpfl.joblog import job_log

with job_log(snakemake.log[0]):
    home = results.home(snakemake.config["name"])
    tables.write_csv(results.cost_of_run(home / "benchmarks"), snakemake.output[0])
