"""A communication round: the steps that methods are made of, and the blocks of rows that clients' work is done on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from cgpfl.clients import (
    ADAPTATION,
    PARTICIPATION,
    TRAINING,
    Batch,
    Streams,
    host_generator,
)
from cgpfl.nets import Net

if TYPE_CHECKING:
    from cgpfl.simulation import Simulation


# Bytes of models and minibatches that a block of rows may hold on a CPU: with them in the second and third level
# cache, each block goes through all its local steps before the next.
CACHE_BYTES = 6 << 20


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
        weight = self.streams.weight.to(data.dtype)
        distinct = index.shape[1]
        batch = None
        for step in range(self.steps):
            if batch is None or distinct > 1:
                batch = Batch(*data.gathered(index[:, step]), weight)
            yield batch

    def adapting(self, steps: int) -> Block:
        """These rows with ``steps`` minibatches of training data that are used for nothing else, for models that
        are adapted before they are tested."""
        steps_drawn = max(steps, 1)
        streams = self.sim.minibatches(self.run, self.client, self.round * steps_drawn, steps_drawn, ADAPTATION)
        return Block(self.sim, self.run, self.client, streams, steps=steps, round=self.round)


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
        if self.sim.runs > 1:  # runs of one seed share their streams
            streams = Streams(streams.index[stream_of_row], streams.weight[stream_of_row])
        inputs = (streams.index, streams.weight, *columns)

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
        fitting = max(1, CACHE_BYTES // (numbers * self.sim.dtype.itemsize))
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
