"""Tracking against real MLflow: a database in a temporary folder, and a local server."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import requests
from mlflow.tracking import MlflowClient

from cgpfl import datasets, tracking
from cgpfl.results import SETTINGS, Stored
from cgpfl.tracking import Guard, Step, TrainingLog


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


def a_log(method: str = "cgpfl") -> TrainingLog:
    return TrainingLog("x", "digits", "mlr", method)


def a_step(name: str, key: str, files=()) -> Step:
    return Step("x", name, key, files=files)


def a_run(key: str, seed: int = 0, rounds: int = 2) -> tuple[str, Stored]:
    history = pd.DataFrame(
        [
            {"run": key, "round": r, "tested": tested, "headline": tested == "personal", "accuracy": 0.1 * r + extra,
             "loss": 1.0, "train_loss": float("nan"), "gradients": 50.0 * r}
            for r in range(1, rounds + 1)
            for tested, extra in (("personal", 0.01), ("global", 0.0))
        ]
    )  # fmt: skip
    clustering = pd.DataFrame({"run": key, "round": range(1, rounds + 1), "moved": 0.5, "contexts_found": 2})
    settings = dict.fromkeys(SETTINGS, 2)
    facts = {"dataset": "digits", "inputs": "d" * 64, "partition": "p" * 64, "seed": seed, **settings}
    facts["params"] = {"lam": 12, "contexts": 4}
    return f"cgpfl[contexts={4}]", Stored(
        key, facts, {"commit": "abc+"}, {"history": history, "clustering": clustering}
    )


def database() -> MlflowClient:
    return MlflowClient(f"sqlite:///{Path('mlflow.db').resolve()}")


def all_runs(client: MlflowClient | None = None, experiment: str = "x"):
    client = client or database()
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id], max_results=5000))


def children(runs):
    return {run.data.tags[tracking.KEY]: run for run in runs if tracking.PARENT in run.data.tags}


def test_a_training_step_is_a_parent_with_a_child_for_each_run(folder):
    (folder / "history.parquet").write_text("rows")
    log = a_log()
    assert log.add([a_run("k0"), a_run("k1", seed=1)]) == 2
    log.close(["history.parquet"])

    runs = all_runs()
    [parent] = [run for run in runs if tracking.PARENT not in run.data.tags]
    assert parent.info.run_name == "train/digits/mlr/cgpfl"
    assert parent.info.status == "FINISHED"
    child = children(runs)["k1"]
    assert child.data.tags[tracking.PARENT] == parent.info.run_id
    assert child.info.run_name == "cgpfl[contexts=4] seed 1"
    assert child.info.status == "FINISHED"
    assert child.data.params == {**dict.fromkeys(SETTINGS, "2"), "lam": "12", "contexts": "4"}
    tags = {"method": "cgpfl", "dataset": "digits", "model": "mlr", "seed": "1", "mlflow.source.git.commit": "abc+",
            "mlflow.source.name": "Snakefile", "label": "cgpfl[contexts=4]"}  # fmt: skip
    assert tags.items() <= child.data.tags.items()
    assert {(each.dataset.name, each.tags[0].value) for each in child.inputs.dataset_inputs} == {
        ("digits", "dataset"), ("digits seed 1", "partition")}  # fmt: skip

    client = database()
    points = client.get_metric_history(child.info.run_id, "accuracy/global")
    assert [(point.step, point.value) for point in points] == [(1, 0.1), (2, 0.2)]
    assert child.data.metrics["accuracy"] == pytest.approx(0.21)
    assert child.data.metrics["moved"] == 0.5
    assert "train_loss" not in child.data.metrics  # NaN throughout
    assert [file.path for file in client.list_artifacts(parent.info.run_id)] == ["history.parquet"]


def test_the_database_is_where_plain_mlflow_ui_looks(folder):
    tracking.record(a_step("tables", key="one"))
    assert (folder / "mlflow.db").is_file()
    assert not (folder / "mlruns").exists()


def test_what_is_logged_already_is_not_logged_again():
    for _ in range(2):
        log = a_log()
        log.add([a_run("k0")])
        log.close()
    assert len(all_runs()) == 2
    log = a_log()
    assert log.add([a_run("k0"), a_run("k1")]) == 1
    log.close()
    assert len(all_runs()) == 3


def test_a_run_that_a_killed_job_had_begun_is_logged_anew(monkeypatch):
    log = a_log()
    with monkeypatch.context() as patch:
        patch.setattr(log.experiment.client, "log_batch", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            log.add([a_run("k0")])
    log = a_log()
    assert log.add([a_run("k0")]) == 1
    log.close()
    runs = all_runs()
    assert len(runs) == 2
    assert len(children(runs)["k0"].data.metrics) > 0


def test_long_histories_are_logged_in_full():
    log = a_log()
    log.add([a_run("k0", rounds=700)])
    run = children(all_runs())["k0"]
    points = database().get_metric_history(run.info.run_id, "accuracy/personal")
    assert [point.step for point in points] == list(range(1, 701))


def test_a_step_is_a_run_for_each_content(folder):
    (folder / "table1.csv").write_text("a")
    table = Step.of_files("x", "tables", ["table1.csv"])
    assert tracking.record(table)
    assert not tracking.record(table)
    assert tracking.record(Step.of_files("x", "figures", ["table1.csv"]))
    (folder / "table1.csv").write_text("b")
    assert tracking.record(Step.of_files("x", "tables", ["table1.csv"]))
    runs = all_runs()
    assert len(runs) == 3
    assert [file.path for file in database().list_artifacts(runs[0].info.run_id)] == ["table1.csv"]


def test_a_dataset_is_known_by_its_contents(folder):
    dataset = datasets.prepare("digits", folder / "digits.npz")
    assert tracking.record(Step.of_dataset("x", dataset))
    assert not tracking.record(Step.of_dataset("x", datasets.load(folder / "digits.npz")))
    [run] = all_runs()
    assert run.info.run_name == "data/digits"
    assert run.data.params == {"samples": "1797", "classes": "10", "shape": "[8, 8]", "sha256": dataset.sha256}


def test_a_deleted_experiment_is_taken_up_again():
    tracking.record(a_step("tables", key="one"))
    client = database()
    client.delete_experiment(client.get_experiment_by_name("x").experiment_id)
    assert tracking.record(a_step("tables", key="two"))
    assert len(all_runs()) == 2


def test_an_experiment_that_another_job_makes_at_the_same_time_is_used(monkeypatch):
    tracking.record(a_step("tables", key="one"))
    find, answers = MlflowClient.get_experiment_by_name, iter([None])
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda *a: next(answers, find(*a)))
    assert tracking.record(a_step("tables", key="two"))
    assert len(all_runs()) == 2


def test_an_experiment_that_another_job_restores_at_the_same_time_is_used(monkeypatch):
    tracking.record(a_step("tables", key="one"))
    client, find = database(), MlflowClient.get_experiment_by_name
    own = client.get_experiment_by_name("x").experiment_id
    client.delete_experiment(own)
    seen = iter([client.get_experiment_by_name("x")])
    client.restore_experiment(own)
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda *a: next(seen, None) or find(*a))
    assert tracking.record(a_step("tables", key="two"))
    assert len(all_runs()) == 2


LOGGER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_tracking import a_log, a_run
job = sys.argv[2]
log = a_log(job)
log.add([a_run(f"{job}-{i}", rounds=100) for i in range(5)])
log.close()
"""


@pytest.mark.parametrize(("address", "jobs"), [("sqlite:///mlflow.db", 8), ("sqlite:///own.db?timeout=60", 3)])
def test_jobs_logging_at_once_lose_nothing(address, jobs, monkeypatch):
    """Even where all are the first users of a new database."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    command = [sys.executable, "-c", LOGGER, str(Path(__file__).parent)]
    started = [subprocess.Popen([*command, str(job)], stderr=subprocess.PIPE, text=True) for job in range(jobs)]
    errors = [job.communicate()[1] for job in started]
    assert [job.returncode for job in started] == [0] * jobs, errors
    client = MlflowClient(address)
    runs = all_runs(client)
    assert len(runs) == 6 * jobs
    assert {run.info.status for run in runs} == {"FINISHED"}
    for run in children(runs).values():
        assert len(client.get_metric_history(run.info.run_id, "accuracy/personal")) == 100


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture
def server(tmp_path_factory):
    """The address of a local `mlflow server`."""
    home, port = tmp_path_factory.mktemp("server"), free_port()
    command = [sys.executable, "-m", "mlflow", "server", "--port", str(port), "--workers", "1",
               "--backend-store-uri", "sqlite:///server.db", "--artifacts-destination", "artifacts"]  # fmt: skip
    with open(home / "log", "w") as out:
        process = subprocess.Popen(command, cwd=home, stdout=out, stderr=out)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 120
        while not answers(address):
            assert process.poll() is None, (home / "log").read_text()
            assert time.monotonic() < until, (home / "log").read_text()
            time.sleep(0.2)
        yield address
    finally:
        process.terminate()
        process.wait()


def answers(address: str) -> bool:
    try:
        return requests.get(f"{address}/health", timeout=5).ok
    except requests.ConnectionError:
        return False


def test_a_server_named_by_the_environment_is_used(server, folder, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    (folder / "history.parquet").write_text("rows")
    log = a_log()
    log.add([a_run("k0")])
    log.close(["history.parquet"])
    client = MlflowClient(server)
    runs = all_runs(client)
    assert len(runs) == 2
    assert children(runs)["k0"].data.metrics["accuracy"] == pytest.approx(0.21)
    [parent] = [run for run in runs if tracking.PARENT not in run.data.tags]
    assert [file.path for file in client.list_artifacts(parent.info.run_id)] == ["history.parquet"]
    assert not (folder / "mlflow.db").exists()


def test_a_server_that_is_away_costs_a_warning_and_leaves_a_note(folder, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    guard = Guard("x", "train/digits/mlr/cgpfl")
    calls = []
    assert guard(tracking.record, a_step("tables", key="one")) is None
    guard(calls.append, "a call after the first failure")
    assert guard.failed
    assert calls == []
    [warning] = [record.getMessage() for record in caplog.records if record.name == "cgpfl.tracking"]
    assert "Results are kept" in warning
    assert "snakemake sync" in warning
    assert "127.0.0.1" in warning
    note = folder / "results/x/unsent/train-digits-mlr-cgpfl"
    assert "Tracking at http://127.0.0.1" in note.read_text()

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    guard = Guard("x", "train/digits/mlr/cgpfl")
    assert guard(tracking.record, a_step("tables", key="one"))
    assert not guard.failed
    assert not note.exists()
    assert len(all_runs()) == 1


def test_commits_are_named():
    assert tracking.commit() == "unknown" or len(tracking.commit().rstrip("+")) == 40
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]
