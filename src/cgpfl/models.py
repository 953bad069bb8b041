"""Models as nn.Modules and as rows.

A row is one model: a vector of d numbers in ``torch.nn.utils.parameters_to_vector`` order. A net computes with many
rows at once, [rows, d]; each row sees its own minibatch. Two forms of the same thing:

* ``DenseStack`` for stacks of Linear and ReLU: a gradient stays a list of factors (error, input) per layer and is
  added to a row by one matrix product, so it is never formed.
* ``GenericNet`` for any other module: ``vmap(grad)`` over the module itself; also the reference the fast form is
  tested against.
"""

from __future__ import annotations

import copy
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import conv2d, cross_entropy

from cgpfl.clients import Batch
from cgpfl.errors import UserError

# --- modules --------------------------------------------------------------------------------------------------


def mlr(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression: one Linear layer (paper, section 5.1)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(_size(input_shape), classes))


def dnn(input_shape: tuple[int, ...], classes: int, hidden: int = 128) -> nn.Module:
    """One hidden layer of ``hidden`` ReLU units (paper, section 5.1)."""
    _check_sizes("hidden", hidden)
    return nn.Sequential(nn.Flatten(), nn.Linear(_size(input_shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(input_shape: tuple[int, ...], classes: int, channels: Sequence[int] = (6, 16), hidden: int = 120) -> nn.Module:
    """Two 5x5 convolutions with 2x2 max pooling, then two fully connected layers (paper, section 5.1, which gives
    no sizes). ``input_shape`` is (C, H, W), or (H, W) for grey images; both sides at least 16 pixels."""
    shape = tuple(input_shape) if len(input_shape) == 3 else (1, *input_shape)
    sides = [((side - 4) // 2 - 4) // 2 for side in shape[1:]]
    if len(shape) != 3 or min(sides) < 1:
        raise UserError(
            f"model cnn: input shape {tuple(input_shape)}; expected (channels, height, width) with sides of 16 or more"
        )
    _check_sizes("hidden", hidden)
    if not isinstance(channels, list | tuple) or len(channels) != 2:
        raise UserError(f"channels: {channels!r} given, valid are two whole numbers of 1 or more")
    _check_sizes("channels", *channels)
    first, second = channels
    return nn.Sequential(
        nn.Unflatten(1, (1, shape[1])) if len(input_shape) == 2 else nn.Identity(),
        nn.Conv2d(shape[0], first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * sides[0] * sides[1], hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def _check_sizes(name: str, *sizes: Any) -> None:
    for size in sizes:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 1 << 20:
            raise UserError(f"{name}: {size!r} given, valid is a whole number from 1 to {1 << 20}")


MODELS: dict[str, Callable[..., nn.Module]] = {"mlr": mlr, "dnn": dnn, "cnn": cnn}

# l2 that a model is trained with where none is given: the paper's MLR is "l2-regularised", with mu = 0.001 in the
# code base it follows; DNN and CNN are not.
DEFAULT_L2 = {"mlr": 0.001}


def build_model(name: str, input_shape: Sequence[int], classes: int, **kwargs: Any) -> nn.Module:
    """The module called ``name``, freshly initialised from torch's current random state.

    Args:
        name: ``mlr``, ``dnn`` or ``cnn``.
        input_shape: shape of one sample. classes: number of outputs C.
        kwargs: sizes of the model (dnn: hidden; cnn: channels, hidden).

    The order of ``torch.nn.utils.parameters_to_vector`` on it is the column order of every row [.., d] in a result.

    Raises:
        UserError: for an unknown name or size.
    """
    if name not in MODELS:
        raise UserError(f"model: {name!r} is unknown; valid are {', '.join(MODELS)}")
    valid = list(inspect.signature(MODELS[name]).parameters)[2:]
    for key in kwargs:
        if key not in valid:
            raise UserError(f"model {name}: {key!r} is unknown; valid are {', '.join(valid) or 'no settings'}")
    return MODELS[name](tuple(input_shape), classes, **kwargs)


def initial_row(build: Callable[[], nn.Module], seed: int) -> Tensor:
    """The module's initial parameters [d] as a function of ``seed`` (float32; torch's own state is left alone)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(build().parameters()).detach()


def _built(build: Callable[[], nn.Module]) -> nn.Module:
    """The module for its structure only; torch's random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        return build()


def _size(shape: Sequence[int]) -> int:
    size = 1
    for side in shape:
        size *= side
    return size


# --- rows -----------------------------------------------------------------------------------------------------


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
        self.sizes = [_size(shape) for shape in self.shapes]
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
        errors = torch.bmm(factors[0][0].mT, tail.parts[0][0])
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


def _pooling(layer: nn.Module) -> tuple[Any, ...]:
    """Kernel, stride, padding, dilation and rounding of a MaxPool2d, as torch's operator takes them."""
    assert isinstance(layer, nn.MaxPool2d)
    sides = [[x, x] if isinstance(x, int) else list(x) for x in (layer.kernel_size, layer.stride, layer.padding)]
    return (*sides, [1, 1], False)


class GenericNet(Net):
    """Any module without buffers, by ``vmap`` of ``grad`` over its functional form."""

    def __init__(self, build: Callable[[], nn.Module], device: torch.device):
        module = _built(build)
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [tuple(parameter.shape) for parameter in module.parameters()]
        self.sizes = [parameter.numel() for parameter in module.parameters()]
        self.size = sum(self.sizes)
        self.device = device
        self._module = module
        self._local = threading.local()  # functional_call swaps a module's tensors: one copy a thread
        if list(module.buffers()):
            raise UserError(f"model: {type(module).__name__} has buffers (batch norm, say), which are not supported")

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


def as_net(build: Callable[[], nn.Module], device: torch.device, path: str = "auto") -> Net:
    """The fastest net for what ``build`` makes; ``path="generic"`` forces the reference."""
    module = _built(build)
    layers = list(module) if isinstance(module, nn.Sequential) and path == "auto" else []
    flat = [at for at, layer in enumerate(layers) if isinstance(layer, nn.Flatten)]
    front, tail = (layers[: flat[0]], layers[flat[0] + 1 :]) if len(flat) == 1 else ([], layers)
    if not _is_dense_stack(tail):
        return GenericNet(build, device)
    linear = [layer for layer in tail if isinstance(layer, nn.Linear)]
    dense = DenseStack([linear[0].in_features, *(layer.out_features for layer in linear)], device)
    if not front:
        return dense
    if device.type == "cpu" and _is_convolutional(front):
        return ConvStack([layer for layer in front if not isinstance(layer, _SHAPERS)], dense)
    return GenericNet(build, device)


_SHAPERS = (nn.Identity, nn.Unflatten)


def _is_dense_stack(layers: Sequence[nn.Module]) -> bool:
    odd = len(layers) % 2 == 1
    linear = all(isinstance(layer, nn.Linear) and layer.bias is not None for layer in layers[0::2])
    return odd and linear and all(isinstance(layer, nn.ReLU) for layer in layers[1::2])


def _is_convolutional(layers: Sequence[nn.Module]) -> bool:
    """Shaping first, then convolutions, ReLU and max pooling of the plain kind."""
    convolutions = any(isinstance(layer, nn.Conv2d) for layer in layers)
    return (
        convolutions
        and isinstance(layers[0], _SHAPERS)
        and all(
            isinstance(layer, nn.ReLU)
            or (isinstance(layer, nn.MaxPool2d) and layer.dilation == 1 and not layer.ceil_mode)
            or (
                isinstance(layer, nn.Conv2d)
                and (layer.groups, layer.dilation, layer.padding_mode) == (1, (1, 1), "zeros")
                and layer.bias is not None
                and not isinstance(layer.padding, str)
            )
            for layer in layers[1:]
        )
    )
