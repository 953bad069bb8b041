"""Makes MLflow's database and the experiment in it; a tracker that is away stops nothing."""

from cgpfl import tracking
from cgpfl.joblog import job_log

name = snakemake.config["name"]
with job_log(snakemake.log[0]):
    tracking.Guard(name, "tracking")(tracking.prepare, name)
