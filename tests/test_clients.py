"""Clients' data, and the streams their minibatches come from."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from cgpfl import ClientData, UserError
from cgpfl.clients import (
    ADAPTATION,
    COINS,
    KMEANS,
    PARTICIPATION,
    TRAIN_LOSS,
    TRAINING,
    Ragged,
    Streams,
    host_generator,
    permuted,
    stream_keys,
)

PURPOSES = (TRAINING, ADAPTATION, TRAIN_LOSS, PARTICIPATION, COINS, KMEANS)
SEED = np.uint64(20240611)


def keys_of(number: int) -> np.ndarray:
    return stream_keys(np.arange(number), np.zeros(number), TRAINING)


def permutation(n: int, key: np.uint64) -> list[int]:
    return permuted(np.arange(n), np.full(n, n), np.full(n, key)).tolist()


# --- permutations ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 700), key=st.integers(0, 2**64 - 1))
def test_permuted_is_a_bijection(n, key):
    assert sorted(permutation(n, np.uint64(key))) == list(range(n))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 64, 65, 4096, 4097, 60_000])
def test_permuted_is_a_bijection_around_powers_of_two(n):
    assert sorted(permutation(n, SEED)) == list(range(n))


def test_permuted_works_elementwise_on_lists_of_any_lengths():
    n = np.array([1, 7, 64, 100])[:, None]
    place = np.arange(100)[None] % n
    together = permuted(place, n, keys_of(4)[:, None])
    for row, (length, key) in enumerate(zip(n[:, 0], keys_of(4), strict=True)):
        assert together[row, :length].tolist() == permutation(length, key)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_permutations_are_about_equally_frequent(n):
    """Within a third; of so few bits a keyed bijection is not uniform, while places and pairs are (below)."""
    draws = 120_000
    place, length = np.tile(np.arange(n), (draws, 1)), np.full((draws, n), n)
    drawn = Counter(map(tuple, permuted(place, length, keys_of(draws)[:, None]).tolist()))
    counts = [drawn[order] for order in permutations(range(n))]
    assert sum(counts) == draws
    np.testing.assert_allclose(counts, draws / len(counts), rtol=1 / 3)


@pytest.mark.parametrize("n", [10, 33, 100])
def test_where_two_neighbours_go_is_about_uniform(n):
    draws = 40 * n * n
    place, length = np.tile([0, 1], (draws, 1)), np.full((draws, 2), n)
    went = permuted(place, length, keys_of(draws)[:, None]).astype(int)
    pairs = np.bincount(went[:, 0] * n + went[:, 1], minlength=n * n).reshape(n, n)
    assert (np.diag(pairs) == 0).all()
    assert chisquare(pairs[~np.eye(n, dtype=bool)]).pvalue > 1e-3


def test_keys_differ_by_seed_client_and_purpose():
    seeds, clients = (grid.ravel() for grid in np.meshgrid(np.arange(40), np.arange(100)))
    keys = np.concatenate([stream_keys(seeds, clients, purpose) for purpose in PURPOSES])
    assert len(np.unique(keys)) == len(keys)


def test_a_key_can_be_asked_for_one_client():
    assert stream_keys(3, 5, TRAINING) == stream_keys(np.array([3]), np.array([5]), TRAINING)[0]
    assert stream_keys(3, np.arange(6), TRAINING)[5] == stream_keys(3, 5, TRAINING)


def test_host_generators_are_functions_of_their_arguments():
    draws = [host_generator(seed, purpose, t).random() for seed in (0, 1) for purpose in PURPOSES for t in (1, 2)]
    assert len(set(draws)) == len(draws)
    assert host_generator(4, COINS, 2).random() == host_generator(4, COINS, 2).random()


# --- streams --------------------------------------------------------------------------------------------------------


def minibatches(lists: Ragged, clients: list[int], first: int, steps: int, batch: int, seed: int = 0, purpose=TRAINING):
    """[client][step] positions, and [client] their weights."""
    rows = torch.tensor(clients)
    width = int(lists.counts[rows].clamp(max=batch).max())
    keys = stream_keys(np.full(len(clients), seed), np.array(clients), purpose)
    streams = Streams.sampled(lists, rows, keys, first, steps, batch, width)
    real = streams.weight.flatten(1) > 0
    batches = [[streams.index[row, step][real[row]].tolist() for step in range(steps)] for row in range(len(clients))]
    return batches, [streams.weight[row].flatten()[real[row]] for row in range(len(clients))]


def lists_of(counts: list[int]) -> Ragged:
    """Lists of positions that do not overlap and are in no order."""
    positions = np.random.default_rng(0).permutation(sum(counts))
    return Ragged.of(np.split(positions, np.cumsum(counts)[:-1]))


def own(lists: Ragged, client: int) -> list[int]:
    start, count = int(lists.offsets[client]), int(lists.counts[client])
    return lists.values[start : start + count].tolist()


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(1, 40), min_size=1, max_size=6), batch=st.integers(1, 50), seed=st.integers(0, 99))
def test_every_pass_is_a_permutation_of_the_clients_samples(counts, batch, seed):
    lists, clients = lists_of(counts), list(range(len(counts)))
    batches, weights = minibatches(lists, clients, 0, 9, batch, seed)
    for client, n in enumerate(counts):
        size = min(n, batch)
        assert all(len(one) == size for one in batches[client])
        assert weights[client].dtype == torch.float64
        assert weights[client].tolist() == [1 / size] * size
        sequence = [position for one in batches[client] for position in one]
        for start in range(0, len(sequence), n):
            part = sequence[start : start + n]
            assert len(set(part)) == len(part)
            assert set(part) <= set(own(lists, client))
            if len(part) == n:
                assert sorted(part) == sorted(own(lists, client))


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(1, 30), min_size=2, max_size=5), batch=st.integers(1, 20), first=st.integers(0, 10**6)
)
def test_a_minibatch_is_a_function_of_seed_client_and_step(counts, batch, first):
    lists, clients = lists_of(counts), list(range(len(counts)))
    together, _ = minibatches(lists, clients, first, 6, batch)
    backwards, _ = minibatches(lists, clients[::-1], first, 6, batch)
    assert backwards == together[::-1]
    for client in clients:
        alone, _ = minibatches(lists, [client], first + 4, 2, batch)
        assert alone[0] == together[client][4:]


def test_a_batch_straddles_two_passes():
    lists = lists_of([5])
    (batches,), _ = minibatches(lists, [0], 0, 5, 3)
    sequence = [position for one in batches for position in one]
    assert [sorted(sequence[start : start + 5]) for start in (0, 5, 10)] == [sorted(own(lists, 0))] * 3


def test_passes_seeds_clients_and_purposes_are_shuffled_differently():
    lists = Ragged.of([range(30)] * 3)
    orders = []
    for seed in (0, 1):
        for purpose in (TRAINING, ADAPTATION):
            batches, _ = minibatches(lists, [0, 1, 2], 0, 4, 30, seed, purpose)
            orders += [tuple(order) for client in batches for order in client]
    assert len(set(orders)) == len(orders) == 48


def test_padding_of_a_small_client_weighs_nothing():
    lists = lists_of([3, 20])
    streams = Streams.sampled(lists, torch.tensor([0, 1]), keys_of(2), 0, 2, 8, 8)
    assert streams.index.shape == (2, 2, 8)
    assert streams.weight.flatten(1).tolist() == [[1 / 3] * 3 + [0] * 5, [1 / 8] * 8]
    assert set(streams.index[0].flatten().tolist()) == set(own(lists, 0))


def test_minibatches_can_be_padded_more():
    lists = lists_of([3, 20])
    narrow, wide = (Streams.sampled(lists, torch.tensor([0, 1]), keys_of(2), 0, 2, 8, width) for width in (8, 11))
    assert torch.equal(narrow.index, wide.index[..., :8])
    assert torch.equal(narrow.weight, wide.weight[..., :8])
    assert wide.weight[..., 8:].eq(0).all()


def test_full_batches_are_all_samples_in_one_step():
    lists = lists_of([3, 7, 1])
    streams = Streams.full(lists, torch.tensor([2, 0, 1]), 9)
    assert streams.index.shape == (3, 1, 9)
    for row, client in enumerate([2, 0, 1]):
        real = streams.weight[row].flatten() > 0
        assert streams.index[row, 0][real].tolist() == own(lists, client)
        assert streams.weight[row].flatten()[real].tolist() == [1 / len(own(lists, client))] * int(real.sum())


# --- ragged lists ---------------------------------------------------------------------------------------------------


def test_ragged_lists_are_end_to_end():
    lists = Ragged.of([[4, 2], [7], [1, 3, 5]])
    assert lists.values.tolist() == [4, 2, 7, 1, 3, 5]
    assert lists.counts.tolist() == [2, 1, 3]
    assert lists.offsets.tolist() == [0, 2, 3]


def test_ragged_padding_repeats_values_of_the_list():
    values, real = Ragged.of([[4, 2], [7], [1, 3, 5]]).padded(torch.tensor([1, 0]), 3)
    assert values.tolist() == [[7, 7, 7], [4, 2, 4]]
    assert real.tolist() == [[True, False, False], [True, True, False]]


def test_no_lists():
    assert Ragged.of([]).values.dtype == torch.int64


# --- clients --------------------------------------------------------------------------------------------------------


def arrays(n: int = 4, shape: tuple[int, ...] = (2,), label: int = 1):
    x = np.arange(n * np.prod(shape), dtype=np.float64).reshape(n, *shape)
    return x, np.array([label] + [0] * (n - 1)), x[:2] + 0.5, np.array([0, label])


def test_from_arrays_keeps_every_sample_with_its_client():
    first, second = arrays(4, (2, 3)), arrays(5, (2, 3), label=2)
    data = ClientData.from_arrays([first, second], contexts=[1, 0])
    assert (data.clients, data.input_shape, data.classes) == (2, (2, 3), 3)
    assert data.contexts.tolist() == [1, 0]
    for client, (x_train, y_train, x_test, y_test) in enumerate((first, second)):
        for lists, x, y in ((data.train, x_train, y_train), (data.test, x_test, y_test)):
            positions = own(lists, client)
            np.testing.assert_array_equal(data.x[positions], x)
            np.testing.assert_array_equal(data.y[positions], y)


def test_from_arrays_takes_torch_and_numpy_and_makes_integers_floats():
    x, y, x_test, y_test = arrays()
    given = (torch.tensor(x), torch.tensor(y, dtype=torch.uint8), x_test, y_test.astype(np.float32))
    data = ClientData.from_arrays([given, (x.astype(np.uint8), y, x_test, y_test)])
    assert data.x.dtype == torch.float64
    assert data.y.dtype == torch.int64
    whole = ClientData.from_arrays([(x.astype(np.uint8), y, x_test.astype(np.uint8), y_test)])
    assert whole.x.dtype == torch.float32


def test_one_class_still_has_two_outputs():
    assert ClientData.from_arrays([arrays(label=0)]).classes == 2


def test_classes_can_be_more_than_there_are_labels():
    assert ClientData.from_arrays([arrays()], classes=10).classes == 10


def test_from_pool_is_from_arrays():
    pair = [arrays(4), arrays(6)]
    ours = ClientData.from_arrays(pair)
    x = np.concatenate([ours.x[own(ours.train, 0)], ours.x[own(ours.test, 0)], pair[1][0], pair[1][2]])
    y = np.concatenate([pair[0][1], pair[0][3], pair[1][1], pair[1][3]])
    other = ClientData.from_pool(x, y, [range(4), range(6, 12)], [[4, 5], [12, 13]])
    for lists, others in ((ours.train, other.train), (ours.test, other.test)):
        for client in range(2):
            assert torch.equal(ours.x[own(lists, client)], other.x[own(others, client)])
            assert torch.equal(ours.y[own(lists, client)], other.y[own(others, client)])


X, Y = np.zeros((6, 2)), np.array([0, 1, 0, 1, 0, 1])
GOOD = (X[:4], Y[:4], X[4:], Y[4:])
BAD_ARRAYS = {
    "no client": ([], "clients"),
    "three arrays": ([GOOD, GOOD[:3]], "clients[1]"),
    "x and y differ": ([(X[:3], Y[:4], X[4:], Y[4:])], "clients[0]"),
    "y has two dimensions": ([(X[:4], Y[:4, None], X[4:], Y[4:])], "clients[0]"),
    "fractions": ([GOOD, (X[:4], Y[:4] + 0.5, X[4:], Y[4:])], "clients[1]"),
    "missing labels": ([(X[:4], np.full(4, np.nan), X[4:], Y[4:])], "clients[0]"),
    "other shapes": ([GOOD, (X[:4, :1], Y[:4], X[4:, :1], Y[4:])], "clients"),
    "no training samples": ([(X[:0], Y[:0], X[4:], Y[4:])], "clients[0]"),
    "no test samples": ([GOOD, (X[:4], Y[:4], X[:0], Y[:0])], "clients[1]"),
    "negative labels": ([(X[:4], Y[:4] - 1, X[4:], Y[4:])], "clients"),
}
BAD_POOLS = {
    "other numbers of lists": ({"train": [[0]], "test": [[1], [2]]}, "clients"),
    "no lists": ({"train": [], "test": []}, "clients"),
    "empty list": ({"train": [[0], []], "test": [[1], [2]]}, "clients[1]"),
    "position too large": ({"train": [[0]], "test": [[6]]}, "clients"),
    "position negative": ({"train": [[-1]], "test": [[1]]}, "clients"),
    "label too large": ({"train": [[0]], "test": [[1]], "classes": 1}, "clients"),
    "contexts of other length": ({"train": [[0]], "test": [[1]], "contexts": [0, 1]}, "contexts"),
    "contexts negative": ({"train": [[0]], "test": [[1]], "contexts": [-1]}, "contexts"),
}


def assert_one_sentence(error: Exception, key: str) -> None:
    text = str(error)
    assert text.startswith(key)
    assert "\n" not in text
    assert not text.endswith(".")


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays_that_do_not_fit_are_an_error_that_names_the_client(case):
    given, key = BAD_ARRAYS[case]
    with pytest.raises(UserError) as raised:
        ClientData.from_arrays(given)
    assert_one_sentence(raised.value, key)


@pytest.mark.parametrize("case", BAD_POOLS)
def test_pools_that_do_not_fit_are_an_error_that_names_the_key(case):
    given, key = BAD_POOLS[case]
    with pytest.raises(UserError) as raised:
        ClientData.from_pool(X, Y, **given)
    assert_one_sentence(raised.value, key)


# --- stacking -------------------------------------------------------------------------------------------------------


def test_stacked_partitions_keep_their_samples():
    parts = [ClientData.from_arrays([arrays(4 + part), arrays(6)], contexts=[part, 2]) for part in range(3)]
    whole = ClientData.stack(parts)
    assert whole.clients == 6
    assert whole.contexts.tolist() == [0, 2, 1, 2, 2, 2]
    for place, part in enumerate(parts):
        for client in range(2):
            for lists, stacked in ((part.train, whole.train), (part.test, whole.test)):
                positions = own(stacked, 2 * place + client)
                assert torch.equal(whole.x[positions], part.x[own(lists, client)])
                assert torch.equal(whole.y[positions], part.y[own(lists, client)])


def test_partitions_of_one_pool_share_it():
    x, y = torch.zeros(6, 2), torch.tensor(Y)
    parts = [ClientData.from_pool(x, y, [[part]], [[part + 1]]) for part in range(3)]
    whole = ClientData.stack(parts)
    assert whole.x is x
    assert whole.train.values.tolist() == [0, 1, 2]
    assert ClientData.stack(parts[:1]) is parts[0]


def test_contexts_are_lost_where_one_partition_has_none():
    parts = [ClientData.from_arrays([arrays()], contexts=contexts) for contexts in ([0], None)]
    assert ClientData.stack(parts).contexts is None


@pytest.mark.parametrize("other", [[arrays(), arrays()], [arrays(shape=(3,))]])
def test_partitions_of_other_sizes_cannot_be_stacked(other):
    with pytest.raises(UserError) as raised:
        ClientData.stack([ClientData.from_arrays([arrays()]), ClientData.from_arrays(other)])
    assert_one_sentence(raised.value, "clients")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"train": [np.array([True, False, True])]}, "positions"),
        ({"train": [np.array([0.0, 1.5])]}, "positions"),
        ({"y": np.array([0, 1])}, "one label a sample"),
        ({"y": np.array([[0], [1], [0], [1]])}, "one whole number a sample"),
        ({"y": np.array([0.5, 1.5, 0.5, 1.5])}, "fractions"),
        ({"y": np.array(["a", "b", "a", "b"])}, "expected numbers"),
        ({"x": np.array([1.0, 2.0, 3.0, 4.0])}, "has shape"),
        ({"x": np.array([[np.nan], [0.0], [0.0], [0.0]])}, "finite"),
        ({"contexts": [0.5]}, "fractions"),
        ({"contexts": [10**7]}, "contexts"),
        ({"classes": 3.5}, "classes"),
        ({"classes": 10**13}, "classes"),
        ({"train": 5}, "lists"),
        ({"train": [None]}, "positions"),
    ],
)
def test_pools_that_would_be_misread_are_refused(change, named):
    given = {"x": np.ones((4, 1)), "y": np.array([0, 1, 0, 1]), "train": [[0, 1]], "test": [[2, 3]]} | change
    with pytest.raises(UserError, match=named):
        ClientData.from_pool(**given)


def test_views_foreign_byte_orders_and_read_only_arrays_are_taken():
    x = np.arange(8, dtype=">f8").reshape(4, 2)[::-1]
    x.setflags(write=False)
    data = ClientData.from_pool(x, np.array([0, 1, 0, 1], dtype=np.uint32), [[0, 1]], [[2, 3]])
    assert data.x.tolist() == [[6, 7], [4, 5], [2, 3], [0, 1]]


# --- bytes ----------------------------------------------------------------------------------------------------------

BYTES = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
LISTS = {"train": [[0, 1]], "test": [[2, 3]]}
SCALINGS = {
    "one number": (3.0, 0.5),
    "one a feature": (np.array([1.0, 2.0, 3.0]), np.array([0.5, 2.0, 4.0])),
    "one a channel": (np.array([[1.0], [2.0]]), np.array([[0.5], [2.0]])),
}


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_scaled_where_they_are_used(scaling, dtype):
    data = ClientData.from_pool(BYTES, Y[:4], **LISTS, scaling=scaling).to(torch.device("cpu"), dtype)
    assert (data.x.dtype, data.dtype) == (torch.uint8, dtype)
    x, y = data.gathered(torch.tensor([[3, 0], [1, 1]]))
    assert x.dtype == dtype
    np.testing.assert_array_equal(x, ((BYTES - scaling[0]) * scaling[1])[[[3, 0], [1, 1]]])
    np.testing.assert_array_equal(y, Y[[[3, 0], [1, 1]]])


def test_stacked_bytes_stay_bytes_where_they_are_scaled_alike():
    pools = [ClientData.from_pool(BYTES, Y[:4], **LISTS, scaling=(3, factor)) for factor in (1, 2)]
    alike, mixed = ClientData.stack([pools[0], pools[0]]), ClientData.stack(pools)
    assert alike.x is pools[0].x
    assert alike.scaling is pools[0].scaling
    assert mixed.scaling is None
    np.testing.assert_array_equal(mixed.x, np.concatenate([BYTES - 3.0, 2 * (BYTES - 3.0)]))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"x": BYTES.astype(np.float32)}, "x is torch.float32"),
        ({"x": BYTES[:, 0, 0]}, "x is torch.uint8"),
        ({"scaling": (np.zeros(2), 1.0)}, "centre"),
        ({"scaling": (0.0, np.ones((4, 2, 3)))}, "factor"),
        ({"scaling": (0.0, np.inf)}, "finite"),
        ({"scaling": (0.0, 1e38)}, "finite"),
        ({"scaling": (None, 1.0)}, "numbers"),
        ({"scaling": (1j, 1.0)}, "numbers"),
        ({"scaling": ("a", "b")}, "numbers"),
        ({"scaling": (1.0, 2.0, 3.0)}, "pair"),
        ({"scaling": 5}, "pair"),
    ],
)
def test_scalings_that_do_not_fit_are_refused(change, named):
    with pytest.raises(UserError, match=named):
        ClientData.from_pool(**{"x": BYTES, "y": Y[:4], **LISTS, "scaling": (0.0, 1.0)} | change)
