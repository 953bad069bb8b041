"""Models as rows.

A row is one model: a vector of d numbers in ``torch.nn.utils.parameters_to_vector`` order. A net computes with many
rows at once, [rows, d]; each row sees its own minibatch. Forms of the same thing:

* ``DenseStack`` for stacks of Linear and ReLU: a gradient stays a list of factors (error, input) per layer and is
  added to a row by one matrix product, so it is never formed.
* ``ConvStack`` (convolution.py) for convolutions in front of such a stack.
* ``GenericNet`` for any other module: ``vmap(grad)`` over the module itself; also the reference the fast forms are
  tested against.
"""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from cgpfl.clients import Batch


@dataclass(frozen=True)
class Rows:
    """Models [rows, d]: ``flat`` for arithmetic on whole models, ``parts`` are views of it for the net."""

    flat: Tensor
    parts: Any

    def __len__(self) -> int:
        return len(self.flat)


# A gradient as one (error [rows, outputs, n], input [rows, n, inputs]) a layer: their product is the weights' part.
Factors = list[tuple[Tensor, Tensor]]
Layer = tuple[Tensor, Tensor]  # weight [rows, outputs, inputs], bias [rows, outputs, 1]


class Net(ABC):
    """What methods need of a model. ``x`` is [rows, n, *input_shape]; row r sees x[r]."""

    size: int  # d, parameters of one model
    device: torch.device

    @abstractmethod
    def rows(self, flat: Tensor) -> Rows:
        """Views of [rows, d]; writing to one writes to the other."""

    @abstractmethod
    def logits(self, w: Rows, x: Tensor) -> Tensor:
        """Outputs [rows, C, n]."""

    def logits_of(self, models: Sequence[Rows], x: Tensor) -> Sequence[Tensor]:
        """Outputs [rows, C, n] of several models on the same samples."""
        return [self.logits(w, x) for w in models]

    @abstractmethod
    def gradient(self, w: Rows, batch: Batch, scale: Tensor) -> Any:
        """``scale`` [rows, 1] times the gradient of each row's mean cross-entropy on its minibatch, in the net's own
        form: to be given to ``add`` or ``dense`` before ``w`` or the batch changes."""

    @abstractmethod
    def add(self, w: Rows, gradient: Any) -> None:
        """w += gradient, in place."""

    @abstractmethod
    def dense(self, gradient: Any, like: Tensor) -> Tensor:
        """The gradient as [rows, d], of the type of ``like`` [rows, d]."""


class DenseStack(Net):
    """Linear layers with ReLU between them. Outputs are [rows, outputs, n], in whatever order of memory is fastest."""

    def __init__(self, sizes: Sequence[int], device: torch.device):
        self.sizes = tuple(sizes)
        self.layers = tuple(zip(self.sizes[:-1], self.sizes[1:], strict=True))
        self.size = sum(inputs * outputs + outputs for inputs, outputs in self.layers)
        self.device = device

    def rows(self, flat: Tensor) -> Rows:
        parts, start = [], 0
        for inputs, outputs in self.layers:
            middle = start + inputs * outputs
            stop = middle + outputs
            parts.append((flat[:, start:middle].view(-1, outputs, inputs), flat[:, middle:stop].unsqueeze(2)))
            start = stop
        return Rows(flat, parts)

    def logits(self, w: Rows, x: Tensor) -> Tensor:
        return self._after_first(w.parts[1:], self.first(w, x.flatten(2)))[-1]

    def logits_of(self, models: Sequence[Rows], x: Tensor) -> Sequence[Tensor]:
        """The first layers as one product, side by side: narrow ones alone are half as fast."""
        weight, bias = (torch.cat([w.parts[0][part] for w in models], dim=1) for part in (0, 1))
        firsts = _affine(weight, bias, x.flatten(2), self.sizes[1]).chunk(len(models), dim=1)
        return [self._after_first(w.parts[1:], first)[-1] for w, first in zip(models, firsts, strict=True)]

    def first(self, w: Rows, x: Tensor) -> Tensor:
        """Outputs of the first layer before its ReLU, [rows, outputs, n], for x [rows, n, inputs]."""
        weight, bias = w.parts[0]
        return _affine(weight, bias, x)

    def gradient(self, w: Rows, batch: Batch, scale: Tensor) -> Factors:
        x = batch.x.flatten(2)
        return self.gradient_behind(w.parts[1:], self.first(w, x), x, self.aim(batch, scale))

    def aim(self, batch: Batch, scale: Tensor) -> tuple[Tensor, Tensor]:
        """What turns probabilities into a scaled error: each sample's weight [rows, 1, b], and that weight at the
        sample's label, [rows, C, b]."""
        weight = batch.weight * scale.unsqueeze(-1)
        target = weight.new_zeros(len(batch.y), self.sizes[-1], batch.y.shape[1])
        return weight, target.scatter_(1, batch.y.unsqueeze(1), weight.expand(len(batch.y), 1, batch.y.shape[1]))

    def gradient_behind(self, head: Sequence[Layer], first: Tensor, x: Tensor, aim: tuple[Tensor, Tensor]) -> Factors:
        """The gradient, given the layers behind the first, the first layer's outputs, and ``aim``."""
        outputs = self._after_first(head, first)
        weight, target = aim
        error = torch.softmax(outputs[-1], dim=1).mul_(weight).sub_(target)
        factors = []
        for hidden, (weights, _) in zip(outputs[-2::-1], reversed(head), strict=True):
            factors.append((error, hidden.mT))
            error = torch.ops.aten.threshold_backward(torch.bmm(error.mT, weights), hidden.mT, 0).mT
        factors.append((error, x))
        return factors[::-1]

    def _after_first(self, head: Sequence[Layer], first: Tensor) -> list[Tensor]:
        """Every layer's output [rows, outputs, n], hidden ones after their ReLU."""
        outputs = [first]
        for weight, bias in head:
            outputs[-1] = torch.relu(outputs[-1])
            outputs.append(_affine(weight, bias, outputs[-1].mT))
        return outputs

    def add(self, w: Rows, gradient: Factors) -> None:
        add_factors(w.parts, gradient)

    def dense(self, gradient: Factors, like: Tensor) -> Tensor:
        flat = torch.zeros_like(like)
        self.add(self.rows(flat), gradient)
        return flat


class GenericNet(Net):
    """Any module that is a function of its parameters and one sample at a time (see ``models.check_module``), by
    ``vmap`` of ``grad`` over its functional form."""

    def __init__(self, build: Callable[[], nn.Module], device: torch.device):
        module = built(build)
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [tuple(parameter.shape) for parameter in module.parameters()]
        self.sizes = [parameter.numel() for parameter in module.parameters()]
        self.size = sum(self.sizes)
        self.device = device
        self._module = module
        self._local = threading.local()  # functional_call swaps a module's tensors: one copy a thread

    def _own(self) -> nn.Module:
        if not hasattr(self._local, "module"):
            self._local.module = copy.deepcopy(self._module).to("meta")
        return self._local.module

    def rows(self, flat: Tensor) -> Rows:
        pieces = flat.split(self.sizes, dim=1)
        views = [piece.view(-1, *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        return Rows(flat, dict(zip(self.names, views, strict=True)))

    def logits(self, w: Rows, x: Tensor) -> Tensor:
        module = self._own()
        return vmap(lambda parts, x: functional_call(module, parts, (x,)))(w.parts, x).mT

    def gradient(self, w: Rows, batch: Batch, scale: Tensor) -> Tensor:
        module = self._own()

        def loss(parts: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            losses = cross_entropy(functional_call(module, parts, (x,)), y, reduction="none")
            return (losses * weight).sum()

        weight = (batch.weight * scale.unsqueeze(-1)).squeeze(1)
        parts = vmap(grad(loss))(w.parts, batch.x, batch.y, weight)
        return torch.cat([parts[name].flatten(1) for name in self.names], dim=1)

    def add(self, w: Rows, gradient: Tensor) -> None:
        w.flat.add_(gradient)

    def dense(self, gradient: Tensor, like: Tensor) -> Tensor:
        return gradient


# Up to this many outputs, W X^T with the classes first is the faster order of a layer's product on a CPU; softmax
# over a small last dimension is slow in any case, so logits are kept [rows, C, n].
NARROW = 32


def _affine(weight: Tensor, bias: Tensor, x: Tensor, width: int | None = None) -> Tensor:
    """weight x^T + bias, [rows, outputs, n], from [rows, outputs, inputs], [rows, outputs, 1], [rows, n, inputs];
    ``width``: outputs of each model where those of several are side by side."""
    if (width or weight.shape[1]) <= NARROW:
        return torch.baddbmm(bias, weight, x.mT)
    return torch.baddbmm(bias.mT, x, weight.mT).mT


def add_factors(layers: Sequence[Layer], factors: Factors) -> None:
    """layers += factors, in place."""
    for (weight, bias), (error, inputs) in zip(layers, factors, strict=True):
        weight.baddbmm_(error, inputs)
        bias.add_(error.sum(2, keepdim=True))


def built(build: Callable[[], nn.Module]) -> nn.Module:
    """The module for its structure only; torch's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        return build()
