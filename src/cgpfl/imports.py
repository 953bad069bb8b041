"""A user's own models and methods: objects by dotted path, such as `mypackage.nets:make_net`, and their code."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cgpfl.errors import UserError


def is_path(name: str) -> bool:
    """Whether a name is a dotted path, `package.module:attribute`, rather than one of ours."""
    return ":" in name


def imported(path: str, what: str) -> Any:
    """The object at a dotted path; modules are looked for in the current folder too, after all installed ones.

    Args:
        path: `package.module:attribute`. what: what it should be ("model", "method"), for messages.

    Raises:
        UserError: for a path of another form, a module that is not there or cannot be imported, or one without this
            attribute.
    """
    name, _, attribute = path.partition(":")
    words = [*name.split("."), *attribute.split(".")]
    if not all(word.isidentifier() for word in words):
        raise UserError(f"{what}: {path!r} is no path to Python code; valid is package.module:name")
    found = _module(name, path, what)
    for word in attribute.split("."):
        if not hasattr(found, word):
            place = getattr(sys.modules[name], "__file__", None) or name
            raise UserError(f"{what} {path}: {place} has no {attribute!r}")
        found = getattr(found, word)
    return found


def _module(name: str, path: str, what: str) -> Any:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise UserError(f"{what} {path}: there is no module {error.name!r}, installed or in {here}") from None
        raise UserError(f"{what} {path}: its module cannot be imported ({told(error)})") from error


def sources(path: str) -> list[Path]:
    """The files that the object at a dotted path depends on and that are the user's, sorted: its module, and what this
    imports, directly or not, from the same package or from the current folder. Nothing but the path's own packages is
    run to find them."""
    name = path.partition(":")[0]
    here, top = Path.cwd(), name.partition(".")[0]
    files: dict[str, Path] = {}
    todo, seen = [name], set()
    while todo:
        module = todo.pop()
        root = module.partition(".")[0]
        own = root == top or (here / root).is_dir() or (here / f"{root}.py").is_file()
        if module in seen or not own:
            continue
        seen.add(module)
        spec = _spec(module)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            files[module] = Path(spec.origin)
            package = module if spec.submodule_search_locations else module.rpartition(".")[0]
            todo += _imports(files[module], package)
    return sorted(files.values())


def _spec(module: str) -> Any:
    """Where a module is, None if there is none of this name."""
    try:
        return importlib.util.find_spec(module)
    except Exception:  # a parent that is no package or cannot be imported; a module that was made, not loaded
        return None


def _imports(file: Path, package: str) -> Iterator[str]:
    """Names of modules that a file may import: what it names may be a module or something in one."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def told(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
