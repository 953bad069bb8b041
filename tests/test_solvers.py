"""Local steps against their formulas, with autograd's gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_models import CPU, case, conv, dense, plain
from torch import Tensor

from cgpfl.clients import Batch
from cgpfl.models import as_net
from cgpfl.solvers import Proximal, anchored_step, formed_gradient, sgd_step

CLOSE = {"rtol": 1e-9, "atol": 1e-10}
NETS = {
    "dense": (lambda: dense([4, 3, 2]), (4,), 2),
    "linear": (lambda: dense([4, 2]), (4,), 2),
    "convolutional": (lambda: conv(1, [2], 3, 2, 0, (2, 2, 0)), (1, 23, 24), 3),
}
PATHS = ["auto", "generic"]


def column(rows: int, seed: int, low: float, high: float) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return low + (high - low) * torch.rand(rows, 1, generator=rng, dtype=torch.float64)


def given_net(name: str, path: str, rows: int = 3, n: int = 5):
    build, shape, classes = NETS[name]
    net = as_net(build, CPU, path)
    w, batch, _ = case(net.size, shape, rows, n, classes, 7)

    def g(w: Tensor) -> Tensor:
        return plain(build(), w, batch, torch.ones(rows, 1, dtype=torch.float64))[1]

    return net, w, batch, g


@pytest.mark.parametrize("l2", [None, 0.3])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", NETS)
def test_steps_are_their_formulas(name, path, l2):
    net, w, batch, g = given_net(name, path)
    lr, lam, mu = column(3, 0, 0.01, 0.4), column(3, 1, 0.0, 2.0), 0.0 if l2 is None else l2
    l2 = None if l2 is None else torch.full((3, 1), l2, dtype=torch.float64)
    anchor = torch.flip(w, [0])

    rows = net.rows(w.clone())
    sgd_step(net, rows, batch, lr, l2)
    torch.testing.assert_close(rows.flat, w - lr * (g(w) + mu * w), **CLOSE)

    rows = net.rows(w.clone())
    formed = formed_gradient(net, rows, batch, lr, l2)
    torch.testing.assert_close(formed, lr * (g(w) + mu * w), **CLOSE)
    assert torch.equal(rows.flat, w)

    rows = net.rows(w.clone())
    anchored_step(net, rows, anchor, batch, lr, lam, l2)
    torch.testing.assert_close(rows.flat, w - lr * (g(w) + mu * w + lam * (w - anchor)), **CLOSE)


@pytest.mark.parametrize("l2", [None, 0.3])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", NETS)
def test_proximal_steps_are_their_formula(name, path, l2):
    net, w, batch, g = given_net(name, path)
    eta, lam, mu = column(3, 0, 0.01, 0.1), column(3, 1, 0.0, 9.0), 0.0 if l2 is None else l2
    l2 = None if l2 is None else torch.full((3, 1), l2, dtype=torch.float64)
    anchor = torch.flip(w, [0])
    theta, to = net.rows(w.clone()), net.rows(anchor.clone())
    expected = w
    for _ in range(4):
        expected = expected - eta * (g(expected) + mu * expected + lam * (expected - anchor))
    Proximal.of(eta, lam, l2, 4).run(net, theta, to, batch)
    torch.testing.assert_close(theta.flat, expected, **CLOSE)
    assert torch.equal(to.flat, anchor)


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 8), min_size=2, max_size=4),
    rows=st.integers(1, 4),
    n=st.integers(1, 9),
    steps=st.integers(1, 6),
    regularised=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_proximal_steps_in_span_are_the_plain_loop(sizes, rows, n, steps, regularised, seed):
    net = as_net(lambda: dense(sizes), CPU)
    w, batch, _ = case(net.size, (sizes[0],), rows, n, sizes[-1], seed)
    anchor = net.rows(case(net.size, (sizes[0],), rows, n, sizes[-1], seed + 1)[0])
    eta, lam = column(rows, seed, 0.0, 0.1), column(rows, seed + 1, 0.0, 15.0)
    l2 = column(rows, seed + 2, 0.0, 0.1) if regularised else None
    fast, slow = net.rows(w.clone()), net.rows(w.clone())
    Proximal.of(eta, lam, l2, steps).run(net, fast, anchor, batch)
    for _ in range(steps):
        anchored_step(net, slow, anchor.flat, batch, eta, lam, l2)
    torch.testing.assert_close(fast.flat, slow.flat, **CLOSE)


def test_proximal_steps_work_on_blocks_of_a_larger_state():
    """Rows are slices of a state in a run: everything must be written in place."""
    net = as_net(lambda: dense([4, 3, 2]), CPU)
    w, batch, _ = case(net.size, (4,), 5, 6, 2, 3)
    half = Batch(batch.x[1:3], batch.y[1:3], batch.weight[1:3])
    coefficients = column(2, 0, 0.01, 0.1), column(2, 1, 1.0, 9.0), None
    state, alone = w.clone(), net.rows(w[1:3].clone())
    anchor = torch.flip(w, [0])
    Proximal.of(*coefficients, 3).run(net, net.rows(state[1:3]), net.rows(anchor[1:3]), half)
    Proximal.of(*coefficients, 3).run(net, alone, net.rows(anchor[1:3].clone()), half)
    torch.testing.assert_close(state[1:3], alone.flat, **CLOSE)
    assert torch.equal(state[[0, 3, 4]], w[[0, 3, 4]])


def test_many_proximal_steps_reach_the_proximal_point():
    """There the gradient of the loss is lam * (anchor - theta)."""
    net, w, batch, g = given_net("linear", "auto")
    eta, lam = torch.full((3, 1), 0.1, dtype=torch.float64), torch.full((3, 1), 2.0, dtype=torch.float64)
    theta = net.rows(w.clone())
    Proximal.of(eta, lam, None, 400).run(net, theta, net.rows(w.clone()), batch)
    torch.testing.assert_close(g(theta.flat), lam * (w - theta.flat), rtol=0, atol=1e-9)
