"""Has Snakemake make its report of the tables and figures, as they are now."""

import subprocess
import sys
from pathlib import Path

import yaml

output = snakemake.output
Path(output.config).write_text(yaml.safe_dump(snakemake.config, sort_keys=False), encoding="utf-8")
command = [sys.executable, "-m", "snakemake", *snakemake.params.targets, "--snakefile", snakemake.params.snakefile]
with open(snakemake.log[0], "w", encoding="utf-8") as log:
    # The lock is the outer Snakemake's, which runs nothing that the report reads.
    options = ["--configfile", output.config, "--report", output.report, "--nolock"]
    subprocess.run([*command, *options], check=True, stdout=log, stderr=log)
