"""Writes the tables of an experiment."""

from pathlib import Path

from cgpfl import results, tables
from cgpfl.joblog import job_log
from cgpfl.tracking import Guard, Step, record

name = snakemake.config["name"]
output = snakemake.output
with job_log(snakemake.log[0]):
    frames = results.read(snakemake.params.runs)
    history = frames["history"]
    rows, by_lam = (tables.part(frames["runs"], part) for part in ("table1", "lam"))
    table1 = tables.table1(rows, history, tables.read_paper(snakemake.input.paper1))
    table2 = tables.table2(by_lam, history, tables.read_paper(snakemake.input.paper2))
    diverged = tables.diverged(frames["runs"], history)
    tables.write_csv(table1, output.table1)
    tables.write_csv(table2, output.table2)
    tables.write_csv(tables.sweeps(frames["runs"], history), output.sweeps)
    tables.write_csv(tables.fairness(rows, history), output.fairness)
    tables.write_csv(tables.cost(rows, history), output.cost)
    tables.write_csv(tables.equal_gradients(rows, history), output.equal_gradients)
    tables.write_csv(diverged, output.diverged)
    tables.write_csv(tables.choice_by_mu(rows, frames["heuristic"]), output.mu)
    Path(output.markdown1).write_text(tables.to_markdown(table1, diverged), encoding="utf-8")
    Path(output.markdown2).write_text(tables.to_markdown(table2), encoding="utf-8")
    Guard(name, "tables")(record, Step.of_files(name, "tables", list(output)))
