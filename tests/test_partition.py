"""Partitions: what each scheme promises, for requests of any kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from cgpfl import datasets
from cgpfl import partition as pt
from cgpfl.errors import UserError

FIXED_SETS = ("cyclic", "random", "contexts")


def labels_of(totals: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(totals)), totals))


def members(partition: pt.Partition) -> list[np.ndarray]:
    return [np.concatenate(parts) for parts in zip(partition.train, partition.test, strict=True)]


def table(partition: pt.Partition, labels: np.ndarray, classes: int) -> np.ndarray:
    return np.stack([np.bincount(labels[i], minlength=classes) for i in members(partition)])


def same(a: pt.Partition, b: pt.Partition) -> bool:
    return pt.digest(a) == pt.digest(b)


def check_common(partition: pt.Partition, labels: np.ndarray, fraction: float) -> None:
    """Disjoint, every client's test set not empty, stratified, and every class of a client trained on."""
    everything = np.concatenate(members(partition))
    assert len(np.unique(everything)) == len(everything)
    assert everything.min() >= 0
    assert everything.max() < len(labels)
    for train, test in zip(partition.train, partition.test, strict=True):
        assert train.dtype == test.dtype == np.int64
        assert (np.diff(train) > 0).all()
        assert (np.diff(test) > 0).all()
        assert len(test) >= 1
        assert set(labels[test]) <= set(labels[train])
        size = len(train) + len(test)
        kept = len(np.unique(labels[train]))
        assert len(test) == min(max(1, int(fraction * size + 0.5)), size - kept)
        whole = np.bincount(labels[np.concatenate([train, test])])
        part = np.bincount(labels[test], minlength=len(whole))
        most = np.maximum(whole - 1, 0)
        assert (part >= np.minimum(np.floor(fraction * whole), most)).all()


@st.composite
def requests(draw, schemes=FIXED_SETS):
    """Labels and options of any kind, feasible or not."""
    classes = draw(st.integers(1, 7))
    totals = draw(st.lists(st.integers(0, 60), min_size=classes, max_size=classes))
    assume(sum(totals) > 0)
    clients = draw(st.integers(1, 12))
    scheme = draw(st.sampled_from(schemes))
    low = draw(st.integers(1, 30))
    options = {
        "clients": clients,
        "scheme": scheme,
        "classes": classes,
        "seed": draw(st.integers(0, 5)),
        "min_samples": low,
        "max_samples": draw(st.one_of(st.none(), st.integers(low, 80))),
        "test_fraction": draw(st.sampled_from([0.1, 0.25, 0.5, 0.9])),
    }
    if scheme in (*FIXED_SETS, "iid"):
        options["size_sigma"] = draw(st.sampled_from([0.0, 0.8, 3.0]))
    if scheme in ("cyclic", "random"):
        options["classes_per_client"] = draw(st.integers(1, classes))
    if scheme == "contexts":
        groups = st.lists(st.integers(0, classes - 1), min_size=1, max_size=classes, unique=True)
        options["groups"] = draw(
            st.one_of(st.integers(1, min(classes, clients)), st.lists(groups, min_size=1, max_size=clients))
        )
    if scheme == "dirichlet":
        options["concentration"] = draw(st.sampled_from([0.001, 0.1, 1.0, 1e6]))
    if scheme == "shards":
        options["shards_per_client"] = draw(st.integers(1, 4))
    return labels_of(totals, seed=1), options


def class_sets(options: dict) -> np.ndarray | None:
    """The class sets that a deterministic scheme promises, written down from its definition."""
    clients, classes = options["clients"], options["classes"]
    sets = np.zeros((clients, classes), dtype=bool)
    for u in range(clients):
        if options["scheme"] == "cyclic":
            held = [(u + step) % classes for step in range(options["classes_per_client"])]
        elif options["scheme"] == "contexts":
            groups = options["groups"]
            if isinstance(groups, int):
                groups = [list(part) for part in np.array_split(np.arange(classes), groups)]
            held = groups[u % len(groups)]
        else:
            return None
        sets[u, held] = True
    return sets


def most_samples(sets: np.ndarray, totals: np.ndarray, low: np.ndarray, high: np.ndarray) -> float | None:
    """The most samples that can be dealt, by linear programming; None if the request cannot be met.

    Transport problems have whole solutions, so this is exact.
    """
    cells = np.argwhere(sets)
    rows = (cells[:, 0] == np.arange(len(sets))[:, None]).astype(float)
    columns = (cells[:, 1] == np.arange(len(totals))[:, None]).astype(float)
    solution = linprog(
        -np.ones(len(cells)),
        A_ub=np.vstack([columns, rows, -rows]),
        b_ub=np.concatenate([totals, high, -low]),
        bounds=(1, None),
    )
    return None if solution.status == 2 else -solution.fun


@settings(deadline=None, max_examples=150)
@given(requests())
def test_fixed_sets_are_met_exactly_or_refused(request_):
    labels, options = request_
    classes = options["classes"]
    totals = np.bincount(labels, minlength=classes)
    sets = class_sets(options)
    try:
        partition = pt.make_partition(labels, **options)
    except UserError:
        if sets is not None:
            low = np.maximum(options["min_samples"], sets.sum(axis=1) + 1)
            high = np.full(len(sets), options["max_samples"] or len(labels))
            assert (low > high).any() or most_samples(sets, totals, low, high) is None
        return
    check_common(partition, labels, options["test_fraction"])
    counts = table(partition, labels, classes)
    sizes = counts.sum(axis=1)
    high = options["max_samples"] or len(labels)
    assert (sizes >= options["min_samples"]).all()
    assert (sizes <= high).all()
    if sets is None:
        sets = counts > 0
        assert (sets.sum(axis=1) == options["classes_per_client"]).all()
        assert sets.any(axis=0).all()
    assert ((counts > 0) == sets).all()
    low = np.maximum(options["min_samples"], sets.sum(axis=1) + 1)
    assert counts.sum() == pytest.approx(most_samples(sets, totals, low, np.full(len(sets), high)))
    assert same(partition, pt.make_partition(labels, **options))


@settings(deadline=None, max_examples=150)
@given(requests(schemes=("dirichlet", "iid", "shards")))
def test_other_schemes_keep_bounds_or_refuse(request_):
    labels, options = request_
    try:
        partition = pt.make_partition(labels, **options)
    except UserError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "samples" in refused  # nothing but a want of samples is a reason
        return
    check_common(partition, labels, options["test_fraction"])
    sizes = table(partition, labels, options["classes"]).sum(axis=1)
    assert (sizes >= options["min_samples"]).all()
    assert (sizes <= (options["max_samples"] or len(labels))).all()
    if options["max_samples"] is None:
        assert sizes.sum() == len(labels)
    assert partition.contexts is None
    assert same(partition, pt.make_partition(labels, **options))


def test_sizes_follow_the_lognormal_draws_and_use_the_whole_pool():
    labels = labels_of([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])  # MNIST's
    partition = pt.make_partition(labels, clients=40, min_samples=400, max_samples=5000, seed=0)
    counts = table(partition, labels, 10)
    assert counts.sum(axis=0).tolist() == np.bincount(labels).tolist()
    raw = np.random.default_rng((0, 0)).lognormal(0, 0.8, 40)
    sizes = counts.sum(axis=1)
    assert sizes.sum() == 60000
    inside = (sizes > 400) & (sizes < 5000)
    ratio = sizes[inside] / raw[inside]
    np.testing.assert_allclose(ratio, ratio.mean(), rtol=0.01)
    assert partition.contexts.tolist() == [u % 10 for u in range(40)]


def test_counts_are_the_proportional_fit():
    """Iterative proportional fitting keeps odds ratios: two clients with the same two classes split them alike."""
    sets = np.ones((2, 2), dtype=bool)
    counts = pt.fit_counts(sets, np.array([3000, 1000]), np.array([3.0, 1.0]), np.array([2, 2]), np.array([4000, 4000]))
    np.testing.assert_allclose(counts, [[2250, 750], [750, 250]], atol=2)


def test_scale_sizes_by_hand():
    sizes = pt.scale_sizes(np.array([1.0, 2.0, 10.0]), np.array([4, 0, 0]), np.array([9, 9, 12]), 20)
    assert sizes.tolist() == [4, 4, 12]
    assert pt.scale_sizes(np.ones(3), np.zeros(3, int), np.full(3, 9), 8).tolist() == [3, 3, 2]


def test_cyclic_contexts_share_their_classes():
    labels = labels_of([40] * 5)
    partition = pt.make_partition(labels, clients=10, classes_per_client=2)
    assert partition.contexts.tolist() == [0, 1, 2, 3, 4] * 2
    assert [sorted(set(labels[i])) for i in members(partition)][3:5] == [[3, 4], [0, 4]]
    one = pt.make_partition(labels, clients=10, classes_per_client=5)
    assert one.contexts.tolist() == [0] * 10


def test_random_contexts_are_the_shared_class_sets():
    labels = labels_of([60] * 3)
    partition = pt.make_partition(labels, clients=9, scheme="random", classes_per_client=2, seed=3)
    sets = [tuple(sorted(set(labels[i]))) for i in members(partition)]
    for a in range(9):
        for b in range(9):
            assert (partition.contexts[a] == partition.contexts[b]) == (sets[a] == sets[b])


def test_random_sets_cover_even_when_chance_would_not():
    sets = pt._random_sets(np.random.default_rng(0), 20, 40, 2)
    assert (sets.sum(axis=0) == 1).all()
    assert (sets.sum(axis=1) == 2).all()


def test_contexts_in_number_and_as_lists():
    labels = labels_of([50] * 6)
    partition = pt.make_partition(labels, clients=4, scheme="contexts", groups=2)
    assert partition.contexts.tolist() == [0, 1, 0, 1]
    assert [sorted(set(labels[i])) for i in members(partition)] == [[0, 1, 2], [3, 4, 5]] * 2
    partition = pt.make_partition(labels, clients=3, scheme="contexts", groups=[[0, 1], [1, 5]])
    assert [sorted(set(labels[i])) for i in members(partition)] == [[0, 1], [1, 5], [0, 1]]


def test_unbalanced_groups_supply_what_they_have():
    """Sizes give way where one group's classes are scarce: everything is dealt all the same."""
    labels = labels_of([10, 10, 400, 400])
    partition = pt.make_partition(
        labels, clients=6, scheme="contexts", groups=[[0, 1], [2, 3]], size_sigma=0.5, min_samples=4
    )
    sizes = table(partition, labels, 4).sum(axis=1)
    assert sizes[::2].sum() == 20
    assert sizes[1::2].sum() == 800
    assert sizes[1::2].max() < 600  # no client got all of what was left over


def test_dirichlet_without_bounds_in_the_way_is_its_definition():
    totals = np.array([1000, 500, 700])
    labels = labels_of(totals.tolist())
    partition = pt.make_partition(labels, clients=4, scheme="dirichlet", concentration=5.0, seed=2)
    shares = np.random.default_rng((2, 1)).dirichlet(np.full(4, 5.0), size=3)
    expected = shares * totals[:, None]
    assert np.abs(table(partition, labels, 3).T - expected).max() <= 1


@pytest.mark.parametrize("concentration", [0.1, 0.5, 5.0])
def test_dirichlet_shares_have_the_moments_of_the_distribution(concentration):
    """A share has mean 1/N and variance (N-1) / (N^2 (N*concentration + 1))."""
    classes, each, n = 400, 200, 5
    labels = np.repeat(np.arange(classes), each)
    partition = pt.make_partition(labels, clients=n, scheme="dirichlet", concentration=concentration)
    shares = table(partition, labels, classes) / each
    np.testing.assert_allclose(shares.sum(axis=0), 1)
    np.testing.assert_allclose(shares.mean(axis=1), 1 / n, atol=0.06)
    assert shares.var() == pytest.approx((n - 1) / (n**2 * (n * concentration + 1)), rel=0.1)


def test_dirichlet_changes_no_sizes_but_those_below_the_minimum_and_above_the_mean():
    labels = labels_of([400] * 6)
    sizes = {}
    for least in (12, 40):
        options = {"clients": 24, "scheme": "dirichlet", "concentration": 0.2, "min_samples": least, "seed": 1}
        sizes[least] = table(pt.make_partition(labels, **options), labels, 6).sum(axis=1)
    before, after = sizes[12], sizes[40]
    small, between, large = before < 40, (before >= 40) & (before <= 100), before > 100
    assert small.any()
    assert (after[small] == 40).all()
    assert (after[between] == before[between]).all()
    assert ((after[large] >= 100) & (after[large] <= before[large])).all()


@pytest.mark.parametrize("seed", range(5))
def test_dirichlet_ends_where_drawing_anew_would_not(seed):
    """100 clients of 12 samples each out of 1200, nearly every class drawn to one client."""
    labels = labels_of([120] * 10)
    partition = pt.make_partition(
        labels, clients=100, scheme="dirichlet", concentration=0.001, min_samples=12, seed=seed
    )
    assert (table(partition, labels, 10).sum(axis=1) == 12).all()


def test_dirichlet_concentration_sets_the_skew():
    labels = labels_of([600] * 10)
    held = {}
    for concentration in (0.01, 1e6):
        partition = pt.make_partition(labels, clients=20, scheme="dirichlet", concentration=concentration)
        counts = table(partition, labels, 10)
        assert counts.sum() == 6000
        assert counts.sum(axis=1).min() >= 10
        held[concentration] = (counts > 0).sum(axis=1).mean()
    assert held[0.01] < 3
    assert held[1e6] == 10


def test_dirichlet_meets_a_minimum_that_chance_never_would():
    labels = labels_of([30, 30])
    partition = pt.make_partition(
        labels, clients=20, scheme="dirichlet", concentration=0.01, min_samples=3, max_samples=3
    )
    assert table(partition, labels, 2).sum(axis=1).tolist() == [3] * 20


def test_shards_are_runs_of_the_sorted_pool():
    labels = labels_of([60] * 10)
    partition = pt.make_partition(labels, clients=15, scheme="shards", shards_per_client=2)
    counts = table(partition, labels, 10)
    assert (counts.sum(axis=1) == 40).all()
    assert counts.sum() == 600
    assert np.isin(counts, [0, 20, 40]).all()  # 30 shards of 20: three to a class


def test_shards_of_one_class_give_a_client_that_many_classes():
    labels = labels_of([20] * 30)
    partition = pt.make_partition(labels, clients=15, scheme="shards", shards_per_client=2)
    counts = table(partition, labels, 30)
    assert ((counts == 20).sum(axis=1) == 2).all()
    assert ((counts == 20).sum(axis=0) == 1).all()
    other = pt.make_partition(labels, clients=15, scheme="shards", shards_per_client=2, seed=1)
    assert not (counts == table(other, labels, 30)).all()


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=6), st.integers(1, 8), st.integers(0, 3), st.integers(0, 2**20)
)
def test_a_shard_is_a_run_of_the_pool_sorted_by_label(totals, clients, seed, order):
    labels = labels_of(totals, seed=order)
    runs = np.array_split(np.sort(labels), clients)
    assume(all(np.bincount(run).max(initial=0) > 1 for run in runs))  # each can be tested
    options = {"clients": clients, "scheme": "shards", "shards_per_client": 1, "min_samples": 1, "seed": seed}
    counts = table(pt.make_partition(labels, **options), labels, len(totals))
    assert sorted(counts.tolist()) == sorted(np.bincount(run, minlength=len(totals)).tolist() for run in runs)


def test_the_pathological_split_of_mnist():
    """McMahan et al. 2017: 60,000 images, 200 shards of 300, two for each of 100 clients, most of two digits."""
    labels = labels_of([5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])
    partition = pt.make_partition(labels, clients=100, scheme="shards", shards_per_client=2)
    counts = table(partition, labels, 10)
    assert (counts.sum(axis=1) == 600).all()
    held = (counts > 0).sum(axis=1)
    assert held.max() <= 4
    assert np.median(held) == 2


def test_iid_mixes_all_classes():
    labels = labels_of([500] * 4)
    partition = pt.make_partition(labels, clients=4, scheme="iid", size_sigma=0.0)
    counts = table(partition, labels, 4)
    assert (counts.sum(axis=1) == 500).all()
    assert counts.min() > 75


def test_given_split_is_kept():
    labels = np.array([0, 0, 0, 1, 1, 1, 0, 1] * 3)
    client = np.array([0, 1, 2] * 8)
    partition = pt.make_partition(labels, scheme="given", client=client)
    for u, held in enumerate(members(partition)):
        assert sorted(held) == np.flatnonzero(client == u).tolist()
    assert partition.scheme == "given"
    check_common(partition, labels, 0.25)


def test_a_dataset_with_clients_keeps_them_and_another_is_dealt():
    """The shape of LEAF's FEMNIST: writers by name, 62 classes, unequal numbers of samples."""
    rng = np.random.default_rng(0)
    writer = np.repeat([f"f{u:04d}" for u in range(7)], rng.integers(130, 200, 7))
    y = np.arange(len(writer)) % 62
    x = rng.random((len(y), 4, 4), dtype=np.float32)
    options = {"seed": 3, "clients": 40, "test_fraction": 0.2, "scheme": "cyclic", "classes_per_client": 2}
    found = pt.of_dataset(datasets.make_dataset("femnist", x, y, client=writer), **options)
    assert found.scheme == "given"
    assert [sorted(held) for held in members(found)] == [
        np.flatnonzero(writer == name).tolist() for name in np.unique(writer)
    ]
    check_common(found, y, 0.2)
    fewer = pt.of_dataset(datasets.make_dataset("femnist", x, y, client=writer), **options, train_share=0.5)
    assert same(fewer, pt.subsample_train(found, y, 0.5, seed=3))
    dealt = pt.of_dataset(datasets.make_dataset("mine", x, y), **{**options, "clients": 9})
    assert (dealt.scheme, dealt.clients) == ("cyclic", 9)


def test_a_given_client_that_cannot_be_tested_is_told():
    with pytest.raises(UserError, match=r"client 1 has 1 samples .* leave this one out"):
        pt.make_partition(np.array([0, 0, 1]), scheme="given", client=np.array([0, 0, 1]))


def test_pool_indices_are_those_of_the_dataset():
    labels = labels_of([20] * 4)
    pool = np.arange(1000, 1080)
    plain = pt.make_partition(labels, clients=4, classes_per_client=2)
    moved = pt.make_partition(labels, pool, clients=4, classes_per_client=2)
    for a, b in zip(members(plain), members(moved), strict=True):
        np.testing.assert_array_equal(a + 1000, b)


def test_seed_changes_the_partition():
    labels = labels_of([50] * 4)
    first, second = (pt.make_partition(labels, clients=8, classes_per_client=2, seed=s) for s in (0, 1))
    assert not same(first, second)


def test_unused_samples_and_classes_are_told(caplog):
    labels = labels_of([30] * 6)
    with caplog.at_level("INFO", logger="cgpfl.partition"):
        pt.make_partition(labels, clients=2, classes_per_client=2, max_samples=20)
    assert "classes 3, 4, 5 are held by no client" in caplog.text
    assert "140 of 180 samples of the pool are in no client" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 40, "min_samples": 20}, "40 clients of at least 20 samples ask for 800 samples; 200"),
        ({"clients": 5, "classes_per_client": 11}, "classes_per_client is 11; .* from 1 to 10"),
        ({"clients": 0}, "clients is 0; it must be a whole number of 1 or more"),
        ({"clients": None}, "clients is None"),
        ({"clients": 2.0}, "clients is 2.0"),
        ({"clients": 4, "min_samples": 9, "max_samples": 8}, "max_samples is 8; .* of 9 or more"),
        ({"clients": 4, "max_samples": 3}, "max_samples is 3; a client of 3 classes needs 4 samples or more"),
        ({"clients": 100}, "class 0 has 20 samples in the pool but 30 clients hold it"),
        ({"clients": 3, "scheme": "random"}, "3 clients of 3 classes hold at most 9 classes; .* 10 classes"),
        (
            {"clients": 4, "scheme": "iid", "classes_per_client": 3},
            "'iid' takes no such option; it takes min_",
        ),
        ({"clients": 4, "scheme": "zipf"}, "scheme is 'zipf'; valid are cyclic, random"),
        ({"clients": 4, "scheme": "contexts"}, "groups is missing; scheme 'contexts' needs it"),
        ({"clients": 4, "scheme": "contexts", "groups": 5}, "groups is 5; .* from 1 to 4"),
        ({"clients": 4, "scheme": "contexts", "groups": "a"}, "groups is 'a'; it must be a number of groups"),
        ({"clients": 4, "scheme": "contexts", "groups": [[0, 10]]}, r"groups holds \[0, 10\]; .* 0 to 9"),
        ({"clients": 4, "scheme": "contexts", "groups": [[0, 0]]}, r"groups holds \[0, 0\]"),
        (
            {"clients": 4, "scheme": "contexts", "groups": [[0], list(range(10))], "min_samples": 11},
            "2 clients hold no classes but 0 and ask for at least 22 samples of them; 18 are there",
        ),
        (
            {"clients": 30, "scheme": "dirichlet"},
            "30 clients of at least 10 samples ask for 300 samples; 200",
        ),
        ({"clients": 4, "scheme": "dirichlet", "concentration": 0}, "concentration is 0; .* 0.001 to 1e"),
        ({"clients": 4, "size_sigma": -1}, "size_sigma is -1; .* 0 to 10"),
        ({"clients": 4, "size_sigma": float("nan")}, "size_sigma is nan"),
        ({"clients": 4, "test_fraction": 1}, "test_fraction is 1; it must be above 0 and below 1"),
        ({"clients": 4, "seed": -1}, "seed is -1"),
        ({"clients": 150, "scheme": "shards"}, "150 clients of 2 shards need 300 samples or more; .* 200"),
        (
            {"clients": 50, "scheme": "shards", "min_samples": 40},
            "shards give every client 4 to 4 samples; .* 40 to 200",
        ),
        ({"clients": 100, "scheme": "iid", "size_sigma": 0.0}, "no two of one class"),
        ({"scheme": "given", "client": [0, 1]}, r"client has shape \(2,\)"),
        ({"scheme": "given", "client": [1] * 200}, "1 different numbers from 1 to 1; .* 0 to N-1"),
        ({"scheme": "given", "client": [0, 1] * 100, "clients": 3}, "clients is 3 but .* 2 clients"),
        ({"clients": 4, "classes": 9}, "labels run from 0 to 9; valid are 0 to 8"),
        ({"clients": 4, "pool_indices": [1, 2]}, r"pool_indices have shape \(2,\)"),
    ],
)
def test_what_cannot_be_is_refused_with_its_numbers(options, message):
    with pytest.raises(UserError, match=message):
        pt.make_partition(labels_of([20] * 10), **options)


@pytest.mark.parametrize("labels", [[], [[0, 1]], [0.5, 1.0], ["a"]])
def test_labels_must_be_whole_numbers(labels):
    with pytest.raises(UserError, match="non-empty one-dimensional array of integers"):
        pt.make_partition(labels, clients=1)


def test_options_are_those_the_scheme_takes():
    assert set(pt.schemes()) >= {"cyclic", "random", "contexts", "dirichlet", "iid", "shards", "given"}
    assert pt.options("dirichlet") == {"concentration": 0.5, "min_samples": 10, "max_samples": None}


def test_options_can_be_checked_before_labels_are_known():
    pt.check("cyclic", 40, classes_per_client=3, min_samples=400, max_samples=5000)
    with pytest.raises(UserError, match=r"classes_per_client is 11; .* from 1 to 10"):
        pt.check("cyclic", 40, 10, classes_per_client=11)
    with pytest.raises(UserError, match="'shards' takes no such option"):
        pt.check("shards", 40, size_sigma=0.8)
    with pytest.raises(UserError, match="clients is 0"):
        pt.check("iid", 0)


@pytest.mark.parametrize("scheme", pt.schemes())
def test_schemes_say_whether_they_have_contexts(scheme):
    needed = {"contexts": {"groups": 2}, "given": {"client": [0, 1, 2] * 20}}
    partition = pt.make_partition(labels_of([20] * 3), clients=3, scheme=scheme, **needed.get(scheme, {}))
    assert (partition.contexts is not None) == pt.has_contexts(scheme)


def test_subsample_is_stratified_nested_and_keeps_the_test_sets():
    labels = labels_of([200] * 4)
    partition = pt.make_partition(labels, clients=6, classes_per_client=2, seed=1)
    larger, smaller = (pt.subsample_train(partition, labels, f, seed=4) for f in (0.5, 0.1))
    for u in range(6):
        whole, half, tenth = (p.train[u] for p in (partition, larger, smaller))
        assert set(tenth) <= set(half) <= set(whole)
        counts = np.bincount(labels[whole], minlength=4)
        assert np.bincount(labels[half], minlength=4).tolist() == np.floor(0.5 * counts + 0.5).tolist()
        np.testing.assert_array_equal(smaller.test[u], partition.test[u])
    assert same(pt.subsample_train(partition, labels, 1.0), partition)
    least = pt.subsample_train(partition, labels, 1e-9)
    assert [len(i) for i in least.train] == [2] * 6
    assert least.contexts is partition.contexts


def test_validation_comes_out_of_the_training_part():
    labels = labels_of([200] * 4)
    partition = pt.make_partition(labels, clients=6, classes_per_client=2, seed=1)
    cut = pt.split_validation(partition, labels, 0.2, seed=0)
    check_common(cut, labels, 0.2)
    for u in range(6):
        np.testing.assert_array_equal(np.union1d(cut.train[u], cut.test[u]), partition.train[u])
    assert not same(cut, pt.split_validation(partition, labels, 0.2, seed=1))


def test_fractions_are_checked():
    labels = labels_of([200] * 4)
    partition = pt.make_partition(labels, clients=6, classes_per_client=2)
    with pytest.raises(UserError, match=r"fraction is 0; it must be above 0 and at most 1"):
        pt.subsample_train(partition, labels, 0)
    with pytest.raises(UserError, match=r"fraction is 1\.0; it must be above 0 and below 1"):
        pt.split_validation(partition, labels, 1.0)
    tiny = pt.subsample_train(partition, labels, 1e-9)
    with pytest.raises(UserError, match="client 0's training part has 2 samples of 2 classes"):
        pt.split_validation(tiny, labels, 0.2)


def test_statistics_has_a_row_a_client_and_class():
    labels = labels_of([30] * 3)
    partition = pt.make_partition(labels, clients=3, classes_per_client=2)
    frame = pt.statistics(partition, labels, ("a", "b", "c"))
    assert list(frame.columns) == ["client", "context", "class", "train", "test"]
    assert frame["client"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert frame["class"].tolist() == ["a", "b", "c"] * 3
    assert frame["context"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert (frame["train"] + frame["test"]).sum() == 90
    row = frame[(frame["client"] == 1) & (frame["class"] == "c")].iloc[0]
    assert row["train"] == (labels[partition.train[1]] == 2).sum()
    assert frame[(frame["client"] == 0) & (frame["class"] == "c")]["test"].item() == 0
    free = pt.statistics(pt.make_partition(labels, clients=3, scheme="iid"), labels, ("a", "b", "c"))
    assert free["context"].isna().all()


def test_save_and_load(tmp_path: Path):
    labels = labels_of([30] * 3)
    for options in ({"classes_per_client": 2}, {"scheme": "iid"}):
        partition = pt.make_partition(labels, clients=3, seed=7, **options)
        path = tmp_path / "deep" / "seed7.npz"
        pt.save(partition, path)
        back = pt.load(path)
        assert same(back, partition)
        assert (back.seed, back.scheme, back.clients) == (7, partition.scheme, 3)
        assert [p.name for p in path.parent.iterdir()] == ["seed7.npz"]
    first = path.read_bytes()
    pt.save(back, path)
    assert path.read_bytes() == first


def test_load_refuses_other_files(tmp_path: Path):
    with pytest.raises(UserError, match="cannot be read as a partition"):
        pt.load(tmp_path / "none.npz")
    (tmp_path / "bad.npz").write_bytes(b"<html>")
    with pytest.raises(UserError, match=r"bad\.npz cannot be read as a partition"):
        pt.load(tmp_path / "bad.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(UserError, match=r"other\.npz cannot be read as a partition"):
        pt.load(tmp_path / "other.npz")


def test_digest_depends_on_contents_only():
    labels = labels_of([30] * 3)
    partition = pt.make_partition(labels, clients=3, classes_per_client=2)
    assert same(partition, pt.Partition(partition.train, partition.test, partition.contexts, 9, "given"))
    assert not same(partition, pt.Partition(partition.train, partition.test, None, 0, "cyclic"))
    assert not same(partition, pt.Partition(partition.test, partition.train, partition.contexts, 0, "cyclic"))
    assert len(pt.digest(partition)) == 64
