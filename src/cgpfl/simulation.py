"""The round loop: many runs of one method at once, every client of every run a row.

A run is a seed and a set of hyperparameters. Runs that differ only in numbers such as lr or lam are one batch;
their clients' models are rows [runs x clients, d]. Local training and testing work through the rows in blocks that
fit the processor's cache, on one thread each, so that neither the number of threads nor the company of other runs
can change a run's numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from cgpfl.capture import Call, Captured
from cgpfl.clients import (
    TRAIN_LOSS,
    ClientData,
    Ragged,
    Streams,
    permuted,
    stream_keys,
)
from cgpfl.methods import Method
from cgpfl.methods.base import State, Tested
from cgpfl.models import as_net, initial_row
from cgpfl.rounds import Block
from cgpfl.settings import RunSpec, Settings

T = TypeVar("T")
TEST_BYTES = 8 << 20  # of samples that are tested at a time, on a CPU
STREAMS = 512  # whose minibatches are drawn at a time
GPU_TEST_BYTES = 1 << 30


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
        self.device, self.dtype = data.x.device, data.dtype
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
        return self.data.true_contexts(self.method.name).view(-1, self.clients)[self.partition]

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
        keys, size = stream_keys(self.seeds[run].cpu(), client.cpu(), purpose), int(self.settings.batch_size)
        parts = [slice(start, start + STREAMS) for start in range(0, len(rows), STREAMS)]
        drawn = self.map(
            lambda part: Streams.sampled(self.data.train, rows[part], keys[part], first, steps, size, self.width), parts
        )
        return Streams.joined(drawn)

    @cached_property
    def width(self) -> int:
        """Samples of the largest minibatch, to which the others are padded."""
        return batch_width(self.data, self.settings)

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
            tested = [self.net.rows(provide(block)) for provide in models.values()]
            data_rows = block.data_row
            padded = [part.padded(data_rows, int(_test_width(part.counts[data_rows[0]]))) for part in lists]
            widths = [real.shape[1] for _, real in padded]
            index, real = (torch.cat(parts, dim=1) for parts in zip(*padded, strict=True))
            x, y = self.data.gathered(index)
            for name, logits in zip(models, self.net.logits_of(tested, x), strict=True):
                losses = cross_entropy(logits, y, reduction="none").to(torch.float64).where(real, 0)
                best = logits.max(1)
                right = (best.indices == y) & torch.isfinite(best.values) & real
                for kind, values in enumerate((right, losses)):
                    for place, own in enumerate(values.split(widths, dim=1)):
                        sums[name][kind, place, rows] = own.sum(1, dtype=torch.float64)

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
            limit = (TEST_BYTES if self.device.type == "cpu" else GPU_TEST_BYTES) / self.dtype.itemsize
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


def batch_width(data: ClientData, settings: Settings) -> int:
    most = int(data.train.counts.max())
    most = most if settings.batch_size == "full" else min(most, int(settings.batch_size))
    return max(2, most)  # a product with one sample is computed in another way where a row is alone in its block


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
