"""The engine beside the usual way and the generic path, and where its time and memory go, on this machine.

    python benchmarks/bench.py                  everything, writes benchmarks/results/<machine>.json and .md
    python benchmarks/bench.py --quick          one turn of some, to see that it runs; written elsewhere
    python benchmarks/bench.py --only mlr server   parts again; the others are kept

Forty minutes on two cores, during which nothing else should run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import parts
import rates
import scale
import torch
from engine import SHAPES, client_data
from report import markdown

from cgpfl.models import build_model
from cgpfl.runs import single_threaded_ops
from cgpfl.tracking import commit
from cgpfl.training import processor

PROFILED = (("fedavg", "mlr"), ("cgpfl", "mlr"), ("fedavg", "dnn"), ("cgpfl", "dnn"))
SWEPT = (1, 3, 9, 45)
BUDGETS = (0.25, 0.5, 1.0, 2.0)
SCALED = [(n, p) for n in (40, 400, 4_000, 40_000) for p in (1.0, 0.1, 0.01)]


def profile(quick: bool) -> list[dict[str, Any]]:
    """Seconds by part of one job of the paper; a third of the training samples again for testing."""
    found: list[dict[str, Any]] = []
    rounds, seeds = (10, 1) if quick else (200, 5)
    for method, model in PROFILED:
        seconds = parts.shares(model, method, rounds, seeds)
        found.append({"method": method, "model": model, "rounds": rounds, "seeds": seeds, "seconds": seconds})
        print(f"profile {method} {model}: {parts.not_local(seconds):.0%} of {seconds['all']:.0f} s is not local steps")
    return found


def server(quick: bool) -> list[dict[str, Any]]:
    """Seconds of the server's step of cgpfl and of cgpfl_heur's search."""
    found: list[dict[str, Any]] = []
    for model in ("mlr", "dnn"):
        d = sum(p.numel() for p in build_model(model, SHAPES[model], 10).parameters())
        for method in ("cgpfl", "cgpfl_heur"):
            seconds = parts.server(model, method, 3 if quick else 15)
            found.append({"method": method, "model": model, "d": d, "seconds": seconds})
            print(f"server {method} {model}: {1e3 * seconds:.1f} ms")
    return found


def sweeps(quick: bool) -> list[dict[str, Any]]:
    """Milliseconds a run and round of cgpfl by the number of runs in the job."""
    found: list[dict[str, Any]] = []
    for model, rounds in (("mlr", 10), ("dnn", 3)):
        data = client_data(model)
        swept = SWEPT[:2] if quick else SWEPT
        scale.sweep(data, model, 1, 1)
        turns: dict[int, list[float]] = {runs: [] for runs in swept}
        for _ in range(1 if quick else 3):
            for runs in swept:
                turns[runs].append(scale.sweep(data, model, runs, 1 if quick else rounds))
        found += [{"model": model, "runs": runs, "ms": 1e3 * statistics.median(turns[runs])} for runs in swept]
    for row in found:
        print(f"sweep {row['model']} {row['runs']} runs: {row['ms']:.1f} ms a run and round")
    return found


def memory(quick: bool) -> list[dict[str, Any]]:
    """Peak of memory against its budget."""
    found = [scale.memory("dnn", 9 if quick else 45, budget) for budget in BUDGETS[: 1 if quick else None]]
    for row in found:
        print(f"memory: {row['peak']:.2f} GB of {row['budget']} GB")
    return found


def scaling(quick: bool) -> list[dict[str, Any]]:
    """Microseconds and bytes a client, by the number of clients and participation; medians of three passes."""
    cases = [(n, p, method) for method in ("fedavg", "cgpfl") for n, p in (SCALED[:3] if quick else SCALED)]
    passes = [[scale.clients_cost(*case) for case in cases] for _ in range(1 if quick else 3)]
    found = []
    for rows in zip(*passes, strict=True):
        row = {**rows[0], **{name: statistics.median(row[name] for row in rows) for name in ("seconds", "bytes")}}
        found.append(row)
        print(
            f"scale {row['method']} {row['clients']} clients, {row['part']} take part: "
            f"{1e6 * row['seconds']:.0f} us a client, {row['bytes'] / 1e3:.1f} kB a client"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn of fedavg and cgpfl, and less of the rest")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--only", nargs="*", default=[], help="models, method/model, or other parts")
    parser.add_argument("--out", type=Path, help="folder; default results beside this file, a new one for --quick")
    args = parser.parse_args()
    if args.out is None:
        args.out = Path(tempfile.mkdtemp()) if args.quick else Path(__file__).parent / "results"
    wanted = set(args.only)
    name = processor()
    found: dict[str, Any] = {
        "machine": f"{_slug(name)}-{os.cpu_count()}-cores",
        "processor": name,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
    }
    file = args.out / f"{found['machine']}.json"
    if wanted and file.exists():
        found = {**json.loads(file.read_text(encoding="utf-8")), **found}
    measured = {(row["method"], row["model"]): row for row in found.get("rates", [])}
    methods = ("fedavg", "cgpfl") if args.quick else rates.MEASURED
    pairs = [(m, model) for model in SHAPES for m in methods if not wanted or wanted & {model, f"{m}/{model}"}]
    args.out.mkdir(parents=True, exist_ok=True)

    def keep() -> None:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        file.with_suffix(".md").write_text(markdown(found), encoding="utf-8")

    with single_threaded_ops():
        if pairs:
            found |= {"threads": args.threads, "turns": 1 if args.quick else args.turns}
            found["ceilings"] = rates.ceilings(args.threads)
        for method, model in pairs:
            measured[method, model] = rates.compare(method, model, found["turns"], args.threads)
            found["rates"] = list(measured.values())
            print(f"{method} {model} {measured[method, model]['ratio']:.1f}", flush=True)
            keep()
        for measure in (server, sweeps, memory, scaling, profile):
            if not wanted or measure.__name__ in wanted:
                found[measure.__name__] = measure(args.quick)
                keep()
    print("\nmethod model ratio target")
    for row in found.get("rates", []):
        if row["target"]:
            print(f"{row['method']} {row['model']} {row['ratio']:.1f} {row['target']}")
    print(f"written to {file} and {file.with_suffix('.md').name}")


def _slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split()[:4])


if __name__ == "__main__":
    main()
