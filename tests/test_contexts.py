"""Clustering: Gram coordinates, k-means, labels, and the number of contexts."""

from __future__ import annotations

import math
import warnings
from itertools import permutations

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import pdist
from sklearn.cluster import KMeans

from cgpfl import contexts
from cgpfl.contexts import cluster, complexity, coordinates, distinct_rows, matched, means, spread, weighted_cost


def rows_of(seed: int, n: int, d: int, scale: float = 1.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, d)) * scale)


def groups_of(seed: int, sizes: list[int], d: int) -> tuple[torch.Tensor, np.ndarray]:
    """Rows around far apart centres, in random order, and their groups."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    centres = np.eye(len(sizes), d) * 50 + 7
    return torch.from_numpy(centres[labels] + rng.normal(size=(len(labels), d))), labels


def partition(labels: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(labels == k).tolist()) for k in np.unique(labels)}


def objective(rows: torch.Tensor, labels: np.ndarray) -> float:
    return reference.spread(rows, labels.tolist())


# --- coordinates ----------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(n=st.integers(2, 12), d=st.integers(1, 40), seed=st.integers(0, 999), scale=st.sampled_from([1e-6, 1.0, 1e6]))
def test_coordinates_keep_all_distances(n, d, seed, scale):
    rows = rows_of(seed, n, d, scale) + 3 * scale
    points = coordinates(rows)
    assert points.dtype == np.float64
    assert points.shape[0] == n
    assert points.shape[1] <= min(n, d)
    np.testing.assert_allclose(pdist(points), pdist(rows.numpy()), rtol=1e-6, atol=1e-6 * scale)


def test_coordinates_of_long_single_precision_rows_are_summed_in_double_precision():
    rows = rows_of(0, 6, 30_000, 1e-3).to(torch.float32) + 1
    np.testing.assert_allclose(pdist(coordinates(rows)), pdist(rows.to(torch.float64).numpy()), rtol=1e-4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e200])
def test_models_that_are_not_finite_or_too_large_to_square_have_no_coordinates(value):
    rows = rows_of(0, 4, 5)
    rows[2, 3] = value
    with np.errstate(all="ignore"):
        assert coordinates(rows) is None


@pytest.mark.parametrize("rows", [torch.ones(1, 5), torch.ones(4, 5), torch.zeros(3, 2)], ids=["one", "equal", "zero"])
def test_equal_rows_are_one_point(rows):
    points = coordinates(rows)
    assert len(points) == len(rows)
    assert distinct_rows(points) == 1
    found = cluster(points, 3, 0)
    assert (found.labels.tolist(), found.found) == ([0] * len(rows), 1)


def test_beyond_the_limit_a_sample_gives_the_axes(monkeypatch):
    """Exact where the sample spans the rest: 90 rows of rank 4, of which 15 are taken."""
    rows = rows_of(0, 90, 4) @ rows_of(1, 4, 60)
    monkeypatch.setattr(contexts, "AXES", 15)
    points = coordinates(rows)
    assert points.shape == (90, 4)
    np.testing.assert_allclose(pdist(points), pdist(rows.numpy()), rtol=1e-9)


def test_beyond_the_limit_well_separated_groups_are_still_found(monkeypatch):
    rows, labels = groups_of(3, [40, 30, 20], 200)
    monkeypatch.setattr(contexts, "AXES", 15)
    found = cluster(coordinates(rows), 3, 0)
    assert partition(found.labels) == partition(labels)


# --- k-means --------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), d=st.integers(4, 30), seed=st.integers(0, 999))
def test_in_coordinates_k_means_is_k_means_of_the_raw_rows(sizes, d, seed):
    rows, labels = groups_of(seed, sizes, d)
    found = cluster(coordinates(rows), len(sizes), seed)
    raw = KMeans(n_clusters=len(sizes), n_init=5, random_state=seed).fit(rows.numpy())
    assert partition(found.labels) == partition(raw.labels_) == partition(labels)
    assert found.found == len(sizes)
    assert objective(rows, found.labels) == pytest.approx(raw.inertia_, rel=1e-9, abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(4, 14), seed=st.integers(0, 999))
def test_from_the_same_centres_lloyd_goes_the_same_way_in_coordinates(n, seed):
    """Any rows, however badly separated: the same partition as on raw rows, not only an equally good one."""
    rows = rows_of(seed, n, 25)
    previous = np.arange(n) % 3
    found = cluster(coordinates(rows), 3, 0, previous)
    centres = np.stack([rows.numpy()[previous == k].mean(0) for k in range(3)])
    raw = KMeans(n_clusters=3, init=centres, n_init=1).fit(rows.numpy())
    assert partition(found.labels) == partition(raw.labels_)
    assert reference.is_stable(rows, found.labels.tolist())
    assert found.iterations == raw.n_iter_


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 7), contexts_asked=st.integers(1, 7), seed=st.integers(0, 999))
def test_what_k_means_ends_at_is_stable_and_near_the_optimum(n, contexts_asked, seed):
    rows = rows_of(seed, n, 10)
    found = cluster(coordinates(rows), contexts_asked, seed)
    assert found.found == min(n, contexts_asked)
    assert reference.is_stable(rows, found.labels.tolist())
    best = objective(rows, np.array(reference.best_grouping(rows, found.found)))
    assert best - 1e-9 <= objective(rows, found.labels) <= 1.5 * best + 1e-9


@pytest.mark.parametrize("previous", [None, np.array([0, 0, 1, 1, 2, 2])])
def test_fewer_distinct_rows_than_contexts_leave_contexts_empty(previous):
    rows = torch.tensor([[1.0, 2], [1, 2], [4, 0], [4, 0], [1, 2], [4, 0]], dtype=torch.float64)
    points = coordinates(rows)
    assert distinct_rows(points) == 2
    found = cluster(points, 3, 0, previous)
    assert found.found == 2
    assert partition(found.labels) == {frozenset({0, 1, 4}), frozenset({2, 3, 5})}


def test_previous_contexts_that_are_not_all_occupied_are_no_start():
    rows, labels = groups_of(0, [3, 3, 3], 8)
    found = cluster(coordinates(rows), 3, 0, np.zeros(9, dtype=np.int64))
    assert partition(found.labels) == partition(labels)


def test_previous_contexts_that_are_right_stay_at_once():
    rows, labels = groups_of(0, [3, 4, 5], 8)
    found = cluster(coordinates(rows), 3, 0, labels)
    assert found.labels.tolist() == labels.tolist()
    assert found.iterations <= 2


def test_clustering_is_a_function_of_the_seed_and_uses_no_global_state():
    points = coordinates(rows_of(0, 30, 40))
    labels = []
    for state in (1, 2):
        np.random.seed(state)
        labels.append([cluster(points, 6, seed).labels.tolist() for seed in range(5)])
        assert np.random.random() == np.random.RandomState(state).random_sample()
    assert labels[0] == labels[1]
    assert len({tuple(one) for one in labels[0]}) > 1


# --- labels ---------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 10), most=st.integers(1, 5))
def test_matched_labels_keep_as_many_as_possible(data, n, most):
    labels, previous = (np.array(data.draw(st.lists(st.integers(0, most - 1), min_size=n, max_size=n))) for _ in "ab")
    renamed = matched(labels, previous, most)
    assert partition(renamed) == partition(labels)
    assert renamed.max() < most
    best = max((np.array(names)[labels] == previous).sum() for names in permutations(range(most)))
    assert (renamed == previous).sum() == best


def test_matched_labels_that_were_only_renamed_are_the_previous_ones():
    previous = np.array([0, 2, 1, 1, 2, 0])
    assert matched(np.array([2, 1, 0])[previous], previous, 4).tolist() == previous.tolist()


# --- measures -------------------------------------------------------------------------------------------------------

POINTS = np.array([[0.0, 0], [4, 0], [0, 3], [10, 10]])


def test_means_by_hand():
    assert means(POINTS, np.array([0, 0, 2, 2])).tolist() == [[2, 0], [0, 0], [5, 6.5]]


def test_weighted_cost_by_hand():
    """Groups {0, 1} around (2, 0) and {2, 3} around (5, 6.5): squares 4, 4, 37.25, 37.25."""
    share = np.array([0.1, 0.2, 0.3, 0.4])
    assert weighted_cost(POINTS, np.array([0, 0, 1, 1]), share) == pytest.approx(0.3 * 4 + 0.7 * 37.25)
    assert weighted_cost(POINTS, np.arange(4), share) == 0


@settings(max_examples=20, deadline=None)
@given(n=st.integers(2, 8), seed=st.integers(0, 99))
def test_weighted_cost_in_coordinates_is_that_of_the_raw_rows(n, seed):
    rows, labels = rows_of(seed, n, 20), np.arange(n) % 2
    share = np.random.default_rng(seed).dirichlet(np.ones(n))
    expected = reference.spread(rows, labels.tolist(), share.tolist())
    assert weighted_cost(coordinates(rows), labels, share) == pytest.approx(expected, rel=1e-9)


def test_spread_by_hand():
    found = spread(POINTS, np.array([0, 0, 2, 2]))
    assert found["between"] == pytest.approx(math.hypot(3, 6.5))
    assert found["within"] == pytest.approx((2 + 2 + 2 * math.sqrt(37.25)) / 4)


def test_one_context_has_no_distance_to_another():
    found = spread(POINTS, np.ones(4, dtype=np.int64))
    assert math.isnan(found["between"])
    assert found["within"] > 0


def test_complexity_is_equation_11():
    assert complexity(7850, 45_000, 4) == pytest.approx(math.sqrt(7850 * 4 / 45_000 * math.log(math.e * 45_000 / 7850)))


@pytest.mark.parametrize(("d", "m"), [(101_770, 30_000), (272, 100), (10**6, 1)])
def test_complexity_without_enough_samples_is_held_up_with_a_warning(d, m):
    with pytest.warns(UserWarning, match=f"d = {d} parameters for m = {m} training samples"):
        found = complexity(d, m, 3)
    assert found == pytest.approx(math.sqrt(3 * d / m * 0.01))


def test_complexity_grows_with_the_number_of_contexts():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values = [complexity(100, 1000, k) for k in range(1, 9)]
    assert values == sorted(values)
    assert values[3] == pytest.approx(2 * values[0])
