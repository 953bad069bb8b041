"""Where finished runs are kept, and how an experiment's results are gathered from them.

Every run has a content key, a hash over all that decides its numbers. The store has a folder for each key, which
appears whole or not at all: a killed job loses the runs it was at, never one that it had finished, and two jobs may
store at once. Results for tables and figures are gathered from the store by the keys that an experiment names, so
nothing is trained twice and nothing that is no longer asked for shows up.
"""

import ast
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from cgpfl.errors import UserError
from cgpfl.files import replacing
from cgpfl.imports import sources
from cgpfl.tables import MAIN, TUNED

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "runs": {"run": "str", "seed": "int64"},
    "history": {"run": "str", "seed": "int64", "round": "int64", "tested": "str", "accuracy": "float64"},
    "assignments": {"run": "str", "round": "int64", "client": "int64", "context": "int64"},
    "clustering": {
        "run": "str",
        "round": "int64",
        "kmeans_iterations": "float64",
        "contexts_found": "int64",
        "moved": "float64",
        "between": "float64",
        "within": "float64",
    },
    "heuristic": {
        "run": "str",
        "round": "int64",
        "contexts": "int64",
        "e": "float64",
        "complexity": "float64",
        "cost": "float64",
        "chosen": "bool",
    },
}
"""The frames of results, and the columns that each has even where no run fills it."""
Frames = Mapping[str, pd.DataFrame]

SETTINGS = ("rounds", "batch_size", "participation", "dtype", "eval_every", "train_loss_samples")
"""The settings of training that are part of a run's key; threads, device and memory are not."""

ENGINE = (
    "capture",
    "checkpoint",
    "clients",
    "contexts",
    "convolution",
    "methods",
    "models",
    "nets",
    "rounds",
    "runs",
    "settings",
    "simulation",
    "solvers",
)
"""The modules whose code decides the numbers of a run."""

DENSE = ("mlr", "dnn")
"""The models that do not use the module `convolution`."""


def home(experiment: str) -> Path:
    """The folder of an experiment's results, in the current folder."""
    return Path("results", experiment)


@cache
def engine_files() -> tuple[Path, ...]:
    """The source files of ENGINE, sorted."""
    root = Path(__file__).parent
    paths = (root / name for name in ENGINE)
    return tuple(sorted(file for path in paths for file in ([*path.rglob("*.py")] or [path.with_suffix(".py")])))


@cache
def engine_hash(model: str) -> str:
    """A hash over the code of the engine that a model is trained by; comments, docstrings and layout do not count."""
    root = Path(__file__).parent
    files = [file for file in engine_files() if model not in DENSE or file.stem != "convolution"]
    return content_key({str(file.relative_to(root)): code(file) for file in files})


@cache
def own_hash(path: str) -> str:
    """A hash over the code that a user's own model or method is made of, given its dotted path."""
    return content_key([code(file) for file in sources(path)])


def code(file: Path) -> str:
    """The code of a Python file without comments, docstrings and layout."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(tree)


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def content_key(facts: Any) -> str:
    """16 hex digits that differ where plain values (numbers, text, lists, mappings) differ."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def file_key(paths: Iterable[Path | str]) -> str:
    """A content key of files: their names and contents."""
    return content_key({Path(path).name: hashlib.sha256(Path(path).read_bytes()).hexdigest() for path in paths})


@dataclass(frozen=True)
class Stored:
    """A finished run: its key, the facts that the key stands for, how it was made, and its part of the frames."""

    key: str
    facts: Mapping[str, Any]
    made: Mapping[str, Any]
    frames: Frames


@dataclass(frozen=True)
class Store:
    """Finished runs by content key, in a folder."""

    root: Path

    def __contains__(self, key: str) -> bool:
        return (self.root / key / "run.json").is_file()

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those of the keys that are not there, each once, in their order."""
        return [key for key in dict.fromkeys(keys) if key not in self]

    def add(self, run: Stored) -> None:
        """Keeps a run, whole or not at all; one that is there already stays as it is."""
        if run.key in self:
            return
        unfinished = self.root / f".{run.key}-{uuid.uuid4().hex}"
        unfinished.mkdir(parents=True)
        try:
            for name, frame in run.frames.items():
                if len(frame):
                    frame.to_parquet(unfinished / f"{name}.parquet", index=False)
            about = {"key": run.key, "facts": run.facts, "made": run.made}
            (unfinished / "run.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
            try:
                os.rename(unfinished, self.root / run.key)
            except OSError:
                if run.key not in self:  # else another job was faster
                    raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def get(self, key: str) -> Stored:
        """A run; its frames have the columns of COLUMNS even where they are empty.

        Raises KeyError for one that is not there, and UserError for one that cannot be read.
        """
        if key not in self:
            raise KeyError(key)
        with self._opened(key) as (folder, about):
            frames = {name: _read_frame(folder / f"{name}.parquet", name) for name in COLUMNS}
            return Stored(key, about["facts"], about["made"], frames)

    def made(self, key: str) -> dict[str, Any]:
        """How a run was made; empty for one that is not there.

        Raises UserError for one that cannot be read.
        """
        if key not in self:
            return {}
        with self._opened(key) as (_, about):
            return about["made"]

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[Path, dict[str, Any]]]:
        """A run's folder and what its run.json says; what cannot be read inside is a UserError."""
        folder = self.root / key
        try:
            yield folder, json.loads((folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError) as error:
            raise UserError(
                f"The stored run {folder} is damaged ({error}); delete that folder and run again."
            ) from None


def _read_frame(path: Path, name: str) -> pd.DataFrame:
    return pd.read_parquet(path) if path.is_file() else _empty(name)


def _empty(name: str) -> pd.DataFrame:
    return pd.DataFrame({column: pd.Series(dtype=kind) for column, kind in COLUMNS[name].items()})


COST = ["part", "runs", "jobs", "wall_s", "longest_s", "peak_mb", "processor", "cores"]


def cost_of_run(runs: Mapping[str, pd.DataFrame], store: Store, benchmarks: Path) -> pd.DataFrame:
    """What each part of an experiment took, columns COST: its training, then its other rules, slowest first.

    Training, a row for each of Table 1, sweeps, studies and `tuned`: number of `runs` and their `wall_s` as measured
    when they were trained, whether or not they have been read from the store since. A run that several parts have
    counts for the first. A batch's time is spread equally over its runs. As far as the store knows: `peak_mb`, the
    largest resident memory (MB) of a process by the time it kept a run of the part; `processor` and `cores` that most
    runs had.

    Other rules, from Snakemake's benchmark files, studies together: number of `jobs`, `wall_s` of all and `longest_s`
    of one, `peak_mb` of the largest. What tuning tried has no frames here, so rule `tune` is among these: with its
    last jobs, which read from the store what it had, and with the runs of `tuned`.

    Times are in seconds; those of jobs side by side add up.

    Args:
        runs: frame `runs` of the main experiment under MAIN, of the studies and `tuned` under their names.
        store: where these runs are kept. benchmarks: the folder of the benchmark files.
    """
    return pd.concat([_cost_of_training(runs, store), _cost_of_rules(benchmarks)], ignore_index=True).reindex(
        columns=COST
    )


def _cost_of_training(runs: Mapping[str, pd.DataFrame], store: Store) -> pd.DataFrame:
    frames = [
        frame.assign(part=[parts[0] for parts in frame["parts"]] if name == MAIN else _part(name))
        for name, frame in runs.items()
    ]
    rows = pd.concat(frames)[["run", "part", "seconds"]].drop_duplicates("run").reset_index(drop=True)
    made = pd.DataFrame([store.made(key) for key in rows["run"]]).reindex(columns=["peak_mb", "processor", "cores"])
    return (
        rows.join(made)
        .groupby("part", sort=False)
        .agg(
            runs=("run", "size"),
            wall_s=("seconds", "sum"),
            peak_mb=("peak_mb", "max"),
            processor=("processor", _most_frequent),
            cores=("cores", _most_frequent),
        )
        .round(1)
        .reset_index()
    )


def _part(name: str) -> str:
    """What the runs of a study, or of the tuned methods, are called: no sweep's name."""
    return name if name == TUNED else f"study {name}"


def _most_frequent(values: pd.Series) -> Any:
    found = values.mode()
    return None if found.empty else found.iloc[0]


def _cost_of_rules(folder: Path) -> pd.DataFrame:
    rows = []
    for file in sorted(folder.rglob("*.tsv")):
        own = file.relative_to(folder).with_suffix("").parts
        rule = own[2] if own[0] == "studies" and len(own) > 1 else own[0]
        taken = pd.read_csv(file, sep="\t", na_values="-").iloc[-1]
        rows.append({"part": rule, "wall_s": taken["s"], "peak_mb": taken["max_rss"]})
    rules = pd.DataFrame([row for row in rows if row["part"] != "train"], columns=["part", "wall_s", "peak_mb"])
    table = rules.groupby("part").agg(
        jobs=("wall_s", "size"), wall_s=("wall_s", "sum"), longest_s=("wall_s", "max"), peak_mb=("peak_mb", "max")
    )
    return table.sort_values("wall_s", ascending=False, kind="stable").round(1).reset_index()


def join(parts: Sequence[Frames]) -> dict[str, pd.DataFrame]:
    """Frames of several runs or jobs, one below the other."""
    joined = {}
    for name in COLUMNS:
        frames = [part[name] for part in parts if len(part[name])]
        frame = pd.concat(frames, ignore_index=True) if frames else _empty(name)
        for column in COLUMNS[name]:
            if column not in frame.columns:
                frame[column] = float("nan")
        joined[name] = frame
    return joined


def write(frames: Frames, folder: Path) -> None:
    """Writes each frame as parquet into a folder, each file whole or not at all."""
    for name, frame in frames.items():
        with replacing(folder / f"{name}.parquet") as path:
            frame.to_parquet(path, index=False)


def read(folders: Iterable[Path | str]) -> dict[str, pd.DataFrame]:
    """The frames that `write` wrote into several folders, joined in their order.

    Raises UserError for a folder that lacks a frame.
    """
    parts = []
    for folder in map(Path, folders):
        for name in COLUMNS:
            if not (folder / f"{name}.parquet").is_file():
                raise UserError(f"{folder / name}.parquet is missing; run the workflow to make it.")
        parts.append({name: pd.read_parquet(folder / f"{name}.parquet") for name in COLUMNS})
    return join(parts)
