"""Per-FedAvg: a global model that is good after one step."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cgpfl.methods.base import L2, LOCAL_STEPS, Cost, Method, Param, State, Tested
from cgpfl.solvers import formed_gradient, sgd_step

if TYPE_CHECKING:
    from cgpfl.rounds import Block, Round
    from cgpfl.simulation import Simulation


class PerFedAvg(Method):
    """Per-FedAvg (Fallah et al. 2020). Per step three independent minibatches D1, D2, D3:

    w' = w_i - a g(w_i; D1);  g = g(w'; D2);  h = [g(w_i + delta g; D3) - g(w_i - delta g; D3)] / (2 delta);
    w_i -= beta (g - a h), where a = ``adapt_lr`` and beta = ``meta_lr``. ``variant`` "hf" is this Hessian-free form,
    "fo" drops h. The server takes the uniform mean. Tested: w after one step of size a on a training minibatch
    ("personal", adapted as the method intends, never on test data), and w itself ("global").
    With adapt_lr 0 it is FedAvg with uniform weights and lr = meta_lr.
    """

    name = "perfedavg"
    summary = "a global model trained to be good after one local step"
    source = "Fallah et al. 2020"
    parameters = (
        LOCAL_STEPS,
        L2,
        Param("adapt_lr", 0.01, "a, step size of the adaptation", low=0),
        Param("meta_lr", 0.005, "beta, learning rate of the meta step", low=0, above=True),
        Param("variant", "hf", "Hessian-free or first order", choices=("hf", "fo"), column=False),
        Param("delta", 1e-3, "width of the difference quotient for the Hessian", low=0, above=True),
    )
    tested = ("personal", "global")

    def init(self, sim: Simulation) -> State:
        return {"global": sim.initial.clone()}

    def round(self, sim: Simulation, state: State, now: Round) -> None:
        w = now.broadcast(state["global"])
        now.local(partial(_local, variant=sim.static["variant"]), w, per_step=3)
        state["global"].copy_(now.average(w, "uniform"))

    def models(self, sim: Simulation, state: State) -> Tested:
        return {"personal": partial(_adapted, state), "global": lambda block: block.server(state["global"])}

    def cost(self, params, d):
        return Cost((4 if params["variant"] == "hf" else 2) * params["local_steps"], d, d)


def _adapted(state: State, block: Block) -> Tensor:
    w = block.server(state["global"])
    block = block.adapting(1)
    for batch in block.batches():
        sgd_step(block.net, block.net.rows(w), batch, block["adapt_lr"], block.l2)
    return w


def _local(block: Block, w: Tensor, variant: str) -> None:
    net, l2 = block.net, block.l2
    a, beta, delta = block["adapt_lr"], block["meta_lr"], block["delta"]
    batches = block.batches()
    for first, second, third in zip(batches, batches, batches, strict=True):
        adapted = net.rows(w.clone())
        sgd_step(net, adapted, first, a, l2)
        g = formed_gradient(net, adapted, second, torch.ones_like(beta), l2)
        if variant == "hf":
            plus, minus = net.rows(torch.addcmul(w, g, delta)), net.rows(torch.addcmul(w, g, -delta))
            half = a * beta / (2 * delta)
            forward = formed_gradient(net, plus, third, half, l2)
            w.add_(forward).sub_(formed_gradient(net, minus, third, half, l2))
        w.addcmul_(g, -beta)
