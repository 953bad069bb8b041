"""The usual way, as the baseline of the benchmarks: one nn.Module a client, autograd, torch.optim.SGD, one client
after the other, as the public code bases of these methods do it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

LR, LAM, ETA, R, S, K = 0.005, 12.0, 0.05, 10, 5, 4


class Client:
    """Data, a model, and a second one for methods that need it."""

    def __init__(self, x: Tensor, y: Tensor, build: Callable[[], nn.Module], batch_size: int):
        self.x, self.y, self.batch_size = x, y, batch_size
        self.model, self.other = build(), build()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LR)
        self.other_optimizer = torch.optim.SGD(self.other.parameters(), lr=LR)

    def batch(self) -> tuple[Tensor, Tensor]:
        index = torch.randint(len(self.x), (self.batch_size,))
        return self.x[index], self.y[index]


def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.zero_grad()
    cross_entropy(model(x), y).backward()


def load(model: nn.Module, source: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), source, strict=True):
            parameter.copy_(value)


def average(models: list[nn.Module]) -> list[Tensor]:
    with torch.no_grad():
        return [torch.stack(values).mean(0) for values in zip(*(m.parameters() for m in models), strict=True)]


def sgd(client: Client) -> None:
    for _ in range(R):
        backward(client.model, *client.batch())
        client.optimizer.step()


class Server:
    """One round of each method over all clients."""

    def __init__(self, clients: list[Client], build: Callable[[], nn.Module]):
        self.clients = clients
        self.models = [build() for _ in range(K)]
        self.choice = [0] * len(clients)

    def run(self, method: str) -> None:
        getattr(self, method)()

    def fedavg(self) -> None:
        for client in self.clients:
            load(client.model, self.models[0].parameters())
            sgd(client)
        load(self.models[0], average([client.model for client in self.clients]))

    def ifca(self) -> None:
        with torch.no_grad():
            for i, client in enumerate(self.clients):
                losses = [float(cross_entropy(model(client.x), client.y)) for model in self.models]
                self.choice[i] = losses.index(min(losses))
        for i, client in enumerate(self.clients):
            load(client.model, self.models[self.choice[i]].parameters())
            sgd(client)
        for k, model in enumerate(self.models):
            members = [client.model for i, client in enumerate(self.clients) if self.choice[i] == k]
            if members:
                load(model, average(members))

    def l2sgd(self) -> None:
        for client in self.clients:
            sgd(client)
        mean = average([client.model for client in self.clients])
        with torch.no_grad():
            for client in self.clients:
                for parameter, value in zip(client.model.parameters(), mean, strict=True):
                    parameter.lerp_(value, LR * R)

    def ditto(self) -> None:
        start = [parameter.detach().clone() for parameter in self.models[0].parameters()]
        for client in self.clients:
            load(client.model, start)
            for _ in range(R):
                x, y = client.batch()
                backward(client.other, x, y)
                for parameter, value in zip(client.other.parameters(), start, strict=True):
                    parameter.grad.add_(parameter.detach() - value, alpha=LAM)
                client.other_optimizer.step()
                backward(client.model, x, y)
                client.optimizer.step()
        load(self.models[0], average([client.model for client in self.clients]))

    def apfl(self) -> None:
        mixed = copy.deepcopy(self.models[0])
        for client in self.clients:
            load(client.model, self.models[0].parameters())
            for _ in range(R):
                x, y = client.batch()
                pairs = zip(client.other.parameters(), client.model.parameters(), strict=True)
                load(mixed, [0.5 * v.detach() + 0.5 * w.detach() for v, w in pairs])
                backward(mixed, x, y)
                with torch.no_grad():
                    for v, parameter in zip(client.other.parameters(), mixed.parameters(), strict=True):
                        v.sub_(parameter.grad, alpha=LR * 0.5)
                backward(client.model, x, y)
                client.optimizer.step()
        load(self.models[0], average([client.model for client in self.clients]))

    def perfedavg(self) -> None:
        a, delta = 0.01, 1e-3
        for client in self.clients:
            load(client.model, self.models[0].parameters())
            parameters = list(client.model.parameters())
            for _ in range(R):
                start = [parameter.detach().clone() for parameter in parameters]
                backward(client.model, *client.batch())
                load(client.model, [w - a * p.grad for w, p in zip(start, parameters, strict=True)])
                backward(client.model, *client.batch())
                step = [parameter.grad.clone() for parameter in parameters]
                x, y = client.batch()
                sides = []
                for sign in (1, -1):
                    load(client.model, [w + sign * delta * g for w, g in zip(start, step, strict=True)])
                    backward(client.model, x, y)
                    sides.append([parameter.grad.clone() for parameter in parameters])
                new = [w - LR * (g - a * (p - m) / (2 * delta)) for w, g, p, m in zip(start, step, *sides, strict=True)]
                load(client.model, new)
        load(self.models[0], average([client.model for client in self.clients]))

    def pfedme(self) -> None:
        self._moreau(lambda i: self.models[0])
        load(self.models[0], average([client.other for client in self.clients]))

    def cgpfl(self) -> None:
        from sklearn.cluster import KMeans

        self._moreau(lambda i: self.models[self.choice[i]])
        rows = torch.stack([nn.utils.parameters_to_vector(c.other.parameters()).detach() for c in self.clients])
        self.choice = KMeans(K, n_init=4, random_state=0).fit(rows.numpy()).labels_.tolist()
        for k, model in enumerate(self.models):
            load(model, average([c.other for i, c in enumerate(self.clients) if self.choice[i] == k]))

    def _moreau(self, start_of: Callable[[int], nn.Module]) -> None:
        """``model`` is theta, ``other`` the local copy of the global or context model."""
        for i, client in enumerate(self.clients):
            start = list(start_of(i).parameters())
            load(client.model, start)
            load(client.other, start)
            for _ in range(R):
                x, y = client.batch()
                for _ in range(S):
                    backward(client.model, x, y)
                    with torch.no_grad():
                        for theta, w in zip(client.model.parameters(), client.other.parameters(), strict=True):
                            theta.sub_(theta.grad + LAM * (theta - w), alpha=ETA)
                with torch.no_grad():
                    for theta, w in zip(client.model.parameters(), client.other.parameters(), strict=True):
                        w.sub_(w - theta, alpha=LR * LAM)
