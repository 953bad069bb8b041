"""Cuts validation samples from a partition's training samples."""

from pathlib import Path

from cgpfl import UserError, datasets, partition
from cgpfl.joblog import job_log
from cgpfl.tracking import Guard, Step, record

name = snakemake.config["name"]
fraction = snakemake.params.fraction
with job_log(snakemake.log[0]):
    dataset = datasets.load(snakemake.input.data)
    whole = partition.load(snakemake.input.partition)
    try:
        cut = partition.split_validation(whole, dataset.y, fraction, whole.seed)
    except UserError as error:
        raise UserError(
            f"tune.validation: {dataset.name} (seed {whole.seed}) has no {fraction:g} of each client's training "
            f"samples to cut for tuning. {error} Without `tune` nothing is cut."
        ) from None
    partition.save(cut, Path(snakemake.output[0]))
    step = Step.of_files(name, f"validation/{dataset.name}/seed{whole.seed}", snakemake.output)
    Guard(name, step.name)(record, step)
