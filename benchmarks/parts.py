"""Where a training job's time goes: how much of its wall time is not local steps."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cgpfl import results, simulation
from cgpfl.clients import Batch, ClientData
from cgpfl.methods.cgpfl import Cgpfl
from cgpfl.simulation import Block, Result, Round, RunSpec, Simulation, train


class Clock:
    """Seconds by part. Parts measured inside training threads are divided by their number."""

    def __init__(self, threads: int):
        self.seconds: dict[str, float] = defaultdict(float)
        self.threads = threads

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
            self.seconds["gather"] += own / self.threads

        return timed


@contextmanager
def measured(threads: int) -> Iterator[Clock]:
    """Times the parts of every simulation inside."""
    clock = Clock(threads)
    places: list[tuple[Any, str, Callable[..., Any]]] = [
        (Round, "local", clock.around("local", Round.local)),
        (Round, "_streams", clock.around("indices", Round._streams)),
        (Block, "batches", clock.batches(Block.batches)),
        (Simulation, "evaluate", clock.around("evaluation", Simulation.evaluate)),
        (Cgpfl, "_regroup", clock.around("clustering", Cgpfl._regroup)),
        (simulation, "_result", clock.around("history", simulation._result)),
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
    code = "import cgpfl.training, cgpfl.tracking, mlflow.tracking, sklearn.cluster"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - start


def tracking(result: Result) -> float:
    """Seconds to log one run's history to a fresh MLflow database."""
    import mlflow
    from mlflow.entities import Metric

    with tempfile.TemporaryDirectory() as folder:
        client = mlflow.MlflowClient(f"sqlite:///{Path(folder) / 'mlflow.db'}")
        experiment = client.create_experiment("bench", artifact_location=Path(folder).as_uri())
        start = time.perf_counter()
        run = client.create_run(experiment)
        rows = result.history.to_dict("records")
        metrics = [
            Metric(f"{row['tested']}/{name}", float(row[name]), 0, int(row["round"]))
            for row in rows
            for name in ("accuracy", "loss", "train_loss")
        ]
        for at in range(0, len(metrics), 1000):
            client.log_batch(run.info.run_id, metrics=metrics[at : at + 1000])
        client.set_terminated(run.info.run_id)
        return time.perf_counter() - start


def shares(data: ClientData, model: str, method: str, rounds: int, threads: int) -> dict[str, float]:
    """Seconds of each part of one run of ``rounds`` rounds, tested every five; "all" is the whole job."""
    spec = RunSpec(0, {"lam": 12.0} if method != "fedavg" else {})
    with measured(threads) as clock:
        start = time.perf_counter()
        result = train(
            data, model, method, [spec], rounds=rounds, threads=threads, eval_every=5, train_loss_samples=100
        )
        whole = time.perf_counter() - start
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        own = {name: getattr(result, name).assign(run="0") for name in results.COLUMNS}
        results.Store(Path(folder)).add(results.Stored("0" * 16, {}, {}, own))
    store = time.perf_counter() - begin
    seconds = clock.seconds
    steps = seconds["local"] - seconds["indices"] - seconds["gather"]
    outside = {"start-up": start_up(), "tracking": tracking(result), "store": store}
    inside = {name: seconds[name] for name in ("indices", "gather", "evaluation", "clustering", "history")}
    rest = whole - seconds["local"] - sum(inside[name] for name in ("evaluation", "clustering", "history"))
    return {
        "local steps": steps,
        **inside,
        "aggregation and rest": rest,
        **outside,
        "all": whole + sum(outside.values()),
    }
