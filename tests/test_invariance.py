"""A run's numbers are its own: whatever runs beside it, in whatever order, threads, blocks or pieces.

On a CPU with MKL they are the same to the last bit. With another matrix library the order in which a product is added
up may depend on its operands' place in memory: there the tests allow a relative difference of 1e-5 (float32) or 1e-12.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import toy

import cgpfl
from cgpfl import rounds, simulation
from cgpfl.checkpoint import Checkpoint
from cgpfl.runs import combinations, train

EXACT = torch.backends.mkl.is_available()
SEEDS = [0, 1]
SWEEPS: dict[str, dict[str, Any]] = {
    "local": {"lr": [0.1, 0.03]},
    "fedavg": {"lr": [0.1, 0.03], "weights": ["samples", "uniform"]},
    "fedavg_ft": {"lr": [0.1, 0.03], "finetune_steps": 2},
    "fedprox": {"lr": 0.1, "mu": [0.3, 1.0]},
    "ifca": {"lr": [0.1, 0.03], "contexts": [2, 3]},
    "l2sgd": {"lr": 0.1, "lam": [0.3, 1.0], "p": [0.3, 0.6]},
    "apfl": {"lr": [0.1, 0.03], "mix": [0.4, "adaptive"]},
    "perfedavg": {"adapt_lr": [0.05, 0.2], "meta_lr": 0.1},
    "pfedme": {"lam": [4.0, 9.0], "lr": 0.03},
    "ditto": {"lr": 0.1, "lam": [0.5, 2.0]},
    "cgpfl": {"lam": [4.0, 9.0], "lr": 0.03, "contexts": [2, 3]},
    "cgpfl_heur": {"lam": [4.0, 9.0], "lr": 0.03},
    "cgpfl_oracle": {"lam": [4.0, 9.0], "lr": 0.03},
}
# Each seed has other clients, of other sizes; one has a single sample.
SMALL = {seed: toy.clients(seed, shape=(5,), sizes=(1, 4, 7, 12 + 9 * seed)) for seed in SEEDS}
SETTINGS: dict[str, Any] = {"model": "dnn", "model_args": {"hidden": 5}, "rounds": 3, "batch_size": 4, "device": "cpu"}


def simulated(method: str, clients: Any = SMALL, seeds: list[int] = SEEDS, **given: Any) -> cgpfl.Result:
    params = {"local_steps": 3, "l2": [0.0, 0.01], **given.pop("params", SWEEPS[method])}
    return cgpfl.simulate(clients, method=method, seeds=seeds, params=params, **{**SETTINGS, **given})


def assert_same(one: torch.Tensor, other: torch.Tensor) -> None:
    if EXACT or not one.is_floating_point():
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
        assert torch.equal(one.isnan(), other.isnan())
    else:
        bound = 1e-5 if one.dtype == torch.float32 else 1e-12
        torch.testing.assert_close(one, other, rtol=bound, atol=bound, equal_nan=True)


def assert_same_run(one: cgpfl.Result, run: int, other: cgpfl.Result, other_run: int) -> None:
    """Run ``run`` of ``one`` is run ``other_run`` of ``other`` in everything but the time it took."""
    assert set(one.state) == set(other.state)
    for name in one.state:
        a, b = one.state[name][run], other.state[name][other_run]
        both = min(len(a), len(b))  # of the contexts that the longer one has for other runs nothing is asked
        assert_same(a[:both], b[:both])
    both = min(one.initial.shape[1], other.initial.shape[1])
    assert_same(one.initial[run, :both], other.initial[other_run, :both])
    for name in ("runs", "history", "assignments", "clustering", "heuristic"):
        frames = [
            frame[frame["run"] == number].drop(columns=["run", "seconds"], errors="ignore").reset_index(drop=True)
            for frame, number in ((getattr(one, name), run), (getattr(other, name), other_run))
        ]
        tolerance = {"check_exact": True} if EXACT else {"rtol": 1e-5}
        pd.testing.assert_frame_equal(*frames, check_dtype=False, **tolerance)


def assert_same_result(one: cgpfl.Result, other: cgpfl.Result) -> None:
    assert len(one.runs) == len(other.runs)
    for run in one.runs["run"]:
        assert_same_run(one, run, other, run)


def points_of(method: str, l2: list[float]) -> list[dict[str, Any]]:
    return combinations({"local_steps": 3, "l2": l2, **SWEEPS[method]})


# --- sweeps ---------------------------------------------------------------------------------------------------------

SETUPS = [("dnn", "float32", 4, 0.5, 5), ("mlr", "float64", "full", 1.0, None)]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
@pytest.mark.parametrize("method", SWEEPS)
def test_a_run_alone_is_the_run_in_a_sweep(method, setup):
    model, dtype, batch_size, participation, train_loss_samples = setup
    settings: dict[str, Any] = {
        "model": model,
        "model_args": {"hidden": 5} if model == "dnn" else {},
        "dtype": dtype,
        "batch_size": batch_size,
        "participation": participation,
        "train_loss_samples": train_loss_samples,
    }
    sweep = simulated(method, **settings)
    points = points_of(method, [0.0, 0.01])
    assert len(sweep.runs) == len(points) * len(SEEDS)
    for place in (0, len(points) - 1):
        for at, seed in enumerate(SEEDS):
            alone = simulated(method, SMALL[seed], [seed], params=points[place], **settings)
            assert_same_run(sweep, place * len(SEEDS) + at, alone, 0)


def test_the_order_of_runs_does_not_matter():
    for method in ("cgpfl", "l2sgd"):
        sweep = simulated(method)
        params = {name: value[::-1] if isinstance(value, list) else value for name, value in SWEEPS[method].items()}
        backwards = simulated(method, seeds=SEEDS[::-1], params={**params, "l2": [0.01, 0.0]})
        for run in sweep.runs["run"]:
            assert_same_run(sweep, run, backwards, len(sweep.runs) - 1 - run)


def test_which_runs_share_a_batch_does_not_matter():
    """``train`` takes any list of runs, of repeated, mixed and partly equal settings."""
    specs = [cgpfl.RunSpec(seed, point) for point in points_of("cgpfl", [0.0]) for seed in SEEDS]
    whole = train(SMALL, SETTINGS["model"], "cgpfl", specs, keep_state=True, **_without_model())
    order = [3, 0, 6, 3]
    some = train(
        SMALL, SETTINGS["model"], "cgpfl", [specs[place] for place in order], keep_state=True, **_without_model()
    )
    for run, place in enumerate(order):
        assert_same_run(whole, place, some, run)


def _without_model() -> dict[str, Any]:
    return {name: value for name, value in SETTINGS.items() if name != "model"}


# --- threads, memory and blocks -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SWEEPS)
def test_threads_memory_and_blocks_do_not_matter(method, monkeypatch):
    given: dict[str, Any] = {"params": {**SWEEPS[method], "l2": 0.01}, "rounds": 2}
    plain = simulated(method, **given)
    assert_same_result(plain, simulated(method, **given, threads=3))
    assert_same_result(plain, simulated(method, **given, memory_gb=1e-9))
    for training, testing in ((1, 1), (3000, 20_000)):
        monkeypatch.setattr(rounds, "CACHE_BYTES", training)
        monkeypatch.setattr(simulation, "TEST_BYTES", testing)
        assert_same_result(plain, simulated(method, **given))


@pytest.mark.parametrize(("model", "dtype"), [("mlr", "float32"), ("dnn", "float32"), ("dnn", "float64")])
@pytest.mark.parametrize("method", ["fedavg", "perfedavg", "cgpfl"])
def test_nothing_matters_at_the_size_of_mnist(method, model, dtype, monkeypatch):
    """784 inputs and 128 hidden units: rows whose place in memory is odd, products that the library cuts up."""
    clients = toy.clients(contexts=(0, 1, 2, 1, 2), classes=10, shape=(28, 28), sizes=(9, 33, 51))
    settings: dict[str, Any] = {"model": model, "model_args": {}, "dtype": dtype, "batch_size": 7, "rounds": 2}
    params = {**SWEEPS[method], "l2": 0.001, "local_steps": 2}
    sweep = simulated(method, clients, params=params, **settings)
    point = combinations(params)[1]
    alone = simulated(method, clients, SEEDS[1:], params=point, **settings)
    assert_same_run(sweep, 3, alone, 0)
    monkeypatch.setattr(rounds, "CACHE_BYTES", 1)
    monkeypatch.setattr(simulation, "TEST_BYTES", 1)
    assert_same_result(sweep, simulated(method, clients, params=params, threads=2, **settings))


def test_a_convolutional_network_is_invariant_too(monkeypatch):
    clients = toy.clients(contexts=(0, 1, 2), shape=(16, 16), sizes=(1, 5, 9))
    settings: dict[str, Any] = {"model": "cnn", "model_args": {"channels": (2, 3), "hidden": 4}, "rounds": 2}
    params = {"lam": [4.0, 9.0], "lr": 0.03, "contexts": 2, "l2": 0.001}
    sweep = simulated("cgpfl", clients, params=params, **settings)
    alone = simulated("cgpfl", clients, SEEDS[1:], params={**params, "lam": 9.0}, **settings)
    assert_same_run(sweep, 3, alone, 0)
    monkeypatch.setattr(rounds, "CACHE_BYTES", 1)
    monkeypatch.setattr(simulation, "TEST_BYTES", 1)
    assert_same_result(sweep, simulated("cgpfl", clients, params=params, threads=2, **settings))


# --- random state ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", SWEEPS)
@pytest.mark.parametrize("path", ["auto", "generic"])
def test_random_state_of_the_process_is_neither_used_nor_changed(method, path):
    results = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        results.append(simulated(method, rounds=1, path=path, params={}))
        assert torch.equal(before[0], torch.get_rng_state())
        assert before[1:] == (np.random.get_state()[1].tolist(), random.getstate())
    assert_same_result(*results)


# --- checkpoints ----------------------------------------------------------------------------------------------------


class KilledError(Exception):
    """What ends a run in these tests."""


def killed_at(stop: int):
    def progress(done: int, of: int, accuracy: float) -> None:
        if done == stop:
            raise KilledError

    return progress


@pytest.mark.parametrize("method", SWEEPS)
def test_a_run_that_was_killed_ends_as_if_it_had_not(method, monkeypatch, tmp_path):
    monkeypatch.setattr(Checkpoint, "SECONDS", 0.0)
    params = {name: value[-1] if isinstance(value, list) else value for name, value in SWEEPS[method].items()}
    given: dict[str, Any] = {"params": {**params, "l2": 0.01}, "rounds": 4, "participation": 0.6}
    whole = simulated(method, **given)
    file = tmp_path / "new folder" / "checkpoint"
    with pytest.raises(KilledError):
        simulated(method, **given, checkpoint=file, progress=killed_at(3))
    assert file.exists()
    rounds: list[int] = []
    resumed = simulated(method, **given, checkpoint=file, progress=lambda done, of, accuracy: rounds.append(done))
    assert rounds == [3, 4]
    assert_same_result(whole, resumed)
    assert list(file.parent.iterdir()) == []


def test_a_checkpoint_of_other_runs_or_half_a_file_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(Checkpoint, "SECONDS", 0.0)
    file = tmp_path / "checkpoint"
    given: dict[str, Any] = {"params": {"lr": 0.1, "l2": 0.0}}
    whole = simulated("fedavg", **given)
    for other in ({"params": {"lr": 0.2, "l2": 0.0}}, {**given, "rounds": 4}, {**given, "seeds": [1, 0]}):
        with pytest.raises(KilledError):
            simulated("fedavg", **other, checkpoint=file, progress=killed_at(2))
        assert_same_result(whole, simulated("fedavg", **given, checkpoint=file))
    file.write_bytes(b"half a file")
    assert_same_result(whole, simulated("fedavg", **given, checkpoint=file))


# --- divergence -----------------------------------------------------------------------------------------------------

EXPLODING = {
    "l2sgd": {"lr": 0.1, "lam": 0.0},
    "perfedavg": {"meta_lr": 0.1, "adapt_lr": 0.1},
    "pfedme": {"eta": 0.05, "lam": 4.0},
    "cgpfl": {"eta": 0.05, "lam": 4.0, "contexts": 2},
    "cgpfl_heur": {"eta": 0.05, "lam": 4.0},
    "cgpfl_oracle": {"eta": 0.05, "lam": 4.0},
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", SWEEPS)
@pytest.mark.parametrize("model", ["mlr", "dnn"])
def test_a_run_that_diverges_is_marked_and_leaves_the_others_alone(method, model, dtype):
    """The exploding coefficient is also tried at a size where the models stay finite and their squares do not."""
    params = EXPLODING.get(method, {"lr": 0.1})
    explosive = next(name for name in ("eta", "meta_lr", "lr") if name in params)
    huge = [1e30, 1e12] if dtype == "float32" else [1e200, 1e60]
    settings: dict[str, Any] = {
        "model": model,
        "model_args": {"hidden": 5} if model == "dnn" else {},
        "dtype": dtype,
        "seeds": [0],
    }
    values = [huge[0], params[explosive], huge[1]]
    if method == "l2sgd":
        params = {**params, "p": 0.3}
    with np.errstate(all="ignore"):
        both = simulated(method, params={**params, "l2": 0.1, explosive: values}, **settings)
    last = both.history[both.history["headline"] & (both.history["round"] == 3)].set_index("run")
    assert bool(last["diverged"][0])
    assert not both.history.loc[both.history["run"] == 1, "diverged"].any()
    assert both.history["accuracy"].between(0, 1).all()
    sane = simulated(method, params={**params, "l2": 0.1}, **settings)
    assert_same_run(both, 1, sane, 0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("other", ["other bytes", "floats"])
def test_samples_of_one_seed_may_be_scaled_otherwise_than_anothers(dtype, other):
    rng = np.random.default_rng(0)
    y, lists = rng.integers(0, 3, 60), {"train": [range(20), range(20, 40)], "test": [range(40, 50), range(50, 60)]}
    x = rng.integers(0, 256, (60, 5), dtype=np.uint8)
    ours = cgpfl.ClientData.from_pool(x, y, **lists, classes=3, scaling=(127.5, 1 / 73.9))
    scaling = {"scaling": (100, 0.01)} if other == "other bytes" else {}
    theirs = cgpfl.ClientData.from_pool(x if scaling else x / 100, y, **lists, classes=3, **scaling)
    both = simulated("pfedme", {0: ours, 1: theirs}, dtype=dtype)
    for seed, data in enumerate((ours, theirs)):
        alone = simulated("pfedme", data, [seed], dtype=dtype)
        runs = [run for run, row in both.runs.iterrows() if row["seed"] == seed]
        for at, run in enumerate(runs):
            assert_same_run(alone, at, both, run)


@pytest.mark.parametrize("channels", [(1, 1), (2, 1), (2, 3)])
def test_threads_do_not_matter_where_few_features_reach_the_dense_layers(channels):
    """With three threads, four clients are blocks of two and of one."""
    data = toy.clients(0, contexts=(0, 1, 2, 0), shape=(17, 19), sizes=(30,))
    args = {"model": "cnn", "model_args": {"channels": channels, "hidden": 33}, "batch_size": 20, "rounds": 2}
    one, three = (simulated("fedavg", data, [0], **args, params={"l2": 0.0}, threads=threads) for threads in (1, 3))
    assert_same_run(one, 0, three, 0)
