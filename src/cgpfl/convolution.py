"""Convolutional models as rows; dense models do not depend on this module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from cgpfl.clients import Batch
from cgpfl.nets import DenseStack, Factors, Net, Rows

AT_ONCE = 64
"""Images that a CPU's convolutions are tested on at once; what they make of many more does not fit in the cache."""


class ConvStack(Net):
    """Convolutions with ReLU and max pooling, then a ``DenseStack``.

    On a CPU the library's convolution, one row after the other, is faster than any batched form (grouped
    convolution, unfolding); the dense part behind it, most of the parameters, stays batched.
    """

    def __init__(self, front: Sequence[nn.Module], tail: DenseStack):
        self.front, self.tail = list(front), tail
        convolutions = [layer for layer in front if isinstance(layer, nn.Conv2d)]
        self.channels = convolutions[0].in_channels
        self.shapes = [tuple(p.shape) for layer in convolutions for p in layer.parameters()]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.front_size = sum(self.sizes)
        self.size = self.front_size + tail.size
        self.device = tail.device

    def rows(self, flat: Tensor) -> Rows:
        pieces = flat[:, : self.front_size].split(self.sizes, dim=1)
        views = [piece.unflatten(1, shape) for piece, shape in zip(pieces, self.shapes, strict=True)]
        own = [[view[row] for view in views] for row in range(len(flat))]
        return Rows(flat, (own, self.tail.rows(flat[:, self.front_size :])))

    def logits(self, w: Rows, x: Tensor) -> Tensor:
        own, tail = w.parts
        size = AT_ONCE if x.device.type == "cpu" else max(1, x.shape[1])
        features = [
            torch.cat([self._forward(parameters, some)[-1] for some in samples.split(size)])
            for parameters, samples in zip(own, x, strict=True)
        ]
        return self.tail.logits(tail, torch.stack(features))

    def gradient(self, w: Rows, batch: Batch, scale: Tensor) -> tuple[list[list[Tensor]], Factors]:
        own, tail = w.parts
        traces = [self._forward(p, x) for p, x in zip(own, batch.x, strict=True)]
        features = Batch(torch.stack([trace[-1] for trace in traces]), batch.y, batch.weight)
        factors = self.tail.gradient(tail, features, scale)
        errors = _passed_back(factors[0][0], tail.parts[0][0])
        front = [self._backward(*row) for row in zip(own, traces, errors, strict=True)]
        return front, factors

    def add(self, w: Rows, gradient: tuple[list[list[Tensor]], Factors]) -> None:
        own, tail = w.parts
        front, factors = gradient
        for parameters, parts in zip(own, front, strict=True):
            for parameter, part in zip(parameters, parts, strict=True):
                parameter.add_(part)
        self.tail.add(tail, factors)

    def dense(self, gradient: tuple[list[list[Tensor]], Factors], like: Tensor) -> Tensor:
        flat = torch.zeros_like(like)
        self.add(self.rows(flat), gradient)
        return flat

    def _forward(self, parameters: list[Tensor], x: Tensor) -> list[Any]:
        """One row: what every layer of the front made of [n, *input_shape], flattened at the end; pooling also
        leaves the maxima of each line or, where its windows overlap, the places of the maxima."""
        trace: list[Any] = [x.reshape(len(x), self.channels, *x.shape[-2:])]
        given = iter(parameters)
        for layer in self.front:
            if isinstance(layer, nn.Conv2d):
                trace.append(conv2d(trace[-1], next(given), next(given), layer.stride, layer.padding))
            elif isinstance(layer, nn.ReLU):
                trace.append(torch.relu(trace[-1]))
            elif _is_tiling(layer):
                trace += _pooled(trace[-1], _pair(layer.kernel_size))
            else:
                trace += reversed(torch.ops.aten.max_pool2d_with_indices(trace[-1], *_pooling(layer)))
        trace.append(trace[-1].flatten(1))
        return trace

    def _backward(self, parameters: list[Tensor], trace: list[Any], error: Tensor) -> list[Tensor]:
        """One row: gradients of the front's parameters, from the error at its flattened output."""
        at = len(trace) - 2
        error = error.view(trace[at].shape)
        gradients: list[Tensor] = []
        weights = parameters[0::2]
        for layer in reversed(self.front):
            if isinstance(layer, nn.Conv2d):
                at -= 1
                weight, first = weights[-1 - len(gradients) // 2], at == 0
                kind = (list(layer.stride), list(layer.padding), [1, 1], False, [0, 0], 1)
                error, to_weight, to_bias = torch.ops.aten.convolution_backward(
                    error, trace[at], weight, [len(weight)], *kind, [not first, True, True]
                )
                gradients += [to_bias, to_weight]
            elif isinstance(layer, nn.ReLU):
                error = torch.ops.aten.threshold_backward(error, trace[at], 0)
                at -= 1
            else:
                at -= 2  # before the pooled values stands what pooling left
                if _is_tiling(layer):
                    x, of_lines, out = trace[at : at + 3]
                    error = _unpooled(error, x, of_lines, out, _pair(layer.kernel_size))
                else:
                    error = torch.ops.aten.max_pool2d_with_indices_backward(
                        error, trace[at], *_pooling(layer), trace[at + 1]
                    )
        return gradients[::-1]


# Pooling whose windows lie side by side, first within lines and then across them: torch's own is as slow as the
# convolution before it.


def _pooled(x: Tensor, sides: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The maxima of windows of each line of [n, channels, height, width], and of those of whole windows."""
    of_lines = reduce(torch.maximum, _places(x, 3, sides[1]))
    return of_lines, reduce(torch.maximum, _places(of_lines, 2, sides[0]))


def _unpooled(error: Tensor, x: Tensor, of_lines: Tensor, out: Tensor, sides: tuple[int, int]) -> Tensor:
    """The error at ``x``, from that at the pooled ``out``."""
    return _handed_out(_handed_out(error, of_lines, out, 2, sides[0]), x, of_lines, 3, sides[1])


def _handed_out(error: Tensor, x: Tensor, largest: Tensor, dim: int, side: int) -> Tensor:
    """The error where the largest of each ``side`` numbers was, zero elsewhere; of equal ones the first has it."""
    errors = torch.zeros_like(x) if x.shape[dim] % side else torch.empty_like(x)
    *places, last = zip(_places(errors, dim, side), _places(x, dim, side), strict=True)
    for place, value in places:
        torch.mul(error, value == largest, out=place)
        error = error - place
    last[0].copy_(error)
    return errors


def _places(x: Tensor, dim: int, side: int) -> list[Tensor]:
    """The first, second and further numbers of each whole window along a dimension, as views."""
    whole = x.shape[dim] // side
    return list(x.narrow(dim, 0, whole * side).unflatten(dim, (whole, side)).unbind(dim + 1))


def _passed_back(error: Tensor, weight: Tensor) -> Tensor:
    """The error [rows, n, inputs] at the inputs of a layer, from that at its outputs [rows, outputs, n]."""
    if weight.shape[2] == 1:  # a product with a vector, whose last digits depend on how many there are
        return (error * weight).sum(1).unsqueeze(2)
    return torch.bmm(error.mT, weight)


def _pooling(layer: nn.Module) -> tuple[Any, ...]:
    """Kernel, stride, padding, dilation and rounding of a MaxPool2d, as torch's operator takes them."""
    assert isinstance(layer, nn.MaxPool2d)
    return (*(list(_pair(x)) for x in (layer.kernel_size, layer.stride, layer.padding)), [1, 1], False)


def _pair(sides: Any) -> tuple[int, int]:
    return (sides, sides) if isinstance(sides, int) else tuple(sides)


# A layer's type is compared, not asked for with isinstance: a class derived from it may compute anything.


def is_shaper(layer: nn.Module) -> bool:
    """Leaves images as they are, or gives grey ones their channel."""
    if type(layer) is nn.Unflatten:
        return layer.dim == 1 and len(layer.unflattened_size) == 2 and layer.unflattened_size[0] == 1
    return type(layer) is nn.Identity


def _is_tiling(layer: nn.Module) -> bool:
    """Pooling whose windows lie side by side."""
    assert isinstance(layer, nn.MaxPool2d)
    return _pair(layer.stride) == _pair(layer.kernel_size) and _pair(layer.padding) == (0, 0)


def is_convolutional(layers: Sequence[nn.Module]) -> bool:
    """Shaping first if at all, then convolutions, ReLU and max pooling of the plain kind."""
    layers = layers[1:] if is_shaper(layers[0]) else layers
    return any(type(layer) is nn.Conv2d for layer in layers) and all(
        type(layer) is nn.ReLU
        or (type(layer) is nn.MaxPool2d and layer.dilation == 1 and not (layer.ceil_mode or layer.return_indices))
        or (
            type(layer) is nn.Conv2d
            and (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
            and layer.bias is not None
            and not isinstance(layer.padding, str)
        )
        for layer in layers
    )
