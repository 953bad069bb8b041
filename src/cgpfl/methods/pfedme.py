"""pFedMe: personal models as Moreau envelopes of one global model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from cgpfl.methods.base import COMMON, Cost, Method, Param, State, Tested
from cgpfl.solvers import Proximal

if TYPE_CHECKING:
    from cgpfl.rounds import Block, Round
    from cgpfl.simulation import Simulation

MOREAU = (
    *COMMON,
    Param("lam", 12.0, "lambda, pull of the personal to the context (global) model", low=0),
    Param(
        "inner_steps",
        5,
        "S, steps on one minibatch towards the proximal point",
        low=1,
        whole=True,
        column=False,
    ),
    Param("eta", 0.05, "learning rate of an inner step", low=0, above=True),
    Param("carry", "reset", "theta at the start of a round", choices=("reset", "persist"), column=False),
)


class PFedMe(Method):
    """pFedMe (T. Dinh et al. 2020). w_i = w, theta_i = w; for each of R minibatches: S times
    theta -= eta * (g(theta) + lam * (theta - w_i)), then w_i -= lr * lam * (w_i - theta).
    Server: w = (1-beta) w + beta * mean(w_i).

    ``carry`` "persist" starts a round from the last theta_i instead of w. Tested: theta_i after the last step, the
    local copy w_{i,R}, and w after aggregation. With lam 0 the global model never moves.
    """

    name = "pfedme"
    summary = "personal models near one global model (Moreau envelopes)"
    source = "T. Dinh et al. 2020"
    parameters = (
        *MOREAU,
        Param("beta", 1.0, "server step", low=0, high=2, above=True),
        Param("weights", "uniform", "weights of the average", choices=("uniform", "samples"), column=False),
    )
    tested = ("personal", "local", "global")

    def init(self, sim: Simulation) -> State:
        clients = sim.to_clients(sim.initial)
        return {"global": sim.initial.clone(), "local": clients, "personal": clients.clone()}

    def round(self, sim: Simulation, state: State, now: Round) -> None:
        w = now.broadcast(state["global"], out=now.take(state["local"]))
        train_moreau(sim, state, now, w, sim.hyper["lr"] * sim.hyper["lam"])
        state["global"].lerp_(now.average(w, sim.static["weights"]), sim.hyper["beta"])

    def models(self, sim: Simulation, state: State) -> Tested:
        return {**client_models(state), "global": lambda block: block.server(state["global"])}

    def cost(self, params, d):
        return Cost(params["local_steps"] * params["inner_steps"], d, d)


def train_moreau(sim: Simulation, state: State, now: Round, w: Tensor, step: Tensor) -> None:
    """The clients' part of a round of pFedMe and CGPFL from local copies ``w`` [rows, d], in place; also writes
    theta to ``state["personal"]`` and w_{i,R} to ``state["local"]``. ``step`` [runs, 1]: w_i -= step*(w_i - theta)."""
    theta = now.take(state["personal"])
    static = {name: sim.static[name] for name in ("carry", "inner_steps")}
    now.local(partial(_local, step=step, **static), theta, w)
    now.put(state["personal"], theta)
    now.put(state["local"], w)


def client_models(state: State) -> Tested:
    """theta_i and w_{i,R}, where they are tested."""
    return {
        "personal": lambda block: block.own(state["personal"]),
        "local": lambda block: block.own(state["local"]),
    }


def _local(block: Block, theta: Tensor, w: Tensor, step: Tensor, inner_steps: int, carry: str) -> None:
    if carry == "reset":
        theta.copy_(w)
    net, solver = block.net, Proximal.of(block["eta"], block["lam"], block.l2, inner_steps)
    personal, anchor, step = net.rows(theta), net.rows(w), step[block.run]
    for batch in block.batches():
        solver.run(net, personal, anchor, batch)
        w.lerp_(theta, step)
