"""The real Snakefile on a tiny configuration, in a temporary copy of the project."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import yaml
from mlflow.tracking import MlflowClient

ROOT = Path(__file__).parents[2]
TINY = {
    "name": "tiny",
    "seeds": [0],
    "datasets": ["digits"],
    "models": ["mlr"],
    "partition": {"clients": 10, "classes_per_client": 3, "min_samples": 10, "max_samples": 60},
    "training": {"rounds": 4, "eval_every": 2, "threads": 1},
    "params": {"local_steps": 2, "inner_steps": 2},
    "methods": ["fedavg", {"cgpfl": {"contexts": 2}}],
    "sweeps": {"lam": {"methods": [{"cgpfl": {"contexts": 2}}], "values": [5, 12]}},
    "tune": {"rounds": 2, "grids": {"fedavg": {"lr": [0.005, 0.5]}, "cgpfl": {}}},
    "studies": {
        "half": {"partition": {"train_share": 0.5}, "methods": ["fedavg"], "training": {"scale": "unit"}},
        "same": {"methods": ["fedavg"]},
    },
}


def copy_of_project(folder: Path) -> Path:
    for name in ("src", "workflow", "config", "profiles"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("Snakefile", "environment.yml"):
        shutil.copy(ROOT / name, folder)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "snakemake", *arguments, "--cores", "2", "--configfile", "tiny.yaml"]


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("MLFLOW_TRACKING_URI", "PYTHONWARNINGS")}
    return {**kept, "PYTHONPATH": "src", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", **extra}


def run(folder: Path, *arguments: str, fails: bool = False, **extra: str) -> str:
    """What the workflow prints."""
    done = subprocess.run(
        command(*arguments), cwd=folder, env=environment(**extra), text=True, capture_output=True, timeout=600
    )
    output = done.stdout + done.stderr
    assert (done.returncode != 0) == fails, output
    return output


def jobs(output: str) -> dict[str, int]:
    """The counts in Snakemake's table of jobs."""
    table = output.partition("Job stats:")[2].partition("total")[0]
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", table, re.MULTILINE)}


def tracked(folder: Path) -> tuple[set[str], set[str]]:
    """The names of the steps in MLflow, and the keys of the training runs below them."""
    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    found = client.search_runs([client.get_experiment_by_name("tiny").experiment_id], max_results=1000)
    assert {each.info.status for each in found} == {"FINISHED"}
    # A run that two parts of an experiment have is below both.
    children = [each for each in found if "mlflow.parentRunId" in each.data.tags]
    keys = {each.data.tags["cgpfl.key"] for each in children}
    return {each.info.run_name for each in found if each not in children}, keys


def stored(folder: Path) -> dict[str, float]:
    """The keys of the stored runs, and when each was kept."""
    return {path.parent.name: path.stat().st_mtime for path in folder.glob("results/tiny/store/*/run.json")}


@pytest.fixture(scope="module")
def first(tmp_path_factory) -> tuple[Path, str]:
    """The folder and the output of a first run."""
    folder = copy_of_project(tmp_path_factory.mktemp("project"))
    return folder, run(folder)


@pytest.fixture
def project(first) -> Path:
    return first[0]


def test_a_run_makes_everything_and_says_where_it_is(first):
    folder, output = first
    home = folder / "results/tiny"
    table = pd.read_csv(home / "tables/table1.csv")
    columns = "dataset,model,method,tested,n_seeds,final_mean,final_std,best_mean,best_std,paper,difference"
    assert ",".join(table.columns) == columns
    tuned = pd.read_csv(home / "tables/table1_tuned.csv")
    assert list(tuned.columns) == list(table.columns)
    assert set(tuned["method"]) == {"fedavg", "cgpfl"}
    choices = pd.read_csv(home / "tables/tuned_choices.csv")
    assert choices["value"].tolist() == [0.005, 0.5]
    assert choices.loc[choices["chosen"], "validation_accuracy"].tolist() == [choices["validation_accuracy"].max()]
    assert set(table["method"]) == {"fedavg", "cgpfl"}
    assert table["final_mean"].between(0, 100).all()
    by_lam = pd.read_csv(home / "tables/table2.csv")
    assert set(by_lam["lam"]) == {5, 12}
    swept = pd.read_csv(home / "tables/sweeps.csv")
    assert set(swept.loc[swept["parameter"] == "lam", "value"]) == {5, 12}
    studies = pd.read_csv(home / "tables/studies.csv").set_index(["study", "method"])
    assert set(studies.index) == {("main", "fedavg"), ("main", "cgpfl[contexts=2]")} | {
        ("half", "fedavg"),
        ("same", "fedavg"),
    }
    assert studies.loc[("half", "fedavg"), "changes"] == "partition.train_share=0.5, training.scale=unit"
    samples = studies["train_samples"]
    assert samples["half", "fedavg"] == pytest.approx(samples["main", "fedavg"] / 2, abs=2)
    assert studies.loc[("same", "fedavg"), ["to_main_mean", "shared_seeds"]].tolist() == [0, 1]
    claims = pd.read_csv(home / "claims.csv").set_index("id")["verdict"]
    assert claims["cgpfl[contexts=4] > fedavg, shared"] == "not tested"
    assert (home / "claims.md").read_text().startswith(f"{len(claims)} claims: ")
    cost = pd.read_csv(home / "tables/cost_of_run.csv").set_index("part")
    assert {"table1", "lam", "study half", "tune", "figures"} <= set(cost.index)
    assert "study same" not in cost.index  # its runs are the main experiment's
    assert cost.loc["study half", "runs"] == 1
    for name in (
        "samples",
        "partitions",
        "mu",
        "figure1",
        "figure2",
        "figure3a",
        "figure3b",
        "figure4",
        "figure5a",
        "figure5b",
    ):
        assert (home / f"figures/{name}.png").stat().st_size > 0
        assert (home / f"figures/{name}.pdf").stat().st_size > 0
    assert "Clients are sorted by their true context" in (home / "report.html").read_text()
    for words in (
        "Test accuracy in percent",
        "results/tiny/tables/",
        "results/tiny/figures/",
        "report.html",
        "mlflow ui",
    ):
        assert words in output
    assert not (folder / "mlruns").exists()


def test_every_rule_has_a_log_and_a_benchmark(project):
    home = project / "results/tiny"
    for rule in (
        "data",
        "partition",
        "validation",
        "train",
        "tune",
        "tuned",
        "tables",
        "studies",
        "claims",
        "cost_of_run",
        "figures",
        "report",
    ):
        assert list(home.glob(f"logs/{rule}*")), rule
        assert list(home.glob(f"benchmarks/{rule}*")), rule
    lines = (home / "logs/train/digits/mlr/cgpfl.log").read_text()
    assert re.search(r"4 of 4 rounds of all batches, accuracy \d+\.\d\d%, 0 s left", lines)


def test_every_step_and_run_is_tracked(project):
    steps, keys = tracked(project)
    trained = {"train/digits/mlr/fedavg", "train/digits/mlr/cgpfl"}
    made = {"data/digits", "partition/digits/seed0", "tables", "figures", "studies", "tuned", "claims"}
    made |= {"validation/digits/seed0", "tuned/train/digits/mlr/fedavg", "tuned/train/digits/mlr/cgpfl"}
    for study in ("half", "same"):
        made |= {f"studies/{study}/partition/digits/seed0", f"studies/{study}/train/digits/mlr/fedavg"}
    assert steps == made | trained
    assert keys == set(stored(project))
    # Two of fedavg's tuning, and what it chose if that is not Table 1's; the study that changes nothing adds none.
    assert len(keys) in (6, 7)


def test_unchanged_work_is_not_done_again(project):
    assert "Nothing to be done" in run(project)


def test_another_experiment_takes_the_data_as_they_are(project):
    planned = jobs(run(project, "--dry-run", "--config", "name=other"))
    assert "data" not in planned
    assert planned["partition"] == 3  # the main experiment's and two studies'


def test_editing_the_figures_trains_nothing(project):
    path = project / "src/cgpfl/figures.py"
    before = path.read_text()
    path.write_text(before + "# edited\n")
    try:
        assert jobs(run(project, "--dry-run")) == {
            "figures": 1,
            "studies": 1,
            "cost_of_run": 1,
            "report": 1,
            "all": 1,
        }
    finally:
        path.write_text(before)


def test_a_comment_in_the_engine_trains_nothing(project):
    path = project / "src/cgpfl/methods/fedavg.py"
    before, kept = path.read_text(), stored(project)
    path.write_text(before + "# a comment\n")
    try:
        assert jobs(run(project, "results/tiny/runs/digits/mlr/fedavg/runs.parquet")) == {"train": 1}
    finally:
        path.write_text(before)
    assert "1 runs, 0 of them trained" in (project / "results/tiny/logs/train/digits/mlr/fedavg.log").read_text()
    assert stored(project) == kept


def test_a_mistake_in_the_configuration_ends_before_any_job(tmp_path):
    folder = copy_of_project(tmp_path)
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**TINY, "params": {"lr": "1e-3"}}))
    output = run(folder, fails=True)
    assert "params.lr: '1e-3' given, valid is a number above 0 (this is text: write 0.001)" in output
    assert "Traceback" not in output
    assert not (folder / "results").exists()


def test_data_that_cannot_be_cut_for_tuning_end_before_any_training(tmp_path):
    folder = copy_of_project(tmp_path)
    labels = np.tile([0, 0, 1], 4)  # of a client's samples one is for testing, and each class keeps its last
    np.savez(folder / "few.npz", x=np.arange(60.0).reshape(12, 5), y=labels, client=np.repeat(np.arange(4), 3))
    few = {"datasets": [{"name": "few", "kind": "npz", "path": "few.npz"}], "partition": {"test_fraction": 0.25}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump({**TINY, **few, "studies": {}}))
    output = run(folder, "--keep-going", fails=True)
    assert "tune.validation: few (seed 0) has no 0.2 of each client's training samples" in output
    assert "client 0's training part" in output
    assert "Traceback" not in output
    assert not stored(folder)
    assert not list(folder.glob("results/tiny/runs/**/*.parquet"))


def test_a_new_seed_trains_only_its_runs_and_what_tracking_missed_is_logged_by_sync(project):
    """A seed is added while the tracking server is away; `sync` then logs what is new."""
    steps, keys = tracked(project)
    kept = stored(project)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        away = f"http://127.0.0.1:{listener.getsockname()[1]}"
    seeds = ("--config", "seeds=[0, 1]")
    output = run(project, *seeds, MLFLOW_TRACKING_URI=away)
    assert jobs(output) == {
        "partition": 3,
        "train": 4,
        "tune": 2,
        "tuned": 1,
        "tables": 1,
        "studies": 1,
        "figures": 1,
        "claims": 1,
        "cost_of_run": 1,
        "report": 1,
        "all": 1,
    }
    assert "Results are kept; `snakemake sync` logs them later." in output
    assert "sync` logs them" in output
    assert tracked(project) == (steps, keys)
    now = stored(project)
    assert len(now) == 2 * len(kept) - 2  # tuning has its own seed
    assert kept.items() <= now.items()
    table = pd.read_csv(project / "results/tiny/tables/table1.csv")
    assert (table["n_seeds"] == 2).all()

    run(project, "sync", *seeds)
    assert tracked(project) == (
        steps | {f"{study}partition/digits/seed1" for study in ("", "studies/half/", "studies/same/")},
        set(now),
    )
    assert not list(project.glob("results/tiny/unsent/*"))
    run(project, "sync", *seeds)
    assert tracked(project)[1] == set(now)


def test_editing_an_own_method_trains_its_runs_and_no_others(tmp_path):
    folder = copy_of_project(tmp_path)
    (folder / "own").mkdir()
    model = (
        "from torch import nn\ndef net(shape, classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    (folder / "own/nets.py").write_text(model)
    method = "from cgpfl.methods import FedProx\nclass Mine(FedProx):\n    name, summary, source = 'mine', '-', '-'\n"
    (folder / "own/fl.py").write_text(method)
    config = {**TINY, "models": ["own.nets:net"], "methods": ["fedavg", {"own.fl:Mine": {"mu": 1}}], "sweeps": {}}
    (folder / "tiny.yaml").write_text(yaml.safe_dump(config))
    targets = [f"results/tiny/runs/digits/net/{method}/runs.parquet" for method in ("fedavg", "mine")]
    run(folder, *targets)
    (folder / "own/fl.py").write_text(method + "    def cost(self, params, d): return super().cost(params, 2 * d)\n")
    before = stored(folder)
    assert jobs(run(folder, *targets)) == {"train": 1}
    assert len(stored(folder)) == len(before) + 1 == 3
    assert {row["sent_per_round"] for row in pd.read_parquet(folder / targets[1]).to_dict("records")} == {2 * 650}


def test_a_killed_job_loses_only_what_it_was_at(tmp_path):
    folder = copy_of_project(tmp_path)
    several = {"contexts": {"methods": ["cgpfl"], "values": [1, 2, 3, 4, 5]}}  # each a batch of its own
    training = {**TINY["training"], "rounds": 400}
    (folder / "tiny.yaml").write_text(
        yaml.safe_dump({**TINY, "methods": ["cgpfl"], "sweeps": several, "training": training, "studies": {}})
    )
    target = "results/tiny/runs/digits/mlr/cgpfl/runs.parquet"
    with open(folder / "output", "w") as output:
        started = subprocess.Popen(command(target), cwd=folder, env=environment(), stdout=output, stderr=output)
    until = time.monotonic() + 300
    while not stored(folder):
        assert started.poll() is None, (folder / "output").read_text()
        assert time.monotonic() < until
        time.sleep(0.02)
    [job] = [p for p in psutil.Process(started.pid).children(recursive=True) if "train.py" in p.cmdline()[-1]]
    os.kill(job.pid, signal.SIGKILL)
    assert started.wait(timeout=60) != 0
    kept = stored(folder)
    assert 0 < len(kept) < 5
    run(folder, target)
    now = stored(folder)
    assert len(now) == 5
    assert kept.items() <= now.items()
    assert len(pd.read_parquet(folder / target)) == 5
    assert tracked(folder)[1] == set(now)
