"""Models as nn.Modules: ours, the user's, what these must be, and the fastest way to compute with rows of each."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from cgpfl.clients import Batch
from cgpfl.convolution import ConvStack, is_convolutional, is_shaper
from cgpfl.errors import UserError
from cgpfl.imports import imported, is_path, told
from cgpfl.nets import DenseStack, GenericNet, Net, built

T = TypeVar("T")

# --- modules --------------------------------------------------------------------------------------------------


def mlr(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Multinomial logistic regression: one Linear layer (paper, section 5.1)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def dnn(input_shape: tuple[int, ...], classes: int, hidden: int = 128) -> nn.Module:
    """One hidden layer of ``hidden`` ReLU units (paper, section 5.1)."""
    _check_sizes("hidden", hidden)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), hidden), nn.ReLU(), nn.Linear(hidden, classes))


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


# --- as rows ----------------------------------------------------------------------------------------------------


def as_net(build: Callable[[], nn.Module], device: torch.device, path: str = "auto") -> Net:
    """The fastest net for what ``build`` makes; ``path="generic"`` forces the reference."""
    module = built(build)
    _check_layers(module)
    layers = list(module) if type(module) is nn.Sequential and path == "auto" else []
    flat = [at for at, layer in enumerate(layers) if _is_flatten(layer)]
    front, tail = (layers[: flat[0]], layers[flat[0] + 1 :]) if len(flat) == 1 else ([], layers)
    if not _is_dense_stack(tail):
        return GenericNet(build, device)
    linear = [layer for layer in tail if isinstance(layer, nn.Linear)]
    dense = DenseStack([linear[0].in_features, *(layer.out_features for layer in linear)], device)
    if not front:
        return dense
    if device.type == "cpu" and is_convolutional(front):
        return ConvStack([layer for layer in front if not is_shaper(layer)], dense)
    return GenericNet(build, device)


# A layer's type is compared, not asked for with isinstance: a class derived from it may compute anything.


def _is_flatten(layer: nn.Module) -> bool:
    return type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1)


def _is_dense_stack(layers: Sequence[nn.Module]) -> bool:
    odd = len(layers) % 2 == 1
    linear = all(type(layer) is nn.Linear and layer.bias is not None for layer in layers[0::2])
    return odd and linear and all(type(layer) is nn.ReLU for layer in layers[1::2])
