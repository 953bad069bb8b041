"""Writes the table of all studies."""

from pathlib import Path

from cgpfl import partition, results, tables
from cgpfl.joblog import job_log
from cgpfl.tracking import Guard, Step, record

name = snakemake.config["name"]
home = results.home(name)
with job_log(snakemake.log[0]):
    frames = {study: results.read(folders) for study, folders in snakemake.params.runs.items()}
    sizes: dict[tuple[str, str], list[float]] = {}
    for file in map(Path, snakemake.input.partitions):
        own = file.relative_to(home).parts
        study = own[1] if own[0] == "studies" else tables.MAIN
        train = partition.load(file).train
        sizes.setdefault((study, file.parent.name), []).append(sum(map(len, train)) / len(train))
    samples = {key: sum(means) / len(means) for key, means in sizes.items()}
    paper = tables.read_paper(snakemake.input.paper)
    tables.write_csv(tables.studies(frames, snakemake.params.changes, samples, paper), snakemake.output.table)
    Guard(name, "studies")(record, Step.of_files(name, "studies", list(snakemake.output)))
