"""Figures: functions from the frames of an experiment's runs to matplotlib figures, and how these are saved.

The frames are those of `cgpfl.tables`: each function draws the runs that it is given and ignores the rest of
the other frames. Curves are means over seeds with a band of one standard deviation (ddof 1); where a seed has
diverged the mean ends, with a cross. A method that an experiment lacks is left out, and a figure with nothing
to draw says in words what is missing.

Colours are those of Okabe and Ito, told apart in all common forms of colour blindness; every method has a
line style and a marker of its own besides, so that figures can be read in grey. The object-oriented interface
of matplotlib is used throughout: drawing has no global state. The same frames give the same bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import Any, Literal, ParamSpec

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from cgpfl import tables

P = ParamSpec("P")
WIDTH = 6.9
"""Inches: the text width of a paper with two columns."""
STYLE: Mapping[str, Any] = {
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.columnspacing": 1.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "pdf.fonttype": 42,
}

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip


@dataclass(frozen=True)
class Look:
    """How a curve is drawn: colour, line style, marker, and whether the marker is filled."""

    colour: str
    line: Any
    marker: str
    fill: Literal["full", "none", "left"] = "full"


LOOKS: Mapping[str, Look] = {
    "cgpfl": Look(VERMILLION, "-", "o"),
    "cgpfl_heur": Look(BLUE, (0, (6, 1.5)), "*"),
    "cgpfl_oracle": Look("#555555", (0, (8, 1.5, 1, 1.5, 1, 1.5)), "P"),
    "pfedme": Look(GREEN, (0, (3, 1.5)), "s"),
    "ditto": Look(PURPLE, (0, (1, 1.2)), "^"),
    "perfedavg": Look(ORANGE, (0, (5, 1.5, 1, 1.5)), "D"),
    "local": Look(BLACK, (0, (1, 2)), "v"),
    "fedavg_ft": Look(SKY, (0, (4, 1)), "X"),
    "apfl": Look("#B8A800", (0, (5, 1)), "p"),
    "fedavg": Look("#8C8C8C", "-", "h"),
    "fedprox": Look("#332288", (0, (1, 3)), "d"),
    "ifca": Look("#7A4F01", (0, (2, 1)), "<"),
    "l2sgd": Look("#882255", (0, (1, 1, 3, 1)), ">"),
}
"""The look of each of our methods."""
OWN_LOOKS = (Look("#E7298A", "-", "H"), Look("#1B7F3B", (0, (7, 2)), "8"), Look("#4D6FFF", (0, (3, 1, 1, 1)), "x"))
"""The looks of methods of the user's own, in turn."""
CROSS: Mapping[str, Any] = {"marker": "X", "color": "white", "mec": BLACK, "ms": 6, "ls": "", "zorder": 6}
"""A seed has diverged."""
BAND = 0.18  # opacity of one standard deviation
CRITERION = Look("0.6", (0, (1, 1)), "")
STAR: Mapping[str, Any] = {"marker": "*", "color": BLUE, "mec": BLACK, "mew": 0.5, "ms": 10}
"""The number of contexts that cgpfl_heur chose."""
BASELINES = ("local", "fedavg_ft", "ditto", "pfedme", "cgpfl", "cgpfl_oracle")
"""The methods of the figures over studies."""
SHORT = 10
"""Curves of so few points are shown from their start."""
NUMBERED = 4
"""The most methods that figure 3b writes numbers beside."""
CONTEXT_COLOURS = (BLUE, ORANGE, YELLOW, "#141414", SKY, VERMILLION, GREEN, PURPLE)
"""Neighbours differ in lightness, so that the contexts of figure 4 can be told apart in grey."""

SAMPLES = LinearSegmentedColormap.from_list("samples", ["#DCEBF5", BLUE, "#04243A"])


@dataclass(frozen=True)
class Frames:
    """All that an experiment's figures are drawn from: the result frames of all its runs.

    `contexts`: dataset -> true context of each client, for the first seed, where the partition knows them.
    `methods`: those that figures 1, 2 and 3b show, in this order; all if empty.
    """

    runs: pd.DataFrame
    history: pd.DataFrame
    assignments: pd.DataFrame
    clustering: pd.DataFrame
    heuristic: pd.DataFrame
    contexts: Mapping[str, Sequence[int]] = field(default_factory=dict)
    methods: Sequence[str] = ()

    @property
    def table1(self) -> pd.DataFrame:
        """The runs that are rows of Table 1."""
        return tables.part(self.runs, "table1")


def draw(name: str, frames: Frames) -> Figure:
    """An experiment's figure of this name, one of NAMES."""
    return _FIGURES[name](frames)


def save(figure: Figure, stem: Path | str) -> None:
    """Writes `stem`.png (200 dots an inch) and `stem`.pdf without dates or versions: same figure, same bytes."""
    with matplotlib.style.context(["default", dict(STYLE)]):
        figure.savefig(f"{stem}.png", dpi=200, metadata={"Software": None})
        figure.savefig(f"{stem}.pdf", dpi=300, metadata={"Creator": None, "Producer": None, "CreationDate": None})


def _styled(function: Callable[P, Figure]) -> Callable[P, Figure]:
    """Draws in STYLE over matplotlib's defaults, whatever the user's own settings are."""

    @wraps(function)
    def draw_in_style(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.style.context(["default", dict(STYLE)]):
            return function(*args, **kwargs)

    return draw_in_style


@_styled
def note(text: str) -> Figure:
    """A small figure that says in words why there is nothing to draw."""
    figure = Figure(figsize=(WIDTH, 0.6))
    figure.text(0.5, 0.5, text, ha="center", va="center", color="0.25")
    return figure


@_styled
def convergence(runs: pd.DataFrame, history: pd.DataFrame, dataset: str, methods: Sequence[str] = ()) -> Figure:
    """Figures 1 and 2: headline test accuracy and train loss by round, a column a model, a line a method.

    `methods`: those to draw, in this order; all if empty.
    """
    methods = methods or list(pd.unique(runs["method"]))
    rows = _headline(runs[(runs["dataset"] == dataset) & runs["method"].isin(methods)], history)
    models = list(pd.unique(rows["model"]))
    if not models:
        return note(f"Nothing to draw: none of {', '.join(methods)} was run on {dataset}.")
    looks = _looks(rows, methods)
    figure = Figure(figsize=(WIDTH if len(models) > 1 else WIDTH / 2, 4.4))
    axes = figure.subplots(2, len(models), squeeze=False, sharex="col")
    for top, bottom, model in zip(*axes, models, strict=True):
        of_model = rows[rows["model"] == model]
        _curves(top, of_model, "percent", looks, settled="top")
        _curves(bottom, of_model, "train_loss", looks, settled="bottom")
        top.set_title(f"{dataset} / {model}")
        bottom.set_xlabel("round")
    axes[0, 0].set_ylabel("test accuracy (%)")
    axes[1, 0].set_ylabel("train loss")
    _legend(figure, [*_handles(looks), *_cross_handle(rows)])
    return figure


@_styled
def accuracy_by_contexts(
    sweep: pd.DataFrame, table1: pd.DataFrame, history: pd.DataFrame, heuristic: pd.DataFrame | None = None
) -> Figure:
    """Figure 3a: final accuracy of cgpfl by its number of contexts K, a panel a dataset and model.

    `sweep`: the runs that vary `contexts`. `heuristic`: the criterion e(K) of cgpfl_heur, drawn in grey on an axis of
    its own. `table1`: the runs of Table 1, which give a star for each K that cgpfl_heur chose (mean over
    the seeds that chose it) and lines for cgpfl_oracle and pfedme, with bands; only the seeds of the sweep count.
    """
    sweep = sweep[sweep["method"] == "cgpfl"]
    table1 = table1[table1["seed"].isin(sweep["seed"])]
    if sweep.empty:
        return note("Nothing to draw: figure 3a needs a sweep of cgpfl over contexts.")
    rows = _final(sweep.assign(label=[tables.without(label, "contexts") for label in sweep["label"]]), history)
    others = _final(table1, history)
    curves, lines = _looks(rows, ["cgpfl"]), _looks(others, ["cgpfl_oracle", "pfedme"])
    chosen_by = others[others["method"] == "cgpfl_heur"]
    criteria = pd.DataFrame()
    if heuristic is not None:
        criteria = tables.with_runs(_first_setting(table1, "cgpfl_heur"), _last_choice(heuristic))
    figure, panels = _panels(rows)
    for pair, panel in panels.items():
        _curves(panel, _of(rows, pair), "final", curves, x="contexts")
        for label, look in lines.items():
            own = _of(others[others["label"] == label], pair)
            mean, std = own["final"].mean(skipna=False), own["final"].std()
            panel.axhline(mean, color=look.colour, ls=look.line)
            panel.axhspan(mean - std, mean + std, color=look.colour, alpha=BAND, lw=0)
        if len(criteria):
            right = panel.twinx()
            _curve(right, _of(criteria, pair), "e", CRITERION, x="contexts")
            right.grid(visible=False)
            right.tick_params(axis="y", length=0, labelsize=6, labelcolor=CRITERION.colour)
        if len(chosen_by):
            seeds = _of(chosen_by, pair).groupby("contexts_chosen")["final"]
            chosen = seeds.agg(lambda finals: finals.mean(skipna=False))
            panel.plot(chosen.index, chosen, ls="", zorder=5, **STAR)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    _label(panels, "number of contexts K", "test accuracy (%)")
    stars = [Line2D([], [], ls="", label="K chosen by cgpfl_heur", **STAR)] if len(chosen_by) else []
    stars += _handles({"e(K), right axis": CRITERION}) if len(criteria) else []
    plain = [Line2D([], [], color=look.colour, ls=look.line, label=label) for label, look in lines.items()]
    _legend(figure, [*_handles(curves), *stars, *plain, *_cross_handle(rows)])
    return figure


@_styled
def side_by_side(runs: pd.DataFrame, history: pd.DataFrame, methods: Sequence[str] = ()) -> Figure:
    """Figure 3b: final accuracies of methods beside each other, a group a dataset and model.

    `methods`: those to draw, in this order; all if empty. Numbers are written beside NUMBERED methods at most.
    """
    methods = methods or list(pd.unique(runs["method"]))
    runs = runs[runs["method"].isin(methods)]
    if runs.empty:
        return note("Nothing to draw: no method was run.")
    results = tables.headline_rows(tables.table1(runs, history))
    groups = _pairs(results)
    looks = _looks(runs, methods)
    figure = Figure(figsize=(min(WIDTH, max(WIDTH / 2, 0.45 * len(groups) * len(looks))), 2.6))
    panel = figure.subplots()
    offsets = (np.arange(len(looks)) - (len(looks) - 1) / 2) * min(0.3, 0.8 / len(looks))
    numbers = len(looks) <= NUMBERED
    for offset, (label, look) in zip(offsets, looks.items(), strict=True):
        for row in results[results["method"] == label].to_dict("records"):
            at = groups.index((row["dataset"], row["model"])) + offset
            _point(panel, at, row["final_mean"], row["final_std"], look, numbers)
    panel.set_xticks(range(len(groups)), [" / ".join(pair) for pair in groups])
    panel.set_xlim(-0.5, len(groups) - 0.5)
    panel.tick_params(axis="x", length=0)
    panel.grid(visible=False, axis="x")
    panel.margins(y=0.15)
    panel.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    panel.set_ylabel("test accuracy (%)")
    _legend(figure, _handles(looks, line=False))
    return figure


@_styled
def contexts_by_client(
    runs: pd.DataFrame, assignments: pd.DataFrame, contexts: Mapping[str, Sequence[int]] | None = None
) -> Figure:
    """Figure 4: the context of each client (a row) in each round (a column), by cgpfl's first seed.

    `contexts`: dataset -> each client's true context in that seed; clients are sorted by it where it is
    known, or else by their last context. The first setting of cgpfl in `runs` is drawn, a panel a dataset and
    model.
    """
    runs = _first_setting(runs, "cgpfl")
    rows = tables.with_runs(runs[runs["seed"].isin(runs["seed"].head(1))], assignments)
    if rows.empty:
        return note("Nothing to draw: figure 4 needs a run of cgpfl.")
    figure, panels = _panels(rows, height=2.3)
    count = int(rows["context"].max()) + 1
    colours = ListedColormap(_context_colours(count))
    for pair, panel in panels.items():
        table = _of(rows, pair).pivot(index="client", columns="round", values="context")
        truth = (contexts or {}).get(pair[0])
        groups = table.ffill(axis=1).iloc[:, -1] if truth is None else pd.Series(truth)[table.index]
        groups = groups.sort_values(kind="stable")
        table = table.loc[groups.index]
        panel.pcolormesh(
            table.columns,
            np.arange(len(table)),
            np.ma.masked_where(~(table >= 0), table),  # a client that took no part has no context
            cmap=colours,
            vmin=-0.5,
            vmax=count - 0.5,
            shading="nearest",
            rasterized=True,
        )
        panel.grid(visible=False)
        panel.invert_yaxis()
        _mark_groups(panel, groups, named=truth is not None)
    known = contexts is not None and any(dataset in contexts for dataset, _ in panels)
    _label(panels, "round", "client (by true context)" if known else "client (by last context)")
    _legend(figure, [Patch(color=colours(k), label=f"context {k}") for k in range(count)])
    return figure


@_styled
def distances(runs: pd.DataFrame, clustering: pd.DataFrame) -> Figure:
    """Figure 5a: mean distances between context models, and of clients' uploads to their context models, by round.

    Euclidean distances between parameters, of the first setting of cgpfl in `runs`.
    """
    rows = tables.with_runs(_first_setting(runs, "cgpfl"), clustering)
    if rows.empty:
        return note("Nothing to draw: figure 5a needs a run of cgpfl.")
    looks = {
        "between": Look(BLUE, "-", "o"),
        "within": Look(ORANGE, (0, (4, 1.5)), "s"),
    }
    names = {"between": "between context models", "within": "client to its context model"}
    figure, panels = _panels(rows)
    for pair, panel in panels.items():
        for column, look in looks.items():
            _curve(panel, _of(rows, pair), column, look)
        panel.set_ylim(bottom=0)
    _label(panels, "round", "Euclidean distance")
    _legend(figure, _handles({names[column]: look for column, look in looks.items()}))
    return figure


@_styled
def kmeans_iterations(runs: pd.DataFrame, clustering: pd.DataFrame) -> Figure:
    """Figure 5b: iterations of k-means by round, of the first setting of cgpfl in `runs`."""
    rows = tables.with_runs(_first_setting(runs, "cgpfl"), clustering)
    if rows.empty:
        return note("Nothing to draw: figure 5b needs a run of cgpfl.")
    figure, panels = _panels(rows, height=1.7)
    for pair, panel in panels.items():
        _curve(panel, _of(rows, pair), "kmeans_iterations", Look(BLUE, "-", ""))
        panel.set_ylim(bottom=0)
        panel.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    _label(panels, "round", "k-means iterations")
    return figure


@_styled
def criterion(runs: pd.DataFrame, heuristic: pd.DataFrame) -> Figure:
    """The criterion e(K) of cgpfl_heur by K with its two terms, and a star at each K that a seed chose."""
    rows = tables.with_runs(_first_setting(runs, "cgpfl_heur"), _last_choice(heuristic))
    if rows.empty:
        return note("Nothing to draw: e(K) needs a run of cgpfl_heur.")
    rows["distance"] = rows["e"] - rows["complexity"]
    looks = {
        "e": Look(BLACK, "-", "o"),
        "complexity": Look(GREEN, (0, (4, 1.5)), ""),
        "distance": Look(ORANGE, (0, (1, 1.2)), ""),
    }
    names = {"e": "e(K)", "complexity": "complexity term", "distance": "distance term"}
    figure, panels = _panels(rows)
    for pair, panel in panels.items():
        own = _of(rows, pair)
        for column, look in looks.items():
            _curve(panel, own, column, look, x="contexts")
        chosen = own[own["chosen"].astype(bool)]["contexts"].unique()
        panel.plot(chosen, own.groupby("contexts")["e"].mean()[chosen], ls="", zorder=5, **STAR)
        panel.set_ylim(bottom=0)
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    _label(panels, "number of contexts K", "e(K)")
    star = Line2D([], [], ls="", label="chosen K", **STAR)
    _legend(figure, [*_handles({names[column]: look for column, look in looks.items()}), star])
    return figure


@_styled
def contexts_by_mu(runs: pd.DataFrame, heuristic: pd.DataFrame) -> Figure:
    """The K that cgpfl_heur would choose by mu, as a multiple of the mu it had: from the terms of e(K), no training."""
    runs = _first_setting(runs, "cgpfl_heur")
    rows = tables.with_runs(runs, tables.contexts_by_mu(heuristic[heuristic["run"].isin(runs["run"])]))
    if rows.empty:
        return note("Nothing to draw: the choice of K by mu needs a run of cgpfl_heur.")
    figure, panels = _panels(rows, height=1.9)
    for pair, panel in panels.items():
        _curve(panel, _of(rows, pair), "contexts", Look(BLUE, "-", ""), x="relative_mu")
        panel.axvline(1.0, color="0.5", lw=0.8, ls=(0, (3, 2)))
        panel.set_xscale("log")
        panel.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    _label(panels, "mu / mu used", "chosen K")
    return figure


@_styled
def accuracy_by_samples(studies: pd.DataFrame) -> Figure:
    """Final accuracy by a client's mean number of training samples, from the table of studies.

    Drawn are the main experiment and the studies that change nothing but `partition.train_share`.
    """
    rows = _of_studies(studies, r"(partition\.train_share=[^,]*)?")
    rows = rows[rows.groupby(["dataset", "model"])["train_samples"].transform("nunique") > 1]
    if rows.empty:
        return note("Nothing to draw: accuracy by training samples needs studies with other train_share.")
    looks = _looks(rows, BASELINES)
    figure, panels = _panels(rows, height=2.4)
    for pair, panel in panels.items():
        for label, look in looks.items():
            own = _of(rows[rows["label"] == label], pair).sort_values("train_samples").set_index("train_samples")
            _band(panel, own["final_mean"], own["final_std"], look)
        panel.set_xscale("log")
    _label(panels, "training samples of a client (mean)", "test accuracy (%)")
    _legend(figure, _handles(looks))
    return figure


@_styled
def accuracy_by_partition(studies: pd.DataFrame) -> Figure:
    """Final accuracies under other schemes of partition, from the table of studies, beside the main experiment's."""
    rows = _of_studies(studies, r"(.*partition\.scheme=.*)?")
    rows = rows[rows.groupby(["dataset", "model"])["study"].transform("nunique") > 1]
    names = list(pd.unique(rows["study"]))
    if rows.empty:
        return note("Nothing to draw: the comparison of partitions needs studies with another partition.scheme.")
    looks = _looks(rows, BASELINES)
    figure, panels = _panels(rows, height=2.4)
    offsets = 0.7 * (np.arange(len(looks)) - (len(looks) - 1) / 2) / len(looks)
    for pair, panel in panels.items():
        for offset, (label, look) in zip(offsets, looks.items(), strict=True):
            for row in _of(rows[rows["label"] == label], pair).to_dict("records"):
                at = names.index(row["study"]) + offset
                _point(panel, at, row["final_mean"], row["final_std"], look, number=False)
        panel.set_xticks(range(len(names)), names)
        panel.grid(visible=False, axis="x")
    _label(panels, "partition", "test accuracy (%)")
    _legend(figure, _handles(looks, line=False))
    return figure


def _of_studies(studies: pd.DataFrame, changes: str) -> pd.DataFrame:
    """The rows of BASELINES' headline models in the studies whose changes match, one for each setting of the study.

    Of those that change the same the last counts, for a method: a study of all data, which has the seeds of the other
    studies, before the main experiment, whose name it takes.
    """
    setting = ["dataset", "model", "method"]
    rows = studies.fillna({"changes": ""}).drop_duplicates(["study", *setting])
    rows = rows[rows["changes"].str.fullmatch(changes)].drop_duplicates(["changes", *setting], keep="last")
    rows = rows.sort_values("changes", key=lambda changes: changes != "", kind="stable")
    rows = rows.assign(study=rows["study"].where(rows["changes"] != "", "main"))
    rows = rows.assign(label=rows["method"], method=rows["method"].str.partition("[")[0])
    return rows[rows["method"].isin(BASELINES)]


@_styled
def partition(statistics: pd.DataFrame, title: str = "") -> Figure:
    """Samples of each client (a column) and class (a row), train and test apart.

    `statistics`: columns client, context, class, train, test, a row a client and class. Clients are sorted by
    their true context where it is known, and thin lines part the contexts.
    """
    order = statistics[["client", "context"]].drop_duplicates().sort_values(["context", "client"], kind="stable")
    classes = list(pd.unique(statistics["class"]))
    figure = Figure(figsize=(WIDTH, min(7.0, 1.5 + 0.3 * len(classes))))
    panels = figure.subplots(2, 1, sharex=True)
    for panel, split in zip(panels, ("train", "test"), strict=True):
        table = statistics.pivot(index="class", columns="client", values=split).loc[classes, order["client"]]
        mesh = panel.pcolormesh(
            np.arange(len(order)),
            np.arange(len(classes)),
            np.ma.masked_equal(table, 0),
            cmap=SAMPLES,
            vmin=0,
            edgecolors="white",
            linewidth=0.4 if len(order) <= 60 else 0,
            shading="nearest",
            rasterized=True,
        )
        figure.colorbar(mesh, ax=panel, label=f"{split} samples", pad=0.01, aspect=12)
        panel.grid(visible=False)
        panel.set_ylabel("class")
        if len(classes) <= 12:
            panel.set_yticks(range(len(classes)), classes)
        for edge in np.flatnonzero(np.diff(order["context"].fillna(-1))):
            panel.axvline(edge + 0.5, color="0.6", lw=0.6)
    if len(order) <= 50:
        panels[1].set_xticks(range(len(order)), order["client"], fontsize=6)
    panels[1].set_xlabel("client" if order["context"].isna().any() else "client (by true context)")
    panels[0].set_title(title)
    return figure


_FIGURES: Mapping[str, Callable[[Frames], Figure]] = {
    "figure1": lambda frames: _convergence_of(frames, 0),
    "figure2": lambda frames: _convergence_of(frames, 1),
    "figure3a": lambda f: accuracy_by_contexts(tables.part(f.runs, "contexts"), f.table1, f.history, f.heuristic),
    "figure3b": lambda f: side_by_side(f.table1, f.history, f.methods),
    "figure4": lambda f: contexts_by_client(f.table1, f.assignments, f.contexts),
    "figure5a": lambda f: distances(f.table1, f.clustering),
    "figure5b": lambda f: kmeans_iterations(f.table1, f.clustering),
    "heuristic": lambda f: criterion(f.table1, f.heuristic),
    "mu": lambda f: contexts_by_mu(f.table1, f.heuristic),
}
NAMES = tuple(_FIGURES)
"""The figures of an experiment."""


def _convergence_of(frames: Frames, position: int) -> Figure:
    datasets = list(pd.unique(frames.runs["dataset"]))
    if position < len(datasets):
        return convergence(frames.table1, frames.history, datasets[position], frames.methods)
    ordinal = ("first", "second")[position]
    return note(
        f"Nothing to draw: figure {position + 1} shows the {ordinal} dataset, "
        f"and there is {'only ' + ', '.join(datasets) if datasets else 'none'}."
    )


def _headline(runs: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """The history of each run's headline model, with test accuracy as `percent`, up to divergence."""
    rows = tables.with_runs(runs, history)
    rows = rows[rows["headline"].astype(bool)]
    loss = rows["train_loss"].where(~rows["diverged"].astype(bool))
    return rows.assign(percent=tables.percent(rows, "accuracy"), train_loss=loss)


def _final(runs: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    results = tables.results_by_run(runs, history)
    return results[results["headline"].astype(bool)]


def _first_setting(runs: pd.DataFrame, method: str) -> pd.DataFrame:
    """The runs of a method with the first of its labels."""
    runs = runs[runs["method"] == method]
    return runs[runs["label"] == runs["label"].iloc[0]] if len(runs) else runs


def _last_choice(heuristic: pd.DataFrame) -> pd.DataFrame:
    """The criterion in the last round in which each run chose its number of contexts."""
    return heuristic[heuristic["round"] == heuristic.groupby("run")["round"].transform("max")]


def _pairs(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """The datasets and models, in their first order."""
    pairs = rows[["dataset", "model"]].drop_duplicates()
    return list(zip(pairs["dataset"], pairs["model"], strict=True))


def _of(rows: pd.DataFrame, pair: tuple[str, str]) -> pd.DataFrame:
    return rows[(rows["dataset"] == pair[0]) & (rows["model"] == pair[1])]


def _panels(rows: pd.DataFrame, height: float = 2.1) -> tuple[Figure, dict[tuple[str, str], Axes]]:
    """A figure with a titled panel for each dataset and model of `rows`, two in a line."""
    pairs = _pairs(rows)
    columns = min(len(pairs), 2)
    lines = ceil(len(pairs) / columns)
    figure = Figure(figsize=(WIDTH * columns / 2, height * lines + 0.3))
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    for empty in axes[len(pairs) :]:
        empty.remove()
    for (dataset, model), panel in zip(pairs, axes, strict=False):
        panel.set_title(f"{dataset} / {model}")
    return figure, dict(zip(pairs, axes, strict=False))


def _label(panels: Mapping[tuple[str, str], Axes], x: str, y: str) -> None:
    """Labels the outer axes only: x below the lowest panel of each column, y on the left."""
    axes = list(panels.values())
    columns = min(len(axes), 2)
    for i, panel in enumerate(axes):
        if i % columns == 0:
            panel.set_ylabel(y)
        if i + columns >= len(axes):
            panel.set_xlabel(x)


def _looks(rows: pd.DataFrame, methods: Sequence[str]) -> dict[str, Look]:
    """Label -> look, in the order of `methods`; a method's further settings differ in lines and markers."""
    labels = rows[["method", "label"]].drop_duplicates()
    own = (method for method in methods if method not in LOOKS)
    known = {**LOOKS, **dict(zip(own, cycle(OWN_LOOKS), strict=False))}
    further: list[dict[str, Any]] = [
        {},
        {"fill": "none", "line": (0, (2, 1))},
        {"fill": "left", "line": (0, (4, 1, 1, 1, 1, 1))},
    ]
    return {
        label: replace(known[method], **further[i % len(further)])
        for method in methods
        for i, label in enumerate(labels.loc[labels["method"] == method, "label"])
    }


def _curves(
    panel: Axes, rows: pd.DataFrame, y: str, looks: Mapping[str, Look], x: str = "round", settled: str = ""
) -> None:
    """A curve for each label of `looks`.

    `settled`: `top` (or `bottom`) where curves of more than SHORT points rise (fall) fast and settle there: the limits
    then leave out what lies below (above) all that comes after the first tenth, so that differences between the curves
    can be seen.
    """
    means = [
        _curve(panel, rows[rows["label"] == label], y, look, x, position)
        for position, (label, look) in enumerate(looks.items())
    ]
    drawn = pd.concat([mean.dropna() for mean in means])
    if drawn.empty:
        panel.text(0.5, 0.5, "not recorded", transform=panel.transAxes, ha="center", va="center", color="0.4")
    elif settled and drawn.index.nunique() > SHORT:
        late = drawn[drawn.index >= drawn.index.min() + 0.1 * (drawn.index.max() - drawn.index.min())]
        low, high = (late.min(), drawn.max()) if settled == "top" else (drawn.min(), late.max())
        margin = 0.06 * (high - low) or 1.0
        panel.set_ylim(low - margin, high + margin)


def _curve(panel: Axes, rows: pd.DataFrame, y: str, look: Look, x: str = "round", position: int = 0) -> pd.Series:
    """Draws the mean over seeds of column `y` by `x` with its band, and returns it (NaN once a seed diverged)."""
    table = rows.pivot(index=x, columns="seed", values=y)
    mean, std = table.mean(axis=1, skipna=False), table.std(axis=1, ddof=1, skipna=False)
    _band(panel, mean, std, look, position)
    if "diverged" in rows and rows["diverged"].astype(bool).any():
        _crosses(panel, mean, look, x)
    return mean


def _band(panel: Axes, mean: pd.Series, std: pd.Series, look: Look, position: int = 0) -> None:
    """A curve of means by their index with a band of one standard deviation; markers differ with the position."""
    step = max(1, len(mean) // 8)
    every = (position * step // 5 % step, step) if len(mean) > 24 else None
    size = 6 if look.marker == "*" else 3.5
    panel.plot(
        mean.index,
        mean,
        color=look.colour,
        ls=look.line,
        marker=look.marker,
        fillstyle=look.fill,
        ms=size,
        markevery=every,
    )
    if std.notna().any():
        panel.fill_between(mean.index, mean - std, mean + std, color=look.colour, alpha=BAND, lw=0)


def _crosses(panel: Axes, mean: pd.Series, look: Look, x: str) -> None:
    """Marks divergence: at the end of a curve by round, and at the foot of the panel for a swept value."""
    cross: dict[str, Any] = {**CROSS, "color": look.colour}
    ends = mean.dropna().iloc[-1:]
    if x == "round" and len(ends):
        panel.plot(ends.index, ends, **cross)
    else:
        lost = mean.index[mean.isna()][: 1 if x == "round" else None]
        panel.plot(lost, np.full(len(lost), 0.03), transform=panel.get_xaxis_transform(), **cross)


def _cross_handle(rows: pd.DataFrame) -> list[Line2D]:
    return [Line2D([], [], label="diverged", **CROSS)] if rows["diverged"].astype(bool).any() else []


def _point(panel: Axes, x: float, mean: float, std: float, look: Look, number: bool = True) -> None:
    """A mean with its standard deviation and, if wanted, its number above; the word `diverged` where there is none."""
    if np.isnan(mean):
        panel.text(
            x,
            0.04,
            "diverged",
            transform=panel.get_xaxis_transform(),
            rotation=90,
            ha="center",
            va="bottom",
            color=look.colour,
            fontsize=7,
        )
        return
    spread = 0.0 if np.isnan(std) else std
    panel.errorbar(
        x,
        mean,
        spread,
        ls="",
        color=look.colour,
        marker=look.marker,
        fillstyle=look.fill,
        ms=8 if look.marker == "*" else 5,
        capsize=2,
        elinewidth=1,
    )
    if not number:
        return
    panel.annotate(
        f"{mean:.1f}",
        (x, mean + spread),
        (0, 4),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=7,
    )


def _handles(looks: Mapping[str, Look], line: bool = True) -> list[Line2D]:
    """What stands for each look in a legend."""
    return [
        Line2D(
            [],
            [],
            color=look.colour,
            ls=look.line if line else "",
            marker=look.marker,
            fillstyle=look.fill,
            ms=6 if look.marker == "*" else 3.5,
            label=label,
        )
        for label, look in looks.items()
    ]


def _legend(figure: Figure, handles: Sequence[Line2D | Patch]) -> None:
    """One legend above all panels: in one line if the figure's width allows, or else in columns."""
    lines = any(isinstance(handle, Line2D) and handle.get_linestyle() != "None" for handle in handles)
    length = 2.8 if lines else 1.2
    widths = [0.063 * len(str(handle.get_label())) + 0.11 * length + 0.3 for handle in handles]
    width = figure.get_figwidth()
    columns = len(handles) if sum(widths) < width else max(1, int(width / max(widths)))
    columns = ceil(len(handles) / ceil(len(handles) / columns))  # no line much shorter than the others
    figure.legend(handles=handles, loc="outside upper center", ncols=columns, handlelength=length)


def _context_colours(count: int) -> list[str]:
    """CONTEXT_COLOURS, then the same lighter, then duller, and so on again."""
    shades = [np.array([to_rgb(colour) for colour in CONTEXT_COLOURS])]
    shades += [0.5 + shades[0] / 2, 0.2 + shades[0] * 0.6]
    colours = [to_hex(colour) for colour in np.concatenate(shades)]
    return [colours[k % len(colours)] for k in range(count)]


def _mark_groups(panel: Axes, groups: pd.Series, named: bool) -> None:
    """White lines between groups of consecutive rows, with the groups' names as tick labels if `named`."""
    starts = np.flatnonzero(np.diff(groups, prepend=groups.iloc[0] - 1))
    for start in starts[1:]:
        panel.axhline(start - 0.5, color="white", lw=0.9)
    middles = (starts + np.append(starts[1:], len(groups)) - 1) / 2
    names = [f"{name:.0f}" for name in groups.iloc[starts]]
    panel.set_yticks(middles if named else [], names if named else [])
    panel.tick_params(axis="y", length=0)
