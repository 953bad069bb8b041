"""IFCA: clustered federated learning by loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cgpfl.methods.base import COMMON, CONTEXTS, Cost, Method, Param, State, Tested, check_contexts
from cgpfl.methods.fedavg import local_sgd

if TYPE_CHECKING:
    from cgpfl.rounds import Round
    from cgpfl.simulation import Simulation


class Ifca(Method):
    """IFCA (Ghosh et al. 2020). Server models M_1..M_K from independent initial weights.

    Round: k_i = argmin_k mean loss of M_k on client i's training data; R steps from M_{k_i}; M_k = uniform mean of
    its members' models; an empty cluster keeps M_k. Tested: M_k with k chosen by training loss after aggregation.
    ``restarts`` > 1 draws that many sets of initial models and starts from the one with the lowest training loss.
    With contexts 1 it is FedAvg with uniform weights.
    """

    name = "ifca"
    summary = "K global models, each client trains the one with the lowest loss"
    source = "Ghosh et al. 2020"
    parameters = (
        *COMMON,
        CONTEXTS,
        Param("restarts", 1, "sets of initial models to choose from", low=1, whole=True, column=False),
    )
    tested = ("context",)

    def init(self, sim: Simulation) -> State:
        contexts, restarts = sim.static["contexts"], sim.static["restarts"]
        drawn = [sim.independent_inits(contexts, restart) for restart in range(restarts)]
        chosen = [self._chosen(sim, models) for models in drawn]
        best = torch.stack([losses.min(1).values.mean(1) for losses in chosen]).argmin(0)  # [runs]
        runs = torch.arange(sim.runs, device=best.device)
        models = torch.stack(drawn)[best, runs]
        losses = torch.stack(chosen)[best, runs]
        sim.initial = models.clone()
        return {"contexts": models, "assignment": losses.argmin(1)}

    def _chosen(self, sim: Simulation, models: Tensor) -> Tensor:
        """Mean training loss of every model for every client, [runs, K, clients]."""
        by_name = sim.train_losses({k: _server(models, k) for k in range(models.shape[1])})
        return torch.stack([by_name[k] for k in range(models.shape[1])], dim=1).nan_to_num(nan=float("inf"))

    def round(self, sim: Simulation, state: State, now: Round) -> None:
        w = now.pick(state["contexts"], state["assignment"])
        now.local(local_sgd, w)
        members = now.take_labels(state["assignment"])
        state["contexts"].copy_(now.average_by(w, members, state["contexts"]))
        state["assignment"].copy_(self._chosen(sim, state["contexts"]).argmin(1))
        sim.record_assignment(state["assignment"])

    def models(self, sim: Simulation, state: State) -> Tested:
        return {"context": lambda block: block.picked(state["contexts"], state["assignment"])}

    def cost(self, params, d):
        return Cost(params["local_steps"], d, params["contexts"] * d)

    def check(self, params, clients=None):
        check_contexts(self.name, "contexts", params["contexts"], clients)


def _server(models: Tensor, k: int):
    return lambda block: block.server(models[:, k])
