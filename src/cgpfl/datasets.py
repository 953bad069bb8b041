"""Datasets: from bundled, published or your own files to verified images and labels.

`prepare` reads a source, checks its contents and writes them as one .npz; `load` reads that file. A kind of
source is one function from a `Source` to a `Dataset`, made known by `@register`:

    @register("my_set")
    def my_set(source: Source) -> Dataset:
        return make_dataset(source.name, x, y)

Published files are looked for in a local archive folder and among earlier downloads, then at their mirrors.
Wherever a file comes from, its contents are compared with a known checksum before anything is done with them.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import logging
import os
import pickle
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from cgpfl.errors import UserError
from cgpfl.files import replacing

log = logging.getLogger(__name__)

Array = NDArray[Any]
Ints = NDArray[np.int64]
T = TypeVar("T")

ARCHIVES_VARIABLE = "CGPFL_ARCHIVES"

# sha256 of the decompressed IDX files: the gzip wrappers in circulation differ, their contents do not.
IDX_SHA256: dict[str, dict[str, str]] = {
    "mnist": {
        "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
    "fashion_mnist": {
        "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    },
}

# Where an archive folder may hold a dataset's files: in folders of these names, or directly.
_FOLDERS = {
    "mnist": ("mnist", "MNIST/raw", "MNIST", ""),
    "fashion_mnist": ("fashion-mnist", "fashion_mnist", "FashionMNIST/raw", "FashionMNIST", ""),
    "cifar10": ("cifar10", "cifar-10", "CIFAR10", ""),
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples, their labels, and where they come from.

    Attributes:
        name: the name in configurations and results.
        x: uint8 [M, H, W] (grey) or [M, H, W, C] (colour); float32 [M, ...] of any shape from .npz files.
        y: int64 [M], classes in 0..C-1.
        classes: the names of the C classes; class c was called classes[c] in the source.
        train_size: the first `train_size` samples are the official training split; M where there is none.
        client: int64 [M] in 0..N-1, a given federated split, or None.
        sha256: of the contents of x and y (type, shape and values), hex.
        default_pool: the pool that experiments use unless told otherwise, `train` or `all`.
    """

    name: str
    x: Array
    y: Ints
    classes: tuple[str, ...]
    train_size: int
    client: Ints | None
    sha256: str
    default_pool: str = "all"

    def pool(self, which: str | None = None) -> Ints:
        """The indices of a pool of samples.

        Args:
            which: `train`, the official training split; `all`; None for the dataset's default: `train` for
                mnist and fashion_mnist (60,000 samples), `all` for all others.
        """
        which = self.default_pool if which is None else which
        if which not in ("train", "all"):
            raise UserError(f"pool is {which!r}; valid are train, all.")
        return np.arange(self.train_size if which == "train" else len(self.y), dtype=np.int64)


@dataclass(frozen=True)
class Network:
    """How downloads are tried.

    Attributes:
        tries: of each mirror, for failures that may pass (HTTP 5xx, timeouts, broken connections).
        timeout: seconds that a server may be silent.
        backoff: seconds before the second try; doubled for each further one.
    """

    tries: int = 3
    timeout: float = 30.0
    backoff: float = 1.0


@dataclass(frozen=True)
class Source:
    """What a kind of dataset is read from.

    Attributes:
        name: the dataset's name.
        path: the user's file or folder, or None for the kinds that need none.
        archive_dir: a folder with published files, or None.
        downloads: the folder where verified downloads are kept.
        network: how downloads are tried.
    """

    name: str
    path: Path | None
    archive_dir: Path | None
    downloads: Path
    network: Network = field(default_factory=Network)


Loader = Callable[[Source], Dataset]
_KINDS: dict[str, Loader] = {}
_NEED_PATH: set[str] = set()


def register(kind: str, *, needs_path: bool = False) -> Callable[[Loader], Loader]:
    """Make a function from a `Source` to a `Dataset` known as a kind of dataset.

    With `needs_path` the user gives a path and a name; without it, the kind is the name.
    """

    def keep(loader: Loader) -> Loader:
        _KINDS[kind] = loader
        if needs_path:
            _NEED_PATH.add(kind)
        return loader

    return keep


def kinds() -> dict[str, bool]:
    """The known kinds of datasets, and whether they need a path (then the user chooses the name)."""
    return {kind: kind in _NEED_PATH for kind in _KINDS}


# ---------------------------------------------------------------------------------------------------------
# Prepare, load, scale
# ---------------------------------------------------------------------------------------------------------


def prepare(
    name: str,
    out: Path,
    *,
    kind: str | None = None,
    path: Path | None = None,
    archive_dir: Path | None = None,
    network: Network | None = None,
) -> Dataset:
    """Read a dataset, verify its contents, and write it to `out` (.npz), whole or not at all.

    Args:
        name: `digits`, `mnist`, `fashion_mnist` or `cifar10`, or the name of your own data.
        out: the file to write; verified downloads are kept in a folder `archives` beside it.
        kind: a kind of dataset; default `name`. `image_folder` (class folders, optionally below train/ and
            test/, in a folder or a .zip) and `npz` (arrays x, y, optionally client) read `path`.
        path: the file or folder of these two kinds.
        archive_dir: a folder to look for published files before any download (the files directly, or in
            folders such as mnist/ and fashion-mnist/; gzipped or not); default the environment variable
            CGPFL_ARCHIVES.
        network: how downloads are tried.

    Raises:
        UserError: for wrong arguments, for data that cannot be used, and for files that cannot be had with
            the contents they should have; it tells what was tried, expected and found.
    """
    kind = name if kind is None else kind
    check_source(name, kind, path)
    source = Source(
        name=name,
        path=None if path is None else Path(path),
        archive_dir=archive_folder(archive_dir),
        downloads=Path(out).parent / "archives" / name,
        network=Network() if network is None else network,
    )
    dataset = _KINDS[kind](source)
    _save(dataset, Path(out))
    log.info("%s: %d samples of shape %s", name, len(dataset.y), dataset.x.shape[1:])
    log.info("classes 0 to %d are called %s", len(dataset.classes) - 1, ", ".join(dataset.classes))
    return dataset


def load(path: Path) -> Dataset:
    """Read what `prepare` wrote.

    Raises:
        UserError: if there is no such file, or it is something else.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            return Dataset(
                name=str(data["name"]),
                x=data["x"],
                y=data["y"],
                classes=tuple(data["classes"].tolist()),
                train_size=int(data["train_size"]),
                client=data.get("client"),
                sha256=str(data["sha256"]),
                default_pool=str(data["default_pool"]),
            )
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile) as problem:
        raise UserError(f"{path} cannot be read as a prepared dataset ({problem}).") from problem


def scaling(x: Array, how: str = "standardise") -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """``centre`` and ``factor`` by which samples are scaled, (x - centre) * factor, from all samples given.

    "unit" takes the least value and 1/(largest - least); "standardise" mean and 1/std: one of each a feature for
    vectors [M, F], one a channel, [C, 1, 1], for colour images [M, H, W, C] (to fit them `channel_first`), one in all
    for grey images and other shapes. A constant input becomes 0.
    """
    centre, width = SCALES[how](x)
    return centre, 1 / np.where(width > 0, width, 1.0)


def _mean_and_std(x: Array) -> tuple[Any, Any]:
    if x.ndim == 4:
        means, stds = zip(*(_mean_and_std(x[..., channel]) for channel in range(x.shape[3])), strict=True)
        return np.array(means)[:, None, None], np.array(stds)[:, None, None]
    if x.dtype == np.uint8 and x.ndim > 2:  # from the counts of 256 values, without a copy in float64
        counts = sum(np.bincount(part.reshape(-1), minlength=256) for part in np.array_split(x, len(x) // 4096 + 1))
        level = np.arange(256)
        mean = np.average(level, weights=counts)
        return mean, np.sqrt(np.average((level - mean) ** 2, weights=counts))
    axis = 0 if x.ndim == 2 else None
    return x.mean(axis=axis, dtype=np.float64), x.std(axis=axis, dtype=np.float64)


def _least_and_range(x: Array) -> tuple[Any, Any]:
    least, most = np.float64(x.min()), np.float64(x.max())
    return least, most - least


SCALES: Mapping[str, Callable[[Array], tuple[Any, Any]]] = {"standardise": _mean_and_std, "unit": _least_and_range}
"""What inputs are centred on and divided by, by the name in configurations."""


def channel_first(x: Array) -> Array:
    """Colour images [M, H, W, C] as [M, C, H, W], other samples as they are, without gaps in memory."""
    return np.ascontiguousarray(np.moveaxis(x, 3, 1) if x.ndim == 4 else x)


def scaled(x: Array, how: str = "standardise") -> NDArray[np.float32]:
    """Samples as they are trained on: `channel_first` and scaled by their own `scaling`, float32."""
    centre, factor = scaling(x, how)
    return ((channel_first(x) - centre) * factor).astype(np.float32)


def make_dataset(
    name: str,
    x: Array,
    y: Array,
    *,
    classes: Sequence[str] | None = None,
    train_size: int | None = None,
    client: Array | None = None,
    default_pool: str = "all",
) -> Dataset:
    """Check samples and labels, and make a `Dataset` of them.

    Args:
        name: the dataset's name.
        x: [M, ...]. Booleans and whole numbers in 0..255 become uint8, other numbers float32; the last axis
            of images [M, H, W, 1] is dropped.
        y: [M], whole numbers or strings. Whatever they are, the labels found, sorted, become 0..C-1, and
            their names are recorded, unless `classes` is given.
        classes: the names of the classes; then y must hold all of 0..C-1.
        train_size: default M, no official split.
        client: [M], numbers or names of the clients, mapped to 0..N-1 like labels.
        default_pool: `train` or `all`.

    Raises:
        UserError: if shapes or types are wrong, numbers not finite, there are less than two classes, or less
            than two samples of a class.
    """
    x = _checked_x(name, np.asarray(x))
    codes, names = _encode(name, "y", np.asarray(y), len(x))
    if classes is not None:
        if names != tuple(str(c) for c in range(len(classes))):
            raise UserError(f"{name}: y holds labels {', '.join(names)}; valid are 0 to {len(classes) - 1}.")
        names = tuple(classes)
    _check_classes(name, codes, names)
    owners = None if client is None else _encode(name, "client", np.asarray(client), len(x))[0]
    size = len(x) if train_size is None else train_size
    return Dataset(name, x, codes, names, size, owners, _content_hash(x, codes), default_pool)


def check_source(name: str, kind: str, path: Path | None) -> None:
    """Raise a UserError unless a dataset of this name and kind can be read from this path (or None)."""
    if kind not in _KINDS:
        raise UserError(f"dataset {name!r} has kind {kind!r}; valid are {', '.join(_KINDS)}.")
    if kind in _NEED_PATH:
        if path is None:
            raise UserError(f"dataset {name!r} of kind {kind!r} needs a path.")
        if name in _KINDS and name not in _NEED_PATH:
            raise UserError(f"dataset name {name!r} is taken by the published data; name your own differently.")
    elif path is not None:
        raise UserError(f"dataset {name!r} of kind {kind!r} takes no path (it is {str(path)!r}).")
    if not name or name.startswith(".") or not all(c.isalnum() or c in "._-" for c in name):
        raise UserError(f"dataset name {name!r} must consist of letters, digits, '.', '_' and '-'.")


def given_clients(kind: str, path: Path | None) -> int | None:
    """How many clients a user's data says that it has, without reading its samples: None where it names none, or
    cannot be read (`prepare` tells why)."""
    if kind != "npz" or path is None or not zipfile.is_zipfile(path):
        return None
    try:
        with np.load(path, allow_pickle=False) as data:
            return len(np.unique(data["client"])) if "client" in data else None
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zlib.error, zipfile.BadZipFile):
        return None


def archive_folder(archive_dir: Path | str | None) -> Path | None:
    """The folder to look for published files in: the given one, or the one that CGPFL_ARCHIVES names, or None.

    Raises:
        UserError: if there is no such folder.
    """
    key: str = "data.archive_dir"
    given: Path | str | None = archive_dir
    if given is None:
        key, given = ARCHIVES_VARIABLE, os.environ.get(ARCHIVES_VARIABLE) or None
    if given is not None and not Path(given).is_dir():
        raise UserError(f"{key} is {str(given)!r}; there is no such folder.")
    return None if given is None else Path(given)


def _save(dataset: Dataset, out: Path) -> None:
    arrays: dict[str, Any] = {
        "name": dataset.name,
        "x": dataset.x,
        "y": dataset.y,
        "classes": np.array(dataset.classes),
        "train_size": dataset.train_size,
        "sha256": dataset.sha256,
        "default_pool": dataset.default_pool,
    }
    if dataset.client is not None:
        arrays["client"] = dataset.client
    with replacing(out) as part, open(part, "wb") as stream:
        np.savez(stream, **arrays)


def _content_hash(*arrays: Array) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        sha.update(f"{little.dtype.str}{little.shape}".encode())
        sha.update(little.data)
    return sha.hexdigest()


def _checked_x(name: str, x: Array) -> Array:
    if x.ndim < 2 or x.size == 0:
        raise UserError(f"{name}: x has shape {x.shape}; it must be [samples, ...] with two axes at least.")
    if x.dtype.kind not in "buif":
        raise UserError(f"{name}: x has type {x.dtype}; it must hold numbers.")
    if x.ndim == 4 and x.shape[-1] > 4 and x.shape[1] <= 4:
        raise UserError(f"{name}: x has shape {x.shape}; colour images must be [samples, height, width, channels].")
    if x.ndim == 4 and x.shape[-1] == 1:
        x = x[..., 0]
    if x.dtype.kind in "bui" and x.min() >= 0 and x.max() <= 255:
        return np.ascontiguousarray(x, dtype=np.uint8)
    x = np.ascontiguousarray(x, dtype=np.float32)
    if not np.isfinite(x).all():
        raise UserError(f"{name}: x holds numbers that are not finite in float32; replace or drop them.")
    return x


def _encode(name: str, key: str, values: Array, samples: int) -> tuple[Ints, tuple[str, ...]]:
    """Map labels of any kind to 0..C-1 in sorted order, and give their names."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.shape != (samples,):
        raise UserError(f"{name}: {key} has shape {values.shape}; it must be ({samples},), one label a sample.")
    if values.dtype.kind == "f" and np.array_equal(values, np.round(values)):
        if (far := np.abs(values) >= 2.0**63).any():
            raise UserError(f"{name}: {key} holds {values[far][0]:g}; numbers must lie between -2**63 and 2**63.")
        values = values.astype(np.int64)
    if values.dtype.kind == "S":
        try:
            values = np.char.decode(values, "utf-8")
        except UnicodeDecodeError as problem:
            raise UserError(f"{name}: {key} holds {problem.object!r}, which is no UTF-8 text.") from None
    if values.dtype.kind not in "buiU":
        raise UserError(f"{name}: {key} has type {values.dtype}; labels must be whole numbers or strings.")
    found, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), tuple(str(label) for label in found)


def _check_classes(name: str, codes: Ints, names: tuple[str, ...]) -> None:
    if len(names) < 2:
        raise UserError(f"{name}: all samples are of class {names[0]!r}; two classes at least are needed.")
    counts = np.bincount(codes)
    few = [f"{names[c]!r} ({counts[c]})" for c in np.flatnonzero(counts < 2)]
    if few:
        raise UserError(
            f"{name}: a class needs two samples at least, one to train on and one to test; "
            f"too few have {', '.join(few[:10])}{' and others' * (len(few) > 10)}."
        )


# ---------------------------------------------------------------------------------------------------------
# Published files: a local archive, earlier downloads, mirrors
# ---------------------------------------------------------------------------------------------------------


class _WrongContentsError(Exception):
    """What was found in place of the contents expected."""


class _UnavailableError(Exception):
    """Why a URL gave no file."""


@dataclass(frozen=True)
class _Archive(Generic[T]):
    """A published file.

    Attributes:
        file: its name.
        also: other names under which it (or its unpacked contents) may lie in an archive folder.
        folders: folders to look in below an archive folder.
        urls: its mirrors, in the order in which they are tried.
        expected: what its contents are known by, in words.
        read: reads and verifies the contents of a local copy; raises _WrongContentsError.
        check_download: verifies a downloaded file before it is read; raises _WrongContentsError.
    """

    file: str
    also: tuple[str, ...]
    folders: tuple[str, ...]
    urls: tuple[str, ...]
    expected: str
    read: Callable[[Path], T]
    check_download: Callable[[Path], None] = lambda path: None

    def copies(self, source: Source) -> Iterator[Path]:
        """Local copies, good or bad."""
        places = [] if source.archive_dir is None else [source.archive_dir / f for f in self.folders]
        for place in (*places, source.downloads):
            for file in (self.file, *self.also):
                if (place / file).exists():
                    yield place / file


def _obtain(archive: _Archive[T], source: Source) -> T:
    """The verified contents of a published file, from the first place that has them."""
    found = []
    for path in archive.copies(source):
        try:
            return archive.read(path)
        except (_WrongContentsError, OSError) as problem:
            log.warning("%s is not what it should be: %s", path, problem)
            found.append(f"{path}: {problem}")
    for url in archive.urls:
        try:
            with replacing(source.downloads / archive.file) as part:
                _fetch(url, part, source.network)
                archive.check_download(part)
                return archive.read(part)
        except (_WrongContentsError, _UnavailableError) as problem:
            log.warning("%s: %s", url, problem)
            found.append(f"{url}: {problem}")
    raise UserError(
        f"{archive.file} of {source.name} cannot be had: expected {archive.expected}, found "
        f"{'; '.join(found)} (data.archive_dir or {ARCHIVES_VARIABLE} may name a folder that has the file)."
    )


def _fetch(url: str, part: Path, network: Network) -> None:
    """Download to a file, with tries as `network` says; raises _UnavailableError."""
    problem = ""
    for attempt in range(network.tries):
        if attempt:
            time.sleep(network.backoff * 2 ** (attempt - 1))
        try:
            return _fetch_once(url, part, network.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            problem = f"HTTP {error.code} {error.reason}"
            if error.code < 500 and error.code not in (408, 429):
                break  # 404 and the like do not pass
        except urllib.error.URLError as error:
            problem = f"no answer ({error.reason})"
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
    raise _UnavailableError(problem)


def _fetch_once(url: str, part: Path, timeout: float) -> None:
    log.info("downloading %s", url)
    request = urllib.request.Request(url, headers={"User-Agent": "cgpfl"})
    with urllib.request.urlopen(request, timeout=timeout) as answer, open(part, "wb") as stream:
        while block := answer.read(1 << 20):
            stream.write(block)
        promised, got = answer.headers.get("Content-Length"), stream.tell()
    # Read in blocks, a broken connection looks like the end of the file.
    if promised is not None and int(promised) != got:
        raise ConnectionError(f"truncated: {got} of {promised} bytes")


def _describe(contents: bytes) -> str:
    start = contents[:256].lstrip().lower()
    if not contents:
        return "an empty file"
    return "an HTML page" if start.startswith((b"<!doctype html", b"<html")) else f"{len(contents)} bytes"


# ---------------------------------------------------------------------------------------------------------
# MNIST and Fashion-MNIST (IDX files), CIFAR-10 (pickles), digits (bundled with scikit-learn)
# ---------------------------------------------------------------------------------------------------------


def _idx_archive(name: str, file: str, mirrors: Sequence[str]) -> _Archive[bytes]:
    sha256 = IDX_SHA256[name][file]
    return _Archive(
        file=f"{file}.gz",
        also=(file,),
        folders=_FOLDERS[name],
        urls=tuple(f"{mirror.rstrip('/')}/{file}.gz" for mirror in mirrors),
        expected=f"sha256 {sha256} of the decompressed contents",
        read=lambda path: _read_verified(path, sha256),
    )


def _read_verified(path: Path, sha256: str) -> bytes:
    contents = path.read_bytes()
    if contents.startswith(b"\x1f\x8b"):
        try:
            contents = gzip.decompress(contents)
        except (EOFError, OSError, zlib.error) as problem:
            raise _WrongContentsError(f"a broken gzip file ({problem})") from problem
    found = hashlib.sha256(contents).hexdigest()
    if found != sha256:
        raise _WrongContentsError(f"sha256 {found} ({_describe(contents)})")
    return contents


def _parse_idx(contents: bytes) -> NDArray[np.uint8]:
    """IDX: two zero bytes, a type (8: unsigned byte), the number of axes, their sizes (big-endian), the data."""
    axes = contents[3]
    shape = np.frombuffer(contents, ">u4", count=axes, offset=4)
    return np.frombuffer(contents, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _mnist_like(source: Source, kind: str, published: Any, classes: Sequence[str]) -> Dataset:
    part = {file: _parse_idx(_obtain(_idx_archive(kind, file, published.mirrors), source)) for file in IDX_SHA256[kind]}
    return make_dataset(
        source.name,
        np.concatenate([part["train-images-idx3-ubyte"], part["t10k-images-idx3-ubyte"]]),
        np.concatenate([part["train-labels-idx1-ubyte"], part["t10k-labels-idx1-ubyte"]]),
        classes=classes,
        train_size=len(part["train-labels-idx1-ubyte"]),
        default_pool="train",
    )


@register("digits")
def _digits(source: Source) -> Dataset:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return make_dataset(source.name, digits.images.astype(np.uint8), digits.target)


@register("mnist")
def _mnist(source: Source) -> Dataset:
    from torchvision.datasets import MNIST

    return _mnist_like(source, "mnist", MNIST, [str(digit) for digit in range(10)])


@register("fashion_mnist")
def _fashion_mnist(source: Source) -> Dataset:
    from torchvision.datasets import FashionMNIST

    return _mnist_like(source, "fashion_mnist", FashionMNIST, FashionMNIST.classes)


@register("cifar10")
def _cifar10(source: Source) -> Dataset:
    from torchvision.datasets import CIFAR10

    batches = [tuple(entry) for entry in (*CIFAR10.train_list, *CIFAR10.test_list)]
    names = (CIFAR10.meta["filename"], CIFAR10.meta["md5"])
    archive = _Archive(
        file=CIFAR10.filename,
        also=(CIFAR10.filename.removesuffix(".gz"), CIFAR10.base_folder),
        folders=_FOLDERS["cifar10"],
        urls=(CIFAR10.url,),
        expected=f"md5 {CIFAR10.tgz_md5} of the archive and the published md5 of each file in it",
        read=lambda path: _read_members(path, dict([*batches, names])),
        check_download=lambda path: _check_md5(path.name, path.read_bytes(), CIFAR10.tgz_md5),
    )
    contents = {file: _unpickle(data) for file, data in _obtain(archive, source).items()}
    parts = [contents[file] for file, _ in batches]
    pixels = np.concatenate([part["data"] for part in parts])
    return make_dataset(
        source.name,
        pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1),
        np.concatenate([part["labels"] for part in parts]),
        classes=contents[names[0]][CIFAR10.meta["key"]],
        train_size=sum(len(contents[file]["labels"]) for file, _ in CIFAR10.train_list),
    )


def _check_md5(what: str, contents: bytes, md5: str) -> None:
    found = hashlib.md5(contents, usedforsecurity=False).hexdigest()
    if found != md5:
        raise _WrongContentsError(f"{what} with md5 {found} ({_describe(contents)})")


def _read_members(path: Path, md5: Mapping[str, str]) -> dict[str, bytes]:
    """The verified files of an archive (tar, compressed or not) or folder, by name."""
    members: dict[str, bytes] = {}
    if path.is_dir():
        members = {file: (path / file).read_bytes() for file in md5 if (path / file).is_file()}
    else:
        try:
            with tarfile.open(path) as tar:
                for entry in tar:
                    file = PurePosixPath(entry.name).name
                    stream = tar.extractfile(entry) if file in md5 else None
                    if stream is not None:
                        members[file] = stream.read()
        except (tarfile.TarError, EOFError, OSError, zlib.error) as problem:
            raise _WrongContentsError(f"a broken archive ({problem})") from problem
    for file, expected in md5.items():
        if file not in members:
            raise _WrongContentsError(f"an archive without {file}")
        _check_md5(file, members[file], expected)
    return members


class _ArrayUnpickler(pickle.Unpickler):
    """Reads plain objects and numpy arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module.endswith("core.multiarray"):
            return np.empty(0).__reduce__()[0]
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            # CIFAR's pickles pass numbers for flags, which numpy has deprecated.
            return lambda code, align=False, copy=False: np.dtype(code, bool(align), bool(copy))
        raise pickle.UnpicklingError(f"{module}.{name} is not allowed")


def _unpickle(data: bytes) -> dict[str, Any]:
    contents = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
    assert isinstance(contents, dict)
    return contents


# ---------------------------------------------------------------------------------------------------------
# Your own data: class folders, arrays
# ---------------------------------------------------------------------------------------------------------

Reader = Callable[[PurePosixPath], bytes]


@register("image_folder", needs_path=True)
def _image_folder(source: Source) -> Dataset:
    """Class folders of images, one folder a class; or the same below train/ and test/, read in this order.

    Images may be of any format that PIL reads, all of one size. If all are grey, x is [M, H, W], or else all
    become RGB (transparency is dropped). Classes are sorted by name, by number if all names are numbers.
    Hidden files are passed over, and so are files beside the class folders if they are no images.
    """
    assert source.path is not None
    with _tree(source.path) as (files, folders, read):
        images, depth = _class_files(source.path, files)
        classes = _class_names(source.path, images, folders, depth)
        number = {name: c for c, name in enumerate(classes)}
        train = sum(1 for image in images if _split(image, depth) == 0)
        x = _decode(source.path, images, read)
    y = np.array([number[image.parts[depth]] for image in images])
    return make_dataset(source.name, x, y, classes=classes, train_size=train)


@contextmanager
def _tree(path: Path) -> Iterator[tuple[list[PurePosixPath], list[PurePosixPath], Reader]]:
    """The files and folders below a folder or in a .zip, sorted, and how to read a file."""
    if path.is_dir():
        entries = list(_walk(path))
        yield *_sort_entries(entries), lambda file: (path / file).read_bytes()
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            entries = [(PurePosixPath(name), name.endswith("/")) for name in archive.namelist()]
            yield *_sort_entries(entries), lambda file: archive.read(str(file))
    else:
        raise UserError(f"{path} is neither a folder nor a .zip file.")


def _walk(path: Path) -> Iterator[tuple[PurePosixPath, bool]]:
    for parent, folders, files in os.walk(path, followlinks=True):  # class folders may be links
        below = PurePosixPath(Path(parent).relative_to(path).as_posix())
        yield from ((below / name, True) for name in folders)
        yield from ((below / name, False) for name in files)


def _sort_entries(
    entries: list[tuple[PurePosixPath, bool]],
) -> tuple[list[PurePosixPath], list[PurePosixPath]]:
    shown = sorted(
        (entry, is_folder)
        for entry, is_folder in entries
        if not any(part.startswith((".", "__MACOSX")) for part in entry.parts)
        and entry.name not in ("Thumbs.db", "desktop.ini")
    )
    return [e for e, is_folder in shown if not is_folder], [e for e, is_folder in shown if is_folder]


def _class_files(path: Path, files: list[PurePosixPath]) -> tuple[list[PurePosixPath], int]:
    """The image files, train/ before test/, and the position of the class folder in their paths."""
    depth = 0
    while True:
        files = _without_loose_files(path, files, depth)
        tops = {file.parts[depth] for file in files}
        if len(tops) != 1 or not any(len(file.parts) > depth + 2 for file in files):
            break
        depth += 1  # one folder around everything
    if any(file.parts[depth] == "train" and len(file.parts) > depth + 2 for file in files):
        if tops != {"train", "test"}:
            raise UserError(f"{path} holds folders {', '.join(sorted(tops))}; beside train/ only test/ is valid.")
        depth += 1
        files = _without_loose_files(path, files, depth)
    for file in files:
        if len(file.parts) > depth + 2:
            raise UserError(f"{path} holds {file}; class folders must hold images and no folders.")
    return sorted(files, key=lambda file: (_split(file, depth), file)), depth


def _without_loose_files(path: Path, files: list[PurePosixPath], depth: int) -> list[PurePosixPath]:
    for file in files:
        if len(file.parts) <= depth + 1 and file.suffix.lower() in Image.registered_extensions():
            raise UserError(f"{path} holds the image {file} outside of any class folder.")
    inside = [file for file in files if len(file.parts) > depth + 1]
    if not inside:
        raise UserError(f"{path} holds no class folders with images.")
    return inside


def _split(image: PurePosixPath, depth: int) -> int:
    """0 for training images, 1 for test images."""
    return int(depth > 0 and image.parts[depth - 1] == "test")


def _class_names(path: Path, images: list[PurePosixPath], folders: list[PurePosixPath], depth: int) -> list[str]:
    classes = {image.parts[depth] for image in images}
    for folder in folders:
        if len(folder.parts) == depth + 1 and folder.name not in classes:
            raise UserError(f"{path} holds the class folder {folder} without images; fill or remove it.")
    numbers = all(name.isdecimal() for name in classes)
    return sorted(classes, key=lambda name: (int(name) if numbers else 0, name))


def _decode(path: Path, images: list[PurePosixPath], read: Reader) -> NDArray[np.uint8]:
    """Decode images of one size: [M, H, W] if all are grey, [M, H, W, 3] otherwise."""
    decoded: list[NDArray[np.uint8]] = []
    for image in images:
        pixels = _decode_one(path, image, read)
        if decoded and pixels.shape[:2] != decoded[0].shape[:2]:
            raise UserError(
                f"{path} holds images of different sizes, {images[0]} with {_size(decoded[0])} and "
                f"{image} with {_size(pixels)} pixels; make them one size."
            )
        decoded.append(pixels)
    if all(pixels.ndim == 2 for pixels in decoded):
        return np.stack(decoded)
    x = np.empty((len(decoded), *decoded[0].shape[:2], 3), np.uint8)
    for i, pixels in enumerate(decoded):
        x[i] = pixels if pixels.ndim == 3 else pixels[..., None]
    return x


def _decode_one(path: Path, image: PurePosixPath, read: Reader) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(read(image))) as opened:
            if opened.mode.startswith(("I", "F")):
                raise UserError(f"{path} holds {image} with more than 8 bits a pixel; only 8 are valid.")
            if "transparency" in opened.info:
                return np.asarray(opened.convert("RGBA").convert("RGB"))
            return np.asarray(opened.convert("L" if opened.mode in ("1", "L", "LA") else "RGB"))
    except (
        UnidentifiedImageError,
        OSError,
        SyntaxError,  # what PIL raises for some broken files
        ValueError,
        RuntimeError,
        EOFError,
        zlib.error,
        zipfile.BadZipFile,
        Image.DecompressionBombError,
    ) as problem:
        reason = "no known image format" if isinstance(problem, UnidentifiedImageError) else str(problem)
        raise UserError(f"{path} holds {image}, which cannot be read as an image ({reason}).") from problem


def _size(pixels: Array) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]}"


@register("npz", needs_path=True)
def _npz(source: Source) -> Dataset:
    """An .npz file of x [M, ...] and y [M], optionally client [M], as `make_dataset` takes them."""
    assert source.path is not None
    if not zipfile.is_zipfile(source.path):
        raise UserError(f"{source.path} is not an .npz file.")
    try:
        with np.load(source.path, allow_pickle=False) as data:
            if not {"x", "y"} <= set(data) <= {"x", "y", "client"}:
                raise UserError(
                    f"{source.path} holds the arrays {', '.join(data)}; valid are x and y, and optionally client."
                )
            arrays = dict(data)
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, zlib.error, zipfile.BadZipFile) as problem:
        reason = (
            "arrays of Python objects: make strings type str_ and lists arrays"
            if "allow_pickle" in str(problem)
            else problem
        )
        raise UserError(f"{source.path} cannot be read as an .npz file ({reason}).") from problem
    for key, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands over what is no array as bytes
            raise UserError(f"{source.path} cannot be read as an .npz file ({key} in it is no array).")
    return make_dataset(source.name, arrays["x"], arrays["y"], client=arrays.get("client"))
