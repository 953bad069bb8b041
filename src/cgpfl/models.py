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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import conv2d, cross_entropy

from cgpfl.clients import Batch
from cgpfl.errors import UserError
from cgpfl.imports import imported, is_path, told

T = TypeVar("T")

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
        name: ``mlr``, ``dnn`` or ``cnn``; or the path of your own factory, ``mypackage.nets:make_net``, which is called
            as ``make_net(input_shape, classes, **kwargs)`` and returns a module (see ``check_module``).
        input_shape: shape of one sample. classes: number of outputs C.
        kwargs: sizes of the model (dnn: hidden; cnn: channels, hidden).

    The order of ``torch.nn.utils.parameters_to_vector`` on it is the column order of every row [.., d] in a result.

    Raises:
        UserError: for an unknown name or size, and for an own model that cannot be built or trained.
    """
    factory, shape = factory_of(name, kwargs), tuple(input_shape)
    if not is_path(name):
        return factory(shape, classes, **kwargs)
    try:
        module = _tried(lambda: factory(shape, classes, **kwargs), "the factory")
        check_module(module, shape, classes)
    except UserError as error:
        raise UserError(f"model {name}: {error}") from error.__cause__
    return module


def factory_of(name: str, settings: Iterable[str] = ()) -> Callable[..., nn.Module]:
    """The function that builds the model called ``name``, once it is known to take these settings.

    Raises:
        UserError: for an unknown name or setting.
    """
    if is_path(name):
        factory = imported(name, "model")
        if not callable(factory):
            raise UserError(f"model {name}: this is no function; valid is one that takes (input_shape, classes)")
    elif name in MODELS:
        factory = MODELS[name]
    else:
        raise UserError(
            f"model: {name!r} is unknown; valid are {', '.join(MODELS)}, or the path of your own, package.module:name"
        )
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except (TypeError, ValueError):
        raise UserError(f"model {name}: its parameters cannot be read; wrap it in a function of your own") from None
    valid = [parameter.name for parameter in parameters][2:]
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    for key in settings:
        if not anything and key not in valid:
            raise UserError(f"model {name}: {key!r} is unknown; valid are {', '.join(valid) or 'no settings'}")
    return factory


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


# --- what a module must be ------------------------------------------------------------------------------------


def check_module(module: Any, input_shape: tuple[int, ...], classes: int) -> None:
    """Raise a UserError unless this is a module that can be trained as rows: many at once, each a function of its
    parameters and one sample at a time.

    It maps [n, *input_shape] to [n, classes] for every n, with the same result in training and in evaluation mode; it
    has parameters, all of them trained and none shared, no buffers, no dropout and no batch normalisation.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"the factory returned {type(module).__name__}; valid is a torch.nn.Module")
    _check_parameters(module)
    _check_layers(module)
    x = torch.randn(3, *input_shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        _check_outputs(module, x, classes)
        _check_rows(module, Batch(x[None], torch.arange(3)[None] % classes, torch.full((1, 1, 3), 1 / 3)))


def _check_parameters(module: nn.Module) -> None:
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if not parameters:
        raise UserError("the module has no parameters to train")
    for name, parameter in parameters.items():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise UserError(f"{name} has no size yet; give lazy layers their sizes")
        if not parameter.requires_grad:
            raise UserError(f"{name} has requires_grad=False; all parameters are trained, so leave frozen ones out")
    if len({id(parameter) for parameter in parameters.values()}) < len(parameters):
        raise UserError("the module uses one parameter in two places; every layer needs parameters of its own")


def _check_layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        place = f"{name or 'the module'} ({type(layer).__name__})"
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            raise UserError(
                f"{place}: batch normalisation makes a sample's output depend on its minibatch, which is padded for "
                "clients of few samples and is test data in a test, and running statistics are state of a client that "
                "no method says how to aggregate; use GroupNorm"
            )
        if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
            raise UserError(
                f"{place}: dropout draws random numbers, and a run is to be a function of its seed, client and step "
                "alone; use p=0"
            )
    for name, _ in module.named_buffers():
        raise UserError(
            f"{name} is a buffer, state of a client that no method says how to aggregate; use layers without running "
            "statistics (GroupNorm, say) and compute constants in forward"
        )


def _check_outputs(module: nn.Module, x: Tensor, classes: int) -> None:
    """Outputs on three samples are of the right shape and do not depend on chance, mode or the other samples."""
    before = torch.get_rng_state()
    outputs = _tried(lambda: module(x), f"forward on samples {list(x.shape)}")
    if not torch.equal(before, torch.get_rng_state()):
        torch.set_rng_state(before)
        raise UserError("forward draws random numbers; a run is to be a function of its seed, client and step alone")
    if not isinstance(outputs, Tensor) or outputs.shape != (len(x), classes):
        found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise UserError(f"forward returned {found} on {len(x)} samples; valid is a tensor of [n, {classes}] outputs")
    if not _alike(_tried(lambda: module(x[:2]), "forward on fewer samples"), outputs[:2]):
        raise UserError("a sample's outputs depend on the other samples of its minibatch; use GroupNorm, say")
    if not _alike(_tried(lambda: copy.deepcopy(module).eval()(x), "forward in evaluation mode"), outputs):
        raise UserError("outputs differ between training and evaluation mode; both must be the same function")


def _check_rows(module: nn.Module, batch: Batch) -> None:
    """As rows it computes what it computes by itself."""
    net = as_net(lambda: module, torch.device("cpu"))
    rows = net.rows(nn.utils.parameters_to_vector(module.parameters()).detach()[None])
    what = "forward for several clients at once (torch.vmap)"
    logits = _tried(lambda: net.logits(rows, batch.x), what)
    _tried(lambda: net.gradient(rows, batch, torch.ones(1, 1)), what)
    if not _alike(logits[0].T, _tried(lambda: module(batch.x[0]), what)):
        raise UserError("the module with its parameters replaced computes something else; keep all state in parameters")


def _tried(call: Callable[[], T], what: str) -> T:
    """What the user's code returns; what it raises, in one sentence."""
    try:
        return call()
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} raised {told(error)}") from error


def _alike(one: Tensor, other: Tensor) -> bool:
    """Equal but for rounding."""
    return one.shape == other.shape and bool(((one - other).abs() <= 1e-3 * other.abs().max()).all())


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
    """Any module that is a function of its parameters and one sample at a time (``check_module``), by ``vmap`` of
    ``grad`` over its functional form."""

    def __init__(self, build: Callable[[], nn.Module], device: torch.device):
        module = _built(build)
        self.names = [name for name, _ in module.named_parameters()]
        self.shapes = [tuple(parameter.shape) for parameter in module.parameters()]
        self.sizes = [parameter.numel() for parameter in module.parameters()]
        self.size = sum(self.sizes)
        self.device = device
        self._module = module
        self._local = threading.local()  # functional_call swaps a module's tensors: one copy a thread
        _check_layers(module)

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
    layers = list(module) if type(module) is nn.Sequential and path == "auto" else []
    flat = [at for at, layer in enumerate(layers) if _is_flatten(layer)]
    front, tail = (layers[: flat[0]], layers[flat[0] + 1 :]) if len(flat) == 1 else ([], layers)
    if not _is_dense_stack(tail):
        return GenericNet(build, device)
    linear = [layer for layer in tail if isinstance(layer, nn.Linear)]
    dense = DenseStack([linear[0].in_features, *(layer.out_features for layer in linear)], device)
    if not front:
        return dense
    if device.type == "cpu" and _is_convolutional(front):
        return ConvStack([layer for layer in front if not _is_shaper(layer)], dense)
    return GenericNet(build, device)


# A layer's type is compared, not asked for with isinstance: a class derived from it may compute anything.


def _is_flatten(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _is_shaper(layer: nn.Module) -> bool:
    """Leaves images as they are, or gives grey ones their channel."""
    if type(layer) is nn.Unflatten:
        return layer.dim == 1 and len(layer.unflattened_size) == 2 and layer.unflattened_size[0] == 1
    return type(layer) is nn.Identity


def _is_dense_stack(layers: Sequence[nn.Module]) -> bool:
    odd = len(layers) % 2 == 1
    linear = all(type(layer) is nn.Linear and layer.bias is not None for layer in layers[0::2])
    return odd and linear and all(type(layer) is nn.ReLU for layer in layers[1::2])


def _is_convolutional(layers: Sequence[nn.Module]) -> bool:
    """Shaping first if at all, then convolutions, ReLU and max pooling of the plain kind."""
    layers = layers[1:] if _is_shaper(layers[0]) else layers
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
