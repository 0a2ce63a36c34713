"""Every partitioner: all rows, once each, the same again for the same generator; then what each of them promises."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from securefed import Dataset
from securefed.datasets import partition
from securefed.errors import ConfigError, DataError


def numbered(rows, classes=4, seed=0):
    """Rows that carry their own number in column 0 and a coarse value in column 1."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.arange(rows), rng.integers(0, 5, rows)])
    return Dataset(x, np.arange(rows) % classes)


def numbers(parts):
    return [part.x[:, 0].astype(int) for part in parts]


def groups_of(data):
    return data.x[:, 0].astype(int) // 2


PARTITIONERS = {
    "iid": partition.iid,
    "sized": lambda data, clients, rng: partition.sized(
        data, partition.apportion(data.rows, np.arange(1, clients + 1)), rng
    ),
    "power_law": partition.power_law,
    "by_label": lambda data, clients, rng: partition.by_label(data, clients),
    "shards": partial(partition.shards, per_client=1),
    "partly_sorted": partial(partition.partly_sorted, share=0.3),
    "dirichlet": partial(partition.dirichlet, alpha=5.0),
    "by_feature": lambda data, clients, rng: partition.by_feature(data, clients, 1),
    "by_group": lambda data, clients, rng: partition.by_group(data, groups_of(data), clients),
}


@pytest.mark.parametrize("name", PARTITIONERS)
@settings(max_examples=25)
@given(rows=st.integers(1, 60), clients=st.integers(1, 12), seed=st.integers(0, 99))
def test_every_row_goes_to_exactly_one_client_with_its_label(name, rows, clients, seed):
    assume(rows >= (3 if name in ("dirichlet", "by_group") else 1) * clients)
    data = numbered(rows)
    parts = PARTITIONERS[name](data, clients, np.random.default_rng(seed))
    assert len(parts) == clients
    assert sorted(np.concatenate(numbers(parts))) == list(range(rows))
    for part in parts:
        assert np.array_equal(part.y, data.y[part.x[:, 0].astype(int)])
    again = PARTITIONERS[name](data, clients, np.random.default_rng(seed))
    assert all(np.array_equal(one.x, two.x) for one, two in zip(parts, again, strict=True))


@pytest.mark.parametrize("name", [name for name in PARTITIONERS if name not in ("by_label", "by_feature", "by_group")])
def test_another_seed_gives_another_split(name):
    one, two = (numbers(PARTITIONERS[name](numbered(60), 5, np.random.default_rng(seed))) for seed in (0, 1))
    assert any(not np.array_equal(first, second) for first, second in zip(one, two, strict=True))


@pytest.mark.parametrize("name", PARTITIONERS)
def test_more_clients_than_rows_are_refused(name):
    with pytest.raises(ConfigError, match=r"rows|groups"):
        PARTITIONERS[name](numbered(3), 4, np.random.default_rng(0))
    with pytest.raises(ConfigError):
        PARTITIONERS[name](numbered(3), 0, np.random.default_rng(0))


@pytest.mark.parametrize("name", ["iid", "by_label", "partly_sorted", "by_feature"])
@given(rows=st.integers(1, 60), clients=st.integers(1, 12))
@settings(max_examples=25)
def test_even_splits_differ_by_one_row_at_most(name, rows, clients):
    assume(rows >= clients)
    sizes = [part.rows for part in PARTITIONERS[name](numbered(rows), clients, np.random.default_rng(0))]
    assert max(sizes) - min(sizes) <= 1


def test_a_split_holds_out_a_share_and_refuses_none():
    rest, held = partition.split(numbered(50), 0.2, np.random.default_rng(0))
    assert (rest.rows, held.rows) == (40, 10)
    assert sorted(np.concatenate(numbers([rest, held]))) == list(range(50))
    with pytest.raises(ConfigError, match="held-out share"):
        partition.split(numbered(50), 1.0, np.random.default_rng(0))


def test_given_sizes_are_kept_and_what_is_left_over_is_unused():
    parts = partition.sized(numbered(20), [3, 1, 7], np.random.default_rng(0))
    assert [part.rows for part in parts] == [3, 1, 7]
    assert len(set(np.concatenate(numbers(parts)))) == 11
    for sizes in ([0, 3], [11, 10], []):
        with pytest.raises(ConfigError, match="at most 20 rows"):
            partition.sized(numbered(20), sizes, np.random.default_rng(0))


def test_one_client_is_small():
    parts = partition.one_small(numbered(23), 4, 2, np.random.default_rng(0))
    assert [part.rows for part in parts] == [2, 7, 7, 7]
    with pytest.raises(ConfigError, match="clients must be an integer of at least 2"):
        partition.one_small(numbered(23), 1, 2, np.random.default_rng(0))


def test_a_power_law_is_one_on_a_logarithmic_scale():
    sizes = np.array([part.rows for part in partition.power_law(numbered(20000), 20, np.random.default_rng(0))])
    slope = np.polyfit(np.log(np.arange(1, 21)), np.log(sizes), 1)[0]
    assert abs(slope + 1) < 0.01  # rounding moves a size of 278 by one row: .4 %
    flat = partition.power_law(numbered(21), 4, np.random.default_rng(0), exponent=0.0)
    assert sorted(part.rows for part in flat) == [5, 5, 5, 6]
    with pytest.raises(ConfigError, match="exponent"):
        partition.power_law(numbered(9), 2, np.random.default_rng(0), exponent=-1)


@given(rows=st.integers(1, 500), weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9))
def test_apportioned_rows_add_up_and_stay_near_their_quota(rows, weights):
    assume(rows >= len(weights))
    sizes = partition.apportion(rows, weights)
    assert sum(sizes) == rows
    assert min(sizes) >= 1
    quota = np.array(weights) / sum(weights) * rows
    if quota.min() >= 1:
        assert np.abs(np.array(sizes) - quota).max() < 1


def test_whole_quotas_are_met_exactly_and_small_ones_get_their_row():
    assert partition.apportion(36000, range(1, 9)) == [1000 * i for i in range(1, 9)]
    assert partition.apportion(10, [1e-9, 1e-9, 1.0, 1.0]) == [1, 1, 4, 4]
    assert partition.apportion(4, [1e-9, 1e-9, 1.0, 1.0]) == [1, 1, 1, 1]


@pytest.mark.parametrize("weights", [[1.0, 0.0], [1.0, np.nan], [], [1.0] * 4])
def test_weights_that_cannot_be_met_are_refused(weights):
    with pytest.raises(ConfigError):
        partition.apportion(3, weights)


def test_by_label_gives_each_client_a_run_of_labels():
    labels = [set(part.y) for part in partition.by_label(numbered(40), 8)]
    assert labels == [{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}]


def test_two_shards_bring_at_most_two_labels_each_and_are_dealt_at_random():
    parts = partition.shards(numbered(80), 8, np.random.default_rng(0))
    assert {part.rows for part in parts} == {10}
    assert all(len(set(part.y)) <= 2 for part in parts)
    assert any(len(set(part.y)) == 2 for part in parts)
    assert any(len(set(part.y)) > 1 and abs(np.diff(np.unique(part.y))[0]) > 1 for part in parts)
    with pytest.raises(ConfigError, match="2 for each client"):
        partition.shards(numbered(15), 8, np.random.default_rng(0))


def test_pure_shards_hold_one_label_each_and_labels_give_equal_numbers_of_them():
    data = Dataset(np.arange(100.0)[:, None], np.repeat([0, 1, 2], [10, 30, 60]))
    parts = partition.shards(data, 9, np.random.default_rng(0), per_client=1, pure=True)
    assert sorted(np.concatenate(numbers(parts))) == list(range(100))
    assert all(len(set(part.y)) == 1 for part in parts)
    assert sorted(part.rows for part in parts) == [3, 3, 4, 10, 10, 10, 20, 20, 20]
    straddling = partition.shards(data, 9, np.random.default_rng(0), per_client=1)
    assert any(len(set(part.y)) == 2 for part in straddling)
    with pytest.raises(ConfigError, match="2 pure shards"):
        partition.shards(data, 2, np.random.default_rng(0), per_client=1, pure=True)
    with pytest.raises(ConfigError, match="10 rows"):
        partition.shards(data, 33, np.random.default_rng(0), per_client=1, pure=True)


def test_all_sorted_is_by_label_and_nothing_sorted_is_iid():
    data = numbered(47)
    sorted_ = partition.partly_sorted(data, 5, np.random.default_rng(3), share=1.0)
    assert all(map(np.array_equal, numbers(sorted_), numbers(partition.by_label(data, 5))))
    mixed = partition.partly_sorted(data, 5, np.random.default_rng(3), share=0.0)
    assert all(map(np.array_equal, numbers(mixed), numbers(partition.iid(data, 5, np.random.default_rng(3)))))
    with pytest.raises(ConfigError, match="sorted share"):
        partition.partly_sorted(data, 5, np.random.default_rng(3), share=1.1)


def test_a_larger_sorted_share_makes_labels_less_alike():
    def spread(share):
        parts = partition.partly_sorted(numbered(4000), 20, np.random.default_rng(0), share=share)
        return np.std([np.bincount(part.y, minlength=4) / part.rows for part in parts], axis=0).mean()

    spreads = [spread(share) for share in (0.0, 0.25, 0.5, 1.0)]
    assert spreads == sorted(spreads)
    assert spreads[-1] > 5 * spreads[0]


def test_dirichlet_shares_have_the_variance_of_their_alpha():
    """A label's share p at one client is Beta(alpha, alpha (N - 1)): var p = (1/N)(1 - 1/N) / (alpha N + 1).

    200 labels x 5 clients, so the estimate of the variance is within about 10 % (3 standard errors); half or twice the
    alpha moves it by nearly half and is told apart.
    """
    data = Dataset(np.zeros((60000, 1)), np.arange(60000) % 200)
    parts = partition.dirichlet(data, 5, np.random.default_rng(0), alpha=1.0)
    shares = np.array([np.bincount(part.y, minlength=200) / 300 for part in parts])

    def variance(alpha):
        return 0.2 * 0.8 / (5 * alpha + 1)

    found = np.mean((shares - 0.2) ** 2)
    assert abs(found / variance(1.0) - 1) < 0.2
    assert abs(found / variance(0.5) - 1) > 0.3
    assert abs(found / variance(2.0) - 1) > 0.3


def test_dirichlet_gives_the_minimum_or_refuses_by_name():
    parts = partition.dirichlet(numbered(200), 5, np.random.default_rng(0), alpha=0.5, minimum=10)
    assert min(part.rows for part in parts) >= 10
    with pytest.raises(ConfigError, match="raise alpha"):
        partition.dirichlet(numbered(100), 10, np.random.default_rng(0), alpha=1e-3, minimum=9)
    with pytest.raises(ConfigError, match="21 for each"):
        partition.dirichlet(numbered(100), 5, np.random.default_rng(0), alpha=1.0, minimum=21)
    with pytest.raises(ConfigError, match="alpha"):
        partition.dirichlet(numbered(100), 5, np.random.default_rng(0), alpha=0.0)


def test_by_feature_gives_ranges_that_do_not_overlap():
    parts = partition.by_feature(numbered(50), 4, 1)
    edges = [(part.x[:, 1].min(), part.x[:, 1].max()) for part in parts]
    assert all(before[1] <= after[0] for before, after in pairwise(edges))
    with pytest.raises(ConfigError, match="column must be an integer between 0 and 1"):
        partition.by_feature(numbered(50), 4, 2)


def test_one_client_a_group_or_whole_groups_dealt_evenly():
    data = numbered(12)
    group = np.array(list("bbaacccccccd"))
    parts = partition.by_group(data, group)
    assert [list(part) for part in numbers(parts)] == [[2, 3], [0, 1], [4, 5, 6, 7, 8, 9, 10], [11]]
    two = partition.by_group(data, group, 2)
    assert sorted(part.rows for part in two) == [5, 7]  # the seven of c against all the others
    with pytest.raises(DataError, match="12 rows"):
        partition.by_group(data, group[:-1])
    with pytest.raises(ConfigError, match="4 owners"):
        partition.by_group(data, group, 5)


def test_splits_by_label_refuse_rows_without_labels():
    bare = Dataset(np.ones((6, 1)))
    for name in ("by_label", "shards", "partly_sorted", "dirichlet"):
        with pytest.raises(DataError, match="needs labels"):
            PARTITIONERS[name](bare, 2, np.random.default_rng(0))


def test_consecutive_rows_are_views_and_others_copies():
    data = numbered(40)
    in_order = Dataset(data.x, np.arange(40) // 10)
    for part in partition.by_label(in_order, 8):
        assert np.shares_memory(part.x, data.x)
    assert not any(np.shares_memory(part.x, data.x) for part in partition.iid(data, 8, np.random.default_rng(0)))
    for index in ([3, 4, 5], [5, 4, 3], [3, 5], [-2, -1], [4, 4, 4], [2, 4, 4], [-1, 0, 1], [0]):
        assert np.array_equal(data.take(np.array(index)).x, data.x[index])
    mask = data.x[:, 0] >= 35
    assert np.shares_memory(data.take(mask).x, data.x)
    assert np.array_equal(data.take(mask).x, data.x[mask])


def test_rows_of_every_real_type_and_no_other():
    rows = torch.tensor([[0.5, -2.0], [1.0, 3.0]])
    for values in (rows, rows.to(torch.bfloat16), rows.half(), rows.double(), rows.numpy(), rows.tolist()):
        np.testing.assert_array_equal(Dataset(values).x, rows.numpy())
    for wrong in (rows + 1j, rows.numpy() * 1j):
        with pytest.raises(DataError, match="complex numbers"):
            Dataset(wrong)
    with pytest.raises(DataError, match="real numbers"):
        Dataset(np.array([["1", "2"]]))
