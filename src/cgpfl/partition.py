"""Partitions: from labels to clients, each with training and test samples.

Everything here is a pure function of its arguments (`save` and `load` at the end apart): random numbers come
from generators made of the seed, so that a partition can be had again from its parameters alone.

A scheme answers one question, which client owns which sample (`owner`, -1 for none); the stratified cut into
training and test samples is then the same for all.

The schemes with fixed class sets (`cyclic`, `random`, `contexts`) need a table of counts, clients by classes,
that keeps every client between its bounds, takes from no class more than there is, and deals as many samples
as the request allows. Its shape comes from iterative proportional fitting; a maximum flow then makes whole
numbers of it, and tells in no time if the request cannot be met, and why.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from cgpfl.errors import UserError
from cgpfl.files import replacing

if TYPE_CHECKING:
    from cgpfl.datasets import Dataset

log = logging.getLogger(__name__)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# One stream of random numbers a purpose: a change in how one is used leaves the others as they were.
_SIZES, _SETS, _DEAL, _TEST, _VALIDATION, _SUBSAMPLE = range(6)


@dataclass(frozen=True, eq=False)
class Partition:
    """The samples of N clients.

    Attributes:
        train: N arrays int64, ascending indices into the dataset's samples.
        test: N arrays int64 likewise; no index occurs twice in all of `train` and `test`.
        contexts: int64 [N], the true latent context of each client (clients of one context draw from the same
            distribution of labels), or None where the scheme has none.
        seed: the seed it was made with.
        scheme: the name of the scheme it was made with.
    """

    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    contexts: Ints | None
    seed: int
    scheme: str

    @property
    def clients(self) -> int:
        """The number of clients N."""
        return len(self.train)


# ---------------------------------------------------------------------------------------------------------
# The public functions
# ---------------------------------------------------------------------------------------------------------


def make_partition(
    labels: ArrayLike,
    pool_indices: ArrayLike | None = None,
    *,
    clients: int | None = None,
    scheme: str = "cyclic",
    seed: int = 0,
    test_fraction: float = 0.25,
    classes: int | None = None,
    classes_per_client: int | None = None,
    groups: int | Sequence[Sequence[int]] | None = None,
    concentration: float | None = None,
    shards_per_client: int | None = None,
    client: ArrayLike | None = None,
    min_samples: int | None = None,
    max_samples: int | None = None,
    size_sigma: float | None = None,
) -> Partition:
    """Deal the samples of a pool to clients, and cut each client's samples into training and test samples.

    Schemes (`options(scheme)` tells which options a scheme takes, and their defaults):

    - `cyclic`: client u holds the classes u, u+1, ... modulo C, `classes_per_client` of them.
    - `random`: uniformly drawn sets of `classes_per_client` classes, such that every class has a client.
    - `contexts`: client u is in context u mod G and holds that group's classes. `groups` is G, which cuts the
      classes in order into G disjoint groups as even as can be, or the list of the groups' classes.
    - `dirichlet`: the shares of each class that the clients get are drawn from a Dirichlet distribution with
      all parameters `concentration` (Yurochkin et al. 2019; Li et al., NIID-Bench, 2022). Clients left with
      less than `min_samples` are then filled up from the larger than average, with classes they hold already
      where possible; nothing is drawn anew.
    - `iid`: the pool is shuffled and dealt.
    - `shards`: the pool is sorted by label and cut into equal shards (sizes differ by one at most), of which
      each client gets `shards_per_client` at random (McMahan et al. 2017).
    - `given`: `client` names each sample's client; only the cut into training and test samples is made.

    Sizes (`cyclic`, `random`, `contexts`, `iid`): lognormal(0, `size_sigma`) draws, scaled and clipped to
    [`min_samples`, `max_samples`], so that they sum to the pool, or to the most that bounds and class sets
    allow. Where class sets are fixed, sizes also give way to what their classes can supply; the bounds stay.

    Test samples: round(`test_fraction` * size) of each client, spread over its classes in proportion, but
    always one training sample of each of its classes, and one test sample.

    Args:
        labels: int [P], the class in 0..C-1 of each sample of the pool.
        pool_indices: int [P], the pool's indices into the dataset; default 0..P-1.
        clients: the number of clients N, at least 1 (left out, or right, with `given`).
        scheme: see above.
        seed: at least 0.
        test_fraction: in (0, 1).
        classes: C; default the largest label + 1.
        classes_per_client: in 1..C.
        groups: see `contexts`.
        concentration: 0.001 to 1e6; small means few classes a client.
        shards_per_client: at least 1.
        client: int [P] with values 0..N-1, see `given`.
        min_samples: the fewest samples (training and test) of a client, at least 1. A client of k fixed
            classes gets k + 1 at least.
        max_samples: the most samples of a client; default no limit.
        size_sigma: 0 to 10; 0 makes sizes equal.

    Raises:
        UserError: for an option out of range or of another scheme, and for what cannot be met, with numbers.
    """
    request = _request(
        labels,
        clients=clients,
        scheme=scheme,
        seed=seed,
        classes=classes,
        given={
            "classes_per_client": classes_per_client,
            "groups": groups,
            "concentration": concentration,
            "shards_per_client": shards_per_client,
            "client": client,
            "min_samples": min_samples,
            "max_samples": max_samples,
            "size_sigma": size_sigma,
        },
    )
    _check_fraction("test_fraction", test_fraction)
    pool = _pool_indices(pool_indices, request.labels)
    owner, contexts = _SCHEMES[scheme].deal(request)
    members = _members(owner, request.clients)
    _tell_unused(request, owner)
    cuts = [
        _cut(positions, request.labels, test_fraction, (seed, _TEST, u), f"client {u}", "test")
        for u, positions in enumerate(members)
    ]
    train, test = (tuple(np.sort(pool[part[side]]) for part in cuts) for side in (0, 1))
    return Partition(train, test, contexts, int(seed), scheme)


def of_dataset(
    dataset: Dataset, *, seed: int, clients: int, test_fraction: float, train_share: float = 1.0, **given: Any
) -> Partition:
    """Deal the pool of a dataset to clients as `make_partition` does, and keep a share of their training samples as
    `subsample_train` does. A dataset that comes with clients keeps them: then only `seed`, `test_fraction` and
    `train_share` count."""
    pool = dataset.pool()
    options: dict[str, Any] = {"clients": clients, **given}
    if dataset.client is not None:
        options = {"scheme": "given", "client": dataset.client[pool]}
    classes = len(dataset.classes)
    made = make_partition(dataset.y[pool], pool, seed=seed, test_fraction=test_fraction, classes=classes, **options)
    return subsample_train(made, dataset.y, train_share, seed)


def schemes() -> tuple[str, ...]:
    """The names of the schemes."""
    return tuple(_SCHEMES)


def options(scheme: str) -> dict[str, Any]:
    """The options of `make_partition` that a scheme takes, with defaults (None: no limit; `...`: needed)."""
    if scheme not in _SCHEMES:
        raise UserError(f"partition.scheme is {scheme!r}; valid are {', '.join(_SCHEMES)}.")
    return dict(_SCHEMES[scheme].options)


def has_contexts(scheme: str) -> bool:
    """Whether partitions of a scheme know the true contexts of their clients."""
    return _SCHEMES[scheme].contexts


def check(scheme: str, clients: int, classes: int | None = None, **given: Any) -> None:
    """Check the options of a partition without its labels: what `make_partition` would refuse whatever they are.

    Args:
        scheme, clients: as in `make_partition`.
        classes: C, or None if it is not known yet.
        given: options of the scheme; None counts as not given.

    Raises:
        UserError: naming the option, its value and what would be valid.
    """
    _check_int("clients", clients, 1)
    _check_options(_chosen_options(scheme, given), clients, sys.maxsize if classes is None else classes)


def subsample_train(partition: Partition, labels: ArrayLike, fraction: float, seed: int = 0) -> Partition:
    """Keep a stratified fraction of each client's training samples; the test samples stay the same.

    Of n samples of a class a client keeps round(fraction * n), but one at least, so that no class is lost. A
    smaller fraction's samples are among a larger one's, with the same seed.

    Args:
        partition: the partition to thin.
        labels: int [M], the classes of all the dataset's samples.
        fraction: in (0, 1].
        seed: at least 0.
    """
    if not (_is_real(fraction) and 0 < fraction <= 1):
        raise UserError(f"fraction is {fraction!r}; it must be above 0 and at most 1.")
    _check_int("seed", seed, 0)
    of_class = np.asarray(labels)
    train = []
    for u, indices in enumerate(partition.train):
        own = of_class[indices]
        quota = np.maximum(1, np.floor(fraction * np.bincount(own) + 0.5))
        train.append(indices[_class_ranks(own, (seed, _SUBSAMPLE, u)) < quota[own]])
    return replace(partition, train=tuple(train))


def split_validation(partition: Partition, labels: ArrayLike, fraction: float, seed: int = 0) -> Partition:
    """Cut validation samples from the training samples: a partition whose `test` is the validation part.

    The cut is the one of `make_partition`: round(fraction * size), stratified, one training sample of each
    class of a client at least. The test samples of `partition` are in neither part.

    Args:
        partition: the partition to cut.
        labels: int [M], the classes of all the dataset's samples.
        fraction: in (0, 1).
        seed: at least 0.

    Raises:
        UserError: if a client has no class with two training samples.
    """
    _check_fraction("fraction", fraction)
    _check_int("seed", seed, 0)
    of_class = np.asarray(labels)
    cuts = [
        _cut(indices, of_class, fraction, (seed, _VALIDATION, u), f"client {u}'s training part", "validation")
        for u, indices in enumerate(partition.train)
    ]
    return replace(partition, train=tuple(cut[0] for cut in cuts), test=tuple(cut[1] for cut in cuts))


def statistics(partition: Partition, labels: ArrayLike, classes: Sequence[str]) -> pd.DataFrame:
    """Count each client's samples of each class.

    Args:
        partition: of N clients.
        labels: int [M], the classes of all the dataset's samples.
        classes: the names of the C classes.

    Returns:
        One row a client and class, N * C in all, zeros kept: `client` (0..N-1), `context` (Int64, missing
        where there is none), `class` (its name), `train`, `test` (numbers of samples).
    """
    of_class = np.asarray(labels)
    n, c = partition.clients, len(classes)
    contexts = [pd.NA] * n if partition.contexts is None else partition.contexts.tolist()
    count = {
        part: np.concatenate([np.bincount(of_class[i], minlength=c) for i in arrays])
        for part, arrays in (("train", partition.train), ("test", partition.test))
    }
    return pd.DataFrame(
        {
            "client": np.repeat(np.arange(n), c),
            "context": pd.array(contexts, dtype="Int64").repeat(c),
            "class": list(classes) * n,
            **count,
        }
    )


def digest(partition: Partition) -> str:
    """The sha256 (hex) of who has which samples and contexts; equal for equal contents, however made."""
    sha = hashlib.sha256()
    for arrays in (partition.train, partition.test):
        for indices in arrays:
            sha.update(len(indices).to_bytes(8, "little"))
            sha.update(np.ascontiguousarray(indices, "<i8").tobytes())
    if partition.contexts is not None:
        sha.update(np.ascontiguousarray(partition.contexts, "<i8").tobytes())
    return sha.hexdigest()


def save(partition: Partition, path: Path) -> None:
    """Write a partition to `path` (.npz), whole or not at all; equal partitions give equal bytes."""
    arrays: dict[str, np.ndarray] = {"seed": np.array(partition.seed), "scheme": np.array(partition.scheme)}
    for part, indices in (("train", partition.train), ("test", partition.test)):
        arrays[part] = np.concatenate(indices)
        arrays[f"{part}_sizes"] = np.array([len(i) for i in indices])
    if partition.contexts is not None:
        arrays["contexts"] = partition.contexts
    with replacing(Path(path)) as part_path, open(part_path, "wb") as stream:
        np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]  # numpy's stub lacks **arrays


def load(path: Path) -> Partition:
    """Read what `save` wrote.

    Raises:
        UserError: if there is no such file, or it is something else.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            parts = {
                part: tuple(np.split(data[part], np.cumsum(data[f"{part}_sizes"])[:-1])) for part in ("train", "test")
            }
            contexts = data.get("contexts")
            return Partition(parts["train"], parts["test"], contexts, int(data["seed"]), str(data["scheme"]))
    except (OSError, ValueError, KeyError, TypeError, EOFError) as problem:
        raise UserError(f"{path} cannot be read as a partition ({problem}).") from problem


# ---------------------------------------------------------------------------------------------------------
# Requests
# ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Request:
    """A checked request: labels [P], totals [C] (samples of each class), and the scheme's options."""

    labels: Ints
    totals: Ints
    clients: int
    seed: int
    option: Mapping[str, Any]

    @property
    def classes(self) -> int:
        return len(self.totals)

    @property
    def max_samples(self) -> int:
        high = self.option["max_samples"]
        return len(self.labels) if high is None else min(high, len(self.labels))

    def rng(self, stream: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, stream))


def _request(
    labels: ArrayLike,
    *,
    clients: int | None,
    scheme: str,
    seed: int,
    classes: int | None,
    given: Mapping[str, Any],
) -> _Request:
    option = _chosen_options(scheme, given)
    of_class, totals = _labels(labels, classes)
    _check_int("seed", seed, 0, prefix="")
    if scheme == "given":
        clients = _given_clients(option["client"], clients, len(of_class))
    _check_int("clients", clients, 1)
    assert clients is not None
    _check_options(option, clients, len(totals))
    return _Request(of_class, totals, int(clients), int(seed), option)


def _chosen_options(scheme: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The scheme's options with the given ones in place of their defaults."""
    option = options(scheme)
    for key, value in given.items():
        if value is None:
            continue
        if key not in option:
            raise UserError(
                f"partition.{key} is {value!r} but scheme {scheme!r} takes no such option; "
                f"it takes {', '.join(option)}."
            )
        option[key] = value
    for key, value in option.items():
        if value is ...:
            raise UserError(f"partition.{key} is missing; scheme {scheme!r} needs it.")
    return option


def _labels(labels: ArrayLike, classes: int | None) -> tuple[Ints, Ints]:
    array = np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise UserError(
            f"labels have shape {array.shape} and type {array.dtype}; "
            "they must be a non-empty one-dimensional array of integers."
        )
    totals = int(array.max()) + 1 if classes is None else classes
    if array.min() < 0 or array.max() >= totals:
        raise UserError(f"labels run from {array.min()} to {array.max()}; valid are 0 to {totals - 1}.")
    of_class = array.astype(np.int64)
    return of_class, np.bincount(of_class, minlength=totals).astype(np.int64)


def _pool_indices(pool_indices: ArrayLike | None, labels: Ints) -> Ints:
    if pool_indices is None:
        return np.arange(len(labels), dtype=np.int64)
    pool = np.asarray(pool_indices).astype(np.int64)
    if pool.shape != labels.shape:
        raise UserError(f"pool_indices have shape {pool.shape}; labels have shape {labels.shape}.")
    return pool


def _given_clients(client: ArrayLike, clients: int | None, samples: int) -> int:
    ids = np.asarray(client)
    if ids.shape != (samples,) or ids.dtype.kind not in "iu":
        raise UserError(
            f"client has shape {ids.shape} and type {ids.dtype}; it must be {samples} integers, one a sample."
        )
    found = np.unique(ids)
    if not np.array_equal(found, np.arange(len(found))):
        raise UserError(
            f"client holds {len(found)} different numbers from {found[0]} to {found[-1]}; "
            "N clients must be numbered 0 to N-1."
        )
    if clients is not None and clients != len(found):
        raise UserError(f"partition.clients is {clients} but the data's given split has {len(found)} clients.")
    return len(found)


def _is_real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and bool(np.isfinite(float(value)))


def _check_int(key: str, value: object, low: int, high: int | None = None, prefix: str = "partition.") -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not (whole and low <= value and (high is None or value <= high)):  # type: ignore[operator]
        valid = f"of {low} or more" if high is None else f"from {low} to {high}"
        raise UserError(f"{prefix}{key} is {value!r}; it must be a whole number {valid}.")


def _check_fraction(key: str, value: object) -> None:
    if not (_is_real(value) and 0 < value < 1):  # type: ignore[operator]
        raise UserError(f"{key} is {value!r}; it must be above 0 and below 1.")


def _check_options(option: Mapping[str, Any], clients: int, classes: int) -> None:
    for key, low, high in (
        ("classes_per_client", 1, classes),
        ("shards_per_client", 1, None),
        ("min_samples", 1, None),
    ):
        if key in option:
            _check_int(key, option[key], low, high)
    if option.get("max_samples") is not None:
        _check_int("max_samples", option["max_samples"], option["min_samples"])
    for key, least, most in (("size_sigma", 0.0, 10.0), ("concentration", 1e-3, 1e6)):
        if key in option and not (_is_real(option[key]) and least <= option[key] <= most):
            raise UserError(f"partition.{key} is {option[key]!r}; it must be a number from {least:g} to {most:g}.")
    if "groups" in option:
        _check_groups(option["groups"], clients, classes)


def _check_groups(groups: object, clients: int, classes: int) -> None:
    if isinstance(groups, Integral):
        return _check_int("groups", groups, 1, min(classes, clients))
    if not isinstance(groups, Sequence) or isinstance(groups, str) or not 1 <= len(groups) <= clients:
        raise UserError(
            f"partition.groups is {groups!r}; it must be a number of groups or a list of lists of classes, "
            f"at most as many as clients ({clients})."
        )
    for group in groups:
        valid = isinstance(group, Sequence) and len(group) > 0 and all(isinstance(c, Integral) for c in group)
        if not valid or len(set(group)) < len(group) or min(group) < 0 or max(group) >= classes:
            raise UserError(
                f"partition.groups holds {group!r}; a group is a list of different classes from 0 to {classes - 1}."
            )
    return None


def _tell_unused(request: _Request, owner: Ints) -> None:
    """Say what the partition leaves out: allowed (a range of sizes can ask for it), but never silent."""
    unused = np.bincount(request.labels[owner < 0], minlength=request.classes)
    lost = np.flatnonzero((unused == request.totals) & (request.totals > 0))
    if lost.size:
        log.warning("classes %s are held by no client", ", ".join(map(str, lost)))
    if unused.sum():
        log.info("%d of %d samples of the pool are in no client", unused.sum(), len(owner))


# ---------------------------------------------------------------------------------------------------------
# Schemes: request -> owner of each sample [P] (-1: nobody), true contexts [N] or None
# ---------------------------------------------------------------------------------------------------------


def _cyclic(request: _Request) -> tuple[Ints, Ints | None]:
    sets = np.zeros((request.clients, request.classes), dtype=bool)
    for step in range(request.option["classes_per_client"]):
        client = np.arange(request.clients)
        sets[client, (client + step) % request.classes] = True
    return _deal_sets(request, sets), _same_sets(sets)


def _random(request: _Request) -> tuple[Ints, Ints | None]:
    sets = _random_sets(request.rng(_SETS), request.clients, request.classes, request.option["classes_per_client"])
    return _deal_sets(request, sets), _same_sets(sets)


def _contexts(request: _Request) -> tuple[Ints, Ints | None]:
    groups = request.option["groups"]
    if isinstance(groups, Integral):
        groups = np.array_split(np.arange(request.classes), int(groups))
    context = np.arange(request.clients, dtype=np.int64) % len(groups)
    sets = np.zeros((request.clients, request.classes), dtype=bool)
    for g, group in enumerate(groups):
        sets[np.ix_(context == g, np.asarray(group))] = True
    return _deal_sets(request, sets), context


def _iid(request: _Request) -> tuple[Ints, Ints | None]:
    low = _common_minimum(request)
    bounds = np.full(request.clients, low), np.full(request.clients, request.max_samples)
    total = min(len(request.labels), int(bounds[1].sum()))
    sizes = scale_sizes(_raw_sizes(request), *bounds, total)
    owner = np.full(len(request.labels), -1, dtype=np.int64)
    order = request.rng(_DEAL).permutation(len(owner))
    owner[order[:total]] = np.repeat(np.arange(request.clients), sizes)
    return owner, None


def _dirichlet(request: _Request) -> tuple[Ints, Ints | None]:
    low = _common_minimum(request)
    concentration = np.full(request.clients, float(request.option["concentration"]))
    shares = request.rng(_SETS).dirichlet(concentration, size=request.classes)
    edges = np.floor(np.cumsum(shares, axis=1) * request.totals[:, None]).astype(np.int64)
    edges[:, -1] = request.totals
    counts = np.diff(edges, axis=1, prepend=0).T
    counts = _into_bounds(counts, request.totals, low, request.max_samples)
    return _deal_counts(counts, request), None


def _shards(request: _Request) -> tuple[Ints, Ints | None]:
    each = request.option["shards_per_client"]
    shards = request.clients * each
    if shards > len(request.labels):
        raise UserError(
            f"partition: {request.clients} clients of {each} shards need {shards} samples or more; "
            f"the pool has {len(request.labels)}."
        )
    rng = request.rng(_DEAL)
    by_label = np.lexsort((rng.permutation(len(request.labels)), request.labels))
    owner_of_shard = rng.permutation(np.repeat(np.arange(request.clients), each))
    owner = np.empty(len(request.labels), dtype=np.int64)
    for shard, positions in enumerate(np.array_split(by_label, shards)):
        owner[positions] = owner_of_shard[shard]
    sizes = np.bincount(owner, minlength=request.clients)
    if sizes.min() < request.option["min_samples"] or sizes.max() > request.max_samples:
        raise UserError(
            f"partition: shards give every client {sizes.min()} to {sizes.max()} samples; min_samples and "
            f"max_samples ask for {request.option['min_samples']} to {request.max_samples}."
        )
    return owner, None


def _given(request: _Request) -> tuple[Ints, Ints | None]:
    return np.asarray(request.option["client"], dtype=np.int64), None


@dataclass(frozen=True)
class _Scheme:
    deal: Callable[[_Request], tuple[Ints, Ints | None]]
    options: Mapping[str, Any] = field(default_factory=dict)
    contexts: bool = False


_BOUNDS = {"min_samples": 2, "max_samples": None}
_SCHEMES: dict[str, _Scheme] = {
    "cyclic": _Scheme(_cyclic, {"classes_per_client": 3, **_BOUNDS, "size_sigma": 0.8}, contexts=True),
    "random": _Scheme(_random, {"classes_per_client": 3, **_BOUNDS, "size_sigma": 0.8}, contexts=True),
    "contexts": _Scheme(_contexts, {"groups": ..., **_BOUNDS, "size_sigma": 0.8}, contexts=True),
    "dirichlet": _Scheme(_dirichlet, {"concentration": 0.5, **_BOUNDS, "min_samples": 10}),
    "iid": _Scheme(_iid, {**_BOUNDS, "size_sigma": 0.8}),
    "shards": _Scheme(_shards, {"shards_per_client": 2, **_BOUNDS}),
    "given": _Scheme(_given, {"client": ...}),
}


def _random_sets(rng: np.random.Generator, clients: int, classes: int, each: int) -> Bools:
    """Uniform class sets [N, C] such that every class is held: a few tries, then the last one is mended."""
    if clients * each < classes:
        raise UserError(
            f"partition: {clients} clients of {each} classes hold at most {clients * each} classes; "
            f"scheme 'random' gives each of the {classes} classes to a client."
        )
    for _ in range(100):
        chosen = np.argsort(rng.random((clients, classes)), axis=1)[:, :each]
        sets = np.zeros((clients, classes), dtype=bool)
        np.put_along_axis(sets, chosen, True, axis=1)
        if sets.any(axis=0).all():
            return sets
    for orphan in np.flatnonzero(~sets.any(axis=0)):
        # There are at least as many places as classes, so some class is held twice and can spare one.
        places = np.argwhere(sets & (sets.sum(axis=0) > 1))
        client, spare = places[rng.integers(len(places))]
        sets[client, spare], sets[client, orphan] = False, True
    return sets


def _same_sets(sets: Bools) -> Ints:
    """Number the different class sets [N] in order of appearance: the contexts of clients with fixed classes."""
    _, first, group = np.unique(sets, axis=0, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group.reshape(-1)].astype(np.int64)


def _raw_sizes(request: _Request) -> Floats:
    return request.rng(_SIZES).lognormal(0.0, float(request.option["size_sigma"]), request.clients)


def _common_minimum(request: _Request) -> int:
    """The smallest size of a client without fixed classes, after a check that the pool suffices."""
    low = max(request.option["min_samples"], 2)
    _check_pool(request, np.full(request.clients, low), len(request.labels))
    if request.max_samples < low:
        raise UserError(f"partition.max_samples is {request.max_samples}; a client needs {low} samples or more.")
    return low


def _check_pool(request: _Request, low: Ints, samples: int) -> None:
    if low.sum() > samples:
        raise UserError(
            f"partition: {request.clients} clients of at least {low.min()} samples ask for {low.sum()} samples; "
            f"{samples} are there (lower clients or min_samples)."
        )


def _deal_sets(request: _Request, sets: Bools) -> Ints:
    """Owners for clients with fixed class sets [N, C]."""
    held = sets.sum(axis=1)
    # One training sample of each class, and one test sample.
    low = np.maximum(request.option["min_samples"], held + 1)
    high = np.full(request.clients, request.max_samples)
    if (low > high).any():
        raise UserError(
            f"partition.max_samples is {request.max_samples}; a client of {held.max()} classes needs "
            f"{low.max()} samples or more."
        )
    holders = sets.sum(axis=0)
    scarce = np.flatnonzero(holders > request.totals)
    if scarce.size:
        c = scarce[0]
        raise UserError(
            f"partition: class {c} has {request.totals[c]} samples in the pool but {holders[c]} clients hold it "
            "(lower clients or classes per client)."
        )
    _check_pool(request, low, int(request.totals[holders > 0].sum()))
    counts = fit_counts(sets, request.totals, _raw_sizes(request), low, high)
    return _deal_counts(counts, request)


def _deal_counts(counts: Ints, request: _Request) -> Ints:
    """Owners such that client u has counts[u, c] samples of class c, drawn at random."""
    rng = request.rng(_DEAL)
    owner = np.full(len(request.labels), -1, dtype=np.int64)
    for c in range(request.classes):
        positions = rng.permutation(np.flatnonzero(request.labels == c))
        owner[positions[: counts[:, c].sum()]] = np.repeat(np.arange(len(counts)), counts[:, c])
    return owner


# ---------------------------------------------------------------------------------------------------------
# Sizes and counts
# ---------------------------------------------------------------------------------------------------------


def scale_sizes(raw: Floats, low: Ints, high: Ints, total: int) -> Ints:
    """Whole sizes [N], nearly clip(s * raw, low, high) for the one s that makes them sum to `total`.

    Args:
        raw: [N], positive.
        low: [N], the smallest sizes.
        high: [N], the largest sizes; low.sum() <= total <= high.sum() must hold.
        total: the sum.
    """
    below, above = 0.0, float((high / raw).max()) + 1.0
    for _ in range(100):
        middle = (below + above) / 2
        if np.clip(middle * raw, low, high).sum() <= total:
            below = middle
        else:
            above = middle
    exact = np.clip(below * raw, low, high)
    sizes = np.floor(exact).astype(np.int64)
    by_remainder = np.argsort(sizes - exact, kind="stable")
    fillable = by_remainder[sizes[by_remainder] < high[by_remainder]]
    sizes[fillable[: total - sizes.sum()]] += 1
    return sizes


def fit_counts(sets: Bools, totals: Ints, raw: Floats, low: Ints, high: Ints) -> Ints:
    """Whole counts [N, C] of samples, a client's classes exactly as in `sets`, with as many samples as possible.

    Row sums follow `raw` (up to a common factor) as far as their bounds and the class totals let them. The
    bounds are kept, column sums are at most `totals`, each cell of `sets` gets one at least, and the sum is
    the largest for which this can be done.

    Args:
        sets: bool [N, C], the classes of each client, one at least.
        totals: [C], the samples of each class, at least the number of its clients.
        raw: [N], positive wishes for the sizes.
        low: [N], smallest sizes, at least the number of the client's classes.
        high: [N], largest sizes, at least `low`.

    Raises:
        UserError: if no such counts exist, naming classes whose clients ask for more than there is.
    """
    held = sets.sum(axis=1)
    # One sample of each cell is set aside; what follows deals the rest.
    spare, low, high = totals - sets.sum(axis=0), low - held, high - held
    nothing = np.zeros(sets.shape, dtype=np.int64)
    least, cut = _augment(nothing, sets, low, spare)
    if least.sum() < low.sum():
        _raise_shortage(cut, low + held, totals, sets)
    most, _ = _augment(least, sets, high - least.sum(axis=1), spare - least.sum(axis=0))
    total = int(most.sum())

    wish = raw
    for _ in range(30):
        # Sizes that the classes cannot supply come back smaller, and the others make up for it.
        sizes = scale_sizes(wish, low + held, high + held, total + int(held.sum())) - held
        shape = _proportional_fit(sets, sizes, spare)
        if np.abs(shape.sum(axis=1) - sizes).max() < 0.5:
            break
        wish = np.maximum(shape.sum(axis=1) + held, 1e-9)

    counts = np.floor(shape + 1e-9).astype(np.int64)
    rows = counts.sum(axis=1)
    counts, _ = _augment(counts, sets, np.maximum(low - rows, 0), spare - counts.sum(axis=0), np.maximum(rows - low, 0))
    for goal in (sizes, high):
        need = np.maximum(goal - counts.sum(axis=1), 0)
        counts, _ = _augment(counts, sets, need, spare - counts.sum(axis=0))
    return counts + sets


def _proportional_fit(sets: Bools, sizes: Ints, totals: Ints) -> Floats:
    """Iterative proportional fitting: [N, C] with row sums `sizes` (less where they cannot be had), columns at
    most `totals`."""
    shape = sets.astype(np.float64)
    for _ in range(200):
        shape *= _ratio(sizes, shape.sum(axis=1))[:, None]
        shape *= np.minimum(1.0, _ratio(totals, shape.sum(axis=0)))
        if np.abs(shape.sum(axis=1) - sizes).max() < 0.01:
            break
    return shape


def _ratio(wanted: Ints, found: Floats) -> Floats:
    return np.divide(wanted, found, out=np.zeros(len(found)), where=found > 0)


def _into_bounds(counts: Ints, totals: Ints, low: int, high: int) -> Ints:
    """Move as few samples as needed to bring all row sums into [low, high], where N * low <= totals.sum().

    Rows above `high` give up samples in proportion. Rows below `low` take what was given up, or samples of
    rows above the mean, of classes they hold if that is possible. What is still left over goes to whoever has
    the class and room for it.
    """
    counts = counts.copy()
    for u in np.flatnonzero(counts.sum(axis=1) > high):
        row = counts[u]
        counts[u] = scale_sizes(np.maximum(row, 1e-9), np.zeros_like(row), row, high)
    held = counts > 0
    for allowed in (held | ~held.any(axis=1, keepdims=True), np.ones_like(held)):
        rows = counts.sum(axis=1)
        above_mean = np.maximum(rows - int(totals.sum()) // len(rows), 0)
        spare = totals - counts.sum(axis=0)
        counts, _ = _augment(counts, allowed, np.maximum(low - rows, 0), spare, above_mean)
    room = high - counts.sum(axis=1)
    counts, _ = _augment(counts, counts > 0, room, totals - counts.sum(axis=0))
    return counts


def _augment(counts: Ints, allowed: Bools, need: Ints, spare: Ints, release: Ints | None = None) -> tuple[Ints, Bools]:
    """Raise row sums by up to `need` (as much in sum as is possible), taking samples from `spare`.

    A maximum flow in the residual network of `counts`: a client may get a sample of a class from its spare
    ones, or from another client, which then gets one of another class, or gives it up if `release` lets it.

    Args:
        counts: [N, C], as it is.
        allowed: bool [N, C], where counts may grow.
        need: [N], by how much row sums may grow.
        spare: [C], samples of each class nobody has.
        release: [N], by how much row sums may shrink; default not at all.

    Returns:
        The new counts, and bool [N], the clients on the source's side of a minimum cut: those that got less
        than they need, and whoever could have helped them.
    """
    n, c = counts.shape
    source, sink = n + c, n + c + 1
    client, of_class = np.arange(n), n + np.arange(c)
    grow, shrink = np.nonzero(allowed), np.nonzero(counts)
    unlimited = np.full(len(grow[0]), max(1, int(need.sum())), dtype=np.int64)
    edges: list[tuple[Any, Any, Ints]] = [
        (np.full(n, source), client, need),
        (grow[0], n + grow[1], unlimited),
        (n + shrink[1], shrink[0], counts[shrink]),
        (of_class, np.full(c, sink), spare),
    ]
    if release is not None:
        edges.append((client, np.full(n, sink), release))
    tail, head, capacity = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    keep = capacity > 0
    graph = csr_array(
        coo_array((capacity[keep].astype(np.int32), (tail[keep], head[keep])), shape=(n + c + 2, n + c + 2))
    )
    flow = maximum_flow(graph, source, sink).flow
    residual = csr_array(graph - flow)
    residual.eliminate_zeros()
    reached = breadth_first_order(residual, source, return_predecessors=False)
    cut = np.zeros(n + c + 2, dtype=bool)
    cut[reached] = True
    return counts + flow[:n, n : n + c].toarray(), cut[:n]


def _raise_shortage(cut: Bools, low: Ints, totals: Ints, sets: Bools) -> None:
    """Name the clients that together ask for more than their classes have (Hall's condition)."""
    held = sets[cut].any(axis=0)
    # Others hold these classes as well, and need one sample of each at least.
    others = int(sets[~cut][:, held].sum())
    names = ", ".join(map(str, np.flatnonzero(held)))
    raise UserError(
        f"partition: {cut.sum()} clients hold no classes but {names} and ask for at least {low[cut].sum()} "
        f"samples of them; {totals[held].sum() - others} are there (lower clients or min_samples)."
    )


# ---------------------------------------------------------------------------------------------------------
# Cuts into training and test samples
# ---------------------------------------------------------------------------------------------------------


def _members(owner: Ints, clients: int) -> list[Ints]:
    """The positions of each client's samples."""
    order = np.argsort(owner, kind="stable")
    return np.split(order, np.searchsorted(owner[order], np.arange(clients + 1)))[1:-1]


def _cut(
    indices: Ints, labels: Ints, fraction: float, seed: tuple[int, ...], whose: str, what: str
) -> tuple[Ints, Ints]:
    """Cut indices into what stays and a stratified `fraction`."""
    own = labels[indices]
    count = _cut_counts(np.bincount(own), fraction)
    if not count.any():
        raise UserError(
            f"partition: {whose} has {len(indices)} samples of {len(np.unique(own))} classes, no two of one "
            f"class, so that none can be spared as {what} sample (raise min_samples; where the data names the clients, "
            "leave this one out of it)."
        )
    out = _class_ranks(own, seed) < count[own]
    return indices[~out], indices[out]


def _cut_counts(counts: Ints, fraction: float) -> Ints:
    """How many of each class's samples [C] to cut: round(fraction * sum) in all and one at least, in proportion
    to the classes, and leaving one of each class."""
    most = np.maximum(counts - 1, 0)
    quota = fraction * counts
    cut = np.minimum(np.floor(quota).astype(np.int64), most)
    goal = min(max(1, int(fraction * counts.sum() + 0.5)), int(most.sum()))
    while cut.sum() < goal:
        cut[np.argmax(np.where(cut < most, quota - cut, -np.inf))] += 1
    return cut


def _class_ranks(labels: Ints, seed: tuple[int, ...]) -> Ints:
    """Number the samples of each class 0, 1, ... in random order: [n], the rank of each sample in its class."""
    order = np.lexsort((np.random.default_rng(seed).permutation(len(labels)), labels))
    ranks = np.empty(len(labels), dtype=np.int64)
    ranks[order] = np.arange(len(labels)) - np.searchsorted(labels[order], labels[order])
    return ranks
