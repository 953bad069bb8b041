"""Clients' data on a device and their minibatch streams.

All clients share one pool of samples; a client is two lists of positions in it (train, test). A minibatch is a
function of (seed, client, step) alone: a keyed permutation says where in its data a client is after that many
steps, so no stream has a state, and the order in which runs or clients are processed cannot matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cgpfl.errors import UserError
from cgpfl.settings import MOST

# Streams that must be independent of each other although seed and client are the same.
TRAINING, ADAPTATION, TRAIN_LOSS, PARTICIPATION, COINS, KMEANS = range(6)


@dataclass(frozen=True)
class Ragged:
    """Lists of unequal length, end to end: list i is ``values[offsets[i] : offsets[i] + counts[i]]``."""

    values: Tensor
    offsets: Tensor
    counts: Tensor

    @classmethod
    def of(cls, lists: Sequence[Any]) -> Ragged:
        arrays = [np.asarray(items).reshape(-1) for items in lists]
        for place, array in enumerate(arrays):
            if len(array) and array.dtype.kind not in "iu":
                raise UserError(f"clients[{place}]: sample positions of type {array.dtype}; they must be whole numbers")
        arrays = [array.astype(np.int64) for array in arrays]
        counts = torch.tensor([len(items) for items in arrays], dtype=torch.int64)
        values = torch.from_numpy(np.concatenate(arrays)) if arrays else torch.zeros(0, dtype=torch.int64)
        return cls(values, counts.cumsum(0) - counts, counts)

    def to(self, device: torch.device) -> Ragged:
        return Ragged(self.values.to(device), self.offsets.to(device), self.counts.to(device))

    def padded(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Values of the given lists as [rows, width], and which of them are real; padding repeats a real value."""
        column = torch.arange(width, device=self.values.device)
        counts = self.counts[rows].unsqueeze(1)
        return self.values[self.offsets[rows].unsqueeze(1) + column % counts], column < counts


@dataclass(frozen=True)
class ClientData:
    """The data of N clients.

    Attributes:
        x: samples, float [M, *input_shape], standardised as the user wants them; or bytes, with their ``scaling``.
        y: labels, int64 [M], each in 0..classes-1.
        train, test: each client's positions in ``x``; no client is without training or test samples.
        classes: number of classes C.
        contexts: true latent context of each client, int64 [N], or None where there is none.
        scaling: (centre, factor), each one number, or of a shape that fits a sample's: the samples are
            (x - centre) * factor, computed when they are used. Four times less to store and to read than floats.
    """

    x: Tensor
    y: Tensor
    train: Ragged
    test: Ragged
    classes: int
    contexts: Tensor | None = None
    scaling: tuple[Tensor, Tensor] | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Of the samples as they are used."""
        return self.x.dtype if self.scaling is None else self.scaling[1].dtype

    @property
    def clients(self) -> int:
        return len(self.train.counts)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.x.shape[1:])

    @classmethod
    def from_arrays(
        cls, arrays: Sequence[tuple[Any, Any, Any, Any]], contexts: Any = None, classes: int | None = None
    ) -> ClientData:
        """Clients from one tuple (x_train, y_train, x_test, y_test) each, numpy or torch.

        Raises:
            UserError: if shapes, lengths or labels do not fit together, naming the client.
        """
        if not arrays:
            raise UserError("clients: the list is empty; at least one (x_train, y_train, x_test, y_test) is needed")
        parts: list[tuple[Tensor, Tensor]] = []
        for client, entry in enumerate(arrays):
            if len(entry) != 4:
                raise UserError(
                    f"clients[{client}]: {len(entry)} arrays given, expected 4 (x_train, y_train, x_test, y_test)"
                )
            parts += [_checked(client, *entry[:2], "train"), _checked(client, *entry[2:], "test")]
        shapes = {tuple(x.shape[1:]) for x, _ in parts}
        if len(shapes) > 1:
            raise UserError(f"clients: samples of different shapes {sorted(shapes)}; all must have one shape")
        counts = np.array([len(y) for _, y in parts])
        positions = np.split(np.arange(counts.sum()), counts.cumsum()[:-1])
        x = torch.cat([x for x, _ in parts])
        y = torch.cat([y for _, y in parts])
        return cls.from_pool(x, y, positions[0::2], positions[1::2], contexts=contexts, classes=classes)

    @classmethod
    def from_pool(
        cls,
        x: Any,
        y: Any,
        train: Sequence[Any],
        test: Sequence[Any],
        contexts: Any = None,
        classes: int | None = None,
        scaling: tuple[Any, Any] | None = None,
    ) -> ClientData:
        """Clients as lists of positions in one pool ``x`` [M, ...], ``y`` [M] (a partition of a data set).

        Args:
            scaling: for ``x`` of type uint8, centre and factor of its samples, float32: see the class.

        Raises:
            UserError: for an empty client, a position outside the pool, or a label outside 0..classes-1.
        """
        scale = None if scaling is None else _given_scaling(scaling)
        x, y = _samples("x", x) if scale is None else _bytes("x", x, scale), _whole_numbers("y", y)
        if y.shape != x.shape[:1]:
            raise UserError(f"y has shape {tuple(y.shape)} for {len(x)} samples; expected one label a sample")
        if not all(isinstance(lists, Sequence | np.ndarray | Tensor) for lists in (train, test)):
            raise UserError("clients: train and test are to be lists, one of sample positions for each client")
        if len(train) != len(test) or not len(train):
            raise UserError(f"clients: {len(train)} training and {len(test)} test lists; give one of each a client")
        if classes is not None and (not isinstance(classes, int) or isinstance(classes, bool) or classes > MOST):
            raise UserError(f"classes: {classes!r} given, valid is a whole number of 1 or more, or None")
        for name, lists in (("train", train), ("test", test)):
            for client, positions in enumerate(lists):
                if np.ndim(positions) != 1:
                    raise UserError(f"clients[{client}]: {name} is to be a list of sample positions")
                if len(positions) == 0:
                    raise UserError(f"clients[{client}]: no {name} samples; every client needs at least one")
        train_lists, test_lists = Ragged.of(train), Ragged.of(test)
        used = torch.cat([train_lists.values, test_lists.values])
        if int(used.min()) < 0 or int(used.max()) >= len(x):
            raise UserError(f"clients: a sample position lies outside the pool of {len(x)} samples")
        if x.is_floating_point() and not bool(torch.isfinite(x[used]).all()):
            raise UserError("clients: samples hold NaN or infinite numbers; all must be finite")
        labels = y[used]
        classes = int(labels.max()) + 1 if classes is None else classes
        if int(labels.min()) < 0 or int(labels.max()) >= classes:
            raise UserError(
                f"clients: labels run from {int(labels.min())} to {int(labels.max())}, expected 0 to {classes - 1}"
            )
        if contexts is not None:
            contexts = _whole_numbers("contexts", contexts)
            if contexts.shape != (len(train),):
                raise UserError(f"contexts: {tuple(contexts.shape)} given, expected one a client ({len(train)},)")
            low, high, most = int(contexts.min()), int(contexts.max()), max(1000, len(train))
            if low < 0 or high >= most:
                raise UserError(
                    f"contexts: {low if low < 0 else high} given, expected whole numbers from 0 to {most - 1}"
                )
        return cls(x, y, train_lists, test_lists, max(classes, 2), contexts, scale)

    @property
    def samples(self) -> tuple[Tensor, ...]:
        """What the pool is made of: samples, labels, and scaling if there is one."""
        return (self.x, self.y, *(self.scaling or ()))

    @property
    def _positions(self) -> Tensor:
        """Those in the pool that some client has."""
        return torch.cat([self.train.values, self.test.values])

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All that the clients are made of."""
        lists = (self.train.values, self.train.counts, self.test.values, self.test.counts)
        return (*self.samples, *lists) if self.contexts is None else (*self.samples, *lists, self.contexts)

    def gathered(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Samples and labels at the positions ``index`` [rows, n]: [rows, n, *input_shape] and [rows, n]."""
        x = self.x.index_select(0, index.reshape(-1))  # twice as fast as indexing with [rows, n]
        if self.scaling is not None:
            centre, factor = self.scaling
            x = x.to(factor.dtype).sub_(centre).mul_(factor)
        return x.unflatten(0, index.shape), self.y[index]

    def to(self, device: torch.device, dtype: torch.dtype) -> ClientData:
        """The same clients with samples that are used as the given type, on the given device."""
        scaling = None if self.scaling is None else _both(self.scaling, device=device, dtype=dtype)
        x = self.x.to(device=device, dtype=dtype if scaling is None else self.x.dtype).contiguous()
        if x.dtype.itemsize < self.x.dtype.itemsize and not bool(torch.isfinite(x[self._positions.to(device)]).all()):
            raise UserError(f"clients: samples hold numbers that are infinite as {str(dtype).removeprefix('torch.')}")
        return ClientData(
            x=x,
            y=self.y.to(device),
            train=self.train.to(device),
            test=self.test.to(device),
            classes=self.classes,
            contexts=None if self.contexts is None else self.contexts.to(device),
            scaling=scaling,
        )

    @staticmethod
    def stack(parts: Sequence[ClientData], dtype: torch.dtype = torch.float32) -> ClientData:
        """Several partitions end to end: client i of part p becomes client p*N + i. A shared pool stays shared; samples
        that are scaled in several ways are stored as they are used, as ``dtype``."""
        first = parts[0]
        if len(parts) == 1:
            return first
        check_sizes(parts)
        if not all(_alike(part.scaling, first.scaling) for part in parts):
            return ClientData.stack([part._used(dtype) for part in parts], dtype)
        shared = all(part.x is first.x and part.y is first.y for part in parts)
        shifts = [0] * len(parts) if shared else np.cumsum([0] + [len(part.x) for part in parts[:-1]]).tolist()
        known = all(part.contexts is not None for part in parts)
        return ClientData(
            x=first.x if shared else torch.cat([part.x for part in parts]),
            y=first.y if shared else torch.cat([part.y for part in parts]),
            train=_joined([part.train for part in parts], shifts),
            test=_joined([part.test for part in parts], shifts),
            classes=max(part.classes for part in parts),
            contexts=torch.cat([part.contexts for part in parts if part.contexts is not None]) if known else None,
            scaling=first.scaling,
        )

    def _used(self, dtype: torch.dtype) -> ClientData:
        """The same clients with samples stored as they are used, as ``dtype``."""
        same = self.to(self.x.device, dtype)
        x, _ = same.gathered(torch.arange(len(self.x), device=self.x.device))
        return replace(same, x=x, scaling=None)

    def true_contexts(self, method: str) -> Tensor:
        """``contexts``, for a method that cannot do without them.

        Raises:
            UserError: where there are none.
        """
        if self.contexts is None:
            raise UserError(
                f"{method}: the clients have no true contexts; give contexts=[...], or a "
                "partition scheme that has them (cyclic, random, contexts)"
            )
        return self.contexts


def check_sizes(parts: Sequence[ClientData]) -> None:
    """Raise a UserError where two partitions have other numbers of clients or samples of another shape."""
    first = parts[0]
    for part in parts[1:]:
        if (part.clients, part.input_shape) != (first.clients, first.input_shape):
            raise UserError(
                f"clients: partitions of {first.clients} and {part.clients} clients with samples of shape "
                f"{first.input_shape} and {part.input_shape}; all seeds need the same"
            )


def _both(scaling: tuple[Any, Any], **kind: Any) -> tuple[Tensor, Tensor]:
    centre, factor = scaling
    return torch.as_tensor(centre, **kind), torch.as_tensor(factor, **kind)


def _alike(one: tuple[Tensor, ...] | None, other: tuple[Tensor, ...] | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(torch.equal(part, like) for part, like in zip(one, other, strict=True))


def _checked(client: int, x: Any, y: Any, split: str) -> tuple[Tensor, Tensor]:
    x = _samples(f"clients[{client}]: x_{split}", x)
    y = _whole_numbers(f"clients[{client}]: y_{split}", y)
    if y.shape != x.shape[:1]:
        raise UserError(
            f"clients[{client}]: x_{split} has {len(x)} samples and y_{split} has shape {tuple(y.shape)}; "
            "expected one label a sample"
        )
    return x, y


def _as_tensor(name: str, values: Any) -> Tensor:
    """A tensor of numbers, detached, from anything that numpy understands."""
    if isinstance(values, Tensor):
        tensor = values.detach() if values.requires_grad else values  # a shared pool stays the same object
    else:
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            raise UserError(f"{name}: values of type {array.dtype}; expected numbers")
        wide = array.dtype.kind == "u" and array.dtype.itemsize > 1  # hardly any operation of torch takes these
        array = np.ascontiguousarray(array, dtype=np.int64 if wide else array.dtype.newbyteorder("="))
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
    if tensor.is_complex() or tensor.ndim == 0:
        raise UserError(
            f"{name}: a {'complex array' if tensor.ndim else 'single number'}; expected an array of numbers"
        )
    return tensor


def _samples(name: str, values: Any) -> Tensor:
    """Samples [n, ...] of floating point numbers."""
    x = _as_tensor(name, values)
    if x.ndim < 2 or 0 in x.shape[1:]:
        raise UserError(
            f"{name} has shape {tuple(x.shape)}; expected [samples, features] or [samples, height, width, ...]"
        )
    return x if x.is_floating_point() else x.to(torch.float32)


def _bytes(name: str, values: Any, scaling: tuple[Tensor, ...]) -> Tensor:
    """Samples [n, ...] of type uint8, which the scaling fits."""
    x = _as_tensor(name, values)
    if x.dtype != torch.uint8 or x.ndim < 2 or 0 in x.shape[1:]:
        raise UserError(f"{name} is {x.dtype} {list(x.shape)}; expected uint8 [samples, ...], since a scaling is given")
    for what, part in zip(("centre", "factor"), scaling, strict=True):
        try:
            fits = torch.broadcast_shapes(part.shape, x.shape[1:]) == x.shape[1:]
        except RuntimeError:
            fits = False
        if not fits:
            raise UserError(
                f"scaling: {what} {list(part.shape)} given, valid is one number, or a shape that fits a sample's "
                f"{list(x.shape[1:])}"
            )
    centre, factor = scaling
    if not all(bool(torch.isfinite((byte - centre) * factor).all()) for byte in (0, 255)):
        raise UserError(
            "scaling: samples would not be finite; valid are finite numbers that keep (x - centre) * factor so"
        )
    return x


def _given_scaling(scaling: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(scaling, tuple | list) or len(scaling) != 2:
        raise UserError(f"scaling: {scaling!r} given, valid is a pair (centre, factor)")
    parts = [np.asarray(part) for part in scaling]
    if any(part.dtype.kind not in "iuf" for part in parts):
        raise UserError("scaling: centre and factor are to be numbers, or arrays of numbers")
    return _both((parts[0], parts[1]), dtype=torch.float32)


def _whole_numbers(name: str, values: Any) -> Tensor:
    """Whole numbers [n] as int64."""
    y = _as_tensor(name, values)
    if y.ndim != 1:
        raise UserError(f"{name} has shape {tuple(y.shape)}; expected one whole number a sample")
    if y.is_floating_point() and not bool((torch.isfinite(y) & (y == y.round()) & (y.abs() < 2**53)).all()):
        raise UserError(f"{name} holds fractions; expected whole numbers")
    return y.to(torch.int64)


def _joined(parts: Sequence[Ragged], shifts: Sequence[int]) -> Ragged:
    values = torch.cat([part.values + shift for part, shift in zip(parts, shifts, strict=True)])
    counts = torch.cat([part.counts for part in parts])
    return Ragged(values, counts.cumsum(0) - counts, counts)


# --- minibatch streams ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """One minibatch a row: ``x`` [rows, b, *input_shape], ``y`` int64 [rows, b], and each sample's share of its
    row's mean, ``weight`` [rows, 1, b] (1/b; 0 for the padding of a client with fewer than b samples)."""

    x: Tensor
    y: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Streams:
    """Positions in the pool of every minibatch of some steps: ``index`` [streams, steps, b] and ``weight``
    [streams, 1, b]. With ``full`` batches one step stands for all (``index`` [streams, 1, b])."""

    index: Tensor
    weight: Tensor

    @classmethod
    def sampled(
        cls, lists: Ragged, rows: Tensor, keys: NDArray[np.uint64], first: int, steps: int, batch_size: int, width: int
    ) -> Streams:
        """Steps ``first`` to ``first + steps - 1`` of each row's stream: every pass over a client's n samples is a
        fresh permutation, cut into batches of min(batch_size, n); a batch may straddle two passes.

        Args:
            lists: the clients' sample positions. rows [streams]: which list a stream draws from.
            keys: [streams], see ``stream_keys``. width: what every minibatch is padded to.
        """
        n = lists.counts[rows].cpu().numpy()[:, None, None]
        size = np.minimum(n, batch_size)
        slot = np.arange(width)
        place = np.arange(first, first + steps)[None, :, None] * size + slot % size
        passes = place // n
        walk = permuted(place - passes * n, n, mixed(keys[:, None, None] + passes.astype(np.uint64)))
        chosen = torch.from_numpy(walk.astype(np.int64)).to(rows.device, non_blocking=True)
        index = lists.values[lists.offsets[rows].view(-1, 1, 1) + chosen]
        real = torch.from_numpy(slot < size[:, 0]).to(rows.device)
        return cls(index, _mean_weights(real, lists.counts[rows].clamp(max=batch_size).unsqueeze(1)))

    @classmethod
    def full(cls, lists: Ragged, rows: Tensor, width: int) -> Streams:
        """Every step sees all of a client's samples, padded to ``width``."""
        counts = lists.counts[rows].unsqueeze(1)
        index, real = lists.padded(rows, width)
        return cls(index.unsqueeze(1), _mean_weights(real, counts))

    @classmethod
    def joined(cls, parts: Sequence[Streams]) -> Streams:
        """The streams of several draws, one after the other."""
        if len(parts) == 1:
            return parts[0]
        return cls(torch.cat([part.index for part in parts]), torch.cat([part.weight for part in parts]))


def _mean_weights(real: Tensor, counts: Tensor) -> Tensor:
    return (real.to(torch.float64) / counts).unsqueeze(1)


def mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A well-mixed 64-bit hash (splitmix64, Steele et al. 2014)."""
    z = value + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def stream_keys(seeds: Any, clients: Any, purpose: int) -> NDArray[np.uint64]:
    """One key a (seed, client), elementwise; streams of another purpose have nothing in common with it."""
    seeds, clients = (np.atleast_1d(np.asarray(x)).astype(np.uint64) for x in (seeds, clients))
    return mixed(mixed(mixed(seeds) + np.uint64(purpose)) + clients)


def host_generator(seed: int, purpose: int, *more: int) -> np.random.Generator:
    """A numpy generator for draws made once a round (coins, participants), a function of its arguments."""
    return np.random.default_rng([seed, purpose, *more])


_TURNS = [np.uint64(8 * turn) for turn in range(5)]  # each turn sees 32 other bits of the key


def permuted(position: NDArray[Any], n: NDArray[Any], key: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Where ``position`` (0..n-1) goes in the pseudo-random permutation of 0..n-1 that ``key`` names, elementwise.

    A keyed bijection of k-bit numbers (2^(k-1) < n <= 2^k; multiply by an odd key, add a key, xor the high half into
    the low, five times), walked until it lands below n: no table, no state, no sorting. n is at most 2^31.
    """
    bits = np.ceil(np.log2(n)).astype(np.uint32)
    mask, shift = (np.uint32(1) << bits) - np.uint32(1), np.maximum((bits + np.uint32(1)) // 2, np.uint32(1))
    words = [(key >> turn).astype(np.uint32) for turn in _TURNS]
    walk = np.ascontiguousarray(_scrambled(position.astype(np.uint32), mask, shift, words))
    limit, mask, shift, *words = (
        np.broadcast_to(x, walk.shape).ravel() for x in (n.astype(np.uint32), mask, shift, *words)
    )
    flat = walk.reshape(-1)
    outside = np.flatnonzero(flat >= limit)
    while len(outside):
        flat[outside] = _scrambled(flat[outside], mask[outside], shift[outside], [word[outside] for word in words])
        outside = outside[flat[outside] >= limit[outside]]
    return walk


def _scrambled(
    x: NDArray[np.uint32], mask: NDArray[np.uint32], shift: NDArray[np.uint32], words: Sequence[NDArray[np.uint32]]
) -> NDArray[np.uint32]:
    for word in words:
        x = (x * (word | np.uint32(1)) + (word >> np.uint32(19))) & mask
        x = x ^ (x >> shift)
    return x
