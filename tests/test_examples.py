"""The examples and the blocks of docs/EXTENDING.md run as they stand, in an empty folder with the example package."""

import re
import runpy
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toy
import yaml

import cgpfl
from cgpfl import datasets, partition
from cgpfl.experiment import load
from cgpfl.methods import method_named
from cgpfl.results import Store
from cgpfl.training import Training

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "examples/own_package"
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "docs/EXTENDING.md").read_text(encoding="utf-8"), flags=re.DOTALL)
FILE = re.compile(r"# ([\w/]+\.\w+)\n")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    shutil.copytree(PACKAGE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypackage"]:
        del sys.modules[name]


def test_the_script_compares_two_methods(folder, capsys):
    runpy.run_path(str(ROOT / "examples/compare_methods.py"))
    assert (folder / "compare_methods.png").stat().st_size > 0
    assert re.findall(r"^\w+", capsys.readouterr().out, flags=re.MULTILINE) == ["fedavg", "cgpfl"]


def test_files_that_the_page_shows_are_those_of_the_package():
    shown = {match[1]: text[match.end() :] for _, text in BLOCKS if (match := FILE.match(text))}
    assert set(shown) == {"mypackage/nets.py", "mypackage/fl.py", "own.yaml", "pyproject.toml"}
    for file, text in shown.items():
        assert text in (PACKAGE / file).read_text(encoding="utf-8")
    assert len(shown["mypackage/fl.py"].splitlines()) < 40


def test_the_pages_python_runs(folder, capsys, monkeypatch):
    monkeypatch.setattr(datasets, "_KINDS", dict(datasets._KINDS))
    names: dict[str, Any] = {"read_somehow": lambda path: (np.eye(4), [0, 1, 0, 1])}
    for kind, text in BLOCKS:
        if kind == "python" and not FILE.match(text):
            exec(compile(text, "EXTENDING", "exec"), names)
    assert list(names["result"].history["round"].unique()) == [1, 2, 3, 4, 5]
    assert "accuracy" in capsys.readouterr().out
    found = datasets.prepare("mine", folder / "out.npz", kind="npz", path=folder / "mine.npz")
    assert (found.classes, found.client.max()) == (("1", "2", "3"), 3)
    assert datasets.prepare("mine", folder / "out.npz", kind="my_kind", path=folder).classes == ("0", "1")


def test_the_pages_datasets_can_be_configured(folder):
    np.savez("mine.npz", x=np.ones((8, 2)), y=[0, 1] * 4, client=[0, 0, 0, 0, 1, 1, 1, 1])
    Path("photos.zip").touch()
    [given] = [yaml.safe_load(text) for kind, text in BLOCKS if kind == "yaml" and not FILE.match(text)]
    experiment = load({**yaml.safe_load(Path("own.yaml").read_text()), "models": ["mlr"], **given})
    assert [dataset.clients for dataset in experiment.datasets] == [None, 2]


def test_the_example_experiment_trains_the_example_model_and_method(folder):
    experiment = load(yaml.safe_load(Path("own.yaml").read_text()))
    assert {(job.model, job.method) for job in experiment.jobs} == {
        (model, method) for model in ("mlr", "make_net") for method in ("fedavg", "my_fedprox")
    }
    digits = datasets.prepare("digits", folder / "digits.npz")
    options = experiment.partition.model_dump(exclude_none=True)
    parts = {seed: partition.of_dataset(digits, seed=seed, **options) for seed in experiment.seeds}
    job = experiment.job("digits", "make_net", "my_fedprox")
    training = Training(job, {**experiment.training.model_dump(), "rounds": 1}, digits, parts)
    assert training.complete(Store(folder / "store"), threads=1) == 4
    assert (training.gather(Store(folder / "store"))["history"]["accuracy"] > 0.1).all()


def test_the_example_method_is_fedprox():
    settings = {"rounds": 3, "params": {"mu": [0.0, 0.5], "lr": 0.1}, "batch_size": 4, "model": "dnn"}
    ours = cgpfl.simulate(toy.clients(0), method="fedprox", **settings)
    theirs = cgpfl.simulate(toy.clients(0), method="mypackage.fl:MyFedProx", **settings)
    assert torch.equal(ours.state["global"], theirs.state["global"])


def test_the_example_method_is_found_by_its_entry_point(folder, monkeypatch):
    """As installed: the package's entry points stand in its metadata."""
    [(group, points)] = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"].items()
    about = folder / "mypackage-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mypackage\nVersion: 0.1.0\n")
    lines = [f"[{group}]", *(f"{name} = {path}" for name, path in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(folder)
    assert method_named("my_fedprox").summary == "FedAvg with a proximal term"
    config = yaml.safe_load(Path("own.yaml").read_text())
    assert {job.method for job in load({**config, "methods": ["my_fedprox"]}).jobs} == {"my_fedprox"}
