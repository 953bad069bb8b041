"""The typed description of an experiment, and the training jobs and runs that follow from it.

A configuration (a YAML file, or the mapping that Snakemake makes of it) becomes an `Experiment` by `load` or `read`,
which check all that can be known before any work starts: names, types, ranges, and combinations that cannot be.
Anything wrong ends in a `UserError` of one sentence with the key, the value and what would be valid.

Keys, defaults and ranges stand in these types and nowhere else: `config/config.yaml`, `config/schema.json` and the
tables in `config/README.md` are written from them by `cgpfl.reference`. What parameters a method has is
known to `cgpfl.methods` alone.

An experiment is a grid of training jobs, one for each dataset, model and method. A job does all runs of its method
there: rows of Table 1, sweeps, seeds. A run is one seed and one set of parameters. A study is an experiment too: the
main one with some keys changed.
"""

import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_serializer, model_validator

import cgpfl
from cgpfl import datasets, imports, models
from cgpfl import partition as partitions
from cgpfl.errors import UserError
from cgpfl.methods import METHODS, method_named, method_names, own_path
from cgpfl.methods.base import MOST, number_in
from cgpfl.tables import MAIN, TUNED, without

Scalar = bool | int | float | str
Grid = Mapping[str, Sequence[Scalar]]
Params = dict[str, Any]
Count = Annotated[int, Field(ge=1, le=MOST)]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)]
Place = Annotated[str, Field(min_length=1)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
PUBLISHED = {
    "digits": ((8, 8), 1797),
    "mnist": ((28, 28), 60_000),
    "fashion_mnist": ((28, 28), 60_000),
    "cifar10": ((3, 32, 32), 60_000),
}
"""Datasets of ten classes whose samples' shape and number (in the pool) are known before they are there."""
STUDY_KEYS = ("seeds", "datasets", "models", "partition", "training", "params", "model_params", "methods", "sweeps")
"""What a study may change; all of it but sweeps comes from the main experiment where it does not."""
RESERVED = (MAIN, TUNED)
"""Names that the main experiment and its tuned methods have among studies."""
TABLE1 = "table1"
"""The part of an experiment that `methods` describes; the other parts are its sweeps, by the parameter they vary."""


_LR: Grid = {"lr": [0.005, 0.01, 0.02, 0.05, 0.1]}
_PROXIMAL: Grid = {**_LR, "eta": [0.005, 0.01, 0.03, 0.05, 0.09], "lam": [1, 5, *range(7, 20)]}
GRIDS: Mapping[str, Grid] = {
    "local": _LR,
    "fedavg": _LR,
    "fedavg_ft": _LR,
    "fedprox": {**_LR, "mu": [0.001, 0.01, 0.1, 1]},
    "ifca": _LR,
    # lam before lr: with a strong pull to the mean the method takes no larger step.
    "l2sgd": {"lam": [0.1, 0.5, 1, 5, 12], **_LR, "p": [0.05, 0.09, 0.2, 0.5]},
    "apfl": {**_LR, "mix": [0.1, 0.25, 0.5, 0.75, 0.9, "adaptive"]},
    "perfedavg": {"meta_lr": [0.001, 0.005, 0.01, 0.05], "adapt_lr": [0.005, 0.01, 0.03, 0.1]},
    "pfedme": _PROXIMAL,
    "ditto": {**_LR, "lam": [0.01, 0.1, 0.5, 1, 2, 5, 12]},
    "cgpfl": _PROXIMAL,
    "cgpfl_heur": _PROXIMAL,
    "cgpfl_oracle": _PROXIMAL,
}
"""By method, the values that tuning tries, in the order of its search. `lam` has all of Table 2's, 7 to 19."""


class Section(BaseModel):
    """A part of the configuration: unknown keys and values of another type are errors, nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Dataset(Section):
    """Where samples come from; a bare name such as `mnist` is short for the public dataset of that name."""

    name: str = Field(pattern=NAME, description="name in results, tables and figures")
    kind: str = Field(description="a published dataset, or image_folder or npz for your own")
    path: Place | None = Field(None, description="the folder, .zip or .npz file of your own data")

    @model_validator(mode="before")
    @classmethod
    def _from_short(cls, value: Any) -> Any:
        return {"name": value, "kind": value} if isinstance(value, str) else value

    @property
    def clients(self) -> int | None:
        """How many clients the data comes with, None if it is the partition that makes them."""
        return datasets.given_clients(self.kind, None if self.path is None else Path(self.path))

    @model_serializer
    def _to_short(self) -> Any:
        return self.name if (self.kind, self.path) == (self.name, None) else dict(self)


class Entry(Section):
    """A name with settings of its own, `{cgpfl: {contexts: 4}}`, or without, `cgpfl`."""

    name: str
    params: Params = {}

    @model_validator(mode="before")
    @classmethod
    def _from_short(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, Mapping) and len(value) == 1:
            [(name, params)] = value.items()
            if isinstance(params, Mapping):
                return {"name": name, "params": dict(params)}
        raise ValueError("a name, or a name with a mapping of its settings as in {cgpfl: {contexts: 4}}")

    @model_serializer
    def _to_short(self) -> Any:
        return {self.name: self.params} if self.params else self.name


class ModelEntry(Entry):
    """A model: one of ours, or the path of your own factory."""

    @property
    def label(self) -> str:
        """Its name in results: for your own, the factory's."""
        return self.name.rpartition(":")[2]


class MethodEntry(Entry):
    """A method: one of ours or of an installed package, or the path of your own."""

    @property
    def label(self) -> str:
        """Its name in results, the method's own."""
        return method_named(self.name).name

    @property
    def takes(self) -> dict[str, cgpfl.Param]:
        """Its hyperparameters by name."""
        return {param.name: param for param in method_named(self.name).parameters}


class Data(Section):
    """How public datasets are fetched."""

    archive_dir: Place | None = Field(
        None,
        description="folder with the datasets' archives, searched before any mirror is asked; the environment "
        "variable CGPFL_ARCHIVES names one too",
    )


class Partition(Section):
    """How a dataset's samples become clients."""

    clients: Count = Field(
        40,
        description="number of clients, N; data that comes with clients keeps these, with nothing but test_fraction "
        "and train_share",
    )
    scheme: Literal["cyclic", "random", "contexts", "dirichlet", "iid", "shards"] = Field(
        "cyclic",
        description="cyclic: client u holds classes u, u+1, ...; random: random classes; contexts: groups of clients "
        "share classes; dirichlet: label skew; iid; shards: shards of the samples sorted by class",
    )
    test_fraction: float = Field(0.25, gt=0, lt=1, description="share of a client's samples that is for testing")
    classes_per_client: Count | None = Field(None, description="(cyclic, random) classes of a client; 3 if not given")
    groups: Count | list[list[int]] | None = Field(
        None, description="(contexts) how many groups, or the classes of each"
    )
    concentration: Annotated[float, Field(gt=0)] | None = Field(
        None, description="(dirichlet) small: few classes a client; 0.5 if not given"
    )
    shards_per_client: Count | None = Field(None, description="(shards) shards of a client; 2 if not given")
    min_samples: Count | None = Field(None, description="fewest samples of a client, training and test")
    max_samples: Count | None = Field(None, description="most samples of a client; no limit if not given")
    size_sigma: Annotated[float, Field(ge=0)] | None = Field(
        None,
        description="(cyclic, random, contexts, iid) spread of sizes: lognormal(0, size_sigma), scaled to the pool; "
        "0.8 if not given",
    )

    train_share: float = Field(
        1.0, gt=0, le=1, description="share of each client's training samples, class by class, that it keeps"
    )

    @property
    def options(self) -> Params:
        """Those options of the scheme that are given."""
        given = self.model_dump(exclude={"clients", "scheme", "test_fraction", "train_share"})
        return {name: value for name, value in given.items() if value is not None}


class Training(Section):
    """How every method is trained and tested."""

    rounds: Count = Field(200, description="communication rounds, T")
    batch_size: Count | Literal["full"] = Field(
        20,
        description="samples of a minibatch, or full; a client with fewer uses all it has",
    )
    scale: Literal["standardise", "unit"] = Field(
        "standardise", description="inputs: standardise, (x - mean)/std of the dataset; unit, from 0 to 1"
    )
    participation: float = Field(1.0, gt=0, le=1, description="share of the clients that take part in a round")
    eval_every: Count = Field(5, description="test every so many rounds, and after the last")
    train_loss_samples: Count | None = Field(
        None, description="training samples of a client for the train loss; null all"
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="arithmetic")
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto (a GPU if there is one), cpu, cuda or cuda:1"
    )
    threads: Count = Field(2, description="threads of one training job; as many jobs run as the cores allow")
    memory_gb: float = Field(
        4.0,
        gt=0,
        le=10**6,
        description="memory for one training job; sets how much is worked on at once, never the result",
    )

    @property
    def mem_mb(self) -> int:
        """Memory to reserve for a training job: the budget, and what Python, its libraries and the data take."""
        return round(1000 * self.memory_gb) + 3000

    @property
    def gpus(self) -> int:
        """GPUs that a training job takes on this machine."""
        return int(torch.cuda.is_available() if self.device == "auto" else self.device != "cpu")


class Tune(Section):
    """How methods are tuned; the search itself is in `cgpfl.tuning`."""

    validation: float = Field(
        0.2, gt=0, lt=1, description="share of a client's training samples that parameters are chosen on"
    )
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = Field(
        None, description="seeds of the tuning; the experiment's first if not given"
    )
    rounds: Count | None = Field(None, description="rounds of the tuning; those of training if not given")
    models: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="those of the experiment's models that methods are tuned on; all if not given"
    )
    grids: dict[str, dict[str, Annotated[list[Scalar], Field(min_length=1)]]] = Field(
        {},
        description="by method and parameter, in the order of the search, the values to try; a method left out has "
        "the grid below, one with {} is not tuned",
    )


class Sweep(Section):
    """Runs that differ in one parameter."""

    methods: list[MethodEntry] = Field(min_length=1, description="the methods, as under `methods`")
    values: Annotated[list[Scalar], Field(min_length=1)] | dict[str, list[Scalar]] = Field(
        description="the parameter's values, or values by dataset and model: {mnist/mlr: [11, 12]}"
    )
    seeds: Annotated[list[Seed], Field(min_length=1)] | None = Field(
        None, description="those of the experiment's seeds that the sweep is run with; all if not given"
    )

    def values_for(self, dataset: str, model: str) -> list[Scalar]:
        """The values for a dataset and model; KeyError where a mapping has none for them."""
        return self.values[f"{dataset}/{model}"] if isinstance(self.values, dict) else self.values


@dataclass(frozen=True)
class Run:
    """One seed and one set of parameters (every parameter of the method, resolved).

    `label`: the method's name with those parameters that the experiment varies; `parts`: the parts of the experiment
    that the run belongs to, `table1` or the names of sweeps.
    """

    seed: int
    params: Params
    label: str
    parts: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """All runs of one method on one dataset and model: one call of the engine.

    `paths`: where the user's own code is, by `model` and `method`; empty if both are ours.
    """

    dataset: str
    model: str
    model_args: Params
    method: str
    runs: tuple[Run, ...]
    paths: Mapping[str, str]

    @property
    def sources(self) -> list[Path]:
        """The files of the user's own code."""
        return sorted({file for path in self.paths.values() for file in imports.sources(path)})

    def plain(self) -> dict[str, Any]:
        """As a mapping of plain values, for `params` of a workflow's rule; `from_plain` takes it back."""
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Job":
        """The job that `plain` described."""
        runs = tuple(Run(**{**run, "parts": tuple(run["parts"])}) for run in plain["runs"])
        return cls(**{**plain, "runs": runs})


class Experiment(Section):
    """Everything that an experiment's results depend on, and the name they are kept under."""

    name: str = Field(pattern=NAME, description="results go to results/<name>/")
    seeds: list[Seed] = Field(
        [0, 1, 2, 3, 4],
        min_length=1,
        description="a seed sets the partition, the initial weights and the minibatches",
    )
    datasets: list[Dataset] = Field(
        min_length=1,
        description="names of public datasets (digits, which scikit-learn ships, mnist, fashion_mnist, cifar10), or "
        "your own: {name: mine, kind: npz, path: mine.npz}",
    )
    models: list[ModelEntry] = Field(
        min_length=1,
        description="models (mlr, dnn, cnn), each trained on each dataset; your own by its path, "
        "mypackage.nets:make_net",
    )
    data: Data = Field(Data(), description="how public datasets are fetched")
    partition: Partition = Field(Partition(), description="how a dataset's samples become clients")
    training: Training = Field(Training(), description="how every method is trained and tested")
    params: Params = Field({}, description="hyperparameters for every method that takes them")
    model_params: dict[str, Params] = Field(
        {}, description="hyperparameters for one model, as {mlr: {l2: 0.001}}; they come before those of params"
    )
    methods: list[MethodEntry] = Field(
        min_length=1,
        description="rows of Table 1: a method, with what differs from params if anything; lists give a row a value; "
        "your own by its path, mypackage.fl:MyMethod",
    )
    figures: list[str] | None = Field(
        None, min_length=1, description="methods that figures 1, 2 and 3b show, in this order; all if not given"
    )
    sweeps: dict[str, Sweep] = Field(
        {}, description="parameters to vary and the methods to vary them for: lam is Table 2, contexts figure 3a"
    )
    tune: Tune | None = Field(
        None, description="tune the methods of Table 1 on validation data, and run them with what is chosen; {} does"
    )
    studies: dict[str, dict[str, Any]] = Field(
        {}, description=f"by name, what a further experiment changes of this one: {', '.join(STUDY_KEYS)}"
    )

    @property
    def by_folder(self) -> dict[str, "Experiment"]:
        """This experiment under "", and each of its studies under its folder, "studies/<name>/"."""
        return {"": self, **{f"studies/{name}/": study for name, study in self.loaded_studies.items()}}

    @cached_property
    def loaded_studies(self) -> dict[str, "Experiment"]:
        """The studies by name.

        A study is this experiment without its figures, sweeps, tuning and studies, with the study's keys merged over
        it: mappings key by key, all else as a whole. Raises UserError as `load` does.
        """
        base = self.model_dump(exclude={"figures", "sweeps", "studies", "tune"}, exclude_unset=True)
        studies = {}
        for name, changes in self.studies.items():
            try:
                studies[name] = load(_merged(base, changes), self)
            except UserError as error:
                raise UserError(f"studies.{name}: {error}") from None
        return studies

    @property
    def all_entries(self) -> list[MethodEntry]:
        """The entries of methods, those of sweeps too."""
        return [*self.methods, *(entry for sweep in self.sweeps.values() for entry in sweep.methods)]

    @cached_property
    def pairs(self) -> list[tuple[str, ModelEntry]]:
        """Every dataset's name with every model."""
        return [(dataset.name, model) for dataset in self.datasets for model in self.models]

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """The training jobs, by dataset, model and method in the order of the configuration."""
        variants = [(pair, variant) for pair in self.pairs for variant in self._variants(*pair)]
        shown = _shown_parameters(variant for _, variant in variants)
        jobs: dict[tuple[str, str, str], tuple[ModelEntry, list[_Variant]]] = {}
        for (dataset, model), variant in variants:
            jobs.setdefault((dataset, model.label, variant.method), (model, []))[1].append(variant)
        return tuple(
            Job(dataset, label, model.params, method, tuple(self._runs(job, shown[method])), _paths(model, job[0].path))
            for (dataset, label, method), (model, job) in jobs.items()
        )

    def changes(self, study: "Experiment") -> Params:
        """What a study sets otherwise than this experiment, by dotted key: settings, not what is run with them.

        Of a method that both have, its parameters too, but for `contexts`, which results name it by.
        """
        sections = {"partition", "training", "params", "model_params"}
        own, other = (_flat(each.model_dump(include=sections)) for each in (self, study))
        for name in {entry.label for entry in self.methods} & {entry.label for entry in study.methods}:
            own, other = own | _of_method(self, name), other | _of_method(study, name)
        return {key: other.get(key) for key in sorted({*own, *other}) if own.get(key) != other.get(key)}

    @cached_property
    def sources(self) -> dict[str, Dataset]:
        """Every dataset by name, those of studies too."""
        return {dataset.name: dataset for part in self.by_folder.values() for dataset in part.datasets}

    @property
    def tuned_jobs(self) -> list[Job]:
        """The jobs to tune: of those with rows of Table 1, on the models chosen for it."""
        jobs = [job for job in self.jobs if any(TABLE1 in run.parts for run in job.runs)]
        chosen = self.tune.models if self.tune else []
        return [job for job in jobs if chosen is None or job.model in chosen]

    @property
    def tuning_seeds(self) -> list[int]:
        """The seeds of the tuning; none where nothing is tuned."""
        return [] if self.tune is None else self.tune.seeds or self.seeds[:1]

    def tuning(self, method: str) -> Params:
        """How a method is tuned, for `cgpfl.tuning.Tuning`; a method without a grid has an empty one."""
        tune = self.tune or Tune()
        return {"grid": tune.grids.get(method, GRIDS.get(method, {})), "rounds": tune.rounds or self.training.rounds}

    def job(self, dataset: str, model: str, method: str) -> Job:
        """The training job of a dataset, model and method."""
        return next(job for job in self.jobs if (job.dataset, job.model, job.method) == (dataset, model, method))

    def _variants(self, dataset: str, model: ModelEntry) -> Iterator["_Variant"]:
        clients = next(each for each in self.datasets if each.name == dataset).clients or self.partition.clients
        for i, entry in enumerate(self.methods):
            yield from self._settings(f"methods[{i}]", TABLE1, self.seeds, entry, model, clients)
        for name, sweep in self.sweeps.items():
            if isinstance(sweep.values, dict) and f"{dataset}/{model.label}" not in sweep.values:
                raise UserError(
                    f"sweeps.{name}.values has no values for {dataset}/{model.label}; add that key ([] for no runs) "
                    "or give one list for all."
                )
            values = sweep.values_for(dataset, model.label)
            seeds = self.seeds if sweep.seeds is None else sweep.seeds
            for i, entry in enumerate(sweep.methods):
                key = f"sweeps.{name}.methods[{i}]"
                if name in entry.params:
                    raise UserError(f"{key}: {entry.name} sets {name}, which the sweep is to vary; leave it out there.")
                yield from self._settings(key, name, seeds, entry, model, clients, {name: values})

    def _settings(
        self,
        key: str,
        part: str,
        seeds: Sequence[int],
        entry: MethodEntry,
        model: ModelEntry,
        clients: int,
        swept: Mapping[str, Sequence[Scalar]] | None = None,
    ) -> Iterator["_Variant"]:
        """An entry's settings: one for each combination of the values it lists, resolved by the method."""
        takes = entry.takes
        given = {**self.params, **self.model_params.get(model.label, {})}
        shared = {name: value for name, value in given.items() if name in takes}
        axes = {name: value if isinstance(value, list) else [value] for name, value in entry.params.items()}
        axes |= {name: list(values) for name, values in (swept or {}).items()}
        for values in itertools.product(*axes.values()):
            own = dict(zip(axes, values, strict=True))
            try:
                params = cgpfl.resolve_params(entry.name, {**shared, **own}, model.name, clients)
            except UserError as error:
                raise UserError(f"{key}: {error}") from None
            resolved = {name: _whole(value) for name, value in params.items()}
            yield _Variant(part, tuple(seeds), entry.label, own_path(entry.name), tuple(entry.params), resolved)

    def _runs(self, variants: Sequence["_Variant"], shown: Sequence[str]) -> Iterator[Run]:
        """Each distinct setting once for each seed, with all the parts of the experiment that it belongs to."""
        settings: dict[str, tuple[Params, dict[str, tuple[int, ...]]]] = {}
        for variant in variants:
            key = json.dumps(variant.params, sort_keys=True)
            settings.setdefault(key, (variant.params, {}))[1].setdefault(variant.part, variant.seeds)
        for params, parts in settings.values():
            label = _label(variants[0].method, params, shown)
            for seed in self.seeds:
                own = tuple(part for part, seeds in parts.items() if seed in seeds)
                if own:
                    yield Run(seed, params, label, own)


@dataclass(frozen=True)
class _Variant:
    """A method's resolved parameters, the part that asks for them, for which seeds, where the method is if it is the
    user's own, and the names that its entry sets."""

    part: str
    seeds: tuple[int, ...]
    method: str
    path: str | None
    own: tuple[str, ...]
    params: Params


def _shown_parameters(variants: Iterator[_Variant]) -> dict[str, list[str]]:
    """By method, the parameters that labels show: some entry sets them, and the method's runs differ in them.

    A sweep alone does not put its parameter into labels: Table 2 has a column of its own for lambda.
    """
    by_method: dict[str, list[_Variant]] = {}
    for variant in variants:
        by_method.setdefault(variant.method, []).append(variant)
    return {
        method: [
            name
            for name in group[0].params
            if any(name in variant.own for variant in group)
            and len({json.dumps(variant.params[name]) for variant in group}) > 1
        ]
        for method, group in by_method.items()
    }


def _paths(model: ModelEntry, method: str | None) -> dict[str, str]:
    """Where the user's own code is."""
    paths = {"model": model.name if imports.is_path(model.name) else None, "method": method}
    return {what: path for what, path in paths.items() if path is not None}


def _label(method: str, params: Params, shown: Sequence[str]) -> str:
    values = ",".join(f"{name}={params[name]}" for name in shown)
    return f"{method}[{values}]" if values else method


def _whole(value: Any) -> Any:
    """Whole numbers as ints, so that 12 and 12.0 are one value in keys and labels."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read(path: Path | str) -> Experiment:
    """The experiment that a YAML file describes. Raises UserError as `load` does, and for a file that is not YAML."""
    try:
        config = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"There is no configuration file {str(path)!r}.") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    return load(config)


def load(config: Any, main: Experiment | None = None) -> Experiment:
    """The experiment that a mapping describes, checked; `main`: the one that it is a study of, if any.

    Raises UserError, one sentence with the key, its value and what would be valid, for an unknown or missing key, a
    value of the wrong type or out of range, and for combinations that cannot be.
    """
    _check_keys(config, "")
    try:
        experiment = Experiment.model_validate(config)
    except ValidationError as error:
        raise UserError(_sentence(error)) from None
    _check_names(experiment, main)
    _check_machine(experiment)
    _check_params(experiment, main)
    _check_partition(experiment)
    _check_tuned(experiment)
    _check_studies(experiment)
    return experiment


def typed(value: Any) -> Any:
    """A value of Snakemake's `--config`, in whose lists and mappings Snakemake leaves all as text: with numbers."""
    if isinstance(value, Mapping):
        return {key: typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [typed(each) for each in value]
    return yaml.safe_load(value) if isinstance(value, str) else value


def _check_keys(value: Any, where: str) -> None:
    """Every key is text."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if not isinstance(key, str):
                raise UserError(f"{where or 'The configuration'} has the key {_plain(key)}; valid is text.")
            _check_keys(each, f"{where}.{key}" if where else key)
    elif isinstance(value, list):
        for i, each in enumerate(value):
            _check_keys(each, f"{where}[{i}]")


def _of_method(experiment: Experiment, name: str) -> Params:
    """What the entries of a method set, by dotted key; lists where they set several values."""
    found: dict[str, list[Any]] = {}
    for entry in (entry for entry in experiment.methods if entry.label == name):
        for key, value in entry.params.items():
            if key != "contexts":
                found.setdefault(f"methods.{name}.{key}", []).append(value)
    return {key: values[0] if len(values) == 1 else values for key, values in found.items()}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Params:
    """Nested mappings as one, with dotted keys."""
    flat: Params = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with changes: mappings in it are merged key by key, other values replaced."""
    both = {
        name: _merged(base[name], value)
        if isinstance(value, Mapping) and isinstance(base.get(name), Mapping)
        else value
        for name, value in changes.items()
    }
    return {**base, **both}


def _check_studies(experiment: Experiment) -> None:
    """Every study is an experiment that changes what it may, and a name is one dataset everywhere."""
    for name, changes in experiment.studies.items():
        if name in RESERVED:
            raise UserError(f"studies: {name!r} cannot be a study's name; valid is any but {_names(RESERVED)}.")
        if not re.fullmatch(NAME, name):
            raise UserError(f"studies: {name!r} is no name of a study; valid is {in_words({'pattern': NAME})}.")
        for key in changes:
            if key not in STUDY_KEYS:
                raise UserError(
                    f"studies.{name}.{key}: a study cannot change this; valid are {_names(STUDY_KEYS)}."
                    f"{_meant(key, STUDY_KEYS)}"
                )
    for folder, part in experiment.by_folder.items():
        for dataset in part.datasets:
            if dataset != experiment.sources[dataset.name]:
                raise UserError(
                    f"{folder.strip('/').replace('/', '.') or 'datasets'}: dataset {dataset.name!r} is described in "
                    "two ways; give each its own name."
                )


def _check_names(experiment: Experiment, main: Experiment | None) -> None:
    """Names are known, and each stands there once. A study may have settings of models that only `main` has."""
    unique: dict[str, list[Any]] = {
        "seeds": experiment.seeds,
        "datasets": [dataset.name for dataset in experiment.datasets],
        "models": [model.name for model in experiment.models],
        "methods": [entry.model_dump() for entry in experiment.methods],
    }
    unique["tune.seeds"] = experiment.tuning_seeds
    unique["tune.models"] = (experiment.tune or Tune()).models or []
    for name, sweep in experiment.sweeps.items():
        unique[f"sweeps.{name}.methods"] = [entry.model_dump() for entry in sweep.methods]
        unique[f"sweeps.{name}.seeds"] = sweep.seeds or []
    for key, names in unique.items():
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{key}: {name!r} stands there twice; each may stand there once.")
    for dataset in experiment.datasets:
        datasets.check_source(dataset.name, dataset.kind, None if dataset.path is None else Path(dataset.path))
    for i, model in enumerate(experiment.models):
        if not imports.is_path(model.name):
            _check_known(f"models[{i}]", "model", model.name, models.MODELS)
        for dataset in experiment.datasets:
            _check_model(f"models[{i}]", model, dataset)
    for name in experiment.model_params:
        _check_known("model_params", "model", name, [*_models(experiment), *(_models(main) if main else [])])
    entries = {f"methods[{i}]": entry for i, entry in enumerate(experiment.methods)}
    for name, sweep in experiment.sweeps.items():
        entries |= {f"sweeps.{name}.methods[{i}]": entry for i, entry in enumerate(sweep.methods)}
        _check_pairs(f"sweeps.{name}.values", sweep, experiment)
        if not set(sweep.seeds or experiment.seeds) & set(experiment.seeds):
            raise UserError(f"sweeps.{name}.seeds is {sweep.seeds}; valid are some of `seeds`, {experiment.seeds}.")
    for key, entry in entries.items():
        _check_method(key, entry)
    _check_own(experiment.models, models.MODELS, "models")
    _check_own(list(entries.values()), METHODS, "methods")


def _check_method(key: str, entry: MethodEntry) -> None:
    if not imports.is_path(entry.name):
        _check_known(key, "method", entry.name, method_names())
    try:
        method_named(entry.name)
    except UserError as error:
        raise UserError(f"{key}: {error}") from None


def _check_own(entries: Sequence[ModelEntry] | Sequence[MethodEntry], ours: Mapping[str, Any], key: str) -> None:
    """The names in results of the user's own models or methods are not those of others."""
    named: dict[str, str] = {}
    for entry in entries:
        other = named.setdefault(entry.label, entry.name)
        if entry.name != other or (imports.is_path(entry.name) and entry.label in ours):
            taken = f"that of {other}" if entry.name != other else "one of ours"
            raise UserError(f"{key}: the name in results of {entry.name} is {entry.label!r}, {taken}; rename it.")


def _models(experiment: Experiment) -> list[str]:
    """The names that models have in results."""
    return [*models.MODELS, *(model.label for model in experiment.models if model.name not in models.MODELS)]


def _check_model(key: str, model: ModelEntry, dataset: Dataset) -> None:
    """The model can be built for the dataset; for data not seen yet, one of ours can be on samples that suit them
    all, and one of the user's own takes its settings."""
    shape, classes = (PUBLISHED[dataset.kind][0], 10) if dataset.kind in PUBLISHED else ((32, 32), 2)
    try:
        models.factory_of(model.name, model.params)
        if not imports.is_path(model.name):
            with torch.device("meta"):  # structure only, no memory
                cgpfl.build_model(model.name, shape, classes, **model.params)
        elif dataset.kind in PUBLISHED:
            models.initial_row(partial(cgpfl.build_model, model.name, shape, classes, **model.params), 0)
    except UserError as error:
        raise UserError(f"{key} on {dataset.name}: {error}") from None


def _check_pairs(key: str, sweep: Sweep, experiment: Experiment) -> None:
    """Values by pair are for pairs that can be: with `--config`, an experiment may leave some of them out."""
    if isinstance(sweep.values, dict):
        known = [f"{dataset}/{model.label}" for dataset, model in experiment.pairs]
        places = {dataset for dataset, _ in experiment.pairs} | set(PUBLISHED)
        for pair in sweep.values:
            dataset, _, model = pair.partition("/")
            if dataset not in places or model not in _models(experiment):
                raise UserError(f"{key}: {pair!r} is no dataset/model; valid are {_names(known)}.{_meant(pair, known)}")


def _check_machine(experiment: Experiment) -> None:
    """The files and folders that datasets are read from exist, and so does the device."""
    datasets.archive_folder(experiment.data.archive_dir)
    for dataset in experiment.datasets:
        path = None if dataset.path is None else Path(dataset.path)
        if path is not None and not path.exists():
            raise UserError(f"datasets: {dataset.name} has path {dataset.path!r}, where nothing is.")
        if path is not None and dataset.kind == "npz" and not path.is_file():
            raise UserError(f"datasets: {dataset.name} has path {dataset.path!r}, a folder; valid is an .npz file.")
    device = experiment.training.device
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.startswith("cuda") and int(device.partition(":")[2] or 0) >= gpus:
        here = ["auto", "cpu", *["cuda"] * (gpus > 0), *(f"cuda:{i}" for i in range(gpus))]
        raise UserError(f"training.device is {device!r}; valid on this machine are {_names(here)}.")


def _check_known(key: str, what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise UserError(f"{key}: {name!r} is not a {what}; valid are {_names(known)}.{_meant(name, known)}")


def _check_params(experiment: Experiment, main: Experiment | None) -> None:
    """Every hyperparameter is one of its method's (in `params`: of some method's, in `main` too), in its range."""
    anywhere = {param.name: param for method in METHODS.values() for param in method.parameters}
    for entry in (entry for each in (experiment, main) if each for entry in each.all_entries):
        anywhere = entry.takes | anywhere
    groups = {"params": experiment.params}
    groups |= {f"model_params.{model}": params for model, params in experiment.model_params.items()}
    for group, params in groups.items():
        for name, value in params.items():
            if isinstance(value, list):
                raise UserError(f"{group}.{name} is a list; values to vary go into an entry of `methods` or `sweeps`.")
            _check_param(group, name, [value], anywhere)
    for i, entry in enumerate(experiment.methods):
        _check_entry(f"methods[{i}]", entry)
    entries = [*(MethodEntry.model_validate(name) for name in METHODS), *experiment.methods]
    takes = {entry.label: entry.takes for entry in entries}
    tune = experiment.tune or Tune()
    for model in tune.models or []:
        _check_known("tune.models", "model of the experiment", model, [model.label for model in experiment.models])
    for method in experiment.figures or []:
        _check_known("figures", "method of the experiment", method, [entry.label for entry in experiment.methods])
    for method, grid in tune.grids.items():
        _check_known("tune.grids", "method", method, takes)
        for name, values in grid.items():
            _check_param(f"tune.grids.{method}", name, values, takes[method])
    for name, sweep in experiment.sweeps.items():
        lists = sweep.values.values() if isinstance(sweep.values, dict) else [sweep.values]
        for i, entry in enumerate(sweep.methods):
            key = f"sweeps.{name}.methods[{i}]"
            for values in lists:
                _check_param(f"{key}.{entry.name}", name, values, entry.takes)
            _check_entry(key, entry)


def _check_entry(key: str, entry: MethodEntry) -> None:
    for name, value in entry.params.items():
        if value == []:
            raise UserError(f"{key}.{entry.name}.{name} is []; valid is a value or a list that is not empty.")
        values = value if isinstance(value, list) else [value]
        _check_param(f"{key}.{entry.name}", name, values, entry.takes)


def _check_param(group: str, name: str, values: Sequence[Any], known: Mapping[str, cgpfl.Param]) -> None:
    if name not in known:
        raise UserError(f"{group}.{name}: unknown parameter; valid are {_names(known)}.{_meant(name, known)}")
    for value in values:
        if value is not None:
            known[name].checked(value, group)


def _check_partition(experiment: Experiment) -> None:
    """The scheme has the options that are given, for every dataset, and the contexts that a method needs."""
    partition = experiment.partition
    dealt = [dataset for dataset in experiment.datasets if dataset.clients is None]
    for dataset in dealt:
        classes = 10 if dataset.kind in PUBLISHED else None
        partitions.check(partition.scheme, partition.clients, classes, **partition.options)
        if dataset.kind in PUBLISHED:
            _check_pool(partition, dataset.name, PUBLISHED[dataset.kind][1])
    oracle = any(job.method == "cgpfl_oracle" for job in experiment.jobs)
    for dataset in experiment.datasets:
        if oracle and dataset not in dealt:
            raise UserError(
                f"datasets: {dataset.name} comes with its clients, which have no true contexts for cgpfl_oracle; leave "
                "cgpfl_oracle out of `methods`."
            )
    if oracle and not partitions.has_contexts(partition.scheme):
        known = [name for name in partitions.schemes() if partitions.has_contexts(name)]
        raise UserError(
            f"partition.scheme is {partition.scheme!r}, whose clients have no true contexts for cgpfl_oracle; "
            f"valid are {_names(known)}, or leave cgpfl_oracle out of `methods`."
        )


def _check_tuned(experiment: Experiment) -> None:
    """Rows of Table 1 differ in more than what is tuned, else tuning may make one of two; no label names what is."""
    for job in experiment.tuned_jobs:
        grid = experiment.tuning(job.method)["grid"]
        for run in job.runs:
            tuned = [name for name in grid if without(run.label, name) != run.label]
            if TABLE1 in run.parts and tuned:
                raise UserError(
                    f"methods: {run.label} is told apart by {tuned[0]}, which tune.grids.{job.method} is to tune; set "
                    "it in `params`, or leave it out of the grid."
                )


def _check_pool(partition: Partition, dataset: str, samples: int) -> None:
    """The pool has the fewest samples that the clients can do with, whatever the labels."""
    option = partitions.options(partition.scheme) | partition.options
    # Two samples to train and test on; one of each class, and one to test on; one of each shard.
    held = option.get("classes_per_client", 1) + 1, option.get("shards_per_client", 1)
    least = max(option["min_samples"], *held)
    if least * partition.clients > samples:
        raise UserError(
            f"partition.clients is {partition.clients}; with {least} samples or more for each, as the other options "
            f"have it, valid is 1 to {samples // least} for the {samples} samples of {dataset}."
        )


def _sentence(error: ValidationError) -> str:
    """The deepest of pydantic's findings (in a union: of the branch that fits best) as one sentence of ours."""
    finding = max(error.errors(include_url=False), key=lambda found: len(found["loc"]))
    key, node = _locate(finding["loc"])
    value = finding["input"]
    if finding["type"] == "value_error":
        return f"{key} is {_plain(value)}; valid is {finding['ctx']['error']}."
    if finding["type"] == "extra_forbidden":
        known = node.get("properties", {})
        return f"{key}: unknown key; valid are {_names(known)}.{_meant(key.split('.')[-1], known)}"
    if finding["type"] == "missing":
        return f"{key} is missing; valid is {in_words(node)}."
    number = number_in(value) if isinstance(value, str) else None
    if number and _allows(node, float(number)):
        return f"{key}: {value!r} is text to YAML; write {number}."
    return f"{key or 'The configuration'} is {_plain(value)}; valid is {in_words(node)}."


def _locate(location: Sequence[str | int]) -> tuple[str, dict[str, Any]]:
    """The key at a place in a configuration and the JSON schema there, or of its parent for an unknown key."""
    schema = Experiment.model_json_schema()
    key, node, in_branch = "", schema, False
    for step in location:
        branches = [branch for branch in node.get("anyOf", []) if branch.get("type") != "null"]
        if len(branches) == 1:
            node = _resolved(schema, branches[0])  # null or one kind: pydantic's path names no branch
        elif branches and not in_branch:
            in_branch = True  # of a union, pydantic's path names the branch
            continue
        in_branch = False
        key += f"[{step}]" if isinstance(step, int) else f".{step}" if key else step
        node = _child(schema, node, step) or node
    return key, node


def _child(schema: Mapping[str, Any], node: Mapping[str, Any], step: str | int) -> dict[str, Any] | None:
    for branch in node.get("anyOf", [node]):
        found = (
            branch.get("items")
            if isinstance(step, int)
            else branch.get("properties", {}).get(step, branch.get("additionalProperties") or None)
        )
        if isinstance(found, dict):
            return _resolved(schema, found)
    return None


def _resolved(schema: Mapping[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A node, and its branches, with what they refer to."""
    reference = node.get("$ref") or ""
    node = schema["$defs"][reference.rpartition("/")[2]] | node if reference else node
    return node | {"anyOf": [_resolved(schema, branch) for branch in node["anyOf"]]} if "anyOf" in node else node


def in_words(node: Mapping[str, Any]) -> str:
    """What a JSON schema allows, in words."""
    if "anyOf" in node:
        return " or ".join(in_words(branch) for branch in node["anyOf"])
    if "enum" in node or "const" in node:
        return _names(node.get("enum", [node.get("const")]), "or")
    kind = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "true or false",
        "array": "a list",
        "object": "a mapping of keys",
        "null": "null",
    }.get(node.get("type", ""), "another value")
    if node.get("type") == "object" and node.get("properties"):
        kind += f" ({_names(node['properties'])})"
    if node.get("minItems") or node.get("minLength"):
        kind += " that is not empty"
    if node.get("pattern") == NAME:
        kind += " of letters, digits, '.', '_' and '-'"
    elif "pattern" in node:
        return node["description"]
    bounds = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    limits = [f"{words} {node[bound]}" for bound, words in bounds.items() if bound in node]
    return f"{kind} ({' and '.join(limits)})" if limits else kind


def _allows(node: Mapping[str, Any], number: float) -> bool:
    """Whether a JSON schema allows a number."""
    return any(
        (branch.get("type") == "number" or (branch.get("type") == "integer" and number.is_integer()))
        and branch.get("minimum", -math.inf) <= number <= branch.get("maximum", math.inf)
        and branch.get("exclusiveMinimum", -math.inf) < number < branch.get("exclusiveMaximum", math.inf)
        for branch in node.get("anyOf", [node])
    )


def _names(names: Any, last: str = "and") -> str:
    texts = [str(name) for name in names]
    return f"{', '.join(texts[:-1])} {last} {texts[-1]}" if len(texts) > 1 else "".join(texts)


def _meant(name: str, known: Any) -> str:
    close = get_close_matches(name, [str(each) for each in known], 1)
    return f" Did you mean {close[0]}?" if close else ""


def _plain(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
