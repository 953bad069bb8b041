"""The methods by name. A new method is one module and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cgpfl.errors import UserError
from cgpfl.methods.apfl import Apfl
from cgpfl.methods.base import Cost, Method, Param
from cgpfl.methods.cgpfl import Cgpfl, CgpflHeur, CgpflOracle
from cgpfl.methods.ditto import Ditto
from cgpfl.methods.fedavg import FedAvg, FedAvgFineTuned, Local
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


def method_named(name: str) -> Method:
    """The method, or a UserError that lists the valid names."""
    if name not in METHODS:
        raise UserError(f"method: {name!r} is unknown; valid are {', '.join(METHODS)}")
    return METHODS[name]


def resolve_params(
    method: str, params: Mapping[str, Any], model: str | None = None, clients: int | None = None
) -> dict[str, Any]:
    """All hyperparameters of one run, defaults filled in and every value checked.

    Args:
        method: name of the method. params: given values (scalars).
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
            raise UserError(f"{method}.{name}: unknown parameter; valid are {', '.join(valid)}")
    resolved = {
        name: param.default if params.get(name) is None else param.checked(params[name], method)
        for name, param in valid.items()
    }
    if resolved["l2"] is None:
        resolved["l2"] = DEFAULT_L2.get(model or "", 0.0)
    if "p" in resolved and resolved["p"] is None:
        resolved["p"] = 1 / (resolved["local_steps"] + 1)
    chosen.check(resolved, clients)
    return resolved


__all__ = ["METHODS", "Cost", "Method", "Param", "method_named", "resolve_params"]
