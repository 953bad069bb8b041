"""The state of a batch of runs on disk, from which it goes on after a kill."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import torch

from cgpfl.methods.base import State
from cgpfl.simulation import Simulation


class Checkpoint:
    """The state of a batch of runs on disk, written at most once a minute by rename."""

    SECONDS = 60.0

    def __init__(self, path: Path | None, sim: Simulation, what: str):
        self.path, self.sim = path, sim
        about = [
            what,
            sim.method.name,
            sim.settings.rounds,
            sim.settings.batch_size,
            sim.settings.participation,
            sim.settings.dtype,
            sim.settings.eval_every,
            sim.settings.train_loss_samples,
            [(spec.seed, sorted(spec.params.items())) for spec in sim.specs],
        ]
        self.signature = hashlib.sha256(repr(about).encode()).hexdigest()
        self.saved = time.monotonic()

    def load(self, state: State) -> int:
        """Fill ``state`` and the records from the file if it is of the same runs; the number of rounds done."""
        if self.path is None or not self.path.exists():
            return 0
        try:
            kept = torch.load(self.path, map_location=self.sim.device, weights_only=False)
        except Exception:  # half a file from a full disk, say: train from the start
            return 0
        if not isinstance(kept, dict) or kept.get("signature") != self.signature or set(kept["state"]) != set(state):
            return 0
        for name, value in kept["state"].items():
            state[name].copy_(value)
        self.sim.records.update(kept["records"])
        self.sim.initial = kept["initial"]
        return kept["round"]

    def save(self, state: State, index: int) -> None:
        if self.path is None or time.monotonic() - self.saved < self.SECONDS:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        kept = {
            "signature": self.signature,
            "round": index,
            "state": state,
            "records": dict(self.sim.records),
        }
        torch.save({**kept, "initial": self.sim.initial}, temporary)
        temporary.replace(self.path)
        self.saved = time.monotonic()

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)
