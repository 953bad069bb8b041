"""Where a training job's time goes: how much of its wall time is not local steps, and what the server's step takes."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from engine import Engine, client_data, timed

from cgpfl import results, runs
from cgpfl.clients import Batch
from cgpfl.methods.cgpfl import Cgpfl
from cgpfl.rounds import Block, Round
from cgpfl.runs import Result, train
from cgpfl.settings import RunSpec
from cgpfl.simulation import Simulation


class Clock:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def around(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds[name] += time.perf_counter() - start

        return timed

    def batches(self, call: Callable[[Block], Iterator[Batch]]) -> Callable[[Block], Iterator[Batch]]:
        def timed(block: Block) -> Iterator[Batch]:
            own, start = 0.0, time.perf_counter()
            for batch in call(block):
                own += time.perf_counter() - start
                yield batch
                start = time.perf_counter()
            self.seconds["gather"] += own

        return timed


@contextmanager
def measured() -> Iterator[Clock]:
    """Times the parts of every simulation inside."""
    clock = Clock()
    places: list[tuple[Any, str, Callable[..., Any]]] = [
        (Round, "local", clock.around("local", Round.local)),
        (Round, "_streams", clock.around("indices", Round._streams)),
        (Block, "batches", clock.batches(Block.batches)),
        (Simulation, "evaluate", clock.around("evaluation", Simulation.evaluate)),
        (Cgpfl, "_regroup", clock.around("clustering", Cgpfl._regroup)),
        (runs, "_result", clock.around("history", runs._result)),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, call in places:
        setattr(owner, name, call)
    try:
        yield clock
    finally:
        for owner, name, call in before:
            setattr(owner, name, call)


def start_up() -> float:
    """Seconds until a training job has imported what it needs."""
    code = "import gc; gc.disable(); import cgpfl.training, cgpfl.tracking, mlflow.tracking; gc.freeze()"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def tracking(result: Result) -> float:
    """Seconds to log the runs as a training job does, to a database that is there."""
    from cgpfl import tracking

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    with (
        tempfile.TemporaryDirectory() as folder,
        patch.dict(os.environ, MLFLOW_TRACKING_URI=f"sqlite:///{folder}/mlflow.db"),
    ):
        tracking.prepare("bench")
        start = time.perf_counter()
        log = tracking.TrainingLog("bench", "bench", "bench", "bench")
        log.add(("bench", _stored(result, run)) for run in result.runs["run"])
        log.close()
        return time.perf_counter() - start


def _stored(result: Result, run: int) -> results.Stored:
    facts = {**dict.fromkeys(results.SETTINGS, 0), **dict.fromkeys(("dataset", "inputs", "partition"), "bench")}
    frames = {name: frame[frame["run"] == run] for name in results.COLUMNS for frame in [getattr(result, name)]}
    params = {"lr": 0.005, "lam": 12.0}
    return results.Stored(f"{run:016}", {**facts, "params": params, "seed": run}, {"commit": "bench"}, frames)


def shares(model: str, method: str, rounds: int, seeds: int) -> dict[str, float]:
    """Seconds of each part of a job of ``seeds`` runs on one thread, tested every five rounds; "all" is the job."""
    data = client_data(model, test_share=1 / 3)
    specs = [RunSpec(seed, {}) for seed in range(seeds)]
    with measured() as clock:
        start = time.perf_counter()
        result = train(data, model, method, specs, rounds=rounds, threads=1, eval_every=5, train_loss_samples=100)
        whole = time.perf_counter() - start
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        own = {name: getattr(result, name).assign(run="0") for name in results.COLUMNS}
        results.Store(Path(folder)).add(results.Stored("0" * 16, {}, {}, own))
    store = time.perf_counter() - begin
    seconds = clock.seconds
    outside = {"start-up": start_up(), "tracking": tracking(result), "store": store}
    inside = {name: seconds[name] for name in ("indices", "gather", "evaluation", "clustering", "history")}
    rest = whole - seconds["local"] - sum(inside[name] for name in ("evaluation", "clustering", "history"))
    return {
        "local steps": seconds["local"] - seconds["indices"] - seconds["gather"],
        "averages": rest,
        **inside,
        **outside,
        "all": whole + sum(outside.values()),
    }


def not_local(seconds: dict[str, float]) -> float:
    """Share of a job that is neither local steps nor the server's averages."""
    return 1 - (seconds["local steps"] + seconds["averages"]) / seconds["all"]


def server(model: str, method: str, repeats: int) -> float:
    """Median seconds in which a server groups 40 uploads: every K that cgpfl_heur tries, or cgpfl's own."""
    engine = Engine(client_data(model), model, method)
    for _ in range(3):
        engine.round()
    now = Round(engine.sim, 1 if method == "cgpfl_heur" else 4)
    engine.sim.now = now.index
    uploads = now.take(engine.state["local"])

    def step() -> None:
        members = engine.method._regroup(engine.sim, engine.state, now, uploads)  # type: ignore[attr-defined]
        now.average_by(uploads, members, engine.state["contexts"])

    return float(np.median([timed(step, 1) for _ in range(repeats)]))
