"""Reproducible experiments in personalised federated learning: every client of every run is a row of one program."""

from __future__ import annotations

import os
from dataclasses import dataclass

# Unless MKL is told otherwise before its first product, the last digits of a product depend on where in memory its
# operands lie, and so a run's on the runs beside it. Its "conditional numerical reproducibility" costs no time that
# could be measured.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

from cgpfl.clients import ClientData
from cgpfl.errors import UserError
from cgpfl.methods import METHODS, Param, resolve_params
from cgpfl.models import build_model
from cgpfl.runs import Result, simulate
from cgpfl.settings import RunSpec

__version__ = "0.1.0"


@dataclass(frozen=True)
class MethodInfo:
    """What ``methods`` says of a method."""

    description: str
    params: dict[str, Param]
    source: str
    headline: str
    tested: tuple[str, ...]


def methods() -> dict[str, MethodInfo]:
    """Every method by name: description, hyperparameters with defaults and ranges, source, tested models."""
    return {
        name: MethodInfo(
            method.summary,
            {param.name: param for param in method.parameters},
            method.source,
            method.headline,
            method.tested,
        )
        for name, method in METHODS.items()
    }


__all__ = [
    "ClientData",
    "MethodInfo",
    "Param",
    "Result",
    "RunSpec",
    "UserError",
    "build_model",
    "methods",
    "resolve_params",
    "simulate",
]
