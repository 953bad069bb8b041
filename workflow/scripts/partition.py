"""Deals a dataset's samples to clients."""

from pathlib import Path

from cgpfl import datasets, figures, partition
from cgpfl.joblog import job_log
from cgpfl.tracking import Guard, Step, record

name = snakemake.config["name"]
folder = snakemake.wildcards.folder
seed = int(snakemake.wildcards.seed)
output = snakemake.output
with job_log(snakemake.log[0]):
    dataset = datasets.load(snakemake.input.data)
    made = partition.of_dataset(dataset, seed=seed, **snakemake.params.partition)
    partition.save(made, Path(output.partition))
    statistics = partition.statistics(made, dataset.y, dataset.classes)
    statistics.to_csv(output.statistics, index=False)
    figure = figures.partition(statistics, f"{folder}{dataset.name}, seed {seed}")
    figure.savefig(output.picture, dpi=200, metadata={"Software": None})
    step = Step.of_files(name, f"{folder}partition/{dataset.name}/seed{seed}", [output.statistics, output.picture])
    Guard(name, step.name)(record, step)
