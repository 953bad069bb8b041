"""L2SGD: loopless local gradient descent with randomised mixing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from cgpfl.clients import COINS, host_generator
from cgpfl.errors import UserError
from cgpfl.methods.base import COMMON, Cost, Method, Param, State, Tested
from cgpfl.solvers import sgd_step

if TYPE_CHECKING:
    from cgpfl.rounds import Block, Round
    from cgpfl.simulation import Simulation


class L2Sgd(Method):
    """L2GD (Hanzely and Richtarik 2020). Clients keep x_i; one coin for all in every iteration:

    with probability 1-p  x_i -= lr * g_i(x_i);  with probability p  x_i = (1-c) x_i + c * mean(x),
    c = lr * lam * (1-p) / p, which is their step size eta = lr*N*(1-p). A round is R+1 iterations; with the default
    p = 1/(R+1) there is one mixing a round in expectation. ``schedule`` "fixed": R steps, then one mixing with
    c = lr*lam*R. c above 1 is an error. lam 0 is training alone; c = 1 sets every x_i to the mean.
    """

    name = "l2sgd"
    summary = "local models pulled to their mean at random times"
    source = "Hanzely and Richtarik 2020"
    parameters = (
        *COMMON,
        Param("lam", 1.0, "lambda, strength of the pull to the mean", low=0),
        Param("p", None, "probability of mixing in an iteration; default 1/(R+1)", low=0, high=1, above=True),
        Param("schedule", "bernoulli", "when to mix", choices=("bernoulli", "fixed"), column=False),
    )
    tested = ("personal",)

    def init(self, sim: Simulation) -> State:
        return {"personal": sim.to_clients(sim.initial)}

    def round(self, sim: Simulation, state: State, now: Round) -> None:
        x = now.take(state["personal"])
        mixes = self._mixes(sim, now)  # [runs, iterations]: this run mixes in this iteration
        start = 0
        for stop in range(1, mixes.shape[1] + 1):
            if mixes[:, stop - 1].any() or stop == mixes.shape[1]:
                now.local(_steps, x, steps=(start, stop), active=~mixes[:, start:stop])
                self._mix(sim, now, x, mixes[:, stop - 1])
                start = stop
        now.put(state["personal"], x)

    def _mixes(self, sim: Simulation, now: Round) -> np.ndarray:
        steps = sim.static["local_steps"]
        if sim.static["schedule"] == "fixed":
            return np.tile(np.arange(steps + 1) == steps, (sim.runs, 1))
        return np.stack(
            [host_generator(spec.seed, COINS, now.index).random(steps + 1) < spec.params["p"] for spec in sim.specs]
        )

    def _mix(self, sim: Simulation, now: Round, x: Tensor, mixing: np.ndarray) -> None:
        if not mixing.any():
            return
        weights = np.array([_weight(spec.params) for spec in sim.specs]) * mixing
        now.lerp_to(x, now.average(x, "uniform"), sim.tensor(weights).unsqueeze(1))

    def models(self, sim: Simulation, state: State) -> Tested:
        return {"personal": lambda block: block.own(state["personal"])}

    def cost(self, params, d):
        steps, p = params["local_steps"], params["p"]
        if params["schedule"] == "fixed":
            return Cost(steps, d, d)
        return Cost((steps + 1) * (1 - p), (steps + 1) * p * d, (steps + 1) * p * d)

    def check(self, params, clients=None):
        weight = _weight(params)
        if weight > 1 + 1e-12:
            formula = "lr*lam*local_steps" if params["schedule"] == "fixed" else "lr*lam*(1-p)/p"
            raise UserError(
                f"l2sgd: mixing weight c = {formula} = {weight:.3g} for lr={params['lr']:g}, lam={params['lam']:g}, "
                f"p={params['p']:.3g}; it must be at most 1: lower lr or lam, or raise p"
            )


def _weight(params) -> float:
    if params["schedule"] == "fixed":
        return params["lr"] * params["lam"] * params["local_steps"]
    return params["lr"] * params["lam"] * (1 - params["p"]) / params["p"]


def _steps(block: Block, x: Tensor) -> None:
    rows, lr, l2 = block.net.rows(x), block["lr"], block.l2
    for batch, active in zip(block.batches(), block.active, strict=True):
        sgd_step(block.net, rows, batch, lr * active, l2)
