"""Modules, their rows, and the fast nets against plain autograd."""

from __future__ import annotations

from itertools import pairwise
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from cgpfl import UserError, build_model, convolution
from cgpfl.clients import Batch
from cgpfl.convolution import ConvStack
from cgpfl.models import as_net, initial_row
from cgpfl.nets import DenseStack, GenericNet

CPU = torch.device("cpu")
BUILT = {"mlr": ((2, 3), {}), "dnn": ((6,), {"hidden": 4}), "cnn": ((16, 17), {"channels": (2, 3), "hidden": 4})}


def dense(sizes: list[int]) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def case(size: int, shape: tuple[int, ...], rows: int, n: int, classes: int, seed: int) -> tuple[Tensor, Batch, Tensor]:
    """Models, a minibatch of which some samples are padding, and scales of the gradient."""
    rng = torch.Generator().manual_seed(seed)
    w = torch.randn(rows, size, generator=rng, dtype=torch.float64) / 2
    real = torch.randint(1, n + 1, (rows, 1), generator=rng)
    weight = ((torch.arange(n) < real).to(torch.float64) / real).unsqueeze(1)
    batch = Batch(
        torch.randn(rows, n, *shape, generator=rng, dtype=torch.float64),
        torch.randint(classes, (rows, n), generator=rng),
        weight,
    )
    return w, batch, torch.rand(rows, 1, generator=rng, dtype=torch.float64) - 0.5


def plain(module: nn.Module, w: Tensor, batch: Batch, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [rows, C, n] and scaled gradients [rows, d], one row after the other."""
    module, logits, gradients = module.to(torch.float64), [], []
    for row in range(len(w)):
        vector_to_parameters(w[row], module.parameters())
        outputs = module(batch.x[row])
        losses = cross_entropy(outputs, batch.y[row], reduction="none")
        parts = torch.autograd.grad((losses * batch.weight[row, 0]).sum() * scale[row, 0], list(module.parameters()))
        logits.append(outputs.detach().T)
        gradients.append(parameters_to_vector(parts))
    return torch.stack(logits), torch.stack(gradients)


def assert_net_is(net, module: nn.Module, w: Tensor, batch: Batch, scale: Tensor) -> None:
    logits, gradients = plain(module, w, batch, scale)
    rows = net.rows(w.clone())
    close = {"rtol": 1e-10, "atol": 1e-11}
    torch.testing.assert_close(net.logits(rows, batch.x), logits, **close)
    torch.testing.assert_close(net.dense(net.gradient(rows, batch, scale), rows.flat), gradients, **close)
    net.add(rows, net.gradient(rows, batch, scale))
    torch.testing.assert_close(rows.flat, w + gradients, **close)


# --- modules --------------------------------------------------------------------------------------------------------


def test_shapes_of_the_papers_models():
    assert [tuple(p.shape) for p in build_model("mlr", (784,), 10).parameters()] == [(10, 784), (10,)]
    assert [tuple(p.shape) for p in build_model("dnn", (28, 28), 10).parameters()] == [
        (128, 784),
        (128,),
        (10, 128),
        (10,),
    ]
    assert [tuple(p.shape) for p in build_model("cnn", (3, 32, 32), 10).parameters()] == [
        (6, 3, 5, 5),
        (6,),
        (16, 6, 5, 5),
        (16,),
        (120, 400),
        (120,),
        (10, 120),
        (10,),
    ]


@pytest.mark.parametrize("name", BUILT)
def test_rows_are_in_the_order_of_parameters_to_vector(name):
    shape, kwargs = BUILT[name]
    module = build_model(name, shape, 3, **kwargs)
    row = parameters_to_vector(module.parameters()).detach()
    x = torch.randn(5, *shape)
    net = as_net(lambda: build_model(name, shape, 3, **kwargs), CPU)
    assert net.size == len(row)
    torch.testing.assert_close(net.logits(net.rows(row[None]), x[None])[0].T, module(x).detach())


def test_parts_of_rows_are_views():
    for path in ("auto", "generic"):
        net = as_net(lambda: dense([3, 2]), CPU, path)
        rows = net.rows(torch.zeros(2, net.size))
        rows.flat.fill_(1.0)
        logits = net.logits(rows, torch.ones(2, 1, 3))
        assert logits.tolist() == [[[4.0], [4.0]]] * 2
        assert len(rows) == 2


@pytest.mark.parametrize(
    ("given", "key"),
    [
        (("resnet", (784,), 10), "model"),
        (("dnn", (784,), 10, {"hidden": 0}), "hidden"),
        (("dnn", (784,), 10, {"width": 3}), "model dnn"),
        (("mlr", (784,), 10, {"hidden": 3}), "model mlr"),
        (("cnn", (784,), 10), "model cnn"),
        (("cnn", (3, 15, 32), 10), "model cnn"),
    ],
)
def test_models_that_cannot_be_built_are_an_error_that_names_the_key(given, key):
    name, shape, classes, *kwargs = given
    with pytest.raises(UserError) as raised:
        build_model(name, shape, classes, **(kwargs[0] if kwargs else {}))
    assert str(raised.value).startswith(key)
    assert "\n" not in str(raised.value)


def test_an_unknown_model_is_told_the_valid_names():
    with pytest.raises(UserError, match="mlr, dnn, cnn"):
        build_model("resnet", (784,), 10)


# --- initial rows ---------------------------------------------------------------------------------------------------


def test_initial_rows_are_functions_of_the_seed():
    def build() -> nn.Module:
        return build_model("dnn", (6,), 3, hidden=4)

    torch.manual_seed(1)
    state = torch.get_rng_state()
    rows = [initial_row(build, seed) for seed in (0, 1, 0)]
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])
    torch.manual_seed(0)
    assert torch.equal(rows[0], parameters_to_vector(build().parameters()))


# --- which net a module gets ----------------------------------------------------------------------------------------


def test_stacks_of_dense_layers_get_the_fast_net():
    for sizes in ([3, 2], [3, 4, 2], [3, 4, 5, 2]):
        net = as_net(lambda sizes=sizes: dense(sizes), CPU)
        assert isinstance(net, DenseStack)
        assert isinstance(as_net(lambda sizes=sizes: dense(sizes), CPU, "generic"), GenericNet)
    assert isinstance(as_net(lambda: nn.Sequential(nn.Linear(3, 2)), CPU), DenseStack)


UNUSUAL = {
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 2, bias=False)),
    "tanh": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 2)),
    "ends in relu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 2), nn.ReLU()),
    "no relu": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Linear(3, 2)),
    "two flattens": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3), nn.Flatten(), nn.ReLU(), nn.Linear(3, 2)),
    "nested": lambda: nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 3), nn.ReLU()), nn.Linear(3, 2)),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_other_modules_get_the_generic_net(name):
    net = as_net(UNUSUAL[name], CPU)
    assert isinstance(net, GenericNet)
    assert_net_is(net, UNUSUAL[name](), *case(net.size, (2, 3), 2, 4, 2, 0))


def test_modules_with_buffers_are_an_error():
    with pytest.raises(UserError, match="GroupNorm"):
        as_net(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 2), nn.BatchNorm1d(2)), CPU)


# --- nets against autograd ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=2, max_size=4),
    rows=st.integers(1, 4),
    n=st.integers(1, 9),
    seed=st.integers(0, 2**20),
)
def test_the_dense_stack_is_autograd(sizes, rows, n, seed):
    net = as_net(lambda: dense(sizes), CPU)
    assert isinstance(net, DenseStack)
    assert_net_is(net, dense(sizes), *case(net.size, (sizes[0],), rows, n, sizes[-1], seed))


@pytest.mark.parametrize("outputs", [31, 32, 33, 40])
def test_wide_and_narrow_layers_are_computed_alike(outputs):
    sizes = [5, outputs, outputs]
    net = as_net(lambda: dense(sizes), CPU)
    assert_net_is(net, dense(sizes), *case(net.size, (5,), 2, 6, outputs, 1))


@settings(max_examples=15, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=3),
    rows=st.integers(1, 3),
    n=st.integers(1, 5),
    seed=st.integers(0, 2**20),
)
def test_the_generic_net_is_autograd(sizes, rows, n, seed):
    net = as_net(lambda: dense(sizes), CPU, "generic")
    assert isinstance(net, GenericNet)
    assert_net_is(net, dense(sizes), *case(net.size, (sizes[0],), rows, n, sizes[-1], seed))


def conv(channels: int, filters: list[int], kernel: int, stride: int, padding: int, pool: tuple[int, int, int]):
    """Convolutions and poolings in both orders of ReLU and pooling, of [channels, 23, 24] images."""
    layers: list[nn.Module] = [nn.Identity()]
    for place, (inputs, outputs) in enumerate(zip([channels, *filters[:-1]], filters, strict=True)):
        both = [nn.ReLU(), nn.MaxPool2d(pool[0], stride=pool[1], padding=pool[2])]
        layers += [nn.Conv2d(inputs, outputs, kernel, stride, padding), *(both if place % 2 == 0 else both[::-1])]
    front = nn.Sequential(*layers, nn.Flatten())
    flat = front(torch.zeros(1, channels, 23, 24)).shape[1]
    return nn.Sequential(*front, nn.Linear(flat, 4), nn.ReLU(), nn.Linear(4, 3))


@settings(max_examples=20, deadline=None)
@given(
    channels=st.integers(1, 3),
    filters=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    pool=st.sampled_from([(2, 2, 0), (2, 1, 0), (2, 2, 1), (1, 1, 0)]),
    rows=st.integers(1, 3),
    n=st.integers(1, 4),
    at_once=st.integers(1, 5),
    seed=st.integers(0, 2**20),
)
def test_the_convolutional_stack_is_autograd(channels, filters, kernel, stride, padding, pool, rows, n, at_once, seed):
    def build() -> nn.Module:
        return conv(channels, filters, kernel, stride, padding, pool)

    net = as_net(build, CPU)
    assert isinstance(net, ConvStack)
    with mock.patch.object(convolution, "AT_ONCE", at_once):
        assert_net_is(net, build(), *case(net.size, (channels, 23, 24), rows, n, 3, seed))


@pytest.mark.parametrize("sides", [(1, 1), (2, 2), (3, 2), (4, 5)])
def test_of_equal_maxima_the_first_gets_the_error(sides):
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 3, (4, 3, 13, 14), generator=draw).double().requires_grad_()
    expected = max_pool2d(x, sides)
    error = torch.randn(expected.shape, generator=draw, dtype=torch.float64)
    expected.backward(error)
    of_lines, out = convolution._pooled(x.detach(), sides)
    assert torch.equal(out, expected)
    assert torch.equal(convolution._unpooled(error, x.detach(), of_lines, out, sides), x.grad)


@pytest.mark.parametrize("shape", [(16, 17), (1, 16, 16), (3, 18, 16)])
@pytest.mark.parametrize("path", ["auto", "generic"])
def test_the_papers_convolutional_network_is_autograd(shape, path):
    def build() -> nn.Module:
        return build_model("cnn", shape, 3, channels=(2, 3), hidden=4)

    net = as_net(build, CPU, path)
    assert isinstance(net, ConvStack if path == "auto" else GenericNet)
    assert_net_is(net, build(), *case(net.size, shape, 2, 3, 3, 0))


UNUSUAL_CONVOLUTIONS = {
    "groups": nn.Conv2d(2, 2, 3, groups=2),
    "dilation": nn.Conv2d(2, 2, 3, dilation=2),
    "no bias": nn.Conv2d(2, 2, 3, bias=False),
    "same": nn.Conv2d(2, 2, 3, padding="same"),
    "reflect": nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
}


@pytest.mark.parametrize("name", UNUSUAL_CONVOLUTIONS)
def test_unusual_convolutions_get_the_generic_net(name):
    layer = UNUSUAL_CONVOLUTIONS[name]
    flat = layer(torch.zeros(1, 2, 6, 6)).numel()

    def build() -> nn.Module:
        return nn.Sequential(nn.Identity(), layer, nn.ReLU(), nn.Flatten(), nn.Linear(flat, 3))

    net = as_net(build, CPU)
    assert isinstance(net, GenericNet)
    assert_net_is(net, build(), *case(net.size, (2, 6, 6), 2, 3, 3, 0))


def test_a_gradient_survives_a_change_of_the_model_that_adding_it_makes():
    """``sgd_step`` shrinks w between ``gradient`` and ``add``."""
    net = as_net(lambda: dense([4, 3, 2]), CPU)
    w, batch, scale = case(net.size, (4,), 2, 5, 2, 0)
    rows = net.rows(w.clone())
    gradient = net.gradient(rows, batch, scale)
    expected = net.dense(gradient, rows.flat)
    rows.flat.zero_()
    net.add(rows, gradient)
    torch.testing.assert_close(rows.flat, expected)


@pytest.mark.parametrize(
    ("model", "sizes", "named"),
    [
        ("dnn", {"hidden": 0}, "hidden"),
        ("dnn", {"hidden": "1e2"}, "hidden"),
        ("dnn", {"hidden": 1.5}, "hidden"),
        ("dnn", {"hiden": 3}, "'hiden' is unknown; valid are hidden"),
        ("mlr", {"hidden": 3}, "valid are no settings"),
        ("cnn", {"channels": [6]}, "channels"),
        ("cnn", {"channels": [0, 6]}, "channels"),
        ("cnn", {"hidden": 0}, "hidden"),
    ],
)
def test_sizes_that_cannot_be_are_refused(model, sizes, named):
    with pytest.raises(UserError, match=named):
        build_model(model, (3, 32, 32), 10, **sizes)
