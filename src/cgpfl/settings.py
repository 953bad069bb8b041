"""What all runs of a call share, and what makes one run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch

from cgpfl.errors import UserError

MOST = 10**9
"""The largest whole number that a setting or a parameter takes."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class RunSpec:
    """One run: a seed and all hyperparameters (see ``resolve_params``)."""

    seed: int
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """What all runs of a call share; see ``train`` for meaning, ranges and defaults."""

    rounds: int
    batch_size: int | str = 20
    participation: float = 1.0
    dtype: str = "float32"
    device: str = "auto"
    threads: int = 1
    eval_every: int = 1
    train_loss_samples: int | None = None
    memory_gb: float = 4.0
    path: str = "auto"

    def __post_init__(self) -> None:
        for key in ("rounds", "threads", "eval_every"):
            _whole(key, getattr(self, key))
        if not (isinstance(self.batch_size, str) and self.batch_size == "full"):
            _whole("batch_size", self.batch_size, "a whole number of 1 or more, or 'full'")
        if self.train_loss_samples is not None:
            _whole("train_loss_samples", self.train_loss_samples)
        if not _number(self.participation) or not 0 < self.participation <= 1:
            raise UserError(f"participation: {self.participation!r} given, valid is a number above 0 and at most 1")
        if not _number(self.memory_gb) or not 0 < self.memory_gb <= MOST:
            raise UserError(f"memory_gb: {self.memory_gb!r} given, valid is a number above 0 and at most {MOST}")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:
            raise UserError(f"dtype: {self.dtype!r} given, valid are {', '.join(DTYPES)}")
        if self.path not in ("auto", "generic"):
            raise UserError(f"path: {self.path!r} given, valid are auto, generic")
        self.torch_device  # noqa: B018  raises for a device that is not there

    @property
    def torch_device(self) -> torch.device:
        name = "" if not isinstance(self.device, str) else self.device
        name = ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name
        if name == "cpu" or (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
            return torch.device(name)
        raise UserError(
            f"device: {self.device!r} given, valid here are auto, cpu" + ", cuda" * torch.cuda.is_available()
        )


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _whole(key: str, value: Any, valid: str = "a whole number of 1 or more") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise UserError(f"{key}: {value!r} given, valid is {valid}")
