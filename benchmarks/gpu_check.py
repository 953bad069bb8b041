"""See gpu_check.sh. ``--device cpu --quick`` goes through the same steps without a GPU."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine import CLIENTS, SHAPES, Engine

from cgpfl import simulate
from cgpfl.clients import ClientData
from cgpfl.methods import METHODS
from cgpfl.runs import train
from cgpfl.settings import RunSpec

TOLERANCE = {"float64": 1e-9, "float32": 1e-3}  # largest difference of models after three rounds, CPU and GPU


def clients(samples: int, shape: tuple[int, ...], classes: int = 10, count: int = CLIENTS, seed: int = 0) -> ClientData:
    """Clients of unequal size; each sees three classes, each class its own mean."""
    rng = np.random.default_rng(seed)
    arrays = []
    for client in range(count):
        n = int(rng.integers(samples // 2, samples + 1))
        y = (client + rng.integers(0, 3, n)) % classes
        x = rng.standard_normal((n, *shape)) + y.reshape(-1, *[1] * len(shape)) / classes
        cut = max(1, 3 * n // 4)
        arrays.append((x[:cut].astype(np.float32), y[:cut], x[cut:].astype(np.float32), y[cut:]))
    return ClientData.from_arrays(arrays, contexts=np.arange(count) % classes, classes=classes)


def agreement(device: str) -> list[dict[str, Any]]:
    """Three rounds of every method and model on the device and on the CPU."""
    found = []
    for model, shape in (("mlr", (20,)), ("dnn", (20,)), ("cnn", (3, 20, 20))):
        data = clients(24, shape, count=8)
        print(f"{len(METHODS)} methods on {model}, {device} against cpu", flush=True)
        for method in METHODS:
            for dtype, tolerance in TOLERANCE.items():
                params = {"contexts": 3} if method in ("ifca", "cgpfl") else {}
                params |= {"max_contexts": 4} if method == "cgpfl_heur" else {}
                both = [
                    simulate(
                        data, model, method, rounds=3, seeds=[0, 1], params=params, batch_size=5, dtype=dtype, device=d
                    )
                    for d in (device, "cpu")
                ]
                there, here = (
                    {k: v.cpu() for k, v in result.state.items() if v.is_floating_point()} for result in both
                )
                worst = max(float((there[name] - here[name]).abs().nan_to_num().max()) for name in here)
                found.append(
                    {"method": method, "model": model, "dtype": dtype, "difference": worst, "ok": worst <= tolerance}
                )
    return found


def bandwidth(device: torch.device) -> float:
    """Bytes a second of a large copy, read plus written."""
    source = torch.empty(1 << 28 if device.type == "cuda" else 1 << 24, device=device)
    target = torch.empty_like(source)
    times = []
    for _ in range(6):
        times.append(seconds(lambda: target.copy_(source), device))
    return 2 * source.nbytes / min(times)


def seconds(call: Any, device: torch.device) -> float:
    """Wall time of a call, the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def rates(device: torch.device, runs: int, top: float, quick: bool) -> list[dict[str, Any]]:
    """Gradient steps per second of whole rounds of ``runs`` runs, and the part of the bandwidth that weights take."""
    found = []
    for model, shape in SHAPES.items():
        data = clients(60 if quick else 600, shape).to(device, torch.float32)
        for method in ("fedavg", "ditto", "apfl", "pfedme", "cgpfl"):
            engine = Engine(data, model, method, runs=runs, device=str(device))
            engine.round()  # captures
            turns = [seconds(engine.round, device) for _ in range(2 if quick else 7)]
            speed = engine.steps / statistics.median(turns)
            inner = int(engine.sim.static.get("inner_steps", 1))
            # Weights are read twice and written once.
            moved = 12 * engine.sim.net.size * (2 / inner if inner > 1 else 1) * speed
            found.append({"method": method, "model": model, "runs": runs, "rate": speed, "of_bandwidth": moved / top})
            print(f"{method} {model} {speed:,.0f} steps/s, {moved / top:.0%} of bandwidth", flush=True)
            del engine
    return found


def table2_cell(device: str, quick: bool) -> dict[str, Any]:
    """Nine lambdas by five seeds of cgpfl with dnn on MNIST-shaped data, T = 200, tested every five rounds."""
    data = clients(60 if quick else 1500, (784,))
    specs = [
        RunSpec(seed, {"lam": float(lam)}) for lam in range(9, 11 if quick else 18) for seed in range(1 if quick else 5)
    ]
    rounds = 2 if quick else 200
    start = time.perf_counter()
    result = train(
        data, "dnn", "cgpfl", specs, rounds=rounds, device=device, eval_every=5, train_loss_samples=100, memory_gb=40
    )
    wall = time.perf_counter() - start
    return {"runs": len(specs), "rounds": rounds, "seconds": wall, "diverged": bool(result.history["diverged"].any())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", nargs="?", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device is there; --device cpu --quick goes through the same steps without one")
    device = torch.device(args.device)
    warnings.filterwarnings("ignore", "cgpfl_heur: d =")  # clients of a few samples
    name = torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    start = time.perf_counter()
    checked = agreement(args.device)
    bad = [row for row in checked if not row["ok"]]
    print(f"{len(checked) - len(bad)} of {len(checked)} comparisons with the CPU within tolerance", flush=True)
    top = bandwidth(device)
    found = {
        "device": name,
        "torch": torch.__version__,
        "tolerance": TOLERANCE,
        "agreement": checked,
        "bandwidth": top,
        "rates": rates(device, 2 if args.quick else 9, top, args.quick),
        "table2_cell": table2_cell(args.device, args.quick),
        "seconds": time.perf_counter() - start,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"table 2 cell: {found['table2_cell']}; {found['seconds']:.0f} s in all; {args.out / 'gpu_check.json'}")
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
