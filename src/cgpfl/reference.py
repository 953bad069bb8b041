"""What can be configured, written from the types: the embedded default, a JSON schema, and tables of all keys.

`python -m cgpfl.reference config` writes `config.yaml`, `schema.json` and the tables of `README.md` in that folder; a
test compares them with the types.
"""

import inspect
import json
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel

import cgpfl
from cgpfl import datasets, models
from cgpfl.experiment import GRIDS, STUDY_KEYS, Experiment, Section, in_words, load

EMBEDDED: Mapping[str, Any] = {
    "name": "digits",
    "seeds": [0, 1, 2],
    "datasets": ["digits"],
    "models": ["mlr", "dnn"],
    "partition": {"clients": 20, "classes_per_client": 3, "min_samples": 40, "max_samples": 200, "size_sigma": 0.8},
    "training": {"rounds": 30, "eval_every": 1, "threads": 1},
    "params": {"local_steps": 10, "inner_steps": 5, "lr": 0.01, "meta_lr": 0.01, "eta": 0.05, "lam": 8},
    "methods": [
        "local",
        "fedavg",
        "fedavg_ft",
        "fedprox",
        "ifca",
        "l2sgd",
        "apfl",
        "perfedavg",
        "pfedme",
        "ditto",
        {"cgpfl": {"contexts": 4}},
        "cgpfl_heur",
        "cgpfl_oracle",
    ],
    "sweeps": {
        "lam": {"methods": ["pfedme", {"cgpfl": {"contexts": 4}}], "values": [4, 8, 12]},
        "contexts": {"methods": ["cgpfl"], "values": [1, 2, 4, 8]},
    },
}
"""The experiment of `config/config.yaml`: minutes on two cores, with data that scikit-learn ships."""

HEAD = """\
# yaml-language-server: $schema=schema.json
# The default experiment: every method on scikit-learn's digits. All keys: README.md beside this file.
# Written by `make config` from the types in src/cgpfl/experiment.py.
"""
OWN = "^[^:]+:[^:]+$"
"""The path of a model or method of the user's own, as far as an editor can tell."""
MARKS = "<!-- written by `make config` -->", "<!-- end -->"


def documented(experiment: Experiment) -> str:
    """An experiment as YAML with the description of each key; keys that it leaves at their default are left out."""
    text = HEAD
    for name, about in Experiment.model_fields.items():
        value = getattr(experiment, name)
        if value != about.default:
            text += "\n" + _comment(about.description, "")
            text += f"{name}:\n{_section(value)}" if isinstance(value, BaseModel) else _yaml(name, _dump(value))
    return text


def _section(section: BaseModel) -> str:
    lines = []
    for name, about in type(section).model_fields.items():
        value = getattr(section, name)
        if value is not None and (value != about.default or name in ("clients", "scheme", "rounds", "batch_size")):
            lines.append(_comment(about.description, "  ") + textwrap.indent(_yaml(name, _dump(value)), "  "))
    return "".join(lines)


def _comment(text: str | None, indent: str) -> str:
    return textwrap.fill(text or "", 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ") + "\n"


def _dump(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, list):
        return [_dump(each) for each in value]
    return {name: _dump(each) for name, each in value.items()} if isinstance(value, dict) else value


def _yaml(key: str, value: Any) -> str:
    if isinstance(value, dict | list) and any(isinstance(each, dict | list) for each in _members(value)):
        return yaml.safe_dump({key: value}, sort_keys=False, default_flow_style=None, width=100)
    return f"{key}: {_flow(value)}\n"


def _members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def schema() -> dict[str, Any]:
    """A JSON schema for editors. It knows names, types and ranges; what goes together only `load` knows."""
    whole = Experiment.model_json_schema()
    properties, definitions = whole["properties"], whole["$defs"]
    methods = cgpfl.methods()
    params = {name: _param_schema(param) for method in methods.values() for name, param in method.params.items()}
    properties["params"] |= {"properties": params, "additionalProperties": False}
    properties["model_params"]["additionalProperties"] = {"$ref": "#/properties/params"}
    definitions.pop("ModelEntry")
    definitions["MethodEntry"] = _named(
        {name: _closed({key: _one_or_more(key) for key in method.params}) for name, method in methods.items()}
    )
    properties["models"]["items"] = _named({name: {"type": "object"} for name in models.MODELS})
    public = [kind for kind, needs_path in datasets.kinds().items() if not needs_path]
    properties["datasets"]["items"] = {"anyOf": [{"enum": public}, {"$ref": "#/$defs/Dataset"}]}
    properties["studies"]["additionalProperties"] = _closed({name: properties[name] for name in STUDY_KEYS})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole}


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _named(settings: Mapping[str, Any]) -> dict[str, Any]:
    """One of the names or a path to the user's own, or a mapping of one of them to its settings."""
    one = {**_closed(settings), "patternProperties": {OWN: {"type": "object"}}, "minProperties": 1, "maxProperties": 1}
    return {"anyOf": [{"enum": list(settings)}, {"type": "string", "pattern": OWN}, one]}


def _one_or_more(param: str) -> dict[str, Any]:
    one = {"$ref": f"#/properties/params/properties/{param}"}
    return {"anyOf": [one, {"type": "array", "items": one}]}


def _param_schema(param: cgpfl.Param) -> dict[str, Any]:
    branches: list[dict[str, Any]] = [{"enum": list(param.choices)}] if param.choices else []
    if param.low is not None:
        number: dict[str, Any] = {"type": "integer" if param.whole else "number"}
        number["exclusiveMinimum" if param.above else "minimum"] = param.low
        if param.top != float("inf"):
            number["maximum"] = param.top
        branches.append(number)
    branch = branches[0] if len(branches) == 1 else {"anyOf": branches}
    return {**branch, "description": param.description}


def tables() -> str:
    """Tables of all keys and of all methods' parameters, in Markdown."""
    methods = cgpfl.methods()
    common = [name for name in methods["local"].params if all(name in method.params for method in methods.values())]
    head = ("method", "parameter", "valid", "default", "meaning")
    rows = [
        (f"`{name}`" if first else "", *_param_cells(param))
        for name, method in {"all": methods["local"], **methods}.items()
        for first, param in _first(each for each in method.params.values() if (each.name in common) == (name == "all"))
    ]
    grids = [
        (f"`{method}`" if first else "", f"`{name}`", f"`{_flow(list(values))}`")
        for method, grid in GRIDS.items()
        for first, (name, values) in _first(iter(grid.items()))
    ]
    names = [(f"`{name}`", about.description, ", ".join(about.tested), about.source) for name, about in methods.items()]
    built = [
        (f"`{name}`", " ".join((inspect.getdoc(factory) or "").split()).replace("``", "`"))
        for name, factory in models.MODELS.items()
    ]
    parts = [
        _table(("key", "valid", "default", "meaning"), _keys("", Experiment)),
        "Models:",
        _table(("model", "what it is"), built),
        "Methods; the first of the models tested is the headline:",
        _table(("method", "what it does", "models tested", "source"), names),
        "The parameters that `params`, `methods` and `sweeps` can set:",
        _table(head, rows),
        "What `tune` tries, if `tune.grids` says nothing of a method, in the order of the search:",
        _table(("method", "parameter", "values"), grids),
    ]
    return "\n\n".join(parts)


def _keys(prefix: str, section: type[Section]) -> Iterator[tuple[str, ...]]:
    nodes = section.model_json_schema()["properties"]
    for name, field in section.model_fields.items():
        kinds = get_args(field.annotation) if get_origin(field.annotation) is UnionType else [field.annotation]
        inner = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Section)]
        if not inner or len(kinds) > 1:
            default = "needed" if field.is_required() else f"`{_flow(field.default)}`"
            valid = "a mapping of the keys below or null" if inner else in_words(nodes[name])
            yield f"`{prefix}{name}`", valid, default, field.description or ""
        if inner:
            yield from _keys(f"{prefix}{name}.", inner[0])


def _param_cells(param: cgpfl.Param) -> tuple[str, ...]:
    return f"`{param.name}`", param.valid, "" if param.default is None else f"`{param.default}`", param.description


def _first(items: Iterator[Any]) -> Iterator[tuple[bool, Any]]:
    return ((place == 0, item) for place, item in enumerate(items))


def _flow(value: Any) -> str:
    return (
        yaml.safe_dump(value, sort_keys=False, default_flow_style=True, width=1000)
        .removesuffix("\n")
        .removesuffix("\n...")
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def pages(folder: Path) -> dict[Path, str]:
    """The files that are written from the types, with their contents; README.md keeps its other text."""
    readme = folder / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    return {
        folder / "config.yaml": documented(load(EMBEDDED)),
        folder / "schema.json": json.dumps(schema(), indent=1) + "\n",
        readme: f"{before}{MARKS[0]}\n\n{tables()}\n\n{MARKS[1]}{after}",
    }


if __name__ == "__main__":
    for path, text in pages(Path(sys.argv[1])).items():
        path.write_text(text, encoding="utf-8")
