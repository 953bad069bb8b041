"""The page on the reproduction: it is what its template and the committed results make, whatever of them is there."""

from pathlib import Path

import pandas as pd
import pytest

from cgpfl import claims, page, tables
from cgpfl.errors import UserError

ROOT = Path(__file__).parents[1]


def test_the_committed_page_is_made_of_the_committed_results():
    """If this fails, run `make page`."""
    template = (ROOT / "docs/REPRODUCTION.template.md").read_text(encoding="utf-8")
    assert page.build(template, ROOT / "results/paper") == (ROOT / "docs/REPRODUCTION.md").read_text(encoding="utf-8")


def test_without_results_every_section_says_what_is_missing(tmp_path):
    text = page.build("\n".join(f"${name}" for name in page.SECTIONS), tmp_path)
    assert text.count("*Missing: `") == len(page.SECTIONS)


def test_an_unknown_section_is_an_error(tmp_path):
    with pytest.raises(UserError, match="\\$figures is no section of the page; valid are runs, settings, shared"):
        page.build("$figures", tmp_path)


def test_pictures_that_are_not_there_are_left_out(tmp_path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/one.png").write_bytes(b"")
    text = page.build("![a](../results/x/figures/one.png)\n![b](../results/x/figures/two.png)\nend\n", tmp_path)
    assert text == "![a](../results/x/figures/one.png)\nend\n"


def test_the_readme_has_the_committed_results():
    assert page.shared(ROOT / "results/paper") in (ROOT / "README.md").read_text(encoding="utf-8")


ROW = {"dataset": "mnist", "model": "mlr", "method": "pfedme", "tested": "personal", "n_seeds": 2}
NUMBERS = {"final_mean": 88.0, "final_std": 0.5, "best_mean": 89.0, "best_std": 0.1, "paper": 90.0, "difference": -2.0}


@pytest.fixture
def home(tmp_path) -> Path:
    def write(rows, name, columns=None):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        pd.DataFrame(rows, columns=columns).to_csv(tmp_path / name, index=False)

    local = {**ROW, "tested": "local", "final_mean": 90.25, "paper": None, "difference": None}
    near = {**ROW, "method": "ditto", **NUMBERS, "final_mean": 90.5, "difference": 0.5}
    write([{**ROW, **NUMBERS}, {**NUMBERS, **local}, near], "tables/table1.csv", tables.TABLE1)
    study = {**ROW, **NUMBERS, "train_samples": 11.4, "to_main_mean": -1.5, "to_main_std": 0.25, "shared_seeds": 2}
    changes = {
        "main": "",
        "few": "partition.train_share=0.02",
        "eta": "params.eta=0.01",
        "r": "partition.scheme=random",
    }
    write([{**study, "study": name, "changes": text} for name, text in changes.items()], "tables/studies.csv")
    write([["c", "table 1", "s", "t", "n", claims.HOLDS]], "claims.csv", claims.COLUMNS)
    write([["mnist", "mlr", 0, 5.0, 10, 2.0, 9.0], ["mnist", "mlr", 1, 6.0, 10, 3.0, 8.0]], "tables/mu.csv",
          ["dataset", "model", "seed", "mu", "contexts", "mu_from", "mu_to"])  # fmt: skip
    write(
        [["train", 120.0, 900.2, 3, 60.0]], "tables/cost_of_run.csv", ["part", "wall_s", "peak_mb", "jobs", "longest_s"]
    )
    choice = {"dataset": "mnist", "model": "mlr", "method": "pfedme", "validation_accuracy": 90.0}
    write([{**choice, "parameter": "lr", "value": 0.05, "chosen": True},
           {**choice, "parameter": "lr", "value": 0.1, "chosen": False},
           {**choice, "parameter": "lam", "value": 5, "chosen": True}], "tables/tuned_choices.csv")  # fmt: skip
    return tmp_path


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("shared", "| `pfedme` | 88.00 ± 0.50 (90.00) |"),
        ("differences", "1 of 2 accuracies are within 1 point of the paper's. The others:"),
        ("differences", "| `pfedme` | mnist / mlr | personal | -2.00 | local +0.25 |"),
        ("tested_models", "| `pfedme`: local instead of personal | +2.25 |"),
        ("choices", "| `pfedme` | lr 0.05, lam 5.0 |"),
        (
            "verdicts",
            "**Table 1.** Tested: t.\n\n| claim | verdict | numbers |\n| :-- | :-- | :-- |\n| s | holds | n |",
        ),
        ("ablation", "| `params.eta=0.01` | mnist / mlr | `pfedme` | -1.50 ± 0.25 | 2 |"),
        ("data", "| mnist / mlr | 11 samples a client | 88.00 ± 0.50 |"),
        ("partitions", "| mnist / mlr | r | 88.00 ± 0.50 |"),
        ("mu", "| mnist / mlr | 10 | 5 to 6 | 3 to 8 |"),
        ("cost", "| train | 3 | 2.0 | 1.0 | 900 |"),
    ],
)
def test_sections_by_hand(home, section, line):
    assert line in page.SECTIONS[section](home)


def test_a_choice_is_only_among_the_choices(home):
    assert "train_share" not in page.ablation(home)
    assert "scheme" not in page.ablation(home)
