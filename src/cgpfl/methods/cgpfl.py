"""CGPFL, CGPFL-Heur and CGPFL with known contexts (the paper, section 4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cgpfl.clients import KMEANS, host_generator
from cgpfl.contexts import Clustering, cluster, complexity, coordinates, matched, spread, weighted_cost
from cgpfl.methods.base import CONTEXTS, Cost, Method, Param, State, Tested, check_contexts, replaced
from cgpfl.methods.pfedme import MOREAU, client_models, train_moreau

if TYPE_CHECKING:
    from cgpfl.rounds import Round
    from cgpfl.simulation import Simulation

AUTO_MU = 10.0  # relative weight of the clustering cost, see CgpflHeur


class Cgpfl(Method):
    """CGPFL (the paper, algorithm 1). Server: Omega = [omega_1..omega_K] and the contexts c(i) of the clients.

    Round: omega~_i = Omega_{c(i)}; theta_i and omega~_i step as in pFedMe; the uploads omega~_{i,R} are clustered by
    k-means++ into the new c; Omega_k = (1-alpha) Omega_k + alpha * mean of its members' uploads. Labels are matched
    to the last round's before that. A context without members keeps Omega_k.

    ``step`` "lr_lambda" is omega~ -= lr*lam*(omega~ - theta); "literal" is the paper's 2*lr/N*(omega~ - theta),
    which hardly moves. ``kmeans_init`` "previous" starts k-means from the last round's contexts. Tested: theta_i,
    omega~_{i,R}, and Omega_{c(i)} after aggregation. With contexts 1 it is pFedMe with beta = alpha.
    """

    name = "cgpfl"
    summary = "personal models near one of K context models, found by clustering"
    source = "Tang et al. 2021 (the paper), algorithm 1"
    parameters: tuple[Param, ...] = (
        *MOREAU,
        CONTEXTS,
        Param("alpha", 1.0, "server step", low=0, high=1, above=True),
        Param("step", "lr_lambda", "step of the local copy", choices=("lr_lambda", "literal"), column=False),
        Param("kmeans_init", "kmeans++", "initial centres", choices=("kmeans++", "previous"), column=False),
    )
    tested = ("personal", "local", "context")

    def init(self, sim: Simulation) -> State:
        clients = sim.to_clients(sim.initial)
        return {
            "contexts": sim.initial.unsqueeze(1).repeat(1, self._most(sim), 1),
            "assignment": torch.zeros(sim.runs, sim.clients, dtype=torch.int64, device=sim.device),
            "local": clients,
            "personal": clients.clone(),
        }

    def _most(self, sim: Simulation) -> int:
        """K of the state: the most contexts any run can have."""
        return sim.static["contexts"]

    def round(self, sim: Simulation, state: State, now: Round) -> None:
        w = now.pick(state["contexts"], state["assignment"], out=now.take(state["local"]))
        literal = sim.static["step"] == "literal"
        train_moreau(sim, state, now, w, sim.hyper["lr"] * (2 / sim.clients if literal else sim.hyper["lam"]))
        members = self._regroup(sim, state, now, w)
        means = now.average_by(w, members, state["contexts"])
        state["contexts"].lerp_(means, sim.hyper["alpha"].unsqueeze(-1))
        sim.record_assignment(state["assignment"])

    def _regroup(self, sim: Simulation, state: State, now: Round, w: Tensor) -> Tensor:
        """New contexts of the participants, int64 [runs, participants], also written to the state."""
        before = now.take_labels(state["assignment"]).cpu().numpy()
        uploads = w.view(sim.runs, -1, sim.net.size)
        grouped = sim.each_run(lambda run: self._cluster(sim, state, now, run, uploads[run], before[run]))
        members = torch.from_numpy(np.stack([labels for labels, _ in grouped])).to(sim.device)
        now.put_labels(state["assignment"], members)
        sim.record("clustering", [facts for _, facts in grouped])
        return members

    def _cluster(
        self, sim: Simulation, state: State, now: Round, run: int, uploads: Tensor, before: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], dict[str, Any]]:
        points = coordinates(uploads)
        if points is None:  # a diverged run stays where it is
            return before, {"kmeans_iterations": 0, "contexts_found": len(np.unique(before)), "moved": 0.0}
        most = state["contexts"].shape[1]
        found = self._group(sim, state, now, run, points, before)
        labels = matched(found.labels, before, most)
        moved = float((labels != before).mean()) if now.index > 1 else float("nan")
        facts = {"kmeans_iterations": found.iterations, "contexts_found": found.found, "moved": moved}
        return labels, {**facts, **spread(points, labels)}

    def _group(
        self, sim: Simulation, state: State, now: Round, run: int, points: NDArray[np.float64], before: Any
    ) -> Clustering:
        return self._kmeans(sim, now, run, points, sim.static["contexts"], before)

    def _kmeans(
        self, sim: Simulation, now: Round, run: int, points: NDArray[np.float64], contexts: int, before: Any
    ) -> Clustering:
        seed = int(host_generator(sim.specs[run].seed, KMEANS, now.index).integers(2**31))
        previous = before if sim.static["kmeans_init"] == "previous" and now.index > 1 else None
        return cluster(points, contexts, seed, previous)

    def models(self, sim: Simulation, state: State) -> Tested:
        return {
            **client_models(state),
            "context": lambda block: block.picked(state["contexts"], state["assignment"]),
        }

    def cost(self, params: Mapping[str, Any], d: int) -> Cost:
        return Cost(params["local_steps"] * params["inner_steps"], d, d)

    def check(self, params: Mapping[str, Any], clients: int | None = None) -> None:
        check_contexts(self.name, "contexts", params["contexts"], clients)


class CgpflHeur(Cgpfl):
    """CGPFL-Heur (the paper, section 4.4): the number of contexts minimises, over K = 1..``max_contexts``,

    e(K) = sqrt(d K/m log(e m/d)) + mu * sum_i n_i/m ||omega~_i - omega_{k(i)}||^2    (equation 11)

    on the uploads of each of the first ``heur_rounds`` rounds, and is then kept. m is the number of training
    samples. The paper gives no mu; "auto" is 10 * sqrt(d/m log(e m/d)) / cost(K=1), which makes
    e(K)/e_0 = sqrt(K) + 10 * cost(K)/cost(1): a context must explain about 5/sqrt(K) percent of the spread of the
    uploads to be worth having, whatever the scale of the model. e(K) is recorded for every K.
    """

    name = "cgpfl_heur"
    summary = "CGPFL that chooses its number of contexts after the first round"
    source = "Tang et al. 2021 (the paper), section 4.4"
    parameters = replaced(
        Cgpfl.parameters,
        Param("mu", "auto", "weight of the clustering cost", low=0, choices=("auto",)),
        Param("max_contexts", None, "largest K tried; default clients/2", low=1, whole=True, column=False),
        Param("heur_rounds", 1, "rounds in which K is chosen", low=1, whole=True, column=False),
        without=("contexts",),
    )

    def init(self, sim: Simulation) -> State:
        return {**super().init(sim), "chosen": torch.ones(sim.runs, dtype=torch.int64)}

    def _most(self, sim: Simulation) -> int:
        return sim.static["max_contexts"] or max(1, sim.clients // 2)

    def _group(
        self, sim: Simulation, state: State, now: Round, run: int, points: NDArray[np.float64], before: Any
    ) -> Clustering:
        if now.index > sim.static["heur_rounds"]:
            return self._kmeans(sim, now, run, points, int(state["chosen"][run]), before)
        samples = now.samples(run)
        tried = [
            self._kmeans(sim, now, run, points, contexts, None)
            for contexts in range(1, min(state["contexts"].shape[1], len(points)) + 1)
        ]
        costs = np.array([weighted_cost(points, found.labels, samples / samples.sum()) for found in tried])
        bounds = np.array([complexity(sim.net.size, int(samples.sum()), k + 1) for k in range(len(tried))])
        mu = sim.specs[run].params["mu"]
        if mu == "auto":
            mu = AUTO_MU * bounds[0] / costs[0] if costs[0] > 0 else 0.0
        errors = bounds + mu * costs
        chosen = int(errors.argmin()) + 1
        state["chosen"][run] = chosen
        for k, (error, bound, cost) in enumerate(zip(errors, bounds, costs, strict=True), start=1):
            facts = {
                "contexts": k,
                "e": error,
                "complexity": bound,
                "cost": cost,
                "mu": mu,
                "chosen": k == chosen,
            }
            sim.record_run("heuristic", run, facts)
        return tried[chosen - 1]

    def check(self, params: Mapping[str, Any], clients: int | None = None) -> None:
        if params["max_contexts"] is not None:
            check_contexts(self.name, "max_contexts", params["max_contexts"], clients)


class CgpflOracle(Cgpfl):
    """CGPFL whose contexts are the partition's true ones: the ceiling for any clustering. Not in the paper."""

    name = "cgpfl_oracle"
    summary = "CGPFL told the true contexts"
    source = "ceiling for CGPFL"
    parameters = replaced(Cgpfl.parameters, without=("contexts", "kmeans_init"))
    needs_contexts = True

    def init(self, sim: Simulation) -> State:
        state = super().init(sim)
        beyond = torch.arange(self._most(sim), device=sim.device) > sim.true_contexts.amax(1, keepdim=True)
        state["contexts"][beyond] = float("nan")  # a run has as many contexts as its own partition
        return {**state, "assignment": sim.true_contexts.clone()}

    def _most(self, sim: Simulation) -> int:
        return int(sim.true_contexts.max()) + 1

    def _group(
        self, sim: Simulation, state: State, now: Round, run: int, points: NDArray[np.float64], before: Any
    ) -> Clustering:
        return Clustering(before, len(np.unique(before)), 0)

    def check(self, params: Mapping[str, Any], clients: int | None = None) -> None:
        """Nothing to check beside the ranges."""
