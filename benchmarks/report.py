"""What was measured, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine import BATCH, CLIENTS
from parts import not_local


def markdown(found: dict[str, Any]) -> str:
    """All results as tables."""
    sections = {"rates": _rates, "profile": _profile, "server": _server, "sweeps": _sweeps, "memory": _memory}
    sections["scaling"] = _scaling
    lines = [
        f"# Measured on {found['processor']}",
        "",
        f"{found['cores']} cores, torch {found['torch']}, {found['date']}, commit {found['commit'][:7]}.",
    ]
    for name, section in sections.items():
        if name in found:
            lines += ["", *section(found)]
    return "\n".join(lines) + "\n"


def summary(found: dict[str, Any]) -> str:
    """How many times the usual way's gradient steps per second, for the README."""
    ratios = {(row["method"], row["model"]): f"{row['ratio']:.1f}" for row in found["rates"]}
    methods = list(dict.fromkeys(method for method, _ in ratios))
    models = list(dict.fromkeys(model for _, model in ratios))
    rows = [[f"`{model}`", *(ratios.get((method, model), "") for method in methods)] for model in models]
    return "\n".join(_table(["", *methods], rows, 1))


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """A table whose first ``left`` columns are text."""
    rule = ["---"] * left + ["--:"] * (len(heads) - left)
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *rows)]


def _rates(found: dict[str, Any]) -> list[str]:
    top, rows = found["ceilings"], []
    for row in found["rates"]:
        rates = {name: rate["median"] for name, rate in row["rates"].items()}
        spread = row["rates"]["engine"]
        rows.append(
            [
                row["method"],
                row["model"],
                f"{rates['engine']:,.0f} ({spread['low']:,.0f} to {spread['high']:,.0f})",
                f"{rates['engine, one thread']:,.0f}",
                f"{rates['generic path']:,.0f}",
                f"{rates[row['baseline']]:,.0f} ({row['baseline'].removeprefix('usual way, ')})",
                f"{row['ratio']:.1f} ({row['ratio_low']:.1f} to {row['ratio_high']:.1f})",
                str(row["target"] or ""),
                f"{row['flops'] / 1e6:.1f}",
                f"{row['bytes'] / 1e6:.2f}",
                f"{row['flops'] * rates['engine'] / top['flops']:.0%}",
                f"{row['bytes'] * rates['engine'] / top['bytes']:.0%}",
            ]
        )
    heads = ["method", "model", "engine", "one thread", "generic path", "usual way", "ratio", "target"]
    heads += ["Mflop", "MB", "of matrix rate", "of bandwidth"]
    return [
        "## Gradient steps per second",
        "",
        f"One step is one minibatch of {BATCH} samples of one of {CLIENTS} clients; whole rounds, minibatch indices "
        "and gather included, and ifca's choice by the loss on all of a client's 300 to 3,750 samples (a tenth of "
        "these for the cnn). Usual way: one module a client, autograd and SGD, client after client, at its better "
        "number of threads. Generic path: this project's rows by `vmap(grad)` instead of its fused gradients, on "
        f"{found['threads']} threads like the engine.",
        "",
        f"Medians of {found['turns']} interleaved turns, of three where these take long, with quartiles. The ratio is "
        "the median over the turns of engine to usual way in the same turn, with the lowest and the highest, so that "
        "it need not be the quotient of the medians; target: the ratio that was asked for. Work of a step as counted "
        f"on paper; with all threads matrix products reach {top['flops'] / 1e9:.0f} GFLOP/s here, copies "
        f"{top['bytes'] / 1e9:.0f} GB/s (read and written).",
        "",
        *_table(heads, rows, 2),
    ]


def _profile(found: dict[str, Any]) -> list[str]:
    names = list(found["profile"][0]["seconds"])
    rows = [
        [
            row["method"],
            row["model"],
            *(f"{row['seconds'][name]:.1f}" for name in names),
            f"{not_local(row['seconds']):.0%}",
        ]
        for row in found["profile"]
    ]
    first = found["profile"][0]
    return [
        "## Where a job's time goes",
        "",
        f"Seconds of one job of {first['seeds']} seeds on one thread, T = {first['rounds']}, tested every five rounds. "
        "Not local: all but the local steps and the averages. Start-up is the imports, tracking what is logged to "
        "MLflow.",
        "",
        *_table(["method", "model", *names, "not local"], rows, 2),
    ]


def _server(found: dict[str, Any]) -> list[str]:
    rows = [[row["method"], row["model"], f"{row['d']:,}", f"{1e3 * row['seconds']:.1f}"] for row in found["server"]]
    return [
        "## The server's step",
        "",
        "Grouping 40 uploads and averaging them, one thread; cgpfl_heur's is the round in which it tries K = 1 to 20.",
        "",
        *_table(["method", "model", "d", "ms"], rows, 2),
    ]


def _sweeps(found: dict[str, Any]) -> list[str]:
    return [
        "## Cost of a run by runs in the job",
        "",
        "Milliseconds a run and round of cgpfl, one thread; 45 runs are nine lambdas of five seeds.",
        "",
        *_table(
            ["model", "runs", "ms"],
            [[row["model"], str(row["runs"]), f"{row['ms']:.1f}"] for row in found["sweeps"]],
            1,
        ),
    ]


def _memory(found: dict[str, Any]) -> list[str]:
    rows = [[row["model"], str(row["runs"]), f"{row['budget']:.2f}", f"{row['peak']:.2f}"] for row in found["memory"]]
    return [
        "## Memory against its budget",
        "",
        "By how many GB runs of cgpfl raise the peak of a process's memory, libraries and data being there already.",
        "",
        *_table(["model", "runs", "memory_gb", "peak"], rows, 1),
    ]


def _scaling(found: dict[str, Any]) -> list[str]:
    rows = [
        [
            row["method"],
            f"{row['clients']:,}",
            f"{row['participation']:g}",
            f"{row['part']:,}",
            f"{1e6 * row['seconds']:.0f}",
            f"{row['bytes'] / 1e3:.1f}",
        ]
        for row in found["scaling"]
    ]
    heads = ["method", "clients", "participation", "take part", "us a participating client and round", "kB a client"]
    return [
        "## Cost of a client by the number of clients",
        "",
        "mlr on 100 features (d = 1,010), 25 samples a client (10 kB), one thread.",
        "",
        *_table(heads, rows, 1),
    ]
