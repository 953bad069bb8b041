"""The README's Python runs as it stands."""

import re
from pathlib import Path
from typing import Any

import torch

import cgpfl
from cgpfl import datasets
from cgpfl.methods import METHODS

README = Path(__file__).parents[1] / "README.md"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_api_example_runs(capsys):
    names: dict[str, Any] = {}
    exec(compile(blocks()[0], "README", "exec"), names)
    assert names["result"].state["personal"].shape == (4, 8, 2 * 5 + 2)
    assert "personal" in capsys.readouterr().out


def test_the_new_method_trains_and_is_fedavg_at_mu_zero(monkeypatch):
    names: dict[str, Any] = {}
    exec(compile(blocks()[1], "README", "exec"), names)
    monkeypatch.setitem(METHODS, "fedprox", names["FedProx"]())
    generator = torch.Generator().manual_seed(0)
    arrays = []
    for count in (5, 9):
        x, y = torch.randn(count, 4, generator=generator), torch.arange(count) % 2
        arrays.append((x, y, x, y))
    clients = cgpfl.ClientData.from_arrays(arrays)
    prox = cgpfl.simulate(clients, method="fedprox", rounds=3, params={"mu": [0.0, 5.0], "lr": 0.1})
    plain = cgpfl.simulate(clients, method="fedavg", rounds=3, params={"lr": 0.1})
    assert torch.equal(prox.state["global"][0], plain.state["global"][0])
    moved = (prox.state["global"] - prox.initial).norm(dim=1)
    assert moved[1] < moved[0]


def test_the_new_kind_of_data_can_be_prepared(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_KINDS", dict(datasets._KINDS))
    x = torch.arange(6 * 4).reshape(6, 2, 2).to(torch.uint8).numpy()
    names: dict[str, Any] = {"read_somehow": lambda path: (x, [0, 1, 2, 0, 1, 2])}
    exec(compile(blocks()[2], "README", "exec"), names)
    (tmp_path / "there").touch()
    made = datasets.prepare("mine", tmp_path / "mine.npz", kind="my_kind", path=tmp_path / "there")
    assert made.x.shape == (6, 2, 2)
    assert made.classes == ("0", "1", "2")
