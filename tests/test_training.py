"""A training job: trains what the store lacks, keeps it at once, gathers what was asked for in its order."""

import os
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from cgpfl import datasets, partition, results
from cgpfl.experiment import load
from cgpfl.results import Store
from cgpfl.training import Training

CONFIG = {
    "name": "x",
    "seeds": [0, 1],
    "datasets": ["digits"],
    "models": ["mlr"],
    "partition": {"clients": 10},
    "training": {"rounds": 2, "eval_every": 1},
    "params": {"local_steps": 1, "inner_steps": 1},
    "methods": [{"cgpfl": {"contexts": 2}}, "fedavg"],
    "sweeps": {"lam": {"methods": ["cgpfl"], "values": [5, 12]}},
}


@pytest.fixture(scope="module")
def digits() -> datasets.Dataset:
    rng = np.random.default_rng(0)
    return datasets.make_dataset("digits", rng.integers(0, 255, (400, 4, 4)), np.arange(400) % 10)


def training(dataset, method="cgpfl", **changes) -> Training:
    experiment = load({**CONFIG, **changes})
    parts = {seed: partition.make_partition(dataset.y, clients=10, seed=seed, classes=10) for seed in experiment.seeds}
    return Training(experiment.job("digits", "mlr", method), experiment.training.model_dump(), dataset, parts)


def test_all_runs_are_kept_and_gathered_in_the_order_of_the_job(digits, tmp_path):
    job, store, told = training(digits), Store(tmp_path), []
    assert job.complete(store, threads=1, on_stored=told.extend) == 6
    assert sorted(told) == sorted(job.keys)
    frames = job.gather(store)
    runs = frames["runs"]
    assert list(runs["run"]) == job.keys
    assert list(zip(runs["label"], runs["lam"], runs["seed"], strict=True)) == [
        (f"cgpfl[contexts={contexts}]", lam, seed)
        for contexts, lam in ((2, 12), (4, 5), (4, 12))
        for seed in (0, 1)
    ]  # fmt: skip
    assert [list(parts) for parts in runs["parts"]] == [["table1"]] * 2 + [["lam"]] * 4
    assert set(frames["history"]["run"]) == set(frames["assignments"]["run"]) == set(job.keys)
    assert set(frames["history"]["method"]) == {"cgpfl"}
    assert len(frames["assignments"]) == 6 * 2 * 10
    results.write(frames, tmp_path / "frames")
    pd.testing.assert_frame_equal(results.read([tmp_path / "frames"])["history"], frames["history"])


def test_only_what_the_store_lacks_is_trained(digits, tmp_path):
    store = Store(tmp_path)
    assert training(digits, seeds=[0]).complete(store, threads=1) == 3
    before = training(digits, seeds=[0]).gather(store)["history"]
    assert training(digits).complete(store, threads=1) == 3
    after = training(digits).gather(store)["history"]
    assert training(digits).complete(store, threads=1) == 0
    pd.testing.assert_frame_equal(after[after["seed"] == 0].reset_index(drop=True), before)


def test_what_decides_numbers_is_in_the_keys_and_nothing_else(digits):
    keys = training(digits, "fedavg").keys
    same = {"device": "cpu", "threads": 7, "memory_gb": 1.0}
    assert training(digits, "fedavg", training={**CONFIG["training"], **same}).keys == keys
    for name, value in {"rounds": 3, "batch_size": 5, "participation": 0.5, "dtype": "float64",
                        "eval_every": 2, "train_loss_samples": 1}.items():  # fmt: skip
        other = training(digits, "fedavg", training={**CONFIG["training"], name: value})
        assert not set(other.keys) & set(keys), name
    assert not set(training(digits, "fedavg", params={"local_steps": 2}).keys) & set(keys)
    assert not set(training(replace(digits, x=digits.x[::-1]), "fedavg").keys) & set(keys)
    assert len(set(keys)) == 2


def test_runs_come_with_their_labels_and_what_they_are_made_by(digits, tmp_path):
    job, store = training(digits, "fedavg", seeds=[0]), Store(tmp_path)
    job.complete(store, threads=1)
    [(label, run)] = job.labelled(store, job.keys)
    assert label == "fedavg"
    assert run.facts["seed"] == 0
    assert {"commit", "python", "torch", "device", "threads", "processor", "finished"} <= set(run.made)
    assert run.made["cores"] == os.cpu_count()
    if sys.platform != "win32":
        assert 50 < run.made["peak_mb"] < 50_000  # in MB: Python with torch
    assert results.content_key(run.facts) == run.key


@pytest.mark.parametrize("how", ["standardise", "unit"])
def test_bytes_are_trained_on_as_their_scaled_floats(how):
    rng = np.random.default_rng(0)
    colour = datasets.make_dataset("digits", rng.integers(0, 255, (400, 4, 4, 3)), np.arange(400) % 10)
    job = training(colour, "fedavg", training={**CONFIG["training"], "scale": how})
    clients = job.clients[0]
    assert clients.x.dtype == torch.uint8
    x, _ = clients.gathered(torch.arange(400))
    np.testing.assert_allclose(x, datasets.scaled(colour.x, how), rtol=1e-5, atol=1e-6)
    floats = training(datasets.make_dataset("digits", colour.x.astype(np.float32), colour.y), "fedavg").clients[0]
    assert floats.x.dtype == torch.float32
    assert floats.scaling is None
