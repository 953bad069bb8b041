"""Tuning: each method's parameters chosen on a validation part of its clients' training data, never on test data.

The search goes through a method's parameters one after the other, in the order of its grid, from the experiment's
shared settings on: every value of a parameter is tried with the others as they stand, the best stays. A full product
of the grids would take days; the price is that two parameters that only help together are not found.

A value is judged by the final validation accuracy of the method's headline model, mean over the tuning's seeds; of
equal ones the earlier is taken. A value that diverges, or that the method refuses beside the others, has none.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

import cgpfl
from cgpfl import tables
from cgpfl.datasets import Dataset
from cgpfl.errors import UserError
from cgpfl.experiment import TABLE1, Grid, Job, Params, Run, Scalar
from cgpfl.partition import Partition
from cgpfl.results import Frames
from cgpfl.training import Settings, Training

CHOICES = ["dataset", "model", "method", "parameter", "value", "validation_accuracy", "chosen"]


@dataclass(frozen=True)
class Tried:
    """A value of a parameter, its validation accuracy in percent (NaN where it has none), and whether it was chosen."""

    parameter: str
    value: Scalar
    validation_accuracy: float
    chosen: bool


def search(
    start: Params, grid: Grid, accuracies: Callable[[Sequence[Params]], Sequence[float]]
) -> tuple[Params, list[Tried]]:
    """The best parameters that the search finds, and all that it tried.

    Args:
        start: every parameter's value before the search; where the grid lacks it, it is tried first.
        grid: by parameter, in the order of the search, the values to try.
        accuracies: of each of some parameter sets, NaN for none. If all are NaN the parameter keeps its value.
    """
    params, tried = dict(start), []
    for name, grid_values in grid.items():
        values = list(dict.fromkeys(grid_values if params[name] in grid_values else [params[name], *grid_values]))
        found = list(accuracies([{**params, name: value} for value in values]))
        best = max(found, key=lambda accuracy: -math.inf if math.isnan(accuracy) else accuracy)
        chosen = params[name] if math.isnan(best) else values[found.index(best)]
        tried += [Tried(name, value, found[i], value == chosen) for i, value in enumerate(values)]
        params[name] = chosen
    return params, tried


@dataclass(frozen=True)
class Tuning:
    """The tuning of one method on one dataset and model, and its runs with the chosen values.

    Attributes:
        job: with the method's runs of Table 1, whose parameters the search starts from.
        settings: the section `training` of the configuration.
        grid: by parameter, the values to try. rounds: of the tuning.
        dataset: the samples. partitions: for each seed of the job.
        validation: for each seed of the tuning, its partition with the validation part for test samples, see
            `cgpfl.partition.split_validation`; none are needed without values to try.
    """

    job: Job
    settings: Settings
    grid: Grid
    rounds: int
    dataset: Dataset
    partitions: Mapping[int, Partition]
    validation: Mapping[int, Partition]

    def choose(self, complete: Callable[[Training], Frames]) -> tuple[Training, pd.DataFrame]:
        """The training of the job's runs of Table 1 with the chosen values, and all that was tried (CHOICES).

        `complete`: trains what a training lacks and gathers its frames.
        """
        starts = {run.label: run.params for run in self.job.runs if TABLE1 in run.parts}
        chosen, rows = {}, []
        for label, start in starts.items():
            chosen[label], tried = search(start, self.grid, lambda sets: self._accuracies(sets, complete))
            names = {"dataset": self.job.dataset, "model": self.job.model, "method": label}
            rows += [{**names, **vars(each)} for each in tried]
        runs = [replace(run, params=chosen[run.label], parts=(TABLE1,)) for run in self.job.runs if TABLE1 in run.parts]
        final = Training(replace(self.job, runs=tuple(runs)), self.settings, self.dataset, self.partitions)
        return final, pd.DataFrame(rows, columns=CHOICES)

    def _accuracies(self, sets: Sequence[Params], complete: Callable[[Training], Frames]) -> list[float]:
        """Final validation accuracy of each parameter set, in percent, mean over the tuning's seeds."""
        valid = [i for i, params in enumerate(sets) if self._takes(params)]
        runs = [Run(seed, sets[i], self.job.method, (TABLE1,)) for i in valid for seed in self.validation]
        if not runs:
            return [math.nan] * len(sets)
        settings = {**self.settings, "rounds": self.rounds}
        training = Training(replace(self.job, runs=tuple(runs)), settings, self.dataset, self.validation)
        frames = complete(training)
        final = tables.results_by_run(frames["runs"], frames["history"])
        by_run = final[final["headline"].astype(bool)].set_index("run")["final"].loc[training.keys]
        means = by_run.to_numpy().reshape(len(valid), len(self.validation)).mean(axis=1)
        found: dict[int, Any] = dict(zip(valid, means.tolist(), strict=True))
        return [found.get(i, math.nan) for i in range(len(sets))]

    def _takes(self, params: Params) -> bool:
        """Whether the method takes these values together."""
        try:
            method = self.job.paths.get("method", self.job.method)
            cgpfl.resolve_params(method, params, self.job.model, next(iter(self.partitions.values())).clients)
        except UserError:
            return False
        return True
