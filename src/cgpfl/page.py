"""The page on the reproduction: a template's words, and numbers that all come from an experiment's result files.

`python -m cgpfl.page results/paper docs/REPRODUCTION.md` writes the page from `docs/REPRODUCTION.template.md`. The
template names sections, `$differences` for one of SECTIONS; a section whose files are not there says so.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import pandas as pd
import yaml

from cgpfl import claims, tables
from cgpfl.errors import UserError
from cgpfl.experiment import PUBLISHED, Dataset, Experiment, ModelEntry, Tune
from cgpfl.methods.cgpfl import AUTO_MU

CLOSE = 1.0
"""Points within which an accuracy matches the paper's."""
GOAL_MINUTES, GOAL_JOBS = 120, 2
"""What Table 1, Table 2 and the figures may take, with so many jobs side by side."""
CELL = ["dataset", "model", "method"]


class _MissingError(Exception):
    """A result file that is not there."""


def build(template: str, home: Path) -> str:
    """The page: the template with its sections made from the results in a folder.

    Raises UserError for a section that is none of SECTIONS.
    """
    names = Template(template).get_identifiers()
    if unknown := [name for name in names if name not in SECTIONS]:
        raise UserError(f"${unknown[0]} is no section of the page; valid are {', '.join(SECTIONS)}.")
    return Template(_with_figures(template, home)).substitute({name: _section(name, home) for name in names})


def _with_figures(template: str, home: Path) -> str:
    """The template without the pictures that have not been drawn yet."""

    def kept(line: str) -> bool:
        picture = re.fullmatch(r"!\[.*\]\(.*/(figures/.*)\)", line.strip())
        return picture is None or (home / picture[1]).is_file()

    return "".join(line for line in template.splitlines(keepends=True) if kept(line))


def _section(name: str, home: Path) -> str:
    try:
        return SECTIONS[name](home)
    except _MissingError as missing:
        return f"*Missing: `{missing}` has not been made yet.*"


def _table(home: Path, name: str) -> pd.DataFrame:
    """A result table with at least one row."""
    path = home / name
    if not path.is_file() or (table := pd.read_csv(path, dtype={"value": str})).empty:
        raise _MissingError(name)
    return table


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    return tables.markdown(head, list(rows), left)


def _frame(name: str, cells: pd.DataFrame) -> str:
    """A frame of texts, its index under a name."""
    rows = [[str(index), *row] for index, row in zip(cells.index, cells.to_numpy(), strict=True)]
    return _markdown([name, *map(str, cells.columns)], rows)


def _pair(table: pd.DataFrame) -> pd.Series:
    return table["dataset"] + " / " + table["model"]


def _by_pair(table: pd.DataFrame, texts: Iterable[str]) -> str:
    """A text for each row of a table: a row a method, a column a dataset and model."""
    cells = pd.Series(list(texts), index=table.index).groupby(["`" + table["method"] + "`", _pair(table)], sort=False)
    return _frame("method", cells.agg(", ".join).unstack().fillna(""))


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in table.to_dict("records")]


def _signed(value: float) -> str:
    return "" if pd.isna(value) else f"{value:+.2f}"


def _config(home: Path) -> dict[str, Any]:
    """The configuration that the results are of."""
    path = home / "config.yaml"
    if not path.is_file():
        raise _MissingError(path.name)
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def _given(home: Path, key: str) -> Any:
    """A value of the configuration by its dotted key."""
    value: Any = _config(home)
    for name in key.split("."):
        if name not in value:
            raise _MissingError(f"config.yaml with {key}")
        value = value[name]
    return value


def runs(home: Path) -> str:
    """Which seeds, datasets and models the results are of."""
    seeds = _config(home).get("seeds", Experiment.model_fields["seeds"].default)
    models = [ModelEntry.model_validate(model).label for model in _given(home, "models")]
    parts = {"Seeds": map(str, seeds), "datasets": _datasets(home), "models": models}
    return "; ".join(f"{name} {', '.join(each)}" for name, each in parts.items()) + "."


def _datasets(home: Path) -> list[str]:
    return [Dataset.model_validate(dataset).name for dataset in _given(home, "datasets")]


def settings(home: Path) -> str:
    """The shared settings of Table 1, and what methods have of their own."""
    config = _config(home)
    training, clients = config.get("training", {}), config.get("partition", {}).get("clients", "")
    given = {key: training[key] for key in ("rounds", "batch_size") if key in training}
    own = [
        f"`{name}`: {_values(values)}"
        for entry in config.get("methods", [])
        if isinstance(entry, Mapping)
        for name, values in entry.items()
        if values
    ]
    return "; ".join([f"{clients} clients, {_values({**given, **config.get('params', {})})}", *own]) + "."


def _values(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in params.items())


def _compared(home: Path, name: str) -> str:
    """Headline accuracies beside the paper's."""
    table = tables.headline_rows(_table(home, name))
    return _by_pair(table, map(_cell, _records(table)))


def _cell(row: Mapping[Any, Any]) -> str:
    text = tables.mean_std(row, "final")
    return text if pd.isna(row["paper"]) else f"{text} ({row['paper']:.2f})"


def shared(home: Path) -> str:
    """Table 1 with shared settings."""
    return _compared(home, "tables/table1.csv")


def copied(home: Path) -> str:
    """How many of the paper's accuracies in Table 1 stand in its Table 2 too, at the lambda where most do."""
    one, two = (tables.headline_rows(_table(home, f"tables/table{n}.csv")).dropna(subset="paper") for n in (1, 2))
    one, two = (table.assign(method=table["method"].str.partition("[")[0]) for table in (one, two))
    of_both = one[one["method"].isin(two["method"])]
    lams = of_both.merge(two[[*CELL, "paper", "lam"]].drop_duplicates(), on=[*CELL, "paper"])["lam"].value_counts()
    if lams.empty:
        raise _MissingError("tables/table2.csv with the paper's numbers of Table 1")
    ours = f"{lams.max()} are those at lambda {lams.idxmax():g}"
    return f"Of its {len(of_both)} accuracies in Table 1 for methods of Table 2, {ours}"


def tuned(home: Path) -> str:
    """Table 1 with tuned methods."""
    return _compared(home, "tables/table1_tuned.csv")


def tuning(home: Path) -> str:
    """What methods are tuned on."""
    tune = Tune.model_validate(_given(home, "tune"))
    seeds = ", ".join(map(str, tune.seeds or _given(home, "seeds")[:1]))
    rounds = tune.rounds or _given(home, "training.rounds")
    share = f"{tune.validation:.0%} of each client's training samples"
    return f"Held out for validation: {share}; seeds {seeds}; {rounds} rounds."


def choices(home: Path) -> str:
    """What tuning chose, marked where it is the smallest or the largest number of several tried."""
    table = _table(home, "tables/tuned_choices.csv")
    number = pd.to_numeric(table["value"], errors="coerce")
    tried = number.groupby([table[key] for key in ("dataset", "model", "method", "parameter")])
    smallest, largest = tried.transform("min"), tried.transform("max")
    at_end = (number.eq(smallest) | number.eq(largest)) & smallest.lt(largest)
    values = number.map("{:.4g}".format).where(number.notna(), table["value"])
    text = table["parameter"] + " " + values + at_end.map({True: "*", False: ""})
    chosen = table["chosen"].astype(bool)
    return _by_pair(table[chosen], text[chosen])


def lambdas(home: Path) -> str:
    """Table 2: for each dataset and model, headline accuracies beside the paper's by lambda."""
    table = tables.headline_rows(_table(home, "tables/table2.csv"))
    table = table.assign(text=[_cell({**row, "final_std": math.nan}) for row in _records(table)])
    parts = [f"Mean over seeds; seeds of a cell: {_span(table['n_seeds'])}."]
    for pair, own in table.groupby(_pair(table), sort=False):
        methods, lams = "`" + own["method"] + "`", own["lam"].rename("")
        cells = own.groupby([methods, lams], sort=False)["text"].first().unstack().fillna("")
        parts.append(_frame(str(pair), cells.rename(columns="{:g}".format)))
    return "\n\n".join(parts)


def differences(home: Path) -> str:
    """Where results match the paper's within CLOSE points and where not; there, the nearest tested model and change."""
    table = _table(home, "tables/table1.csv")
    studies = _studies(home) if (home / "tables/studies.csv").is_file() else None
    headlines = tables.headline_rows(table)
    headlines = headlines[headlines["paper"].notna()]
    headlines = headlines.assign(difference=headlines["final_mean"] - headlines["paper"])
    far = headlines[headlines["difference"].abs().gt(CLOSE) | headlines["difference"].isna()]
    count = f"{len(headlines) - len(far)} of {len(headlines)} accuracies are within {CLOSE:g} point of the paper's."
    if far.empty:
        return count
    rows = []
    for row in _records(far):
        name, pair, gap = f"`{row['method']}`", f"{row['dataset']} / {row['model']}", _signed(row["difference"])
        change = [] if studies is None else [_nearest_change(studies, row)]
        rows.append([name, pair, row["tested"], gap, _nearest_model(table, row), *change])
    head = ["method", "", "tested", "ours less the paper's", "nearest tested model"]
    head += [] if studies is None else ["nearest change"]
    return f"{count} The others:\n\n{_markdown(head, rows, left=3)}"


def _nearest_model(table: pd.DataFrame, row: Mapping[str, Any]) -> str:
    """Which of a method's tested models comes nearest to the paper's accuracy, and its difference to that."""
    own = table[(table[CELL] == [row[name] for name in CELL]).all(axis=1)].dropna(subset="final_mean")
    if own.empty:
        return ""
    gaps = own.set_index("tested")["final_mean"] - row["paper"]
    return f"{gaps.abs().idxmin()} {_signed(gaps[gaps.abs().idxmin()])}"


def _nearest_change(studies: pd.DataFrame, row: Mapping[str, Any]) -> str:
    """Which study brings an accuracy nearest to the paper's: by how many points, in the seeds that it shares with the
    main experiment, and the difference that this leaves."""
    same = (studies[["dataset", "model", "paper"]] == [row["dataset"], row["model"], row["paper"]]).all(axis=1)
    same &= studies["method"].str.partition("[")[0] == row["method"].partition("[")[0]
    own = studies[same & studies["changes"].ne("")].dropna(subset="to_main_mean")
    if own.empty:
        return ""
    left = row["difference"] + own["to_main_mean"]
    best = left.abs().idxmin()
    if abs(left[best]) >= abs(row["difference"]):
        return "none is nearer"
    return f"`{own['changes'][best]}`: {_signed(own['to_main_mean'][best])}, leaves {_signed(left[best])}"


def tested_models(home: Path) -> str:
    """What testing another of a method's models makes of its accuracy."""
    table = _table(home, "tables/table1.csv")
    headline = tables.headline_rows(table)[[*CELL, "tested", "final_mean"]]
    both = table.merge(headline, on=CELL, suffixes=("", "_headline"))
    both = both[both["tested"] != both["tested_headline"]]
    gaps = (both["final_mean"] - both["final_mean_headline"]).map(_signed)
    names = "`" + both["method"] + "`: " + both["tested"] + " instead of " + both["tested_headline"]
    cells = gaps.groupby([names, _pair(both)], sort=False).first().unstack().fillna("")
    return _frame("tested model", cells)


def _claims(home: Path) -> pd.DataFrame:
    return _table(home, "claims.csv").astype(object).fillna("")


def counts(home: Path) -> str:
    """How many claims have which verdict."""
    return claims.to_markdown(_claims(home)).partition("\n")[0]


def verdicts(home: Path) -> str:
    """The claims with their verdicts, and the level that they are tested at."""
    table = claims.to_markdown(_claims(home)).partition("\n")[2].strip()
    return f"Level of the tests: {claims.LEVEL:.0%}.\n\n{table}"


def sizes(home: Path) -> str:
    """What uniform draws of clients' sizes would take, and what there is."""
    clients, least, most = (_given(home, f"partition.{key}") for key in ("clients", "min_samples", "max_samples"))
    names = [name for name in _datasets(home) if name in PUBLISHED]
    pools = ", ".join(f"{name} has {PUBLISHED[name][1]:,}" for name in names)
    return (
        f"{clients} uniform draws from {least} to {most} take {clients * (least + most) / 2:,.0f} in the mean; {pools}"
    )


def eta(home: Path) -> str:
    """The largest eta lambda of the experiment."""
    swept = _config(home).get("sweeps", {}).get("lam", {}).get("values", [])
    lists = swept.values() if isinstance(swept, dict) else [swept]
    largest = max([_given(home, "params.lam"), *(value for values in lists for value in values)])
    return f"{_given(home, 'params.eta') * largest:.3g}"


def literal(home: Path) -> str:
    """By how much Algorithm 1's factor 2 lr/N is below lr lambda."""
    return f"{_given(home, 'params.lam') * _given(home, 'partition.clients') / 2:g}"


def _studies(home: Path) -> pd.DataFrame:
    """The headline rows of all studies, the main experiment among them."""
    table = _table(home, "tables/studies.csv").fillna({"changes": ""})
    return table.drop_duplicates(["study", *CELL]).reset_index(drop=True)


def _matching(studies: pd.DataFrame, wanted: pd.Series) -> pd.DataFrame:
    if not wanted.any():
        raise _MissingError("tables/studies.csv with such studies")
    return studies[wanted]


def _with_unchanged(home: Path, changes: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Studies whose changes match a pattern, and the same datasets, models and methods with nothing changed: of a study
    that has them so, for its seeds are the studies', else of the main experiment."""
    studies = _studies(home)
    changed = _matching(studies, studies["changes"].str.fullmatch(changes))
    same = studies[studies["changes"].eq("")].sort_values(
        "study", key=lambda names: names.eq(tables.MAIN), kind="stable"
    )
    return changed, same.drop_duplicates(CELL).merge(changed[CELL].drop_duplicates())


def ablation(home: Path) -> str:
    """How far each choice moves the final accuracy of headline models, in points, seed by seed."""
    studies = _studies(home)
    changes = studies["changes"]
    rows = _matching(studies, changes.ne("") & ~changes.str.contains("partition.", regex=False))
    cells = []
    for row in _records(rows):
        spread = "" if pd.isna(row["to_main_std"]) else f" ± {row['to_main_std']:.2f}"
        moved = f"{_signed(row['to_main_mean'])}{spread}"
        pair, seeds = f"{row['dataset']} / {row['model']}", f"{row['shared_seeds']:g}"
        cells.append([f"`{row['changes']}`", pair, f"`{row['method']}`", moved, seeds])
    return _markdown(["change", "", "method", "points", "seeds"], cells, left=3)


def _by_study(rows: pd.DataFrame, names: Iterable[str]) -> str:
    """Accuracies: a row a dataset, model and name, a column a method."""
    cells = rows.assign(named=list(names), text=[tables.mean_std(row, "final") for row in _records(rows)])
    cells = cells.groupby([_pair(cells), "named", "method"], sort=False)["text"].first().unstack().fillna("")
    lines = [[*map(str, index), *row] for index, row in zip(cells.index, cells.to_numpy(), strict=True)]
    return _markdown(["", "", *(f"`{method}`" for method in cells.columns)], lines, left=2)


def data(home: Path) -> str:
    """Accuracy by the share of the training samples; with nothing changed it is all of them."""
    rows = pd.concat(_with_unchanged(home, r"partition\.train_share=[^,]*"), ignore_index=True)
    shares = [float(changes.partition("=")[2] or 1) for changes in rows["changes"]]
    samples = rows["train_samples"]
    return _by_study(rows, [f"{share:.0%}, {n:.0f} samples" for share, n in zip(shares, samples, strict=True)])


def partitions(home: Path) -> str:
    """Accuracy under other schemes of partition, below that under the main experiment's."""
    changed, same = _with_unchanged(home, r".*partition\.scheme=.*")
    same = same.assign(study=f"{_given(home, 'partition.scheme')} (main)")
    rows = pd.concat([same, changed], ignore_index=True)
    return _by_study(rows, rows["study"])


def mu(home: Path) -> str:
    """The rule for mu; the K that cgpfl_heur chose, and the range of mu that would choose it in every seed."""
    table = _table(home, "tables/mu.csv")
    rule = (
        f"mu = {AUTO_MU:g} sqrt(d/m log(e m/d)) / cost(1), so that e(K) is in proportion to "
        f"sqrt(K) + {AUTO_MU:g} cost(K)/cost(1): near K a further context pays where it explains more than about "
        f"{100 / (2 * AUTO_MU):g}/sqrt(K) percent of the spread of the uploads."
    )
    rows = []
    for pair, own in table.groupby(_pair(table), sort=False):
        chosen = ", ".join(map(str, sorted(own["contexts"].unique())))
        low, high = own["mu_from"].max(), own["mu_to"].min()
        span = f"{low:.3g} to {high:.3g}" if low <= high else "none"
        rows.append([str(pair), chosen, f"{own['mu'].min():.3g} to {own['mu'].max():.3g}", span])
    return f"{rule}\n\n{_markdown(['', 'chosen K', 'mu used', 'mu that chooses the same in every seed'], rows)}"


def fairness(home: Path) -> str:
    """Spread of accuracies over clients and the worst tenth's, of headline models."""
    table = tables.headline_rows(_table(home, "tables/fairness.csv"))
    pairs = zip(table["client_spread_mean"], table["worst_tenth_mean"], strict=True)
    return _by_pair(table, [f"{spread:.2f}; {worst:.2f}" for spread, worst in pairs])


def equal_gradients(home: Path) -> str:
    """Accuracy once every client has computed as many gradients, of headline models."""
    table = tables.headline_rows(_table(home, "tables/equal_gradients.csv"))
    accuracies = _by_pair(table, [tables.mean_std(row, "accuracy") for row in _records(table)])
    return f"Minibatch gradients that a client has computed: {_span(table['gradients'])}.\n\n{accuracies}"


def per_round(home: Path) -> str:
    """What a round costs a client: gradients, and what it sends and receives in multiples of the model's size."""
    table = _table(home, "tables/cost.csv")
    for column in ("sent", "received"):
        table[column] = table[f"{column}_per_round"] / table["parameters"]
    columns = ["gradients_per_round", "sent", "received"]
    rows = [
        [f"`{method}`", *(_span(own[column]) for column in columns)]
        for method, own in table.groupby("method", sort=False)
    ]
    return _markdown(["method", "gradients", "models sent", "models received"], rows)


def _span(values: pd.Series) -> str:
    low, high = values.min(), values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def _cost_of_training(home: Path) -> pd.DataFrame:
    table = _table(home, "tables/cost_of_run.csv")
    if table["runs"].isna().all():
        raise _MissingError("tables/cost_of_run.csv with training")
    return table[table["runs"].notna()]


def machine(home: Path) -> str:
    """The processor and cores that most runs were trained on."""
    table = _cost_of_training(home)
    cores = table["cores"].map("{:g}".format).replace("nan", "not recorded")
    names = "Processor of most runs: " + table["processor"].fillna("not recorded") + "; cores: " + cores + "."
    return str(table["runs"].groupby(names).sum().idxmax())


def training_cost(home: Path) -> str:
    """Wall time and memory of training, by part of the experiment."""
    table = _cost_of_training(home)
    rows = [
        [row["part"], f"{row['runs']:g}", _minutes(row["wall_s"]), _megabytes(row["peak_mb"])]
        for row in _records(table)
    ]
    total = ["all", f"{table['runs'].sum():g}", _minutes(table["wall_s"].sum()), _megabytes(table["peak_mb"].max())]
    return _markdown(["part", "runs", "minutes", "peak memory (MB)"], [*rows, total])


def cost(home: Path) -> str:
    """Wall time and memory of the rules that do not train."""
    table = _table(home, "tables/cost_of_run.csv")
    rows = [
        [row["part"], f"{row['jobs']:g}", *map(_minutes, (row["wall_s"], row["longest_s"])), _megabytes(row["peak_mb"])]
        for row in _records(table[table["jobs"].notna()])
    ]
    return _markdown(["rule", "jobs", "minutes, all jobs", "minutes, longest job", "peak memory (MB)"], rows)


def goal(home: Path) -> str:
    """Whether Table 1, Table 2 and the figures were trained within GOAL_MINUTES."""
    parts, wall = ["table1", "lam", "contexts"], _cost_of_training(home).set_index("part")["wall_s"]
    if lacking := [part for part in parts if part not in wall.index]:
        raise _MissingError(f"tables/cost_of_run.csv with {', '.join(lacking)}")
    minutes = wall[parts].sum() / 60
    pairs, seeds = len(_given(home, "datasets")) * len(_given(home, "models")), len(_given(home, "seeds"))
    table2 = _table(home, "tables/table2.csv")
    accuracies = tables.headline_rows(table2).groupby(_pair(table2)).size()
    if len(accuracies) < pairs or accuracies.nunique() > 1:
        kept = "cannot be judged yet, as Table 2 is not whole,"
    else:
        kept = "is met" if minutes / GOAL_JOBS < GOAL_MINUTES else "is missed"
    return (
        f"The goal of Table 1, Table 2 and the figures in under {GOAL_MINUTES} minutes on {GOAL_JOBS} cores {kept} "
        f"with {pairs} pairs of dataset and model and {seeds} seeds: "
        f"{minutes:.0f} minutes of training, spread over {GOAL_JOBS} jobs {minutes / GOAL_JOBS:.0f}."
    )


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.1f}"


def _megabytes(number: float) -> str:
    return "" if pd.isna(number) else f"{number:.0f}"


SECTIONS: Mapping[str, Callable[[Path], str]] = {
    section.__name__: section
    for section in (
        *(runs, settings, shared, differences, tested_models, fairness, per_round, equal_gradients),
        *(copied, tuning, tuned, choices, lambdas, counts, verdicts),
        *(sizes, eta, literal, ablation, data, partitions, mu),
        *(machine, training_cost, cost, goal),
    )
}
"""What a template can name."""


def write(home: Path, page: Path) -> None:
    """Writes a page from the template beside it."""
    template = page.with_suffix(".template.md").read_text(encoding="utf-8")
    page.write_text(build(template, home), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
