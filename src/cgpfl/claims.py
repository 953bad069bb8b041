"""Claims: each checkable statement of the paper, and some that it lacks, put to the test on an experiment's runs.

A statement becomes comparisons: differences between two numbers of the same dataset, model and seed (same partition,
initial weights and minibatch streams), each with a one-sided paired t-test over seeds at LEVEL; beside its p-value
stands for how many seeds the difference is positive. A statement *holds* where every comparison is significant: an
intersection-union test, whose level is that of its parts, so that p-values need no correction. Where some are not, it
takes Holm's correction over the comparisons to say which hold: with any of them the statement holds *in part*. The
same tests of the opposite, with the same correction, say for which comparisons the opposite holds: with any of them,
and none for the statement, it *does not hold*; with none of either it is *undecided*. A statement is *not tested* where
its runs are missing or there is one seed only. A few statements have no second number to compare with; they are
judged by thresholds that stand in their test, on a single seed too.

Everything is a pure function of frames. Accuracies are final test accuracies of headline models, in percent; a run
that diverged counts as 0. Whatever part of the runs is there is used, and every claim is always a row.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, product
from operator import itemgetter
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from cgpfl import tables
from cgpfl.partition import has_contexts
from cgpfl.results import Frames
from cgpfl.tables import MAIN, TUNED

LEVEL = 0.05
MARGIN = 0.5
"""Points within which two accuracies count as equally good."""
SPREAD = 1e-9
"""Differences nearer to each other than this are equal."""
COLUMNS = ["id", "where", "statement", "test", "numbers", "verdict"]
HOLDS, PARTLY, FAILS, UNDECIDED = "holds", "holds in part", "does not hold", "undecided"
UNTESTED = "not tested"

COMPETITORS = ("fedavg", "ifca[contexts=4]", "l2sgd", "apfl", "perfedavg", "pfedme", "ditto")
OURS = ("cgpfl[contexts=4]", "cgpfl_heur")
ORACLE = "cgpfl_oracle"
NAMES = {
    "local": "training alone",
    "fedavg": "FedAvg",
    "fedavg_ft": "fine-tuned FedAvg",
    "ifca[contexts=4]": "IFCA (K=4)",
    "l2sgd": "L2SGD",
    "apfl": "APFL",
    "perfedavg": "Per-FedAvg",
    "pfedme": "pFedMe",
    "ditto": "Ditto",
    "cgpfl[contexts=2]": "CGPFL (K=2)",
    "cgpfl[contexts=4]": "CGPFL (K=4)",
    "cgpfl[contexts=10]": "CGPFL (K=10)",
    "cgpfl_heur": "CGPFL-Heur",
    ORACLE: "CGPFL with the true contexts",
}
"""Labels of methods -> their names in statements."""
SETTINGS = {"shared": "all with the same settings", "tuned": "each tuned"}
SHARES = (0.9, 0.95, 0.99)
"""Of a competitor's final accuracy: the levels at which speeds are compared."""
_SHARES = ", ".join(f"{share:.0%}" for share in SHARES)
SLACK = 5
"""Rounds within which two methods count as equally fast: from one evaluation to the next, in the paper's experiment."""
SETTLED, FEW_ITERATIONS, FIRST_ROUNDS = 0.01, 5, 10
STABLE = 0.05
"""The most by which a stable distance changes from the third to the last quarter of the rounds, of itself."""
SHOWN = 8
"""The most comparisons that the page on claims tells one by one."""
LEARNED, FIRST_SHARE = 0.9, 0.1
"""Contexts are learned where `agreement` is at least the first, from the second of the rounds on."""

Parts = Mapping[str, Frames]
Values = pd.Series
"""A number by dataset/model (level `pair`) and seed (level `seed`)."""
Changes = Mapping[str, Mapping[str, Any]]
"""By study, the settings in which it differs from the main experiment (`Experiment.changes`)."""


@dataclass(frozen=True)
class Comparison:
    """Differences over seeds: mean and number of them, how many are positive, p-values of mean > 0 and of mean < 0."""

    name: str
    mean: float
    seeds: int
    positive: int
    p: float
    opposite: float


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
    """Differences of paired numbers, one a seed, tested against mean > -margin, and against the opposite.

    Where both sides are the same number for every seed, as where they are one run, they are within a margin for
    certain.
    """
    values = np.asarray(list(differences), dtype=float)
    shifted = values + margin
    same = margin > 0 and len(values) > 1 and bool(np.abs(values).max() < SPREAD)
    p_values = (0.0, 1.0) if same else _one_sided(shifted)
    return Comparison(name, float(values.mean()), len(values), int((shifted > 0).sum()), *p_values)


def _one_sided(values: NDArray[np.float64]) -> tuple[float, float]:
    """The p-values of mean > 0 and of mean < 0, by t-tests.

    NaN for a single value. Equal values have no spread to test with: they count by their sign, p = 0.5**n.
    """
    if len(values) < 2:
        return math.nan, math.nan
    if np.ptp(values) < SPREAD:
        mean, bound = values.mean(), 0.5 ** len(values)
        return bound if mean > SPREAD else 1.0, bound if mean < -SPREAD else 1.0
    p = float(stats.ttest_1samp(values, 0.0, alternative="greater").pvalue)
    return p, 1 - p


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values corrected for their number (Holm 1979): to be compared with the level, in the given order."""
    order = np.argsort(p_values, kind="stable")
    corrected = np.empty(len(order))
    corrected[order] = np.maximum.accumulate([(len(order) - i) * p_values[k] for i, k in enumerate(order)])
    return [float(p) for p in np.minimum(corrected, 1.0)]


def significant(p_values: Sequence[float]) -> list[bool]:
    """Which of several null hypotheses are rejected: all, where each is by itself, or else by Holm's correction."""
    if all(p < LEVEL for p in p_values):
        return [True] * len(p_values)
    return [p < LEVEL for p in holm(p_values)]


def judged(claim: Claim, comparisons: Sequence[Comparison], unit: str = "") -> Claim:
    """A claim with the numbers of its comparisons and the verdict on them."""
    tested = [each for each in comparisons if not math.isnan(each.p)]
    confirmed = _names(tested, [each.p for each in tested])
    refuted = _names(tested, [each.opposite for each in tested])
    verdict = _verdict(len(confirmed), len(tested))
    if verdict == FAILS and not refuted:
        verdict = UNDECIDED
    texts = [_told(each, unit) for each in comparisons]
    if verdict in (PARTLY, FAILS):
        texts.append(_which(confirmed, refuted, len(tested)))
    return _with(claim, texts, verdict)


def _names(tested: Sequence[Comparison], p_values: Sequence[float]) -> list[str]:
    return [each.name for each, found in zip(tested, significant(p_values), strict=True) if found]


def _verdict(fine: int, of: int) -> str:
    return UNTESTED if not of else HOLDS if fine == of else PARTLY if fine else FAILS


def _told(each: Comparison, unit: str) -> str:
    tail = "" if math.isnan(each.p) else f", p {each.p:.2g}"
    return f"{each.name} {each.mean:+.2f}{unit} ({each.positive} of {each.seeds} seeds{tail})"


def _which(confirmed: Sequence[str], refuted: Sequence[str], of: int) -> str:
    """For which comparisons a claim holds, and for which its opposite."""
    holding = [f"holds for {', '.join(confirmed)}"] if confirmed else []
    opposite = [f"the opposite holds for {'all' if len(refuted) == of else ', '.join(refuted)}"] if refuted else []
    return "; ".join([*holding, *opposite])


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
        runs = tables.comparable(frames["runs"], part)
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


def claims(parts: Parts, changes: Changes) -> pd.DataFrame:
    """All claims with their verdicts, a row each, columns COLUMNS.

    Args:
        parts: by name, the frames of the main experiment (MAIN), of the tuned methods (TUNED) and of studies, as far
            as they are there.
        changes: by study, what it sets otherwise. A study that sets nothing otherwise has all its training data.
    """
    main, tuned = Results.of(parts.get(MAIN)), Results.of(parts.get(TUNED))
    lam, contexts = Results.of(parts.get(MAIN), "lam"), Results.of(parts.get(MAIN), "contexts")
    studies = {name: Results.of(parts.get(name)) for name in changes}
    found = [
        *_beats_competitors(main, "shared"),
        *_beats_competitors(tuned, "tuned"),
        *_gains_for_every_lambda(lam),
        _inner_optimum(contexts),
        _heur_is_near_the_optimum(main, contexts),
        _heur_chooses_well(main, contexts),
        *_faster(main),
        _heur_is_no_slower(main),
        *(_contexts_are_learned(main, label) for label in OURS),
        _clustering_settles(main),
        _distances_become_stable(main),
        _kmeans_is_quick(main),
        *_speeds_up_with_contexts(contexts),
        *_beats_baselines(main, "shared"),
        *_beats_baselines(tuned, "tuned"),
        _heur_matches_oracle(main),
        *_theta_against_local_copy(main),
        *_gains_as_local_copy(main),
        *_partitions(main, studies, changes),
        *_amounts_of_data(studies, changes),
    ]
    return pd.DataFrame([asdict(claim) for claim in found], columns=COLUMNS)


def _beats(own: Results, label: str, other: str, claim: Claim) -> Claim:
    return judged(claim, differences(own.accuracy(label), own.accuracy(other)))


def _more_accurate(own: Results, label: str, other: str, where: str, setting: str) -> Claim:
    claim = Claim(
        f"{label} > {other}, {setting}",
        where,
        f"{NAMES[label]} is more accurate than {NAMES[other]}, {SETTINGS[setting]}",
        f"final accuracy, {setting} settings, paired over seeds",
    )
    return _beats(own, label, other, claim)


def _beats_competitors(own: Results, setting: str) -> list[Claim]:
    pairs = [*product(OURS, COMPETITORS), ("cgpfl_heur", "cgpfl[contexts=4]")]
    return [_more_accurate(own, label, other, "table 1", setting) for label, other in pairs]


def _beats_baselines(own: Results, setting: str) -> list[Claim]:
    pairs = [*product((*OURS, ORACLE), ("local", "fedavg_ft")), (ORACLE, "pfedme")]
    return [_more_accurate(own, label, other, "not in the paper", setting) for label, other in pairs]


def _heur_matches_oracle(own: Results) -> Claim:
    claim = Claim(
        "cgpfl_heur = cgpfl_oracle",
        "not in the paper",
        f"contexts found by CGPFL-Heur cost less than {MARGIN:g} points against the partition's true ones",
        f"final accuracy of CGPFL-Heur less that of {NAMES[ORACLE]}, above -{MARGIN:g} points, paired over seeds",
    )
    return judged(claim, differences(own.accuracy("cgpfl_heur"), own.accuracy(ORACLE), MARGIN))


def _gains_for_every_lambda(sweep: Results) -> list[Claim]:
    rows = sweep.headlines
    if "lam" in rows:
        rows = rows[rows.groupby("pair")["lam"].transform("nunique") > 1]
    found = []
    for label in ("cgpfl[contexts=2]", "cgpfl[contexts=4]", "cgpfl_heur"):
        claim = Claim(
            f"{label} > pfedme, every lambda",
            "table 2",
            f"{NAMES[label]} is more accurate than pFedMe whatever lambda",
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


def _curves(sweep: Results) -> dict[str, pd.DataFrame]:
    """By pair, final accuracy by seed (rows) and K (columns), of the seeds that have every K."""
    rows = sweep.headlines
    curve = _at(rows[rows["method"] == "cgpfl"] if len(rows) else rows, "contexts")
    return {str(pair): own.droplevel("pair").unstack("at").dropna() for pair, own in curve.groupby("pair", sort=False)}


def _at_best(curve: pd.DataFrame) -> Values:
    """The accuracy of each seed at the K that is best on average over the other seeds.

    No seed is tested at a K that it had a part in choosing. Empty for a single seed.
    """
    if len(curve) < 2:
        return pd.Series(dtype=float)
    best = {seed: curve.drop(index=seed).mean().idxmax() for seed in curve.index}
    return pd.Series({seed: curve.loc[seed, k] for seed, k in best.items()}, dtype=float)


def _inner_optimum(sweep: Results) -> Claim:
    claim = Claim(
        "inner optimum of K",
        "figure 3a",
        "accuracy against K has its optimum between K=1 and the largest K",
        "final accuracy at the best K less that at the smallest and that at the largest, of which the larger p-value "
        "counts, paired over seeds; for each seed the K that is best over the other seeds",
    )
    comparisons = []
    for pair, curve in _curves(sweep).items():
        best = _at_best(curve)
        if len(best) and len(curve.columns) > 2:
            ends = (curve.columns.min(), curve.columns.max())
            both = [compare(f"{pair} best K to K={end:g}", best - curve[end]) for end in ends]
            comparisons.append(max(both, key=lambda each: each.p))
    return judged(claim, comparisons)


def _heur_is_near_the_optimum(main: Results, sweep: Results) -> Claim:
    claim = Claim(
        "cgpfl_heur near optimum",
        "figure 3a",
        f"CGPFL-Heur's accuracy is within {MARGIN:g} points of that of the best K",
        f"final accuracy of CGPFL-Heur less that of CGPFL at the best K, above -{MARGIN:g} points, paired over seeds; "
        "for each seed the K that is best over the other seeds",
    )
    best = {pair: _at_best(curve) for pair, curve in _curves(sweep).items()}
    if not best:
        return claim
    at_best = pd.concat(best, names=["pair", "seed"])
    return judged(claim, differences(main.accuracy("cgpfl_heur"), at_best, MARGIN))


def _heur_chooses_well(main: Results, sweep: Results) -> Claim:
    claim = Claim(
        "cgpfl_heur's K near best K",
        "figure 3a",
        "the K that CGPFL-Heur chooses is as good as the best K",
        "final accuracy of CGPFL at the best K less that at the K that CGPFL-Heur chose, mean over seeds: at most one "
        "standard error of the mean at the best K",
    )
    rows = main.headlines
    rows = rows[rows["label"] == "cgpfl_heur"]
    chosen = {} if rows.empty else _by_seed(rows, "contexts_chosen").to_dict()
    told = {}
    for pair, curve in _curves(sweep).items():
        ks = {seed: k for seed in curve.index if (k := chosen.get((pair, seed))) in curve.columns}
        if len(ks) > 1:
            told[pair] = _loss(curve.loc[list(ks)], pd.Series(ks))
    return _by_threshold(claim, told, 0.0)


def _loss(curve: pd.DataFrame, chosen: pd.Series) -> tuple[float, str]:
    """By how much the K chosen by seed lose more than a standard error against the best K; and in words."""
    best = curve[curve.mean().idxmax()]
    error = float(best.std(ddof=1)) / math.sqrt(len(best))
    lost = float(best.mean() - np.mean([curve[k][seed] for seed, k in chosen.items()]))
    ks = ", ".join(f"{k:g}" for k in sorted(chosen))
    return lost - error, f"best K {best.name:g}, chosen {ks}: {lost:.2f} points lost, standard error {error:.2f}"


def _rounds_to(history: pd.DataFrame, goals: Values) -> Values:
    """The first evaluated round at which each pair and seed has reached its goal; the one after the last, if never."""
    rows = history.join(goals.rename("goal"), on=["pair", "seed"])
    reached = rows[rows["percent"] >= rows["goal"]].groupby(["pair", "seed"])["round"].min()
    never = rows.groupby(["pair", "seed"])["round"].max() + 1
    return reached.reindex(never.index).fillna(never)[rows.groupby(["pair", "seed"])["goal"].first().notna()]


def _rounds_saved(own: Results, label: str, other: str, margin: float = 0.0) -> list[Comparison]:
    """Rounds until each of SHARES of the other method's final accuracy: the other's less those of `label`."""
    rows = own.headlines
    if not {label, other} <= set(rows["label"]):
        return []
    ours, theirs = (own.history(rows[rows["label"] == each]) for each in (label, other))
    found = []
    for share in SHARES:
        goals = share * own.accuracy(other)
        saved = differences(_rounds_to(theirs, goals), _rounds_to(ours, goals), margin)
        found += [replace(each, name=f"{each.name} at {share:.0%}") for each in saved]
    return found


def _faster(own: Results) -> list[Claim]:
    return [
        judged(
            Claim(
                f"{label} faster than {other}",
                "figures 1 and 2",
                f"{NAMES[label]} converges faster than {NAMES[other]}",
                f"rounds until {_SHARES} of the competitor's final accuracy: the competitor's less CGPFL's, paired "
                "over seeds",
            ),
            _rounds_saved(own, label, other),
            " rounds",
        )
        for label, other in product(OURS, ("pfedme", "ditto", "perfedavg"))
    ]


def _heur_is_no_slower(own: Results) -> Claim:
    claim = Claim(
        "cgpfl_heur no slower than cgpfl[contexts=4]",
        "section 4.4",
        f"{NAMES['cgpfl_heur']} converges no slower than {NAMES['cgpfl[contexts=4]']}",
        f"rounds until {_SHARES} of the final accuracy of CGPFL (K=4): those of CGPFL less those of CGPFL-Heur, above "
        f"-{SLACK} rounds, paired over seeds",
    )
    return judged(claim, _rounds_saved(own, "cgpfl_heur", "cgpfl[contexts=4]", SLACK), " rounds")


def agreement(found: NDArray[np.int64], true: NDArray[np.int64]) -> float:
    """How well clients of one true context are kept together: 1 where none is parted, 0 as often as by chance.

    Of all pairs of clients of one true context, the share that is in one found context; less the share of all pairs
    that is, and divided by 1 less that share (the adjusted index of Wallace). It forgives true contexts that are
    merged, as they must be where K is smaller than their number; 0 where all are merged. NaN without such pairs.
    """
    pairs = np.triu_indices(len(true), 1)
    together, same = ((each[:, None] == each)[pairs] for each in (found, true))
    if not same.any():
        return math.nan
    chance = float(together.mean())
    return 0.0 if chance == 1 else (float(together[same].mean()) - chance) / (1 - chance)


def _assigned(own: Results, label: str) -> pd.DataFrame:
    """The clients' contexts by round, of a method's runs, with their pair and seed."""
    rows = own.headlines
    rows = rows[rows["label"] == label]
    if rows.empty:
        return pd.DataFrame(columns=["pair", "seed", "round", "client", "context"])
    return own.frames["assignments"].merge(rows[["run", "pair", "seed"]], on="run")


def _agreements(own: Results, label: str) -> pd.Series:
    """The agreement of a method's contexts with the oracle's by pair, seed and round."""
    key = ["pair", "seed", "client"]
    true = _assigned(own, ORACLE).drop_duplicates(key)[[*key, "context"]].rename(columns={"context": "true"})
    found = _assigned(own, label)
    if found.empty or true.empty:
        return pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[], [], []], names=["pair", "seed", "round"]))
    both = found.merge(true, on=key)
    groups = both.groupby(["pair", "seed", "round"], sort=False)[["context", "true"]]
    return groups.apply(lambda own: agreement(own["context"].to_numpy(), own["true"].to_numpy())).dropna()


def _contexts_are_learned(own: Results, label: str) -> Claim:
    claim = Claim(
        f"{label}: contexts learned",
        "section 4.4",
        f"{NAMES[label]} learns the contexts in the first rounds",
        f"share of pairs of clients of one true context that are put together, corrected for chance: at least "
        f"{LEARNED:g} for every seed in every round once {FIRST_SHARE:.0%} of the rounds are done",
    )
    told = {}
    for pair, rows in _agreements(own, label).groupby("pair", sort=False):
        rounds = rows.index.get_level_values("round")
        start = FIRST_SHARE * rounds.max()
        first, least = rows[rounds == rounds.min()].mean(), rows[rounds >= start].min()
        told[str(pair)] = (-least, f"mean {first:.2f} in the first round, at least {least:.2f} from round {start:g} on")
    return _by_threshold(claim, told, -LEARNED)


def _clustering(own: Results) -> pd.DataFrame:
    """Rounds of k-means of cgpfl with K=4, with their pair."""
    rows = own.headlines
    rows = rows[rows["label"] == "cgpfl[contexts=4]"]
    if rows.empty:
        return pd.DataFrame(columns=["pair", "round", "moved", "kmeans_iterations", "between", "within"])
    return own.frames["clustering"].merge(rows[["run", "pair"]], on="run")


def _by_threshold(claim: Claim, told: Mapping[str, tuple[float, str]], most: float) -> Claim:
    """A claim whose number, by pair, must be at most `most`; NaN has not been found out."""
    told = {pair: own for pair, own in told.items() if not math.isnan(own[0])}
    fine = sum(value <= most for value, _ in told.values())
    return _with(claim, [f"{pair} {text}" for pair, (_, text) in told.items()], _verdict(fine, len(told)))


def _clustering_settles(own: Results) -> Claim:
    claim = Claim(
        "clustering settles",
        "figure 4",
        "clients stop changing their context",
        f"CGPFL (K=4): share of clients that change context in a round of the last quarter is at most {SETTLED:.0%}",
    )
    told = {}
    for pair, rows in _clustering(own).groupby("pair", sort=False):
        quarter = rows["round"].max() / 4
        first, last = (rows[mask]["moved"].mean() for mask in (rows["round"] <= quarter, rows["round"] > 3 * quarter))
        told[str(pair)] = (last, f"{first:.1%} in the first quarter, {last:.1%} in the last")
    return _by_threshold(claim, told, SETTLED)


def _distances_become_stable(own: Results) -> Claim:
    claim = Claim(
        "distances become stable",
        "figure 5a",
        "distances between models become stable",
        "CGPFL (K=4): mean distance between context models, and of clients to their own, over the last quarter of the "
        f"rounds, against that over the quarter before: changed by at most {STABLE:.0%}",
    )
    told = {}
    for pair, rows in _clustering(own).groupby("pair", sort=False):
        quarter = rows["round"].max() / 4
        third = rows[(rows["round"] > 2 * quarter) & (rows["round"] <= 3 * quarter)]
        last = rows[rows["round"] > 3 * quarter]
        for name in ("between", "within"):
            change = last[name].mean() / third[name].mean() - 1
            told[f"{pair} {name}"] = (abs(change), f"{change:+.2%}")
    return _by_threshold(claim, told, STABLE)


def _kmeans_is_quick(own: Results) -> Claim:
    claim = Claim(
        "k-means is quick",
        "figure 5b",
        "k-means takes few iterations after the first rounds",
        f"CGPFL (K=4): mean iterations after round {FIRST_ROUNDS} are at most {FEW_ITERATIONS}",
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
    for name, statement, exponent, goal in (
        ("faster with K", "more contexts take fewer rounds", 0.0, "0"),
        ("faster by sqrt(K)", "K contexts are sqrt(K) times faster", 0.5, "log2 sqrt(K)"),
    ):
        claim = Claim(
            name,
            "theorem 4.1",
            statement,
            "log2 of how many times faster K=2, 4, 8 are than K=1, in rounds until the final accuracy of K=1: above "
            f"{goal}, paired over seeds; the theorem is about gradients, which this only reflects",
        )
        comparisons = [
            replace(each, name=f"{each.name} K={k:g}")
            for k, values in ratios.items()
            for each in differences(values, 0 * values, -exponent * math.log2(k))
        ]
        found.append(judged(claim, comparisons))
    return found


def _theta_against_local_copy(own: Results) -> list[Claim]:
    return [
        judged(
            Claim(
                f"{label}: personal > local",
                "not in the paper",
                f"the personal model of {NAMES[label]} is more accurate than its local copy",
                "final accuracy of the two tested models, paired over seeds",
            ),
            differences(own.accuracy(label, "personal"), own.accuracy(label, "local")),
        )
        for label in ("pfedme", *OURS)
    ]


def _gains_as_local_copy(own: Results) -> list[Claim]:
    return [
        judged(
            Claim(
                f"{label} > pfedme, local copies",
                "not in the paper",
                f"{NAMES[label]} is more accurate than pFedMe where local copies are tested",
                "final accuracy of both methods' local copies, paired over seeds",
            ),
            differences(own.accuracy(label, "local"), own.accuracy("pfedme", "local")),
        )
        for label in OURS
    ]


def _partitions(main: Results, studies: Mapping[str, Results], changes: Changes) -> list[Claim]:
    """For studies with another scheme of partition: whether contexts still gain, and as much."""
    schemes = {name: own["partition.scheme"] for name, own in changes.items() if "partition.scheme" in own}
    return [
        claim
        for name, scheme in schemes.items()
        for claim in (
            *_gains_with_partition(name, studies[name], has_contexts(scheme)),
            _smaller_gain(name, main, studies[name]),
        )
    ]


def _gains_with_partition(name: str, own: Results, oracle: bool) -> list[Claim]:
    labels = ("cgpfl[contexts=4]", "cgpfl[contexts=10]", *([ORACLE] if oracle else []))
    return [
        _beats(
            own,
            label,
            other,
            Claim(
                f"{name}: {label} > {other}",
                "not in the paper",
                f"with partition {name}, {NAMES[label]} is more accurate than {NAMES[other]}",
                "final accuracy with this partition, paired over seeds",
            ),
        )
        for label, other in product(labels, ("pfedme", "local"))
    ]


def _smaller_gain(name: str, main: Results, own: Results) -> Claim:
    claim = Claim(
        f"{name}: smaller gain",
        "not in the paper",
        f"with partition {name}, CGPFL (K=4) gains less over pFedMe than in the main experiment",
        "final accuracy of CGPFL (K=4) less that of pFedMe: that of the main experiment less that with this partition, "
        "paired over seeds",
    )
    gains = [part.accuracy("cgpfl[contexts=4]") - part.accuracy("pfedme") for part in (main, own)]
    return judged(claim, differences(gains[0], gains[1]))


def _amounts_of_data(studies: Mapping[str, Results], changes: Changes) -> list[Claim]:
    """For studies with another share of the training data, or the same: whether contexts beat training alone."""
    shares = {
        name: f"{own['partition.train_share']:.0%} of the" if own else "all of the main experiment's"
        for name, own in changes.items()
        if set(own) <= {"partition.train_share"}
    }
    return [
        _beats(
            studies[name],
            label,
            "local",
            Claim(
                f"{name}: {label} > local",
                "not in the paper",
                f"with {share} training data, {NAMES[label]} is more accurate than training alone",
                "final accuracy with this share of each client's training samples, paired over seeds",
            ),
        )
        for (name, share), label in product(shares.items(), ("cgpfl[contexts=4]", "cgpfl[contexts=10]", ORACLE))
    ]


def to_markdown(table: pd.DataFrame) -> str:
    """The claims as a Markdown page: the verdicts counted; then those tested, a table for each test."""
    counts = table["verdict"].value_counts()
    verdicts = [verdict for verdict in (HOLDS, PARTLY, FAILS, UNDECIDED, UNTESTED) if verdict in counts]
    lines = [f"{len(table)} claims: {', '.join(f'{counts[verdict]} {verdict}' for verdict in verdicts)}.", ""]
    rows = table[table["verdict"] != UNTESTED].to_dict("records")
    for (where, test), own in groupby(rows, key=itemgetter("where", "test")):
        lines += [f"**{where[:1].upper()}{where[1:]}.** Tested: {test}.", ""]
        lines += ["| claim | verdict | numbers |", "| :-- | :-- | :-- |"]
        lines += [f"| {row['statement']} | {row['verdict']} | {_shortened(row['numbers'])} |" for row in own]
        lines.append("")
    return "\n".join(lines)


def _shortened(numbers: str) -> str:
    """The numbers of a claim; of more than SHOWN comparisons the least and the greatest."""
    texts = numbers.split("; ")
    compared = {text: float(found[1]) for text in texts if (found := re.search(r" ([+-]\d+\.\d+).* seeds", text))}
    if len(compared) <= SHOWN:
        return numbers
    ends = f"least {min(compared, key=compared.__getitem__)}, greatest {max(compared, key=compared.__getitem__)}"
    return "; ".join([f"{len(compared)} comparisons, {ends}", *(text for text in texts if text not in compared)])
