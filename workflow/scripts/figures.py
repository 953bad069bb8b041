"""Draws the figures of an experiment."""

from pathlib import Path

from cgpfl import figures, partition, results
from cgpfl.joblog import job_log
from cgpfl.tracking import Guard, Step, record

name = snakemake.config["name"]
with job_log(snakemake.log[0]):
    parts = zip(snakemake.params.datasets, map(partition.load, snakemake.input.partitions), strict=True)
    contexts = {dataset: part.contexts for dataset, part in parts if part.contexts is not None}
    methods = snakemake.params.methods
    frames = figures.Frames(**results.read(snakemake.params.runs), contexts=contexts, methods=methods)
    for picture in snakemake.output:
        if picture.endswith(".png"):
            stem = Path(picture).with_suffix("")
            figures.save(figures.draw(stem.name, frames), stem)
    step = Step.of_files(name, "figures", list(snakemake.output))
    Guard(name, "figures")(record, step)
