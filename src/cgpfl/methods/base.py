"""What a method is: named parameters, a state, and what happens in a round."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from cgpfl.errors import UserError
from cgpfl.settings import MOST

if TYPE_CHECKING:
    from cgpfl.rounds import Block, Round
    from cgpfl.simulation import Simulation

State = dict[str, Tensor]
Tested = dict[str, "Callable[[Block], Tensor]"]


@dataclass(frozen=True)
class Param:
    """A hyperparameter of a method.

    Attributes:
        default: None means "see the description" (a value that depends on others).
        low, high: closed range of a number; ``above``: the number must be larger than ``low``, not equal.
        choices: valid words, beside the numbers of the range if ``low`` is given too.
        whole: a whole number. column: runs of different values share one batch; otherwise runs are batched by value.
    """

    name: str
    default: Any
    description: str
    low: float | None = None
    high: float = math.inf
    above: bool = False
    choices: tuple[str, ...] = ()
    whole: bool = False
    column: bool = True

    def checked(self, value: Any, method: str) -> Any:
        """``value`` if valid, as int, float or str."""
        if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
            value = value.item()  # float32 cannot be compared with the largest float
        if isinstance(value, str) and value in self.choices:
            return value
        if not self._takes(value):
            raise UserError(f"{method}.{self.name}: {value!r} given, valid is {self.valid}{self._hint(value)}")
        return int(value) if self.whole else float(value)

    def _takes(self, value: Any) -> bool:
        """Whether a value is a finite number of the range."""
        real = isinstance(value, Real) and not isinstance(value, bool)
        if (
            self.low is None
            or not real
            or not abs(value) <= sys.float_info.max
            or (self.whole and not float(value).is_integer())
        ):
            return False
        return (value > self.low if self.above else value >= self.low) and value <= self.top

    def _hint(self, value: Any) -> str:
        """What a valid number that YAML read as text should be written as."""
        number = number_in(value) if isinstance(value, str) else None
        return f" (this is text: write {number})" if number and self._takes(float(number)) else ""

    @property
    def top(self) -> float:
        """The largest valid number."""
        return min(self.high, MOST) if self.whole else self.high

    @property
    def valid(self) -> str:
        """The valid values in words."""
        words = [repr(choice) for choice in self.choices]
        if self.low is not None:
            kind = "a whole number" if self.whole else "a number"
            bound = f"above {self.low:g}" if self.above else f"{self.low:g} or more"
            top = "" if math.isinf(self.top) else f" and at most {self.top:.10g}"
            words.append(f"{kind} {bound}{top}")
        return " or ".join(words)


def number_in(text: str) -> str | None:
    """The finite number that a text such as `1e-3` means, written as YAML reads numbers; None for other texts."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    if value == 0 or 1e-15 <= abs(value) < 1e15:
        return np.format_float_positional(value, trim="-")
    return np.format_float_scientific(value, trim="0")


LOCAL_STEPS = Param("local_steps", 10, "R, minibatch steps a round", low=1, whole=True, column=False)
LR = Param("lr", 0.005, "learning rate of a local step", low=0, above=True)
L2 = Param(
    "l2",
    None,
    "l2 regularisation mu, l2*w added to every gradient; default 0.001 for mlr, 0 otherwise",
    low=0,
)
COMMON = (LOCAL_STEPS, LR, L2)
CONTEXTS = Param("contexts", 4, "K, number of contexts", low=1, whole=True, column=False)


@dataclass(frozen=True)
class Cost:
    """What a participating client does in one round: gradients of one minibatch, numbers sent and received."""

    gradients: float
    sent: float
    received: float


class Method(ABC):
    """A federated method. Its instances hold no state; everything that changes is in ``State``.

    State tensors are named as in a result: "global" [runs, d], "personal" and "local" [runs, clients, d],
    "contexts" [runs, K, d], "assignment" int64 [runs, clients].

    Attributes:
        name, summary, source: what it is called, does, and where it comes from.
        parameters: hyperparameters.
        tested: which models are tested, the headline first.
        needs_contexts: whether the clients must have true contexts.
    """

    name: str
    summary: str
    source: str
    parameters: tuple[Param, ...] = COMMON
    tested: tuple[str, ...]
    needs_contexts: bool = False

    @property
    def headline(self) -> str:
        return self.tested[0]

    @abstractmethod
    def init(self, sim: Simulation) -> State:
        """State before the first round."""

    @abstractmethod
    def round(self, sim: Simulation, state: State, now: Round) -> None:
        """One communication round, in place."""

    @abstractmethod
    def models(self, sim: Simulation, state: State) -> Tested:
        """For each name in ``tested``, a function from a block of clients to the models [rows, d] they test."""

    def cost(self, params: Mapping[str, Any], d: int) -> Cost:
        """Cost of a round; the default is that of FedAvg."""
        return Cost(params["local_steps"], d, d)

    def check(self, params: Mapping[str, Any], clients: int | None = None) -> None:  # noqa: B027  most have none
        """Raise a UserError for valid values that do not go together."""


def replaced(parameters: tuple[Param, ...], *new: Param, without: tuple[str, ...] = ()) -> tuple[Param, ...]:
    """``parameters`` with those of the same name as one in ``new`` replaced, the others of ``new`` added."""
    names = {param.name for param in new} | set(without)
    return tuple(param for param in parameters if param.name not in names) + new


def check_contexts(method: str, key: str, contexts: int, clients: int | None) -> None:
    """Raise where there are more contexts than clients to share them."""
    if clients is not None and contexts > clients:
        raise UserError(f"{method}.{key}: {contexts} contexts for {clients} clients; valid is 1 to {clients}")
