"""Tracking in MLflow, and nowhere else.

An experiment of MLflow has a parent run for each step of the workflow and, below a training step, a child run for
each training run, tagged with its content key. What is there already is never logged again, so logging can be
repeated at any time. Results never come from here.

`MLFLOW_TRACKING_URI` names a server or database; without it all goes to `mlflow.db` in the current folder, where
plain `mlflow ui` finds it. A tracker that cannot be reached must not cost results: a `Guard` takes its errors, says
so once, and leaves a note; calling the same functions later logs what is missing.
"""

import getpass
import json
import logging
import math
import os
import subprocess
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock
from mlflow.entities import Dataset as MlflowDataset
from mlflow.entities import DatasetInput, InputTag, Metric, Param, Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from cgpfl.datasets import Dataset
from cgpfl.results import SETTINGS, Stored, file_key, home

log = logging.getLogger(__name__)
T = TypeVar("T")

SQLITE, DATABASE = "sqlite:///", "mlflow.db"
STEP, KEY, PARENT = "cgpfl.step", "cgpfl.key", "mlflow.parentRunId"
METRICS_A_CALL, PARAMS_A_CALL, DIGEST_LENGTH = 1000, 100, 36
"""What MLflow takes at most."""
OF_MODEL = ("accuracy", "accuracy_client_mean", "accuracy_client_std", "accuracy_worst_decile", "loss")
OF_RUN = ("train_loss", "gradients")
OF_CLUSTERING = ("kmeans_iterations", "contexts_found", "moved", "between", "within")


@dataclass(frozen=True)
class Step:
    """A step of the workflow that is a run of its own for each content, `key`, that it makes."""

    experiment: str
    name: str
    key: str
    params: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[Path | str] = ()

    @classmethod
    def of_files(cls, experiment: str, name: str, files: Sequence[Path | str]) -> "Step":
        """A step whose content is the files it made."""
        return cls(experiment, name, file_key(files), files=files)

    @classmethod
    def of_dataset(cls, experiment: str, dataset: Dataset) -> "Step":
        """The step that prepared a dataset."""
        params = {"samples": len(dataset.y), "classes": len(dataset.classes), "shape": list(dataset.x.shape[1:])}
        return cls(experiment, f"data/{dataset.name}", dataset.sha256, {**params, "sha256": dataset.sha256})


class Guard:
    """Calls functions of this module for one step and takes their errors: `guard(record, step)`.

    The first error is logged and left as a note in `unsent(experiment)`; nothing more is called after it. Without an
    error there is no note, also where an earlier job had left one.
    """

    def __init__(self, experiment: str, step: str) -> None:
        self.failed = False
        self.note = unsent(experiment) / step.replace("/", "-")
        self.note.unlink(missing_ok=True)

    def __call__(self, function: Callable[..., T], *args: Any) -> T | None:
        """What the function returns; None if it fails, or a call has failed before."""
        if self.failed:
            return None
        try:
            return function(*args)
        except Exception as error:  # whatever breaks in tracking, results go on
            self.failed = True
            log.warning("%s. Results are kept; `snakemake sync` logs them later.", failure(error))
            self.note.parent.mkdir(parents=True, exist_ok=True)
            self.note.write_text(failure(error) + "\n", encoding="utf-8")
            return None


def unsent(experiment: str) -> Path:
    """The folder with a note for each step that could not be logged."""
    return home(experiment) / "unsent"


def failure(error: Exception) -> str:
    """What to say of an error of tracking, in a line."""
    return f"Tracking at {address()} failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"


def address() -> str:
    """Where MLflow keeps its runs: MLFLOW_TRACKING_URI, or the database in the current folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{SQLITE}{DATABASE}"


def record(step: Step) -> bool:
    """Logs a step with its files. Returns False, and does nothing, where its content is there already."""
    experiment = _Experiment(step.experiment)
    tags = {STEP: step.name, KEY: step.key}
    if experiment.finished(tags):
        return False
    experiment.close(experiment.create(step.name, tags, step.params), step.files)
    return True


class TrainingLog:
    """The log of a training job: its parent run, made or found at once, and a child run for each training run."""

    def __init__(self, experiment: str, dataset: str, model: str, method: str, folder: str = "") -> None:
        self.tags = {"dataset": dataset, "model": model, "method": method}
        self.experiment = _Experiment(experiment)
        name = f"{folder}train/{dataset}/{model}/{method}"
        found = self.experiment.search({STEP: name})
        self.run = found[0].info.run_id if found else self.experiment.create(name, {**self.tags, STEP: name})
        self.logged = {run.data.tags[KEY] for run in self.experiment.finished({PARENT: self.run})}

    def add(self, runs: Iterable[tuple[str, Stored]], split: str = "test") -> int:
        """Logs runs, each given with its label, that are not there yet; returns how many these were.

        `split`: the samples that their accuracies are of, `test` or `validation`, kept as a tag.
        """
        new = [(label, run) for label, run in runs if run.key not in self.logged]
        for label, run in new:
            tags = {
                **self.tags,
                "mlflow.source.git.commit": run.made["commit"],
                "label": label,
                "split": split,
                "seed": run.facts["seed"],
                KEY: run.key,
                PARENT: self.run,
            }
            params = {**{name: run.facts[name] for name in SETTINGS}, **run.facts["params"]}
            child = self.experiment.create(f"{label} seed {run.facts['seed']}", tags, params, _inputs(run.facts))
            for metrics in _chunks(list(_metrics(run)), METRICS_A_CALL):
                self.experiment.client.log_batch(child, metrics=metrics)
            self.experiment.close(child)
            self.logged.add(run.key)
        return len(new)

    def close(self, files: Iterable[Path | str] = ()) -> None:
        """Ends the parent run, with the files that the job made."""
        self.experiment.close(self.run, files)


class _Experiment:
    """An experiment of MLflow, made if it is not there; the only place that talks to MLflow about runs."""

    def __init__(self, name: str) -> None:
        # A server that is away is given up after seconds, not MLflow's ten minutes; both can be set from outside.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        file, _, options = address().removeprefix(SQLITE).partition("?")
        if not address().startswith(SQLITE):
            self.client = MlflowClient(address())
            self.id = self._find_or_create(name)
            return
        # SQLite's own wait for other writers is five seconds, too short for many jobs on a slow disk. Two first users
        # must not migrate a new database at once.
        with FileLock(f"{file}.lock"):
            self.client = MlflowClient(f"{SQLITE}{Path(file).resolve()}?{options or 'timeout=120'}")
            own = Path("mlartifacts", name).resolve().as_uri() if file == DATABASE else None
            self.id = self._find_or_create(name, own)

    def _find_or_create(self, name: str, artifacts: str | None = None) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            try:
                return self.client.create_experiment(name, artifact_location=artifacts)
            except MlflowException:  # another job may have made it on the server just now
                found = self.client.get_experiment_by_name(name)
                if found is None:
                    raise
        if found.lifecycle_stage == "deleted":
            try:
                self.client.restore_experiment(found.experiment_id)
            except MlflowException:  # or restored it
                if self.client.get_experiment(found.experiment_id).lifecycle_stage == "deleted":
                    raise
        return found.experiment_id

    def search(self, tags: Mapping[str, str]) -> list[Run]:
        """The runs with these tags."""
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        found: list[Run] = []
        token = None
        while True:
            page = self.client.search_runs([self.id], wanted, max_results=1000, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def finished(self, tags: Mapping[str, str]) -> list[Run]:
        """The whole runs with these tags; halves, which a killed job has left, are deleted."""
        runs = self.search(tags)
        for run in runs:
            if run.info.status != "FINISHED":
                self.client.delete_run(run.info.run_id)
        return [run for run in runs if run.info.status == "FINISHED"]

    def create(
        self,
        name: str,
        tags: Mapping[str, Any],
        params: Mapping[str, Any] | None = None,
        inputs: Sequence[DatasetInput] = (),
    ) -> str:
        """A new run, left open; its id."""
        tags = {**_origin(), **tags}
        texts = {key: str(value) for key, value in tags.items()}
        run_id: str = self.client.create_run(self.id, run_name=name, tags=texts).info.run_id
        entries = [Param(key, str(value)) for key, value in (params or {}).items()]
        for part in _chunks(entries, PARAMS_A_CALL):
            self.client.log_batch(run_id, params=part)
        if inputs:
            self.client.log_inputs(run_id, datasets=list(inputs))
        return run_id

    def close(self, run_id: str, files: Iterable[Path | str] = ()) -> None:
        """Ends a run, with files."""
        for file in files:
            self.client.log_artifact(run_id, str(file))
        self.client.set_terminated(run_id)


def _origin() -> dict[str, str]:
    """The tags that MLflow's own interface shows as a run's source: without them it would be a temporary script."""
    return {
        "mlflow.source.name": "Snakefile",
        "mlflow.source.type": "PROJECT",
        "mlflow.user": getpass.getuser(),
        "mlflow.source.git.commit": commit(),
    }


@cache
def commit() -> str:
    """The commit that the package's source is at, with `+` for uncommitted changes; `unknown` outside of git."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", "."], capture_output=True).returncode
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + "+" * bool(changed)


def _inputs(facts: Mapping[str, Any]) -> list[DatasetInput]:
    """A run's dataset and partition, by name and digest of their contents."""
    dataset, seed = facts["dataset"], facts["seed"]
    return [
        DatasetInput(
            MlflowDataset(name, digest[:DIGEST_LENGTH], "local", json.dumps({"uri": source})),
            [InputTag("mlflow.data.context", role)],
        )
        for name, digest, source, role in (
            (dataset, facts["inputs"], f"data/{dataset}.npz", "dataset"),
            (f"{dataset} seed {seed}", facts["partition"], f"partitions/{dataset}/seed{seed}.npz", "partition"),
        )
    ]


def _metrics(run: Stored) -> Iterator[Metric]:
    """A run's metrics by round: `accuracy/personal` and the like for every tested model, the headline's accuracy as
    `accuracy`, and those of the clustering."""
    now = int(time.time() * 1000)

    def metric(name: str, row: Mapping[Hashable, Any]) -> Iterator[Metric]:
        value = row.get(name.split("/")[0])
        if value is not None and math.isfinite(value):
            yield Metric(name, float(value), now, int(row["round"]))

    for row in run.frames["history"].to_dict("records"):
        for name in OF_MODEL:
            yield from metric(f"{name}/{row['tested']}", row)
        if row["headline"]:
            for name in ("accuracy", *OF_RUN):
                yield from metric(name, row)
    for row in run.frames["clustering"].to_dict("records"):
        for name in OF_CLUSTERING:
            yield from metric(name, row)


def _chunks(items: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
