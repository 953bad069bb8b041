"""The run store: content keys, runs whole or not at all, and frames gathered in order."""

import json
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cgpfl import results
from cgpfl.errors import UserError
from cgpfl.models import MODELS, as_net
from cgpfl.nets import DenseStack
from cgpfl.results import Store, Stored

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def a_run(key: str, accuracy: float = 0.5) -> Stored:
    frames = {
        "runs": pd.DataFrame({"run": [key], "seed": [0], "lam": [12]}),
        "history": pd.DataFrame(
            {
                "run": [key] * 2,
                "seed": [0] * 2,
                "round": [1, 2],
                "tested": ["personal"] * 2,
                "accuracy": [0.1, accuracy],
            }
        ),
        "clustering": pd.DataFrame(),
    }
    return Stored(key, {"method": "pfedme", "seed": 0}, {"commit": "abc"}, frames)


@given(plain, plain)
def test_keys_differ_where_contents_do(one, other):
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (results.content_key(one) == results.content_key(other)) == same


def test_a_key_ignores_the_order_of_names_but_not_of_values():
    assert results.content_key({"a": 1, "b": [1, 2]}) == results.content_key({"b": [1, 2], "a": 1})
    assert results.content_key([1, 2]) != results.content_key([2, 1])
    assert len(results.content_key({})) == 16


def test_comments_docstrings_and_layout_do_not_change_the_hash_of_code(tmp_path):
    one, other, third = (tmp_path / name for name in ("one.py", "other.py", "third.py"))
    one.write_text('"""About."""\ndef f(x):\n    """Adds."""\n    return x + 1\n')
    other.write_text("# why\ndef f(x):\n    return (x\n            + 1)  # one\n")
    third.write_text("def f(x):\n    return x + 2\n")
    assert results.code(one) == results.code(other) != results.code(third)


def test_the_engine_is_the_modules_that_decide_numbers():
    names = {path.stem for path in results.engine_files()}
    assert {"clients", "models", "solvers", "contexts", "simulation", "cgpfl", "ifca"} <= names
    assert not {"figures", "tables", "tracking", "experiment", "datasets"} & names


def test_the_engine_has_a_hash_of_its_code():
    assert len(results.engine_hash("mlr")) == 16
    assert results.engine_hash("mlr") != results.content_key({})


def test_dense_models_do_not_depend_on_the_convolutional_code():
    assert results.engine_hash("mlr") == results.engine_hash("dnn")
    assert results.engine_hash("cnn") == results.engine_hash("mine") != results.engine_hash("mlr")
    for model in results.DENSE:
        assert type(as_net(partial(MODELS[model], (4,), 2), torch.device("cpu"))) is DenseStack


def test_a_stored_run_comes_back_with_all_its_frames(tmp_path):
    store = Store(tmp_path / "store")
    assert store.missing(["a", "b", "a"]) == ["a", "b"]
    store.add(a_run("a"))
    assert "a" in store
    assert store.missing(["a", "b"]) == ["b"]
    run = store.get("a")
    assert (run.facts, run.made) == ({"method": "pfedme", "seed": 0}, {"commit": "abc"})
    pd.testing.assert_frame_equal(run.frames["history"], a_run("a").frames["history"])
    assert set(run.frames) == set(results.COLUMNS)
    assert list(run.frames["heuristic"]) == list(results.COLUMNS["heuristic"])
    assert run.frames["heuristic"].empty
    with pytest.raises(KeyError):
        store.get("b")


def test_a_run_that_is_stored_stays_as_it_is(tmp_path):
    store = Store(tmp_path)
    store.add(a_run("a", accuracy=0.5))
    store.add(a_run("a", accuracy=0.9))
    assert store.get("a").frames["history"]["accuracy"].iloc[-1] == 0.5


def test_a_damaged_run_is_named(tmp_path):
    store = Store(tmp_path)
    store.add(a_run("a"))
    (tmp_path / "a" / "history.parquet").write_bytes(b"half")
    with pytest.raises(UserError, match=r"The stored run .*a is damaged .*delete that folder and run again"):
        store.get("a")
    (tmp_path / "a" / "run.json").write_text("half")
    with pytest.raises(UserError, match=r"The stored run .*a is damaged .*delete that folder and run again"):
        store.made("a")


def test_what_cannot_be_written_leaves_nothing(tmp_path):
    store = Store(tmp_path)
    broken = Stored("a", {"not json": object()}, {}, a_run("a").frames)
    with pytest.raises(TypeError):
        store.add(broken)
    assert list(tmp_path.iterdir()) == []


def test_many_may_store_at_once(tmp_path):
    store = Store(tmp_path)
    threads = [threading.Thread(target=lambda: [store.add(a_run(f"{i}")) for i in range(5)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(path.name for path in tmp_path.iterdir()) == list("01234")
    assert [store.get(f"{i}").key for i in range(5)] == list("01234")


KILLED = """
import os, signal, sys
from pathlib import Path
import pandas as pd
from cgpfl.results import Store, Stored
def write(self, path, **_):
    Path(path).write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
store = Store(Path(sys.argv[1]))
frame = pd.DataFrame({"run": ["a"]})
store.add(Stored("whole", {}, {}, {"runs": frame}))
pd.DataFrame.to_parquet = write
store.add(Stored("half", {}, {}, {"runs": frame}))
"""


def test_a_job_killed_while_it_stores_loses_that_run_only(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)])
    assert done.returncode == -9
    store = Store(tmp_path)
    assert "whole" in store
    assert "half" not in store
    store.add(a_run("half"))
    assert store.get("half").key == "half"


def test_frames_are_written_and_read_in_order(tmp_path):
    for name in ("b", "a"):
        results.write(
            results.join([a_run(name).frames | {"assignments": pd.DataFrame(), "heuristic": pd.DataFrame()}]),
            tmp_path / name,
        )
    frames = results.read([tmp_path / "b", tmp_path / "a"])
    assert list(frames["runs"]["run"]) == ["b", "a"]
    assert list(frames["history"]["round"]) == [1, 2, 1, 2]
    assert list(frames["clustering"]) == list(results.COLUMNS["clustering"])


def test_reading_names_the_file_that_is_missing(tmp_path):
    with pytest.raises(UserError, match=r"runs.parquet is missing"):
        results.read([tmp_path])


def test_the_key_of_files_is_that_of_their_contents(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        Path(folder, "table.csv").write_text("a,b\n")
    assert results.file_key([one / "table.csv"]) == results.file_key([other / "table.csv"])
    (one / "table.csv").write_text("a,c\n")
    assert results.file_key([one / "table.csv"]) != results.file_key([other / "table.csv"])


def test_the_cost_of_training_is_that_of_its_runs_each_counted_once(tmp_path):
    store = results.Store(tmp_path / "store")
    machine = {"processor": "p", "cores": 2}
    made = {"a": {**machine, "peak_mb": 900.0}, "b": {**machine, "peak_mb": 950.0}, "c": {"processor": "x86_64"}}
    for key, about in made.items():
        store.add(results.Stored(key, {}, about, {}))
    main = pd.DataFrame(
        {"run": ["a", "b", "c"], "parts": [["table1", "lam"], ["table1"], ["lam"]], "seconds": [60, 30, 7]}
    )
    study = pd.DataFrame({"run": ["a", "d"], "parts": [["table1"], ["table1"]], "seconds": [60, 5]})
    table = results.cost_of_run({"main": main, "half": study}, store, tmp_path / "none")
    assert table.columns.tolist() == results.COST
    assert table[["part", "runs", "wall_s"]].to_numpy().tolist() == [
        ["table1", 2, 90],
        ["lam", 1, 7],
        ["study half", 1, 5],
    ]
    assert table["peak_mb"].fillna(0).tolist() == [950, 0, 0]
    assert table["processor"].fillna("").tolist() == ["p", "x86_64", ""]
    assert table["cores"].fillna(0).tolist() == [2, 0, 0]


def test_joined_frames_have_every_column_that_figures_and_claims_ask_for():
    diverged_at_once = {name: pd.DataFrame() for name in results.COLUMNS}
    diverged_at_once["clustering"] = pd.DataFrame({"run": ["a"], "round": [1], "kmeans_iterations": [2]})
    joined = results.join([diverged_at_once])
    for name, columns in results.COLUMNS.items():
        assert set(columns) <= set(joined[name].columns)
    assert joined["clustering"]["between"].isna().all()


def test_the_cost_of_other_rules_adds_up_their_benchmarks(tmp_path):
    taken = {"data": (8, 50), "partition/a": (60, 900), "studies/x/partition/a": (30, 1000), "studies": (2, "-"),
             "train/a": (9, 9), "studies/x/train/a": (9, 9)}  # fmt: skip
    for name, (seconds, memory) in taken.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.tsv").write_text(f"s\tmax_rss\n{seconds}\t{memory}\n")
    runs = pd.DataFrame({"run": [], "parts": [], "seconds": []})
    table = results.cost_of_run({"main": runs}, results.Store(tmp_path / "store"), tmp_path)
    rows = table[["part", "jobs", "wall_s", "longest_s", "peak_mb"]].fillna(0).to_numpy().tolist()
    assert rows == [["partition", 2, 90, 60, 1000], ["data", 1, 8, 8, 50], ["studies", 1, 2, 2, 0]]
