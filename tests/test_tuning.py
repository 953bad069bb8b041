"""Tuning: what the search chooses, by hand; that test labels change nothing; that nothing finished is lost."""

import math
from dataclasses import replace

import numpy as np
import pytest

from cgpfl import datasets, partition, tables
from cgpfl.experiment import load
from cgpfl.results import Store
from cgpfl.tuning import CHOICES, Tried, Tuning, search

CONFIG = {
    "name": "x",
    "seeds": [0, 1],
    "datasets": ["digits"],
    "models": ["mlr"],
    "partition": {"clients": 5},
    "training": {"rounds": 3, "eval_every": 3},
    "params": {"local_steps": 2, "inner_steps": 2},
    "methods": ["ditto"],
    "tune": {"grids": {"ditto": {"lr": [0.005, 0.1], "lam": [0, 5]}}, "rounds": 2, "validation": 0.5},
}


def test_the_search_goes_from_parameter_to_parameter_and_keeps_the_best():
    asked = []

    def accuracies(sets):
        asked.append([(params["lr"], params["lam"]) for params in sets])
        return [100 * params["lr"] - params["lam"] for params in sets]

    chosen, tried = search({"lr": 0.1, "lam": 12, "l2": 0}, {"lr": [0.1, 0.2], "lam": [5, 1]}, accuracies)
    assert asked == [[(0.1, 12), (0.2, 12)], [(0.2, 12), (0.2, 5), (0.2, 1)]]
    assert chosen == {"lr": 0.2, "lam": 1, "l2": 0}
    assert tried[:3] == [Tried("lr", 0.1, -2, False), Tried("lr", 0.2, 8, True), Tried("lam", 12, 8, False)]


@pytest.mark.parametrize(
    ("found", "value"),
    [([50, 70, 70], 2), ([70, 70, 70], 1), ([math.nan, 60, 50], 2), ([math.nan] * 3, 3), ([math.nan, math.nan, 1], 3)],
)
def test_ties_go_to_the_earlier_and_what_has_no_accuracy_is_not_chosen(found, value):
    chosen, tried = search({"a": 3}, {"a": [1, 2, 3]}, lambda sets: found)
    assert chosen == {"a": value}
    assert [each.value for each in tried if each.chosen] == [value]


@pytest.fixture(scope="module")
def digits() -> datasets.Dataset:
    rng = np.random.default_rng(0)
    y = np.arange(400) % 10
    return datasets.make_dataset("digits", (20 * y[:, None, None] + rng.integers(0, 70, (400, 4, 4))), y)


def tuning(dataset, parts, method="ditto", **changes) -> Tuning:
    experiment = load({**CONFIG, "methods": [method], **changes})
    own = experiment.tuning(method)
    settings = experiment.training.model_dump()
    seeds, share = experiment.tuning_seeds, experiment.tune.validation
    cut = {seed: partition.split_validation(parts[seed], dataset.y, share, seed) for seed in seeds}
    job = experiment.job("digits", "mlr", method)
    return Tuning(job, settings, **own, dataset=dataset, partitions=parts, validation=cut)


def parts_of(dataset):
    return {seed: partition.make_partition(dataset.y, clients=5, seed=seed, classes=10) for seed in (0, 1)}


def completing(store, told):
    def complete(training):
        told.append(training.complete(store, threads=1))
        return training.gather(store)

    return complete


def test_other_test_labels_change_no_choice(digits, tmp_path):
    parts = parts_of(digits)
    test = np.concatenate([indices for part in (parts[0],) for indices in part.test])
    other = digits.y.copy()
    other[test] = (other[test] + 1) % 10
    written = []
    for name, labels in (("a", digits.y), ("b", other)):
        own = tuning(replace(digits, y=labels), parts)
        final, choices = own.choose(completing(Store(tmp_path / name), []))
        tables.write_csv(choices, tmp_path / f"{name}.csv")
        written.append(((tmp_path / f"{name}.csv").read_bytes(), [run.params for run in final.job.runs]))
    assert written[0] == written[1]
    assert list(choices.columns) == CHOICES
    assert choices["validation_accuracy"].nunique() > 1


def test_tuned_runs_have_the_chosen_values_all_rounds_and_the_test_samples(digits, tmp_path):
    parts, told = parts_of(digits), []
    own = tuning(digits, parts)
    complete = completing(Store(tmp_path), told)
    final, choices = own.choose(complete)
    chosen = dict(choices.loc[choices["chosen"], ["parameter", "value"]].to_numpy())
    assert [(run.seed, run.label) for run in final.job.runs] == [(0, "ditto"), (1, "ditto")]
    assert all({name: run.params[name] for name in chosen} == chosen for run in final.job.runs)
    frames = complete(final)
    assert frames["history"]["round"].max() == 3
    assert final.partitions is parts
    again = []
    tuning(digits, parts).choose(completing(Store(tmp_path), again))  # as after a killed job
    assert sum(told) > 0
    assert sum(again) == 0


def test_values_that_a_method_refuses_together_have_no_accuracy(digits, tmp_path):
    # c = lr*lam*(1-p)/p = 2 for the default p and lam 10
    grid = {"l2sgd": {"lr": [0.1], "lam": [10, 0.1]}}
    own = tuning(digits, parts_of(digits), "l2sgd", params={"lam": 0.1, "local_steps": 2}, tune={"grids": grid})
    _, choices = own.choose(completing(Store(tmp_path), []))
    refused = choices[choices["value"] == 10]
    assert refused["validation_accuracy"].isna().all()
    assert not refused["chosen"].any()
