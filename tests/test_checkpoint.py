"""A checkpoint is resumed on what it was made of, and ignored otherwise."""

from dataclasses import replace

import pytest
import torch

import cgpfl
from cgpfl.checkpoint import Checkpoint


class KilledError(Exception):
    pass


def clients():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, generator=generator), torch.arange(12) % 2
    return cgpfl.ClientData.from_pool(x, y, [range(4), range(4, 8)], [[8, 9], [10, 11]])


def losses(data, path=None, progress=None):
    return cgpfl.simulate(
        data, method="local", rounds=6, params={"lr": 0.1}, checkpoint=path, progress=progress, device="cpu"
    ).history["loss"]


def killed_after(rounds):
    def progress(done, of, accuracy):
        if done == rounds:
            raise KilledError

    return progress


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoint, "SECONDS", 0.0)
    file = tmp_path / "run.pt"
    with pytest.raises(KilledError):
        losses(clients(), file, killed_after(4))
    assert file.exists()
    return file


def test_the_same_runs_go_on_where_they_were(path):
    rounds = []
    resumed = losses(clients(), path, lambda done, of, accuracy: rounds.append(done))
    assert rounds == [4, 5, 6]
    assert resumed.equals(losses(clients()))
    assert not path.exists()


@pytest.mark.parametrize("change", [lambda d: {"x": -3 * d.x}, lambda d: {"y": 1 - d.y}])
def test_other_data_start_anew(path, change):
    data = clients()
    other = replace(data, **change(data))
    assert losses(other, path).equals(losses(other))


@pytest.mark.parametrize("content", [b"half a file", 5, {"signature": 1}, {"signature": None, "state": {}}])
def test_a_file_of_anything_else_is_ignored(tmp_path, content):
    file = tmp_path / "run.pt"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    assert losses(clients(), file).equals(losses(clients()))


def test_a_file_with_states_of_another_version_is_ignored(path):
    kept = torch.load(path, weights_only=False)
    torch.save({**kept, "state": {**kept["state"], "new": torch.zeros(1)}}, path)
    assert losses(clients(), path).equals(losses(clients()))


def test_data_that_changed_seeds_start_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(Checkpoint, "SECONDS", 0.0)
    both = [clients(), replace(clients(), y=1 - clients().y)]

    def trained(data, **settings):
        return cgpfl.simulate(dict(enumerate(data)), method="local", rounds=6, seeds=[0, 1], device="cpu", **settings)

    file = tmp_path / "run.pt"
    with pytest.raises(KilledError):
        trained(both, checkpoint=file, progress=killed_after(4))
    swapped = trained(both[::-1], checkpoint=file)
    assert swapped.history["loss"].equals(trained(both[::-1]).history["loss"])
