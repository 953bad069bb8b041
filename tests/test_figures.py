"""Figures on synthetic frames that look like those of an experiment."""

from dataclasses import replace
from itertools import product

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection, QuadMesh
from matplotlib.colors import to_hex

from cgpfl import figures

CLIENTS, ROUNDS = 20, 60
FINALS = {  # final accuracy, speed
    "fedavg": (0.86, 20),
    "perfedavg": (0.900, 14),
    "pfedme": (0.905, 18),
    "ditto": (0.91, 12),
    "cgpfl": (0.945, 9),
    "cgpfl_heur": (0.962, 7),
    "cgpfl_oracle": (0.967, 6),
}
TRUTH = np.arange(CLIENTS) % 5
SHOWN = ("cgpfl", "cgpfl_heur", "pfedme", "ditto", "perfedavg")
PAIRS = [("mnist", "mlr"), ("mnist", "dnn"), ("fashion_mnist", "mlr"), ("fashion_mnist", "dnn")]


def make_runs(pairs=PAIRS, seeds=(0, 1, 2), methods=tuple(FINALS), sweep=range(1, 11)):
    rows = []
    for (dataset, model), method, seed in product(pairs, methods, seeds):
        common = {"seed": seed, "dataset": dataset, "model": model, "method": method, "label": method}
        chosen = 5 if seed < 2 else 6
        if method == "cgpfl":
            for contexts in sorted({*sweep, 4}):
                parts = (["contexts"] if contexts in sweep else []) + (["table1"] if contexts == 4 else [])
                label = f"cgpfl[contexts={contexts}]"
                rows.append({**common, "label": label, "contexts": contexts, "parts": parts})
        else:
            heur = {"contexts_chosen": chosen} if method == "cgpfl_heur" else {}
            rows.append({**common, "parts": ["table1"], **heur})
    columns = ["run", "seed", "dataset", "model", "method", "label", "contexts", "contexts_chosen", "parts"]
    return pd.DataFrame(rows).assign(run=[f"{i:04x}" for i in range(len(rows))]).reindex(columns=columns)


def make_history(runs, rounds=ROUNDS):
    frames = []
    for run in runs.itertuples():
        rng = np.random.default_rng([run.seed, len(run.method), len(run.dataset), len(run.model)])
        final, speed = FINALS[run.method]
        if run.method == "cgpfl":
            final += 0.015 - 0.0012 * (run.contexts - 5.5) ** 2 - 0.001 * rng.random()
        final += {"mlr": -0.01, "dnn": 0.01}[run.model] - 0.05 * (run.dataset == "fashion_mnist")
        final += 0.004 * rng.standard_normal()
        t = np.arange(1, rounds + 1)
        accuracy = final - (final - 0.15) * np.exp(-t / speed) + 0.0015 * rng.standard_normal(rounds)
        for tested, headline, shift in (("personal", True, 0.0), ("global", False, -0.05)):
            frames.append(
                pd.DataFrame(
                    {
                        "run": run.run, "seed": run.seed, "round": t, "tested": tested, "headline": headline,
                        "accuracy": accuracy + shift, "train_loss": 3.0 * (1 - accuracy) ** 1.2,
                        "gradients": 50 * t, "diverged": False,
                    }
                )
            )  # fmt: skip
    return pd.concat(frames, ignore_index=True)


def make_assignments(runs, rounds=ROUNDS):
    rng = np.random.default_rng(0)
    t = np.repeat(np.arange(1, rounds + 1), CLIENTS)
    frames = []
    for run in runs[runs["method"] == "cgpfl"].itertuples():
        noisy = rng.random(len(t)) < 0.8 * np.exp(-t / 5)
        settled = np.tile(TRUTH % int(run.contexts), rounds)
        context = np.where(noisy, rng.integers(0, int(run.contexts), len(t)), settled)
        client = np.tile(np.arange(CLIENTS), rounds)
        frames.append(pd.DataFrame({"run": run.run, "round": t, "client": client, "context": context}))
    empty = pd.DataFrame(columns=["run", "round", "client", "context"])
    return pd.concat(frames, ignore_index=True) if frames else empty


def make_clustering(runs, rounds=ROUNDS):
    rng = np.random.default_rng(1)
    t = np.arange(1, rounds + 1)
    frames = []
    for run in runs[runs["method"] == "cgpfl"].itertuples():
        noise = 0.02 * rng.standard_normal((2, rounds)) + 0.05 * rng.standard_normal((2, 1))
        frames.append(pd.DataFrame({
            "run": run.run, "round": t, "contexts_found": 4, "moved": 0.0,
            "kmeans_iterations": 2 + rng.poisson(4 * np.exp(-t / 8)),
            "between": 3 * (1 - np.exp(-t / 15)) + noise[0],
            "within": 0.9 * (1 - np.exp(-t / 6)) + noise[1],
        }))  # fmt: skip
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["run"])


def make_heuristic(runs):
    k = np.arange(1, CLIENTS // 2 + 1)
    frames = []
    for run in runs[runs["method"] == "cgpfl_heur"].itertuples():
        complexity = 0.5 * np.sqrt(k)
        cost = 2.2 * np.maximum(1 - k / (run.contexts_chosen - 0.5), 0.02 / k) * (1 + 0.05 * run.seed)
        frames.append(pd.DataFrame({
            "run": run.run, "round": 1, "mu": 1.0, "contexts": k, "complexity": complexity,
            "cost": cost, "e": complexity + cost, "chosen": k == run.contexts_chosen,
        }))  # fmt: skip
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["run"])


def make_frames(contexts=True, **options):
    runs = make_runs(**options)
    truth = dict.fromkeys(runs["dataset"].unique(), TRUTH) if contexts else {}
    return figures.Frames(
        runs, make_history(runs), make_assignments(runs), make_clustering(runs), make_heuristic(runs), truth, SHOWN
    )


def make_statistics(clients=CLIENTS, classes=10, contexts=True):
    rng = np.random.default_rng(2)
    size = np.exp(0.8 * rng.standard_normal(clients))
    return pd.DataFrame(
        [
            {"client": u, "context": u % classes if contexts else None, "class": str(c),
             "train": int(300 * size[u] * held), "test": int(100 * size[u] * held)}
            for u, c in product(range(clients), range(classes))
            for held in [(c - u) % classes < 3]
        ]
    )  # fmt: skip


@pytest.fixture(scope="module")
def frames():
    return make_frames()


def text_of(figure):
    return " ".join(text.get_text() for text in figure.texts)


def legend_of(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def curves_of(panel):
    return [line for line in panel.lines if len(line.get_xdata()) > 1]


def bands_of(panel):
    return [band for band in panel.collections if isinstance(band, PolyCollection)]


def dropped(frames, method):
    """The same frames, as if the experiment did not have this method."""
    runs = frames.runs[frames.runs["method"] != method]
    return replace(frames, runs=runs, contexts={})


def diverge(frames, method, seed=1, after=25):
    """The same frames with one seed of a method diverged after a round."""
    history = frames.history.copy()
    runs = frames.runs[(frames.runs["method"] == method) & (frames.runs["seed"] == seed)]["run"]
    history.loc[history["run"].isin(runs) & (history["round"] > after), "diverged"] = True
    return replace(frames, history=history)


def test_convergence(frames):
    figure = figures.draw("figure1", frames)
    top, other, bottom, _ = figure.axes
    assert [panel.get_title() for panel in (top, other)] == ["mnist / mlr", "mnist / dnn"]
    assert (top.get_ylabel(), bottom.get_ylabel(), bottom.get_xlabel()) == (
        "test accuracy (%)", "train loss", "round")  # fmt: skip
    names = ["cgpfl[contexts=4]", "cgpfl_heur", "pfedme", "ditto", "perfedavg"]
    assert legend_of(figure) == names
    for panel in figure.axes:
        assert len(curves_of(panel)) == len(bands_of(panel)) == len(names)
    looks = [(line.get_color(), str(line._unscaled_dash_pattern), line.get_marker()) for line in curves_of(top)]
    assert all(len(set(column)) == len(names) for column in zip(*looks, strict=True))
    assert figures.draw("figure2", frames).axes[0].get_title() == "fashion_mnist / mlr"


def test_a_curve_is_the_mean_of_the_seeds_headline_and_its_band_one_deviation(frames):
    panel = figures.draw("figure1", frames).axes[0]
    runs = frames.runs.query("dataset == 'mnist' and model == 'mlr' and method == 'pfedme'")["run"]
    rows = frames.history[frames.history["run"].isin(runs) & frames.history["headline"]]
    seeds = 100 * rows.pivot(index="round", columns="run", values="accuracy")
    line, band = curves_of(panel)[2], bands_of(panel)[2].get_paths()[0].vertices
    np.testing.assert_allclose(line.get_ydata(), seeds.mean(axis=1))
    at_30 = sorted(set(band[band[:, 0] == 30][:, 1]))
    spread = np.std(seeds.loc[30], ddof=1)
    np.testing.assert_allclose(at_30, [seeds.loc[30].mean() - spread, seeds.loc[30].mean() + spread])


def test_one_seed_has_no_band():
    frames = make_frames(pairs=[("digits", "mlr")], seeds=(3,))
    panel = figures.draw("figure1", frames).axes[0]
    assert len(curves_of(panel)) == 5
    assert bands_of(panel) == []


def test_a_diverged_seed_ends_the_curve_with_a_cross(frames):
    figure = figures.draw("figure1", diverge(frames, "ditto"))
    assert legend_of(figure)[-1] == "diverged"
    for panel in figure.axes:
        ditto = curves_of(panel)[3]
        assert np.isfinite(ditto.get_ydata()).sum() == 25
        crosses = [line for line in panel.lines if line.get_marker() == "X"]
        assert [list(cross.get_xdata()) for cross in crosses] == [[25]]


def test_a_method_that_never_ran_well_is_a_cross_at_the_foot(frames):
    panel = figures.draw("figure1", diverge(frames, "ditto", after=0)).axes[0]
    crosses = [line for line in panel.lines if line.get_marker() == "X"]
    assert [(list(cross.get_xdata()), list(cross.get_ydata())) for cross in crosses] == [([1], [0.03])]


def test_limits_show_where_the_curves_settle(frames):
    top, _, bottom, _ = figures.draw("figure1", frames).axes
    start = min(line.get_ydata()[0] for line in curves_of(top))
    settled = min(line.get_ydata()[10:].min() for line in curves_of(top))
    assert start < top.get_ylim()[0] < settled
    assert bottom.get_ylim()[1] < max(line.get_ydata()[0] for line in curves_of(bottom))


def test_short_curves_are_shown_from_their_start(frames):
    early = replace(frames, history=frames.history[frames.history["round"] <= figures.SHORT])
    top = figures.draw("figure1", early).axes[0]
    assert top.get_ylim()[0] < min(line.get_ydata()[0] for line in curves_of(top))


def test_train_loss_that_was_not_recorded(frames):
    history = frames.history.assign(train_loss=np.nan)
    figure = figures.convergence(frames.table1, history, "mnist")
    assert [text.get_text() for text in figure.axes[2].texts] == ["not recorded"]


def test_two_settings_of_a_method_look_different(frames):
    runs = frames.runs[(frames.runs["method"] == "cgpfl") & frames.runs["contexts"].isin([2, 8])]
    figure = figures.convergence(runs, frames.history, "mnist")
    two, eight = curves_of(figure.axes[0])
    assert legend_of(figure) == ["cgpfl[contexts=2]", "cgpfl[contexts=8]"]
    assert two.get_color() == eight.get_color()
    assert (two.get_linestyle(), two.get_fillstyle()) != (eight.get_linestyle(), eight.get_fillstyle())


def test_all_methods_are_drawn_where_none_are_chosen(frames):
    runs = frames.table1[frames.table1["method"].isin(["fedavg", "ditto"])]
    names = {"fedavg": "fedavg", "ditto": "my_method"}
    runs = runs.assign(method=runs["method"].map(names), label=runs["label"].map(names))
    for name in ("figure1", "figure3b"):
        assert legend_of(figures.draw(name, replace(frames, runs=runs, methods=()))) == ["fedavg", "my_method"]


def test_figure_4_is_of_the_first_seed_as_listed(frames):
    runs = frames.runs[frames.runs["seed"].isin([1, 0])].sort_values("seed", ascending=False, kind="stable")
    first = figures.contexts_by_client(runs, frames.assignments).axes[0]
    only = figures.contexts_by_client(runs[runs["seed"] == 1], frames.assignments).axes[0]
    arrays = [next(iter(panel.collections)).get_array() for panel in (first, only)]
    np.testing.assert_array_equal(*arrays)


def test_the_last_choice_of_k_is_drawn_where_there_are_several(frames):
    earlier = frames.heuristic.assign(chosen=frames.heuristic["contexts"] == 9)
    both = pd.concat([earlier, frames.heuristic.assign(round=2)])
    chosen = figures.draw("heuristic", replace(frames, heuristic=both)).axes[0].lines[3]
    assert sorted(chosen.get_xdata()) == [5, 6]
    figures.draw("figure3a", replace(frames, heuristic=both))


def test_accuracy_by_contexts(frames):
    figure = figures.draw("figure3a", frames)
    assert len(figure.axes) == 8  # four panels, and the axis of e(K) in each
    assert legend_of(figure) == ["cgpfl", "K chosen by cgpfl_heur", "e(K), right axis", "cgpfl_oracle", "pfedme"]
    panel, right = figure.axes[0], figure.axes[4]
    assert right.get_position().bounds == panel.get_position().bounds
    own = frames.table1.query("dataset == 'mnist' and model == 'mlr' and method == 'cgpfl_heur'")["run"]
    criterion = frames.heuristic[frames.heuristic["run"].isin(own)].groupby("contexts")["e"].mean()
    assert right.lines[0].get_ydata() == pytest.approx(criterion.to_numpy())
    assert figure.axes[2].get_xlabel() == "number of contexts K"
    assert panel.get_ylabel() == "test accuracy (%)"
    assert list(panel.lines[0].get_xdata()) == list(range(1, 11))
    stars = [line for line in panel.lines if line.get_marker() == "*"]
    assert [list(star.get_xdata()) for star in stars] == [[5, 6]]
    runs = frames.runs.query("dataset == 'mnist' and model == 'mlr' and method == 'cgpfl_heur' and seed == 2")
    rows = frames.history[frames.history["run"].isin(runs["run"]) & frames.history["headline"]]
    assert stars[0].get_ydata()[1] == pytest.approx(100 * rows["accuracy"].iloc[-1])


def test_lines_and_stars_beside_the_sweep_are_of_its_seeds(frames):
    sweep = frames.runs[frames.runs["seed"] != 2]
    panel = figures.accuracy_by_contexts(sweep, frames.table1, frames.history).axes[0]
    runs = frames.table1.query("dataset == 'mnist' and model == 'mlr' and method == 'pfedme' and seed != 2")["run"]
    rows = frames.history[frames.history["run"].isin(runs) & frames.history["headline"]]
    finals = 100 * rows.groupby("run")["accuracy"].last()
    assert panel.lines[2].get_ydata()[0] == pytest.approx(finals.mean())
    band = panel.patches[1]
    assert (band.get_y(), band.get_height()) == pytest.approx((finals.mean() - finals.std(), 2 * finals.std()))
    stars = [line for line in panel.lines if line.get_marker() == "*"]
    assert [list(star.get_xdata()) for star in stars] == [[5]]


def test_accuracy_by_contexts_marks_values_that_diverged(frames):
    history = frames.history.copy()
    history.loc[history["run"].isin(frames.runs.query("contexts == 9 and seed == 0")["run"]), "diverged"] = True
    panel = figures.accuracy_by_contexts(frames.runs, frames.table1, history).axes[0]
    assert np.isnan(panel.lines[0].get_ydata()).tolist() == [k == 9 for k in range(1, 11)]
    assert [list(line.get_xdata()) for line in panel.lines if line.get_marker() == "X"] == [[9]]


def test_side_by_side(frames):
    three = replace(frames, methods=("pfedme", "cgpfl", "cgpfl_heur"))
    figure = figures.draw("figure3b", three)
    assert legend_of(figure) == ["pfedme", "cgpfl[contexts=4]", "cgpfl_heur"]
    panel = figure.axes[0]
    assert [label.get_text() for label in panel.get_xticklabels()] == [" / ".join(pair) for pair in PAIRS]
    assert len(panel.texts) == 12
    texts = [text.get_text() for text in figures.draw("figure3b", diverge(three, "pfedme")).axes[0].texts]
    assert texts.count("diverged") == 4
    assert len(figures.draw("figure3b", frames).axes[0].texts) == 0  # too many methods for numbers


def test_contexts_by_client(frames):
    figure = figures.draw("figure4", frames)
    assert legend_of(figure) == [f"context {k}" for k in range(4)]
    panel = figure.axes[0]
    assert panel.get_ylabel() == "client (by true context)"
    assert [label.get_text() for label in panel.get_yticklabels()] == list("01234")
    mesh = next(item for item in panel.collections if isinstance(item, QuadMesh))
    run = frames.runs.query("dataset == 'mnist' and model == 'mlr' and seed == 0 and contexts == 4")["run"].item()
    rows = frames.assignments[frames.assignments["run"] == run]
    expected = rows.pivot(index="client", columns="round", values="context").loc[np.argsort(TRUTH, kind="stable")]
    np.testing.assert_array_equal(mesh.get_array().reshape(CLIENTS, ROUNDS), expected)
    colours = [to_hex(mesh.cmap(mesh.norm(k))) for k in range(4)]
    assert colours == [colour.lower() for colour in figures.CONTEXT_COLOURS[:4]]


def test_contexts_by_client_without_known_contexts(frames):
    unknown = figures.contexts_by_client(frames.table1, frames.assignments)
    panel = unknown.axes[0]
    assert panel.get_ylabel() == "client (by last context)"
    last = next(iter(panel.collections)).get_array().reshape(CLIENTS, ROUNDS)[:, -1]
    assert (np.diff(last) >= 0).all()


def test_clients_that_took_no_part_are_blank(frames):
    absent = frames.assignments[~((frames.assignments["client"] == 0) & (frames.assignments["round"] == 7))]
    mesh = next(iter(figures.contexts_by_client(frames.table1, absent, frames.contexts).axes[0].collections))
    assert np.ma.getmaskarray(mesh.get_array()).reshape(CLIENTS, ROUNDS).sum() == 1


def test_many_contexts_have_colours_of_their_own():
    assert len(set(figures._context_colours(24))) == 24


def test_distances_and_iterations(frames):
    figure = figures.draw("figure5a", frames)
    assert legend_of(figure) == ["between context models", "client to its context model"]
    assert all(len(curves_of(panel)) == len(bands_of(panel)) == 2 for panel in figure.axes)
    assert figure.axes[0].get_ylabel() == "Euclidean distance"
    figure = figures.draw("figure5b", frames)
    assert all(len(curves_of(panel)) == 1 for panel in figure.axes)
    assert figure.axes[0].get_ylabel() == "k-means iterations"


def test_criterion(frames):
    figure = figures.draw("heuristic", frames)
    assert legend_of(figure) == ["e(K)", "complexity term", "distance term", "chosen K"]
    panel = figure.axes[0]
    e, complexity, distance, chosen = panel.lines
    np.testing.assert_allclose(e.get_ydata(), complexity.get_ydata() + distance.get_ydata())
    assert sorted(chosen.get_xdata()) == [5, 6]


def test_partition():
    figure = figures.partition(make_statistics(), "digits, seed 0")
    train, test = figure.axes[:2]
    assert train.get_title() == "digits, seed 0"
    assert [axes.get_ylabel() for axes in figure.axes] == ["class", "class", "train samples", "test samples"]
    assert test.get_xlabel() == "client (by true context)"
    assert [label.get_text() for label in test.get_xticklabels()][:4] == ["0", "10", "1", "11"]
    counts = next(iter(train.collections)).get_array()
    assert counts.count() == 3 * CLIENTS  # zeros are left blank
    assert counts.sum() == make_statistics()["train"].sum()


def test_partition_without_contexts():
    test = figures.partition(make_statistics(contexts=False)).axes[1]
    assert test.get_xlabel() == "client"
    assert [label.get_text() for label in test.get_xticklabels()] == [str(u) for u in range(CLIENTS)]


@pytest.mark.parametrize("method", sorted(FINALS))
def test_a_missing_method_is_left_out(frames, method):
    frames = dropped(frames, method)
    if method == "cgpfl_heur":
        frames = replace(frames, runs=frames.runs.drop(columns="contexts_chosen"))
    for name in figures.NAMES:
        figure = figures.draw(name, frames)
        assert "Nothing to draw" not in text_of(figure) or method in text_of(figure)
        assert not figure.legends or method not in [name.split("[")[0] for name in legend_of(figure)]


@pytest.mark.parametrize("name", figures.NAMES)
def test_nothing_to_draw_is_said_in_words(frames, name, tmp_path):
    figure = figures.draw(name, figures.Frames(frames.runs[:0], *(frames.history[:0],) * 4))
    assert "Nothing to draw" in text_of(figure)
    figures.save(figure, tmp_path / name)


def test_a_second_dataset_that_is_not_there():
    figure = figures.draw("figure2", make_frames(pairs=[("digits", "mlr")]))
    assert text_of(figure) == "Nothing to draw: figure 2 shows the second dataset, and there is only digits."


@pytest.mark.parametrize("name", figures.NAMES)
def test_same_frames_same_bytes(frames, name, tmp_path):
    part = replace(frames, runs=frames.runs[frames.runs["dataset"] == "mnist"])
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        figures.save(figures.draw(name, part), tmp_path / folder / name)
    for ending in ("png", "pdf"):
        first, second = (tmp_path / folder / f"{name}.{ending}" for folder in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
    pdf = (tmp_path / "a" / f"{name}.pdf").read_bytes()
    assert b"CreationDate" not in pdf
    assert b"Producer" not in pdf


def test_the_user_s_own_style_changes_nothing(frames, tmp_path):
    figures.save(figures.draw("figure3b", frames), tmp_path / "plain")
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 20, "savefig.facecolor": "red", "lines.linewidth": 9}):
        figures.save(figures.draw("figure3b", frames), tmp_path / "own")
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "own.png").read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_nothing_is_clipped_or_overlaps_the_legend(frames):
    for name in figures.NAMES:
        figure = figures.draw(name, frames)
        FigureCanvasAgg(figure).draw()
        inside = figure.bbox.padded(1)
        for panel in figure.axes:
            for text in (panel.title, panel.xaxis.label, panel.yaxis.label):
                box = text.get_window_extent()
                if not text.get_text():
                    continue
                assert inside.contains(box.x0, box.y0)
                assert inside.contains(box.x1, box.y1)
            for legend in figure.legends:
                assert not legend.get_window_extent().overlaps(panel.get_tightbbox())


def make_studies(changes, methods=("local", "pfedme", "cgpfl[contexts=4]", "fedavg")):
    rows = [
        {
            "study": study, "changes": text, "train_samples": samples, "dataset": "mnist", "model": "mlr",
            "method": method, "tested": tested, "final_mean": 80.0 + i + place, "final_std": 1.0,
        }
        for place, (study, (text, samples)) in enumerate(changes.items())
        for i, method in enumerate(methods)
        for tested in ("personal", "local")
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_accuracy_by_samples_has_the_studies_of_nothing_but_data():
    changes = {"main": ("", 100.0), "same": ("", 100.0), "few": ("partition.train_share=0.1", 10.0)}
    changes |= {"eta": ("params.eta=0.1", 100.0), "both": ("params.lr=1, partition.train_share=0.1", 10.0)}
    elsewhere = make_studies({"main": ("", 50.0)}).assign(dataset="digits")  # where no study of the data was made
    figure = figures.accuracy_by_samples(pd.concat([make_studies(changes), elsewhere]))
    [panel] = figure.axes
    assert legend_of(figure) == ["local", "pfedme", "cgpfl[contexts=4]"]
    assert [list(line.get_xdata()) for line in panel.lines] == [[10, 100]] * 3
    assert list(panel.lines[0].get_ydata()) == [82, 81]  # a study of all data has the seeds of the other studies
    assert "Nothing to draw" in text_of(figures.accuracy_by_samples(make_studies({"main": ("", 100.0)})))


def test_accuracy_by_partition_has_a_group_for_each_scheme():
    changes = {"main": ("", 100.0), "mixed": ("partition.groups=5, partition.scheme=contexts", 90.0)}
    studies = make_studies(changes | {"eta": ("params.eta=0.1", 100.0)})
    more = make_studies({"all": ("", 100.0)}, methods=("cgpfl[contexts=10]",))  # the main experiment, but for its name
    figure = figures.accuracy_by_partition(pd.concat([studies, more, more.assign(dataset="digits")]))
    [panel] = figure.axes
    assert [label.get_text() for label in panel.get_xticklabels()] == ["main", "mixed"]
    assert legend_of(figure) == ["local", "pfedme", "cgpfl[contexts=4]", "cgpfl[contexts=10]"]
    assert "Nothing to draw" in text_of(figures.accuracy_by_partition(make_studies({"main": ("", 100.0)})))


def test_partitions_of_different_datasets_are_not_compared():
    other = make_studies({"mixed": ("partition.scheme=contexts", 90.0)}).assign(dataset="digits")
    figure = figures.accuracy_by_partition(pd.concat([make_studies({"main": ("", 100.0)}), other]))
    assert "Nothing to draw" in text_of(figure)


def test_the_choice_by_mu_falls_from_all_to_one_context(frames):
    panel = figures.draw("mu", frames).axes[0]
    chosen = panel.lines[0].get_ydata()
    assert (np.diff(chosen) >= 0).all()
    assert chosen[0] == 1
