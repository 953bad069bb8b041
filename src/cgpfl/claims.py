"""Claims: each checkable statement of the paper, and some that it lacks, put to the test on an experiment's runs.

A statement becomes comparisons: differences between two numbers of the same dataset, model and seed (same partition,
initial weights and minibatch streams). A comparison is confirmed by a one-sided paired t-test over seeds at LEVEL,
with Holm's correction over all comparisons of the statement; beside it stands for how many seeds the difference is
positive. A statement *holds* where all its comparisons are confirmed, holds *in part* where some are, and is *not
tested* where its runs are missing or there is one seed only. A few statements have no second number to compare with;
they are judged by thresholds that stand in their test.

Everything is a pure function of frames. Accuracies are final test accuracies of headline models, in percent; a run
that diverged counts as 0. Whatever part of the runs is there is used, and every claim is always a row.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from cgpfl import tables
from cgpfl.results import Frames
from cgpfl.tables import MAIN

LEVEL = 0.05
MARGIN = 0.5
"""Points within which two accuracies count as equally good."""
TUNED = "tuned"
"""The name of the tuned methods' runs among an experiment's parts."""
SPREAD = 1e-9
"""Differences nearer to each other than this are equal."""
COLUMNS = ["id", "where", "statement", "test", "numbers", "verdict"]
HOLDS, PARTLY, FAILS, UNTESTED = "holds", "holds in part", "does not hold", "not tested"

COMPETITORS = ("fedavg", "ifca[contexts=4]", "l2sgd", "apfl", "perfedavg", "pfedme", "ditto")
OURS = ("cgpfl[contexts=4]", "cgpfl_heur")
SHARES = (0.9, 0.95, 0.99)
"""Of a competitor's final accuracy: the levels at which speeds are compared."""
SETTLED, FEW_ITERATIONS, FIRST_ROUNDS = 0.01, 5, 10

Parts = Mapping[str, Frames]
Values = pd.Series
"""A number by dataset/model (level `pair`) and seed (level `seed`)."""


@dataclass(frozen=True)
class Comparison:
    """Differences over seeds: mean and number of them, how many are positive, and the p-value of mean > 0."""

    name: str
    mean: float
    seeds: int
    positive: int
    p: float


@dataclass(frozen=True)
class Claim:
    """A statement, where it stands, how it was tested, what came out, and the verdict."""

    id: str
    where: str
    statement: str
    test: str
    numbers: str = ""
    verdict: str = UNTESTED


def compare(name: str, differences: Iterable[float], margin: float = 0.0) -> Comparison:
    """Differences of paired numbers, one a seed, tested against mean > -margin (one-sided t-test).

    p is NaN for a single seed; for equal differences, which have no spread, 0 or 1.
    """
    values = np.asarray(list(differences), dtype=float)
    shifted = values + margin
    if len(values) < 2:
        p = math.nan
    elif np.ptp(shifted) < SPREAD:
        p = float(shifted[0] < SPREAD)
    else:
        p = float(stats.ttest_1samp(shifted, 0.0, alternative="greater").pvalue)
    return Comparison(name, float(values.mean()), len(values), int((shifted > 0).sum()), p)


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm 1979): to be compared with the level, in the given order."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate([(len(order) - i) * p_values[k] for i, k in enumerate(order)])
    return [float(p) for p in np.minimum(corrected, 1.0)]


def judged(claim: Claim, comparisons: Sequence[Comparison], unit: str = "") -> Claim:
    """A claim with the numbers of its comparisons and the verdict on them."""
    tested = [each for each in comparisons if not math.isnan(each.p)]
    corrected = dict(zip((each.name for each in tested), holm([each.p for each in tested]), strict=True))
    confirmed = sum(p < LEVEL for p in corrected.values())
    verdict = UNTESTED if not tested else HOLDS if confirmed == len(tested) else PARTLY if confirmed else FAILS
    texts = [_told(each, corrected.get(each.name), unit) for each in comparisons]
    return _with(claim, texts, verdict)


def _told(each: Comparison, p: float | None, unit: str) -> str:
    tail = "" if p is None else f", p {p:.2g}"
    return f"{each.name} {each.mean:+.2f}{unit} ({each.positive} of {each.seeds} seeds{tail})"


def _with(claim: Claim, texts: Sequence[str], verdict: str) -> Claim:
    return replace(claim, numbers="; ".join(texts), verdict=verdict)


# --- numbers of runs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Results:
    """One part of an experiment: its runs, and their numbers by method and tested model."""

    frames: Frames
    finals: pd.DataFrame = field(repr=False)

    @classmethod
    def of(cls, frames: Frames | None, part: str = "table1") -> "Results":
        """The runs of a part (`table1` or a sweep); none if there are no frames."""
        if frames is None or frames["runs"].empty:
            return cls({}, pd.DataFrame(columns=["pair", "label", "tested", "headline", "seed", "final"]))
        runs = frames["runs"]
        runs = tables.comparable(runs) if part == "table1" else tables.labelled_by_contexts(tables.part(runs, part))
        finals = tables.results_by_run(runs, frames["history"])
        return cls(
            frames, finals.assign(pair=finals["dataset"] + "/" + finals["model"], final=finals["final"].fillna(0))
        )

    @property
    def headlines(self) -> pd.DataFrame:
        """The rows of the models that methods are judged by."""
        return self.finals[self.finals["headline"].astype(bool)]

    def accuracy(self, label: str, tested: str | None = None) -> Values:
        """Final accuracy of a method's headline, or another tested, model."""
        rows = self.finals if tested else self.headlines
        rows = rows[rows["tested"] == tested] if tested else rows
        return _by_seed(rows[rows["label"] == label], "final")

    def history(self, rows: pd.DataFrame) -> pd.DataFrame:
        """All evaluated rounds of the runs and tested models of `rows`, with their pair and accuracy in percent."""
        names = rows[["run", "tested", "pair"]]
        history = self.frames["history"].merge(names, on=["run", "tested"])
        return history.assign(percent=tables.percent(history, "accuracy")).sort_values("round", kind="stable")


def _by_seed(rows: pd.DataFrame, column: str) -> Values:
    return rows.set_index(["pair", "seed"])[column].astype(float)


def differences(first: Values, second: Values, margin: float = 0.0) -> list[Comparison]:
    """First less second for each dataset and model, over the seeds that both have."""
    both = (first - second).dropna()
    return [compare(str(pair), values, margin) for pair, values in both.groupby(level="pair", sort=False)]


# --- the claims ---------------------------------------------------------------------------------------------------


def claims(parts: Parts, changes: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """All claims with their verdicts, a row each, columns COLUMNS.

    Args:
        parts: by name, the frames of the main experiment (MAIN), of the tuned methods (TUNED) and of studies, as far
            as they are there.
        changes: by study, the settings in which it differs from the main experiment (`Experiment.changes`).
    """
    main, tuned = Results.of(parts.get(MAIN)), Results.of(parts.get(TUNED))
    lam, contexts = Results.of(parts.get(MAIN), "lam"), Results.of(parts.get(MAIN), "contexts")
    studies = {name: (Results.of(parts.get(name)), set(changes[name])) for name in changes}
    found = [
        *_beats_competitors(main, "shared"),
        *_beats_competitors(tuned, "tuned"),
        *_gains_for_every_lambda(lam),
        _inner_optimum(contexts),
        _heur_is_near_the_optimum(main, contexts),
        *_faster(main),
        _clustering_settles(main),
        _kmeans_is_quick(main),
        *_speeds_up_with_contexts(contexts),
        *_beats_baselines(main, "shared"),
        *_beats_baselines(tuned, "tuned"),
        _heur_matches_oracle(main),
        *_theta_against_local_copy(main),
        *_partitions(main, studies),
        *_amounts_of_data(studies),
    ]
    return pd.DataFrame([asdict(claim) for claim in found], columns=COLUMNS)


def _beats(own: Results, label: str, other: str, claim: Claim) -> Claim:
    return judged(claim, differences(own.accuracy(label), own.accuracy(other)))


def _more_accurate(own: Results, label: str, other: str, where: str, setting: str) -> Claim:
    claim = Claim(
        f"{label} > {other}, {setting}",
        where,
        f"{label} is more accurate than {other}",
        f"final accuracy, {setting} settings, paired over seeds",
    )
    return _beats(own, label, other, claim)


def _beats_competitors(own: Results, setting: str) -> list[Claim]:
    found = [_more_accurate(own, label, other, "table 1", setting) for label in OURS for other in COMPETITORS]
    heur = _more_accurate(own, "cgpfl_heur", "cgpfl[contexts=4]", "table 1", setting)
    return [*found, replace(heur, statement="CGPFL-Heur is more accurate than CGPFL with K=4")]


def _beats_baselines(own: Results, setting: str) -> list[Claim]:
    return [
        _more_accurate(own, label, other, "not in the paper", setting)
        for label in OURS
        for other in ("local", "fedavg_ft")
    ]


def _heur_matches_oracle(own: Results) -> Claim:
    claim = Claim(
        "cgpfl_heur = cgpfl_oracle",
        "not in the paper",
        f"contexts found by CGPFL-Heur cost less than {MARGIN:g} points against the partition's true ones",
        f"final accuracy of cgpfl_heur less cgpfl_oracle's, above -{MARGIN:g} points",
    )
    return judged(claim, differences(own.accuracy("cgpfl_heur"), own.accuracy("cgpfl_oracle"), MARGIN))


def _gains_for_every_lambda(sweep: Results) -> list[Claim]:
    rows = sweep.headlines
    found = []
    for label in ("cgpfl[contexts=2]", "cgpfl[contexts=4]", "cgpfl_heur"):
        claim = Claim(
            f"{label} > pfedme, every lambda",
            "table 2",
            f"{label} is more accurate than pFedMe whatever lambda",
            "final accuracy at each lambda, paired over seeds",
        )
        own, other = (_at(rows[rows["label"] == each], "lam") for each in (label, "pfedme"))
        found.append(judged(claim, _at_each(own - other, "lambda")))
    return found


def _at(rows: pd.DataFrame, parameter: str) -> Values:
    """Final accuracy by pair, value of a parameter, and seed."""
    if rows.empty:
        return pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[], [], []], names=["pair", "at", "seed"]))
    return rows.rename(columns={parameter: "at"}).set_index(["pair", "at", "seed"])["final"].astype(float)


def _at_each(values: Values, name: str) -> list[Comparison]:
    groups: Any = values.dropna().groupby(level=["pair", "at"], sort=True)
    return [compare(f"{pair} {name} {at:g}", own) for (pair, at), own in groups]


def _curve(sweep: Results) -> Values:
    rows = sweep.headlines
    return _at(rows[rows["method"] == "cgpfl"] if len(rows) else rows, "contexts")


def _best(curve: Values) -> dict[str, float]:
    """For each pair, the K with the highest mean accuracy."""
    means: Any = curve.groupby(level=["pair", "at"]).mean()
    return {str(pair): float(own.idxmax()[1]) for pair, own in means.groupby(level="pair", sort=False)}


def _inner_optimum(sweep: Results) -> Claim:
    claim = Claim(
        "inner optimum of K",
        "figure 3a",
        "accuracy against K has its optimum between K=1 and the largest K",
        "final accuracy at the best K less that at the smallest and at the largest, paired over seeds",
    )
    curve = _curve(sweep)
    comparisons = []
    for pair, best in _best(curve).items():
        own = curve[pair].unstack("at")
        for end in (own.columns.min(), own.columns.max()):
            comparisons.append(compare(f"{pair} K={best:g} to K={end:g}", own[best] - own[end]))
    return judged(claim, comparisons)


def _heur_is_near_the_optimum(main: Results, sweep: Results) -> Claim:
    claim = Claim(
        "cgpfl_heur near optimum",
        "figure 3a",
        f"CGPFL-Heur's accuracy is within {MARGIN:g} points of that of the best K",
        f"final accuracy of cgpfl_heur less that of cgpfl at the best K, above -{MARGIN:g} points, paired over seeds",
    )
    curve, heur = _curve(sweep), main.accuracy("cgpfl_heur")
    best = _best(curve)
    at_best = [curve.xs((pair, k), level=("pair", "at"), drop_level=False).droplevel("at") for pair, k in best.items()]
    comparisons = differences(heur, pd.concat(at_best), MARGIN) if at_best and len(heur) else []
    chosen = main.headlines[main.headlines["label"] == "cgpfl_heur"]
    told = judged(claim, comparisons)
    numbers = [told.numbers] if told.numbers else []
    for pair, k in best.items():
        own = sorted(chosen.loc[chosen["pair"] == pair, "contexts_chosen"].astype(int)) if len(chosen) else []
        numbers.append(f"{pair}: best K {k:g}, chosen {', '.join(map(str, own)) or 'none'}")
    return _with(claim, numbers, told.verdict)


def _rounds_to(history: pd.DataFrame, goals: Values) -> Values:
    """The first evaluated round at which each pair and seed has reached its goal; the one after the last, if never."""
    rows = history.join(goals.rename("goal"), on=["pair", "seed"])
    reached = rows[rows["percent"] >= rows["goal"]].groupby(["pair", "seed"])["round"].min()
    never = rows.groupby(["pair", "seed"])["round"].max() + 1
    return reached.reindex(never.index).fillna(never)[rows.groupby(["pair", "seed"])["goal"].first().notna()]


def _faster(own: Results) -> list[Claim]:
    rows = own.headlines
    found = []
    for label in OURS:
        for other in ("pfedme", "ditto", "perfedavg"):
            claim = Claim(
                f"{label} faster than {other}",
                "figures 1 and 2",
                f"{label} converges faster than {other}",
                f"rounds until {', '.join(f'{share:.0%}' for share in SHARES)} of {other}'s final accuracy: {other}'s "
                f"less {label}'s, paired over seeds",
            )
            comparisons = []
            if {label, other} <= set(rows["label"]):
                ours, theirs = (own.history(rows[rows["label"] == each]) for each in (label, other))
                for share in SHARES:
                    goals = share * own.accuracy(other)
                    saved = differences(_rounds_to(theirs, goals), _rounds_to(ours, goals))
                    comparisons += [replace(each, name=f"{each.name} at {share:.0%}") for each in saved]
            found.append(judged(claim, comparisons, " rounds"))
    return found


def _clustering(own: Results) -> pd.DataFrame:
    """Rounds of k-means of cgpfl with K=4, with their pair."""
    rows = own.headlines
    rows = rows[rows["label"] == "cgpfl[contexts=4]"]
    if rows.empty:
        return pd.DataFrame(columns=["pair", "round", "moved", "kmeans_iterations"])
    return own.frames["clustering"].merge(rows[["run", "pair"]], on="run")


def _by_threshold(claim: Claim, told: Mapping[str, tuple[float, str]], most: float) -> Claim:
    """A claim whose number, by pair, must be at most `most`."""
    fine = [value <= most for value, _ in told.values()]
    verdict = UNTESTED if not fine else HOLDS if all(fine) else PARTLY if any(fine) else FAILS
    return _with(claim, [f"{pair} {text}" for pair, (_, text) in told.items()], verdict)


def _clustering_settles(own: Results) -> Claim:
    claim = Claim(
        "clustering settles",
        "figure 4",
        "clients stop changing their context",
        f"cgpfl with K=4: share of clients that change context in a round of the last quarter is at most {SETTLED:.0%}",
    )
    told = {}
    for pair, rows in _clustering(own).groupby("pair", sort=False):
        quarter = rows["round"].max() / 4
        first, last = (rows[mask]["moved"].mean() for mask in (rows["round"] <= quarter, rows["round"] > 3 * quarter))
        told[str(pair)] = (last, f"{first:.1%} in the first quarter, {last:.1%} in the last")
    return _by_threshold(claim, told, SETTLED)


def _kmeans_is_quick(own: Results) -> Claim:
    claim = Claim(
        "k-means is quick",
        "figure 5b",
        "k-means takes few iterations after the first rounds",
        f"cgpfl with K=4: mean iterations after round {FIRST_ROUNDS} are at most {FEW_ITERATIONS}",
    )
    rows = _clustering(own)
    late = rows[rows["round"] > FIRST_ROUNDS].groupby("pair", sort=False)["kmeans_iterations"]
    told = {str(pair): (own.mean(), f"mean {own.mean():.1f}, most {own.max():.0f}") for pair, own in late}
    return _by_threshold(claim, told, FEW_ITERATIONS)


def _speeds_up_with_contexts(sweep: Results) -> list[Claim]:
    rows = sweep.headlines
    rows = rows[rows["method"] == "cgpfl"] if len(rows) else rows
    ratios: dict[float, Values] = {}
    if len(rows) and (rows["contexts"] == 1).any():
        goals = _by_seed(rows[rows["contexts"] == 1], "final")
        rounds: dict[Any, Any] = {k: _rounds_to(sweep.history(own), goals) for k, own in rows.groupby("contexts")}
        ratios = {float(k): np.log2(rounds[1] / own) for k, own in rounds.items() if k in (2, 4, 8)}
    found = []
    for name, statement, exponent in (
        ("faster with K", "more contexts take fewer rounds", 0.0),
        ("faster by sqrt(K)", "K contexts are sqrt(K) times faster", 0.5),
    ):
        claim = Claim(
            name,
            "theorem 4.1",
            statement,
            "rounds until the final accuracy of K=1, of K=1 less those of K in powers of two, "
            f"minus {exponent:g} log2 K, for K=2, 4, 8; the theorem is about gradients, which this only reflects",
        )
        comparisons = [
            replace(each, name=f"{each.name} K={k:g}")
            for k, values in ratios.items()
            for each in differences(values, 0 * values + exponent * math.log2(k))
        ]
        found.append(judged(claim, comparisons))
    return found


def _theta_against_local_copy(own: Results) -> list[Claim]:
    return [
        judged(
            Claim(
                f"{label}: personal > local",
                "not in the paper",
                f"the personal model of {label} is more accurate than its local copy",
                "final accuracy of the two tested models, paired over seeds",
            ),
            differences(own.accuracy(label, "personal"), own.accuracy(label, "local")),
        )
        for label in ("pfedme", *OURS)
    ]


def _partitions(main: Results, studies: Mapping[str, tuple[Results, set[str]]]) -> list[Claim]:
    """For studies with another scheme of partition: whether contexts still gain, and as much."""
    found = []
    for name, (own, changed) in studies.items():
        if "partition.scheme" not in changed:
            continue
        for other in ("pfedme", "local"):
            claim = Claim(
                f"{name}: cgpfl[contexts=4] > {other}",
                "not in the paper",
                f"with partition {name}, CGPFL (K=4) is more accurate than {other}",
                "final accuracy, paired over seeds",
            )
            found.append(_beats(own, "cgpfl[contexts=4]", other, claim))
        claim = Claim(
            f"{name}: smaller gain",
            "not in the paper",
            f"with partition {name}, CGPFL (K=4) gains less over pFedMe than in the main experiment",
            "difference of the gains, paired over seeds",
        )
        gains = [part.accuracy("cgpfl[contexts=4]") - part.accuracy("pfedme") for part in (main, own)]
        found.append(judged(claim, differences(gains[0], gains[1])))
    return found


def _amounts_of_data(studies: Mapping[str, tuple[Results, set[str]]]) -> list[Claim]:
    """For studies with less training data: whether contexts beat training alone."""
    names = [name for name, (_, changed) in studies.items() if changed == {"partition.train_share"}]
    return [
        _beats(
            studies[name][0],
            label,
            "local",
            Claim(
                f"{name}: {label} > local",
                "not in the paper",
                f"with the training data of study {name}, {label} is more accurate than training alone",
                "final accuracy, paired over seeds",
            ),
        )
        for name in names
        for label in ("cgpfl[contexts=4]", "cgpfl[contexts=10]", "cgpfl_oracle")
    ]


def to_markdown(table: pd.DataFrame) -> str:
    """The claims as a Markdown page: the verdicts counted, then a table."""
    counts = table["verdict"].value_counts()
    counted = ", ".join(
        f"{counts[verdict]} {verdict}" for verdict in (HOLDS, PARTLY, FAILS, UNTESTED) if verdict in counts
    )
    head = ["| claim | where | verdict | numbers |", "| :-- | :-- | :-- | :-- |"]
    lines = [
        f"| {row.statement} | {row.where} | {row.verdict} | {row.numbers} |" for row in table.itertuples(index=False)
    ]
    return "\n".join([f"{len(table)} claims: {counted}.", "", *head, *lines, ""])
