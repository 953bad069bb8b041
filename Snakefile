# The whole workflow: data -> partition -> train -> tables and figures, tracked in MLflow.
#   snakemake --cores 2                                      the default experiment, config/config.yaml
#   snakemake --cores 2 --configfile config/paper.yaml       another one
#   snakemake --cores 2 sync                                 logs what tracking has missed
import os
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import min_version, update_config

import cgpfl
from cgpfl import experiment as experiments
from cgpfl import results

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
JOBS = [f"{job.dataset}/{job.model}/{job.method}" for job in experiment.jobs]
DATASETS = [dataset.name for dataset in experiment.datasets]


pathvars:
    results=f"results/{experiment.name}",


wildcard_constraints:
    dataset="|".join(DATASETS),
    model="|".join(sorted({job.model for job in experiment.jobs})),
    method="|".join(sorted({job.method for job in experiment.jobs})),
    seed=r"\d+",


report: "workflow/report/workflow.rst"


localrules:
    all,
    tracking,
    report,
    sync,


include: "workflow/rules/tracking.smk"
include: "workflow/rules/data.smk"
include: "workflow/rules/partition.smk"
include: "workflow/rules/train.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/sync.smk"


rule all:
    default_target: True
    input:
        rules.tables.output,
        rules.figures.output,
        rules.report.output,
    message:
        "All tables and figures are made."


onsuccess:
    home = results.home(experiment.name)
    if (home / "tables/table1.csv").is_file():
        import pandas
        from cgpfl import tables

        print(
            "",
            tables.summary(pandas.read_csv(home / "tables/table1.csv")),
            "",
            sep="\n",
        )
        print(f"Tables:  {home}/tables/      Figures: {home}/figures/")
        print(f"Report:  {home}/report.html  Runs:    mlflow ui")
    unsent = sorted((home / "unsent").glob("*"))
    if unsent:
        print(
            f"Tracking failed for {len(unsent)} steps: `snakemake --cores 1 sync` logs them."
        )
