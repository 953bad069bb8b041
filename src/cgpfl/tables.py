"""Tables: pure functions from the frames of an experiment's runs to tables of numbers, and their text forms.

Two frames go in everywhere. `runs` has one row a run: `run` (its key), `seed`, `dataset`, `model`, `method`,
`label` (the method's name with the parameters that vary, as `cgpfl[contexts=4]`), one column a hyperparameter
and the cost columns. `history` has one row a run, tested model and evaluated round. Every function looks at
the runs in `runs` only, so a part of an experiment (the rows of Table 1, one sweep) is chosen by passing
those rows of `runs` (`part`); the rest of `history` is ignored. Datasets, models and methods keep the order
in which `runs` names them.

Accuracies in tables are percent, averaged over seeds; the spread is the sample standard deviation (ddof 1),
empty for one seed. `final` is a run's last evaluated round and `best` its best one. A run that diverged has
no final accuracy: the row's final mean is then empty rather than a mean over the seeds that survived, and
`best` comes from the rounds before.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cgpfl.errors import UserError

TESTED = ["personal", "local", "global", "context"]
IDENTITY = ["dataset", "model", "method", "tested"]
NUMBERS = ["n_seeds", "final_mean", "final_std", "best_mean", "best_std", "paper", "difference"]
TABLE1 = [*IDENTITY, *NUMBERS]
TABLE2 = [*IDENTITY, "lam", *NUMBERS]
SWEEPS = [*IDENTITY, "parameter", "value", *(name for name in NUMBERS if name not in ("paper", "difference"))]
MAIN, TUNED = "main", "tuned"
"""The names among an experiment's studies of the main experiment and of its tuned methods."""
STUDIES = ["study", "changes", "train_samples", *TABLE1, "to_main_mean", "to_main_std", "shared_seeds"]

PAPER_METHODS: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "FedAvg": ("fedavg", {}),
    "IFCA (K=4)": ("ifca", {"contexts": 4}),
    "L2SGD": ("l2sgd", {}),
    "APFL": ("apfl", {}),
    "pFedMe (PM)": ("pfedme", {}),
    "Per-FedAvg (HF)": ("perfedavg", {"variant": "hf"}),
    "Ditto": ("ditto", {}),
    "CGPFL (K=2)": ("cgpfl", {"contexts": 2}),
    "CGPFL (K=4)": ("cgpfl", {"contexts": 4}),
    "CGPFL-Heur": ("cgpfl_heur", {}),
}
"""The paper's name of a method -> our name and the parameters that make it the paper's variant."""
PAPER_DATASETS: Mapping[str, tuple[str, ...]] = {
    "MNIST": ("mnist",),
    "FMNIST": ("fashion_mnist",),
    "CIFAR10": ("cifar10", "cifar10-jpeg"),
}


@dataclass(frozen=True)
class PaperResult:
    """One accuracy that the paper prints, in our names: `params` are the values a run must have to correspond."""

    datasets: tuple[str, ...]
    model: str
    method: str
    params: Mapping[str, object]
    accuracy: float

    def matches(self, run: Mapping[str, Any]) -> bool:
        """Whether a row of `runs` has this dataset, model, method and these parameters."""
        same = run["dataset"] in self.datasets and (run["model"], run["method"]) == (self.model, self.method)
        return same and all(run.get(name) == value for name, value in self.params.items())


def read_paper(path: Path | str, any_lam: bool = False) -> tuple[PaperResult, ...]:
    """The paper's numbers from a CSV of `method,dataset,model,lambda,accuracy` (names as printed, percent).

    With `any_lam` they are compared with runs of any lambda, as for methods that are tuned. An empty lambda stands
    for a method without one. Raises UserError for a column that is missing or a name that has no counterpart here.
    """
    table = pd.read_csv(path)
    if missing := {"method", "dataset", "model", "lambda", "accuracy"} - set(table.columns):
        raise UserError(
            f"{path}: column {sorted(missing)[0]!r} is missing; needed are method, dataset, model, lambda and accuracy."
        )
    found = tuple(_paper_result(path, row) for row in _records(table))
    return tuple(replace(each, params=_without_lam(each.params)) for each in found) if any_lam else found


def _without_lam(params: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in params.items() if name != "lam"}


def _paper_result(path: Path | str, row: Mapping[str, Any]) -> PaperResult:
    for column, known in (("method", PAPER_METHODS), ("dataset", PAPER_DATASETS)):
        if row[column] not in known:
            raise UserError(f"{path}: {column} {row[column]!r} is not known; valid are {', '.join(known)}.")
    method, params = PAPER_METHODS[row["method"]]
    if not pd.isna(row["lambda"]):
        params = {**params, "lam": float(row["lambda"])}
    datasets = PAPER_DATASETS[row["dataset"]]
    return PaperResult(datasets, row["model"].lower(), method, params, float(row["accuracy"]))


def part(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """The runs of one part of an experiment: `table1`, or a sweep by its parameter (`lam`, `contexts`).

    Column `parts` holds the parts each run belongs to, a sequence of names.
    """
    return runs[np.array([name in parts for parts in runs["parts"]], dtype=bool)]


def without(label: str, parameter: str) -> str:
    """A label without one of its parameters: `cgpfl[contexts=4,lam=12]` without `lam` is `cgpfl[contexts=4]`."""
    match = re.fullmatch(r"(.+?)\[(.*)\]", label)
    if match is None:
        return label
    kept = [part.strip() for part in match[2].split(",") if part.split("=")[0].strip() != parameter]
    return f"{match[1]}[{','.join(kept)}]" if kept else match[1]


def with_runs(runs: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of `frame` that belong to `runs`, in the order of `runs` and with the columns of their runs.

    A run's seed, dataset, model, method and label are those of `runs`; any other column of `frame` hides a
    hyperparameter of the same name (`contexts` of the heuristic frame).
    """
    own = frame.drop(columns=["seed", "dataset", "model", "method", "label"], errors="ignore")
    runs = runs.drop(columns=[name for name in own.columns if name in runs.columns and name != "run"])
    return runs.merge(own, on="run", how="inner", validate="one_to_many")


def percent(rows: pd.DataFrame, column: str) -> pd.Series:
    """A column of accuracies (0 to 1) in percent, NaN where the run has diverged."""
    return 100 * rows[column].where(~rows["diverged"].astype(bool))


def results_by_run(runs: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """The last evaluated round of each run and tested model, with `final` and `best` accuracy in percent.

    The columns are those of `runs` and `history`. `final` is NaN where the run had diverged by then. The
    headline model comes first in each run.
    """
    rows = with_runs(runs, history).sort_values("round", kind="stable")
    rows["final"] = percent(rows, "accuracy")
    rows["best"] = rows.groupby(["run", "tested"])["final"].transform("max")
    last = rows.groupby(["run", "tested"]).tail(1)
    return _in_order_of(runs, last, [])


def table1(runs: pd.DataFrame, history: pd.DataFrame, paper: Sequence[PaperResult] = ()) -> pd.DataFrame:
    """Table 1: a row for each dataset, model, method and tested model, columns TABLE1.

    The first row of a method is its headline model, and only there stands the `paper` number (`headline_rows`
    takes these rows); `difference` is the final mean less it. Raises ValueError where one method's label has two
    runs of a seed, which must not be averaged.
    """
    return _accuracy_table(results_by_run(runs, history), [], paper)[TABLE1]


def table2(runs: pd.DataFrame, history: pd.DataFrame, paper: Sequence[PaperResult] = ()) -> pd.DataFrame:
    """Table 2: as table1, a row for each lambda, ascending (columns TABLE2); the label leaves lambda out."""
    return _by_value(runs, history, "lam", paper)[TABLE2]


def sweeps(runs: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """As table1, a row for each value of each swept parameter, ascending; columns SWEEPS."""
    swept = dict.fromkeys(name for parts in runs["parts"] for name in parts if name != "table1")
    found = [
        _by_value(part(runs, name), history, name, ()).rename(columns={name: "value"}).assign(parameter=name)
        for name in swept
    ]
    return pd.concat(found, ignore_index=True)[SWEEPS] if found else pd.DataFrame(columns=SWEEPS)


def _by_value(runs: pd.DataFrame, history: pd.DataFrame, name: str, paper: Sequence[PaperResult]) -> pd.DataFrame:
    """Accuracies for each value of a parameter, which labels leave out; runs without it have none."""
    labels = [without(label, name) for label in runs["label"]]
    runs = runs.assign(**{"label": labels, name: runs.get(name, np.nan)})
    return _accuracy_table(results_by_run(runs, history), [name], paper)


def comparable(runs: pd.DataFrame, name: str = "table1") -> pd.DataFrame:
    """The runs of a part under labels that mean the same in every study: the method, with its number of contexts.

    `cgpfl[contexts=4]` whether or not other runs of the study have another number. Where a method has several
    settings with one number of contexts (and one value of the parameter, where the part is a sweep), the first counts.
    """
    setting = ["dataset", "model", "label", "seed", *([name] if name in runs.columns else [])]
    return labelled_by_contexts(part(runs, name)).drop_duplicates(setting)


def labelled_by_contexts(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs under their method's name, with its number of contexts if it is given one."""
    contexts = runs["contexts"] if "contexts" in runs.columns else pd.Series(np.nan, runs.index)
    pairs = zip(runs["method"], contexts, strict=True)
    labels = [method if pd.isna(number) else f"{method}[contexts={number:g}]" for method, number in pairs]
    return runs.assign(label=labels)


def studies(
    results: Mapping[str, Mapping[str, pd.DataFrame]],
    changes: Mapping[str, str],
    samples: Mapping[tuple[str, str], float],
    paper: Sequence[PaperResult] = (),
) -> pd.DataFrame:
    """Table 1 of every study below that of the main experiment, columns STUDIES.

    `results`: by study, the main experiment under MAIN, its frames. `changes`: by study, what differs from the main
    experiment, in words. `samples`: by study and dataset, mean training samples of a client. `to_main`: final accuracy
    less that of the main experiment with the same seed, in points, over the `shared_seeds` that both have.
    """
    key = ["dataset", "model", "label", "tested", "seed"]
    finals = {name: results_by_run(comparable(own["runs"]), own["history"]) for name, own in results.items()}
    main = finals[MAIN][[*key, "final"]].rename(columns={"final": "of_main"})
    rows = []
    for name, own in finals.items():
        paired = own.merge(main, on=key, how="left").assign(to_main=lambda both: both["final"] - both["of_main"])
        table = _accuracy_table(own, [], paper)
        moved = _group(paired, [], _moved, ["to_main_mean", "to_main_std", "shared_seeds"]).drop(columns="n_seeds")
        table = table.merge(moved, on=IDENTITY)
        train = [samples[name, dataset] for dataset in table["dataset"]]
        rows.append(table.assign(study=name, changes=changes.get(name, ""), train_samples=train))
    return pd.concat(rows, ignore_index=True)[STUDIES]


def _moved(rows: pd.DataFrame) -> dict[str, float]:
    shared = rows["to_main"].dropna()
    return {"to_main_mean": shared.mean(), "to_main_std": shared.std(ddof=1), "shared_seeds": len(shared)}


MU = tuple(float(mu) for mu in np.geomspace(0.01, 100, 81))
"""Multiples of the mu used, at which `contexts_by_mu` asks for K."""


def contexts_by_mu(heuristic: pd.DataFrame, multiples: Sequence[float] = MU) -> pd.DataFrame:
    """The K of least e(K) = complexity(K) + mu * cost(K), for multiples of the mu that each run of cgpfl_heur used.

    `heuristic`: the criterion by run and `contexts`. Columns `run`, `relative_mu`, `mu`, `contexts`; of equal e the
    smaller K.
    """
    rows = []
    for key, own in heuristic.groupby("run", sort=False):
        own = own[own["round"] == own["round"].max()].sort_values("contexts")
        used = float(own["mu"].iloc[0])
        for multiple in multiples:
            best = np.argmin(own["complexity"] + multiple * used * own["cost"])
            rows.append((key, multiple, multiple * used, int(own["contexts"].iloc[best])))
    return pd.DataFrame(rows, columns=["run", "relative_mu", "mu", "contexts"])


def choice_by_mu(runs: pd.DataFrame, heuristic: pd.DataFrame) -> pd.DataFrame:
    """For each dataset, model and seed of cgpfl_heur: its mu, its K, and the range of mu that would choose that K."""
    rows = with_runs(runs[runs["method"] == "cgpfl_heur"], heuristic)
    chosen = rows[rows["chosen"].astype(bool)].drop_duplicates("run", keep="last").set_index("run")
    same = contexts_by_mu(rows).join(chosen[["contexts"]].rename(columns={"contexts": "chosen"}), on="run")
    span = same[same["contexts"] == same["chosen"]].groupby("run")["mu"].agg(["min", "max"])
    table = chosen.join(span.rename(columns={"min": "mu_from", "max": "mu_to"}))
    names = ["dataset", "model", "seed", "mu", "contexts", "mu_from", "mu_to"]
    return table.reindex(columns=names).reset_index(drop=True)


def headline_rows(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of the models that methods are judged by: the first of each method (and lambda) in a table."""
    return table.drop_duplicates([c for c in ("dataset", "model", "method", "lam") if c in table.columns])


def fairness(runs: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """How evenly clients are served at the last evaluated round, in percent: a row as in table1.

    `client_mean`: unweighted mean over clients; `client_spread`: standard deviation over clients;
    `worst_tenth`: mean of the worst tenth of the clients; each as mean and standard deviation over seeds.
    """
    sources = {
        "client_mean": "accuracy_client_mean",
        "client_spread": "accuracy_client_std",
        "worst_tenth": "accuracy_worst_decile",
    }
    results = results_by_run(runs, history)
    results = results.assign(**{name: percent(results, column) for name, column in sources.items()})
    return _group(results, [], lambda rows: _moments(rows, sources), _moment_names(sources))


def cost(runs: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """What each method costs one client: a row a dataset, model and method, means over seeds.

    `parameters` of the model; `gradients_per_round`: minibatch gradients; `sent_per_round`,
    `received_per_round`: numbers (not bytes); `rounds` and `gradients` at the end of training.
    """
    per_run = [
        "parameters",
        "gradients_per_round",
        "sent_per_round",
        "received_per_round",
        "rounds",
        "gradients",
    ]
    results = results_by_run(runs, history).drop_duplicates("run").rename(columns={"round": "rounds"})
    table = _group(results, [], lambda rows: {c: rows[c].mean() for c in per_run}, per_run)
    return table.drop(columns=["tested", "n_seeds"])


def equal_gradients(runs: pd.DataFrame, history: pd.DataFrame, budget: int | None = None) -> pd.DataFrame:
    """Accuracy (percent) once every client has computed the same number of gradients: a row as in table1.

    `budget` minibatch gradients; by default, for each dataset and model, all that the cheapest method spends
    in its training. A run counts with its last evaluated round within the budget (`round`, mean over seeds).
    Accuracy is empty where a run has none or had diverged by then.
    """
    rows = with_runs(runs, history).sort_values("round", kind="stable")
    ends = results_by_run(runs, history)
    spent = ends["gradients"].where(ends["final"].notna()).groupby([ends["dataset"], ends["model"]]).min()
    limits = [spent[pair] if budget is None else budget for pair in zip(ends["dataset"], ends["model"], strict=True)]
    ends = ends[[*runs.columns, "tested", "headline"]].assign(budget=limits)
    rows = rows.merge(ends[["run", "tested", "budget"]], on=["run", "tested"])
    rows["accuracy"] = percent(rows, "accuracy")
    reached = rows[rows["gradients"] <= rows["budget"]].groupby(["run", "tested"]).tail(1)
    results = ends.merge(reached[["run", "tested", "round", "accuracy"]], on=["run", "tested"], how="left")

    def numbers(rows: pd.DataFrame) -> dict[str, float]:
        return {
            "gradients": rows["budget"].iloc[0],
            "round": rows["round"].mean(),
            **_moments(rows, ["accuracy"]),
        }

    return _group(results, [], numbers, ["gradients", "round", *_moment_names(["accuracy"])])


def diverged(runs: pd.DataFrame, history: pd.DataFrame) -> pd.DataFrame:
    """The runs that diverged: dataset, model, method (label), run, seed and the first `round` that showed it."""
    rows = with_runs(runs, history)
    rows = rows[rows["diverged"].astype(bool)].sort_values("round", kind="stable").drop_duplicates("run")
    rows = _in_order_of(runs, rows, [])
    rows = rows.drop(columns="method").rename(columns={"label": "method"})
    return rows[["dataset", "model", "method", "run", "seed", "round"]].reset_index(drop=True)


def write_csv(table: pd.DataFrame, path: Path | str) -> None:
    """Writes a table so that the same results give the same bytes: results with four decimals at most."""
    results = table.columns.difference(["lam", "value"])
    table.round(dict.fromkeys(results, 4)).to_csv(path, index=False, float_format="%.10g", lineterminator="\n")


def to_markdown(table: pd.DataFrame, failed: pd.DataFrame | None = None) -> str:
    """A table of accuracies (table1 or table2) as Markdown, a section a dataset and model, with mean ± std.

    Table 1: headline models in bold. Table 2: headline models only, a column a lambda. `failed` (from
    `diverged`) adds a line for each run that diverged.
    """
    section = _table2_section if "lam" in table.columns else _table1_section
    parts = [
        f"## {dataset} / {model}\n\n{section(rows)}"
        for (dataset, model), rows in table.groupby(["dataset", "model"], sort=False)
    ]
    if failed is not None and len(failed):
        parts.append("## Diverged runs\n\n" + "\n".join(f"- {line}" for line in _diverged_lines(failed)))
    return "\n\n".join(parts or ["No runs."]) + "\n"


def summary(table: pd.DataFrame, width: int = 100) -> str:
    """The headline rows of Table 1 as aligned text, at most `width` characters wide, for the end of a run."""
    if table.empty:
        return "No runs."
    title = "Test accuracy in percent, mean ± standard deviation over seeds"
    columns = ["tested", "seeds", "final", "best", "paper"]
    columns = columns if table["paper"].notna().any() else columns[:-1]
    lines: list[list[str]] = []
    for (dataset, model), rows in headline_rows(table).groupby(["dataset", "model"], sort=False):
        lines += [[], [f"{dataset} / {model}", *columns]]
        lines += [[f"  {row['method']}", *_summary_cells(row)[: len(columns)]] for row in _records(rows)]
    return "\n".join([title, *_aligned(lines, width)])


def _summary_cells(row: Mapping[str, Any]) -> list[str]:
    accuracies = [mean_std(row, "final"), mean_std(row, "best"), _number(row["paper"])]
    return [row["tested"], str(row["n_seeds"]), *accuracies]


def _aligned(lines: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of cells as text: the first two columns to the left, the first cut to fit, the others to the right."""
    first, *widths = [max(map(len, cells)) for cells in zip(*(cells for cells in lines if cells), strict=True)]
    first = min(first, width - sum(widths) - 2 * len(widths))

    def text(cells: Sequence[str]) -> str:
        name = cells[0] if len(cells[0]) <= first else cells[0][: first - 1] + "…"
        numbers = [cell.rjust(size) for cell, size in zip(cells[2:], widths[1:], strict=True)]
        return "  ".join([name.ljust(first), cells[1].ljust(widths[0]), *numbers]).rstrip()

    return [text(cells) if cells else "" for cells in lines]


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


def _in_order_of(runs: pd.DataFrame, rows: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Sorted by dataset, model and label in the order of `runs`, then `by` and seed, headline model first."""
    rank = {c: pd.Categorical(rows[c], list(pd.unique(runs[c]))).codes for c in ("dataset", "model", "label")}
    tested = pd.Categorical(rows["tested"], TESTED).codes
    keys = [
        tested,
        ~rows["headline"].astype(bool),
        rows["seed"],
        *(pd.factorize(rows[c], sort=True)[0] for c in reversed(by)),
    ]
    order = np.lexsort([np.asarray(key) for key in (*keys, rank["label"], rank["model"], rank["dataset"])])
    return rows.iloc[order].reset_index(drop=True)


def _group(
    results: pd.DataFrame,
    by: Sequence[str],
    numbers: Callable[[pd.DataFrame], Mapping[str, float]],
    columns: Sequence[str],
) -> pd.DataFrame:
    """One row for each dataset, model, label, `by` and tested model: n_seeds and the `numbers` of its seeds."""
    rows = []
    results = _in_order_of(results, results, by)
    for key, seeds in results.groupby(["dataset", "model", "label", *by, "tested"], sort=False):
        identity = dict(zip(["dataset", "model", "method", *by, "tested"], key, strict=True))
        if seeds["seed"].duplicated().any():
            raise ValueError(f"several runs of one seed for {identity}: pass the runs of one part of the experiment")
        rows.append({**identity, "n_seeds": len(seeds), **numbers(seeds)})
    return pd.DataFrame(rows, columns=[*IDENTITY, *by, "n_seeds", *columns])


def _moments(rows: pd.DataFrame, names: Iterable[str]) -> dict[str, float]:
    """Mean and standard deviation over seeds; NaN if any seed is (a diverged run is never averaged away)."""
    pairs = ((name, rows[name]) for name in names)
    return {
        f"{name}_{moment}": value
        for name, seeds in pairs
        for moment, value in (("mean", seeds.mean(skipna=False)), ("std", seeds.std(ddof=1, skipna=False)))
    }


def _moment_names(names: Iterable[str]) -> list[str]:
    return [f"{name}_{moment}" for name in names for moment in ("mean", "std")]


def _accuracy_table(results: pd.DataFrame, by: Sequence[str], paper: Sequence[PaperResult]) -> pd.DataFrame:
    def numbers(rows: pd.DataFrame) -> dict[str, float]:
        run = _records(rows)[0]
        printed = [result.accuracy for result in paper if run["headline"] and result.matches(run)]
        own, number = _moments(rows, ["final", "best"]), printed[0] if printed else np.nan
        return {**own, "paper": number, "difference": own["final_mean"] - number}

    return _group(results, by, numbers, NUMBERS[1:])


def _number(value: float) -> str:
    return "" if pd.isna(value) else f"{value:.2f}"


def mean_std(row: Mapping[Any, Any], name: str) -> str:
    """A mean with its standard deviation as text: columns `<name>_mean` and `<name>_std`; `diverged` without a mean."""
    mean, std = row[f"{name}_mean"], row[f"{name}_std"]
    if pd.isna(mean):
        return "diverged"
    return f"{mean:.2f}" if pd.isna(std) else f"{mean:.2f} ± {std:.2f}"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], left: int) -> str:
    """A Markdown table whose first `left` columns are aligned to the left and the others to the right."""
    rule = [":--" if i < left else "--:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows))


def _table1_section(table: pd.DataFrame) -> str:
    headline = set(headline_rows(table).index)
    rows = []
    for index, row in zip(table.index, _records(table), strict=True):
        mark = "**" if index in headline else ""
        rows.append(
            [
                f"`{row['method']}`" if mark else "",
                f"{mark}{row['tested']}{mark}",
                str(row["n_seeds"]),
                f"{mark}{mean_std(row, 'final')}{mark}",
                mean_std(row, "best"),
                _number(row["paper"]),
                "" if pd.isna(row["difference"]) else f"{row['difference']:+.2f}",
            ]
        )
    head = ["method", "tested", "seeds", "final", "best", "paper", "final - paper"]
    columns = len(head) if table["paper"].notna().any() else len(head) - 2
    return markdown(head[:columns], [row[:columns] for row in rows], left=2)


def _table2_section(table: pd.DataFrame) -> str:
    table = headline_rows(table)
    lams = sorted(table["lam"].unique())
    rows = []
    for method, group in table.groupby("method", sort=False):
        of_lam = {row["lam"]: row for row in _records(group)}
        rows.append([f"`{method}`", *(mean_std(of_lam[lam], "final") if lam in of_lam else "" for lam in lams)])
        if group["paper"].notna().any():
            rows.append(["*paper*", *(_number(of_lam[lam]["paper"]) if lam in of_lam else "" for lam in lams)])
    return markdown(["lambda", *(f"{lam:g}" for lam in lams)], rows, left=1)


def _diverged_lines(runs: pd.DataFrame) -> list[str]:
    return [
        f"`{row['method']}` on {row['dataset']} / {row['model']}, seed {row['seed']} (run {row['run']}): "
        f"diverged by round {row['round']}"
        for row in _records(runs)
    ]
