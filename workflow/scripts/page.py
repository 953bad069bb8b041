"""Writes the page on the reproduction of the paper."""

from pathlib import Path

from cgpfl import page, results
from cgpfl.joblog import job_log

with job_log(snakemake.log[0]):
    template = Path(snakemake.input.template).read_text(encoding="utf-8")
    text = page.build(template, results.home(snakemake.config["name"]))
    Path(snakemake.output[0]).write_text(text, encoding="utf-8")
