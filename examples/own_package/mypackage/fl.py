"""FedProx, written out: FedAvg whose clients are held back near the global model."""

from cgpfl.methods import Method, Param
from cgpfl.methods.base import COMMON
from cgpfl.solvers import anchored_step


class MyFedProx(Method):
    """FedProx (Li et al. 2020). w_i = w^t; R steps w_i -= lr * (g_i(w_i) + mu * (w_i - w^t)); w = sum_i n_i/m w_i."""

    name, summary, source = "my_fedprox", "FedAvg with a proximal term", "Li et al. 2020"
    parameters = (*COMMON, Param("mu", 0.1, "pull of the local to the global model", low=0))
    tested = ("global",)

    def init(self, sim):
        return {"global": sim.initial.clone()}

    def round(self, sim, state, now):
        w = now.broadcast(state["global"])  # a row for each participant of each run
        now.local(local_steps, w)
        state["global"].copy_(now.average(w, "samples"))

    def models(self, sim, state):
        return {"global": lambda block: block.server(state["global"])}


def local_steps(block, w):
    """R steps of every row of w [rows, d] on its own minibatches, in place."""
    rows, start = block.net.rows(w), w.clone()
    for batch in block.batches():
        anchored_step(block.net, rows, start, batch, block["lr"], block["mu"], block.l2)
