"""APFL: a personal mixture of a local and the global model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cgpfl.methods.base import COMMON, Cost, Method, Param, State, Tested
from cgpfl.solvers import formed_gradient, sgd_step

if TYPE_CHECKING:
    from cgpfl.rounds import Block, Round
    from cgpfl.simulation import Simulation


class Apfl(Method):
    """APFL (Deng et al. 2020). Client i keeps v_i and mixes it with the global model by a_i = ``mix``.

    Per minibatch, with g the gradient at a v_i + (1-a) w_i: w_i -= lr * g(w_i) and v_i -= lr * a * g; the server
    takes the uniform mean of w_i. "adaptive" mix starts at 0.5 and takes the same step on the first minibatch of
    a round: a = clip(a - lr * <v_i - w_i, g>, 0, 1), all three from the same point.
    Tested: a v_i + (1-a) w, weights mixed, not outputs, and w and v_i themselves.
    mix 1 is training alone, mix 0 FedAvg with uniform weights.
    """

    name = "apfl"
    summary = "personal mixture of a local and the global model"
    source = "Deng et al. 2020"
    parameters = (
        *COMMON,
        Param("mix", 0.5, "alpha, share of the local model", low=0, high=1, choices=("adaptive",), column=False),
    )
    tested = ("personal", "global", "local")

    def init(self, sim: Simulation) -> State:
        mix = sim.static["mix"]
        share = sim.tensor([[0.5 if mix == "adaptive" else mix]]).expand(sim.runs, sim.clients)
        return {
            "global": sim.initial.clone(),
            "local": sim.to_clients(sim.initial),
            "mix": share.clone().unsqueeze(-1),
        }

    def round(self, sim: Simulation, state: State, now: Round) -> None:
        w = now.broadcast(state["global"])
        v, mix = now.take(state["local"]), now.take(state["mix"])
        now.local(partial(_local, adaptive=sim.static["mix"] == "adaptive"), w, v, mix)
        now.put(state["local"], v)
        now.put(state["mix"], mix)
        state["global"].copy_(now.average(w, "uniform"))

    def models(self, sim: Simulation, state: State) -> Tested:
        def mixed(block: Block) -> Tensor:
            return block.server(state["global"]).lerp_(block.own(state["local"]), block.own(state["mix"]))

        return {
            "personal": mixed,
            "global": lambda block: block.server(state["global"]),
            "local": lambda block: block.own(state["local"]),
        }

    def cost(self, params, d):
        return Cost(2 * params["local_steps"], d, d)


def _local(block: Block, w: Tensor, v: Tensor, mix: Tensor, adaptive: bool) -> None:
    net, lr, l2 = block.net, block["lr"], block.l2
    global_, local, mixture = net.rows(w), net.rows(v), net.rows(torch.empty_like(w))
    for step, batch in enumerate(block.batches()):
        torch.lerp(w, v, mix, out=mixture.flat)
        slope = None
        if adaptive and step == 0:  # from where v and w are before their steps
            slope = ((v - w) * formed_gradient(net, mixture, batch, -lr, l2)).sum(1, keepdim=True)
        gradient = net.gradient(mixture, batch, -lr * mix)
        sgd_step(net, global_, batch, lr, l2)
        net.add(local, gradient)
        if l2 is not None:
            v.addcmul_(mixture.flat, -lr * mix * l2)
        if slope is not None:
            mix.add_(slope).clamp_(0, 1)
