"""Configurations: what they mean, what is refused and in which words, and that the pages match the types."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import cgpfl
from cgpfl import experiment, reference
from cgpfl.errors import UserError
from cgpfl.experiment import Job, load

ROOT = Path(__file__).parent.parent
SMALL = {
    "name": "small",
    "seeds": [0, 1],
    "datasets": ["digits"],
    "models": ["mlr"],
    "partition": {"clients": 20},
    "params": {"lam": 12},
    "methods": ["local", {"cgpfl": {"contexts": 4}}, "cgpfl_heur"],
    "sweeps": {
        "lam": {"methods": ["pfedme", {"cgpfl": {"contexts": 2}}], "values": [1, 12]},
        "contexts": {"methods": ["cgpfl"], "values": [1, 4]},
    },
}


def small(**changes):
    return {**SMALL, **changes}


def runs_of(config, method, model="mlr"):
    return load(config).job("digits", model, method).runs


def test_there_is_one_job_for_each_dataset_model_and_method():
    jobs = load(small(models=["mlr", "dnn"])).jobs
    methods = ["local", "cgpfl", "cgpfl_heur", "pfedme"]
    assert [(job.model, job.method) for job in jobs] == [(m, name) for m in ("mlr", "dnn") for name in methods]


def test_a_job_has_each_distinct_setting_once_for_each_seed():
    runs = runs_of(SMALL, "cgpfl")
    assert [(run.label, run.params["lam"], run.parts) for run in runs if run.seed == 1] == [
        ("cgpfl[contexts=4]", 12, ("table1", "contexts")),
        ("cgpfl[contexts=2]", 1, ("lam",)),
        ("cgpfl[contexts=2]", 12, ("lam",)),
        ("cgpfl[contexts=1]", 12, ("contexts",)),
    ]
    assert len(runs) == 8


def test_labels_show_what_entries_set_and_runs_differ_in():
    assert {run.label for run in runs_of(small(methods=[{"ifca": {"contexts": 4}}], sweeps={}), "ifca")} == {"ifca"}
    several = small(methods=[{"pfedme": {"lam": [5, 12.0], "beta": 1}}], sweeps={})
    assert {run.label for run in runs_of(several, "pfedme")} == {"pfedme[lam=5]", "pfedme[lam=12]"}
    swept = small(methods=["pfedme"], sweeps={"lam": {"methods": ["pfedme"], "values": [1, 0.5]}})
    assert {run.label for run in runs_of(swept, "pfedme")} == {"pfedme"}


def test_parameters_come_from_the_entry_then_the_model_then_all():
    config = small(
        params={"lr": 0.1, "lam": 3},
        model_params={"mlr": {"lr": 0.2}},
        methods=["ditto", {"fedavg": {"lr": 0.3}}],
        sweeps={},
    )
    [ditto, fedavg] = [load(config).job("digits", "mlr", method).runs[0].params for method in ("ditto", "fedavg")]
    assert (ditto["lr"], ditto["lam"], fedavg["lr"], "lam" in fedavg) == (0.2, 3, 0.3, False)
    assert ditto["local_steps"] == cgpfl.methods()["ditto"].params["local_steps"].default


def test_values_by_pair_are_taken_for_their_pair():
    values = {"digits/mlr": [1, 2], "digits/dnn": []}
    config = small(models=["mlr", "dnn"], sweeps={"lam": {"methods": ["pfedme"], "values": values}})
    assert [run.params["lam"] for run in runs_of(config, "pfedme") if run.seed == 0] == [1, 2]
    assert "pfedme" not in {job.method for job in load(config).jobs if job.model == "dnn"}


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=4, unique=True),
    st.lists(st.floats(0.01, 50) | st.integers(1, 50), min_size=1, max_size=5),
)
def test_adding_to_a_configuration_keeps_the_runs_it_had(seeds, values):
    def runs(seeds, values):
        config = small(seeds=seeds, methods=["pfedme"], sweeps={"lam": {"methods": ["pfedme"], "values": values}})
        return {json.dumps([run.seed, run.params]) for run in runs_of(config, "pfedme")}

    before, after = runs([99], [1, 12]), runs([99, *seeds], [1, 12, *values])
    assert before <= after
    assert len(after) % (len(seeds) + 1) == 0


def test_a_sweep_can_have_fewer_seeds():
    sweeps = {"lam": {"methods": [{"cgpfl": {"contexts": 4}}], "values": [1, 12], "seeds": [1, 7]}}
    runs = runs_of(small(sweeps=sweeps), "cgpfl")
    assert [(run.seed, run.params["lam"], run.parts) for run in runs] == [
        (0, 12, ("table1",)),
        (1, 12, ("table1", "lam")),
        (1, 1, ("lam",)),
    ]


def test_a_study_is_the_main_experiment_with_changes_and_without_sweeps():
    changes = {"partition": {"train_share": 0.1}, "params": {"lr": 0.02}, "methods": ["local"], "seeds": [1]}
    main = load(small(model_params={"mlr": {"l2": 0.1}}, studies={"few": changes, "same": {}}))
    few, same = main.by_folder["studies/few/"], main.by_folder["studies/same/"]
    assert list(main.by_folder) == ["", "studies/few/", "studies/same/"]
    assert (few.partition.clients, few.partition.train_share, few.sweeps) == (20, 0.1, {})
    [run] = few.job("digits", "mlr", "local").runs
    assert (run.seed, run.params["lr"], run.params["l2"]) == (1, 0.02, 0.1)
    assert main.changes(few) == {"params.lr": 0.02, "partition.train_share": 0.1}
    assert main.changes(same) == {}
    assert [job.method for job in same.jobs] == ["local", "cgpfl", "cgpfl_heur"]


def test_settings_of_models_and_methods_that_a_study_leaves_out_do_not_stop_it(tmp_path, monkeypatch):
    (tmp_path / "ownfl.py").write_text(
        "from cgpfl.methods import Param\nfrom cgpfl.methods.fedavg import FedAvg\nfrom torch import nn\n"
        "class Mine(FedAvg):\n"
        "    name = 'mine'\n"
        "    parameters = (*FedAvg.parameters, Param('strength', 1.0, 'a strength', low=0))\n"
        "def net(shape, classes):\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    own = {
        "models": ["mlr", "ownfl:net"],
        "model_params": {"net": {"lr": 0.1}},
        "params": {"strength": 2},
        "methods": ["local", "ownfl:Mine"],
        "sweeps": {},
    }
    main = load(small(**own, studies={"plain": {"models": ["mlr"], "methods": ["local"]}}))
    assert [job.method for job in main.by_folder["studies/plain/"].jobs] == ["local"]


def test_a_study_of_other_settings_of_a_method_is_not_the_main_experiment():
    methods = ["local", {"pfedme": {"lr": 0.2}}, {"cgpfl": {"contexts": [2, 8]}}]
    main = load(
        small(methods=["local", "pfedme", {"cgpfl": {"contexts": 4}}], studies={"faster": {"methods": methods}})
    )
    assert main.changes(main.by_folder["studies/faster/"]) == {"methods.pfedme.lr": 0.2}


def test_tuning_has_the_grids_of_the_types_unless_told_otherwise():
    given = load(small(tune={"grids": {"cgpfl": {"lam": [1, 2]}}, "rounds": 7}))
    assert given.tuning("cgpfl") == {"grid": {"lam": [1, 2]}, "rounds": 7}
    assert given.tuning("local")["grid"] == experiment.GRIDS["local"]
    assert [job.method for job in given.tuned_jobs] == ["local", "cgpfl", "cgpfl_heur"]
    assert given.tuning_seeds == [0]
    assert load(SMALL).tuning_seeds == load(SMALL).tuned_jobs == []
    for method, grid in experiment.GRIDS.items():
        load(small(tune={"grids": {method: {name: list(values) for name, values in grid.items()}}}))


def test_tuning_can_be_for_some_models():
    models = ["mlr", {"dnn": {"hidden": 4}}]
    jobs = load(small(models=models, tune={})).tuned_jobs
    assert [job.model for job in jobs] == ["mlr"] * 3 + ["dnn"] * 3
    assert [job.model for job in load(small(models=models, tune={"models": ["mlr"]})).tuned_jobs] == ["mlr"] * 3


def test_a_job_survives_the_way_through_plain_values():
    job = load(SMALL).jobs[1]
    assert Job.from_plain(json.loads(json.dumps(job.plain()))) == job


WRONG = {
    "rounds": (
        {"training": {"rounds": 0}},
        r"training.rounds is 0; valid is a whole number \(at least 1 and at most 10+",
    ),
    "many rounds": ({"training": {"rounds": 10**10}}, r"training.rounds is 10+; .* at most 1000000000\)"),
    "many steps": ({"params": {"local_steps": 10**400}}, r"params.local_steps: 10+ given, .* at most 1000000000$"),
    "memory": ({"training": {"memory_gb": float("inf")}}, r"training.memory_gb is Infinity; valid is a number"),
    "below 0": ({"seeds": [0, -1]}, r"seeds\[1\] is -1; .* \(at least 0 and at most 9223372036854775807\)"),
    "large seed": ({"seeds": [2**70]}, r"seeds\[0\] is 1180591620717411303424; .* at most 9223372036854775807\)"),
    "seeds as text": ({"seeds": "0"}, 'seeds is "0"; valid is a list that is not empty'),
    "rounds as text": ({"training": {"rounds": "0"}}, 'rounds is "0"; valid is a whole number'),
    "small as text": ({"params": {"lr": "1e-12"}}, r"write 0\.000000000001\)"),
    "tiny as text": ({"params": {"lr": "1.5e-30"}}, r"write 1\.5e-30\)"),
    "zero as text": ({"params": {"lr": "0"}}, "params.lr: '0' given, valid is a number above 0$"),
    "nan as text": ({"params": {"lr": "nan"}}, "valid is a number above 0$"),
    "key of a number": ({"params": {5: 1}}, "params has the key 5; valid is text"),
    "keys of numbers": ({"methods": [{"cgpfl": {5: 1}}]}, r"methods\[0\].cgpfl has the key 5; valid is text"),
    "no values": ({"methods": [{"cgpfl": {"contexts": []}}]}, r"methods\[0\].cgpfl.contexts is \[\]; .* not empty"),
    "nothing to sweep": (
        {"sweeps": {"lam": {"methods": ["pfedme"], "values": []}}},
        r"sweeps.lam.values is \[\]; valid is a list that is not empty",
    ),
    "a sweep's entry without values": (
        {"sweeps": {"lam": {"methods": [{"cgpfl": {"contexts": []}}], "values": [1]}}},
        r"sweeps.lam.methods\[0\].cgpfl.contexts is \[\]",
    ),
    "unknown pair": (
        {"sweeps": {"lam": {"methods": ["pfedme"], "values": {"digits/mlr": [1], "zzz/mlr": [1]}}}},
        "sweeps.lam.values: 'zzz/mlr' is no dataset/model; valid are digits/mlr",
    ),
    "a method twice": (
        {"methods": [{"cgpfl": {"contexts": 4}}, {"cgpfl": {"contexts": 4}}]},
        "methods: {'cgpfl': {'contexts': 4}} stands there twice",
    ),
    "a swept method twice": (
        {"sweeps": {"lam": {"methods": ["pfedme", "pfedme"], "values": [1]}}},
        "sweeps.lam.methods: 'pfedme' stands there twice",
    ),
    "figures of what is not run": ({"figures": ["ditto"]}, "figures: 'ditto' is not a method of the experiment"),
    "rows that tuning would make one": (
        {"methods": [{"pfedme": {"lr": [0.01, 0.05]}}], "tune": {}},
        r"methods: pfedme\[lr=0.01\] is told apart by lr, which tune.grids.pfedme is to tune; set it in `params`",
    ),
    "tuning of nothing": (
        {"tune": {"grids": {"cgpf": {}}}},
        "tune.grids: 'cgpf' is not a method; .*Did you mean cgpfl",
    ),
    "tuning's parameter": ({"tune": {"grids": {"local": {"lam": [1]}}}}, "tune.grids.local.lam: unknown parameter"),
    "tuning's value": ({"tune": {"grids": {"local": {"lr": [0]}}}}, "lr: 0 given, valid is a number above 0"),
    "no values to tune": ({"tune": {"grids": {"local": {"lr": []}}}}, r"lr is \[\]; valid is a list that is not empty"),
    "tuning's model": (
        {"tune": {"models": ["dnn"]}},
        "tune.models: 'dnn' is not a model of the experiment; valid are mlr.",
    ),
    "tuning's seeds": ({"tune": {"seeds": [1, 1]}}, "tune.seeds: 1 stands there twice"),
    "a tuned study": ({"studies": {"a": {"tune": {}}}}, "studies.a.tune: a study cannot change this"),
    "share": ({"partition": {"train_share": 0}}, r"train_share is 0; valid is a number \(above 0 and at most 1\)"),
    "scale": ({"training": {"scale": "log"}}, 'training.scale is "log"; valid is standardise or unit'),
    "seeds of a sweep": (
        {"sweeps": {"lam": {"methods": ["pfedme"], "values": [1], "seeds": [5]}}},
        r"sweeps.lam.seeds is \[5\]; valid are some of `seeds`, \[0, 1\]",
    ),
    "a study's key": ({"studies": {"a": {"method": []}}}, "studies.a.method: a study cannot .* Did you mean methods"),
    "a study's name": ({"studies": {"a b": {}}}, "studies: 'a b' is no name of a study; valid is"),
    "a name that is taken": ({"studies": {"tuned": {}}}, "'tuned' cannot be a study's name; .* any but main and tuned"),
    "a study's value": ({"studies": {"a": {"params": {"lr": -1}}}}, "studies.a: params.lr: -1 given, valid is"),
    "a study of a study": ({"studies": {"a": {"studies": {}}}}, "studies.a.studies: a study cannot change this"),
    "no mapping": ({"tune": True}, r"tune is true; valid is a mapping of keys \(validation, .* and grids\) or null"),
    "no study": ({"studies": {"a": 3}}, "studies.a is 3; valid is a mapping of keys"),
    "two datasets of a name": (
        {
            "datasets": ["digits", {"name": "own", "kind": "npz", "path": "pyproject.toml"}],
            "studies": {"a": {"datasets": [{"name": "own", "kind": "npz", "path": "Makefile"}]}},
        },
        "'own' is described in two ways",
    ),
    "archives": ({"data": {"archive_dir": "no/such"}}, "data.archive_dir is 'no/such'; there is no such folder"),
    "empty path": ({"datasets": [{"name": "a", "kind": "npz", "path": ""}]}, r'path is ""; valid is text that is not'),
    "folder for a file": ({"datasets": [{"name": "a", "kind": "npz", "path": "."}]}, "path '.', a folder; valid is"),
    "too many clients": (
        {"partition": {"clients": 500}},
        "clients is 500; with 4 .* valid is 1 to 449 .*1797 .* digits",
    ),
    "too large clients": ({"partition": {"min_samples": 90}}, "clients is 40; with 90 .* valid is 1 to 19 for"),
    "fraction": ({"training": {"participation": 1.5}}, r"participation is 1.5; .* \(above 0 and at most 1\)"),
    "section": ({"training": {"lr": 0}}, r"training.lr: unknown key; valid are rounds, batch_size"),
    "key": ({"dataset": "x"}, "dataset: unknown key; valid are name, .*Did you mean datasets"),
    "text": ({"params": {"lr": "1e-3"}}, r"params.lr: '1e-3' .*write 0.001"),
    "text in a section": ({"training": {"memory_gb": "1e1"}}, "training.memory_gb: '1e1' is text to YAML; write 10"),
    "text in a list": ({"methods": [{"pfedme": {"lam": ["1e-3"]}}]}, r"methods\[0\].pfedme.lam: .*write 0.001"),
    "text in a sweep": ({"sweeps": {"lam": {"methods": ["pfedme"], "values": ["1e1"]}}}, r"sweeps.*lam: .*write 10"),
    "seed": ({"seeds": [0, "1"]}, r"seeds\[1\]: '1' is text to YAML; write 1"),
    "no seeds": ({"seeds": []}, "seeds is .*; valid is a list that is not empty"),
    "a seed twice": ({"seeds": [1, 1]}, "seeds: 1 stands there twice"),
    "yes": ({"training": {"eval_every": True}}, "training.eval_every is true; valid is a whole number"),
    "batch": ({"training": {"batch_size": "all"}}, r"batch_size is \"all\"; valid is a whole number .* or full"),
    "device": ({"training": {"device": "gpu"}}, 'training.device is "gpu"; valid is auto'),
    "mapping": ({"training": 3}, "training is 3; valid is a mapping of keys"),
    "name": ({"name": "a b"}, 'name is "a b"; valid is text of letters'),
    "dataset": ({"datasets": ["mnits"]}, "'mnits'; valid are digits, mnist"),
    "no path": ({"datasets": [{"name": "a", "kind": "npz"}]}, "'a' .*needs a path"),
    "no file": (
        {"datasets": [{"name": "a", "kind": "npz", "path": "no.npz"}]},
        "a has path 'no.npz', where nothing is",
    ),
    "model": ({"models": ["resnet"]}, r"models\[0\]: 'resnet' is not a model; valid are mlr, dnn and cnn"),
    "model's size": ({"models": [{"dnn": {"hiden": 3}}]}, r"models\[0\] on digits: .*hiden"),
    "too small for cnn": ({"models": ["cnn"]}, r"models\[0\] on digits: .*\(8, 8\)"),
    "model params": ({"model_params": {"mlp": {}}}, "model_params: 'mlp' is not a model"),
    "method": ({"methods": ["cgpfl2"]}, r"methods\[0\]: 'cgpfl2' is not a method; .*Did you mean cgpfl"),
    "entry": ({"methods": [{"cgpfl": 3}]}, r"methods\[0\] is .*; valid is a name, or a name with a mapping"),
    "misplaced": (
        {"methods": [{"fedavg": {"lam": 3}}]},
        r"methods\[0\].fedavg.lam: unknown parameter; valid are local_steps",
    ),
    "no parameter": ({"params": {"lamda": 1}}, "params.lamda: unknown parameter; .*Did you mean lam"),
    "range": ({"params": {"lr": -1}}, "params.lr: -1 given, valid is a number above 0$"),
    "list": ({"params": {"lam": [1, 2]}}, "params.lam is a list; .*`methods` or `sweeps`"),
    "contexts": ({"methods": [{"cgpfl": {"contexts": 30}}]}, r"contexts: 30 contexts for 20 clients; valid is 1 to 20"),
    "l2sgd": ({"methods": ["l2sgd"], "params": {"lam": 50}}, "l2sgd: .*c = .* = 2.5 for lr=0.005, lam=50, p=0.0909"),
    "classes": ({"partition": {"classes_per_client": 11}}, "classes_per_client is 11; .* from 1 to 10"),
    "option": ({"partition": {"scheme": "iid", "classes_per_client": 3}}, "scheme 'iid' takes no such option"),
    "no groups": ({"partition": {"scheme": "contexts"}}, "partition.groups is missing"),
    "oracle": (
        {"partition": {"scheme": "iid"}, "methods": ["cgpfl_oracle"]},
        "scheme is 'iid', .*valid are cyclic, random",
    ),
    "sweep of nothing": (
        {"sweeps": {"lam": {"methods": ["fedavg"], "values": [1]}}},
        r"sweeps.lam.methods\[0\].fedavg.lam: unknown parameter",
    ),
    "pair": (
        {"sweeps": {"lam": {"methods": ["pfedme"], "values": {"mnist/mlr": [1]}}}},
        "has no values for digits/mlr",
    ),
    "pair's values": (
        {"sweeps": {"lam": {"methods": ["pfedme"], "values": {"digits/mlr": 1}}}},
        "digits/mlr is 1; .*a list",
    ),
    "swept and set": (
        {"sweeps": {"lam": {"methods": [{"pfedme": {"lam": 1}}], "values": [1]}}},
        "pfedme sets lam, which",
    ),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=WRONG)
def test_a_mistake_ends_in_one_sentence_with_the_key_and_what_is_valid(changes, message):
    with pytest.raises(UserError, match=message) as caught:
        load(small(**changes))
    assert "\n" not in str(caught.value)


def test_models_of_your_own_data_are_checked_before_it_is_read(tmp_path):
    (tmp_path / "a.npz").touch()
    own = {"datasets": [{"name": "a", "kind": "npz", "path": str(tmp_path / "a.npz")}], "sweeps": {}}
    load(small(**own, models=["mlr", {"cnn": {"hidden": 10**6}}]))
    with pytest.raises(UserError, match=r"models\[0\] on a: .*hiden"):
        load(small(**own, models=[{"cnn": {"hiden": 3}}]))


def test_data_that_comes_with_clients_keeps_them(tmp_path):
    """50 clients, of which `partition` knows nothing, and another dataset with 20."""
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((100, 2)), y=np.arange(100) % 2, client=np.arange(100) // 2)
    own = {"datasets": [{"name": "a", "kind": "npz", "path": str(path)}], "sweeps": {}}
    experiment = load(small(**own, methods=[{"cgpfl": {"contexts": 50}}]))
    assert set(dict(experiment.datasets[0])) == {"name", "kind", "path"}  # what the step of the data is given
    load(small(**own, partition={"clients": 10**6}, methods=["cgpfl"]))  # asks nothing of this data
    with pytest.raises(UserError, match="contexts: 51 contexts for 50 clients"):
        load(small(**own, methods=[{"cgpfl": {"contexts": 51}}]))
    both = {**own, "datasets": [*own["datasets"], "digits"]}
    with pytest.raises(UserError, match="contexts: 50 contexts for 20 clients"):
        load(small(**both, methods=[{"cgpfl": {"contexts": 50}}]))
    with pytest.raises(UserError, match=r"a comes with its clients, .* leave cgpfl_oracle out"):
        load(small(**both, methods=["cgpfl_oracle"]))


@pytest.mark.parametrize(("gpus", "here"), [(0, "auto and cpu"), (1, "auto, cpu, cuda and cuda:0")])
def test_a_gpu_that_is_not_there_is_an_error_before_any_job(gpus, here, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(UserError, match=f"training.device is 'cuda:1'; valid on this machine are {here}"):
        load(small(training={"device": "cuda:1"}))


def test_values_may_stand_there_for_pairs_that_are_left_out():
    values = {"digits/mlr": [1], "mnist/dnn": [2]}
    load(small(sweeps={"lam": {"methods": ["pfedme"], "values": values}}))


@pytest.mark.parametrize("config", [None, [1], "text", {}, {5: 1}, {True: {}}])
def test_what_is_no_configuration_is_refused(config):
    with pytest.raises(UserError):
        load(config)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match=r"no configuration file 'none.yaml'"):
        experiment.read("none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1\n")
    with pytest.raises(UserError, match=r"broken.yaml is not YAML"):
        experiment.read(broken)


def test_values_of_the_command_line_get_their_types():
    given = {"seeds": ["0", "1"], "training": {"rounds": "2"}, "name": "x", "params": {"lr": "1e-3"}, "models": 3}
    expected = {"seeds": [0, 1], "training": {"rounds": 2}, "name": "x", "params": {"lr": "1e-3"}, "models": 3}
    assert experiment.typed(given) == expected


def test_config_files_match_the_types():
    """If this fails, run `make config`."""
    for path, text in reference.pages(ROOT / "config").items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_the_documented_default_is_the_embedded_experiment():
    assert experiment.read(ROOT / "config/config.yaml") == load(reference.EMBEDDED)
    assert {job.method for job in load(reference.EMBEDDED).jobs} == set(cgpfl.methods())


@pytest.mark.parametrize("name", ["config.yaml", "quick.yaml", "paper.yaml"])
def test_the_configurations_are_valid(name):
    path = ROOT / "config" / name
    experiment.read(path)
    jsonschema.validate(yaml.safe_load(path.read_text()), json.loads((ROOT / "config/schema.json").read_text()))


@pytest.mark.parametrize("name", ["key", "section", "rounds", "method", "misplaced", "no parameter", "text", "entry"])
def test_the_schema_knows_what_the_types_know(name):
    schema = reference.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(SMALL, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(small(**WRONG[name][0]), schema)


def test_the_paper_is_configured_as_it_says():
    paper = experiment.read(ROOT / "config/paper.yaml")
    assert (paper.partition.clients, paper.training.rounds, paper.training.batch_size) == (40, 200, 20)
    assert {run.params["lam"] for run in paper.job("mnist", "mlr", "cgpfl_heur").runs} == set(range(11, 20))
    assert {run.params["lam"] for run in paper.job("fashion_mnist", "dnn", "pfedme").runs} == set(range(7, 16))
