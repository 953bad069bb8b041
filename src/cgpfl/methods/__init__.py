"""The methods by name. A new method is one module and one line here, or a class of your own, by its path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from cgpfl.errors import UserError
from cgpfl.imports import imported, is_path, told
from cgpfl.methods.apfl import Apfl
from cgpfl.methods.base import Cost, Method, Param
from cgpfl.methods.cgpfl import Cgpfl, CgpflHeur, CgpflOracle
from cgpfl.methods.ditto import Ditto
from cgpfl.methods.fedavg import FedAvg, FedAvgFineTuned, Local
from cgpfl.methods.fedprox import FedProx
from cgpfl.methods.ifca import Ifca
from cgpfl.methods.l2sgd import L2Sgd
from cgpfl.methods.perfedavg import PerFedAvg
from cgpfl.methods.pfedme import PFedMe
from cgpfl.models import DEFAULT_L2

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Local(),
        FedAvg(),
        FedAvgFineTuned(),
        FedProx(),
        Ifca(),
        L2Sgd(),
        Apfl(),
        PerFedAvg(),
        PFedMe(),
        Ditto(),
        Cgpfl(),
        CgpflHeur(),
        CgpflOracle(),
    )
}


ENTRY_POINTS = "cgpfl.methods"
"""The group under which an installed package names methods of its own."""


def method_named(name: str) -> Method:
    """The method of a name: one of ours, one that an installed package gives under the entry point group
    ``cgpfl.methods``, or one of your own by its path, ``mypackage.fl:MyMethod`` (a class or an instance).

    Raises:
        UserError: for a name that nothing has, and for what is no method or takes the name of another.
    """
    path = own_path(name)
    if path is None:
        return METHODS[name]
    method = _checked(imported(path, "method"), f"method {path}")
    if not is_path(name) and method.name != name:
        raise UserError(f"method {path}: its name is {method.name!r}; its entry point {name!r} needs the same")
    return method


def method_names() -> list[str]:
    """The names of our methods, and of those that installed packages give."""
    return [*METHODS, *sorted(entry_points(group=ENTRY_POINTS).names - set(METHODS))]


def own_path(name: str) -> str | None:
    """The path of the user's own method of this name, None for one of ours.

    Raises:
        UserError: for a name that nothing has, or several packages.
    """
    if name in METHODS:
        return None
    if is_path(name):
        return name
    paths = sorted({point.value for point in entry_points(group=ENTRY_POINTS, name=name)})
    if not paths:
        known = ", ".join(method_names())
        raise UserError(f"method: {name!r} is unknown; valid are {known}, or the path of your own, package.module:Name")
    if len(paths) > 1:
        raise UserError(f"method: several packages give one called {name!r} ({', '.join(paths)})")
    return paths[0]


def _checked(found: Any, where: str) -> Method:
    """A method of the user's own, if it is one that the engine can run."""
    if isinstance(found, type) and issubclass(found, Method):
        try:
            found = found()
        except Exception as error:
            raise UserError(f"{where}: the class cannot be instantiated ({told(error)})") from error
    if not isinstance(found, Method):
        raise UserError(f"{where}: this is no cgpfl.methods.Method; valid is a class derived from it, or an instance")
    for attribute in ("name", "summary", "source"):
        if not isinstance(getattr(found, attribute, None), str):
            raise UserError(f"{where}: its {attribute} is missing; valid is text")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", found.name):
        raise UserError(f"{where}: its name is {found.name!r}; valid are letters, digits, '_' and '-'")
    if found.name in METHODS:
        raise UserError(f"{where}: its name {found.name!r} is that of a method of cgpfl; give it another")
    _check_declared(found, where)
    return found


def _check_declared(method: Method, where: str) -> None:
    given = method.parameters
    if not isinstance(given, tuple) or not all(isinstance(param, Param) for param in given):
        raise UserError(f"{where}: its parameters are no tuple of cgpfl.Param")
    names = [param.name for param in method.parameters]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{where}: two of its parameters are called {name!r}")
    missing = {"local_steps", "l2"} - set(names)
    if missing:
        raise UserError(f"{where}: its parameters lack {min(missing)}; start them with *cgpfl.methods.base.COMMON")
    steps = given[names.index("local_steps")]
    if steps.column or not steps.whole or (steps.low or 0) < 1:
        raise UserError(f"{where}: local_steps is to be a whole number of 1 or more and no column, as in COMMON")
    tested = getattr(method, "tested", ())
    valid = {"personal", "local", "global", "context"}
    if not isinstance(tested, tuple) or not tested or not set(tested) <= valid:
        raise UserError(f"{where}: tested is {tested!r}; valid is a tuple of {', '.join(sorted(valid))}")


def resolve_params(
    method: str, params: Mapping[str, Any], model: str | None = None, clients: int | None = None
) -> dict[str, Any]:
    """All hyperparameters of one run, defaults filled in and every value checked.

    Args:
        method: name of the method (see ``method_named``). params: given values (scalars).
        model: name of the model, which decides the default of ``l2``.
        clients: number of clients N, for parameters that it bounds.

    Raises:
        UserError: for an unknown parameter (listing the valid ones), a value out of range, or values that do not go
            together.
    """
    chosen = method_named(method)
    valid = {param.name: param for param in chosen.parameters}
    for name in params:
        if name not in valid:
            raise UserError(f"{chosen.name}.{name}: unknown parameter; valid are {', '.join(valid)}")
    resolved = {
        name: param.default if params.get(name) is None else param.checked(params[name], chosen.name)
        for name, param in valid.items()
    }
    if resolved["l2"] is None:
        resolved["l2"] = DEFAULT_L2.get(model or "", 0.0)
    if "p" in resolved and resolved["p"] is None:
        resolved["p"] = 1 / (resolved["local_steps"] + 1)
    chosen.check(resolved, clients)
    return resolved


__all__ = ["METHODS", "Cost", "FedProx", "Method", "Param", "method_named", "resolve_params"]
