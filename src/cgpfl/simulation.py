"""The round loop: many runs of one method at once, every client of every run a row.

A run is a seed and a set of hyperparameters. Runs that differ only in numbers such as lr or lam are one batch;
their clients' models are rows [runs x clients, d]. Local training and testing work through the rows in blocks that
fit the processor's cache, on one thread each, so that neither the number of threads nor the company of other runs
can change a run's numbers.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from cgpfl.capture import Call, Captured
from cgpfl.clients import (
    ADAPTATION,
    PARTICIPATION,
    TRAIN_LOSS,
    TRAINING,
    Batch,
    ClientData,
    Ragged,
    Streams,
    host_generator,
    permuted,
    stream_keys,
)
from cgpfl.errors import UserError
from cgpfl.methods import Method, method_named, resolve_params
from cgpfl.methods.base import State, Tested
from cgpfl.models import Net, as_net, build_model, initial_row

T = TypeVar("T")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
# Bytes of models and minibatches (training) or of samples (testing) that a block of rows may hold on a CPU: with
# them in the second and third level cache, each block goes through all its local steps before the next.
CACHE_BYTES = 6 << 20
TEST_BYTES = 8 << 20
GPU_TEST_BYTES = 1 << 30


@dataclass(frozen=True)
class RunSpec:
    """One run: a seed and all hyperparameters (see ``resolve_params``)."""

    seed: int
    params: Mapping[str, Any]


@dataclass(frozen=True)
class Settings:
    """What all runs of a call share; see ``train`` for meaning, ranges and defaults."""

    rounds: int
    batch_size: int | str = 20
    participation: float = 1.0
    dtype: str = "float32"
    device: str = "auto"
    threads: int = 1
    eval_every: int = 1
    train_loss_samples: int | None = None
    memory_gb: float = 4.0
    path: str = "auto"

    def __post_init__(self) -> None:
        for key in ("rounds", "threads", "eval_every"):
            _whole(key, getattr(self, key))
        if self.batch_size != "full":
            _whole("batch_size", self.batch_size, "a whole number of 1 or more, or 'full'")
        if self.train_loss_samples is not None:
            _whole("train_loss_samples", self.train_loss_samples)
        if not _number(self.participation) or not 0 < self.participation <= 1:
            raise UserError(f"participation: {self.participation!r} given, valid is a number above 0 and at most 1")
        if not _number(self.memory_gb) or not self.memory_gb > 0:
            raise UserError(f"memory_gb: {self.memory_gb!r} given, valid is a number above 0")
        if self.dtype not in DTYPES:
            raise UserError(f"dtype: {self.dtype!r} given, valid are {', '.join(DTYPES)}")
        if self.path not in ("auto", "generic"):
            raise UserError(f"path: {self.path!r} given, valid are auto, generic")
        self.torch_device  # noqa: B018  raises for a device that is not there

    @property
    def torch_device(self) -> torch.device:
        name = ("cuda" if torch.cuda.is_available() else "cpu") if self.device == "auto" else self.device
        if name == "cpu" or (name.split(":")[0] == "cuda" and torch.cuda.is_available()):
            return torch.device(name)
        raise UserError(
            f"device: {self.device!r} given, valid here are auto, cpu" + ", cuda" * torch.cuda.is_available()
        )


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _whole(key: str, value: Any, valid: str = "a whole number of 1 or more") -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{key}: {value!r} given, valid is {valid}")


@dataclass
class Result:
    """What a call of ``simulate`` or ``train`` found.

    Attributes:
        runs: one row a run: run, seed, hyperparameters, d, cost of a round, seconds.
        history: one row a (run, evaluated round, tested model).
        assignments, clustering, heuristic: contexts of the clients, k-means and e(K) by round, where the method
            has them; empty otherwise.
        initial: initial models [runs, d] ([runs, K, d] for ifca).
        state: final models by name: "personal" and "local" [runs, clients, d], "global" [runs, d], "contexts"
            [runs, K, d] (NaN beyond a run's own K), "assignment" [runs, clients].
    """

    runs: pd.DataFrame
    history: pd.DataFrame
    assignments: pd.DataFrame
    clustering: pd.DataFrame
    heuristic: pd.DataFrame
    initial: Tensor | None = None
    state: dict[str, Tensor] = field(default_factory=dict)


# --- blocks of rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """Some clients of some runs: what a method's local code works on, in one thread.

    Indexing gives a hyperparameter as a column [rows, 1]: ``block["lr"]``.
    """

    sim: Simulation
    run: Tensor  # int64 [rows]
    client: Tensor  # int64 [rows]
    streams: Streams | None = None
    active: Sequence[Tensor] = ()  # [rows, 1] a step: 1 where the step counts, 0 where it is skipped
    steps: int = 0
    round: int = 0

    @property
    def net(self) -> Net:
        return self.sim.net

    def __getitem__(self, name: str) -> Tensor:
        return self.sim.hyper[name][self.run]

    @property
    def l2(self) -> Tensor | None:
        """Column of l2, None where it is 0 for all rows of this call."""
        return self["l2"] if self.sim.regularised else None

    @property
    def data_row(self) -> Tensor:
        return self.sim.data_rows(self.run, self.client)

    def own(self, x: Tensor) -> Tensor:
        """Each row's own part of a client state [runs, clients, ...]."""
        return x.flatten(0, 1)[self.run * self.sim.clients + self.client]

    def server(self, x: Tensor) -> Tensor:
        """Each row's run's part of a server state [runs, d]."""
        return x[self.run]

    def picked(self, models: Tensor, assignment: Tensor) -> Tensor:
        """models[run, assignment[run, client]] for each row, from [runs, K, d] and [runs, clients]."""
        return models.flatten(0, 1)[self.run * models.shape[1] + self.own(assignment)]

    def batches(self) -> Iterator[Batch]:
        """The minibatches of these rows, one after the other."""
        assert self.streams is not None
        data, index = self.sim.data, self.streams.index
        weight = self.streams.weight.to(data.x.dtype)
        rows, distinct, width = index.shape
        batch = None
        for step in range(self.steps):
            if batch is None or distinct > 1:
                flat = index[:, step].reshape(-1)
                x = data.x.index_select(0, flat).view(rows, width, *data.input_shape)
                batch = Batch(x, data.y.index_select(0, flat).view(rows, width), weight)
            yield batch

    def adapting(self, steps: int) -> Block:
        """These rows with ``steps`` minibatches of training data that are used for nothing else, for models that
        are adapted before they are tested."""
        steps_drawn = max(steps, 1)
        streams = self.sim.minibatches(self.run, self.client, self.round * steps_drawn, steps_drawn, ADAPTATION)
        return Block(self.sim, self.run, self.client, streams, steps=steps, round=self.round)


# --- a batch of runs --------------------------------------------------------------------------------------------


class Simulation:
    """Runs that are computed as one batch, and what a method needs to know of them.

    Attributes:
        runs, clients: numbers R of runs and N of clients. net: the model. initial: [runs, d].
        hyper: numeric hyperparameters as columns [runs, 1]. static: hyperparameters all runs share.
    """

    def __init__(
        self,
        method: Method,
        specs: Sequence[RunSpec],
        data: ClientData,
        partition: Sequence[int],
        build: Callable[[], torch.nn.Module],
        settings: Settings,
        executor: ThreadPoolExecutor,
    ):
        self.method, self.specs, self.data, self.settings = method, specs, data, settings
        self.device, self.dtype = data.x.device, data.x.dtype
        self.runs, self.clients = len(specs), data.clients // (max(partition) + 1)
        self.net = as_net(build, self.device, settings.path)
        self.seeds = torch.tensor([spec.seed for spec in specs], device=self.device)
        self.partition = torch.tensor(partition, device=self.device)
        names = [param.name for param in method.parameters]
        self.static = {param.name: specs[0].params[param.name] for param in method.parameters if not param.column}
        self.hyper = {
            name: self.tensor([spec.params[name] for spec in specs]).unsqueeze(1)
            for name in names
            if all(isinstance(spec.params[name], int | float) for spec in specs)
        }
        self.regularised = specs[0].params["l2"] != 0
        self._build, self._executor = build, executor
        self._scratch: dict[str, Tensor] = {}
        self._graphs: dict[tuple[tuple[int, ...], ...], Captured] = {}
        self.records: dict[str, list[pd.DataFrame]] = defaultdict(list)
        self.now = 0  # the current round, 1..rounds
        self.initial = self.tensor(torch.stack([initial_row(build, spec.seed) for spec in specs]))

    # what methods use to set up their state

    def tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(values, device=self.device, dtype=self.dtype)

    def to_clients(self, x: Tensor) -> Tensor:
        """A server state [runs, d] as every client's own copy [runs, clients, d]."""
        return x.unsqueeze(1).repeat(1, self.clients, 1)

    def independent_inits(self, count: int, draw: int) -> Tensor:
        """``count`` independent initial models a run [runs, count, d]; ``draw`` numbers independent sets."""
        seeds = [[_init_seed(spec.seed, draw, k) for k in range(count)] for spec in self.specs]
        return self.tensor(torch.stack([torch.stack([initial_row(self._build, s) for s in row]) for row in seeds]))

    @property
    def true_contexts(self) -> Tensor:
        """The partition's contexts, int64 [runs, clients]."""
        if self.data.contexts is None:
            raise UserError(
                f"{self.method.name}: the clients have no true contexts; give contexts=[...], or a "
                "partition scheme that has them (cyclic, random, contexts)"
            )
        return self.data.contexts.view(-1, self.clients)[self.partition]

    # rows and blocks

    def data_rows(self, run: Tensor, client: Tensor) -> Tensor:
        """Position of (run, client) in the stacked client data."""
        return self.partition[run] * self.clients + client

    @cached_property
    def everyone(self) -> tuple[Tensor, Tensor]:
        """Run and client of every row."""
        run = torch.arange(self.runs, device=self.device).repeat_interleave(self.clients)
        return run, torch.arange(self.clients, device=self.device).repeat(self.runs)

    def map(self, call: Callable[[T], Any], items: Sequence[T]) -> list[Any]:
        """``call`` on every item, in the threads of this job."""
        if self.settings.threads == 1 or len(items) == 1:
            return [call(item) for item in items]
        return list(self._executor.map(call, items))

    def each_run(self, call: Callable[[int], T]) -> list[T]:
        """``call`` on the number of each run (for work that a library does one run at a time)."""
        return self.map(call, range(self.runs))

    def scratch(self, name: str, rows: int) -> Tensor:
        """Working memory [rows, d] that keeps its place between rounds; its content is whatever was left there."""
        if name not in self._scratch or len(self._scratch[name]) != rows:
            self._scratch[name] = torch.empty(rows, self.net.size, device=self.device, dtype=self.dtype)
        return self._scratch[name]

    def replay(self, call: Call, inputs: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
        """``call(inputs, rows)`` on the GPU, captured at its first use and replayed for the same shapes later."""
        key = tuple(tuple(x.shape) for x in (*inputs, *rows))
        if key not in self._graphs:
            self._graphs[key] = Captured(call, inputs, rows)
        self._graphs[key](inputs, rows)

    def minibatches(self, run: Tensor, client: Tensor, first: int, steps: int, purpose: int) -> Streams:
        """Steps ``first``, ``first`` + 1, ... of the training minibatches of the given rows."""
        rows = self.data_rows(run, client)
        if self.settings.batch_size == "full":
            return Streams.full(self.data.train, rows, self.width)
        keys = stream_keys(self.seeds[run].cpu(), client.cpu(), purpose)
        return Streams.sampled(self.data.train, rows, keys, first, steps, int(self.settings.batch_size), self.width)

    @cached_property
    def width(self) -> int:
        """Samples of the largest minibatch, to which the others are padded."""
        return _width(self.data, self.settings)

    # testing

    def train_losses(self, models: dict[Any, Callable[[Block], Tensor]]) -> dict[Any, Tensor]:
        """Mean loss of each model on each client's training data, [runs, clients]."""
        sums = self._tested(models, [self.data.train])
        counts = self.data.train.counts[self.data_rows(*self.everyone)].view(self.runs, -1)
        return {name: losses[0] / counts for name, (_, losses) in sums.items()}

    def _tested(self, models: dict[Any, Callable[[Block], Tensor]], lists: Sequence[Ragged]) -> dict[Any, Any]:
        """For each model, correct answers and summed losses on each list of samples, [lists, runs, clients]."""
        order, bounds = self._test_blocks(tuple(lists))
        sums = {
            name: torch.zeros(2, len(lists), len(order), dtype=torch.float64, device=self.device) for name in models
        }

        def test(start_stop: tuple[int, int]) -> None:
            rows = order[slice(*start_stop)]
            block = Block(self, self.everyone[0][rows], self.everyone[1][rows], round=self.now)
            tested = {name: self.net.rows(provide(block)) for name, provide in models.items()}
            data_rows = block.data_row
            for place, samples in enumerate(lists):
                index, real = samples.padded(data_rows, int(_test_width(samples.counts[data_rows[0]])))
                x = self.data.x[index]
                y = self.data.y[index]
                for name, w in tested.items():
                    logits = self.net.logits(w, x)
                    losses = cross_entropy(logits, y, reduction="none")
                    best = logits.max(1)
                    right = (best.indices == y) & torch.isfinite(best.values) & real
                    sums[name][0, place, rows] = right.sum(1).to(torch.float64)
                    sums[name][1, place, rows] = losses.to(torch.float64).where(real, 0).sum(1)

        self.map(test, bounds)
        return {name: both.view(2, len(lists), self.runs, self.clients) for name, both in sums.items()}

    def _test_blocks(self, lists: tuple[Ragged, ...]) -> tuple[Tensor, list[tuple[int, int]]]:
        """An order of the rows by number of samples, cut into blocks whose rows are padded to the same width as each of
        them would be alone: the last digits of a matrix product depend on its size."""
        key = tuple(id(samples) for samples in lists)
        if key not in self._blocks:
            data_rows = self.data_rows(*self.everyone)
            widths = torch.stack([_test_width(samples.counts[data_rows]) for samples in lists]).cpu().numpy()
            order = np.lexsort(widths)
            widths = widths[:, order]
            numbers = widths.max(0) * math.prod(self.data.input_shape) + 2 * self.net.size
            limit = (TEST_BYTES if self.device.type == "cpu" else GPU_TEST_BYTES) / self.data.x.element_size()
            bounds = _cut(np.stack([*widths, (numbers.cumsum() / limit).astype(np.int64)]))
            self._blocks[key] = torch.from_numpy(order).to(self.device), bounds
        return self._blocks[key]

    @cached_property
    def _blocks(self) -> dict[tuple[int, ...], tuple[Tensor, list[tuple[int, int]]]]:
        return {}

    @cached_property
    def train_loss_lists(self) -> Ragged:
        """Each client's training samples, or a fixed draw of at most ``train_loss_samples`` of them."""
        most, lists = self.settings.train_loss_samples, self.data.train
        if most is None or int(lists.counts.max()) <= most:
            return lists
        counts = lists.counts.clamp(max=most)
        row = torch.arange(len(counts), device=self.device).repeat_interleave(counts)
        start = counts.cumsum(0) - counts
        position = torch.arange(len(row), device=self.device) - start[row]
        keys = stream_keys(0, (row % self.clients).cpu(), TRAIN_LOSS)
        drawn = permuted(position.cpu().numpy(), lists.counts[row].cpu().numpy(), keys).astype(np.int64)
        place = torch.from_numpy(drawn).to(self.device).where(lists.counts[row] > most, position)
        return Ragged(lists.values[lists.offsets[row] + place], start, counts)

    def evaluate(self, state: State) -> pd.DataFrame:
        """History rows of the current round: one a run and tested model."""
        models: Tested = self.method.models(self, state)
        lists = [self.data.test, self.train_loss_lists]
        counts = [samples.counts[self.data_rows(*self.everyone)].view(self.runs, -1).cpu().numpy() for samples in lists]
        tested = self._tested(models, lists)
        return pd.concat([self._metrics(name, tested[name].cpu().numpy(), counts) for name in self.method.tested])

    def _metrics(self, name: str, sums: NDArray[np.float64], counts: Sequence[NDArray[np.int64]]) -> pd.DataFrame:
        correct, loss = sums
        by_client = correct[0] / counts[0]
        worst = np.sort(by_client, axis=1)[:, : math.ceil(self.clients / 10)]
        test_loss = loss[0].sum(1) / counts[0].sum(1)
        return pd.DataFrame(
            {
                "run": np.arange(self.runs),
                "seed": [spec.seed for spec in self.specs],
                "round": self.now,
                "tested": name,
                "headline": name == self.method.headline,
                "accuracy": correct[0].sum(1) / counts[0].sum(1),
                "accuracy_client_mean": by_client.mean(1),
                "accuracy_client_std": by_client.std(1),
                "accuracy_worst_decile": worst.mean(1),
                "loss": test_loss,
                "train_loss": loss[1].sum(1) / counts[1].sum(1),
                "diverged": ~np.isfinite(test_loss),
            }
        )

    # records beside the history

    def record(self, kind: str, facts: Sequence[Mapping[str, Any]]) -> None:
        """One row a run and round."""
        self.records[kind].append(pd.DataFrame({"run": range(self.runs), "round": self.now, **_columns(facts)}))

    def record_run(self, kind: str, run: int, facts: Mapping[str, Any]) -> None:
        """One row for one run in this round."""
        self.records[kind].append(pd.DataFrame({"run": [run], "round": [self.now], **_columns([facts])}))

    def record_assignment(self, assignment: Tensor) -> None:
        run, client = (x.cpu().numpy() for x in self.everyone)
        context = assignment.flatten().cpu().numpy().astype(np.int16)
        columns = {"run": run, "round": self.now, "client": client.astype(np.int32), "context": context}
        self.records["assignments"].append(pd.DataFrame(columns))


def _columns(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for fact in facts for name in fact)
    return {name: [fact.get(name, float("nan")) for fact in facts] for name in names}


def _init_seed(seed: int, draw: int, k: int) -> int:
    """Seed of model k of a set; the first of the first set is the one that the run's other models start from."""
    return seed if draw == k == 0 else int(np.random.SeedSequence([seed, draw, k]).generate_state(1)[0])


def _cut(labels: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Start and stop of each stretch of equal columns of [labels, columns]."""
    edges = np.flatnonzero(np.diff(labels).any(0)) + 1
    return list(pairwise([0, *edges.tolist(), labels.shape[1]]))


def _test_width(counts: Tensor) -> Tensor:
    """Numbers of samples rounded up to a multiple of 8, from 64 on to an eighth of the power of two below."""
    step = 2 ** (torch.log2(counts.to(torch.float64)).floor() - 3).clamp(min=3)
    return (torch.ceil(counts / step) * step).to(torch.int64)


# --- a round ----------------------------------------------------------------------------------------------------


class Round:
    """One communication round: who takes part, and the steps a method is made of.

    Rows [rows, d] below are those of the participants, rows = runs x participants, one run after the other.
    """

    def __init__(self, sim: Simulation, index: int):
        self.sim, self.index = sim, index
        self.count = max(1, round(sim.settings.participation * sim.clients))
        self.all = self.count == sim.clients
        self.run, self.client = sim.everyone if self.all else self._drawn()

    def _drawn(self) -> tuple[Tensor, Tensor]:
        draws = {
            seed: np.sort(
                host_generator(seed, PARTICIPATION, self.index).choice(self.sim.clients, self.count, replace=False)
            )
            for seed in {spec.seed for spec in self.sim.specs}
        }
        clients = np.concatenate([draws[spec.seed] for spec in self.sim.specs])
        run = torch.arange(self.sim.runs, device=self.sim.device).repeat_interleave(self.count)
        return run, torch.from_numpy(clients).to(self.sim.device)

    @property
    def _rows(self) -> Tensor:
        return self.run * self.sim.clients + self.client

    # between clients' or server states and rows

    def take(self, x: Tensor) -> Tensor:
        """The participants' rows of a client state [runs, clients, d]: a view of it if everyone takes part."""
        return x.flatten(0, 1) if self.all else x.flatten(0, 1)[self._rows]

    def put(self, x: Tensor, rows: Tensor) -> None:
        """Write the participants' rows back; nothing to do for what ``take`` gave as a view."""
        if not self.all:
            x.flatten(0, 1)[self._rows] = rows

    def take_labels(self, assignment: Tensor) -> Tensor:
        """The participants' contexts, int64 [runs, participants]."""
        return self.take(assignment.unsqueeze(-1)).view(self.sim.runs, -1)

    def put_labels(self, assignment: Tensor, labels: Tensor) -> None:
        assignment.view(-1)[self._rows] = labels.view(-1)

    def broadcast(self, server: Tensor, out: Tensor | None = None) -> Tensor:
        """Every participant's own copy of its run's server model [runs, d]."""
        return self._copied(server, self.run, out)

    def pick(self, models: Tensor, assignment: Tensor, out: Tensor | None = None) -> Tensor:
        """Every participant's own copy of the server model it is assigned to, from [runs, K, d]."""
        chosen = self.run * models.shape[1] + assignment.view(-1)[self._rows]
        return self._copied(models.flatten(0, 1), chosen, out)

    def _copied(self, models: Tensor, chosen: Tensor, out: Tensor | None) -> Tensor:
        out = self.sim.scratch("broadcast", len(self.run)) if out is None else out
        parts = [slice(*bounds) for bounds in self._blocks(0)]
        self.sim.map(lambda part: torch.index_select(models, 0, chosen[part], out=out[part]), parts)
        return out

    # local training

    def local(
        self,
        call: Callable[..., None],
        *rows: Tensor,
        steps: tuple[int, int] | None = None,
        per_step: int = 1,
        active: NDArray[np.bool_] | None = None,
    ) -> None:
        """``call(block, *rows of the block)`` on every block of participants.

        Args:
            rows: tensors [rows, ...] that the call changes in place.
            per_step: minibatches a local step; a round has local_steps of these.
            steps: first and last (excluded) minibatch of the round, for a method that trains in several goes; a
                round then has local_steps + 1 of these.
            active: bool [runs, steps], which runs take each step.
        """
        length = self.sim.static["local_steps"] * per_step if steps is None else self.sim.static["local_steps"] + 1
        start, stop = steps or (0, length)
        streams, stream_of_row = self._streams((self.index - 1) * length + start, stop - start)
        columns = [] if active is None else [self.sim.tensor(step)[self.run].unsqueeze(1) for step in active.T]
        inputs = (streams.index[stream_of_row], streams.weight[stream_of_row], *columns)

        def work(part: slice, inputs: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
            index, weight, *own = inputs
            streams = Streams(index, weight)
            block = Block(self.sim, self.run[part], self.client[part], streams, own, stop - start, self.index)
            call(block, *rows)

        if self.sim.device.type == "cuda":
            self.sim.replay(partial(work, slice(None)), inputs, rows)
            return

        def work_on(bounds: tuple[int, int]) -> None:
            part = slice(*bounds)
            work(part, [x[part] for x in inputs], [x[part] for x in rows])

        self.sim.map(work_on, self._blocks(streams.index.shape[-1]))

    def _streams(self, first: int, steps: int) -> tuple[Streams, Tensor]:
        """Minibatches of each (seed, participant), and which of these each row has."""
        seeds = list(dict.fromkeys(spec.seed for spec in self.sim.specs))
        place = {seed: at for at, seed in enumerate(seeds)}
        runs = [spec.seed for spec in self.sim.specs]
        lead = torch.tensor([runs.index(seed) for seed in seeds], device=self.sim.device)
        rows = (lead.unsqueeze(1) * self.count + torch.arange(self.count, device=self.sim.device)).view(-1)
        streams = self.sim.minibatches(self.run[rows], self.client[rows], first, steps, TRAINING)
        of_run = torch.tensor([place[seed] for seed in runs], device=self.sim.device)
        slot = torch.arange(self.count, device=self.sim.device).repeat(self.sim.runs)
        return streams, of_run[self.run] * self.count + slot

    def _blocks(self, batch: int) -> list[tuple[int, int]]:
        """Cuts of the rows into blocks of equal size that fit the cache, as many as keep all threads busy."""
        rows = len(self.run)
        if self.sim.device.type != "cpu":
            return [(0, rows)]
        numbers = 2 * self.sim.net.size + 2 * batch * math.prod(self.sim.data.input_shape)
        fitting = max(1, CACHE_BYTES // (numbers * self.sim.data.x.element_size()))
        threads = self.sim.settings.threads
        blocks = min(rows, math.ceil(rows / fitting / threads) * threads)
        edges = np.linspace(0, rows, blocks + 1).round().astype(int).tolist()
        return list(pairwise(edges))

    # aggregation

    def samples(self, run: int) -> NDArray[np.float64]:
        """Training samples of each participant of a run."""
        part = slice(run * self.count, (run + 1) * self.count)
        rows = self.sim.data_rows(self.run[part], self.client[part])
        return self.sim.data.train.counts[rows].cpu().numpy().astype(np.float64)

    def average(self, rows: Tensor, weights: str) -> Tensor:
        """Mean over the participants of each run [runs, d]: "uniform", or by number of training "samples"."""
        if weights == "uniform":
            everyone = torch.zeros(self.sim.runs, self.count, dtype=torch.int64, device=self.sim.device)
            return self._sums(rows, everyone, 1).squeeze(1) / self.count
        counts = self.sim.data.train.counts[self.sim.data_rows(self.run, self.client)].view(self.sim.runs, 1, -1)
        share, uploads = self.sim.tensor(counts) / counts.sum(-1, keepdim=True), self._by_run(rows)
        return self._each_run(lambda run: torch.bmm(share[run, None], uploads[run, None])).squeeze(1)

    def average_by(self, rows: Tensor, members: Tensor, models: Tensor) -> Tensor:
        """Uniform mean of the members of each context [runs, K, d]; ``models`` [runs, K, d] where there are none.

        Args:
            members: context of each participant, int64 [runs, participants].
        """
        size = one_hot(members, models.shape[1]).sum(1).unsqueeze(-1)
        return torch.where(size > 0, self._sums(rows, members, models.shape[1]) / size.clamp(min=1), models)

    def _sums(self, rows: Tensor, groups: Tensor, number: int) -> Tensor:
        """Sum of the participants of each group [runs, number, d]; ``groups`` int64 [runs, participants]. On a CPU row
        is added to row: a matrix product's last digits depend on ``number``, and it reads every row for every group."""
        uploads = self._by_run(rows)
        if self.sim.device.type != "cpu":
            return torch.bmm(one_hot(groups, number).mT.to(rows.dtype), uploads)
        return self._each_run(
            lambda run: rows.new_zeros(1, number, rows.shape[1]).index_add_(1, groups[run], uploads[run, None])
        )

    def _by_run(self, rows: Tensor) -> Tensor:
        return rows.view(self.sim.runs, self.count, -1)

    def _each_run(self, call: Callable[[int], Tensor]) -> Tensor:
        return torch.cat(self.sim.each_run(call))

    def lerp_to(self, rows: Tensor, server: Tensor, weight: Tensor) -> None:
        """rows += weight * (server - rows), in place; server [runs, d], weight [runs, 1]."""
        rows.view(self.sim.runs, self.count, -1).lerp_(server.unsqueeze(1), weight.unsqueeze(1))


# --- running -----------------------------------------------------------------------------------------------------


def train(
    clients: ClientData | Mapping[int, ClientData],
    model: str,
    method: str,
    specs: Sequence[RunSpec],
    *,
    rounds: int,
    batch_size: int | str = 20,
    participation: float = 1.0,
    dtype: str = "float32",
    device: str = "auto",
    threads: int = 1,
    eval_every: int = 1,
    train_loss_samples: int | None = None,
    memory_gb: float = 4.0,
    path: str = "auto",
    model_args: Mapping[str, Any] | None = None,
    keep_state: bool = False,
    on_runs: Callable[[Result], None] | None = None,
    progress: Callable[[int, int, float], None] | None = None,
    checkpoint: Path | None = None,
) -> Result:
    """Train every run in ``specs`` with one method.

    Args:
        clients: the clients' data, one for all runs or one a seed.
        model: name of a model, with sizes in ``model_args``. method: name of a method.
        rounds: T >= 1. batch_size: b >= 1, or "full". participation: share of clients a round, in (0, 1].
        dtype: "float32" or "float64". device: "auto" (a GPU if there is one), "cpu", "cuda".
        threads: threads of this process that train, >= 1; does not change results.
        eval_every: rounds between evaluations, >= 1; the last round is always evaluated.
        train_loss_samples: training loss on at most this many samples a client (a fixed draw); None: on all.
        memory_gb: models of runs that are batched together take at most about this much.
        path: "generic" computes by the reference path instead of the fast one.
        keep_state: return final models.
        on_runs: called with the result of each batch of runs as soon as it is finished; ``runs["spec"]`` is the
            position in ``specs``.
        progress: called after each evaluation with rounds done, rounds in all (over all batches) and the mean
            accuracy of the headline model.
        checkpoint: file from which a batch that was killed is resumed, and which is removed when it is finished.

    Raises:
        UserError: for settings, parameters or data that do not fit together, before anything is trained.
    """
    settings = Settings(
        rounds,
        batch_size,
        participation,
        dtype,
        device,
        threads,
        eval_every,
        train_loss_samples,
        memory_gb,
        path,
    )
    chosen = method_named(method)
    if not specs:
        raise UserError("specs: the list of runs is empty")
    for spec in specs:
        if not isinstance(spec.seed, Integral) or isinstance(spec.seed, bool) or not 0 <= spec.seed < 2**63:
            raise UserError(f"seeds: {spec.seed!r} given, valid are whole numbers of 0 or more")
    by_seed = clients if isinstance(clients, Mapping) else {spec.seed: clients for spec in specs}
    missing = [spec.seed for spec in specs if spec.seed not in by_seed]
    if missing:
        raise UserError(f"clients: no data for seed {missing[0]}; given are {sorted(by_seed)}")
    count = next(iter(by_seed.values())).clients
    specs = [RunSpec(spec.seed, resolve_params(method, spec.params, model, count)) for spec in specs]
    data = _Data(by_seed, settings)
    build = partial(build_model, model, data.input_shape, data.classes, **(model_args or {}))
    size = len(initial_row(build, 0))
    what = "" if checkpoint is None else f"{model} {model_args} {path} {data.digest}"
    groups = _groups(chosen, specs, by_seed, count * size, settings)
    parts = []
    with single_threaded_ops(), ThreadPoolExecutor(settings.threads) as executor:
        for number, places in enumerate(groups):
            group = [specs[place] for place in places]
            stacked, partition = data.of([spec.seed for spec in group])
            sim = Simulation(chosen, group, stacked, partition, build, settings, executor)
            report = None if progress is None else partial(_offset, progress, number, len(groups))
            result = _run(sim, keep_state, report, checkpoint, what)
            result.runs.insert(1, "spec", places)
            if on_runs is not None:
                on_runs(result)
            parts.append(result)
    return _joined(parts, [place for places in groups for place in places])


def _offset(
    progress: Callable[[int, int, float], None], group: int, groups: int, done: int, of: int, acc: float
) -> None:
    progress(group * of + done, groups * of, acc)


class _Data:
    """Client data by seed, moved to the device once."""

    def __init__(self, by_seed: Mapping[int, ClientData], settings: Settings):
        self.by_seed = by_seed
        first = next(iter(by_seed.values()))
        self.input_shape, self.classes = first.input_shape, max(part.classes for part in by_seed.values())
        self._settings = settings
        self._moved: dict[tuple[int, ...], ClientData] = {}

    @property
    def digest(self) -> str:
        """A hash of all samples, labels and lists, so that a checkpoint is not resumed on other data."""
        sha = hashlib.sha256()
        tensors = [t for part in self.by_seed.values() for t in part.tensors]
        for tensor in {id(tensor): tensor for tensor in tensors}.values():
            sha.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return sha.hexdigest()

    def of(self, seeds: Sequence[int]) -> tuple[ClientData, list[int]]:
        """Stacked data of the given runs' seeds, and which part of it each run has."""
        distinct: list[ClientData] = []
        for seed in seeds:
            if not any(part is self.by_seed[seed] for part in distinct):
                distinct.append(self.by_seed[seed])
        places = [next(i for i, part in enumerate(distinct) if part is self.by_seed[seed]) for seed in seeds]
        key = tuple(id(part) for part in distinct)
        if key not in self._moved:
            stacked = ClientData.stack(distinct)
            self._moved = {key: stacked.to(self._settings.torch_device, DTYPES[self._settings.dtype])}
        return self._moved[key], places


def _width(data: ClientData, settings: Settings) -> int:
    most = int(data.train.counts.max())
    most = most if settings.batch_size == "full" else min(most, int(settings.batch_size))
    return max(2, most)  # a product with one sample is computed in another way where a row is alone in its block


def _groups(
    method: Method, specs: Sequence[RunSpec], by_seed: Mapping[int, ClientData], numbers: int, settings: Settings
) -> list[list[int]]:
    """Positions of the runs that are batched: equal in what a batch must share, and within the memory budget."""
    shared = [param.name for param in method.parameters if not param.column]
    by_static: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, spec in enumerate(specs):
        alike = (spec.params["l2"] == 0, _width(by_seed[spec.seed], settings))  # or a run's last digits would change
        by_static[(*alike, *(spec.params[name] for name in shared))].append(place)
    one = 4 * numbers * (8 if settings.dtype == "float64" else 4)  # up to three client states and working memory
    most = max(1, int(settings.memory_gb * 1e9 // one))
    return [places[at : at + most] for places in by_static.values() for at in range(0, len(places), most)]


@contextmanager
def single_threaded_ops() -> Iterator[None]:
    """Every torch, BLAS and k-means operation on one thread; parallelism is over blocks of rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


def _run(
    sim: Simulation,
    keep_state: bool,
    progress: Callable[[int, int, float], None] | None,
    checkpoint: Path | None,
    what: str,
) -> Result:
    """All rounds of one batch of runs."""
    began = time.perf_counter()
    rounds, every = sim.settings.rounds, sim.settings.eval_every
    state = sim.method.init(sim)
    saver = _Checkpoint(checkpoint, sim, what)
    done = saver.load(state)
    for index in range(done + 1, rounds + 1):
        sim.now = index
        sim.method.round(sim, state, Round(sim, index))
        if index % every == 0 or index == rounds:
            rows = sim.evaluate(state)
            sim.records["history"].append(rows)
            if progress is not None:
                progress(index, rounds, float(rows.loc[rows["headline"], "accuracy"].mean()))
        saver.save(state, index)
    result = _result(sim, state, time.perf_counter() - began, keep_state)
    saver.remove()
    return result


class _Checkpoint:
    """The state of a batch of runs on disk, written at most once a minute by rename."""

    SECONDS = 60.0

    def __init__(self, path: Path | None, sim: Simulation, what: str):
        self.path, self.sim = path, sim
        about = [
            what,
            sim.method.name,
            sim.settings.rounds,
            sim.settings.batch_size,
            sim.settings.participation,
            sim.settings.dtype,
            sim.settings.eval_every,
            sim.settings.train_loss_samples,
            [(spec.seed, sorted(spec.params.items())) for spec in sim.specs],
        ]
        self.signature = hashlib.sha256(repr(about).encode()).hexdigest()
        self.saved = time.monotonic()

    def load(self, state: State) -> int:
        """Fill ``state`` and the records from the file if it is of the same runs; the number of rounds done."""
        if self.path is None or not self.path.exists():
            return 0
        try:
            kept = torch.load(self.path, map_location=self.sim.device, weights_only=False)
        except Exception:  # half a file from a full disk, say: train from the start
            return 0
        if not isinstance(kept, dict) or kept.get("signature") != self.signature or set(kept["state"]) != set(state):
            return 0
        for name, value in kept["state"].items():
            state[name].copy_(value)
        self.sim.records.update(kept["records"])
        self.sim.initial = kept["initial"]
        return kept["round"]

    def save(self, state: State, index: int) -> None:
        if self.path is None or time.monotonic() - self.saved < self.SECONDS:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        kept = {
            "signature": self.signature,
            "round": index,
            "state": state,
            "records": dict(self.sim.records),
        }
        torch.save({**kept, "initial": self.sim.initial}, temporary)
        temporary.replace(self.path)
        self.saved = time.monotonic()

    def remove(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


FRAMES = ("history", "assignments", "clustering", "heuristic")


def _result(sim: Simulation, state: State, seconds: float, keep_state: bool) -> Result:
    frames = {name: _frame(sim.records[name]) for name in FRAMES}
    runs = pd.DataFrame([{"run": run, "seed": spec.seed, **spec.params} for run, spec in enumerate(sim.specs)])
    costs = [sim.method.cost(spec.params, sim.net.size) for spec in sim.specs]
    share = Round(sim, 1).count / sim.clients
    runs["parameters"] = sim.net.size
    runs["gradients_per_round"] = [cost.gradients * share for cost in costs]
    runs["sent_per_round"] = [cost.sent * share for cost in costs]
    runs["received_per_round"] = [cost.received * share for cost in costs]
    runs["seconds"] = seconds / sim.runs
    if "chosen" in state:
        runs["contexts_chosen"] = state["chosen"].numpy()
    gradients = runs["gradients_per_round"].to_numpy()[frames["history"]["run"]] * frames["history"]["round"]
    frames["history"].insert(11, "gradients", gradients)
    return Result(
        runs,
        **frames,
        initial=sim.initial if keep_state else None,
        state=_final(sim, state) if keep_state else {},
    )


def _frame(rows: Sequence[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame({"run": pd.Series(dtype="int64")})


def _final(sim: Simulation, state: State) -> dict[str, Tensor]:
    """The state, with models that a method makes only for testing made for every client."""
    run, client = sim.everyone
    whole = Block(sim, run, client, round=sim.now)
    made = {
        name: provide(whole).view(sim.runs, sim.clients, -1)
        for name, provide in sim.method.models(sim, state).items()
        if name in ("personal", "local") and name not in state
    }
    kept = {name: value for name, value in state.items() if name not in ("chosen", "mix")}
    return {**kept, **made}


def _joined(parts: Sequence[Result], places: Sequence[int]) -> Result:
    """Results of several batches as one; run i is the i-th of the runs asked for."""
    order = np.argsort(places)
    frames: dict[str, list[pd.DataFrame]] = defaultdict(list)
    for part in parts:
        new = part.runs["spec"].to_numpy()
        for name in ("runs", *FRAMES):
            frame = getattr(part, name)
            frames[name].append(frame.assign(run=new[frame["run"].to_numpy(dtype=np.int64)]))
    whole = {name: _sorted(rows) for name, rows in frames.items()}
    whole["runs"] = whole["runs"].drop(columns="spec")
    names = [name for name in parts[0].state if all(name in part.state for part in parts)]
    state = {name: _stacked([part.state[name] for part in parts])[order] for name in names}
    initial = None if parts[0].initial is None else _stacked([part.initial for part in parts])[order]
    return Result(**whole, initial=initial, state=state)


def _sorted(rows: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in rows if len(frame)] or list(rows[:1])
    return pd.concat(filled, ignore_index=True).sort_values("run", kind="stable", ignore_index=True)


def _stacked(parts: Sequence[Any]) -> Tensor:
    """Tensors [runs, ...] end to end; where the number of contexts differs, the missing ones are NaN."""
    widest = max(part.shape[1] for part in parts)
    padded = []
    for part in parts:
        if part.shape[1] < widest:
            part = torch.cat(
                [part, part.new_full((len(part), widest - part.shape[1], *part.shape[2:]), float("nan"))], 1
            )
        padded.append(part)
    return torch.cat(padded)


def simulate(
    clients: ClientData | Mapping[int, ClientData],
    model: str = "mlr",
    method: str = "fedavg",
    rounds: int = 1,
    seeds: int | Sequence[int] = (0,),
    params: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Result:
    """Train ``method`` for every seed and every combination of the list-valued ``params``.

    Args:
        params: hyperparameters of the method (see ``methods``); a list is a sweep axis.
        settings: as in ``train``: batch_size, participation, dtype, device, threads, eval_every,
            train_loss_samples, memory_gb, path, model_args, progress, checkpoint.

    Returns:
        A ``Result`` whose runs are the combinations, the seed varying fastest.

    Raises:
        UserError: for settings, parameters or data that do not fit together, before anything is trained.
    """
    seeds = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    if not seeds:
        raise UserError("seeds: the list is empty; at least one whole number is needed")
    specs = [RunSpec(seed, point) for point in combinations(params or {}) for seed in seeds]
    return train(clients, model, method, specs, rounds=rounds, keep_state=True, **settings)


def combinations(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All points of the grid that the list-valued entries span, in the order given."""
    points: list[dict[str, Any]] = [{}]
    for name, value in params.items():
        values = value if isinstance(value, list | tuple | np.ndarray) else [value]
        if len(values) == 0:
            raise UserError(f"params.{name}: the list of values is empty")
        points = [{**point, name: one} for point in points for one in values]
    return points
