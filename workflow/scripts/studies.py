"""Writes the table of all studies."""

from pathlib import Path

from cgpfl import figures, partition, results, tables
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
    table = tables.studies(frames, snakemake.params.changes, samples, paper)
    tables.write_csv(table, snakemake.output.table)
    figures.save(figures.accuracy_by_samples(table), Path(snakemake.output.samples).with_suffix(""))
    figures.save(figures.accuracy_by_partition(table), Path(snakemake.output.partitions).with_suffix(""))
    Guard(name, "studies")(record, Step.of_files(name, "studies", list(snakemake.output)))
