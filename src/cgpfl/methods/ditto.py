"""Ditto: FedAvg beside a personal model drawn to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from cgpfl.methods.base import COMMON, Cost, Method, Param, State, Tested
from cgpfl.solvers import anchored_step, sgd_step

if TYPE_CHECKING:
    from cgpfl.rounds import Block, Round
    from cgpfl.simulation import Simulation


class Ditto(Method):
    """Ditto (Li et al. 2021). Clients keep v_i. Per minibatch, with w^t the global model the round started from:

    v_i -= lr * (g(v_i) + lam * (v_i - w^t));  w_i -= lr * g(w_i);  the server takes the uniform mean of w_i.
    Tested: v_i, and w after aggregation. With lam 0 it is training alone.
    """

    name = "ditto"
    summary = "personal models regularised to the FedAvg model"
    source = "Li et al. 2021"
    parameters = (*COMMON, Param("lam", 1.0, "lambda, pull of the personal to the global model", low=0))
    tested = ("personal", "global")

    def init(self, sim: Simulation) -> State:
        return {"global": sim.initial.clone(), "personal": sim.to_clients(sim.initial)}

    def round(self, sim: Simulation, state: State, now: Round) -> None:
        w, v = now.broadcast(state["global"]), now.take(state["personal"])
        now.local(_local, v, w)
        now.put(state["personal"], v)
        state["global"].copy_(now.average(w, "uniform"))

    def models(self, sim: Simulation, state: State) -> Tested:
        return {
            "personal": lambda block: block.own(state["personal"]),
            "global": lambda block: block.server(state["global"]),
        }

    def cost(self, params, d):
        return Cost(2 * params["local_steps"], d, d)


def _local(block: Block, v: Tensor, w: Tensor) -> None:
    net, lr, lam, l2 = block.net, block["lr"], block["lam"], block.l2
    start, personal, local = w.clone(), net.rows(v), net.rows(w)
    for batch in block.batches():
        anchored_step(net, personal, start, batch, lr, lam, l2)
        sgd_step(net, local, batch, lr, l2)
