"""Small made-up clients whose contexts are far apart."""

from __future__ import annotations

from typing import Any

import numpy as np

import cgpfl

CONTEXTS = (0, 1, 2, 0, 1, 2, 2)


def arrays(
    seed: int = 0,
    contexts: tuple[int, ...] = CONTEXTS,
    shape: tuple[int, ...] = (6,),
    classes: int = 3,
    sizes: tuple[int, ...] = (3, 6, 9, 12, 15, 18),
    noise: float = 0.1,
) -> list[tuple[Any, Any, Any, Any]]:
    """(x_train, y_train, x_test, y_test) of each client; every client has all classes equally often, or nearly.

    The number of training samples is drawn from ``sizes`` (of the first client it is the first of them, of the last
    the last). Context 1 exchanges the labels of two classes; contexts from 2 on shift all labels, and their samples are
    negated and doubled.
    """
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, *shape))
    clients = []
    for place, context in enumerate(contexts):
        n = sizes[0] if place == 0 else sizes[-1] if place == len(contexts) - 1 else int(rng.choice(sizes))
        both = []
        for count in (n, int(rng.integers(2, 9))):
            label = np.arange(count) % classes
            x = centres[label] + rng.normal(size=(count, *shape)) * noise
            y = label if context == 0 else _exchanged(label) if context == 1 else (label + context - 1) % classes
            both += [x if context < 2 else -2 * x, y]
        clients.append(tuple(both))
    return clients


def _exchanged(label: np.ndarray) -> np.ndarray:
    return np.where(label == 0, 1, np.where(label == 1, 0, label))


def clients(seed: int = 0, contexts: tuple[int, ...] = CONTEXTS, classes: int = 3, **sizes: Any) -> cgpfl.ClientData:
    return cgpfl.ClientData.from_arrays(arrays(seed, contexts, classes=classes, **sizes), list(contexts), classes)
