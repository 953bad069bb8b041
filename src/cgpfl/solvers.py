"""Local solvers on blocks of rows, one minibatch at a time. Coefficients are columns [rows, 1]."""

from __future__ import annotations

import torch
from torch import Tensor

from cgpfl.clients import Batch
from cgpfl.models import DenseStack, Net, Rows


def sgd_step(net: Net, w: Rows, batch: Batch, lr: Tensor, l2: Tensor | None) -> None:
    """w -= lr * (g(w) + l2*w), in place. ``l2`` None is 0."""
    gradient = net.gradient(w, batch, -lr)
    if l2 is not None:
        w.flat.mul_(1 - lr * l2)
    net.add(w, gradient)


def formed_gradient(net: Net, w: Rows, batch: Batch, scale: Tensor, l2: Tensor | None) -> Tensor:
    """scale * (g(w) + l2*w) as [rows, d]."""
    gradient = net.dense(net.gradient(w, batch, scale), w.flat)
    return gradient if l2 is None else gradient.addcmul(w.flat, scale * l2)


def anchored_step(net: Net, w: Rows, anchor: Tensor, batch: Batch, lr: Tensor, lam: Tensor, l2: Tensor | None) -> None:
    """w -= lr * (g(w) + l2*w + lam*(w - anchor)), in place (Ditto's personal step; lam = 0 is ``sgd_step``)."""
    gradient = net.gradient(w, batch, -lr)
    _drawn(w.flat, anchor, 1 - lr * lam if l2 is None else 1 - lr * (l2 + lam), lr * lam, l2 is None)
    net.add(w, gradient)


def _drawn(w: Tensor, anchor: Tensor, keep: Tensor, pull: Tensor, convex: bool) -> None:
    """w = keep*w + pull*anchor, in place; in one pass where keep = 1 - pull (``convex``)."""
    if convex:
        w.lerp_(anchor, pull)
    else:
        w.mul_(keep).addcmul_(anchor, pull)


def proximal_steps(
    net: Net, theta: Rows, anchor: Rows, batch: Batch, eta: Tensor, lam: Tensor, l2: Tensor | None, steps: int
) -> None:
    """``steps`` times theta -= eta * (g(theta) + l2*theta + lam*(theta - anchor)) on one minibatch, in place
    (pFedMe, T. Dinh et al. 2020, algorithm 1 line 7; CGPFL, algorithm 1 line 8)."""
    if isinstance(net, DenseStack):
        _proximal_in_span(net, theta, anchor, batch, eta, lam, l2, steps)
    else:
        for _ in range(steps):
            anchored_step(net, theta, anchor.flat, batch, eta, lam, l2)


def _proximal_in_span(
    net: DenseStack,
    theta: Rows,
    anchor: Rows,
    batch: Batch,
    eta: Tensor,
    lam: Tensor,
    l2: Tensor | None,
    steps: int,
) -> None:
    """The same steps without touching the first layer's weights in between: they move only along the anchor and
    the minibatch's samples x_j, so the first layer's outputs follow from the b x b products x_j . x_k, and one
    product of size b x d at the end writes the weights. Layers behind the first are small and stepped plainly."""
    x = batch.x.flatten(2)
    keep = 1 - eta * lam if l2 is None else 1 - eta * (lam + l2)
    pull = eta * lam
    keep3, pull3 = keep.unsqueeze(-1), pull.unsqueeze(-1)
    outputs = net.first(theta, x)
    pulled = net.first(anchor, x).mul_(pull3)
    products = torch.bmm(x, x.mT).add_(1)  # + 1: the bias sees an input of one
    kept, towards = torch.ones_like(keep), torch.zeros_like(keep)
    total: Tensor | None = None
    for _ in range(steps):
        (error, _), *later = net.gradient_behind(theta, outputs, x, batch, -eta)
        for (weight, bias), (weight_to, bias_to), (late, inputs) in zip(
            theta.parts[1:], anchor.parts[1:], later, strict=True
        ):
            _drawn(weight, weight_to, keep3, pull3, l2 is None)
            _drawn(bias, bias_to, keep3, pull3, l2 is None)
            weight.baddbmm_(late, inputs)
            bias.add_(late.sum(2, keepdim=True))
        outputs = torch.addcmul(pulled, outputs, keep3).baddbmm_(error, products)
        total = error if total is None else torch.addcmul(error, total, keep3)
        kept, towards = kept * keep, towards * keep + pull
    if total is None:
        return
    for part, part_to in zip(theta.parts[0], anchor.parts[0], strict=True):
        _drawn(part, part_to, kept.unsqueeze(-1), towards.unsqueeze(-1), l2 is None)
    weight, bias = theta.parts[0]
    weight.baddbmm_(total, x)
    bias.add_(total.sum(2, keepdim=True))
