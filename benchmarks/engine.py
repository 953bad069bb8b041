"""Rounds of one method by the engine, and the clients they are measured on."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch

from cgpfl.clients import ClientData
from cgpfl.methods import METHODS, resolve_params
from cgpfl.models import build_model
from cgpfl.rounds import Round
from cgpfl.settings import RunSpec, Settings
from cgpfl.simulation import Simulation

CLIENTS, BATCH = 40, 20
SHAPES = {"mlr": (784,), "dnn": (784,), "cnn": (3, 32, 32)}


def client_data(model: str, seed: int = 0, test_share: float = 0.0) -> ClientData:
    """Forty clients of unequal size (300 to 3,750 training samples; a tenth of that for the cnn) with random bytes of
    the model's shape, standardised, and ``test_share`` of that for testing (one sample at least)."""
    rng = np.random.default_rng(seed)
    most = 375 if model == "cnn" else 3750
    sizes = (np.clip(rng.lognormal(0, 0.8, CLIENTS) * 0.24, 0.08, 1) * most).astype(int)
    tests = np.maximum(1, (sizes * test_share).astype(int))
    total = int(sizes.sum() + tests.sum())
    x = torch.from_numpy(rng.integers(0, 256, (total, *SHAPES[model]), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, total))
    order = rng.permutation(total)
    train = np.split(order[: int(sizes.sum())], sizes.cumsum()[:-1])
    test = np.split(order[int(sizes.sum()) :], tests.cumsum()[:-1])
    return ClientData.from_pool(x, y, train, test, np.arange(CLIENTS) % 10, classes=10, scaling=(127.5, 1 / 73.9))


class Engine:
    """Rounds of ``runs`` equal runs of one method."""

    def __init__(
        self,
        data: ClientData,
        model: str,
        method: str,
        threads: int = 1,
        runs: int = 1,
        device: str = "cpu",
        **settings: Any,
    ):
        chosen = Settings(rounds=1, threads=threads, device=device, **settings)
        names = {param.name for param in METHODS[method].parameters}
        given = {"lam": 1.0} if method == "l2sgd" else {"lam": 12.0} if "lam" in names else {}
        spec = RunSpec(0, resolve_params(method, given, model, data.clients))
        build = partial(build_model, model, data.input_shape, 10)
        self.method = METHODS[method]
        self.sim = Simulation(self.method, [spec] * runs, data, [0] * runs, build, chosen, ThreadPoolExecutor(threads))
        self.state = self.method.init(self.sim)
        self.part = Round(self.sim, 1).count  # clients that take part in a round
        self.steps = self.method.cost(spec.params, self.sim.net.size).gradients * self.part * runs

    def round(self) -> None:
        self.sim.now += 1
        self.method.round(self.sim, self.state, Round(self.sim, self.sim.now))


def timed(call: Callable[[], None], rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - start) / rounds
