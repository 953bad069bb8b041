# The whole workflow: data -> partition -> train -> tables and figures, tracked in MLflow.
#   snakemake --cores 2                                      the default experiment, config/config.yaml
#   snakemake --cores 2 --configfile config/paper.yaml       another one
#   snakemake sync --cores 2 --configfile ...                logs what tracking has missed of it
import os
from itertools import chain
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version, update_config

import cgpfl
from cgpfl import experiment as experiments
from cgpfl import results, tables

min_version("9.12")


# A file given with --configfile stands alone; nothing of the default is mixed into it.
if not workflow.overwrite_configfiles:

    configfile: "config/config.yaml"


update_config(config, experiments.typed(workflow.config_settings.config))

try:
    experiment = experiments.load(config)
except cgpfl.UserError as error:
    raise WorkflowError(str(error)) from None

HERE = Path(os.path.relpath(workflow.basedir))
SOURCE = Path(os.path.relpath(cgpfl.__path__[0]))
# The main experiment under "" and its studies, by the folder of their results.
PARTS = experiment.by_folder
JOBS = {
    folder: [f"{job.dataset}/{job.model}/{job.method}" for job in part.jobs]
    for folder, part in PARTS.items()
}
DATASETS = [dataset.name for dataset in experiment.datasets]
# The folders with the runs of the main experiment and of each study, by name, and what the studies change.
RUNS = {
    folder.removeprefix("studies/").strip("/")
    or tables.MAIN: [f"results/{experiment.name}/{folder}runs/{job}" for job in jobs]
    for folder, jobs in JOBS.items()
}
CHANGES = {
    name: ", ".join(
        f"{key}={value}" for key, value in experiment.changes(study).items()
    )
    for name, study in experiment.loaded_studies.items()
}
# Jobs that are tuned, and the folders of their tuned runs.
TUNED_JOBS = [
    f"{job.dataset}/{job.model}/{job.method}" for job in experiment.tuned_jobs
]
# What tuning cuts, by dataset: the validation parts of its seeds, where a method has values to try.
VALIDATION = {
    job.dataset: [
        f"results/{experiment.name}/validation/{job.dataset}/seed{seed}.npz"
        for seed in experiment.tuning_seeds
    ]
    for job in experiment.tuned_jobs
    if experiment.tuning(job.method)["grid"]
}
TUNED = [f"results/{experiment.name}/tuned/runs/{job}" for job in TUNED_JOBS]
ALL_RUNS = {**RUNS, **({tables.TUNED: TUNED} if experiment.tune else {})}
PARTITIONS = [
    f"{folder}partitions/{dataset.name}/seed{seed}"
    for folder, part in PARTS.items()
    for dataset in part.datasets
    for seed in part.seeds
]


pathvars:
    results=f"results/{experiment.name}",


wildcard_constraints:
    # In a group, for without studies the only folder is "", which would be no constraint.
    folder=f"(?:{'|'.join(PARTS)})",
    dataset="|".join(experiment.sources),
    model="|".join(sorted({job.model for part in PARTS.values() for job in part.jobs})),
    method="|".join(
        sorted({job.method for part in PARTS.values() for job in part.jobs})
    ),
    seed=r"\d+",


report: "workflow/report/workflow.rst"


localrules:
    all,
    report,
    sync,


include: "workflow/rules/data.smk"
include: "workflow/rules/partition.smk"
include: "workflow/rules/validation.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/tune.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/studies.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/claims.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/tracking.smk"


rule all:
    default_target: True
    input:
        rules.tables.output,
        rules.figures.output,
        rules.studies.output if experiment.studies else [],
        rules.tuned.output if experiment.tune else [],
        rules.claims.output,
        rules.cost_of_run.output,
        rules.page.output if experiment.name == "paper" else [],
        rules.report.output,
    message:
        "All tables and figures are made."


onsuccess:
    home = results.home(experiment.name)
    if (home / "tables/table1.csv").is_file():
        import pandas

        print(
            "",
            tables.summary(pandas.read_csv(home / "tables/table1.csv")),
            "",
            sep="\n",
        )
        print(f"Tables:  {home}/tables/      Figures: {home}/figures/")
        print("Runs:    mlflow ui")
    if (home / "report.html").is_file():
        print(f"Report:  {home}/report.html")
    unsent = sorted((home / "unsent").glob("*"))
    if unsent:
        command = ["snakemake sync --cores 1"]
        if workflow.overwrite_configfiles:
            files = map(os.path.relpath, workflow.overwrite_configfiles)
            command += ["--configfile", *files]
        print(
            f"Tracking failed for {len(unsent)} steps; this logs them:",
            *command,
        )
