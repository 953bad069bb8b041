"""Tables on frames small enough to average by hand."""

import io

import numpy as np
import pandas as pd
import pytest

from cgpfl import tables
from cgpfl.errors import UserError

PAPER = """method,dataset,model,lambda,accuracy
FedAvg,MNIST,MLR,,88.63
pFedMe (PM),MNIST,MLR,12,91.90
pFedMe (PM),MNIST,MLR,13,92.19
CGPFL (K=4),MNIST,MLR,12,95.65
Per-FedAvg (HF),MNIST,MLR,,92.44
FedAvg,CIFAR10,CNN,,46.34
"""


def run(key, seed=0, *, method="pfedme", label=None, dataset="mnist", model="mlr", **params):
    return {
        "run": key,
        "seed": seed,
        "dataset": dataset,
        "model": model,
        "method": method,
        "label": label or method,
        "parameters": 7850,
        "gradients_per_round": 50,
        "sent_per_round": 7850,
        "received_per_round": 7850,
        **params,
    }


def curve(key, accuracies, *, tested="personal", headline=True, first=1, diverged_from=np.inf, gradients=50):
    """The history of one run and tested model, evaluated on rounds first, first + 1, ..."""
    return [
        {
            "run": key,
            "seed": -1,
            "round": first + i,
            "tested": tested,
            "headline": headline,
            "accuracy": a,
            "accuracy_client_mean": a - 0.01,
            "accuracy_client_std": 0.05,
            "accuracy_worst_decile": a - 0.2,
            "loss": 1 - a,
            "train_loss": 0.9 - a,
            "gradients": gradients * (first + i),
            "diverged": first + i >= diverged_from,
        }
        for i, a in enumerate(accuracies)
    ]


def frames(runs, *curves):
    return pd.DataFrame(runs), pd.DataFrame([row for rows in curves for row in rows])


@pytest.fixture
def paper(tmp_path):
    path = tmp_path / "paper.csv"
    path.write_text(PAPER)
    return tables.read_paper(path)


@pytest.fixture
def two_seeds():
    """pFedMe with two seeds and two tested models: finals 80 and 90 (personal), 70 and 60 (local), in
    percent."""
    return frames(
        [run("a", 0, lam=12.0), run("b", 1, lam=12.0)],
        curve("a", [0.5, 0.84, 0.80]),
        curve("b", [0.6, 0.7, 0.9]),
        curve("a", [0.3, 0.4, 0.7], tested="local", headline=False),
        curve("b", [0.2, 0.65, 0.6], tested="local", headline=False),
    )


def test_table1_by_hand(two_seeds, paper):
    table = tables.table1(*two_seeds, paper)
    assert list(table.columns) == [
        "dataset",
        "model",
        "method",
        "tested",
        "n_seeds",
        "final_mean",
        "final_std",
        "best_mean",
        "best_std",
        "paper",
        "difference",
    ]
    assert table["tested"].tolist() == ["personal", "local"]
    assert table["n_seeds"].tolist() == [2, 2]
    numbers = table[["final_mean", "final_std", "best_mean", "best_std"]].to_numpy()
    half = np.sqrt(0.5)  # the standard deviation of two values is their distance times this
    np.testing.assert_allclose(numbers, [[85, 10 * half, 87, 6 * half], [65, 10 * half, 67.5, 5 * half]])
    assert table["paper"].iloc[0] == 91.90
    assert np.isnan(table["paper"].iloc[1])


def test_the_headline_model_comes_first_whatever_the_history_says_first():
    runs, history = frames(
        [run("a")],
        curve("a", [0.9], tested="local", headline=False),
        curve("a", [0.8], tested="global", headline=False),
        curve("a", [0.7], tested="personal", headline=True),
    )
    table = tables.table1(runs, history)
    assert table["tested"].tolist() == ["personal", "local", "global"]
    assert tables.headline_rows(table)["final_mean"].tolist() == pytest.approx([70])


def test_the_last_round_counts_even_if_the_history_is_shuffled(two_seeds):
    runs, history = two_seeds
    shuffled = history.sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(tables.table1(runs, shuffled), tables.table1(runs, history))


def test_one_seed_has_no_spread():
    table = tables.table1(*frames([run("a")], curve("a", [0.5, 0.6])))
    assert table["n_seeds"].item() == 1
    assert table[["final_std", "best_std"]].isna().all(axis=None)
    assert "| **60.00** |" in tables.to_markdown(table)


def test_a_diverged_seed_empties_the_final_mean_and_is_named(two_seeds):
    runs, history = two_seeds
    history.loc[(history["run"] == "b") & (history["round"] >= 2), "diverged"] = True
    table = tables.table1(runs, history)
    assert table["n_seeds"].tolist() == [2, 2]
    assert table[["final_mean", "final_std"]].isna().all(axis=None)
    assert table["best_mean"].tolist() == pytest.approx([(84 + 60) / 2, (70 + 20) / 2])
    failed = tables.diverged(runs, history)
    assert failed.to_dict("records") == [
        {"dataset": "mnist", "model": "mlr", "method": "pfedme", "run": "b", "seed": 1, "round": 2}
    ]
    text = tables.to_markdown(table, failed)
    assert "**diverged**" in text
    assert "`pfedme` on mnist / mlr, seed 1 (run b): diverged by round 2" in text
    assert "diverged" in tables.summary(table)


def test_nothing_diverged(two_seeds):
    assert tables.diverged(*two_seeds).empty
    assert "iverged" not in tables.to_markdown(tables.table1(*two_seeds), tables.diverged(*two_seeds))


def test_rows_keep_the_order_of_the_runs():
    runs, history = frames(
        [
            run("a", dataset="mnist"),
            run("b", dataset="digits"),
            run("c", method="fedavg", dataset="mnist"),
            run("d", method="fedavg", dataset="digits"),
            run("e", dataset="mnist", model="dnn"),
        ],
        *(curve(key, [0.5]) for key in "edcba"),
    )
    table = tables.table1(runs, history)
    assert table[["dataset", "model", "method"]].to_numpy().tolist() == [
        ["mnist", "mlr", "pfedme"],
        ["mnist", "mlr", "fedavg"],
        ["mnist", "dnn", "pfedme"],
        ["digits", "mlr", "pfedme"],
        ["digits", "mlr", "fedavg"],
    ]


def test_part():
    parts = [("table1", "lam"), ("lam",), ("contexts", "table1")]
    runs = pd.DataFrame({"run": ["a", "b", "c"], "parts": parts})
    assert tables.part(runs, "table1")["run"].tolist() == ["a", "c"]
    assert tables.part(runs, "lam")["run"].tolist() == ["a", "b"]
    assert tables.part(runs[:0], "lam").columns.tolist() == ["run", "parts"]


def test_only_the_given_runs_count(two_seeds):
    runs, history = two_seeds
    table = tables.table1(runs[runs["seed"] == 1], history)
    assert table["final_mean"].tolist() == pytest.approx([90, 60])


def test_two_runs_of_a_seed_are_never_averaged():
    runs, history = frames([run("a", 0, lam=12.0), run("b", 0, lam=13.0)], curve("a", [0.5]), curve("b", [0.6]))
    with pytest.raises(ValueError, match="several runs of one seed"):
        tables.table1(runs, history)
    assert tables.table2(runs, history)["final_mean"].tolist() == pytest.approx([50, 60])


def test_table2_by_lambda(paper):
    runs, history = frames(
        [
            run("b", lam=13.0, label="pfedme[lam=13]"),
            run("a", lam=12.0, label="pfedme[lam=12]"),
            run("c", method="cgpfl", label="cgpfl[contexts=4,lam=12]", lam=12.0, contexts=4.0),
        ],
        curve("a", [0.5]),
        curve("a", [0.4], tested="global", headline=False),
        curve("b", [0.6]),
        curve("c", [0.7]),
    )
    table = tables.table2(runs, history, paper)
    assert list(table.columns) == tables.TABLE2
    assert table[["method", "tested", "lam", "final_mean", "paper"]].fillna(-1).to_numpy().tolist() == [
        ["pfedme", "personal", 12, pytest.approx(50), 91.90],
        ["pfedme", "global", 12, pytest.approx(40), -1],
        ["pfedme", "personal", 13, pytest.approx(60), 92.19],
        ["cgpfl[contexts=4]", "personal", 12, pytest.approx(70), 95.65],
    ]
    assert (
        tables.to_markdown(table)
        == """\
## mnist / mlr

| lambda | 12 | 13 |
| :-- | --: | --: |
| `pfedme` | 50.00 | 60.00 |
| *paper* | 91.90 | 92.19 |
| `cgpfl[contexts=4]` | 70.00 |  |
| *paper* | 95.65 |  |
"""
    )


@pytest.mark.parametrize(
    ("expected", "changes"),
    [
        (95.65, {}),
        (None, {"contexts": 2}),
        (None, {"lam": 13.0}),
        (None, {"lam": None}),
        (None, {"dataset": "digits"}),
        (None, {"dataset": "fashion_mnist"}),
        (None, {"model": "dnn"}),
        (None, {"method": "cgpfl_oracle"}),
    ],
)
def test_the_paper_corresponds_only_in_every_respect(paper, expected, changes):
    row = run("a", **{"method": "cgpfl", "contexts": 4, "lam": 12.0, **changes})
    found = [result.accuracy for result in paper if result.matches(row)]
    assert found == ([] if expected is None else [expected])


def test_the_paper_s_other_names(paper):
    def found(row):
        return [result.accuracy for result in paper if result.matches(row)]

    assert found(run("a", method="perfedavg", variant="hf")) == [92.44]
    assert found(run("a", method="perfedavg", variant="fo")) == []
    assert found(run("a", method="fedavg", dataset="cifar10-jpeg", model="cnn")) == [46.34]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PAPER.replace("FedAvg,MNIST", "FedSGD,MNIST"),
            r"method 'FedSGD' is not known; valid are FedAvg, IFCA",
        ),
        (
            PAPER.replace("MNIST", "KMNIST"),
            r"dataset 'KMNIST' is not known; valid are MNIST, FMNIST, CIFAR10",
        ),
        (PAPER.replace("lambda", "lam"), r"column 'lambda' is missing"),
    ],
)
def test_a_wrong_paper_file_is_named(text, message, tmp_path):
    path = tmp_path / "paper.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        tables.read_paper(path)


@pytest.mark.parametrize(
    ("label", "parameter", "expected"),
    [
        ("pfedme", "lam", "pfedme"),
        ("pfedme[lam=12]", "lam", "pfedme"),
        ("cgpfl[contexts=4,lam=12]", "lam", "cgpfl[contexts=4]"),
        ("cgpfl[contexts=4, lam=12]", "contexts", "cgpfl[lam=12]"),
        ("cgpfl[lambda=3]", "lam", "cgpfl[lambda=3]"),
    ],
)
def test_without(label, parameter, expected):
    assert tables.without(label, parameter) == expected


def test_fairness(two_seeds):
    table = tables.fairness(*two_seeds)
    assert table[["method", "tested", "n_seeds"]].to_numpy().tolist() == [
        ["pfedme", "personal", 2],
        ["pfedme", "local", 2],
    ]
    first = table.iloc[0]
    assert first["client_mean_mean"] == pytest.approx(84)
    assert first["client_spread_mean"] == pytest.approx(5)
    assert first["worst_tenth_mean"] == pytest.approx(65)
    assert first["worst_tenth_std"] == pytest.approx(50**0.5)


def test_cost(two_seeds):
    runs, history = two_seeds
    runs["gradients_per_round"] = [40, 60]
    assert tables.cost(runs, history).to_dict("records") == [
        {
            "dataset": "mnist",
            "model": "mlr",
            "method": "pfedme",
            "parameters": 7850,
            "gradients_per_round": 50,
            "sent_per_round": 7850,
            "received_per_round": 7850,
            "rounds": 3,
            "gradients": 150,
        }
    ]


def test_equal_gradients():
    runs, history = frames(
        [run("a"), run("b", method="fedavg")],
        curve("a", [0.1, 0.2, 0.3, 0.4], gradients=20),
        curve("b", [0.5, 0.6, 0.7, 0.8], gradients=10, tested="global"),
    )
    table = tables.equal_gradients(runs, history)
    assert table["gradients"].tolist() == [40, 40]
    assert table["round"].tolist() == [2, 4]
    assert table["accuracy_mean"].tolist() == pytest.approx([20, 80])
    assert tables.equal_gradients(runs, history, budget=30)["accuracy_mean"].tolist() == pytest.approx([10, 70])
    assert tables.equal_gradients(runs, history, budget=10)["accuracy_mean"].isna().tolist() == [True, False]


def test_equal_gradients_shows_divergence():
    runs, history = frames(
        [run("a"), run("b", method="fedavg")],
        curve("a", [0.1, 0.2], diverged_from=2),
        curve("b", [0.5, 0.6, 0.7], tested="global"),
    )
    table = tables.equal_gradients(runs, history)
    assert table["gradients"].tolist() == [150, 150]
    assert table["accuracy_mean"].isna().tolist() == [True, False]


def test_csv_is_exact_and_short(two_seeds, paper, tmp_path):
    tables.write_csv(tables.table1(*two_seeds, paper), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_bytes() == (
        b"dataset,model,method,tested,n_seeds,final_mean,final_std,best_mean,best_std,paper,difference\n"
        b"mnist,mlr,pfedme,personal,2,85,7.0711,87,4.2426,91.9,-6.9\n"
        b"mnist,mlr,pfedme,local,2,65,7.0711,67.5,3.5355,,\n"
    )


def test_markdown_marks_the_headline(two_seeds, paper):
    assert (
        tables.to_markdown(tables.table1(*two_seeds, paper))
        == """\
## mnist / mlr

| method | tested | seeds | final | best | paper | final - paper |
| :-- | :-- | --: | --: | --: | --: | --: |
| `pfedme` | **personal** | 2 | **85.00 ± 7.07** | 87.00 ± 4.24 | 91.90 | -6.90 |
|  | local | 2 | 65.00 ± 7.07 | 67.50 ± 3.54 |  |  |
"""
    )


def test_summary(two_seeds, paper):
    assert (
        tables.summary(tables.table1(*two_seeds, paper))
        == """\
Test accuracy in percent, mean ± standard deviation over seeds

mnist / mlr  tested    seeds         final          best  paper
  pfedme     personal      2  85.00 ± 7.07  87.00 ± 4.24  91.90"""
    )
    assert "paper" not in tables.summary(tables.table1(*two_seeds))


def test_summary_fits_the_terminal():
    label = "cgpfl[contexts=4,lam=12,inner_steps=5,eta=0.05,kmeans_init=previous,carry=persist,alpha=0.5]"
    runs, history = frames(
        [run("a", 0, method="cgpfl", label=label), run("b", 1, method="cgpfl", label=label)],
        curve("a", [0.5]),
        curve("b", [0.6]),
    )
    lines = tables.summary(tables.table1(runs, history)).splitlines()
    assert max(map(len, lines)) <= 100
    assert "cgpfl[contexts=4,lam=12" in lines[-1]
    assert "…" in lines[-1]


def test_no_runs():
    runs, history = frames([run("a")], curve("a", [0.5]))
    table = tables.table1(runs[:0], history)
    assert list(table.columns) == tables.TABLE1
    assert table.empty
    assert tables.to_markdown(table) == "No runs.\n"
    assert tables.summary(table) == "No runs."
    assert list(tables.table2(runs[:0].assign(lam=1.0), history).columns) == tables.TABLE2


def test_methods_without_lambda_have_an_empty_table2():
    runs, history = frames([run("a", method="fedavg")], curve("a", [0.5]))
    table = tables.table2(runs[:0], history)
    assert (list(table.columns), len(table)) == (tables.TABLE2, 0)


def test_a_sweep_has_a_row_for_each_value():
    runs, history = frames(
        [
            run("a", 0, mu=1.0, parts=["table1", "mu"]),
            run("b", 1, mu=1.0, parts=["mu"]),
            run("c", 0, mu=0.00001, parts=["mu"]),
            run("d", 0, mu=1.0, mix="adaptive", label="pfedme[mix=adaptive]", parts=["mix"]),
            run("e", 0, mu=1.0, mix=0.5, label="pfedme[mix=0.5]", parts=["mix"]),
        ],
        *(curve(key, [accuracy]) for key, accuracy in zip("abcde", (0.4, 0.6, 0.3, 0.7, 0.8), strict=True)),
    )
    table = tables.sweeps(runs, history)
    assert list(table.columns) == tables.SWEEPS
    assert table[["method", "parameter", "value", "n_seeds", "final_mean"]].to_numpy().tolist() == [
        ["pfedme", "mu", 0.00001, 1, pytest.approx(30)],
        ["pfedme", "mu", 1.0, 2, pytest.approx(50)],
        ["pfedme", "mix", 0.5, 1, pytest.approx(80)],
        ["pfedme", "mix", "adaptive", 1, pytest.approx(70)],
    ]
    assert list(tables.sweeps(runs[:1].assign(parts=[["table1"]]), history).columns) == tables.SWEEPS


def test_small_values_of_parameters_are_written_whole(tmp_path):
    tables.write_csv(pd.DataFrame({"value": [0.00001], "final_mean": [12.345678]}), tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == "value,final_mean\n1e-05,12.3457\n"


def test_the_frames_are_left_as_they_were(two_seeds):
    before = [frame.copy() for frame in two_seeds]
    for table in ("table1", "table2", "fairness", "cost", "equal_gradients", "diverged"):
        getattr(tables, table)(*two_seeds)
    for frame, copy in zip(two_seeds, before, strict=True):
        pd.testing.assert_frame_equal(frame, copy)


def test_frames_survive_parquet(two_seeds, paper):
    stored = []
    for frame in two_seeds:
        frame.to_parquet(buffer := io.BytesIO())
        stored.append(pd.read_parquet(buffer))
    pd.testing.assert_frame_equal(tables.table1(*stored, paper), tables.table1(*two_seeds, paper))


def test_studies_are_compared_with_the_main_experiment_seed_by_seed():
    def part_of(study, finals):
        runs = [run(f"{study}{seed}", seed, method="cgpfl", label="x", contexts=4.0) for seed in finals]
        own = frames(runs, *(curve(f"{study}{seed}", [0.1, final]) for seed, final in finals.items()))
        return {"runs": own[0].assign(parts=[["table1"]] * len(runs)), "history": own[1]}

    results = {"main": part_of("m", {0: 0.8, 1: 0.9, 2: 0.7}), "less": part_of("l", {0: 0.7, 1: 0.86})}
    samples = {("main", "mnist"): 100.0, ("less", "mnist"): 10.0}
    table = tables.studies(results, {"less": "partition.train_share=0.1"}, samples)
    assert list(table.columns) == tables.STUDIES
    assert list(table["study"]) == ["main", "less"]
    assert list(table["method"]) == ["cgpfl[contexts=4]"] * 2
    less = table.iloc[1]
    assert (less["changes"], less["train_samples"], less["n_seeds"]) == ("partition.train_share=0.1", 10, 2)
    assert less["final_mean"] == pytest.approx(78)
    assert less["to_main_mean"] == pytest.approx(-7)  # -10 and -4
    assert less["to_main_std"] == pytest.approx(np.sqrt(18))
    assert (less["shared_seeds"], table.iloc[0]["to_main_mean"]) == (2, 0)


HEURISTIC = pd.DataFrame(
    {
        "run": ["a"] * 3,
        "round": 1,
        "contexts": [1, 2, 3],
        "complexity": [1.0, 2.0, 3.0],
        "cost": [1.0, 0.4, 0.2],
        "mu": 2.0,
        "chosen": [False, True, False],
    }
)


def test_contexts_by_mu_by_hand():
    # K=2 beats K=1 from mu = 1/.6 on, and K=3 beats K=2 from mu = 1/.2 on
    found = tables.contexts_by_mu(HEURISTIC, [0.5, 0.8, 1.0, 2.4, 3.0])
    assert found["mu"].tolist() == [1.0, 1.6, 2.0, 4.8, 6.0]
    assert found["contexts"].tolist() == [1, 1, 2, 2, 3]


def test_the_range_of_mu_that_chooses_the_same():
    runs = pd.DataFrame([run("a", method="cgpfl_heur", mu="auto")])
    [row] = tables.choice_by_mu(runs, HEURISTIC).to_dict("records")
    assert (row["seed"], row["mu"], row["contexts"]) == (0, 2, 2)
    assert 1 / 0.6 <= row["mu_from"] < 1.15 / 0.6
    assert 5 / 1.15 < row["mu_to"] <= 5
    assert tables.choice_by_mu(runs[:0], HEURISTIC[:0]).empty


def test_the_papers_numbers_may_be_compared_with_any_lambda(tmp_path):
    path = tmp_path / "paper.csv"
    path.write_text("method,dataset,model,lambda,accuracy\npFedMe (PM),MNIST,MLR,12,90.0\n")
    run = {"dataset": "mnist", "model": "mlr", "method": "pfedme", "lam": 5}
    [fixed], [free] = tables.read_paper(path), tables.read_paper(path, any_lam=True)
    assert not fixed.matches(run)
    assert free.matches(run)
    assert free.accuracy == 90.0
