"""FedProx: FedAvg whose clients stay near the global model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from cgpfl.methods.base import Param
from cgpfl.methods.fedavg import FedAvg
from cgpfl.solvers import anchored_step

if TYPE_CHECKING:
    from cgpfl.rounds import Block


class FedProx(FedAvg):
    """FedProx (Li et al. 2020). w_i = w^t, the global model that the round starts from; R steps
    w_i -= lr * (g_i(w_i) + mu * (w_i - w^t)); w = sum_i n_i/m w_i.

    Every client does its R steps: the variable amounts of local work of the original, which model stragglers, are left
    out. Tested: w after aggregation. With mu 0 it is FedAvg.
    """

    name = "fedprox"
    summary = "FedAvg with a proximal term in the local steps"
    source = "Li et al. 2020"
    parameters = (*FedAvg.parameters, Param("mu", 0.1, "pull of the local to the global model", low=0))

    def local(self, block: Block, w: Tensor) -> None:
        start, rows, lr, mu = w.clone(), block.net.rows(w), block["lr"], block["mu"]
        for batch in block.batches():
            anchored_step(block.net, rows, start, batch, lr, mu, block.l2)
