"""Local solvers on blocks of rows, one minibatch at a time. Coefficients are columns [rows, 1]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cgpfl.clients import Batch
from cgpfl.nets import DenseStack, Layer, Net, Rows, add_factors


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


@dataclass(frozen=True)
class Proximal:
    """``steps`` times theta -= eta * (g(theta) + l2*theta + lam*(theta - anchor)) on one minibatch (pFedMe, T. Dinh
    et al. 2020, algorithm 1 line 7; CGPFL, algorithm 1 line 8).

    In all, theta = ``kept`` theta + ``towards`` anchor - eta * (a sum of gradients), and in each step
    theta = ``keep`` theta + ``pull`` anchor - eta * (one); columns [rows, 1].
    """

    eta: Tensor
    lam: Tensor
    l2: Tensor | None
    steps: int
    keep: Tensor
    pull: Tensor
    kept: Tensor
    towards: Tensor

    @classmethod
    def of(cls, eta: Tensor, lam: Tensor, l2: Tensor | None, steps: int) -> Proximal:
        keep, pull = 1 - eta * (lam if l2 is None else lam + l2), eta * lam
        kept, towards = keep, pull
        for _ in range(steps - 1):
            kept, towards = kept * keep, towards * keep + pull
        return cls(eta, lam, l2, steps, keep, pull, kept, towards)

    def run(self, net: Net, theta: Rows, anchor: Rows, batch: Batch) -> None:
        """All steps on one minibatch, theta in place."""
        if isinstance(net, DenseStack):
            self._in_span(net, theta, anchor, batch)
        else:
            for _ in range(self.steps):
                anchored_step(net, theta, anchor.flat, batch, self.eta, self.lam, self.l2)

    def _in_span(self, net: DenseStack, theta: Rows, anchor: Rows, batch: Batch) -> None:
        """The same steps without touching the first layer's weights in between: they move only along the anchor and
        the minibatch's samples x_j, so the first layer's outputs follow from the b x b products x_j . x_k, and one
        product of size b x d at the end writes the weights. Layers behind the first are small: they are stepped
        plainly, on a copy whose memory has no gaps."""
        x, aim = batch.x.flatten(2), net.aim(batch, -self.eta)
        keep, pull = self.keep.unsqueeze(-1), self.pull.unsqueeze(-1)
        outputs, pulled = net.first(theta, x), net.first(anchor, x).mul_(pull)
        products = torch.bmm(x, x.mT).add_(1)  # + 1: the bias sees an input of one
        head = [(weight.contiguous(), bias.contiguous()) for weight, bias in theta.parts[1:]]
        total = torch.zeros_like(outputs)
        for _ in range(self.steps):
            (error, _), *later = net.gradient_behind(head, outputs, x, aim)
            for own, to in zip(head, anchor.parts[1:], strict=True):
                self._draw(own, to, keep, pull)
            add_factors(head, later)
            outputs = torch.addcmul(pulled, outputs, keep).baddbmm_(error, products)
            total = torch.addcmul(error, total, keep)
        for own, new in zip(theta.parts[1:], head, strict=True):
            for part, value in zip(own, new, strict=True):
                part.copy_(value)
        self._draw(theta.parts[0], anchor.parts[0], self.kept.unsqueeze(-1), self.towards.unsqueeze(-1))
        add_factors(theta.parts[:1], [(total, x)])

    def _draw(self, own: Layer, to: Layer, keep: Tensor, pull: Tensor) -> None:
        for part, part_to in zip(own, to, strict=True):
            _drawn(part, part_to, keep, pull, self.l2 is None)
