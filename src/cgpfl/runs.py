"""Training: the runs of a call in batches, and their results as tables."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from cgpfl.checkpoint import Checkpoint
from cgpfl.clients import ClientData, check_sizes
from cgpfl.errors import UserError
from cgpfl.methods import Method, method_named, resolve_params
from cgpfl.methods.base import State
from cgpfl.models import build_model, initial_row
from cgpfl.rounds import Block, Round
from cgpfl.settings import DTYPES, RunSpec, Settings
from cgpfl.simulation import Simulation, batch_width


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
    checkpoint: Path | str | None = None,
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
    checkpoint = None if checkpoint is None else Path(checkpoint)
    _check_arguments(model, method, model_args, checkpoint)
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
    by_seed = _by_seed(clients, specs, chosen)
    count = by_seed[specs[0].seed].clients
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


def _by_seed(clients: Any, specs: Sequence[RunSpec], method: Method) -> dict[int, ClientData]:
    """The clients' data for each seed of the runs, once they fit each other and the method."""
    given = clients if isinstance(clients, Mapping) else {spec.seed: clients for spec in specs}
    for seed in (spec.seed for spec in specs):
        if seed not in given:
            raise UserError(f"clients: no data for seed {seed}; given are {sorted(given)}")
        if not isinstance(given[seed], ClientData):
            raise UserError(f"clients: {type(given[seed]).__name__} given, valid is a ClientData, or one for each seed")
        if method.needs_contexts:
            given[seed].true_contexts(method.name)
    by_seed = {spec.seed: given[spec.seed] for spec in specs}
    check_sizes(list(by_seed.values()))
    return by_seed


def _check_arguments(model: Any, method: Any, model_args: Any, checkpoint: Path | None) -> None:
    for key, value in (("model", model), ("method", method)):
        if not isinstance(value, str):
            raise UserError(f"{key}: {value!r} given, valid is a name")
    if model_args is not None and not isinstance(model_args, Mapping):
        raise UserError(f"model_args: {model_args!r} given, valid are settings by name")
    if checkpoint is not None and checkpoint.is_dir():
        raise UserError(f"checkpoint: {checkpoint} is a folder, valid is a file")


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
        sha = hashlib.sha256(repr([(seed, part.classes) for seed, part in self.by_seed.items()]).encode())
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
            dtype = DTYPES[self._settings.dtype]
            stacked = ClientData.stack(distinct, dtype)
            self._moved = {key: stacked.to(self._settings.torch_device, dtype)}
        return self._moved[key], places


def _groups(
    method: Method, specs: Sequence[RunSpec], by_seed: Mapping[int, ClientData], numbers: int, settings: Settings
) -> list[list[int]]:
    """Positions of the runs that are batched: equal in what a batch must share, and within the memory budget."""
    shared = [param.name for param in method.parameters if not param.column]
    by_static: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, spec in enumerate(specs):
        # what the last digits of a run depend on
        alike = (spec.params["l2"] == 0, batch_width(by_seed[spec.seed], settings))
        by_static[(*alike, *(spec.params[name] for name in shared))].append(place)
    # up to three states of the clients, and as many contexts as clients twice or three times in an average
    one = 6 * numbers * (8 if settings.dtype == "float64" else 4)
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
    saver = Checkpoint(checkpoint, sim, what)
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
    if params is not None and not isinstance(params, Mapping):
        raise UserError(f"params: {params!r} given, valid are values by name")
    seeds = list(seeds) if isinstance(seeds, Iterable) else [seeds]
    if not seeds:
        raise UserError("seeds: the list is empty; at least one whole number is needed")
    specs = [RunSpec(seed, point) for point in combinations(params or {}) for seed in seeds]
    return train(clients, model, method, specs, rounds=rounds, keep_state=True, **settings)


def combinations(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """All points of the grid that the list-valued entries span, in the order given."""
    points: list[dict[str, Any]] = [{}]
    for name, value in params.items():
        values = value if isinstance(value, list | tuple | np.ndarray) and np.ndim(value) else [value]
        if len(values) == 0:
            raise UserError(f"params.{name}: the list of values is empty")
        points = [{**point, name: one} for point in points for one in values]
    return points
