"""The page on the reproduction: a template's words, and numbers that all come from an experiment's result files.

`python -m cgpfl.page results/paper docs/REPRODUCTION.md` writes the page from `docs/REPRODUCTION.template.md`. The
template names sections, `$differences` for one of SECTIONS; a section whose files are not there says so.
"""

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

CLOSE = 1.0
"""Points within which an accuracy matches the paper's."""


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


def _signed(value: float) -> str:
    return "" if pd.isna(value) else f"{value:+.2f}"


def _config(home: Path) -> dict[str, Any]:
    """The configuration that the results are of."""
    path = home / "config.yaml"
    if not path.is_file():
        raise _MissingError(path.name)
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def runs(home: Path) -> str:
    """Which seeds, datasets and models the results are of."""
    config = _config(home)
    names = {key: ", ".join(map(str, config[key])) for key in ("seeds", "datasets", "models")}
    return f"Seeds {names['seeds']}; datasets {names['datasets']}; models {names['models']}."


def settings(home: Path) -> str:
    """The shared settings of Table 1."""
    config = _config(home)
    own = [f"{key} {value:g}" for key, value in config.get("params", {}).items()]
    training, clients = config.get("training", {}), config.get("partition", {}).get("clients", "")
    given = [f"{key} {training[key]}" for key in ("rounds", "batch_size") if key in training]
    return f"{clients} clients, {', '.join([*given, *own])}."


def _compared(home: Path, name: str) -> str:
    """Headline accuracies beside the paper's: a row a method, a column a dataset and model."""
    table = tables.headline_rows(_table(home, name))
    table = table.assign(pair=_pair(table))
    pairs = list(pd.unique(table["pair"]))
    rows = []
    for method, own in table.groupby("method", sort=False):
        of_pair = {str(row["pair"]): row for row in own.to_dict("records")}
        rows.append([f"`{method}`", *(_cell(of_pair[pair]) if pair in of_pair else "" for pair in pairs)])
    return _markdown(["method", *pairs], rows)


def _cell(row: Mapping[Any, Any]) -> str:
    text = tables.mean_std(row, "final")
    return text if pd.isna(row["paper"]) else f"{text} ({row['paper']:.2f})"


def shared(home: Path) -> str:
    """Table 1 with shared settings."""
    return _compared(home, "tables/table1.csv")


def tuned(home: Path) -> str:
    """Table 1 with tuned methods."""
    return _compared(home, "tables/table1_tuned.csv")


def choices(home: Path) -> str:
    """What tuning chose: a row a method, a column a dataset and model."""
    table = _table(home, "tables/tuned_choices.csv")
    table = table[table["chosen"].astype(bool)]
    values = table["parameter"] + " " + table["value"].astype(str)
    cells = values.groupby([table["method"], _pair(table)], sort=False).agg(", ".join).unstack().fillna("")
    return _frame("method", cells.rename(index="`{}`".format))


def differences(home: Path) -> str:
    """Where results match the paper's within CLOSE points, where not, and which tested model is nearest there."""
    table = _table(home, "tables/table1.csv")
    headlines = tables.headline_rows(table)
    headlines = headlines[headlines["paper"].notna()]
    headlines = headlines.assign(difference=headlines["final_mean"] - headlines["paper"])
    far = headlines[headlines["difference"].abs().gt(CLOSE) | headlines["difference"].isna()]
    rows = []
    for row in far.to_dict("records"):
        same = [table[column] == row[column] for column in ("dataset", "model", "method")]
        tested = table[same[0] & same[1] & same[2]].dropna(subset="final_mean").set_index("tested")
        gaps = tested["final_mean"] - row["paper"]
        near = "" if gaps.empty else f"{gaps.abs().idxmin()} {_signed(gaps[gaps.abs().idxmin()])}"
        rows.append(
            [
                f"`{row['method']}`",
                f"{row['dataset']} / {row['model']}",
                row["tested"],
                _signed(row["difference"]),
                near,
            ]
        )
    count = f"{len(headlines) - len(far)} of {len(headlines)} accuracies are within {CLOSE:g} point of the paper's."
    if not rows:
        return count
    head = ["method", "", "tested", "ours less the paper's", "nearest tested model"]
    return f"{count} The others:\n\n{_markdown(head, rows, left=3)}"


def tested_models(home: Path) -> str:
    """What testing another of a method's models makes of its accuracy."""
    table = _table(home, "tables/table1.csv")
    keys = ["dataset", "model", "method"]
    headline = tables.headline_rows(table)[[*keys, "tested", "final_mean"]]
    both = table.merge(headline, on=keys, suffixes=("", "_headline"))
    both = both[both["tested"] != both["tested_headline"]]
    gaps = (both["final_mean"] - both["final_mean_headline"]).map(_signed)
    names = "`" + both["method"] + "`: " + both["tested"] + " instead of " + both["tested_headline"]
    cells = gaps.groupby([names, _pair(both)], sort=False).first().unstack().fillna("")
    return _frame("tested model", cells)


def verdicts(home: Path) -> str:
    """The claims with their verdicts."""
    return claims.to_markdown(_table(home, "claims.csv").fillna("")).strip()


def _studies(home: Path, wanted: Callable[[pd.Series], pd.Series]) -> pd.DataFrame:
    table = _table(home, "tables/studies.csv").fillna({"changes": ""})
    rows = table[wanted(table["changes"])]
    if rows.empty:
        raise _MissingError("tables/studies.csv with such studies")
    return rows.drop_duplicates(["study", "dataset", "model", "method"])


def ablation(home: Path) -> str:
    """How far each choice moves the final accuracy of headline models, in points, seed by seed."""
    rows = _studies(home, lambda changes: changes.ne("") & ~changes.str.contains("partition."))
    cells = []
    for row in rows.to_dict("records"):
        spread = "" if pd.isna(row["to_main_std"]) else f" ± {row['to_main_std']:.2f}"
        moved = f"{_signed(row['to_main_mean'])}{spread}"
        pair, seeds = f"{row['dataset']} / {row['model']}", f"{row['shared_seeds']:g}"
        cells.append([f"`{row['changes']}`", pair, f"`{row['method']}`", moved, seeds])
    return _markdown(["change", "", "method", "points", "seeds"], cells, left=3)


def _by_study(rows: pd.DataFrame, name: Callable[[Mapping[str, object]], str]) -> str:
    rows = rows.assign(named=[name({str(key): value for key, value in row.items()}) for row in rows.to_dict("records")])
    cells = rows.assign(text=[tables.mean_std(row, "final") for row in rows.to_dict("records")])
    cells = cells.groupby([_pair(cells), "named", "method"], sort=False)["text"].first().unstack().fillna("")
    lines = [[*map(str, index), *row] for index, row in zip(cells.index, cells.to_numpy(), strict=True)]
    return _markdown(["", "", *(f"`{method}`" for method in cells.columns)], lines, left=2)


def data(home: Path) -> str:
    """Accuracy by the amount of training data."""
    rows = _studies(home, lambda changes: changes.str.fullmatch(r"partition\.train_share=[^,]*"))
    return _by_study(rows, lambda row: f"{row['train_samples']:.0f} samples a client")


def partitions(home: Path) -> str:
    """Accuracy under other schemes of partition."""
    rows = _studies(home, lambda changes: changes.str.contains(r"partition\.scheme="))
    return _by_study(rows, lambda row: str(row["study"]))


def mu(home: Path) -> str:
    """The K that cgpfl_heur chose, and the range of mu that would choose it in every seed."""
    table = _table(home, "tables/mu.csv")
    rows = []
    for pair, own in table.groupby(_pair(table), sort=False):
        chosen = ", ".join(map(str, sorted(own["contexts"].unique())))
        low, high = own["mu_from"].max(), own["mu_to"].min()
        span = f"{low:.3g} to {high:.3g}" if low <= high else "none"
        rows.append([str(pair), chosen, f"{own['mu'].min():.3g} to {own['mu'].max():.3g}", span])
    return _markdown(["", "chosen K", "mu used", "mu that chooses the same in every seed"], rows)


def cost(home: Path) -> str:
    """Wall time and memory of the parts of the run."""
    table = _table(home, "tables/cost_of_run.csv")
    minutes = [[f"{seconds / 60:.1f}" for seconds in table[column]] for column in ("wall_s", "longest_s")]
    memory = [f"{peak:.0f}" for peak in table["peak_mb"]]
    rows = zip(table["part"], map(str, table["jobs"]), *minutes, memory, strict=True)
    head = ["part", "jobs", "minutes, all jobs", "minutes, longest job", "peak memory (MB)"]
    return _markdown(head, rows)


SECTIONS: Mapping[str, Callable[[Path], str]] = {
    section.__name__: section
    for section in (
        *(runs, settings, shared, differences, tested_models, tuned, choices),
        *(verdicts, ablation, data, partitions, mu, cost),
    )
}
"""What a template can name."""


def write(home: Path, page: Path) -> None:
    """Writes a page from the template beside it."""
    template = page.with_suffix(".template.md").read_text(encoding="utf-8")
    page.write_text(build(template, home), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
