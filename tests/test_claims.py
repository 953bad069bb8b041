"""Claims on frames small enough to judge by hand."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest

from cgpfl import claims
from cgpfl.claims import FAILS, HOLDS, PARTLY, UNTESTED, Claim, Comparison, compare, holm, judged

CLAIM = Claim("a", "b", "c", "d")


def test_a_comparison_is_a_one_sided_paired_t_test():
    # mean 2, standard deviation 1, n 3: t = 2 sqrt(3) = 3.464, and p = 0.0371 with two degrees of freedom
    found = compare("x", [1, 2, 3])
    assert (found.mean, found.seeds, found.positive) == (2, 3, 3)
    assert found.p == pytest.approx(0.0371, abs=1e-4)
    assert compare("x", [-1, -2, -3]).p == pytest.approx(1 - 0.0371, abs=1e-4)
    near = compare("x", [-0.5, 0.5, 1.5], margin=1.5)  # as [1, 2, 3] against 0
    assert (near.mean, near.positive, near.p) == (0.5, 3, found.p)


def test_differences_without_spread_and_single_seeds():
    assert compare("x", [1, 1]).p == 0
    assert compare("x", [0, 0]).p == 1
    assert math.isnan(compare("x", [5]).p)


def test_holm_by_hand():
    # 3 x .01, 2 x .02, 1 x .03 raised to what came before
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("p_values", "verdict"),
    [
        ([0.01, 0.02], HOLDS),
        ([0.03, 0.03], FAILS),  # 2 x .03 is above .05
        ([0.01, 0.5], PARTLY),
        ([0.9], FAILS),
        ([math.nan], UNTESTED),
        ([], UNTESTED),
    ],
)
def test_verdicts(p_values, verdict):
    comparisons = [Comparison(f"pair{i}", 1.0, 3, 3, p) for i, p in enumerate(p_values)]
    assert judged(CLAIM, comparisons).verdict == verdict


def test_numbers_are_told_with_their_seeds():
    told = judged(CLAIM, [Comparison("mnist/mlr", 3.456, 5, 4, 0.0123), Comparison("mnist/dnn", -1, 1, 0, math.nan)])
    assert told.numbers == "mnist/mlr +3.46 (4 of 5 seeds, p 0.012); mnist/dnn -1.00 (0 of 1 seeds)"


FINALS = {"pfedme": 0.90, "local": 0.96, "cgpfl_heur": 0.955, "cgpfl_oracle": 0.954, "ditto": 0.92}
ROUNDS = range(5, 105, 5)


def frames(finals=FINALS, sweep=(1, 2, 4, 8), seeds=(0, 1, 2), lams=(11, 12)):
    """Runs whose accuracy rises to its final in steps; cgpfl peaks at K = 4 with 95%."""
    settings = [(method, math.nan, 12, ["table1"], final) for method, final in finals.items()]
    settings += [
        ("cgpfl", k, 12, ["contexts"] + ["table1"] * (k == 4), 0.95 - 0.01 * abs(np.log2(k) - 2)) for k in sweep
    ]
    settings += [("pfedme", math.nan, lam, ["lam"], 0.9) for lam in lams]
    settings += [("cgpfl", 4, lam, ["lam"], 0.95 if lam < 12 else 0.89) for lam in lams]
    runs, history, clustering = [], [], []
    for number, ((method, contexts, lam, parts, final), seed) in enumerate(product(settings, seeds)):
        label = f"cgpfl[contexts={contexts}]" if method == "cgpfl" else method
        names = {"run": str(number), "seed": seed, "dataset": "mnist", "model": "mlr", "method": method}
        chosen = 4 if method == "cgpfl_heur" else math.nan
        runs.append(
            {**names, "label": label, "contexts": contexts, "lam": lam, "parts": parts, "contexts_chosen": chosen}
        )
        noise = 0.001 * ((seed * 7 + number) % 5)
        for tested, headline, shift in (("personal", True, 0.0), ("local", False, 0.01)):
            history += [
                {
                    "run": str(number), "seed": seed, "round": t, "tested": tested, "headline": headline,
                    "accuracy": final + noise + shift - 0.4 * max(0, 50 - t) / 50, "diverged": False,
                }
                for t in ROUNDS
            ]  # fmt: skip
        if method == "cgpfl":
            clustering += [
                {
                    "run": str(number),
                    "round": t,
                    "moved": math.nan if t == 1 else 0.5 * (t < 9),
                    "kmeans_iterations": 9 if t < 9 else 2,
                }
                for t in range(1, 101)
            ]
    return {
        "runs": pd.DataFrame(runs),
        "history": pd.DataFrame(history),
        "clustering": pd.DataFrame(clustering),
        "heuristic": pd.DataFrame(),
        "assignments": pd.DataFrame(),
    }


@pytest.fixture(scope="module")
def verdicts():
    parts = {"main": frames(), "less": frames({**FINALS, "local": 0.7}), "other": frames({**FINALS, "pfedme": 0.952})}
    changes = {"less": {"partition.train_share": 0.1}, "other": {"partition.scheme": "random"}}
    table = claims.claims(parts, changes)
    assert list(table.columns) == claims.COLUMNS
    assert table["id"].is_unique
    return table.set_index("id")["verdict"].to_dict(), table.set_index("id")["numbers"].to_dict()


@pytest.mark.parametrize(
    ("claim", "verdict"),
    [
        ("cgpfl[contexts=4] > pfedme, shared", HOLDS),
        ("cgpfl[contexts=4] > apfl, shared", UNTESTED),
        ("cgpfl[contexts=4] > pfedme, tuned", UNTESTED),
        ("cgpfl[contexts=4] > local, shared", FAILS),
        ("cgpfl_heur > cgpfl[contexts=4], shared", HOLDS),
        ("cgpfl[contexts=4] > pfedme, every lambda", PARTLY),  # not at lambda 12
        ("cgpfl_heur > pfedme, every lambda", UNTESTED),
        ("inner optimum of K", HOLDS),
        ("cgpfl_heur near optimum", HOLDS),
        ("cgpfl_heur = cgpfl_oracle", HOLDS),
        ("cgpfl[contexts=4] faster than pfedme", HOLDS),
        ("clustering settles", HOLDS),
        ("k-means is quick", HOLDS),
        ("pfedme: personal > local", FAILS),
        ("less: cgpfl[contexts=4] > local", HOLDS),
        ("less: cgpfl[contexts=10] > local", UNTESTED),
        ("other: cgpfl[contexts=4] > pfedme", FAILS),
        ("other: smaller gain", HOLDS),
    ],
)
def test_claims_on_made_up_runs(verdicts, claim, verdict):
    assert verdicts[0][claim] == verdict, verdicts[1][claim]


def test_numbers_of_the_optimum_and_of_clustering(verdicts):
    assert "mnist/mlr: best K 4, chosen 4, 4, 4" in verdicts[1]["cgpfl_heur near optimum"]
    assert verdicts[1]["k-means is quick"] == "mnist/mlr mean 2.0, most 2"
    assert verdicts[1]["clustering settles"] == "mnist/mlr 14.6% in the first quarter, 0.0% in the last"


@pytest.mark.parametrize("seeds", [(), (0,)])
def test_without_runs_or_with_one_seed_nothing_is_tested_but_thresholds(seeds):
    own = frames(seeds=seeds)
    parts = {"main": own} if seeds else {}
    table = claims.claims(parts, {"less": {"partition.train_share": 0.1}})
    by_test = ~table["id"].isin(["clustering settles", "k-means is quick"])
    assert set(table.loc[by_test, "verdict"]) == {UNTESTED}
    assert len(table) == len(claims.claims({"main": frames()}, {"less": {"partition.train_share": 0.1}}))


def test_a_diverged_run_counts_as_nothing():
    own = frames()
    ours = own["runs"][(own["runs"]["method"] == "cgpfl_heur")]["run"]
    own["history"].loc[own["history"]["run"].isin(ours), "diverged"] = True
    table = claims.claims({"main": own}, {}).set_index("id")
    assert table.loc["cgpfl_heur > pfedme, shared", "verdict"] == FAILS


def test_the_page_counts_verdicts():
    table = pd.DataFrame([("a", "table 1", "s", "t", "n", HOLDS), ("b", "", "", "", "", FAILS)], columns=claims.COLUMNS)
    text = claims.to_markdown(table)
    assert text.startswith("2 claims: 1 holds, 1 does not hold.\n\n| claim |")
    assert "| s | table 1 | holds | n |" in text
