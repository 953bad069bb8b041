"""What can be checked of the GPU path without a GPU: the local loop never waits for the device, and the captured
call works on its own buffers."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import cgpfl
from cgpfl import capture
from cgpfl.rounds import Round
from cgpfl.simulation import Simulation

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal.default")
HOST = ("arange", "randint", "randperm", "lift_fresh", "from_file")


SIZE = {"hidden": 2}


class Recorder(TorchDispatchMode):
    """Names of all operators."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.add(str(func))
        return func(*args, **(kwargs or {}))


def clients():
    rng = np.random.default_rng(0)
    arrays = [
        (rng.normal(size=(n, 6)), rng.integers(0, 3, n), rng.normal(size=(4, 6)), np.arange(4) % 3) for n in (3, 9)
    ]
    return cgpfl.ClientData.from_arrays(arrays, contexts=[0, 1], classes=3)


@pytest.mark.parametrize("method", list(cgpfl.methods()))
@pytest.mark.parametrize("path", ["auto", "generic"])
def test_the_local_loop_neither_waits_for_the_device_nor_builds_indices(method, path, monkeypatch):
    recorder = Recorder()

    def recorded(self, call, items):
        with recorder:
            return [call(item) for item in items]

    local, minibatches, plain = Round.local, Simulation.minibatches, Simulation.map

    def only_local(self, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(Simulation, "map", recorded)
            local(self, *args, **kwargs)

    def drawn(self, *args):  # once a round, before the loop
        with monkeypatch.context() as patch:
            patch.setattr(Simulation, "map", plain)
            return minibatches(self, *args)

    monkeypatch.setattr(Simulation, "minibatches", drawn)
    monkeypatch.setattr(Round, "local", only_local)
    params = {"contexts": 2} if method in ("cgpfl", "ifca") else {}
    cgpfl.simulate(
        clients(), "dnn", method, rounds=2, params=params, batch_size=4, path=path, model_args=SIZE, device="cpu"
    )
    assert recorder.names, "nothing was recorded"
    forbidden = [name for name in recorder.names if any(word in name for word in (*WAITS, *HOST))]
    assert not forbidden


class Graph:
    """Stands for torch.cuda.CUDAGraph: replays what was called between its begin and end."""

    recorded = None

    def replay(self):
        Graph.recorded()


@pytest.fixture
def no_gpu_needed(monkeypatch):
    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda chosen: contextlib.nullcontext(),
        "CUDAGraph": Graph,
        "graph": lambda graph: contextlib.nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)


def test_a_captured_call_reads_new_inputs_and_writes_only_the_given_rows(no_gpu_needed):
    def call(inputs, rows):
        Graph.recorded = lambda: rows[0].add_(inputs[0])
        rows[0].add_(inputs[0])

    first = torch.zeros(3)
    graph = capture.Captured(call, [torch.ones(3)], [first])
    assert torch.equal(first, torch.zeros(3)), "capturing changes nothing of the caller's"
    graph([torch.tensor([1.0, 2.0, 3.0])], [first])
    assert torch.equal(first, torch.tensor([1.0, 2.0, 3.0]))
    second = torch.full((3,), 10.0)
    graph([torch.ones(3)], [second])
    assert torch.equal(second, torch.full((3,), 11.0))
    assert torch.equal(first, torch.tensor([1.0, 2.0, 3.0]))
