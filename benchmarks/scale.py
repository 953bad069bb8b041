"""Cost of a run by the number of runs in a batch, of a client by the number of clients, and memory against its budget.

Memory is measured in processes of their own, as the growth of the peak of resident memory.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine import Engine, client_data, timed

from cgpfl.clients import ClientData
from cgpfl.runs import single_threaded_ops, train
from cgpfl.settings import RunSpec
from cgpfl.training import release_memory

FEATURES, TRAIN, TEST = 100, 20, 5


def sweep(data: ClientData, model: str, runs: int, rounds: int, memory_gb: float = 4.0) -> float:
    """Seconds a run and round of ``runs`` runs of cgpfl (lambdas by seeds) in one job of one thread."""
    seeds = max(1, runs // 9)
    specs = [RunSpec(seed, {"lam": 11.0 + at}) for at in range(runs // seeds) for seed in range(seeds)]
    shared = {"memory_gb": memory_gb, "train_loss_samples": 100}
    start = time.perf_counter()
    train(
        data,
        model,
        "cgpfl",
        specs,
        rounds=rounds,
        threads=1,
        eval_every=rounds,
        **shared,
        on_runs=lambda _: release_memory(),
    )
    return (time.perf_counter() - start) / len(specs) / rounds


def memory(model: str, runs: int, memory_gb: float) -> dict[str, Any]:
    """Gigabytes by which ``runs`` runs of cgpfl raise the peak of memory, with a budget of ``memory_gb``."""
    return _elsewhere("_memory", model, runs, memory_gb)


def _memory(model: str, runs: int, memory_gb: float) -> dict[str, Any]:
    data = client_data(model)
    sweep(client_data("mlr"), "mlr", 1, 1)  # what is loaded at first use
    before = _resident()
    sweep(data, model, runs, 1, memory_gb)
    return {"model": model, "runs": runs, "budget": memory_gb, "peak": (_peak() - before) / 1e9}


def clients_cost(clients: int, participation: float, method: str) -> dict[str, Any]:
    """Seconds a participating client and round, and bytes a client, data included, of one run on one thread."""
    return _elsewhere("_clients_cost", clients, participation, method)


def _clients_cost(clients: int, participation: float, method: str) -> dict[str, Any]:
    with single_threaded_ops():
        Engine(many_clients(40), "mlr", method).round()
        before = _resident()
        engine = Engine(many_clients(clients), "mlr", method, participation=participation)
        engine.round()
        rounds = max(1, 400 // engine.part)
        turns = [timed(engine.round, rounds) for _ in range(3)]
    return {
        "method": method,
        "clients": clients,
        "participation": participation,
        "part": engine.part,
        "seconds": statistics.median(turns) / engine.part,
        "bytes": (_peak() - before) / clients,
    }


def many_clients(clients: int) -> ClientData:
    """``clients`` clients of 20 training and 5 test samples each."""
    rng = np.random.default_rng(0)
    each = TRAIN + TEST
    x = torch.from_numpy(rng.standard_normal((clients * each, FEATURES), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, clients * each))
    own = np.arange(clients * each).reshape(clients, each)
    return ClientData.from_pool(x, y, list(own[:, :TRAIN]), list(own[:, TRAIN:]), classes=10)


def _elsewhere(function: str, *arguments: Any) -> dict[str, Any]:
    """A function of this module, called in a new process."""
    code = f"import json, scale; print(json.dumps(scale.{function}(*{arguments!r})))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    return json.loads(done.stdout.splitlines()[-1])


def _resident() -> int:
    """This process's resident memory, bytes; its peak is counted from now on."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    return _status("VmRSS")


def _peak() -> int:
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))
