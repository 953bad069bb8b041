"""The public interface: methods and their parameters, errors, shapes and columns of results."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy

import cgpfl
from cgpfl.errors import UserError
from cgpfl.runs import train

COMMON = ("local_steps", "lr", "l2")
MOREAU = ("lam", "inner_steps", "eta", "carry")
# Parameters beside the common ones with defaults, and tested models with the headline first (the design's table).
METHODS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "local": ({}, ("personal",)),
    "fedavg": ({"weights": "samples"}, ("global",)),
    "fedavg_ft": ({"finetune_steps": 10, "weights": "samples"}, ("personal", "global")),
    "fedprox": ({"mu": 0.1, "weights": "samples"}, ("global",)),
    "ifca": ({"contexts": 4, "restarts": 1}, ("context",)),
    "l2sgd": ({"lam": 1.0, "p": None, "schedule": "bernoulli"}, ("personal",)),
    "apfl": ({"mix": 0.5}, ("personal", "global", "local")),
    "perfedavg": ({"adapt_lr": 0.01, "meta_lr": 0.005, "variant": "hf", "delta": 1e-3}, ("personal", "global")),
    "pfedme": (
        {"lam": 12.0, "inner_steps": 5, "eta": 0.05, "carry": "reset", "beta": 1.0, "weights": "uniform"},
        ("personal", "local", "global"),
    ),
    "ditto": ({"lam": 1.0}, ("personal", "global")),
    "cgpfl": (
        {
            **{"lam": 12.0, "inner_steps": 5, "eta": 0.05, "carry": "reset"},
            **{"contexts": 4, "alpha": 1.0, "step": "lr_lambda", "kmeans_init": "kmeans++"},
        },
        ("personal", "local", "context"),
    ),
    "cgpfl_heur": (
        {
            **{"lam": 12.0, "inner_steps": 5, "eta": 0.05, "carry": "reset", "alpha": 1.0, "step": "lr_lambda"},
            **{"kmeans_init": "kmeans++", "mu": "auto", "max_contexts": None, "heur_rounds": 1},
        },
        ("personal", "local", "context"),
    ),
    "cgpfl_oracle": (
        {"lam": 12.0, "inner_steps": 5, "eta": 0.05, "carry": "reset", "alpha": 1.0, "step": "lr_lambda"},
        ("personal", "local", "context"),
    ),
}
# What is in ``state``, by the number of dimensions that it has.
STATE = {
    "local": {"personal"},
    "fedavg": {"global"},
    "fedavg_ft": {"personal", "global"},
    "fedprox": {"global"},
    "ifca": {"contexts", "assignment"},
    "l2sgd": {"personal"},
    "apfl": {"personal", "global", "local"},
    "perfedavg": {"personal", "global"},
    "pfedme": {"personal", "local", "global"},
    "ditto": {"personal", "global"},
    "cgpfl": {"personal", "local", "contexts", "assignment"},
    "cgpfl_heur": {"personal", "local", "contexts", "assignment"},
    "cgpfl_oracle": {"personal", "local", "contexts", "assignment"},
}
# Minibatch gradients of a client in a round, of R = 3 and S = 2; and models it sends and receives.
COST = {
    "local": (3, 0, 0),
    "fedavg": (3, 1, 1),
    "fedavg_ft": (3, 1, 1),
    "fedprox": (3, 1, 1),
    "ifca": (3, 1, 3),
    "l2sgd": (3, 1, 1),
    "apfl": (6, 1, 1),
    "perfedavg": (12, 1, 1),
    "pfedme": (6, 1, 1),
    "ditto": (6, 1, 1),
    "cgpfl": (6, 1, 1),
    "cgpfl_heur": (6, 1, 1),
    "cgpfl_oracle": (6, 1, 1),
}
DATA = toy.clients(0)
N = DATA.clients
D = 6 * 3 + 3
HISTORY = [
    *("run", "seed", "round", "tested", "headline", "accuracy", "accuracy_client_mean", "accuracy_client_std"),
    *("accuracy_worst_decile", "loss", "train_loss", "gradients", "diverged"),
]


def some_params(method: str) -> dict[str, Any]:
    """Small and quick ones."""
    wanted = {"local_steps": 3, "inner_steps": 2, "contexts": 3, "finetune_steps": 1}
    return {name: value for name, value in wanted.items() if name in cgpfl.methods()[method].params}


def simulated(method: str = "fedavg", clients: Any = DATA, **given: Any) -> cgpfl.Result:
    params = given.pop("params", {})
    params = {**some_params(method), **params} if isinstance(params, dict) and isinstance(method, str) else params
    settings = {"model": "mlr", "rounds": 2, "seeds": [0], "batch_size": 4, "device": "cpu"}
    return cgpfl.simulate(clients, method=method, params=params, **{**settings, **given})


def assert_one_sentence(error: Exception, key: str) -> None:
    text = str(error)
    assert text.startswith(key), text
    assert "\n" not in text
    assert not text.endswith(".")


# --- what there is ----------------------------------------------------------------------------------------------------


def test_the_methods_and_their_parameters_are_those_of_the_design():
    found = cgpfl.methods()
    assert set(found) == set(METHODS)
    for name, (extra, tested) in METHODS.items():
        info = found[name]
        common = [key for key in COMMON if (name, key) != ("perfedavg", "lr")]
        assert set(info.params) == {*common, *extra}
        assert {key: info.params[key].default for key in extra} == extra
        assert info.tested == tested
        assert info.headline == tested[0]
        assert info.description
        assert info.source


def test_every_parameter_says_what_it_is_and_what_is_valid():
    for info in cgpfl.methods().values():
        for name, param in info.params.items():
            assert param.name == name
            assert param.description
            assert param.valid
            assert param.default is None or param.checked(param.default, "any") == param.default


def test_the_public_names_exist_and_are_documented():
    for name in cgpfl.__all__:
        assert inspect.getdoc(getattr(cgpfl, name)), name


# --- parameters -------------------------------------------------------------------------------------------------------


def test_defaults_are_filled_in():
    resolved = cgpfl.resolve_params("pfedme", {"lam": 3}, "dnn", 5)
    assert resolved == {"local_steps": 10, "lr": 0.005, "l2": 0.0, **METHODS["pfedme"][0], "lam": 3.0}
    assert cgpfl.resolve_params("fedavg", {}, "mlr")["l2"] == 0.001
    assert cgpfl.resolve_params("fedavg", {"l2": 0}, "mlr")["l2"] == 0.0
    assert cgpfl.resolve_params("l2sgd", {"local_steps": 9})["p"] == 0.1
    assert cgpfl.resolve_params("fedavg", {"lr": None})["lr"] == 0.005


@pytest.mark.parametrize("name", METHODS)
def test_an_unknown_parameter_is_an_error_that_lists_the_valid_ones(name):
    with pytest.raises(UserError) as raised:
        cgpfl.resolve_params(name, {"learning_rate": 0.1})
    assert_one_sentence(raised.value, f"{name}.learning_rate")
    for param in cgpfl.methods()[name].params:
        assert param in str(raised.value)


def test_an_unknown_method_is_an_error_that_lists_the_valid_ones():
    with pytest.raises(UserError) as raised:
        cgpfl.simulate(DATA, "mlr", "scaffold", 1)
    assert_one_sentence(raised.value, "method: 'scaffold'")
    for name in METHODS:
        assert name in str(raised.value)


BAD_PARAMS = [
    ("fedavg", {"lr": 0}, "fedavg.lr"),
    ("fedavg", {"lr": -1}, "fedavg.lr"),
    ("fedavg", {"lr": float("nan")}, "fedavg.lr"),
    ("fedavg", {"lr": float("inf")}, "fedavg.lr"),
    ("fedavg", {"lr": "0.1"}, "fedavg.lr"),
    ("fedavg", {"lr": True}, "fedavg.lr"),
    ("fedavg", {"l2": -0.1}, "fedavg.l2"),
    ("fedavg", {"local_steps": 0}, "fedavg.local_steps"),
    ("fedavg", {"local_steps": 2.5}, "fedavg.local_steps"),
    ("fedavg", {"weights": "size"}, "fedavg.weights"),
    ("fedavg", {"weights": 1}, "fedavg.weights"),
    ("fedavg", {"lam": 1}, "fedavg.lam"),
    ("fedavg_ft", {"finetune_steps": -1}, "fedavg_ft.finetune_steps"),
    ("ifca", {"contexts": 0}, "ifca.contexts"),
    ("ifca", {"contexts": N + 1}, "ifca.contexts"),
    ("ifca", {"restarts": 0}, "ifca.restarts"),
    ("l2sgd", {"p": 0}, "l2sgd.p"),
    ("l2sgd", {"p": 1.5}, "l2sgd.p"),
    ("l2sgd", {"lr": 0.03, "lam": 12, "local_steps": 10}, "l2sgd"),
    ("l2sgd", {"lr": 0.03, "lam": 12, "local_steps": 10, "schedule": "fixed"}, "l2sgd"),
    ("apfl", {"mix": 1.5}, "apfl.mix"),
    ("apfl", {"mix": "automatic"}, "apfl.mix"),
    ("perfedavg", {"lr": 0.1}, "perfedavg.lr"),
    ("perfedavg", {"meta_lr": 0}, "perfedavg.meta_lr"),
    ("perfedavg", {"delta": 0}, "perfedavg.delta"),
    ("perfedavg", {"variant": "maml"}, "perfedavg.variant"),
    ("pfedme", {"lam": -1}, "pfedme.lam"),
    ("pfedme", {"eta": 0}, "pfedme.eta"),
    ("pfedme", {"inner_steps": 0}, "pfedme.inner_steps"),
    ("pfedme", {"beta": 0}, "pfedme.beta"),
    ("pfedme", {"carry": "keep"}, "pfedme.carry"),
    ("fedprox", {"mu": -1}, "fedprox.mu"),
    ("ditto", {"lam": -1}, "ditto.lam"),
    ("cgpfl", {"contexts": N + 1}, "cgpfl.contexts"),
    ("cgpfl", {"alpha": 0}, "cgpfl.alpha"),
    ("cgpfl", {"alpha": 1.1}, "cgpfl.alpha"),
    ("cgpfl", {"step": "lr"}, "cgpfl.step"),
    ("cgpfl", {"kmeans_init": "random"}, "cgpfl.kmeans_init"),
    ("cgpfl_heur", {"contexts": 3}, "cgpfl_heur.contexts"),
    ("cgpfl_heur", {"max_contexts": N + 1}, "cgpfl_heur.max_contexts"),
    ("cgpfl_heur", {"mu": -1}, "cgpfl_heur.mu"),
    ("cgpfl_heur", {"mu": "big"}, "cgpfl_heur.mu"),
    ("cgpfl_oracle", {"contexts": 3}, "cgpfl_oracle.contexts"),
]


@pytest.mark.parametrize(("method", "params", "key"), BAD_PARAMS, ids=str)
def test_bad_parameters_are_an_error_that_names_the_key(method, params, key):
    with pytest.raises(UserError) as raised:
        cgpfl.simulate(DATA, "mlr", method, 1, params=params)
    assert_one_sentence(raised.value, key)


def test_a_number_written_as_text_is_told_how_to_write_it():
    with pytest.raises(UserError, match=r"write 0\.001"):
        cgpfl.resolve_params("fedavg", {"lr": "1e-3"})


def test_the_error_for_c_above_1_names_what_makes_it():
    with pytest.raises(UserError) as raised:
        cgpfl.resolve_params("l2sgd", {"lr": 0.03, "lam": 12.0, "local_steps": 10})
    for word in ("lr=0.03", "lam=12", "p=0.0909", "3.6"):
        assert word in str(raised.value)


def test_numbers_of_numpy_are_numbers():
    found = simulated(
        "cgpfl", params={"contexts": np.int64(2), "lam": list(np.linspace(1, 2, 2)), "lr": np.float32(0.5)}
    )
    assert list(found.runs["lam"]) == [1.0, 2.0]
    assert list(found.runs["contexts"]) == [2, 2]
    assert list(found.runs["lr"]) == [0.5, 0.5]


def test_an_array_is_a_sweep_axis():
    assert list(simulated(params={"lr": np.array([0.1, 0.2])}).runs["lr"]) == [0.1, 0.2]


BAD_SETTINGS = [
    ({"rounds": 0}, "rounds"),
    ({"rounds": 1.5}, "rounds"),
    ({"rounds": True}, "rounds"),
    ({"seeds": []}, "seeds"),
    ({"seeds": [-1]}, "seeds"),
    ({"seeds": [0.5]}, "seeds"),
    ({"batch_size": 0}, "batch_size"),
    ({"batch_size": "all"}, "batch_size"),
    ({"batch_size": 2.5}, "batch_size"),
    ({"participation": 0}, "participation"),
    ({"participation": 1.1}, "participation"),
    ({"participation": "0.5"}, "participation"),
    ({"threads": 0}, "threads"),
    ({"eval_every": 0}, "eval_every"),
    ({"train_loss_samples": 0}, "train_loss_samples"),
    ({"memory_gb": 0}, "memory_gb"),
    ({"memory_gb": "4"}, "memory_gb"),
    ({"dtype": "float16"}, "dtype"),
    ({"device": "tpu"}, "device"),
    ({"path": "fast"}, "path"),
    ({"batch_size": 10**30}, "batch_size"),
    ({"batch_size": np.array([20, 30])}, "batch_size"),
    ({"memory_gb": float("inf")}, "memory_gb"),
    ({"device": None}, "device"),
    ({"device": 5}, "device"),
    ({"dtype": []}, "dtype"),
    ({"model": None}, "model"),
    ({"method": None}, "method"),
    ({"model_args": [1]}, "model_args"),
    ({"checkpoint": str(Path(__file__).parent)}, "checkpoint"),
    ({"params": [("lr", 0.1)]}, "params"),
    ({"clients": None}, "clients"),
    ({"clients": toy.arrays()}, "clients"),
    ({"clients": {0: "abc"}}, "clients"),
    ({"params": {"lr": []}}, "params.lr"),
    ({"model_args": {"hidden": 3}}, "model mlr"),
    ({"clients": {1: DATA}}, "clients"),
    ({"method": "cgpfl_oracle", "clients": cgpfl.ClientData.from_arrays(toy.arrays())}, "cgpfl_oracle"),
]


@pytest.mark.parametrize(("settings", "key"), BAD_SETTINGS, ids=lambda value: str(value)[:40])
def test_bad_settings_are_an_error_that_names_the_key(settings, key):
    with pytest.raises(UserError) as raised:
        simulated(**settings)
    assert_one_sentence(raised.value, key)


def test_an_unknown_model_is_an_error_that_lists_the_valid_ones():
    with pytest.raises(UserError, match="valid are mlr, dnn, cnn"):
        cgpfl.simulate(DATA, "resnet", "fedavg", 1)


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_shapes_and_columns_of_a_result(method):
    found = simulated(method, seeds=[0, 5], params={"l2": [0.0, 0.1]}, dtype="float64")
    runs, contexts = 4, 3
    assert set(found.state) == STATE[method]
    shapes = {
        "personal": (runs, N, D),
        "local": (runs, N, D),
        "global": (runs, D),
        "contexts": (runs, contexts, D),
        "assignment": (runs, N),
    }
    for name, value in found.state.items():
        assert value.shape == shapes[name]
        assert value.dtype == (torch.int64 if name == "assignment" else torch.float64)
    assert found.initial.shape == ((runs, contexts, D) if method == "ifca" else (runs, D))

    assert list(found.history.columns) == HISTORY
    tested = METHODS[method][1]
    assert len(found.history) == runs * 2 * len(tested)
    assert set(found.history["tested"]) == set(tested)
    assert (found.history["headline"] == (found.history["tested"] == tested[0])).all()
    assert found.history["accuracy"].between(0, 1).all()
    assert found.history["accuracy_client_std"].between(0, 0.5).all()
    assert (found.history["accuracy_worst_decile"] <= found.history["accuracy_client_mean"]).all()

    assert list(found.runs["run"]) == list(range(runs))
    assert list(found.runs["seed"]) == [0, 5, 0, 5]
    assert list(found.runs["l2"]) == [0.0, 0.0, 0.1, 0.1]
    assert (found.runs["parameters"] == D).all()
    assert set(cgpfl.methods()[method].params) <= set(found.runs.columns)


@pytest.mark.parametrize("method", METHODS)
def test_costs_of_a_round(method):
    params = {"p": 0.25} if method == "l2sgd" else {}
    whole, half = (simulated(method, params=params, participation=share) for share in (1.0, 4 / 7))
    gradients, sent, received = COST[method]
    for found, share in ((whole, 1.0), (half, 4 / 7)):
        run = found.runs.iloc[0]
        assert run["gradients_per_round"] == pytest.approx(gradients * share)
        assert run["sent_per_round"] == pytest.approx(sent * D * share)
        assert run["received_per_round"] == pytest.approx(received * D * share)
        np.testing.assert_allclose(found.history["gradients"], found.history["round"] * gradients * share)


def test_first_order_perfedavg_costs_two_gradients_a_step():
    assert simulated("perfedavg", params={"variant": "fo"}).runs["gradients_per_round"][0] == 6


def test_frames_of_contexts():
    found = simulated("cgpfl_heur", seeds=[0, 1], params={"mu": 1.0})
    assert list(found.assignments.columns) == ["run", "round", "client", "context"]
    assert len(found.assignments) == 2 * 2 * N
    expected = {"run", "round", "kmeans_iterations", "contexts_found", "moved", "between", "within"}
    assert set(found.clustering.columns) == expected
    assert len(found.clustering) == 4
    assert {"run", "contexts", "e", "complexity", "cost", "chosen"} <= set(found.heuristic.columns)
    assert list(found.heuristic["contexts"]) == [1, 2, 3] * 2
    assert found.heuristic.groupby("run")["chosen"].sum().eq(1).all()
    np.testing.assert_allclose(found.heuristic["e"], found.heuristic["complexity"] + found.heuristic["cost"])
    assert "contexts_chosen" in found.runs
    last = found.assignments[found.assignments["round"] == 2].sort_values(["run", "client"])
    assert found.state["assignment"].flatten().tolist() == list(last["context"])


@pytest.mark.parametrize("method", ["local", "fedavg", "pfedme"])
def test_methods_without_contexts_have_no_frames_of_them(method):
    found = simulated(method)
    assert [len(frame) for frame in (found.assignments, found.clustering, found.heuristic)] == [0, 0, 0]


def test_lists_span_a_grid_and_the_seed_varies_fastest():
    found = simulated("ditto", seeds=[7, 3], params={"lam": [1.0, 2.0], "lr": (0.1, 0.2)})
    assert list(found.runs["lam"]) == [1.0] * 4 + [2.0] * 4
    assert list(found.runs["lr"]) == [0.1, 0.1, 0.2, 0.2] * 2
    assert list(found.runs["seed"]) == [7, 3] * 4


def test_contexts_beyond_a_runs_own_are_missing():
    found = simulated("cgpfl", params={"contexts": [3, 1]})
    assert found.state["contexts"].shape == (2, 3, D)
    assert found.state["contexts"].isnan().any(-1).tolist() == [[False] * 3, [False, True, True]]


def test_seeds_can_be_one_number_or_an_array():
    assert list(simulated(seeds=4).runs["seed"]) == [4]
    assert list(simulated(seeds=np.arange(2)).runs["seed"]) == [0, 1]


def test_other_seeds_are_other_runs_and_equal_seeds_equal_ones():
    found = simulated(seeds=[0, 1, 0])
    assert not torch.equal(found.state["global"][0], found.state["global"][1])
    assert torch.equal(found.state["global"][0], found.state["global"][2])


def test_the_module_of_a_row_has_its_accuracy():
    """A state's columns are in the order of parameters_to_vector on ``build_model``."""
    found = simulated("local", dtype="float64")
    module = cgpfl.build_model("mlr", input_shape=(6,), classes=3).to(torch.float64)
    right = total = 0
    for row, (_, _, x, y) in zip(found.state["personal"][0], toy.arrays(0), strict=True):
        torch.nn.utils.vector_to_parameters(row, module.parameters())
        right += int((module(torch.as_tensor(x)).argmax(1).numpy() == y).sum())
        total += len(y)
    assert found.history["accuracy"].iloc[-1] == right / total


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_states_are_of_the_dtype_asked_for(dtype):
    found = simulated(dtype=dtype)
    assert found.state["global"].dtype == found.initial.dtype == getattr(torch, dtype)


def test_clients_of_one_run_are_not_changed():
    before = DATA.x.clone()
    for method in METHODS:
        simulated(method, rounds=1)
    assert torch.equal(DATA.x, before)
    assert DATA.x.dtype == torch.float64


# --- settings ---------------------------------------------------------------------------------------------------------


def test_evaluation_takes_place_every_so_many_rounds_and_at_the_end():
    every = simulated(rounds=5)
    some = simulated(rounds=5, eval_every=2)
    assert list(some.history["round"]) == [2, 4, 5]
    kept = every.history[every.history["round"].isin([2, 4, 5])].reset_index(drop=True)
    assert kept.equals(some.history)
    assert list(simulated(rounds=2, eval_every=9).history["round"]) == [2]


def test_progress_counts_the_rounds_of_all_batches():
    told: list[tuple[int, int, float]] = []
    found = simulated(
        "ifca", rounds=3, eval_every=2, params={"contexts": [1, 2]}, progress=lambda *facts: told.append(facts)
    )
    assert [facts[:2] for facts in told] == [(2, 6), (3, 6), (5, 6), (6, 6)]
    last = found.history[found.history["round"] == 3].set_index("run")["accuracy"]
    assert [told[1][2], told[3][2]] == list(last)


def test_finished_runs_are_handed_over_at_once():
    parts: list[cgpfl.Result] = []
    specs = [cgpfl.RunSpec(seed, {**some_params("ifca"), "contexts": k}) for k in (1, 2) for seed in (0, 1)]
    settings = {"rounds": 2, "batch_size": 4, "device": "cpu"}
    whole = train(DATA, "mlr", "ifca", specs, on_runs=parts.append, **settings)
    assert [list(part.runs["spec"]) for part in parts] == [[0, 1], [2, 3]]
    assert whole.state == {}
    for part in parts:
        assert set(part.history["run"]) == {0, 1}
    assert list(whole.history["accuracy"]) == [x for part in parts for run in (0, 1) for x in _of(part, run)]


def _of(part: cgpfl.Result, run: int) -> list[float]:
    return list(part.history.loc[part.history["run"] == run, "accuracy"])


def test_no_runs_are_an_error():
    with pytest.raises(UserError) as raised:
        train(DATA, "mlr", "fedavg", [], rounds=1)
    assert_one_sentence(raised.value, "specs")


def test_the_training_loss_can_be_of_a_draw():
    whole = simulated(rounds=1).history["train_loss"]
    most = simulated(rounds=1, train_loss_samples=18).history["train_loss"]
    some = simulated(rounds=1, train_loss_samples=5).history["train_loss"]
    assert list(whole) == list(most)
    assert list(whole) != list(some)
    assert some[0] == pytest.approx(whole[0], rel=0.3)


def test_each_seed_can_have_its_own_clients():
    """Of other sizes, and another pool; numbers of clients and shapes must agree."""
    other = toy.clients(5, sizes=(2, 30))
    found = simulated(clients={0: DATA, 1: other}, seeds=[0, 1])
    assert torch.equal(found.state["global"][1], simulated(clients=other, seeds=[1]).state["global"][0])
    with pytest.raises(UserError) as raised:
        simulated(clients={0: DATA, 1: toy.clients(5, contexts=(0, 1))}, seeds=[0, 1])
    assert_one_sentence(raised.value, "clients")


WIDER = toy.clients(5, sizes=(2, 30), shape=(7,))
FEWER = toy.clients(5, contexts=(0, 1))
UNKNOWN = cgpfl.ClientData.from_arrays(toy.arrays(), classes=3)


@pytest.mark.parametrize(
    ("second", "method", "params"),
    [(FEWER, "fedavg", {}), (WIDER, "fedavg", {}), (FEWER, "cgpfl", {"contexts": 2}), (UNKNOWN, "cgpfl_oracle", {})],
)
def test_data_of_all_seeds_are_checked_before_any_is_trained(second, method, params):
    """Also where the seeds are trained one after the other, for want of memory."""
    trained = []
    with pytest.raises(UserError) as raised:
        simulated(
            method=method,
            clients={0: DATA, 1: second},
            seeds=[0, 1],
            params=params,
            memory_gb=1e-9,
            progress=lambda *told: trained.append(told),
        )
    assert_one_sentence(raised.value, "c")
    assert not trained


def test_data_of_seeds_that_are_not_run_do_not_count():
    alone = simulated(clients={0: DATA}, seeds=[0])
    beside = simulated(clients={0: DATA, 1: WIDER, 2: toy.clients(5, classes=9)}, seeds=[0])
    assert torch.equal(alone.state["global"], beside.state["global"])


def test_samples_that_overflow_the_type_of_a_run_are_an_error():
    big = cgpfl.ClientData.from_arrays([(np.full((3, 2), 1e300), [0, 1, 0], np.ones((1, 2)), [1])])
    with pytest.raises(UserError, match="infinite as float32"):
        simulated(clients=big)


def test_a_number_in_an_array_is_a_number():
    assert list(simulated(params={"lr": np.array(0.5)}).runs["lr"]) == [0.5]


@pytest.mark.parametrize("memory_gb", [4.0, 1e-9])
def test_the_oracle_has_no_contexts_beyond_a_runs_own(memory_gb):
    seeds = {0: DATA, 1: toy.clients(3, contexts=(0, 1, 0, 1, 0, 1, 0))}
    found = simulated("cgpfl_oracle", clients=seeds, seeds=[0, 1], memory_gb=memory_gb).state["contexts"]
    missing = found.isnan().all(-1)
    assert missing.tolist() == [[False, False, False], [False, False, True]]


def test_participation_takes_that_share_of_the_clients_in_every_round():
    found = simulated("local", rounds=1, participation=0.5, dtype="float64")
    moved = (found.state["personal"][0] != found.initial[0]).any(1)
    assert int(moved.sum()) == round(0.5 * N)
    rare = simulated("local", rounds=1, participation=1e-6, dtype="float64")
    assert int((rare.state["personal"][0] != rare.initial[0]).any(1).sum()) == 1
    often = simulated("local", rounds=30, participation=0.3, eval_every=30, dtype="float64")
    assert bool((often.state["personal"][0] != often.initial[0]).any(1).all())


@pytest.mark.parametrize("method", METHODS)
def test_one_client_with_one_sample_is_enough(method):
    data = cgpfl.ClientData.from_arrays([(np.ones((1, 6)), [1], np.ones((1, 6)), [1])], contexts=[0], classes=30)
    params = {"contexts": 1} if method in ("ifca", "cgpfl") else {}
    for batch_size in (4, "full"):
        for given in ({}, {"participation": 0.2}):
            with np.errstate(all="raise"):
                found = _without_heuristic_warning(method, data, params, batch_size, given)
            assert not found.history["diverged"].any()
            assert len(found.history) == 2 * len(METHODS[method][1])


def _without_heuristic_warning(method, data, params, batch_size, given) -> cgpfl.Result:
    if method != "cgpfl_heur":
        return simulated(method, data, params=params, batch_size=batch_size, **given)
    with pytest.warns(UserWarning, match="parameters for m = 1 training samples"):
        return simulated(method, data, params=params, batch_size=batch_size, **given)


@pytest.mark.parametrize("method", METHODS)
def test_one_class_is_enough(method):
    data = toy.clients(classes=1, contexts=(0, 2, 2))
    params = {"contexts": 2} if method in ("ifca", "cgpfl") else {}
    found = simulated(method, data, params=params, rounds=1)
    assert (found.history["accuracy"] <= 1).all()
    assert not found.history["diverged"].any()


def test_no_source_file_of_the_engine_uses_the_global_random_state():
    for file in Path(inspect.getfile(cgpfl)).parent.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "np.random.seed" not in text, file
        assert "import random\n" not in text, file
