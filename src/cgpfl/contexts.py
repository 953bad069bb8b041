"""Latent contexts: clustering of uploaded models, labels that keep their meaning over rounds, and how many."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# With more uploads than this, their coordinates are products with so many of them instead of with all, so that a
# client's share of the server's work does not grow with the number of clients.
AXES = 200
RESTARTS = 4  # of k-means++; the best by inertia is kept


@dataclass(frozen=True)
class Clustering:
    """Context of each row, int64 [N], in 0..K-1; how many contexts are not empty; Lloyd iterations needed."""

    labels: NDArray[np.int64]
    found: int
    iterations: int


def coordinates(models: Tensor) -> NDArray[np.float64] | None:
    """Models [N, d] as points [N, rank <= N] with the same pairwise distances; None if a model is not finite.

    k-means sees its points only through their distances, and N models span at most N dimensions: the eigenvectors
    of the centred N x N Gram matrix, scaled by the roots of their eigenvalues, are the same points in other axes.
    More than ``AXES`` models are projected on the principal axes of ``AXES`` evenly spaced ones of them instead
    (exact if these span the rest, an approximation otherwise).
    """
    sample = models if len(models) <= AXES else models[torch.linspace(0, len(models) - 1, AXES).long()]
    gram = _products(sample, sample)
    if not np.isfinite(gram).all():
        return None
    centre = np.eye(len(gram)) - 1 / len(gram)
    values, vectors = np.linalg.eigh(centre @ gram @ centre)
    rank = values > values[-1] * 1e-13
    axes = centre @ vectors[:, rank] / np.sqrt(values[rank])  # points = products with the sample, times these
    points = (gram if sample is models else _products(models, sample)) @ axes
    points -= points.mean(0)
    return points if np.isfinite(points).all() else None


COLUMNS = 1 << 13  # of models that are multiplied at a time, in cache


def _products(left: Tensor, right: Tensor) -> NDArray[np.float64]:
    """left right^T, the rows seen from the mean of ``right``, summed in float64 over stretches of columns."""
    total = torch.zeros(len(left), len(right), dtype=torch.float64, device=left.device)
    for start in range(0, left.shape[1], COLUMNS):
        part = right[:, start : start + COLUMNS]
        mean = part.mean(0)
        other = part - mean
        total += (other if left is right else left[:, start : start + COLUMNS] - mean) @ other.T
    return total.cpu().numpy()


def distinct_rows(points: NDArray[np.float64]) -> int:
    """Number of different points, up to rounding, counted until it is certain that no two clusters are missing."""
    if points.size == 0:
        return 1
    scale = np.abs(points).max() or 1.0
    return len(np.unique(np.round(points / scale, 9), axis=0))


def cluster(
    points: NDArray[np.float64], contexts: int, seed: int, previous: NDArray[np.int64] | None = None
) -> Clustering:
    """k-means of ``points`` [N, r] into at most ``contexts`` clusters.

    Args:
        seed: of the k-means++ draws (Arthur and Vassilvitskii 2007).
        previous: labels [N] whose means are the initial centres instead of k-means++ draws, where all of their
            ``contexts`` clusters are occupied.

    With fewer distinct points than ``contexts`` the surplus clusters stay empty.
    """
    found = min(contexts, distinct_rows(points))
    if found == 1 or points.size == 0:
        return Clustering(np.zeros(len(points), dtype=np.int64), 1, 1)
    init: str | NDArray[np.float64] = "k-means++"
    if previous is not None and len(np.unique(previous)) == found:
        init = np.stack([points[previous == label].mean(0) for label in np.unique(previous)])
    restarts = RESTARTS if isinstance(init, str) else 1
    from sklearn.cluster import KMeans  # a second to import, and most jobs never cluster

    warnings.filterwarnings("ignore", "Number of distinct clusters")  # counted below
    fit = KMeans(n_clusters=found, init=init, n_init=restarts, random_state=seed).fit(points)
    labels = fit.labels_.astype(np.int64)
    return Clustering(labels, len(np.unique(labels)), int(fit.n_iter_))


def matched(labels: NDArray[np.int64], previous: NDArray[np.int64], contexts: int) -> NDArray[np.int64]:
    """``labels`` [N] renamed so that as many rows as possible keep their previous label (Hungarian method)."""
    from scipy.optimize import linear_sum_assignment  # a quarter of a second to import

    overlap = np.zeros((contexts, contexts), dtype=np.int64)
    np.add.at(overlap, (labels, previous), 1)
    ours, theirs = linear_sum_assignment(overlap, maximize=True)
    renamed = np.empty(contexts, dtype=np.int64)
    renamed[ours] = theirs
    return renamed[labels]


def means(points: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean point of each cluster, [largest label + 1, r]; zeros for an empty one."""
    sums = np.zeros((int(labels.max()) + 1, points.shape[1]))
    np.add.at(sums, labels, points)
    return sums / np.bincount(labels, minlength=len(sums)).clip(min=1)[:, None]


def weighted_cost(points: NDArray[np.float64], labels: NDArray[np.int64], share: NDArray[np.float64]) -> float:
    """sum_i share_i * ||point_i - mean of its cluster||^2 (paper, theorem 2: cost(Theta, Omega; K))."""
    return float((share * ((points - means(points, labels)[labels]) ** 2).sum(1)).sum())


def spread(points: NDArray[np.float64], labels: NDArray[np.int64]) -> dict[str, float]:
    """Mean distance between the means of two contexts (NaN for one context), and of a point to its own."""
    from scipy.spatial.distance import pdist

    centres = means(points, labels)
    occupied = centres[np.unique(labels)]
    between = float(pdist(occupied).mean()) if len(occupied) > 1 else float("nan")
    return {"between": between, "within": float(np.linalg.norm(points - centres[labels], axis=1).mean())}


def complexity(d: int, m: int, contexts: int) -> float:
    """sqrt(d*K/m * log(e*m/d)) (paper, equation 11). The logarithm needs d < e*m; where d is larger it is held at
    0.01, with a warning."""
    logarithm = math.log(math.e * m / d)
    if logarithm < 0.01:
        warnings.warn(
            f"cgpfl_heur: d = {d} parameters for m = {m} training samples; the bound's log(e*m/d) is not positive "
            "and is held at 0.01",
            stacklevel=2,
        )
        logarithm = 0.01
    return math.sqrt(d * contexts / m * logarithm)
