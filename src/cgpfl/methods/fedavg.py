"""FedAvg, FedAvg with fine-tuning, and training alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor

from cgpfl.methods.base import COMMON, Method, Param, State, Tested
from cgpfl.solvers import sgd_step

if TYPE_CHECKING:
    from cgpfl.rounds import Block, Round
    from cgpfl.simulation import Simulation


def local_sgd(block: Block, w: Tensor) -> None:
    """R minibatch steps w -= lr * g(w) from where w is."""
    rows, lr, l2 = block.net.rows(w), block["lr"], block.l2
    for batch in block.batches():
        sgd_step(block.net, rows, batch, lr, l2)


class Local(Method):
    """Every client trains alone, from the shared initial model: w_i -= lr * g_i(w_i), rounds x R steps in all.

    The baseline without which no personalised result can be judged. With one client it is FedAvg.
    """

    name = "local"
    summary = "every client alone"
    source = "baseline"
    tested = ("personal",)

    def init(self, sim: Simulation) -> State:
        return {"personal": sim.to_clients(sim.initial)}

    def round(self, sim: Simulation, state: State, now: Round) -> None:
        w = now.take(state["personal"])
        now.local(local_sgd, w)
        now.put(state["personal"], w)

    def models(self, sim: Simulation, state: State) -> Tested:
        return {"personal": lambda block: block.own(state["personal"])}

    def cost(self, params, d):
        return super().cost(params, 0)


class FedAvg(Method):
    """FedAvg (McMahan et al. 2017): w_i = w; R steps w_i -= lr * g_i(w_i); w = sum_i n_i/m w_i.

    ``weights`` "uniform" averages with 1/N instead of n_i/m. Tested: w after aggregation.
    """

    name = "fedavg"
    summary = "one global model, averaged local steps"
    source = "McMahan et al. 2017"
    parameters: tuple[Param, ...] = (
        *COMMON,
        Param(
            "weights",
            "samples",
            "weights of the average: n_i/m or 1/N",
            choices=("samples", "uniform"),
            column=False,
        ),
    )
    tested: tuple[str, ...] = ("global",)

    def init(self, sim: Simulation) -> State:
        return {"global": sim.initial.clone()}

    def round(self, sim: Simulation, state: State, now: Round) -> None:
        w = now.broadcast(state["global"])
        now.local(self.local, w)
        state["global"].copy_(now.average(w, sim.static["weights"]))

    def local(self, block: Block, w: Tensor) -> None:
        """What a client does with its copy of the global model, in place."""
        local_sgd(block, w)

    def models(self, sim: Simulation, state: State) -> Tested:
        return {"global": lambda block: block.server(state["global"])}


class FedAvgFineTuned(FedAvg):
    """FedAvg whose model every client adapts by ``finetune_steps`` local steps on training data before testing.

    The adapted models are tested ("personal") and thrown away; with finetune_steps 0 it is FedAvg.
    """

    name = "fedavg_ft"
    summary = "FedAvg, then a few local steps before testing"
    source = "baseline (Yu et al. 2020)"
    parameters = (
        *FedAvg.parameters,
        Param("finetune_steps", 10, "local steps before testing", low=0, whole=True, column=False),
    )
    tested = ("personal", "global")

    def models(self, sim: Simulation, state: State) -> Tested:
        return {"personal": partial(self._adapted, sim, state), **super().models(sim, state)}

    def _adapted(self, sim: Simulation, state: State, block: Block) -> Tensor:
        w = block.server(state["global"])
        block = block.adapting(sim.static["finetune_steps"])
        local_sgd(block, w)
        return w
