"""Claims on frames small enough to judge by hand."""

import math
from itertools import product

import numpy as np
import pandas as pd
import pytest

from cgpfl import claims
from cgpfl.claims import (
    FAILS,
    HOLDS,
    PARTLY,
    UNDECIDED,
    UNTESTED,
    Claim,
    Comparison,
    compare,
    holm,
    judged,
    significant,
)

CLAIM = Claim("a", "b", "c", "d")


def test_a_comparison_is_a_one_sided_paired_t_test():
    # mean 2, standard deviation 1, n 3: t = 2 sqrt(3) = 3.464, and p = 0.0371 with two degrees of freedom
    found = compare("x", [1, 2, 3])
    assert (found.mean, found.seeds, found.positive) == (2, 3, 3)
    assert (found.p, found.opposite) == pytest.approx((0.0371, 1 - 0.0371), abs=1e-4)
    reverse = compare("x", [-1, -2, -3])
    assert (reverse.p, reverse.opposite) == pytest.approx((found.opposite, found.p))
    near = compare("x", [-0.5, 0.5, 1.5], margin=1.5)  # as [1, 2, 3] against 0
    assert (near.mean, near.positive, near.p) == (0.5, 3, found.p)


@pytest.mark.parametrize(
    ("differences", "margin", "p", "opposite"),
    [
        ([1, 1], 0, 1 / 4, 1),
        ([1] * 5, 0, 1 / 32, 1),
        ([-1, -1, -1], 0, 1, 1 / 8),
        ([0, 0, 0], 0, 1, 1),
        ([0, 0, 0], 0.5, 0, 1),
        ([-0.5, -0.5], 0.5, 1, 1),
        ([5], 0, math.nan, math.nan),
    ],
)
def test_without_spread_differences_count_by_their_sign(differences, margin, p, opposite):
    found = compare("x", differences, margin)
    assert (found.p, found.opposite) == pytest.approx((p, opposite), nan_ok=True)


def test_holm_by_hand():
    # 3 x .01, 2 x .02, 1 x .03 raised to what came before
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_all_hold_where_each_does_but_which_ones_is_for_holm():
    assert significant([0.03, 0.04, 0.049]) == [True, True, True]
    assert significant([0.01, 0.03, 0.5]) == [True, False, False]  # 3 x .01, 2 x .03
    assert significant([]) == []


def comparisons(p_values):
    opposites = [1 - p for p in p_values]
    return [
        Comparison(f"pair{i}", 1.0, 3, 3, p, other)
        for i, (p, other) in enumerate(zip(p_values, opposites, strict=True))
    ]


@pytest.mark.parametrize(
    ("p_values", "verdict", "told"),
    [
        ([0.01, 0.02], HOLDS, None),
        ([0.04] * 36, HOLDS, None),
        ([0.03, 0.03, 0.5], UNDECIDED, None),
        ([0.01, 0.5], PARTLY, "holds for pair0"),
        ([0.01, 0.99], PARTLY, "holds for pair0; the opposite holds for pair1"),
        ([0.9], UNDECIDED, None),
        ([0.96], FAILS, "the opposite holds for all"),
        ([0.96, 0.97], FAILS, "the opposite holds for all"),
        ([0.97, 0.6], UNDECIDED, None),  # 2 x .03
        ([0.98, 0.6], FAILS, "the opposite holds for pair0"),
        ([math.nan], UNTESTED, None),
        ([0.01, math.nan], HOLDS, None),
        ([], UNTESTED, None),
    ],
)
def test_verdicts(p_values, verdict, told):
    found = judged(CLAIM, comparisons(p_values))
    texts = found.numbers.split("seeds")[-1].split("); ")[1:]
    assert (found.verdict, "".join(texts)) == (verdict, told or "")


def test_numbers_are_told_with_their_seeds():
    own = [Comparison("mnist/mlr", 3.456, 5, 4, 0.0123, 0.9877), Comparison("mnist/dnn", -1, 1, 0, math.nan, math.nan)]
    assert judged(CLAIM, own).numbers == "mnist/mlr +3.46 (4 of 5 seeds, p 0.012); mnist/dnn -1.00 (0 of 1 seeds)"


def test_no_seed_chooses_the_k_that_it_is_tested_at():
    curve = pd.DataFrame({1.0: [10, 10], 2.0: [30, 20], 3.0: [20, 31]})  # best: 2 for the first seed, 3 for the second
    assert claims._at_best(curve).to_dict() == {0: 20, 1: 20}
    assert claims._at_best(curve[:1]).empty


def test_what_the_chosen_k_loses_against_a_standard_error():
    curve = pd.DataFrame({2.0: [90.0, 92], 4.0: [91.0, 95]}, index=[3, 7])
    # K=4: mean 93, standard deviation sqrt(8), standard error 2; chosen: (90 + 95)/2
    found = claims._loss(curve, pd.Series({3: 2.0, 7: 4.0}))
    assert found == (pytest.approx(0.5 - 2), "best K 4, chosen 2, 4: 0.50 points lost, standard error 2.00")


@pytest.mark.parametrize(
    ("found", "true", "expected"),
    [
        ([0, 0, 1, 1], [5, 5, 3, 3], 1),
        ([0, 0, 1, 1], [0, 1, 2, 2], 1),  # merged, not parted
        ([0, 0, 1, 1], [0, 1, 0, 1], -0.5),  # none of two pairs; by chance 2 of 6: (0 - 1/3)/(2/3)
        ([0, 0, 1, 1], [0, 0, 1, 2], 1),
        ([0, 0, 0, 1], [0, 0, 1, 1], 0),  # one of two pairs; by chance 3 of 6
        ([0, 0, 0, 0], [0, 0, 1, 1], 0),
        ([0, 0, 1, 1], [0, 1, 2, 3], math.nan),
    ],
)
def test_agreement_by_hand(found, true, expected):
    assert claims.agreement(np.array(found), np.array(true)) == pytest.approx(expected, nan_ok=True)


FINALS = {"pfedme": 0.90, "local": 0.96, "cgpfl_heur": 0.955, "cgpfl_oracle": 0.954, "ditto": 0.92}
ROUNDS = range(5, 105, 5)
LEARNED_AT = {"cgpfl": 12, "cgpfl_heur": 10, "cgpfl_oracle": 1}
"""The round from which a method has the true contexts: of 100 rounds, the first tenth ends with the tenth."""


def frames(finals=FINALS, sweep=(1, 2, 4, 8), seeds=range(6), lams=(11, 12)):
    """Runs whose accuracy rises to its final in steps; cgpfl peaks at K = 4 with 95%."""
    settings = [(method, math.nan, 12, ["table1"], final) for method, final in finals.items()]
    settings += [
        ("cgpfl", k, 12, ["contexts"] + ["table1"] * (k == 4), 0.95 - 0.01 * abs(np.log2(k) - 2)) for k in sweep
    ]
    settings += [("pfedme", math.nan, lam, ["lam"], 0.9) for lam in lams]
    settings += [("cgpfl", 4, lam, ["lam"], 0.95 if lam < 12 else 0.89) for lam in lams]
    runs, history, clustering, assignments = [], [], [], []
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
                    "between": 10.0 if t <= 75 else 11.0,
                    "within": 30.0 if t <= 50 else 4.0,
                }
                for t in range(1, 101)
            ]
        if method in LEARNED_AT:
            assignments += [
                {"run": str(number), "round": t, "client": client, "context": context}
                for t in range(1, 101)
                for client, context in enumerate([0, 0, 1, 1] if t >= LEARNED_AT[method] else [0, 1, 0, 1])
            ]
    return {
        "runs": pd.DataFrame(runs),
        "history": pd.DataFrame(history),
        "clustering": pd.DataFrame(clustering),
        "heuristic": pd.DataFrame(),
        "assignments": pd.DataFrame(assignments),
    }


@pytest.fixture(scope="module")
def verdicts():
    parts = {
        "main": frames(),
        "less": frames({**FINALS, "local": 0.7}),
        "all": frames({**FINALS, "local": 0.8}),
        "other": frames({**FINALS, "pfedme": 0.952, "cgpfl_oracle": 0.97}),
    }
    changes = {
        "less": {"partition.train_share": 0.1},
        "all": {},
        "other": {"partition.scheme": "random"},
        "dirichlet": {"partition.scheme": "dirichlet"},
        "eta": {"params.eta": 0.1},
    }
    table = claims.claims(parts, changes)
    assert list(table.columns) == claims.COLUMNS
    assert table["id"].is_unique
    assert table["statement"].is_unique
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
        ("cgpfl_heur's K near best K", HOLDS),
        ("cgpfl_heur no slower than cgpfl[contexts=4]", HOLDS),
        ("cgpfl[contexts=4]: contexts learned", FAILS),
        ("cgpfl_heur: contexts learned", HOLDS),
        ("distances become stable", PARTLY),
        ("cgpfl_oracle > local, shared", FAILS),
        ("cgpfl_oracle > pfedme, shared", HOLDS),
        ("cgpfl_oracle > fedavg_ft, shared", UNTESTED),
        ("cgpfl[contexts=4] > pfedme, local copies", HOLDS),
        ("pfedme: personal > local", FAILS),
        ("less: cgpfl[contexts=4] > local", HOLDS),
        ("less: cgpfl[contexts=10] > local", UNTESTED),
        ("all: cgpfl[contexts=4] > local", HOLDS),
        ("all: cgpfl_oracle > local", HOLDS),
        ("other: cgpfl[contexts=4] > pfedme", UNDECIDED),
        ("other: cgpfl_oracle > pfedme", HOLDS),
        ("other: cgpfl_oracle > local", HOLDS),
        ("other: cgpfl[contexts=10] > pfedme", UNTESTED),
        ("other: smaller gain", HOLDS),
        ("dirichlet: cgpfl[contexts=10] > local", UNTESTED),
    ],
)
def test_claims_on_made_up_runs(verdicts, claim, verdict):
    assert verdicts[0][claim] == verdict, verdicts[1][claim]


def test_studies_have_the_claims_that_their_changes_call_for(verdicts):
    studies = [name.split(":")[0] for name in verdicts[0]]
    counts = {name: studies.count(name) for name in ("less", "all", "other", "dirichlet", "eta")}
    assert counts == {"less": 3, "all": 3, "other": 7, "dirichlet": 5, "eta": 0}
    assert "dirichlet: cgpfl_oracle > local" not in verdicts[0]  # has no true contexts


def test_numbers_of_claims_by_threshold(verdicts):
    numbers = verdicts[1]
    assert numbers["k-means is quick"] == "mnist/mlr mean 2.0, most 2"
    assert numbers["clustering settles"] == "mnist/mlr 14.6% in the first quarter, 0.0% in the last"
    assert numbers["distances become stable"] == "mnist/mlr between +10.00%; mnist/mlr within +0.00%"
    learned = "mnist/mlr mean -0.50 in the first round, at least {} from round 10 on"
    assert numbers["cgpfl_heur: contexts learned"] == learned.format("1.00")
    assert numbers["cgpfl[contexts=4]: contexts learned"] == learned.format("-0.50")
    assert numbers["cgpfl_heur's K near best K"].startswith(
        "mnist/mlr best K 4, chosen 4, 4, 4, 4, 4, 4: 0.00 points lost, "
    )


def told(own):
    table = claims.claims({"main": own}, {}).set_index("id")
    return {str(name): (row["verdict"], row["numbers"]) for name, row in table.iterrows()}


def test_a_k_that_loses_more_than_a_standard_error_is_not_near():
    own = frames()
    heur = own["runs"]["method"] == "cgpfl_heur"
    own["runs"].loc[heur, "contexts_chosen"] = 1  # two points below the best
    verdict, numbers = told(own)["cgpfl_heur's K near best K"]
    assert verdict == FAILS
    assert numbers.startswith("mnist/mlr best K 4, chosen 1, 1, 1, 1, 1, 1: ")
    own["runs"].loc[heur, "contexts_chosen"] = 3  # not in the sweep
    assert told(own)["cgpfl_heur's K near best K"][0] == UNTESTED


def test_a_slower_heur_is_refuted():
    verdict, numbers = told(frames({**FINALS, "cgpfl_heur": 0.8}))["cgpfl_heur no slower than cgpfl[contexts=4]"]
    assert verdict == FAILS
    assert "the opposite holds for" in numbers


def test_an_optimum_at_an_end_is_no_inner_one():
    assert told(frames(sweep=(4, 8)))["inner optimum of K"] == (UNTESTED, "")  # no K between the ends
    assert told(frames(sweep=(4, 6, 8)))["inner optimum of K"][0] == UNDECIDED


def test_local_copies_are_compared_with_local_copies():
    own = frames()
    runs = own["runs"].loc[own["runs"]["method"] == "pfedme", "run"]
    own["history"].loc[own["history"]["run"].isin(runs) & (own["history"]["tested"] == "local"), "accuracy"] += 0.1
    found = told(own)
    assert found["cgpfl[contexts=4] > pfedme, local copies"][0] == FAILS
    assert found["cgpfl[contexts=4] > pfedme, shared"][0] == HOLDS


def test_contexts_learned_after_the_first_tenth_are_late(monkeypatch):
    monkeypatch.setitem(LEARNED_AT, "cgpfl_heur", 11)
    assert told(frames())["cgpfl_heur: contexts learned"][0] == FAILS


def test_one_lambda_is_not_every_lambda():
    assert told(frames(lams=(11,)))["cgpfl[contexts=4] > pfedme, every lambda"] == (UNTESTED, "")


def test_what_was_not_recorded_is_not_judged():
    own = frames()
    own["clustering"]["moved"] = math.nan
    assert told(own)["clustering settles"] == (UNTESTED, "")


def test_further_settings_of_a_method_are_no_further_seeds():
    own = frames()
    swept = own["runs"][[parts == ["lam"] for parts in own["runs"]["parts"]]]
    more = swept.assign(run="more" + swept["run"], label=swept["label"] + "[eta=0.01]")
    history = own["history"][own["history"]["run"].isin(swept["run"])]
    own["runs"] = pd.concat([own["runs"], more], ignore_index=True)
    own["history"] = pd.concat([own["history"], history.assign(run="more" + history["run"])], ignore_index=True)
    assert told(own) == told(frames())


def test_distances_that_shrink_are_not_stable():
    own = frames()
    own["clustering"].loc[own["clustering"]["round"] > 75, ["between", "within"]] = [5.0, 3.9]
    expected = (PARTLY, "mnist/mlr between -50.00%; mnist/mlr within -2.50%")
    assert told(own)["distances become stable"] == expected


def test_speed_by_number_of_contexts():
    own = frames()
    reached = {
        1: 100,
        2: 80,
        4: 40,
        8: 20,
    }  # log2 of 100 by these: 0.32, 1.32, 2.32, against log2 sqrt(K) of .5, 1, 1.5
    runs = own["runs"][own["runs"]["method"] == "cgpfl"].set_index("run")["contexts"]
    at = own["history"]["run"].map(runs).map(reached)
    own["history"].loc[at.notna(), "accuracy"] = (0.5 + 0.4 * (own["history"]["round"] >= at))[at.notna()]
    found = told(own)
    numbers = [f"mnist/mlr K={k} +{speed} (6 of 6 seeds, p 0.016)" for k, speed in ((2, 0.32), (4, 1.32), (8, 2.32))]
    assert found["faster with K"] == (HOLDS, "; ".join(numbers))
    verdict, text = found["faster by sqrt(K)"]
    assert (verdict, text.split("; ")[0]) == (PARTLY, "mnist/mlr K=2 +0.32 (0 of 6 seeds, p 1)")
    assert text.endswith("; holds for mnist/mlr K=4, mnist/mlr K=8; the opposite holds for mnist/mlr K=2")


def test_without_an_oracle_nobody_knows_the_true_contexts():
    own = frames({name: final for name, final in FINALS.items() if name != "cgpfl_oracle"})
    assert told(own)["cgpfl_heur: contexts learned"] == (UNTESTED, "")


@pytest.mark.parametrize("seeds", [(), (0,)])
def test_without_runs_or_with_one_seed_nothing_is_tested_but_thresholds(seeds):
    own = frames(seeds=seeds)
    parts = {"main": own} if seeds else {}
    table = claims.claims(parts, {"less": {"partition.train_share": 0.1}})
    by_threshold = ["clustering settles", "k-means is quick", "distances become stable"]
    by_test = ~table["id"].isin([*by_threshold, "cgpfl[contexts=4]: contexts learned", "cgpfl_heur: contexts learned"])
    assert set(table.loc[by_test, "verdict"]) == {UNTESTED}
    assert len(table) == len(claims.claims({"main": frames()}, {"less": {"partition.train_share": 0.1}}))


def test_a_diverged_run_counts_as_nothing():
    own = frames()
    ours = own["runs"][(own["runs"]["method"] == "cgpfl_heur")]["run"]
    own["history"].loc[own["history"]["run"].isin(ours), "diverged"] = True
    table = claims.claims({"main": own}, {}).set_index("id")
    assert table.loc["cgpfl_heur > pfedme, shared", "verdict"] == FAILS


def test_the_page_counts_verdicts_and_tells_each_test_once():
    rows = [
        ("a", "table 1", "s", "t", "n", HOLDS),
        ("b", "table 1", "r", "t", "m", FAILS),
        ("c", "d", "e", "f", "", UNDECIDED),
        ("g", "h", "i", "j", "", UNTESTED),
    ]
    assert (
        claims.to_markdown(pd.DataFrame(rows, columns=claims.COLUMNS))
        == """\
4 claims: 1 holds, 1 does not hold, 1 undecided, 1 not tested.

**Table 1.** Tested: t.

| claim | verdict | numbers |
| :-- | :-- | :-- |
| s | holds | n |
| r | does not hold | m |

**D.** Tested: f.

| claim | verdict | numbers |
| :-- | :-- | :-- |
| e | undecided |  |
"""
    )


def test_of_many_comparisons_the_page_tells_the_ends():
    numbers = "; ".join(f"pair{i} {i - 3:+.2f} (3 of 3 seeds, p 0.01)" for i in range(9)) + "; holds for pair8"
    table = pd.DataFrame([("a", "b", "c", "d", numbers, PARTLY)], columns=claims.COLUMNS)
    ends = "least pair0 -3.00 (3 of 3 seeds, p 0.01), greatest pair8 +5.00 (3 of 3 seeds, p 0.01)"
    assert f"| 9 comparisons, {ends}; holds for pair8 |" in claims.to_markdown(table)
    few = table.assign(numbers="; ".join(numbers.split("; ")[:8]))
    assert few["numbers"].item() in claims.to_markdown(few)


def test_the_page_is_made_of_the_table_that_is_stored(tmp_path):
    table = claims.claims({"main": frames()}, {"less": {"partition.train_share": 0.1}})
    table.to_csv(tmp_path / "claims.csv", index=False)
    stored = pd.read_csv(tmp_path / "claims.csv").fillna("")
    assert claims.to_markdown(stored) == claims.to_markdown(table)
    tested = table[table["verdict"] != UNTESTED]["test"]
    assert all(f"Tested: {test}." in claims.to_markdown(table) for test in tested)
