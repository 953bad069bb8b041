"""Gradient steps per second, in turns with the usual way, and what the machine could do."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from engine import BATCH, Engine, client_data, timed
from plain import Client, Server

from cgpfl.clients import ClientData
from cgpfl.models import build_model

MEASURED = ("fedavg", "ditto", "apfl", "perfedavg", "ifca", "l2sgd", "pfedme", "cgpfl")
SAMPLE_BYTES = 3 + 4 + 16 + 8  # moved for each input of a sample of a minibatch
PATIENCE = 40.0  # seconds after which three turns are enough
# Ratios to the usual way that are to be reached on two cores.
TARGETS = {
    **{
        (m, model): ratio
        for m in ("fedavg", "ditto", "apfl")
        for model, ratio in (("mlr", 8), ("dnn", 4), ("cnn", 1.4))
    },
    **{(m, model): ratio for m in ("pfedme", "cgpfl") for model, ratio in (("mlr", 9), ("dnn", 7), ("cnn", 1.4))},
}


@dataclass(frozen=True)
class Rate:
    """Gradient steps per second over the turns."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: list[float], steps: float) -> Rate:
        rates = sorted(steps / second for second in seconds)
        if len(rates) == 1:
            return cls(rates[0], rates[0], rates[0])
        low, median, high = statistics.quantiles(rates, n=4, method="inclusive")
        return cls(median, low, high)


class Plain:
    """Rounds of one method in the usual way."""

    def __init__(self, data: ClientData, model: str, method: str, threads: int):
        torch.manual_seed(0)
        build = partial(build_model, model, data.input_shape, 10)
        bounds = list(zip(data.train.offsets.tolist(), data.train.counts.tolist(), strict=True))
        lists = [data.train.values[start : start + count] for start, count in bounds]
        clients = [Client(*data.gathered(index), build, BATCH) for index in lists]
        self.server, self.method, self.threads = Server(clients, build), method, threads

    def round(self) -> None:
        torch.set_num_threads(self.threads)
        self.server.run(self.method)
        torch.set_num_threads(1)


def compare(method: str, model: str, turns: int, threads: int) -> dict[str, Any]:
    """Rates of all ways, in turns; how many rounds a turn has follows from a first round."""
    data = client_data(model)
    ways: dict[str, Callable[[], None]] = {}
    fast = Engine(data, model, method, threads)
    ways["engine"] = fast.round
    ways["engine, one thread"] = Engine(data, model, method, 1).round
    ways["generic path"] = Engine(data, model, method, threads, path="generic").round
    ways["usual way, 1 thread"] = Plain(data, model, method, 1).round
    ways[f"usual way, {threads} threads"] = Plain(data, model, method, threads).round
    first = {name: timed(call, 1) for name, call in ways.items()}  # also the warm-up
    rounds = {name: max(1, round(0.4 / second)) for name, second in first.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    begin = time.perf_counter()
    while len(seconds["engine"]) < turns:
        for name, call in ways.items():
            seconds[name].append(timed(call, rounds[name]))
        if time.perf_counter() - begin > PATIENCE and len(seconds["engine"]) >= 3:
            break
    rates = {name: Rate.of(values, fast.steps) for name, values in seconds.items()}
    usual = [name for name in ways if name.startswith("usual")]
    best = min(usual, key=lambda name: statistics.median(seconds[name]))
    ratios = [b / e for b, e in zip(seconds[best], seconds["engine"], strict=True)]
    return {
        "method": method,
        "model": model,
        "turns": len(seconds["engine"]),
        "rates": {name: asdict(rate) for name, rate in rates.items()},
        "baseline": best,
        "ratio": statistics.median(ratios),
        "ratio_low": min(ratios),
        "ratio_high": max(ratios),
        "ratio_generic": statistics.median(
            b / e for b, e in zip(seconds["generic path"], seconds["engine"], strict=True)
        ),
        "target": TARGETS.get((method, model)),
        **work(method, model, fast),
    }


def work(method: str, model: str, engine: Engine) -> dict[str, float]:
    """Floating-point operations and bytes of memory traffic of one gradient step, counted on paper.

    An affine layer (i inputs, o outputs, b samples) takes 2*b*i*o operations for its outputs, as many for its weights'
    update and, behind the first layer, as many for the error it passes on; a convolution the same for each place it is
    at. Weights are read twice and written once. A minibatch's bytes are read from the pool, written, read and written
    as floats, which are scaled in two passes and read twice. Each number that a layer puts out in front of the dense
    ones is written and read, and so is its error. S proximal steps in the span of a minibatch share, for the first
    layer, three products with weights and one of b x b, and take S of b x b x o.
    """
    if model == "cnn":
        return _convolutional_work()
    layers = list(pairwise(engine.sim.net.sizes))  # type: ignore[attr-defined]
    inputs, outputs = layers[0]
    behind = sum(6 * BATCH * i * o for i, o in layers[1:])
    weights = sum(i * o + o for i, o in layers)
    batch = SAMPLE_BYTES * BATCH * inputs
    if method in ("pfedme", "cgpfl"):
        steps = int(engine.sim.static["inner_steps"])
        first = 2 * BATCH * inputs * (3 * outputs + BATCH) / steps + 2 * BATCH * BATCH * outputs
        moved = (4 * 8 * inputs * outputs + batch) / steps + 12 * (weights - inputs * outputs)
        return {"flops": first + behind, "bytes": moved}
    return {"flops": 4 * BATCH * inputs * outputs + behind, "bytes": 12 * weights + batch}


def _convolutional_work() -> dict[str, float]:
    """The same for the cnn: 3x32x32, 5x5 convolutions to 6x28x28 and 16x10x10, each pooled to half, 400-120-10."""
    first, second = 2 * 75 * 6 * 28 * 28, 2 * 150 * 16 * 10 * 10
    dense = 2 * (400 * 120 + 120 * 10)
    weights = 76 * 6 + 151 * 16 + 401 * 120 + 121 * 10
    shown = 6 * 28 * 28 + 6 * 14 * 14 + 16 * 10 * 10 + 400
    return {
        "flops": BATCH * (2 * first + 3 * second + 3 * dense),
        "bytes": 12 * weights + BATCH * (SAMPLE_BYTES * 3072 + 16 * shown),
    }


def ceilings(threads: int) -> dict[str, float]:
    """The machine's matrix rate (flop/s) and memory bandwidth (bytes/s, read plus written), with all threads."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    source, target = torch.randn(32 << 20), torch.empty(32 << 20)
    torch.set_num_threads(threads)
    product = min(timed(lambda: torch.mm(a, b), 5) for _ in range(5))
    copy = min(timed(lambda: target.copy_(source), 2) for _ in range(5))
    torch.set_num_threads(1)
    return {"flops": 2 * 1024**3 / product, "bytes": 2 * source.nbytes / copy}
