"""What a training job does: train the runs that the store lacks, keep each as soon as it is done, gather all.

The engine knows nothing of files, the store nothing of engines; this is where they meet.
"""

import ctypes
import hashlib
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from cgpfl import results, tracking
from cgpfl.clients import ClientData
from cgpfl.datasets import Dataset, channel_first, scaled, scaling
from cgpfl.experiment import Job, Run
from cgpfl.partition import Partition, digest
from cgpfl.results import Store, Stored
from cgpfl.runs import Result, train
from cgpfl.settings import RunSpec

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Training:
    """The runs of a job on their data.

    Attributes:
        job: what is to be run. settings: the section `training` of the configuration.
        dataset: the samples. partitions: for each seed of the job's runs.
    """

    job: Job
    settings: Settings
    dataset: Dataset
    partitions: Mapping[int, Partition]

    @cached_property
    def clients(self) -> dict[int, ClientData]:
        """The clients for each seed, over one pool of samples: bytes with their scaling, or scaled floats."""
        how, samples, scale = self.settings["scale"], self.dataset.x, None
        if samples.dtype == np.uint8:
            scale = scaling(samples, how)
        x = torch.from_numpy(scaled(samples, how) if scale is None else channel_first(samples))
        y, classes = torch.from_numpy(np.ascontiguousarray(self.dataset.y)), len(self.dataset.classes)
        return {
            seed: ClientData.from_pool(x, y, part.train, part.test, part.contexts, classes, scale)
            for seed, part in self.partitions.items()
        }

    @cached_property
    def keys(self) -> list[str]:
        """The content key of each run of the job."""
        return [results.content_key(self.facts(run)) for run in self.job.runs]

    def facts(self, run: Run) -> dict[str, Any]:
        """All that decides the numbers of a run."""
        own = {what: {"path": path, "code": results.own_hash(path)} for what, path in self.job.paths.items()}
        return {
            "dataset": self.job.dataset,
            "inputs": self._inputs,
            "partition": digest(self.partitions[run.seed]),
            "model": self.job.model,
            "model_args": self.job.model_args,
            "method": self.job.method,
            "params": run.params,
            "seed": run.seed,
            **{name: self.settings[name] for name in results.SETTINGS},
            "engine": results.engine_hash(self.job.model),
            **({"own": own} if own else {}),
        }

    @cached_property
    def _inputs(self) -> str:
        """A digest of the samples as they are trained on."""
        client = next(iter(self.clients.values()))
        sha = hashlib.sha256(repr((tuple(client.x.shape), client.classes)).encode())
        for array in client.samples:
            sha.update(array.contiguous().numpy().data)
        return sha.hexdigest()

    def complete(
        self,
        store: Store,
        threads: int,
        checkpoint: Path | None = None,
        on_stored: Callable[[Sequence[str]], None] = lambda keys: None,
        progress: Callable[[int, int, float], None] | None = None,
    ) -> int:
        """Trains and keeps the runs that the store lacks; returns how many these were.

        Args:
            store: where runs are kept. threads: of this process that train.
            checkpoint: a file from which a killed batch of runs is taken up again; the keys of the missing runs are
                added to its name, and what is left of other runs under that name is removed.
            on_stored: called with the keys of each batch of runs as soon as the store has them.
            progress: called after each evaluation with rounds done, rounds in all, and accuracy.
        """
        missing = store.missing(self.keys)
        if not missing:
            return 0
        runs = [self.job.runs[self.keys.index(key)] for key in missing]
        if checkpoint is not None:
            own = checkpoint.with_stem(f"{checkpoint.stem}-{results.content_key({'runs': missing})}")
            for other in set(checkpoint.parent.glob(f"{checkpoint.stem}-*{checkpoint.suffix}")) - {own}:
                other.unlink(missing_ok=True)
            checkpoint = own
        made = {**_origin(), "device": self.settings["device"], "threads": threads}

        def keep(result: Result) -> None:
            stored = [missing[spec] for spec in result.runs["spec"]]
            about = {**made, **_peak_memory(), "finished": _now()}
            for row, key in enumerate(stored):
                run = runs[missing.index(key)]
                store.add(Stored(key, self.facts(run), about, _frames(result, row, key)))
            on_stored(stored)
            release_memory()

        train(
            {run.seed: self.clients[run.seed] for run in runs},
            self.job.paths.get("model", self.job.model),
            self.job.paths.get("method", self.job.method),
            [RunSpec(run.seed, run.params) for run in runs],
            **{name: self.settings[name] for name in (*results.SETTINGS, "device", "memory_gb")},
            threads=threads,
            model_args=self.job.model_args,
            on_runs=keep,
            progress=progress,
            checkpoint=checkpoint,
        )
        return len(missing)

    def gather(self, store: Store) -> dict[str, pd.DataFrame]:
        """The frames of all runs of the job, in its order, with columns dataset, model, method, label and parts."""
        frames = results.join([store.get(key).frames for key in self.keys])
        job = self.job
        names = {"dataset": job.dataset, "model": job.model, "method": job.method}
        about = pd.DataFrame(
            [{"run": key, **names, "label": run.label} for key, run in zip(self.keys, job.runs, strict=True)]
        )
        parts = pd.Series([list(run.parts) for run in job.runs])
        frames["runs"] = about.assign(parts=parts).merge(frames["runs"], on="run")
        frames["history"] = about.merge(frames["history"], on="run")
        return frames

    def labelled(self, store: Store, keys: Sequence[str]) -> list[tuple[str, Stored]]:
        """Stored runs with their labels, as tracking takes them."""
        labels = dict(zip(self.keys, (run.label for run in self.job.runs), strict=True))
        return [(labels[key], store.get(key)) for key in keys]


def release_memory() -> None:
    """Gives freed memory back to the system, where the C library can: it may keep what a batch of runs has used, and
    the next batch adds to that."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
        if trim is not None:
            trim(0)


def _frames(result: Result, row: int, key: str) -> dict[str, pd.DataFrame]:
    """One run's part of the frames of a batch, under its key."""
    frames = {name: getattr(result, name) for name in results.COLUMNS}
    own = {name: frame[frame["run"] == row].assign(run=key) for name, frame in frames.items()}
    own["runs"] = own["runs"].drop(columns="spec")
    return own


def _origin() -> dict[str, Any]:
    return {
        "commit": tracking.commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
    }


def processor() -> str:
    """The processor's model where the system tells it, else its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(encoding="utf-8"), re.MULTILINE)
        return found[1] if found else platform.machine()
    if sys.platform == "darwin":
        told = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False)
        return told.stdout.strip() or platform.machine()
    return platform.processor() or platform.machine()


def _peak_memory() -> dict[str, float]:
    """The largest resident memory of this process so far, in MB; nothing on Windows, which does not tell."""
    if sys.platform == "win32":
        return {}
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS, KiB elsewhere
    return {"peak_mb": round(peak / 2**20 if sys.platform == "darwin" else peak / 2**10, 1)}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
