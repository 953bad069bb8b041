"""Convolutional models as rows; dense models do not depend on this module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from cgpfl.clients import Batch
from cgpfl.nets import DenseStack, Factors, Net, Rows


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
        return self.tail.logits(tail, torch.stack([self._forward(p, s)[-1] for p, s in zip(own, x, strict=True)]))

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
        leaves where each maximum was."""
        trace: list[Any] = [x.reshape(len(x), self.channels, *x.shape[-2:])]
        given = iter(parameters)
        for layer in self.front:
            if isinstance(layer, nn.Conv2d):
                trace.append(conv2d(trace[-1], next(given), next(given), layer.stride, layer.padding))
            elif isinstance(layer, nn.ReLU):
                trace.append(torch.relu(trace[-1]))
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
                at -= 2  # behind the pooled values stand the places of the maxima
                error = torch.ops.aten.max_pool2d_with_indices_backward(
                    error, trace[at], *_pooling(layer), trace[at + 1]
                )
        return gradients[::-1]


def _passed_back(error: Tensor, weight: Tensor) -> Tensor:
    """The error [rows, n, inputs] at the inputs of a layer, from that at its outputs [rows, outputs, n]."""
    if weight.shape[2] == 1:  # a product with a vector, whose last digits depend on how many there are
        return (error * weight).sum(1).unsqueeze(2)
    return torch.bmm(error.mT, weight)


def _pooling(layer: nn.Module) -> tuple[Any, ...]:
    """Kernel, stride, padding, dilation and rounding of a MaxPool2d, as torch's operator takes them."""
    assert isinstance(layer, nn.MaxPool2d)
    sides = [[x, x] if isinstance(x, int) else list(x) for x in (layer.kernel_size, layer.stride, layer.padding)]
    return (*sides, [1, 1], False)


# A layer's type is compared, not asked for with isinstance: a class derived from it may compute anything.


def is_shaper(layer: nn.Module) -> bool:
    """Leaves images as they are, or gives grey ones their channel."""
    if type(layer) is nn.Unflatten:
        return layer.dim == 1 and len(layer.unflattened_size) == 2 and layer.unflattened_size[0] == 1
    return type(layer) is nn.Identity


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
