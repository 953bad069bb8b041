"""The page on the reproduction: it is what its template and the committed results make, whatever of them is there."""

from pathlib import Path

import pandas as pd
import pytest
import yaml

from cgpfl import claims, page, results, tables
from cgpfl.errors import UserError

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("name", "folder"), [("REPRODUCTION", "paper"), ("CIFAR10", "paper/cifar10-jpeg")])
def test_the_committed_pages_are_made_of_the_committed_results(name, folder):
    """If this fails, run `make page`."""
    template = (ROOT / f"docs/{name}.template.md").read_text(encoding="utf-8")
    assert page.build(template, ROOT / "results" / folder) == (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")


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
        "main": ("", 88.0, 0.0),
        "few": ("partition.train_share=0.02", 80.0, -8.0),
        "all": ("", 87.0, 0.0),
        "eta": ("params.eta=0.01", 86.5, -1.5),
        "scale": ("training.scale=unit", 89.5, 1.75),
        "r": ("partition.scheme=random", 88.5, 0.5),
    }
    studies = [
        {**study, "study": name, "changes": text, "final_mean": mean, "to_main_mean": to_main}
        for name, (text, mean, to_main) in changes.items()
    ]
    write([*studies, {**studies[0], "method": "ditto"}, {**studies[0], "model": "dnn"}], "tables/studies.csv")
    partition = {"scheme": "cyclic", "clients": 40, "min_samples": 400, "max_samples": 5000}
    config = {"seeds": [3, 4], "datasets": ["mnist"], "models": ["mlr"], "partition": partition,
              "training": {"rounds": 7}, "params": {"lam": 12, "eta": 0.05}, "tune": {"validation": 0.25},
              "methods": ["pfedme", {"ditto": {}}, {"cgpfl": {"contexts": 4}}],
              "sweeps": {"lam": {"values": {"mnist/mlr": [11, 19]}}}}  # fmt: skip
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    lam = {**ROW, **NUMBERS, "n_seeds": 3}
    ditto = {**lam, "lam": 9, "method": "ditto", "paper": 91.0}
    write([{**lam, "lam": 9}, {**lam, "lam": 11, "final_mean": 87.5, "paper": None}, ditto], "tables/table2.csv")
    write([{**ROW, "client_spread_mean": 2.0, "worst_tenth_mean": 81.0}], "tables/fairness.csv")
    write([{**ROW, "gradients": 2000, "accuracy_mean": 70.0, "accuracy_std": 1.0}], "tables/equal_gradients.csv")
    costs = {"gradients_per_round": 10, "parameters": 50, "sent_per_round": 50, "received_per_round": 200}
    write([{**ROW, **costs}, {**ROW, **costs, "model": "dnn", "gradients_per_round": 30}], "tables/cost.csv")
    write([["c", "table 1", "s", "t", "n", claims.HOLDS]], "claims.csv", claims.COLUMNS)
    write([["mnist", "mlr", 0, 5.0, 10, 2.0, 9.0], ["mnist", "mlr", 1, 6.0, 10, 3.0, 8.0]], "tables/mu.csv",
          ["dataset", "model", "seed", "mu", "contexts", "mu_from", "mu_to"])  # fmt: skip
    parts = [["table1", 30, None, 9000.0, None, 900.2, "fast", 8], ["lam", 10, None, 6000.0, None, 800.0, "slow", 2],
             ["contexts", 25, None, 3000.0, None, None, "slow", 2]]  # fmt: skip
    write([*parts, ["figures", None, 3, 120.0, 60.0, 700.4, None, None]], "tables/cost_of_run.csv", results.COST)
    choice = {"dataset": "mnist", "model": "mlr", "method": "pfedme", "validation_accuracy": 90.0}
    write([{**choice, "parameter": "lr", "value": 0.05, "chosen": True},
           {**choice, "parameter": "lr", "value": 0.1, "chosen": False},
           {**choice, "parameter": "lr", "value": 0.01, "chosen": False},
           {**choice, "parameter": "eta", "value": 0.03, "chosen": True},
           {**choice, "parameter": "eta", "value": 0.01, "chosen": False},
           {**choice, "parameter": "lam", "value": 5, "chosen": True}], "tables/tuned_choices.csv")  # fmt: skip
    return tmp_path


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("runs", "Seeds 3, 4; datasets mnist; models mlr."),
        ("settings", "40 clients, rounds 7, eta 0.05, lam 12; `cgpfl`: contexts 4."),
        ("shared", "| `pfedme` | 88.00 ± 0.50 (90.00) |"),
        ("differences", "1 of 2 accuracies are within 1 point of the paper's. The others:"),
        (
            "differences",
            "| `pfedme` | mnist / mlr | personal | -2.00 | local +0.25 | `training.scale=unit`: +1.75, leaves -0.25 |",
        ),
        ("tested_models", "| `pfedme`: local instead of personal | +2.25 |"),
        ("choices", "| `pfedme` | lr 0.05, eta 0.03*, lam 5 |"),
        ("counts", "1 claims: 1 holds."),
        (
            "verdicts",
            "**Table 1.** Tested: t.\n\n| claim | verdict | numbers |\n| :-- | :-- | :-- |\n| s | holds | n |",
        ),
        ("ablation", "| `params.eta=0.01` | mnist / mlr | `pfedme` | -1.50 ± 0.25 | 2 |"),
        ("data", "| mnist / mlr | 2%, 11 samples | 80.00 ± 0.50 |\n| mnist / mlr | 100%, 11 samples | 87.00 ± 0.50 |"),
        ("partitions", "| mnist / mlr | cyclic (main) | 87.00 ± 0.50 |\n| mnist / mlr | r | 88.50 ± 0.50 |"),
        ("mu", "| mnist / mlr | 10 | 5 to 6 | 3 to 8 |"),
        ("mu", "mu = 10 sqrt(d/m log(e m/d)) / cost(1)"),
        ("copied", "Of its 2 accuracies in Table 1 for methods of Table 2, 1 are those at lambda 9"),
        ("tuning", "25% of each client's training samples; seeds 3; 7 rounds."),
        ("lambdas", "seeds of a cell: 3.\n\n| mnist / mlr | 9 | 11 |"),
        ("lambdas", "| `pfedme` | 88.00 (90.00) | 87.50 |"),
        ("sizes", "40 uniform draws from 400 to 5000 take 108,000 in the mean; mnist has 60,000"),
        ("eta", "0.95"),
        ("literal", "240"),
        ("fairness", "| `pfedme` | 2.00; 81.00 |"),
        ("equal_gradients", "computed: 2000.\n\n| method | mnist / mlr |\n| :-- | --: |\n| `pfedme` | 70.00 ± 1.00 |"),
        ("per_round", "| `pfedme` | 10 to 30 | 1 | 4 |"),
        ("machine", "Processor of most runs: slow; cores: 2."),
        ("training_cost", "| table1 | 30 | 150.0 | 900 |\n| lam | 10 | 100.0 | 800 |\n| contexts | 25 | 50.0 |  |"),
        ("training_cost", "| all | 65 | 300.0 | 900 |"),
        ("cost", "| figures | 3 | 2.0 | 1.0 | 700 |"),
        ("goal", "under 120 minutes on 2 cores is missed with 1 pairs of dataset and model and 2 seeds: 300 minutes"),
        ("goal", "of training, spread over 2 jobs 150."),
    ],
)
def test_sections_by_hand(home, section, line):
    assert line in page.SECTIONS[section](home)


def test_own_datasets_and_models_are_told_by_name(tmp_path):
    photos = {"name": "photos", "kind": "image_folder", "path": "photos.zip"}
    config = {"seeds": [0], "datasets": ["mnist", photos], "models": ["cnn", {"nets:make_net": {"width": 3}}]}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert page.runs(tmp_path) == "Seeds 0; datasets mnist, photos; models cnn, make_net."


def test_claims_of_which_none_is_tested_have_no_numbers(tmp_path):
    untested = [["c", "table 1", "s", "t", "", claims.UNTESTED]]
    pd.DataFrame(untested, columns=claims.COLUMNS).to_csv(tmp_path / "claims.csv", index=False)
    assert page.counts(tmp_path) == "1 claims: 1 not tested."
    assert page.verdicts(tmp_path) == "Level of the tests: 5%.\n\n"


def test_a_choice_is_only_among_the_choices(home):
    assert "train_share" not in page.ablation(home)
    assert "scheme" not in page.ablation(home)


def test_a_full_share_is_the_main_experiment_where_no_study_has_it(home):
    file = home / "tables/studies.csv"
    pd.read_csv(file).query("study != 'all'").to_csv(file, index=False)
    assert "| mnist / mlr | 100%, 11 samples | 88.00 ± 0.50 |" in page.data(home)
    assert "ditto" not in page.data(home)
    assert "dnn" not in page.data(home)


def test_no_change_is_named_where_none_comes_nearer(home):
    file = home / "tables/studies.csv"
    studies = pd.read_csv(file)
    studies[~studies["study"].isin(["scale", "r"])].to_csv(file, index=False)
    assert "| -2.00 | local +0.25 | none is nearer |" in page.differences(home)


def test_the_goal_is_judged_only_if_all_its_parts_were_run(home):
    file = home / "tables/cost_of_run.csv"
    table = pd.read_csv(file)
    table.assign(wall_s=table["wall_s"] / 3).to_csv(file, index=False)
    assert "is met with" in page.goal(home)
    table2 = pd.read_csv(home / "tables/table2.csv")
    more = table2.iloc[:1].assign(dataset="digits")
    pd.concat([table2, more]).to_csv(home / "tables/table2.csv", index=False)
    assert "cannot be judged yet, as Table 2 is not whole, with" in page.goal(home)
    table[table["part"] != "lam"].to_csv(file, index=False)
    assert page.build("$goal", home) == "*Missing: `tables/cost_of_run.csv with lam` has not been made yet.*"
