"""Cost of a run by the number of runs in a batch, and of a client by the number of clients."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from cgpfl.clients import ClientData
from cgpfl.simulation import RunSpec, train

FEATURES, TRAIN, TEST = 100, 20, 5


def sweep(data: ClientData, model: str, runs: int, rounds: int, threads: int, memory_gb: float = 4.0) -> float:
    """Seconds a run and round of ``runs`` runs of cgpfl (lambdas by seeds) in one batch."""
    seeds = max(1, runs // 9)
    specs = [RunSpec(seed, {"lam": 11.0 + at}) for at in range(runs // seeds) for seed in range(seeds)]
    by_seed = dict.fromkeys(range(seeds), data)
    start = time.perf_counter()
    train(by_seed, model, "cgpfl", specs, rounds=rounds, threads=threads, eval_every=rounds, memory_gb=memory_gb)
    return (time.perf_counter() - start) / len(specs) / rounds


def many_clients(clients: int) -> ClientData:
    """``clients`` clients of 20 training and 5 test samples each."""
    rng = np.random.default_rng(0)
    each = TRAIN + TEST
    x = torch.from_numpy(rng.standard_normal((clients * each, FEATURES), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, clients * each))
    own = np.arange(clients * each).reshape(clients, each)
    return ClientData.from_pool(x, y, list(own[:, :TRAIN]), list(own[:, TRAIN:]), classes=10)


def clients_cost(clients: int, participation: float, method: str, threads: int, rounds: int = 10) -> dict[str, float]:
    """Seconds a participating client and round, and peak memory of the process, of one run in a process of its own."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import scale;"
        f"print(json.dumps(scale._here({clients}, {participation}, {method!r}, {threads}, {rounds})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def _here(clients: int, participation: float, method: str, threads: int, rounds: int) -> dict[str, float]:
    data = many_clients(clients)
    before = _peak()
    stamps: list[float] = []
    train(
        data,
        "mlr",
        method,
        [RunSpec(0, {})],
        rounds=rounds,
        threads=threads,
        participation=participation,
        eval_every=10**6,
        progress=lambda done, of, accuracy: stamps.append(time.perf_counter()),
        on_runs=lambda result: stamps.append(float(result.runs["seconds"].sum())),
    )
    part = max(1, round(participation * clients))
    return {
        "clients": clients,
        "participation": participation,
        "method": method,
        "seconds": stamps[-1] / rounds / part,
        "bytes": (_peak() - before) / clients,
    }


def _peak() -> int:
    """Peak resident memory of this process, bytes."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
