"""Datasets: sources of every kind, good and bad, against a server of our own."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import struct
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from torchvision.datasets import CIFAR10, MNIST, FashionMNIST

from cgpfl import datasets as ds
from cgpfl.errors import UserError

FAST = ds.Network(tries=2, timeout=5.0, backoff=0.0)
TRAIN_IMAGES = "train-images-idx3-ubyte"


# ---------------------------------------------------------------------------------------------------------
# A server whose answers are set by path, and tiny published files
# ---------------------------------------------------------------------------------------------------------


class Server:
    """`answers[path]` is a list of (status, body, promised length or None); the last one is repeated."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, bytes, int | None]]] = {}
        self.asked: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                planned = server.answers.get(self.path, [(404, b"not here", None)])
                status, body, length = planned.pop(0) if len(planned) > 1 else planned[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body) if length is None else length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def put(self, path: str, body: bytes, status: int = 200, length: int | None = None) -> None:
        self.answers.setdefault(path, []).append((status, body, length))


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.http.shutdown()
    thread.join()
    running.http.server_close()


@pytest.fixture(autouse=True)
def no_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ds.ARCHIVES_VARIABLE, raising=False)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def tiny_files(seed: int) -> dict[str, bytes]:
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(10, dtype=np.uint8), 3)
    return {
        TRAIN_IMAGES: idx(rng.integers(0, 256, (30, 4, 5), dtype=np.uint8)),
        "train-labels-idx1-ubyte": idx(rng.permutation(labels)),
        "t10k-images-idx3-ubyte": idx(rng.integers(0, 256, (10, 4, 5), dtype=np.uint8)),
        "t10k-labels-idx1-ubyte": idx(np.arange(10, dtype=np.uint8)),
    }


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """Small stand-ins for the published files, known by their own checksums."""
    files = {"mnist": tiny_files(0), "fashion_mnist": tiny_files(1)}
    for name, contents in files.items():
        checksums = {file: hashlib.sha256(data).hexdigest() for file, data in contents.items()}
        monkeypatch.setitem(ds.IDX_SHA256, name, checksums)
    return files


def publish(server: Server, folder: str, files: dict[str, bytes]) -> str:
    for file, data in files.items():
        server.answers[f"/{folder}/{file}.gz"] = [(200, gzip.compress(data), None)]
    return f"{server.url}/{folder}/"


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------------------------------------
# Published files
# ---------------------------------------------------------------------------------------------------------


def test_digits(tmp_path: Path):
    digits = ds.prepare("digits", tmp_path / "digits.npz")
    assert digits.x.shape == (1797, 8, 8)
    assert digits.x.dtype == np.uint8
    assert digits.x.max() == 16
    assert digits.y.dtype == np.int64
    assert digits.classes == tuple("0123456789")
    assert digits.train_size == 1797
    assert len(digits.pool()) == 1797
    assert digits.client is None
    assert files_below(tmp_path) == {"digits.npz"}


def test_mnist_from_a_mirror(server, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(MNIST, "mirrors", [publish(server, "good", tiny["mnist"])])
    mnist = ds.prepare("mnist", tmp_path / "mnist.npz", network=FAST)
    assert mnist.x.shape == (40, 4, 5)
    assert idx(mnist.x[:30]) == tiny["mnist"][TRAIN_IMAGES]
    assert idx(mnist.y[30:].astype(np.uint8)) == tiny["mnist"]["t10k-labels-idx1-ubyte"]
    assert mnist.train_size == 30
    assert mnist.pool().tolist() == list(range(30))
    assert mnist.pool("all").tolist() == list(range(40))
    with pytest.raises(UserError, match="pool is 'test'; valid are train, all"):
        mnist.pool("test")
    back = ds.load(tmp_path / "mnist.npz")
    np.testing.assert_array_equal(back.x, mnist.x)
    np.testing.assert_array_equal(back.y, mnist.y)
    assert (back.name, back.classes, back.train_size) == ("mnist", mnist.classes, 30)
    assert (back.sha256, back.default_pool, back.client) == (mnist.sha256, "train", None)
    # What was downloaded is kept, and read the next time.
    assert files_below(tmp_path) == {"mnist.npz"} | {f"archives/mnist/{f}.gz" for f in tiny["mnist"]}
    asked = len(server.asked)
    ds.prepare("mnist", tmp_path / "mnist.npz", network=FAST)
    assert len(server.asked) == asked


def spoilt(kind: str, good: bytes) -> dict[str, object]:
    """Bad answers in place of a gzipped file."""
    altered = gzip.compress(gzip.decompress(good)[:-1] + b"\x01\x02")
    return {
        "404": {"status": 404, "body": b"none"},
        "503": {"status": 503, "body": b"busy"},
        "html": {"body": b"<!DOCTYPE html><html>Sign in</html>"},
        "cut": {"body": good[: len(good) // 2], "length": len(good)},
        "cut_quietly": {"body": good[: len(good) // 2]},
        "altered": {"body": altered},
        "flipped": {"body": good[:40] + bytes([good[40] ^ 255]) + good[41:]},
        "empty": {"body": b""},
    }[kind]


FOUND = {
    "404": "HTTP 404",
    "503": "HTTP 503",
    "html": "an HTML page",
    "cut": r"truncated: \d+ of \d+ bytes",
    "cut_quietly": "a broken gzip file",
    "altered": "sha256 [0-9a-f]{64}",
    "flipped": "a broken gzip file|sha256 [0-9a-f]{64}",
    "empty": "an empty file",
}


@pytest.mark.parametrize("kind", list(FOUND))
def test_a_bad_mirror_is_passed_over(kind, server, tiny, tmp_path, monkeypatch):
    mirrors = [publish(server, "bad", tiny["mnist"]), publish(server, "good", tiny["mnist"])]
    monkeypatch.setattr(MNIST, "mirrors", mirrors)
    bad = f"/bad/{TRAIN_IMAGES}.gz"
    good = server.answers.pop(bad)[0][1]
    server.put(bad, **spoilt(kind, good))
    mnist = ds.prepare("mnist", tmp_path / "mnist.npz", network=FAST)
    assert idx(mnist.x[:30]) == tiny["mnist"][TRAIN_IMAGES]
    assert server.asked.count(bad) == (2 if kind in ("503", "cut") else 1)
    assert server.asked.count(f"/good/{TRAIN_IMAGES}.gz") == 1


@pytest.mark.parametrize("kind", list(FOUND))
def test_bad_everywhere_ends_in_an_error_and_no_file(kind, server, tiny, tmp_path, monkeypatch):
    mirrors = [publish(server, "one", tiny["mnist"]), publish(server, "two", tiny["mnist"])]
    monkeypatch.setattr(MNIST, "mirrors", mirrors)
    for mirror in ("one", "two"):
        path = f"/{mirror}/{TRAIN_IMAGES}.gz"
        good = server.answers.pop(path)[0][1]
        server.put(path, **spoilt(kind, good))
    with pytest.raises(UserError) as error:
        ds.prepare("mnist", tmp_path / "mnist.npz", network=FAST)
    message = str(error.value)
    assert f"{TRAIN_IMAGES}.gz of mnist cannot be had" in message
    assert f"expected sha256 {ds.IDX_SHA256['mnist'][TRAIN_IMAGES]} of the decompressed contents" in message
    assert f"{mirrors[0]}{TRAIN_IMAGES}.gz: " in message
    assert f"{mirrors[1]}{TRAIN_IMAGES}.gz: " in message
    error.match(FOUND[kind])
    assert files_below(tmp_path) == set()


def test_a_busy_server_is_asked_again(server, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(MNIST, "mirrors", [publish(server, "good", tiny["mnist"])])
    path = f"/good/{TRAIN_IMAGES}.gz"
    server.answers[path].insert(0, (503, b"busy", None))
    ds.prepare("mnist", tmp_path / "mnist.npz", network=FAST)
    assert server.asked.count(path) == 2


def test_waits_double(monkeypatch, tmp_path):
    waits: list[float] = []
    monkeypatch.setattr(ds.time, "sleep", waits.append)
    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/"])  # nobody answers there
    with pytest.raises(UserError, match=r"http://127.0.0.1:9/train-images-idx3-ubyte.gz: no answer"):
        ds.prepare("mnist", tmp_path / "mnist.npz", network=ds.Network(tries=4, timeout=5.0, backoff=0.5))
    assert waits == [0.5, 1.0, 2.0]


@pytest.mark.parametrize("folder", ["", "fashion-mnist", "fashion_mnist", "FashionMNIST/raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_archive_folder(folder, zipped, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(FashionMNIST, "mirrors", [])
    place = tmp_path / "archive" / folder
    place.mkdir(parents=True)
    for file, data in tiny["fashion_mnist"].items():
        (place / f"{file}.gz").write_bytes(gzip.compress(data)) if zipped else (place / file).write_bytes(data)
    out = tmp_path / "data" / "fashion_mnist.npz"
    fashion = ds.prepare("fashion_mnist", out, archive_dir=tmp_path / "archive")
    assert idx(fashion.x[:30]) == tiny["fashion_mnist"][TRAIN_IMAGES]
    assert fashion.classes[9] == "Ankle boot"
    assert files_below(tmp_path / "data") == {"fashion_mnist.npz"}
    monkeypatch.setenv(ds.ARCHIVES_VARIABLE, str(tmp_path / "archive"))
    assert ds.prepare("fashion_mnist", out).sha256 == fashion.sha256


def test_an_altered_archive_file_leads_to_the_mirrors(server, tiny, tmp_path, monkeypatch):
    """The other dataset's files have the same names, as in an archive folder of one dataset."""
    archive = tmp_path / "archive"
    archive.mkdir()
    for file, data in tiny["mnist"].items():
        (archive / file).write_bytes(data)
    monkeypatch.setattr(FashionMNIST, "mirrors", [])
    with pytest.raises(UserError) as error:
        ds.prepare("fashion_mnist", tmp_path / "f.npz", archive_dir=archive)
    found = ds.IDX_SHA256["mnist"][TRAIN_IMAGES]
    error.match(f"expected sha256 {ds.IDX_SHA256['fashion_mnist'][TRAIN_IMAGES]} .*archive.*: sha256 {found}")
    monkeypatch.setattr(FashionMNIST, "mirrors", [publish(server, "good", tiny["fashion_mnist"])])
    fashion = ds.prepare("fashion_mnist", tmp_path / "f.npz", archive_dir=archive, network=FAST)
    assert idx(fashion.x[:30]) == tiny["fashion_mnist"][TRAIN_IMAGES]


def test_a_missing_archive_folder_is_an_error(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"data\.archive_dir is '.*nowhere'; there is no such folder"):
        ds.prepare("mnist", tmp_path / "m.npz", archive_dir=tmp_path / "nowhere")
    monkeypatch.setenv(ds.ARCHIVES_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"CGPFL_ARCHIVES is '.*nowhere'"):
        ds.prepare("mnist", tmp_path / "m.npz")


def real_archives() -> Path | None:
    beside = Path(__file__).parents[1] / ".." / "shared" / "data"
    named = os.environ.get(ds.ARCHIVES_VARIABLE)
    return Path(named) if named else beside if beside.is_dir() else None


ARCHIVES = real_archives()  # before `no_archives` hides the variable


@pytest.mark.skipif(ARCHIVES is None, reason="no local archives (set CGPFL_ARCHIVES)")
def test_real_mnist(tmp_path):
    mnist = ds.prepare("mnist", tmp_path / "mnist.npz", archive_dir=ARCHIVES)
    assert mnist.x.shape == (70000, 28, 28)
    assert len(mnist.pool()) == 60000
    assert np.bincount(mnist.y[:60000]).tolist() == [
        5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949,
    ]  # fmt: skip
    scaled = ds.scaled(mnist.x[:60000])
    assert mnist.x[:60000].mean() / 255 == pytest.approx(0.1307, abs=1e-4)
    assert scaled.std(dtype=np.float64) == pytest.approx(1, abs=1e-5)


# ---------------------------------------------------------------------------------------------------------
# CIFAR-10
# ---------------------------------------------------------------------------------------------------------


def old_pickle(data: dict[str, object]) -> bytes:
    """Pickle a dict of strings to byte arrays or to lists, as Python 2 and its numpy did for CIFAR-10.

    Strings are byte strings, and the flags of the data type are whole numbers.
    """

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    def item(value: object) -> bytes:
        if isinstance(value, np.ndarray):
            shape = b"(" + b"".join(b"J" + struct.pack("<i", n) for n in value.shape) + b"t"
            empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
            dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R"
            dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
            return empty + b"(K\x01" + shape + dtype + b"\x89" + text(value.tobytes()) + b"tb"
        if isinstance(value, list):
            return b"](" + b"".join(item(v) for v in value) + b"e"
        return text(value.encode()) if isinstance(value, str) else b"J" + struct.pack("<i", value)

    pairs = b"".join(text(key.encode()) + item(value) for key, value in data.items())
    return b"\x80\x02}(" + pairs + b"u."


@pytest.fixture
def tiny_cifar(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    files = {
        name: old_pickle(
            {
                "data": rng.integers(0, 256, (10, 3072), dtype=np.uint8),
                "labels": list(range(10)),
                "filenames": [],
            }
        )
        for name in names
    }
    files["batches.meta"] = old_pickle({"label_names": [f"class {c}" for c in range(10)]})
    md5 = {name: hashlib.md5(data).hexdigest() for name, data in files.items()}
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5[name]] for name in names[:5]])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5["test_batch"]]])
    meta = {"filename": "batches.meta", "key": "label_names", "md5": md5["batches.meta"]}
    monkeypatch.setattr(CIFAR10, "meta", meta)
    return files


def tar_of(files: dict[str, bytes], folder: str = "cifar-10-batches-py") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def check_cifar(cifar: ds.Dataset, files: dict[str, bytes]) -> None:
    assert cifar.x.shape == (60, 32, 32, 3)
    assert cifar.train_size == 50
    assert len(cifar.pool()) == 60
    assert cifar.classes[3] == "class 3"
    data = ds._unpickle(files["test_batch"])["data"]
    np.testing.assert_array_equal(cifar.x[50, :, :, 1], data[0, 1024:2048].reshape(32, 32))


def test_cifar10_from_its_url(server, tiny_cifar, tmp_path, monkeypatch):
    archive = tar_of(tiny_cifar)
    server.put("/cifar.tar.gz", archive)
    monkeypatch.setattr(CIFAR10, "url", f"{server.url}/cifar.tar.gz")
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive).hexdigest())
    check_cifar(ds.prepare("cifar10", tmp_path / "cifar10.npz", network=FAST), tiny_cifar)
    assert files_below(tmp_path) == {"cifar10.npz", f"archives/cifar10/{CIFAR10.filename}"}


def test_another_cifar10_archive_is_refused(server, tiny_cifar, tmp_path, monkeypatch):
    server.put("/cifar.tar.gz", tar_of(tiny_cifar))
    monkeypatch.setattr(CIFAR10, "url", f"{server.url}/cifar.tar.gz")
    with pytest.raises(UserError, match=rf"expected md5 {CIFAR10.tgz_md5} .*cifar.tar.gz: .*with md5 [0-9a-f]+"):
        ds.prepare("cifar10", tmp_path / "cifar10.npz", network=FAST)
    assert files_below(tmp_path) == set()


def test_cifar10_from_archive_folders(tiny_cifar, tmp_path, monkeypatch):
    """Packed anew or unpacked: the contents count."""
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/none")
    packed, unpacked = tmp_path / "a", tmp_path / "b"
    packed.mkdir()
    (packed / CIFAR10.filename).write_bytes(tar_of(tiny_cifar))
    (unpacked / "cifar10" / CIFAR10.base_folder).mkdir(parents=True)
    for name, data in tiny_cifar.items():
        (unpacked / "cifar10" / CIFAR10.base_folder / name).write_bytes(data)
    for folder in (packed, unpacked):
        check_cifar(ds.prepare("cifar10", tmp_path / "c.npz", archive_dir=folder, network=FAST), tiny_cifar)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda files: {**files, "test_batch": b"other"}, "test_batch with md5"),
        (lambda files: {"test_batch": files["test_batch"]}, "an archive without data_batch_1"),
        (None, "a broken archive"),
    ],
)
def test_a_spoilt_cifar10_archive_is_refused(spoil, message, tiny_cifar, tmp_path, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/none")
    contents = tar_of(spoil(tiny_cifar)) if spoil else tar_of(tiny_cifar)[:-2000]
    (tmp_path / CIFAR10.filename).write_bytes(contents)
    with pytest.raises(UserError, match=message):
        ds.prepare("cifar10", tmp_path / "c.npz", archive_dir=tmp_path, network=FAST)
    assert files_below(tmp_path) == {CIFAR10.filename}


def test_unpickling_runs_nothing():
    with pytest.raises(pickle.UnpicklingError, match=r"(posix|nt)\.system is not allowed"):
        ds._unpickle(pickle.dumps(os.system))


# ---------------------------------------------------------------------------------------------------------
# Class folders
# ---------------------------------------------------------------------------------------------------------


def picture(value: int, size: tuple[int, int] = (6, 4), mode: str = "RGB", kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, size, value if mode in ("L", "P", "I;16", "1") else (value,) * len(mode)).save(stream, kind)
    return stream.getvalue()


def as_folder(path: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def as_zip(path: Path, files: dict[str, bytes]) -> Path:
    target = path.with_suffix(".zip")
    with zipfile.ZipFile(target, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return target


WRITERS: list[Callable[[Path, dict[str, bytes]], Path]] = [as_folder, as_zip]


def images(tmp_path: Path, path: Path) -> ds.Dataset:
    return ds.prepare("my-images", tmp_path / "out" / "my.npz", kind="image_folder", path=path)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("around", ["", "everything/", "a/b/"])
def test_class_folders(write, around, tmp_path):
    files = {
        f"{around}{label}/{i}.png": picture(10 * c + i)
        for c, label in enumerate(["cat", "dog", "train"])
        for i in range(3)
    }
    files |= {
        f"{around}README.txt": b"hello",
        f"{around}.hidden/x.png": b"?",
        f"{around}cat/.DS_Store": b"?",
        "__MACOSX/cat/1.png": b"?",
    }
    found = images(tmp_path, write(tmp_path / "in", files))
    assert found.classes == ("cat", "dog", "train")
    assert found.x.shape == (9, 4, 6, 3)
    assert found.x[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22]
    assert found.y.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert found.train_size == 9
    assert len(found.pool()) == 9
    assert found.name == "my-images"


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("around", ["", "everything/"])
def test_train_and_test_folders(write, around, tmp_path):
    files = {
        f"{around}{split}/{label}/{i}.jpg": picture(100 * s + label, mode="L", kind="JPEG")
        for s, split in enumerate(["train", "test"])
        for label in (2, 10)
        for i in range(2)
    }
    found = images(tmp_path, write(tmp_path / "in", files))
    assert found.classes == ("2", "10")  # by number
    assert found.x.shape == (8, 4, 6)
    assert found.x[:, 0, 0].tolist() == [10, 10, 2, 2, 110, 110, 102, 102]
    assert found.y.tolist() == [1, 1, 0, 0] * 2
    assert found.train_size == 4
    assert len(found.pool()) == 8


def test_linked_class_folders(tmp_path):
    as_folder(tmp_path / "elsewhere", {f"{i}.png": picture(i) for i in range(2)})
    as_folder(tmp_path / "in", {f"cat/{i}.png": picture(i) for i in range(2)})
    (tmp_path / "in" / "dog").symlink_to(tmp_path / "elsewhere")
    assert images(tmp_path, tmp_path / "in").classes == ("cat", "dog")


def test_modes_are_brought_together(tmp_path):
    files = {
        "a/grey.png": picture(50, mode="L"),
        "a/two.png": picture(1, mode="1"),
        "b/alpha.png": picture(60, mode="RGBA"),
        "b/palette.gif": picture(3, mode="P", kind="GIF"),
    }
    found = images(tmp_path, as_folder(tmp_path / "in", files))
    assert found.x.shape == (4, 4, 6, 3)
    assert found.x[0, 0, 0].tolist() == [50, 50, 50]
    assert found.x[1, 0, 0].tolist() == [255, 255, 255]
    assert found.x[2, 0, 0].tolist() == [60, 60, 60]


FINE = {f"{label}/{i}.png": picture(i) for label in "ab" for i in range(2)}


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    ("files", "message"),
    [
        (FINE | {"a/9.png": b"no image"}, "holds a/9.png, which cannot be read as an image"),
        (FINE | {"a/9.jpg": picture(1, kind="JPEG")[:150]}, "a/9.jpg, which cannot be read as an image"),
        (FINE | {"a/notes.txt": b"hello"}, "a/notes.txt, which cannot be read as an image"),
        (FINE | {"b/9.png": picture(1, size=(6, 5))}, "sizes, a/0.png with 6x4 and b/9.png with 6x5 pixels"),
        (FINE | {"b/9.png": picture(1, mode="I;16")}, "b/9.png with more than 8 bits a pixel"),
        (FINE | {"c/0.png": picture(1)}, r"two samples at least, .*; too few have 'c' \(1\)"),
        (FINE | {"loose.png": picture(1)}, "the image loose.png outside of any class folder"),
        (FINE | {"a/deep/0.png": picture(1)}, "holds a/deep/0.png; class folders must hold images and no f"),
        ({f"a/{i}.png": picture(i) for i in range(3)}, "all samples are of class 'a'; two classes"),
        ({"notes.txt": b"hello"}, "holds no class folders with images"),
        (
            {f"{s}/{c}/{i}.png": picture(i) for s in ("train", "val") for c in "ab" for i in range(2)},
            "holds folders train, val; beside train/ only test/ is valid",
        ),
        (
            {f"train/{c}/{i}.png": picture(i) for c in "ab" for i in range(2)}
            | {"test/a/0.png": picture(1), "test/1.png": picture(1)},
            "holds the image test/1.png outside of any class folder",
        ),
    ],
)
def test_unusable_folders(write, files, message, tmp_path):
    with pytest.raises(UserError, match=message):
        images(tmp_path, write(tmp_path / "in", files))
    assert not (tmp_path / "out" / "my.npz").exists()


def test_an_empty_class_folder_is_told(tmp_path):
    folder = as_folder(tmp_path / "in", FINE)
    (folder / "c").mkdir()
    with pytest.raises(UserError, match="class folder c without images"):
        images(tmp_path, folder)


def test_paths_that_are_no_folder_of_images(tmp_path):
    for path in (tmp_path / "none", as_folder(tmp_path, {"file.zip": b"PK?"}) / "file.zip"):
        with pytest.raises(UserError, match=r"neither a folder nor a \.zip file"):
            images(tmp_path, path)


# ---------------------------------------------------------------------------------------------------------
# Arrays
# ---------------------------------------------------------------------------------------------------------


def arrays(tmp_path: Path, **content: object) -> ds.Dataset:
    np.savez(tmp_path / "my.npz", **content)
    return ds.prepare("my", tmp_path / "out.npz", kind="npz", path=tmp_path / "my.npz")


def test_npz_with_string_labels_and_clients(tmp_path):
    x = np.arange(60, dtype=np.uint8).reshape(6, 2, 5)
    found = arrays(tmp_path, x=x, y=np.array(["b", "a", "b", "a", "c", "c"]), client=np.array([7, 7, 3, 3, 7, 9]))
    assert found.y.tolist() == [1, 0, 1, 0, 2, 2]
    assert found.classes == ("a", "b", "c")
    assert found.client.tolist() == [1, 1, 0, 0, 1, 2]
    assert found.client.dtype == np.int64
    np.testing.assert_array_equal(found.x, x)
    back = ds.load(tmp_path / "out.npz")
    np.testing.assert_array_equal(back.client, found.client)
    assert back.classes == ("a", "b", "c")


def test_the_names_of_the_classes_are_told(tmp_path, caplog):
    with caplog.at_level("INFO", "cgpfl"):
        arrays(tmp_path, x=np.ones((4, 3)), y=["dog", "cat", "dog", "cat"])
    assert "my: 4 samples of shape (3,)" in caplog.text
    assert "classes 0 to 1 are called cat, dog" in caplog.text


def test_the_number_of_clients_is_known_before_the_samples_are_read(tmp_path):
    path = tmp_path / "my.npz"
    np.savez(path, x=OK_X, y=OK_Y, client=["b", "a", "b", "c"])
    assert ds.given_clients("npz", path) == 3
    assert ds.given_clients("image_folder", path) is None
    np.savez(path, x=OK_X, y=OK_Y)
    assert ds.given_clients("npz", path) is None
    path.write_bytes(b"PK?")
    assert ds.given_clients("npz", path) is None
    assert ds.given_clients("npz", tmp_path / "none.npz") is None


@pytest.mark.parametrize(
    ("x", "shape", "dtype"),
    [
        (np.ones((4, 3), np.int64), (4, 3), np.uint8),
        (np.full((4, 3), 256), (4, 3), np.float32),
        (np.full((4, 3), -1, np.int8), (4, 3), np.float32),
        (np.ones((4, 3, 3), bool), (4, 3, 3), np.uint8),
        (np.ones((4, 3, 3, 1), np.uint8), (4, 3, 3), np.uint8),
        (np.ones((4, 3, 3, 3), np.float64), (4, 3, 3, 3), np.float32),
        (np.ones((4, 2, 2, 2, 2), np.float16), (4, 2, 2, 2, 2), np.float32),
    ],
)
def test_npz_types_and_shapes(x, shape, dtype, tmp_path):
    found = arrays(tmp_path, x=x, y=[5, 9, 5, 9])
    assert found.x.shape == shape
    assert found.x.dtype == dtype
    assert found.classes == ("5", "9")


@pytest.mark.parametrize("y", [[[0], [1], [0], [1]], [0.0, 1.0, 0.0, 1.0], [b"0", b"1", b"0", b"1"]])
def test_npz_labels_of_all_kinds(y, tmp_path):
    found = arrays(tmp_path, x=np.ones((4, 3)), y=y)
    assert found.y.tolist() == [0, 1, 0, 1]
    assert found.classes == ("0", "1")


OK_X = np.ones((4, 3), np.uint8)
OK_Y = [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"x": OK_X}, "holds the arrays x; valid are x and y, and optionally client"),
        ({"x": OK_X, "y": OK_Y, "clients": OK_Y}, "holds the arrays x, y, clients"),
        ({"x": OK_X, "y": [0, 1]}, r"y has shape \(2,\); it must be \(4,\)"),
        ({"x": OK_X, "y": np.eye(4)}, r"y has shape \(4, 4\)"),
        ({"x": OK_X, "y": [0, 0, 0.5, 1]}, "y has type float64; labels must be whole numbers or strings"),
        ({"x": OK_X, "y": [0, 0, np.nan, 1]}, "y has type float64"),
        ({"x": OK_X, "y": [0, 0, np.inf, np.inf]}, r"y holds inf; numbers must lie between -2\*\*63 and 2\*\*63"),
        ({"x": OK_X, "y": [0, 0, -1e300, -1e300]}, r"y holds -1e\+300; numbers"),
        ({"x": OK_X, "y": OK_Y, "client": [0, 0, 2.0**63, 0]}, r"client holds 9\.22337e\+18; numbers"),
        ({"x": OK_X, "y": [b"\xff", b"a", b"a", b"\xff"]}, r"y holds b'\\xff', which is no UTF-8 text"),
        ({"x": OK_X, "y": [0, 0, 0, 0]}, "all samples are of class '0'"),
        ({"x": OK_X, "y": [0, 0, 0, 4]}, r"too few have '4' \(1\)"),
        ({"x": OK_X, "y": OK_Y, "client": [0, 1]}, r"client has shape \(2,\)"),
        ({"x": np.ones(4), "y": OK_Y}, r"x has shape \(4,\)"),
        ({"x": np.ones((0, 4)), "y": []}, r"x has shape \(0, 4\)"),
        ({"x": np.full((4, 2), "a"), "y": OK_Y}, "x has type <U1; it must hold numbers"),
        ({"x": np.full((4, 2), np.inf), "y": OK_Y}, "x holds numbers that are not finite"),
        ({"x": np.ones((4, 3, 32, 32)), "y": OK_Y}, r"must be \[samples, height, width, channels\]"),
        ({"x": OK_X, "y": np.array([[1], "a", None, 2], dtype=object)}, "arrays of Python objects"),
    ],
)
def test_unusable_arrays(content, message, tmp_path):
    with pytest.raises(UserError, match=message):
        arrays(tmp_path, **content)
    assert not (tmp_path / "out.npz").exists()


def test_other_files_are_no_npz(tmp_path):
    np.save(tmp_path / "x.npy", OK_X)
    for path in (tmp_path / "x.npy", tmp_path / "none.npz"):
        with pytest.raises(UserError, match=r"is not an \.npz file"):
            ds.prepare("my", tmp_path / "out.npz", kind="npz", path=path)
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as archive:
        archive.writestr("x.npy", b"nonsense")
        archive.writestr("y.npy", b"nonsense")
    with pytest.raises(UserError, match=r"z\.npz cannot be read as an \.npz file \(x in it is no array\)"):
        ds.prepare("my", tmp_path / "out.npz", kind="npz", path=tmp_path / "z.npz")


# ---------------------------------------------------------------------------------------------------------
# Kinds, files, values
# ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"name": "emnist"},
            "kind 'emnist'; valid are digits, mnist, fashion_mnist, cifar10, image_folder, npz",
        ),
        ({"name": "my", "kind": "npz"}, "'my' of kind 'npz' needs a path"),
        ({"name": "digits", "path": Path("x")}, "'digits' of kind 'digits' takes no path"),
        ({"name": "cifar10", "kind": "npz", "path": Path("x")}, "'cifar10' is taken by the published data"),
        ({"name": "a/b", "kind": "npz", "path": Path("x")}, "'a/b' must consist of letters, digits"),
    ],
)
def test_wrong_arguments(arguments, message, tmp_path):
    with pytest.raises(UserError, match=message):
        ds.prepare(out=tmp_path / "out.npz", **arguments)


def test_a_new_kind_is_one_function(tmp_path, monkeypatch):
    monkeypatch.setattr(ds, "_KINDS", dict(ds._KINDS))

    @ds.register("stripes")
    def stripes(source: ds.Source) -> ds.Dataset:
        return ds.make_dataset(source.name, np.eye(4, dtype=np.uint8), np.array([0, 1, 0, 1]))

    assert ds.kinds()["stripes"] is False
    assert ds.kinds()["npz"] is True
    assert ds.prepare("stripes", tmp_path / "s.npz").name == ds.load(tmp_path / "s.npz").name == "stripes"


def test_named_classes_must_all_be_there():
    with pytest.raises(UserError, match="y holds labels 0, 2; valid are 0 to 1"):
        ds.make_dataset("my", np.ones((4, 2)), np.array([0, 2, 0, 2]), classes=["a", "b"])


def test_load_refuses_other_files(tmp_path):
    (tmp_path / "bad.npz").write_bytes(b"<html>")
    np.savez(tmp_path / "other.npz", x=OK_X)
    for name in ("none.npz", "bad.npz", "other.npz"):
        with pytest.raises(UserError, match=f"{name} cannot be read as a prepared dataset"):
            ds.load(tmp_path / name)


def test_hash_depends_on_values_shapes_and_types():
    def hash_of(x: np.ndarray, y: list[int]) -> str:
        return ds.make_dataset("my", x, np.array(y)).sha256

    first = hash_of(OK_X, OK_Y)
    assert hash_of(OK_X.copy(), OK_Y) == first
    assert hash_of(np.asfortranarray(OK_X), OK_Y) == first
    assert hash_of(OK_X.reshape(4, 3, 1), OK_Y) != first
    assert hash_of(OK_X.astype(np.float32), OK_Y) != first
    assert hash_of(OK_X, [0, 1, 0, 1]) != first


@settings(deadline=None, max_examples=50)
@given(hnp.arrays(np.uint8, hnp.array_shapes(min_dims=2, max_dims=4, max_side=5)), st.booleans())
def test_standardised_samples_are_their_definition(x, as_float):
    x = x.astype(np.float32) if as_float else x
    exact = x.astype(np.float64)
    axis = {2: 0, 3: None, 4: (0, 1, 2)}[x.ndim]
    std = exact.std(axis=axis)
    expected = (exact - exact.mean(axis=axis)) / np.where(std > 0, std, 1)
    if x.ndim == 4:
        expected = expected.transpose(0, 3, 1, 2)
    scaled = ds.scaled(x)
    assert scaled.dtype == np.float32
    assert scaled.flags.c_contiguous
    np.testing.assert_allclose(scaled, expected, rtol=1e-5, atol=1e-5)


def test_unit_scale_goes_from_0_to_1():
    grey = np.array([[[0, 255]], [[51, 102]]], dtype=np.uint8)
    assert ds.scaled(grey, "unit").dtype == np.float32
    np.testing.assert_allclose(ds.scaled(grey, "unit"), [[[0, 1]], [[0.2, 0.4]]], rtol=1e-6)
    np.testing.assert_array_equal(ds.scaled(np.full((2, 3), 7.0), "unit"), np.zeros((2, 3)))
    colour = np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3)
    assert ds.scaled(colour, "unit").shape == (1, 3, 2, 4)
    assert ds.scaled(colour, "unit")[0, 1, 0, 2] == pytest.approx(7 / 23)
    assert list(ds.SCALES) == ["standardise", "unit"]
