"""A user's own models and methods: objects by dotted path, such as `mypackage.nets:make_net`."""

from __future__ import annotations

import importlib
import os
import sys
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


def told(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ")
