"""Gradient steps per second of the engine beside the usual way and the generic path, on this machine.

    python benchmarks/bench.py            everything, writes benchmarks/results/<machine>.json and .md
    python benchmarks/bench.py --quick    a few rounds of each, to see that it runs

One gradient step is one minibatch of 20 samples of one client. Every figure is whole rounds of 40 clients (minibatch
indices and gather, local steps, the server's step), measured in turns with the baseline of the same method, so that
a change of the machine's speed hits both; medians of the turns, spread as the quartiles.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import parts
import scale
import torch
from plain import Client, Server

from cgpfl.clients import ClientData
from cgpfl.methods import METHODS, resolve_params
from cgpfl.models import build_model
from cgpfl.simulation import Round, RunSpec, Settings, Simulation, single_threaded_ops

CLIENTS, BATCH = 40, 20
SHAPES = {"mlr": (784,), "dnn": (784,), "cnn": (3, 32, 32)}
MEASURED = ("fedavg", "ditto", "apfl", "perfedavg", "ifca", "l2sgd", "pfedme", "cgpfl")
# Ratios to the usual way that are to be reached on two cores.
TARGETS = {
    **{
        (m, model): ratio
        for m in ("fedavg", "ditto", "apfl")
        for model, ratio in (("mlr", 8), ("dnn", 4), ("cnn", 1.4))
    },
    **{(m, model): ratio for m in ("pfedme", "cgpfl") for model, ratio in (("mlr", 9), ("dnn", 7), ("cnn", 1.4))},
}
HERE = Path(__file__).parent


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


def client_data(model: str, seed: int = 0, test_share: float = 0.0) -> ClientData:
    """Forty clients of unequal size (300 to 3,750 training samples) with random samples of the model's shape, and
    ``test_share`` of that for testing (one sample at least)."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(rng.lognormal(0, 0.8, CLIENTS) * 900, 300, 3750).astype(int)
    tests = np.maximum(1, (sizes * test_share).astype(int))
    total = int(sizes.sum() + tests.sum())
    x = torch.from_numpy(rng.standard_normal((total, *SHAPES[model]), dtype=np.float32))
    y = torch.from_numpy(rng.integers(0, 10, total))
    order = rng.permutation(total)
    train = np.split(order[: int(sizes.sum())], sizes.cumsum()[:-1])
    test = np.split(order[int(sizes.sum()) :], tests.cumsum()[:-1])
    return ClientData.from_pool(x, y, train, test, contexts=np.arange(CLIENTS) % 10, classes=10)


class Engine:
    """Rounds of one method by the engine."""

    def __init__(self, data: ClientData, model: str, method: str, path: str, threads: int, runs: int = 1):
        settings = Settings(rounds=1, threads=threads, path=path, device="cpu")
        given = {"lam": 1.0} if method == "l2sgd" else {"lam": 12.0} if "lam" in _names(method) else {}
        spec = RunSpec(0, resolve_params(method, given, model, CLIENTS))
        build = partial(build_model, model, data.input_shape, 10)
        self.sim = Simulation(
            METHODS[method], [spec] * runs, data, [0] * runs, build, settings, ThreadPoolExecutor(threads)
        )
        self.state = METHODS[method].init(self.sim)
        self.steps = METHODS[method].cost(spec.params, self.sim.net.size).gradients * CLIENTS * runs

    def round(self) -> None:
        self.sim.now += 1
        METHODS[self.sim.method.name].round(self.sim, self.state, Round(self.sim, self.sim.now))


def _names(method: str) -> set[str]:
    return {param.name for param in METHODS[method].parameters}


class Plain:
    """Rounds of one method in the usual way."""

    def __init__(self, data: ClientData, model: str, method: str, threads: int):
        torch.manual_seed(0)
        build = partial(build_model, model, data.input_shape, 10)
        bounds = list(zip(data.train.offsets.tolist(), data.train.counts.tolist(), strict=True))
        lists = [data.train.values[start : start + count] for start, count in bounds]
        clients = [Client(data.x[index], data.y[index], build, BATCH) for index in lists]
        self.server, self.method, self.threads = Server(clients, build), method, threads

    def round(self) -> None:
        torch.set_num_threads(self.threads)
        self.server.run(self.method)
        torch.set_num_threads(1)


def timed(call: Callable[[], None], rounds: int) -> float:
    start = time.perf_counter()
    for _ in range(rounds):
        call()
    return (time.perf_counter() - start) / rounds


def compare(method: str, model: str, turns: int, threads: int) -> dict[str, Any]:
    """Rates of all ways, in turns; how many rounds a turn has follows from a first round."""
    data = client_data(model)
    ways: dict[str, Callable[[], None]] = {}
    fast = Engine(data, model, method, "auto", threads)
    ways["engine"] = fast.round
    ways["engine, one thread"] = Engine(data, model, method, "auto", 1).round
    ways["generic path"] = Engine(data, model, method, "generic", threads).round
    ways["usual way, 1 thread"] = Plain(data, model, method, 1).round
    ways[f"usual way, {threads} threads"] = Plain(data, model, method, threads).round
    first = {name: timed(call, 1) for name, call in ways.items()}  # also the warm-up
    rounds = {name: max(1, round(0.4 / second)) for name, second in first.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, call in ways.items():
            seconds[name].append(timed(call, rounds[name]))
    rates = {name: Rate.of(values, fast.steps) for name, values in seconds.items()}
    usual = [name for name in ways if name.startswith("usual")]
    best = min(usual, key=lambda name: statistics.median(seconds[name]))
    ratios = [b / e for b, e in zip(seconds[best], seconds["engine"], strict=True)]
    return {
        "method": method,
        "model": model,
        "threads": threads,
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

    The plain form of a step on an affine layer (i inputs, o outputs, b samples) takes 4*b*i*o operations (outputs and
    weight update; layers behind the first also 2*b*i*o for the error) and reads weights twice and writes them once;
    the minibatch is read from the pool and written and read twice. S proximal steps in the span of a minibatch take
    for the first layer 2 products with weights, one b x b product and one update together, and S of size b x b x o.
    """
    if model == "cnn":
        return {}
    sizes = engine.sim.net.sizes  # type: ignore[attr-defined]
    layers = list(pairwise(sizes))
    inputs, outputs = layers[0]
    behind = sum(6 * BATCH * i * o for i, o in layers[1:])
    weights = sum(i * o + o for i, o in layers)
    batch = 4 * 4 * BATCH * inputs
    if method in ("pfedme", "cgpfl"):
        steps = int(engine.sim.static["inner_steps"])
        first = 2 * BATCH * inputs * (3 * outputs + BATCH) / steps + 2 * BATCH * BATCH * outputs
        return {
            "flops": first + behind,
            "bytes": (4 * 8 * inputs * outputs + batch) / steps + 12 * (weights - inputs * outputs),
        }
    return {"flops": 4 * BATCH * inputs * outputs + behind, "bytes": 12 * weights + batch}


def ceilings(threads: int) -> dict[str, float]:
    """The machine's matrix rate (flop/s) and memory bandwidth (bytes/s, read plus written), with all threads."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    source, target = torch.randn(32 << 20), torch.empty(32 << 20)
    torch.set_num_threads(threads)
    product = min(timed(lambda: torch.mm(a, b), 5) for _ in range(5))
    copy = min(timed(lambda: target.copy_(source), 2) for _ in range(5))
    torch.set_num_threads(1)
    return {"flops": 2 * 1024**3 / product, "bytes": 2 * source.nbytes / copy}


def markdown(found: dict[str, Any]) -> str:
    """All results as tables."""
    top = found["ceilings"]
    lines = [
        f"# Measured on {found['processor']}",
        "",
        f"{found['threads']} threads, torch {found['torch']}, {found['date']}. Matrix products reach "
        f"{top['flops'] / 1e9:.0f} GFLOP/s here, copies {top['bytes'] / 1e9:.0f} GB/s (read and written).",
        "",
        "## Gradient steps per second",
        "",
        f"One step is one minibatch of {BATCH} samples of one of {CLIENTS} clients; whole rounds, indices and gather "
        f"included. Medians of {found['turns']} interleaved turns.",
        "",
        "| method | model | engine | one thread | generic path | usual way | ratio (range) | target | of matrix rate "
        "| of bandwidth |",
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in found["rates"]:
        rates, shares = row["rates"], ("", "")
        speed = rates["engine"]["median"]
        if "flops" in row:
            shares = (f"{row['flops'] * speed / top['flops']:.0%}", f"{row['bytes'] * speed / top['bytes']:.0%}")
        lines.append(
            f"| {row['method']} | {row['model']} | {speed:,.0f} | {rates['engine, one thread']['median']:,.0f} "
            f"| {rates['generic path']['median']:,.0f} | {rates[row['baseline']]['median']:,.0f} | {row['ratio']:.1f} "
            f"({row['ratio_low']:.1f} to {row['ratio_high']:.1f}) | {row['target'] or ''} | {shares[0]} | {shares[1]} |"
        )
    if "profile" in found:
        names = list(found["profile"][0]["seconds"])
        lines += ["", "## Where a run's time goes", "", "Seconds of one run, T = 200, tested every five rounds.", ""]
        lines += [
            f"| method | model | {' | '.join(names)} | not local |",
            "| --- | --- |" + " --: |" * (len(names) + 1),
        ]
        for row in found["profile"]:
            cells = " | ".join(f"{row['seconds'][name]:.2f}" for name in names)
            lines.append(f"| {row['method']} | {row['model']} | {cells} | {_other(row['seconds']):.0%} |")
    if "sweeps" in found:
        lines += ["", "## Cost of a run by runs in the batch", "", "Milliseconds a run and round of cgpfl.", ""]
        lines += ["| model | runs | ms |", "| --- | --: | --: |"]
        lines += [f"| {row['model']} | {row['runs']} | {row['ms']:.1f} |" for row in found["sweeps"]]
    if "scaling" in found:
        lines += ["", "## Cost of a client by the number of clients", ""]
        lines += ["mlr on 100 features, 20 training samples a client.", ""]
        lines += ["| method | clients | participation | us a participating client and round | kB a client |"]
        lines += ["| --- | --: | --: | --: | --: |"]
        lines += [
            f"| {row['method']} | {row['clients']:,} | {row['participation']} | {1e6 * row['seconds']:.0f} "
            f"| {row['bytes'] / 1e3:.1f} |"
            for row in found["scaling"]
        ]
    return "\n".join(lines) + "\n"


PROFILED = (("fedavg", "mlr"), ("cgpfl", "mlr"), ("fedavg", "dnn"), ("cgpfl", "dnn"))
SWEPT = (1, 3, 9, 45)
SCALED = [(n, p) for n in (40, 400, 4_000, 40_000) for p in (1.0, 0.1, 0.01)]


def profile(quick: bool, threads: int) -> list[dict[str, object]]:
    """Seconds by part of one run of the paper (T = 200, tested every five rounds), 15,000 test samples."""
    rounds = 10 if quick else 200
    found: list[dict[str, object]] = []
    for method, model in PROFILED:
        data = client_data(model, test_share=1 / 3)
        seconds = parts.shares(data, model, method, rounds, threads)
        found.append({"method": method, "model": model, "rounds": rounds, "seconds": seconds})
        print(
            f"profile {method} {model} {_other(seconds):.0%} of {seconds['all']:.0f} s is not local steps", flush=True
        )
    return found


def _other(seconds: dict[str, float]) -> float:
    """Share of a job that is neither local steps nor aggregation."""
    return 1 - (seconds["local steps"] + seconds["aggregation and rest"]) / seconds["all"]


def sweeps(quick: bool, threads: int) -> list[dict[str, object]]:
    """Milliseconds a run and round of cgpfl by the number of runs in the batch."""
    found: list[dict[str, object]] = []
    for model, rounds in (("mlr", 10), ("dnn", 3)):
        data = client_data(model)
        for runs in SWEPT[:2] if quick else SWEPT:
            turns = [scale.sweep(data, model, runs, 1 if quick else rounds, threads) for _ in range(1 if quick else 3)]
            found.append({"model": model, "runs": runs, "ms": 1e3 * statistics.median(turns)})
            print(f"sweep {model} {runs} runs {found[-1]['ms']:.1f} ms a run and round", flush=True)
    return found


def scaling(quick: bool, threads: int) -> list[dict[str, float]]:
    """Microseconds and bytes a client, by the number of clients and participation."""
    found = []
    for clients, participation in SCALED[:3] if quick else SCALED:
        for method in ("fedavg", "cgpfl"):
            found.append(scale.clients_cost(clients, participation, method, threads))
            row = found[-1]
            print(
                f"scale {method} {clients} clients, participation {participation}: {1e6 * row['seconds']:.0f} us a "
                f"participating client and round, {row['bytes'] / 1e3:.1f} kB a client",
                flush=True,
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn of each")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[], help="methods, models, profile, sweeps or scaling")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    args = parser.parse_args()
    turns, wanted = 1 if args.quick else args.turns, set(args.only)
    found: dict[str, Any] = {
        "machine": f"{_slug(_processor())}-{args.threads}-threads",
        "processor": _processor(),
        "threads": args.threads,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "turns": turns,
    }
    file = args.out / f"{found['machine']}.json"
    if wanted and file.exists():  # measure a part again, keep the others
        found = {**json.loads(file.read_text(encoding="utf-8")), **found}
    rates = {(row["method"], row["model"]): row for row in found.get("rates", [])}
    with single_threaded_ops():
        found["ceilings"] = ceilings(args.threads)
        for method, model in [(m, model) for model in SHAPES for m in MEASURED if not wanted or wanted & {m, model}]:
            rates[method, model] = compare(method, model, turns, args.threads)
            print(f"{method} {model} {rates[method, model]['ratio']:.2f}", flush=True)
    found["rates"] = list(rates.values())
    for name, measure in (("profile", profile), ("sweeps", sweeps), ("scaling", scaling)):
        if not wanted or name in wanted:
            found[name] = measure(args.quick, args.threads)
    args.out.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(markdown(found), encoding="utf-8")
    print("\nmethod model ratio target")
    for row in found["rates"]:
        if row["target"]:
            print(f"{row['method']} {row['model']} {row['ratio']:.1f} {row['target']}")


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()[:4])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
