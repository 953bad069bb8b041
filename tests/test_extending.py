"""Models and methods of a user's own, by their paths."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import toy
import yaml
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import cgpfl
from cgpfl import UserError, build_model, datasets, partition, results
from cgpfl.clients import Batch
from cgpfl.convolution import ConvStack
from cgpfl.experiment import Job, load
from cgpfl.methods import FedProx, Method, Param, method_named, resolve_params
from cgpfl.methods.base import COMMON
from cgpfl.models import as_net
from cgpfl.nets import DenseStack, GenericNet
from cgpfl.training import Training

methods = sys.modules["cgpfl.methods"]  # the name in cgpfl is that of the function
CPU = torch.device("cpu")
GREY, COLOUR = (8, 8), (3, 8, 8)


class Residual(nn.Module):
    """Every kind of layer that keeps a sample by itself."""

    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.first = nn.Conv2d(shape[0], 4, 3, padding=1)
        self.group, self.instance = nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True)
        self.layer = nn.LayerNorm(4)
        self.last = nn.Linear(4, classes)
        self.off = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.group(self.first(x)))
        x = x + torch.tanh(self.instance(x))
        return self.last(self.off(self.layer(x.mean((2, 3)))))


class Squared(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 2


class Noisy(nn.Module):
    def __init__(self, shape: tuple[int, ...], classes: int):
        super().__init__()
        self.layer = nn.Linear(shape[0], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.randn_like(x))


class Centred(Noisy):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


class Moody(Noisy):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (1 if self.training else 2)


class Branching(Noisy):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if float(x.abs().sum()) > 0 else self.layer(-x)


def dense(*more: nn.Module, inputs: int = 6, classes: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 4), *more, nn.Linear(4, classes))


def tied(shape: Any, classes: int) -> nn.Module:
    layer = nn.Linear(4, 4)
    return nn.Sequential(nn.Linear(6, 4), layer, nn.ReLU(), layer, nn.Linear(4, classes))


def frozen(shape: Any, classes: int) -> nn.Module:
    module = dense(nn.ReLU())
    module[0].bias.requires_grad_(False)
    return module


def broken(shape: Any, classes: int) -> nn.Module:
    raise ZeroDivisionError("no\nwidth")


@pytest.fixture
def nets(monkeypatch) -> ModuleType:
    """An importable module, to be filled with factories."""
    module = ModuleType("some_nets")
    monkeypatch.setitem(sys.modules, "some_nets", module)
    return module


def build(nets: ModuleType, factory: Any, shape: tuple[int, ...] = (6,), classes: int = 3, **args: Any) -> nn.Module:
    nets.make = factory
    return build_model("some_nets:make", shape, classes, **args)


# --- own models -----------------------------------------------------------------------------------------------------


def test_a_factory_is_called_with_shape_classes_and_settings(nets):
    seen = []

    def make(input_shape, classes, width=4):
        seen.append((input_shape, classes, width))
        return nn.Sequential(nn.Flatten(), nn.Linear(6, width), nn.ReLU(), nn.Linear(width, classes))

    assert build(nets, make, (2, 3), 5, width=7)[1].out_features == 7
    assert seen == [((2, 3), 5, 7)]
    assert isinstance(as_net(lambda: build(nets, make, (2, 3), 5), CPU), DenseStack)


def test_a_stack_of_convolutions_gets_the_fast_net(nets):
    def make(shape, classes):
        return nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, classes))

    assert isinstance(as_net(lambda: build(nets, make, COLOUR), CPU), ConvStack)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten(), Squared(6, 3)),
        nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 6)), nn.Linear(6, 3)),
        nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(4, 3)),
        type("Doubled", (nn.Sequential,), {"forward": lambda self, x: 2 * nn.Sequential.forward(self, x)})(
            nn.Linear(6, 3)
        ),
    ],
    ids=["subclass of Linear", "other Flatten", "other Unflatten", "subclass of Sequential"],
)
def test_what_only_looks_like_a_stack_takes_the_generic_path(nets, module):
    assert isinstance(as_net(lambda: build(nets, lambda shape, classes: module), CPU), GenericNet)


def test_normalisation_within_a_sample_trains_as_one_client_at_a_time_does(nets):
    """Minibatches of two clients, one of them padded, in float64."""
    net = as_net(lambda: build(nets, Residual, COLOUR), CPU)
    assert isinstance(net, GenericNet)
    rng = torch.Generator().manual_seed(0)
    w = torch.randn(2, net.size, generator=rng, dtype=torch.float64)
    x = torch.randn(2, 5, *COLOUR, generator=rng, dtype=torch.float64)
    y, real = torch.randint(3, (2, 5), generator=rng), [5, 2]
    weight = torch.stack([(torch.arange(5) < n).double() / n for n in real]).unsqueeze(1)
    rows = net.rows(w.clone())
    found = net.gradient(rows, Batch(x, y, weight), torch.ones(2, 1, dtype=torch.float64))
    module = build(nets, Residual, COLOUR).double()
    for client, n in enumerate(real):
        vector_to_parameters(w[client], module.parameters())
        outputs = module(x[client, :n])
        loss = nn.functional.cross_entropy(outputs, y[client, :n])
        plain = parameters_to_vector(torch.autograd.grad(loss, list(module.parameters())))
        torch.testing.assert_close(found[client], plain, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(net.logits(rows, x)[client, :, :n].T, outputs.detach(), rtol=1e-10, atol=1e-12)


REFUSED: dict[str, tuple[Any, str]] = {
    "no module": (lambda shape, classes: 3, "returned int"),
    "raises": (broken, "the factory raised ZeroDivisionError: no width"),
    "has no signature": (map, "its parameters cannot be read"),
    "needs more": (lambda shape, classes, width: dense(), "the factory raised TypeError"),
    "no parameters": (lambda shape, classes: nn.Flatten(), "no parameters"),
    "frozen": (frozen, "0.bias has requires_grad=False"),
    "shared": (tied, "one parameter in two places"),
    "lazy": (lambda shape, classes: nn.LazyLinear(classes), "weight has no size"),
    "outputs": (lambda shape, classes: nn.Linear(6, classes + 1), r"\[3, 4\] on 3 samples; valid is .* \[n, 3\]"),
    "tuple": (lambda shape, classes: nn.LSTM(6, classes), "tuple on 3 samples"),
    "input": (lambda shape, classes: nn.Linear(5, classes), "forward on samples .*3, 6.* raised RuntimeError"),
    "batch norm": (lambda shape, classes: dense(nn.BatchNorm1d(4)), r"1 \(BatchNorm1d\): .*padded.*GroupNorm"),
    "batch norm of batches": (
        lambda shape, classes: dense(nn.BatchNorm1d(4, track_running_stats=False)),
        "padded for clients of few samples",
    ),
    "instance norm": (lambda shape, classes: dense(nn.InstanceNorm1d(4, track_running_stats=True)), "1.running_mean"),
    "dropout": (lambda shape, classes: dense(nn.Dropout(0.1)), r"1 \(Dropout\): dropout draws .*use p=0"),
    "own noise": (Noisy, "draws random numbers"),
    "own batch statistics": (Centred, "depend on the other samples"),
    "modes": (Moody, "differ between training and evaluation"),
    "branches": (Branching, r"several clients at once \(torch.vmap\) raised"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_model_that_cannot_be_trained_as_rows_is_refused_in_one_sentence(nets, case):
    factory, reason = REFUSED[case]
    with pytest.raises(UserError, match=reason) as raised:
        build(nets, factory)
    assert str(raised.value).startswith("model some_nets:make: ")
    assert "\n" not in str(raised.value)


def test_settings_that_a_factory_does_not_take_are_refused(nets):
    def make(shape, classes, width=4, *, depth=1):
        return dense()

    with pytest.raises(UserError, match="model some_nets:make: 'hidden' is unknown; valid are width, depth"):
        build(nets, make, hidden=3)


def test_building_draws_as_the_factory_does_and_no_more(nets):
    torch.manual_seed(3)
    dense()
    state = torch.get_rng_state()
    torch.manual_seed(3)
    build(nets, lambda shape, classes: dense())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("nowhere_at_all:make", "there is no module 'nowhere_at_all'"),
        ("cgpfl.nowhere:make", "there is no module 'cgpfl.nowhere'"),
        ("some_nets:other", "some_nets has no 'other'"),
        ("some_nets:", "no path to Python code"),
        ("some nets:make", "no path to Python code"),
        ("some_nets:number", "no function"),
    ],
)
def test_paths_to_nothing_are_refused(nets, path, reason):
    nets.number = 3
    with pytest.raises(UserError, match=reason) as raised:
        build_model(path, (6,), 3)
    assert "\n" not in str(raised.value)


def test_modules_of_the_current_folder_are_found_and_their_faults_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code = "from torch import nn\ndef make(shape, classes): return nn.Linear(6, classes)\n"
    Path("own_nets_here.py").write_text(code)
    Path("own_nets_faulty.py").write_text("import a_module_that_is_not_there\n")
    assert build_model("own_nets_here:make", (6,), 3).out_features == 3
    del sys.modules["own_nets_here"]
    with pytest.raises(UserError, match=r"cannot be imported .*a_module_that_is_not_there"):
        build_model("own_nets_faulty:make", (6,), 3)


@pytest.mark.parametrize("model", ["some_nets:make", "dnn"])
def test_own_models_train_as_ours_do(nets, model):
    nets.make = lambda shape, classes: nn.Sequential(nn.Linear(6, 128), nn.ReLU(), nn.Linear(128, classes))
    found = cgpfl.simulate(toy.clients(0), model=model, method="ditto", rounds=2, batch_size=4, path="generic")
    ours = cgpfl.simulate(toy.clients(0), model="dnn", method="ditto", rounds=2, batch_size=4)
    torch.testing.assert_close(found.state["personal"], ours.state["personal"])


# --- own methods ----------------------------------------------------------------------------------------------------


class Mine(FedProx):
    name, summary, source = "mine", "my own", "here"
    parameters = (*FedProx.parameters, Param("mine", 1.0, "my own parameter", low=0))


def variant(**attributes: Any) -> type[Method]:
    return type("Variant", (Mine,), attributes)


@pytest.mark.parametrize("given", [Mine, Mine()], ids=["class", "instance"])
def test_a_method_is_found_by_its_path(nets, given):
    nets.Mine = given
    assert method_named("some_nets:Mine").name == "mine"
    assert resolve_params("some_nets:Mine", {"mu": 2})["mu"] == 2.0
    with pytest.raises(UserError, match=r"mine.other: unknown parameter; valid are .*mine"):
        resolve_params("some_nets:Mine", {"other": 1})
    with pytest.raises(UserError, match=r"mine.mine: -1 given, valid is a number 0 or more"):
        resolve_params("some_nets:Mine", {"mine": -1})


def test_an_own_method_runs(nets):
    nets.Mine = Mine
    settings = {"rounds": 2, "params": {"mu": [0.0, 1.0]}, "batch_size": 4}
    found = cgpfl.simulate(toy.clients(0), method="some_nets:Mine", **settings)
    ours = cgpfl.simulate(toy.clients(0), method="fedprox", **settings)
    assert torch.equal(found.state["global"], ours.state["global"])
    assert np.array_equal(found.history["accuracy"], ours.history["accuracy"])


def entry_points(monkeypatch, *points: tuple[str, str]) -> None:
    given = EntryPoints(EntryPoint(name, value, methods.ENTRY_POINTS) for name, value in points)
    monkeypatch.setattr(methods, "entry_points", given.select)


def test_a_method_is_found_by_its_entry_point(nets, monkeypatch):
    nets.Mine = Mine
    entry_points(monkeypatch, ("mine", "some_nets:Mine"))
    assert isinstance(method_named("mine"), Mine)
    with pytest.raises(UserError, match=r"'yours' is unknown; valid are local, .*, mine, or the path"):
        method_named("yours")


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ([("other", "some_nets:Mine")], "its name is 'mine'; its entry point 'other' needs the same"),
        ([("other", "some_nets:Mine"), ("other", "some_nets:Yours")], "several packages"),
        ([("other", "some_nets:Yours")], "has no 'Yours'"),
    ],
)
def test_entry_points_that_do_not_fit_are_refused(nets, monkeypatch, points, reason):
    nets.Mine = Mine
    entry_points(monkeypatch, *points)
    with pytest.raises(UserError, match=reason):
        method_named("other")


def test_our_methods_cannot_be_taken_over(nets, monkeypatch):
    nets.Mine = variant(name="fedavg")
    entry_points(monkeypatch, ("fedavg", "some_nets:Mine"))
    assert method_named("fedavg") is methods.METHODS["fedavg"]


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (3, "no cgpfl.methods.Method"),
        (nn.Linear, "no cgpfl.methods.Method"),
        (type("Half", (Method,), {"name": "half"}), "cannot be instantiated"),
        (variant(name="fedavg"), "'fedavg' is that of a method of cgpfl"),
        (variant(name="a/b"), "'a/b'; valid are letters"),
        (variant(name=None), "its name is missing"),
        (variant(summary=None), "its summary is missing"),
        (variant(parameters=("mu",)), "no tuple of cgpfl.Param"),
        (variant(parameters=None), "no tuple of cgpfl.Param"),
        (variant(parameters=(COMMON[0], COMMON[1])), "lack l2"),
        (variant(parameters=(replace(COMMON[0], column=True), *COMMON[1:])), "local_steps is to be"),
        (variant(parameters=(replace(COMMON[0], low=0), *COMMON[1:])), "local_steps is to be"),
        (variant(parameters=(*COMMON, COMMON[0])), "two of its parameters are called 'local_steps'"),
        (variant(tested=("everything",)), "tested is"),
        (variant(tested=()), "tested is"),
    ],
)
def test_what_is_no_method_is_refused(nets, given, reason):
    nets.Mine = given
    with pytest.raises(UserError, match=reason) as raised:
        method_named("some_nets:Mine")
    assert str(raised.value).startswith("method some_nets:Mine: ")
    assert "\n" not in str(raised.value)


# --- in a configuration ---------------------------------------------------------------------------------------------

NETS = """
from torch import nn
from .sizes import WIDTH
def make_net(input_shape, classes, width=WIDTH):
    inputs = input_shape[0] * input_shape[1]
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, classes))
def dnn(input_shape, classes): return make_net(input_shape, classes)
"""
FL = """
from cgpfl.methods import FedProx, Param
class Mine(FedProx):
    name, summary, source = "mine", "my own", "here"
    parameters = (*FedProx.parameters, Param("warmth", 1.0, "my own parameter", low=0))
class Other(Mine):
    summary = "of the same name"
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package in the current folder; its name."""
    name = f"own_package_{tmp_path.name.replace('-', '_')}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    results.own_hash.cache_clear()
    folder = Path(name)
    folder.mkdir()
    for file, code in {"__init__": "", "nets": NETS, "sizes": "WIDTH = 4\n", "fl": FL, "unused": ""}.items():
        (folder / f"{file}.py").write_text(code)
    yield name
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def configured(package: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "seeds": [0],
        "datasets": ["digits"],
        "models": ["mlr", {f"{package}.nets:make_net": {"width": 3}}],
        "partition": {"clients": 5},
        "training": {"rounds": 1},
        "methods": ["fedavg", {f"{package}.fl:Mine": {"mu": [0, 1], "warmth": 2}}],
        **changes,
    }


def trainings(config: dict[str, Any]) -> dict[tuple[str, str], Training]:
    results.own_hash.cache_clear()
    experiment = load(config)
    y = np.arange(200) % 10
    data = datasets.make_dataset("digits", np.random.default_rng(0).integers(0, 255, (200, 8, 8)), y)
    parts = {0: partition.make_partition(y, clients=5, classes=10)}
    settings = experiment.training.model_dump()
    return {(job.model, job.method): Training(job, settings, data, parts) for job in experiment.jobs}


def test_own_models_and_methods_have_names_of_their_own_in_results(package, tmp_path):
    found = trainings(configured(package, sweeps={"lr": {"methods": [f"{package}.fl:Mine"], "values": [0.1]}}))
    assert list(found) == [(model, method) for model in ("mlr", "make_net") for method in ("fedavg", "mine")]
    job = found["make_net", "mine"].job
    assert [run.label for run in job.runs] == ["mine[mu=0,warmth=2]", "mine[mu=1,warmth=2]", "mine[mu=0.1,warmth=1]"]
    assert job.runs[0].params["warmth"] == 2
    assert Job.from_plain(json.loads(json.dumps(job.plain()))) == job
    store = results.Store(tmp_path / "store")
    assert found["make_net", "mine"].complete(store, threads=1) == 3
    runs = found["make_net", "mine"].gather(store)["runs"]
    assert set(runs["parameters"]) == {64 * 3 + 3 + 3 * 10 + 10}
    assert set(runs["method"]) == {"mine"}


@pytest.mark.parametrize(
    ("file", "edited", "retrained"),
    [
        ("nets", "WIDTH = 5\n", {("make_net", "fedavg"), ("make_net", "mine")}),
        ("sizes", "WIDTH = 5\n", {("make_net", "fedavg"), ("make_net", "mine")}),
        ("fl", "Mine.summary = 'else'\n", {("mlr", "mine"), ("make_net", "mine")}),
        ("fl", "# a comment\n", set()),
        ("unused", "WIDTH = 5\n", set()),
    ],
)
def test_editing_own_code_retrains_what_it_is_part_of(package, file, edited, retrained):
    before = {pair: training.keys for pair, training in trainings(configured(package)).items()}
    with (Path(package) / f"{file}.py").open("a") as stream:
        stream.write(edited)
    after = trainings(configured(package))
    assert {pair for pair in before if before[pair] != after[pair].keys} == retrained
    names = [path.name for path in after["make_net", "mine"].job.sources]
    assert names == ["fl.py", "nets.py", "sizes.py"]


def test_ours_have_the_keys_they_had(package):
    [facts] = [training.facts(training.job.runs[0]) for training in trainings(configured(package)).values()][:1]
    assert "own" not in facts


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"models": ["P.nets:dnn"]}, r"models: the name in results of P.nets:dnn is 'dnn', one of ours"),
        ({"models": ["P.nets:no"]}, r"models\[0\] on digits: model P.nets:no: .*nets.py has no 'no'"),
        (
            {"models": [{"P.nets:make_net": {"wide": 3}}]},
            r"on digits: .*'wide' is unknown; valid are width",
        ),
        ({"models": [{"P.nets:make_net": {"width": 0}}]}, r"models\[0\] on digits: model P.nets:make_net: "),
        (
            {"methods": ["P.fl:Mine", "P.fl:Other"]},
            "methods: .* of P.fl:Other is 'mine', that of P.fl:Mine; rename",
        ),
        ({"methods": ["P.fl:Mine", "P.fl:Mine"]}, "stands there twice"),
        ({"methods": ["P.fl:No"]}, r"methods\[0\]: method P.fl:No: .*fl.py has no 'No'"),
        ({"methods": [{"P.fl:Mine": {"heat": 1}}]}, r"methods\[0\].P.fl:Mine.heat: unknown parameter"),
        ({"methods": [{"P.fl:Mine": {"warmth": -1}}]}, "warmth: -1 given, valid is a number 0 or more"),
        ({"methods": ["mine"]}, r"methods\[0\]: 'mine' is not a method"),
        ({"params": {"heat": 1}}, "params.heat: unknown parameter"),
        (
            {"model_params": {"other_net": {"lr": 1}}},
            "'other_net' is not a model; .*cnn and make_net",
        ),
    ],
)
def test_mistakes_with_own_code_end_in_one_sentence_before_training(package, changes, reason):
    written = json.loads(json.dumps(changes).replace("P.", f"{package}."))
    with pytest.raises(UserError, match=reason.replace("P.", f"{package}.")) as raised:
        load(configured(package, **written)).jobs  # noqa: B018
    assert "\n" not in str(raised.value)


def test_parameters_of_own_methods_can_be_shared_and_own_models_have_theirs(package):
    config = configured(package, params={"warmth": 3}, model_params={"make_net": {"lr": 0.7}})
    config["methods"] = [f"{package}.fl:Mine"]
    runs = {job.model: job.runs[0].params for job in load(config).jobs}
    assert (runs["mlr"]["warmth"], runs["make_net"]["warmth"]) == (3, 3)
    assert (runs["mlr"]["lr"], runs["make_net"]["lr"]) == (0.005, 0.7)


def test_paths_can_be_written_in_yaml():
    text = "{models: [a.b:net, {a.b:net: {width: 3}}], methods: [a.fl:M, {a.fl:M: {mu: 1}}]}"
    assert yaml.safe_load(text)["methods"] == ["a.fl:M", {"a.fl:M": {"mu": 1}}]
