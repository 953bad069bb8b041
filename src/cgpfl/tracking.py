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
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run
from mlflow.tracking import MlflowClient

from cgpfl.results import Stored

log = logging.getLogger(__name__)

DATABASE = "mlflow.db"
STEP, KEY, PARENT = "cgpfl.step", "cgpfl.key", "mlflow.parentRunId"
METRICS_A_CALL, PARAMS_A_CALL, DIGEST_LENGTH = 1000, 100, 36
"""What MLflow takes at most."""
OF_MODEL = ("accuracy", "accuracy_client_mean", "accuracy_client_std", "accuracy_worst_decile", "loss")
OF_RUN = ("train_loss", "gradients")
OF_CLUSTERING = ("kmeans_iterations", "contexts_found", "moved", "between", "within")


@dataclass(frozen=True)
class Input:
    """Something a step reads: its name, the digest of its content, where it is, and its role (`dataset`, ...)."""

    name: str
    digest: str
    source: str
    role: str
    profile: Mapping[str, Any] = field(default_factory=dict)

    def to_mlflow(self) -> DatasetInput:
        """As MLflow's entity."""
        data = Dataset(
            name=self.name,
            digest=self.digest[:DIGEST_LENGTH],
            source_type="local",
            source=json.dumps({"uri": self.source}),
            profile=json.dumps(dict(self.profile)),
        )
        return DatasetInput(data, [InputTag("mlflow.data.context", self.role)])


@dataclass(frozen=True)
class Step:
    """A step of the workflow: a parent run of an experiment of MLflow, found again by name and `key`.

    `key` is the content that the step makes: with other content it is another run. A training step, whose content is
    its children's, has none.
    """

    experiment: str
    name: str
    key: str = ""
    tags: Mapping[str, Any] = field(default_factory=dict)
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Sequence[Input] = ()


class Guard:
    """Calls functions of this module and takes their errors: `guard(record, step, files)`.

    The first error is logged and written to the file `note`; nothing more is called after it. Without an error there
    is no note, also where an earlier job had left one.
    """

    def __init__(self, note: Path) -> None:
        self.note = note
        self.failed = False
        note.unlink(missing_ok=True)

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Calls the function, unless a call has failed before."""
        if self.failed:
            return
        try:
            function(*args, **kwargs)
        except Exception as error:  # whatever breaks in tracking, results go on
            self.failed = True
            text = f"Tracking at {address()} failed: {type(error).__name__}: {str(error).splitlines()[0]}"
            log.warning("%s. Results are kept; `snakemake sync` logs them later.", text)
            self.note.parent.mkdir(parents=True, exist_ok=True)
            self.note.write_text(text + "\n", encoding="utf-8")


def address() -> str:
    """Where MLflow keeps its runs: MLFLOW_TRACKING_URI, or the database in the current folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{DATABASE}"


def prepare(experiment: str) -> None:
    """Brings MLflow's database up to date and makes the experiment, before jobs log to it side by side."""
    _Experiment(experiment)


def record(step: Step, files: Iterable[Path | str] = ()) -> bool:
    """Logs a step with the files it made. Returns False, and does nothing, where its content is there already."""
    experiment = _Experiment(step.experiment)
    wanted = {STEP: step.name, KEY: step.key}
    if experiment.finished(wanted):
        return False
    run = experiment.create(step.name, {**step.tags, **wanted}, step.params, step.inputs)
    experiment.close(run, files)
    return True


class TrainingLog:
    """The log of one training step: its parent run, made or found at once, and a child run for each training run."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.experiment = _Experiment(step.experiment)
        wanted = {STEP: step.name}
        found = self.experiment.search(wanted)
        if found:
            self.run = found[0].info.run_id
        else:
            self.run = self.experiment.create(step.name, {**step.tags, **wanted}, step.params, step.inputs)
        self.logged = {run.data.tags[KEY] for run in self.experiment.finished({PARENT: self.run})}

    def add(self, runs: Iterable[tuple[str, Stored]]) -> int:
        """Logs runs, each given with its label, that are not there yet; returns how many these were."""
        new = [(label, run) for label, run in runs if run.key not in self.logged]
        for label, run in new:
            name = f"{label} seed {run.facts['seed']}"
            tags = {
                **self.step.tags,
                "mlflow.source.git.commit": run.made["commit"],
                "label": label,
                "seed": run.facts["seed"],
                KEY: run.key,
                PARENT: self.run,
            }
            params = {**self.step.params, **run.facts["params"]}
            child = self.experiment.create(name, tags, params, self.step.inputs)
            for metrics in _chunks(list(_metrics(run)), METRICS_A_CALL):
                self.experiment.client.log_batch(child, metrics=metrics)
            self.experiment.close(child)
            self.logged.add(run.key)
        return len(new)

    def close(self, files: Iterable[Path | str] = ()) -> None:
        """Ends the step, with the files it made."""
        self.experiment.close(self.run, files)


class _Experiment:
    """An experiment of MLflow, made if it is not there; the only place that talks to MLflow about runs."""

    def __init__(self, name: str) -> None:
        # A server that is away is given up after seconds, not MLflow's ten minutes; both can be set from outside.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        local = address() == f"sqlite:///{DATABASE}"
        # SQLite's own wait for other writers is five seconds, too short for many jobs on a slow disk. Two first users
        # must not migrate a new database at once.
        with FileLock(f"{DATABASE}.lock") if local else nullcontext():
            self.client = MlflowClient(f"sqlite:///{Path(DATABASE).resolve()}?timeout=120" if local else address())
            self.id = self._find_or_create(name, Path("mlartifacts", name).resolve().as_uri() if local else None)

    def _find_or_create(self, name: str, artifacts: str | None) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            return self.client.create_experiment(name, artifact_location=artifacts)
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
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

    def create(self, name: str, tags: Mapping[str, Any], params: Mapping[str, Any], inputs: Sequence[Input]) -> str:
        """A new run, left open; its id."""
        tags = {**_origin(), **tags}
        texts = {key: str(value) for key, value in tags.items()}
        run_id: str = self.client.create_run(self.id, run_name=name, tags=texts).info.run_id
        entries = [Param(key, str(value)) for key, value in params.items()]
        for part in _chunks(entries, PARAMS_A_CALL):
            self.client.log_batch(run_id, params=part)
        if inputs:
            self.client.log_inputs(run_id, datasets=[each.to_mlflow() for each in inputs])
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
