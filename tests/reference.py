"""Every method written out: one run, one client after the other, one minibatch after the other.

A model is a vector w; its gradient comes from autograd. Nothing here knows of the engine: minibatches, participants,
coins and initial models are given. Each method yields what it has after every round, under the names of a result:
"personal" and "local" [N, d], "global" [d], "contexts" [K, d], "assignment" [N].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, cross_entropy, max_pool2d

Snapshot = dict[str, Any]


@dataclass
class Task:
    """What one run is given.

    Attributes:
        logits: function of (w [d], x [n, ...]) to outputs [n, C].
        x, y: pool of samples; train[i], test[i]: positions in it of client i's samples.
        batches[i][t]: the minibatches (positions in the pool) that client i is given in round t, in order.
        adapt[i][t]: minibatches with which client i adapts a model before it is tested in round t.
        present[t]: participants of round t. coins[t][j]: whether iteration j of round t mixes.
        hints[t]: contexts [N] after round t, whose names are followed where several would do.
        any_stable: follow the hints in any end point of k-means, not only in its optimum.
    """

    logits: Callable[[Tensor, Tensor], Tensor]
    initial: Tensor
    x: Tensor
    y: Tensor
    train: Sequence[Tensor]
    test: Sequence[Tensor]
    batches: Sequence[Sequence[Sequence[Tensor]]]
    present: Sequence[Sequence[int]]
    l2: float = 0.0
    adapt: Sequence[Sequence[Sequence[Tensor]]] = ()
    coins: Sequence[Sequence[bool]] = ()
    hints: Mapping[int, Sequence[int]] = field(default_factory=dict)
    any_stable: bool = False
    true_contexts: Sequence[int] = ()

    @property
    def clients(self) -> range:
        return range(len(self.train))

    @property
    def rounds(self) -> range:
        return range(len(self.present))


def mlr(inputs: int, classes: int) -> Callable[[Tensor, Tensor], Tensor]:
    def logits(w: Tensor, x: Tensor) -> Tensor:
        weight, bias = w.split([inputs * classes, classes])
        return x.flatten(1) @ weight.view(classes, inputs).T + bias

    return logits


def dnn(inputs: int, hidden: int, classes: int) -> Callable[[Tensor, Tensor], Tensor]:
    def logits(w: Tensor, x: Tensor) -> Tensor:
        first, last = w.split([inputs * hidden + hidden, hidden * classes + classes])
        return mlr(hidden, classes)(last, torch.relu(mlr(inputs, hidden)(first, x)))

    return logits


def cnn(channels: int, filters: tuple[int, int], hidden: int, classes: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Of images of 16 x 16 pixels, of which the two convolutions and poolings leave one."""
    first, second = filters
    shapes = [(first, channels, 5, 5), (first,), (second, first, 5, 5), (second,), (hidden, second), (hidden,)]
    shapes += [(classes, hidden), (classes,)]

    def logits(w: Tensor, x: Tensor) -> Tensor:
        pieces = w.split([math.prod(shape) for shape in shapes])
        a, a0, b, b0, c, c0, e, e0 = (piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True))
        x = max_pool2d(torch.relu(conv2d(x.view(-1, channels, 16, 16), a, a0)), 2)
        x = max_pool2d(torch.relu(conv2d(x, b, b0)), 2).flatten(1)
        return torch.relu(x @ c.T + c0) @ e.T + e0

    return logits


# --- pieces ---------------------------------------------------------------------------------------------------------


def loss(task: Task, w: Tensor, samples: Tensor) -> Tensor:
    return cross_entropy(task.logits(w, task.x[samples]), task.y[samples])


def g(task: Task, w: Tensor, batch: Tensor) -> Tensor:
    w = w.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(task, w, batch), w)
    return gradient + task.l2 * w.detach()


def mean(models: Sequence[Tensor], weights: Sequence[float] | None = None) -> Tensor:
    weights = [1.0] * len(models) if weights is None else weights
    return sum(weight * w for weight, w in zip(weights, models, strict=True)) / sum(weights)


def sgd(task: Task, w: Tensor, batches: Sequence[Tensor], lr: float) -> Tensor:
    for batch in batches:
        w = w - lr * g(task, w, batch)
    return w


def samples_of(task: Task, clients: Sequence[int]) -> list[float]:
    return [float(len(task.train[i])) for i in clients]


# --- methods of one or no global model ------------------------------------------------------------------------------


def local(task: Task, lr: float) -> Iterator[Snapshot]:
    w = [task.initial for _ in task.clients]
    for t in task.rounds:
        for i in task.present[t]:
            w[i] = sgd(task, w[i], task.batches[i][t], lr)
        yield {"personal": torch.stack(w)}


def fedavg(task: Task, lr: float, weights: str = "samples") -> Iterator[Snapshot]:
    w = task.initial
    for t in task.rounds:
        present = task.present[t]
        uploads = [sgd(task, w, task.batches[i][t], lr) for i in present]
        w = mean(uploads, samples_of(task, present) if weights == "samples" else None)
        yield {"global": w}


def fedprox(task: Task, lr: float, mu: float, weights: str = "samples") -> Iterator[Snapshot]:
    w = task.initial
    for t in task.rounds:
        uploads = []
        for i in task.present[t]:
            w_i = w
            for batch in task.batches[i][t]:
                w_i = w_i - lr * (g(task, w_i, batch) + mu * (w_i - w))
            uploads.append(w_i)
        w = mean(uploads, samples_of(task, task.present[t]) if weights == "samples" else None)
        yield {"global": w}


def fedavg_ft(task: Task, lr: float, finetune_steps: int, weights: str = "samples") -> Iterator[Snapshot]:
    for t, snapshot in enumerate(fedavg(task, lr, weights)):
        tuned = [sgd(task, snapshot["global"], task.adapt[i][t][:finetune_steps], lr) for i in task.clients]
        yield {"global": snapshot["global"], "personal": torch.stack(tuned)}


def l2sgd(task: Task, lr: float, lam: float, p: float, schedule: str = "bernoulli") -> Iterator[Snapshot]:
    x = [task.initial for _ in task.clients]
    for t in task.rounds:
        present, iterations = task.present[t], len(task.batches[0][t])
        c = lr * lam * (iterations - 1) if schedule == "fixed" else lr * lam * (1 - p) / p
        for j in range(iterations):
            mixes = j == iterations - 1 if schedule == "fixed" else task.coins[t][j]
            middle = mean([x[i] for i in present])
            for i in present:
                if mixes:
                    x[i] = (1 - c) * x[i] + c * middle
                else:
                    x[i] = x[i] - lr * g(task, x[i], task.batches[i][t][j])
        yield {"personal": torch.stack(x)}


def apfl(task: Task, lr: float, mix: float | str) -> Iterator[Snapshot]:
    w, v = task.initial, [task.initial for _ in task.clients]
    a = [0.5 if mix == "adaptive" else float(mix) for _ in task.clients]
    for t in task.rounds:
        uploads = []
        for i in task.present[t]:
            w_i, share = w, a[i]
            for step, batch in enumerate(task.batches[i][t]):
                mixed = g(task, share * v[i] + (1 - share) * w_i, batch)
                if mix == "adaptive" and step == 0:
                    a[i] = min(max(share - lr * float((v[i] - w_i) @ mixed), 0.0), 1.0)
                v[i] = v[i] - lr * share * mixed
                w_i = w_i - lr * g(task, w_i, batch)
                share = a[i]
            uploads.append(w_i)
        w = mean(uploads)
        personal = [a[i] * v[i] + (1 - a[i]) * w for i in task.clients]
        yield {"global": w, "local": torch.stack(v), "personal": torch.stack(personal)}


def perfedavg(
    task: Task, adapt_lr: float, meta_lr: float, variant: str = "hf", delta: float = 1e-3
) -> Iterator[Snapshot]:
    w = task.initial
    for t in task.rounds:
        uploads = []
        for i in task.present[t]:
            w_i, batches = w, task.batches[i][t]
            for d1, d2, d3 in zip(batches[0::3], batches[1::3], batches[2::3], strict=True):
                outer = g(task, w_i - adapt_lr * g(task, w_i, d1), d2)
                h = (g(task, w_i + delta * outer, d3) - g(task, w_i - delta * outer, d3)) / (2 * delta)
                w_i = w_i - meta_lr * (outer - (adapt_lr * h if variant == "hf" else 0))
            uploads.append(w_i)
        w = mean(uploads)
        adapted = [sgd(task, w, task.adapt[i][t][:1], adapt_lr) for i in task.clients]
        yield {"global": w, "personal": torch.stack(adapted)}


def ditto(task: Task, lr: float, lam: float) -> Iterator[Snapshot]:
    w, v = task.initial, [task.initial for _ in task.clients]
    for t in task.rounds:
        for i in task.present[t]:
            for batch in task.batches[i][t]:
                v[i] = v[i] - lr * (g(task, v[i], batch) + lam * (v[i] - w))
        w = mean([sgd(task, w, task.batches[i][t], lr) for i in task.present[t]])
        yield {"global": w, "personal": torch.stack(v)}


# --- Moreau envelopes -----------------------------------------------------------------------------------------------


def moreau(
    task: Task, theta: Tensor, w: Tensor, batches: Sequence[Tensor], lam: float, eta: float, inner: int, step: float
) -> tuple[Tensor, Tensor]:
    for batch in batches:
        for _ in range(inner):
            theta = theta - eta * (g(task, theta, batch) + lam * (theta - w))
        w = w - step * (w - theta)
    return theta, w


def pfedme(
    task: Task,
    lr: float,
    lam: float,
    inner_steps: int,
    eta: float,
    beta: float = 1.0,
    carry: str = "reset",
    weights: str = "uniform",
) -> Iterator[Snapshot]:
    w = task.initial
    theta, copy = [w for _ in task.clients], [w for _ in task.clients]
    for t in task.rounds:
        present = task.present[t]
        for i in present:
            start = w if carry == "reset" else theta[i]
            theta[i], copy[i] = moreau(task, start, w, task.batches[i][t], lam, eta, inner_steps, lr * lam)
        average = mean([copy[i] for i in present], samples_of(task, present) if weights == "samples" else None)
        w = (1 - beta) * w + beta * average
        yield {"personal": torch.stack(theta), "local": torch.stack(copy), "global": w}


# --- contexts -------------------------------------------------------------------------------------------------------


def ifca(task: Task, lr: float, contexts: int, restarts: int = 1) -> Iterator[Snapshot]:
    """``task.initial`` [contexts, d] are the models of the restart that was chosen."""
    models = list(task.initial)

    def nearest(i: int) -> int:
        return min(range(contexts), key=lambda k: float(loss(task, models[k], task.train[i])))

    for t in task.rounds:
        members: list[list[Tensor]] = [[] for _ in range(contexts)]
        for i in task.present[t]:
            k = nearest(i)
            members[k].append(sgd(task, models[k], task.batches[i][t], lr))
        models = [mean(members[k]) if members[k] else models[k] for k in range(contexts)]
        yield {"contexts": torch.stack(models), "assignment": [nearest(i) for i in task.clients]}


def partitions(n: int, groups: int) -> Iterator[list[int]]:
    """Every way to put n things into that many groups, none empty, as labels."""

    def extended(labels: list[int], used: int) -> Iterator[list[int]]:
        if len(labels) == n:
            if used == groups:
                yield labels
            return
        for label in range(min(used + 1, groups)):
            yield from extended([*labels, label], max(used, label + 1))

    return extended([], 0)


def spread(rows: Tensor, labels: Sequence[int], weights: Sequence[float] | None = None) -> float:
    """sum_i weight_i * ||row_i - mean of its group||^2"""
    points, groups = rows.numpy(), np.array(labels)
    share = np.ones(len(groups)) if weights is None else np.array(weights)
    total = 0.0
    for k in set(labels):
        members = points[groups == k]
        total += float(share[groups == k] @ ((members - members.mean(0)) ** 2).sum(1))
    return total


def best_grouping(rows: Tensor, groups: int) -> list[int]:
    """The optimum of k-means, by trying all."""
    return min(partitions(len(rows), groups), key=lambda labels: spread(rows, labels))


def is_stable(rows: Tensor, labels: Sequence[int]) -> bool:
    """Whether Lloyd's algorithm would stay at this grouping: every row is nearest to the mean of its own group."""
    names, groups = np.unique(labels, return_inverse=True)
    centres = np.stack([rows.numpy()[groups == k].mean(0) for k in range(len(names))])
    distances = ((rows.numpy()[:, None] - centres[None]) ** 2).sum(2)
    return bool((distances.argmin(1) == groups).all())


def grouped(task: Task, t: int, rows: Tensor, present: Sequence[int], groups: int) -> list[int]:
    """The optimum of k-means; with ``any_stable`` the grouping of the hints, if k-means could end there."""
    hint = [task.hints[t][i] for i in present]
    if task.any_stable and len(set(hint)) == groups and is_stable(rows, hint):
        return hint
    return best_grouping(rows, groups)


def renamed(labels: Sequence[int], before: Sequence[int], contexts: int, hint: Sequence[int] | None) -> list[int]:
    """``labels`` with the names that most of the members had ``before``; of equally good ones the ``hint``."""
    options = [[names[label] for label in labels] for names in permutations(range(contexts))]
    kept = [sum(a == b for a, b in zip(option, before, strict=True)) for option in options]
    best = [option for option, count in zip(options, kept, strict=True) if count == max(kept)]
    return list(hint) if hint is not None and list(hint) in best else best[0]


def _contexts(
    task: Task,
    group: Callable[[int, Tensor, list[int]], tuple[list[int], Snapshot]],
    contexts: int,
    assignment: list[int],
    lr: float,
    lam: float,
    inner_steps: int,
    eta: float,
    alpha: float = 1.0,
    step: str = "lr_lambda",
    carry: str = "reset",
) -> Iterator[Snapshot]:
    """CGPFL whose clients are grouped by ``group(round, uploads, participants)``."""
    n = len(task.clients)
    omega = [task.initial for _ in range(contexts)]
    theta, copy = [task.initial for _ in task.clients], [task.initial for _ in task.clients]
    size = lr * lam if step == "lr_lambda" else lr * 2 / n
    for t in task.rounds:
        present = list(task.present[t])
        for i in present:
            w = omega[assignment[i]]
            start = w if carry == "reset" else theta[i]
            theta[i], copy[i] = moreau(task, start, w, task.batches[i][t], lam, eta, inner_steps, size)
        labels, more = group(t, torch.stack([copy[i] for i in present]), present)
        hint = [task.hints[t][i] for i in present] if t in task.hints else None
        labels = renamed(labels, [assignment[i] for i in present], contexts, hint)
        for i, label in zip(present, labels, strict=True):
            assignment[i] = label
        for k in set(labels):
            members = mean([copy[i] for i in present if assignment[i] == k])
            omega[k] = (1 - alpha) * omega[k] + alpha * members
        yield {
            "personal": torch.stack(theta),
            "local": torch.stack(copy),
            "contexts": torch.stack(omega),
            "assignment": list(assignment),
            **more,
        }


def cgpfl(task: Task, contexts: int, kmeans_init: str = "kmeans++", **params: Any) -> Iterator[Snapshot]:
    """``kmeans_init`` does not matter where the optimum is found."""
    return _contexts(
        task,
        lambda t, rows, present: (grouped(task, t, rows, present, contexts), {}),
        contexts,
        [0] * len(task.clients),
        **params,
    )


def e_of(rows: Tensor, labels: Sequence[int], samples: Sequence[float], mu: float) -> float:
    """Equation 11 for one grouping of the uploads."""
    d, m, k = rows.shape[1], sum(samples), len(set(labels))
    logarithm = max(math.log(math.e * m / d), 0.01)
    return math.sqrt(d * k / m * logarithm) + mu * spread(rows, labels, [n / m for n in samples])


def cgpfl_heur(
    task: Task,
    mu: float,
    max_contexts: int | None = None,
    heur_rounds: int = 1,
    kmeans_init: str = "kmeans++",
    **params: Any,
) -> Iterator[Snapshot]:
    most = max_contexts or len(task.clients) // 2
    chosen = 0

    def group(t: int, rows: Tensor, present: list[int]) -> tuple[list[int], Snapshot]:
        nonlocal chosen
        errors: list[float] = []
        if t < heur_rounds:
            options = [best_grouping(rows, k) for k in range(1, most + 1)]
            errors = [e_of(rows, labels, samples_of(task, present), mu) for labels in options]
            chosen = errors.index(min(errors)) + 1
        return grouped(task, t, rows, present, chosen), {"e": errors, "chosen": chosen}

    return _contexts(task, group, most, [0] * len(task.clients), **params)


def cgpfl_oracle(task: Task, **params: Any) -> Iterator[Snapshot]:
    true = list(task.true_contexts)
    return _contexts(task, lambda t, rows, present: ([true[i] for i in present], {}), max(true) + 1, true, **params)


METHODS: dict[str, Callable[..., Iterator[Snapshot]]] = {
    method.__name__: method
    for method in (
        local,
        fedavg,
        fedavg_ft,
        fedprox,
        ifca,
        l2sgd,
        apfl,
        perfedavg,
        pfedme,
        ditto,
        cgpfl,
        cgpfl_heur,
        cgpfl_oracle,
    )
}


# --- testing --------------------------------------------------------------------------------------------------------


def tested_models(task: Task, snapshot: Snapshot, name: str) -> list[Tensor]:
    """The model that each client tests under this name."""
    if name == "global":
        return [snapshot["global"] for _ in task.clients]
    if name == "context":
        return [snapshot["contexts"][k] for k in snapshot["assignment"]]
    return list(snapshot[name])


def metrics(task: Task, models: Sequence[Tensor]) -> dict[str, float]:
    """The history of one tested model in one round."""
    right, losses, train = [], [], []
    for w, test, samples in zip(models, task.test, task.train, strict=True):
        right.append(int((task.logits(w, task.x[test]).argmax(1) == task.y[test]).sum()))
        losses.append(float(loss(task, w, test)) * len(test))
        train.append(float(loss(task, w, samples)) * len(samples))
    tests = [len(test) for test in task.test]
    shares = sorted(r / n for r, n in zip(right, tests, strict=True))
    average = sum(shares) / len(shares)
    worst = shares[: math.ceil(len(shares) / 10)]
    return {
        "accuracy": sum(right) / sum(tests),
        "accuracy_client_mean": average,
        "accuracy_client_std": math.sqrt(sum((share - average) ** 2 for share in shares) / len(shares)),
        "accuracy_worst_decile": sum(worst) / len(worst),
        "loss": sum(losses) / sum(tests),
        "train_loss": sum(train) / sum(samples_of(task, task.clients)),
    }
