from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed import chain
from securefed.defenses import ckks, gaussian, records, secure_aggregation, skellam
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.errors import ConfigError, DataError, RoundVoid
from securefed.parties import SumClient, SumServer
from securefed.statistics import ContingencyTable, Count, Covariance, Histogram, LinearRegression, Mean, Variance
from securefed.statistics._estimate import Sums
from securefed.statistics._suppression import small_cells
from tests.combinations import each_value
from tests.parties.helpers import play

RNG = np.random.default_rng(0)
PARTIES = [RNG.uniform(-3, 3, (rows, 4)) + np.array([1, 0, 0, 2]) for rows in (50, 1, 20)]
CODES = [RNG.integers(0, [2, 3], (rows, 2)) for rows in (50, 1, 20)]
TARGETS = [x @ [1.0, -2.0, 0.5, 0.0] + 0.3 for x in PARTIES]
ALL, Y = np.concatenate(PARTIES), np.concatenate(TARGETS)
DEFENSES: dict[str, Any] = {
    "plain": None,
    "masks": secure_aggregation(),
    "paillier": InsecurePaillier(bits=512),
}
MOMENTS: dict[str, Any] = {"features": 4, "bound": 8.0, "rows": 100}
CASES: dict[str, tuple[Any, list[Any], np.ndarray]] = {
    "count": (Count(**MOMENTS), PARTIES, np.asarray(71.0)),
    "mean": (Mean(**MOMENTS), PARTIES, ALL.mean(0)),
    "mean, shifted": (Mean(shift=(1.0, 0.0, 0.0, 2.0), **MOMENTS), PARTIES, ALL.mean(0)),
    "variance": (Variance(**MOMENTS), PARTIES, ALL.var(0, ddof=1)),
    "covariance": (Covariance(**MOMENTS), PARTIES, np.cov(ALL.T)),
    "covariance, ddof": (Covariance(ddof=0, **MOMENTS), PARTIES, np.cov(ALL.T, ddof=0)),
    "histogram": (
        Histogram((-2.0, 0.0, 1.0, 5.0), features=4, rows=100), PARTIES,
        np.stack([np.histogram(column, (-2.0, 0.0, 1.0, 5.0))[0] for column in ALL.T]),
    ),
    "table": (
        ContingencyTable((2, 3), rows=100), CODES,
        np.histogram2d(*np.concatenate(CODES).T, bins=(2, 3), range=((0, 2), (0, 3)))[0],
    ),
    "least squares": (
        LinearRegression(4, bound=8.0, target_bound=64.0, rows=100), list(zip(PARTIES, TARGETS, strict=True)),
        np.array([1.0, -2.0, 0.5, 0.0]),
    ),
    "ridge without intercept": (
        LinearRegression(4, bound=8.0, target_bound=64.0, rows=100, ridge=2.0, intercept=False),
        list(zip(PARTIES, TARGETS, strict=True)),
        np.linalg.solve(ALL.T @ ALL + 2 * np.eye(4), ALL.T @ Y),
    ),
}  # fmt: skip

RECORD_NOISE = chain(records(), gaussian(1.0), secure_aggregation())
OMITTING: dict[str, Any] = {
    "count": Count(features=2, outliers="omit"),
    "mean": Mean(features=2, outliers="omit"),
    "covariance": Covariance(features=2, outliers="omit"),
    "table": ContingencyTable((2, 2), outliers="omit"),
    "regression": LinearRegression(2, outliers="omit"),
}


@pytest.mark.parametrize(("defense", "name"), each_value(DEFENSES, CASES))
def test_each_statistic_is_that_of_all_rows_within_its_error(name: str, defense: str) -> None:
    statistic, parties, expected = CASES[name]
    found = statistic.simulate(parties, DEFENSES[defense])
    assert found.value.shape == expected.shape == found.error.shape
    assert (np.abs(found.value - expected) <= found.error + 1e-12 * (1 + np.abs(expected))).all()
    assert found.error.max() < 1e-9
    assert found.count == 71
    assert found.noise == {}
    if name in ("count", "histogram", "table"):
        assert (found.value == expected).all()
        assert found.error.max() == 0
    if name == "least squares":
        assert found.detail["intercept"] == pytest.approx(0.3, abs=1e-9)


def test_ckks_counts_are_within_its_error() -> None:
    found = Covariance(**MOMENTS).simulate(PARTIES, ckks())
    assert (np.abs(found.value - np.cov(ALL.T)) <= found.error).all()


@given(st.integers(1, 5), st.integers(3, 6), st.integers(0, 2**32 - 1))
def test_any_shapes(features: int, parties: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.uniform(-1, 1, (rng.integers(0, 9) + (i == 0) * 2, features)) for i in range(parties)]
    found = Covariance(features=features, rows=20).simulate(rows, secure_aggregation())
    everything = np.concatenate(rows)
    assert (np.abs(found.value - np.cov(everything.T).reshape(features, features)) <= found.error + 1e-12).all()
    np.testing.assert_allclose(found.detail["mean"], everything.mean(0), atol=1e-9)


def test_a_shift_keeps_the_digits_of_a_variance_far_from_zero() -> None:
    rows = [1e6 + RNG.normal(size=(40, 1)) for _ in range(3)]
    expected = np.concatenate(rows).var(ddof=1)
    near = Variance(bound=10.0, rows=40, shift=1e6).simulate(rows, secure_aggregation())
    far = Variance(bound=2e6, rows=40).simulate(rows, secure_aggregation())
    assert abs(near.value[0] - expected) <= near.error[0] < 1e-9
    assert abs(far.value[0] - expected) <= far.error[0]  # the control: the bound says what is lost
    assert far.error[0] > 1e-6


@pytest.mark.parametrize("kind", [Mean, Variance, Covariance])
def test_as_many_rows_at_the_bound_as_are_declared_are_summed_to_the_last_digits(kind: Any) -> None:
    """Adding row by row is off by more than fixed point, and takes the sum of squares beyond its bound."""
    found = kind(features=2, bound=0.1, rows=9999).simulate([np.full((9999, 2), 0.1)] * 3, secure_aggregation())
    if kind is Covariance:  # BLAS adds its products
        np.testing.assert_allclose(found.value, 0.0, atol=1e-15)
        return
    assert (np.abs(found.value - (0.1 if kind is Mean else 0.0)) <= found.error).all()
    assert (found.value >= 0.0).all()  # also where rounding alone is left of a variance


@pytest.mark.parametrize("noise", [gaussian(0.5), skellam(0.5)])
def test_noise_hides_single_rows_and_is_stated(noise: Any) -> None:
    """1000 rows a party: the mean moves by a few deviations of .5 sensitivities over 3000 rows."""
    rows = [RNG.uniform(-1, 1, (1000, 2)) for _ in range(3)]
    found = Mean(features=2, rows=1000, outliers="omit").simulate(rows, chain(records(), noise, secure_aggregation()))
    assert found.plan.privacy is not None
    assert found.plan.privacy.unit == "record"
    assert 0 < found.noise["sum"] / 3000 < 1e-2
    np.testing.assert_allclose(found.value, np.concatenate(rows).mean(0), atol=8 * found.noise["sum"] / 3000)
    assert (found.value != np.concatenate(rows).mean(0)).all()


@pytest.mark.parametrize("bound", [2.0**-9, 1.0, 120.0])
def test_a_statistic_is_as_precise_under_noise_whatever_the_unit_of_the_rows(bound: float) -> None:
    """Each tensor is at most 1 in its own unit: the count beside a sum of ages has no more noise than beside shares."""
    rows = [bound * RNG.uniform(-1, 1, (1000, 2)) for _ in range(3)]
    found = Variance(features=2, bound=bound, rows=1000, outliers="omit").simulate(rows, RECORD_NOISE)
    assert found.noise["count"] <= 1.01 * np.sqrt(3)  # of three tensors together, times the multiplier of 1
    assert found.noise["squares"] <= 1.01 * np.sqrt(3) * 2 * np.sqrt(2) * bound**2
    np.testing.assert_allclose(found.value, np.concatenate(rows).var(0), atol=0.02 * bound**2)


@pytest.mark.parametrize("bound", [2.0**-9, 1.0, 1000.0])
def test_a_regression_is_as_precise_under_noise_whatever_the_unit_of_the_rows(bound: float) -> None:
    parties = [(x, x @ [1.0, -2.0] + bound) for x in (bound * RNG.uniform(-1, 1, (1000, 2)) for _ in range(3))]
    statistic = LinearRegression(2, bound=bound, target_bound=4 * bound, rows=1000, outliers="omit")
    found = statistic.simulate(parties, RECORD_NOISE)
    np.testing.assert_allclose(found.value, [1.0, -2.0], atol=0.15)
    np.testing.assert_allclose(found.detail["intercept"], bound, atol=0.1 * bound)


@pytest.mark.parametrize("name", ["count", "mean", "covariance", "regression", "table"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e6, -3.5])
def test_a_row_out_of_bounds_moves_no_sum_by_more_than_the_row(name: str, value: float) -> None:
    """Noise for single rows is sized for this: whatever one row holds, the party's other rows stay in the sum."""
    statistic = OMITTING[name]
    x = RNG.integers(0, 2, (20, 2)).astype(float)
    bad = np.concatenate([x[:7], [[0.0, value]], x[7:]])
    target = RNG.uniform(-1, 1, 21) if name == "regression" else None
    without = statistic.summand(x, None if target is None else np.delete(target, 7))
    for tensor, total in statistic.summand(bad, target).items():
        np.testing.assert_array_equal(total, without[tensor])
    if target is not None:
        target[7] = value
        np.testing.assert_array_equal(
            statistic.summand(np.insert(x, 7, 0.0, axis=0), target)["targets"], without["targets"]
        )


def test_one_row_beyond_the_bound_does_not_show_through_noise_for_single_rows() -> None:
    rows = [RNG.uniform(-1, 1, (500, 1)) for _ in range(3)]
    rows[1][3] = 40.0
    found = Count(rows=500, outliers="omit").simulate(rows, RECORD_NOISE)
    assert abs(found.count - 1499) < 8 * found.noise["count"]  # 1000 where the row takes its party out


def test_separate_parties_and_rows_beyond_the_bound_that_nobody_learns_of() -> None:
    statistic = Mean(features=4, bound=8.0, rows=100)
    terms = statistic.terms(clients=3, defense=secure_aggregation(), least_rows=1)
    clients = {i: SumClient(terms, i) for i in range(3)}
    good = {i: {"update": lambda i=i: statistic.summand(PARTIES[i])} for i in range(3)}
    found = statistic.estimate(play(SumServer(terms), clients, good))
    np.testing.assert_allclose(found.value, ALL.mean(0), atol=1e-9)
    bad = good | {1: {"update": lambda: statistic.summand(PARTIES[1] + 100)}}
    with pytest.raises(RoundVoid):
        play(SumServer(terms), {i: SumClient(terms, i) for i in range(3)}, bad)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: Mean(features=3).simulate(PARTIES), DataError, "must have 3 columns"),
        (lambda: Mean(features=4, rows=9, bound=8.0).simulate(PARTIES), DataError, "9 are declared"),
        (lambda: Mean(features=4).simulate(PARTIES), DataError, "at most 1 from the shift"),
        (lambda: Mean(features=4).simulate([PARTIES[0] * np.nan]), DataError, "row 0, is not finite"),
        (lambda: Mean(features=4, bound=8.0).simulate([]), ConfigError, "at least one party"),
        (lambda: Mean(features=4).simulate([np.zeros((0, 4))] * 3), DataError, "any rows"),
        (lambda: Variance(features=1).simulate([np.zeros((1, 1))]), DataError, "more than ddof=1"),
        (lambda: Mean(features=0), ConfigError, "at least 1"),
        (lambda: Mean(outliers="clip"), ConfigError, "outliers must be one of 'refuse', 'omit'"),
        (lambda: Mean().terms(clients=3, defense=RECORD_NOISE), ConfigError, "outliers='omit'"),
        (lambda: Mean(bound=0.0), ConfigError, "positive"),
        (
            lambda: Variance(bound=1e200).terms(clients=3, defense=None),
            ConfigError,
            "'squares' must be a positive, finite number",
        ),
        (
            lambda: Covariance(bound=1e200).terms(clients=3, defense=None),
            ConfigError,
            "'products' must be a positive, finite",
        ),
        (lambda: Mean(features=2, shift=(1.0,)), ConfigError, "shift"),
        (lambda: Histogram((1.0, 0.0)), ConfigError, "ascending"),
        (lambda: ContingencyTable((2, 3)).simulate([np.array([[2, 0]])]), DataError, "whole numbers"),
        (lambda: Histogram((0.0, 1.0), features=1.5), ConfigError, "features must be an integer of at least 1"),
        (lambda: Histogram((0.0, 1.0), features=True), ConfigError, "features must be an integer"),
        (lambda: Histogram((0.0, 1.0), rows=2.5), ConfigError, "rows must be an integer"),
        (lambda: Histogram((0.0, np.nan)), ConfigError, "ascending numbers"),
        (lambda: Histogram("abc"), ConfigError, "ascending numbers"),
        (lambda: Histogram((False, True)), ConfigError, "ascending numbers"),
        (lambda: ContingencyTable(()), ConfigError, "levels"),
        (lambda: ContingencyTable((2.5, 3)), ConfigError, "levels must be a list of at least one integer"),
        (lambda: ContingencyTable((2, True)), ConfigError, "levels must be a list of at least one integer"),
        (lambda: ContingencyTable((2, 3), rows=np.nan), ConfigError, "rows must be an integer"),
        (lambda: LinearRegression(1.5), ConfigError, "features must be an integer"),
        (lambda: LinearRegression(np.nan), ConfigError, "features must be an integer"),
        (lambda: LinearRegression(1, rows=2.5), ConfigError, "rows must be an integer"),
        (lambda: LinearRegression(1, ridge=np.nan), ConfigError, "ridge must be a finite number"),
        (lambda: Mean(features=1.5), ConfigError, "features must be an integer"),
        (lambda: Mean(shift=np.nan), ConfigError, "shift must be a finite number"),
        (lambda: LinearRegression(4, bound=8.0).simulate(PARTIES), DataError, "one target for each"),
        (lambda: LinearRegression(1).simulate([(np.ones((3, 1)), np.ones(3))]), DataError, "dependent"),
        (lambda: LinearRegression(1).summand((np.ones((3, 1)), np.ones(3))), DataError, r"summand\(x, y\)"),
        (lambda: Mean().estimate({"sum": np.zeros(1)}), ConfigError, "a SumServer's `result`; got dict"),
        (lambda: Mean().estimate(None), ConfigError, "no round is complete"),
        (lambda: Mean().simulate([np.zeros((2, 1))] * 2, secure_aggregation()), ConfigError, "at least 3"),
    ],
)
def test_misuse_is_named(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_server_gets_one_sum_of_a_party_s_rows_and_not_a_second_one_to_subtract() -> None:
    statistic = Mean(features=4, bound=8.0, rows=100)
    parties = [*PARTIES, PARTIES[0] + 1]
    for rounds, answered in ((1, False), (2, True)):  # the second is the control
        terms = statistic.terms(clients=4, defense=secure_aggregation(), rounds=rounds, least_rows=1)
        clients = {i: SumClient(terms, i) for i in range(4)}
        mine = {i: {"update": statistic.summand(x)} for i, x in enumerate(parties)}
        server = SumServer(terms)
        every = play(server, clients, mine).total["sum"]
        if not answered:
            with pytest.raises(ConfigError, match="rounds"):
                server.open(cohort=(0, 1, 2))
            server.terms = replace(terms, rounds=None)  # a server that does not keep to them: its clients do
            server._sums.history.clear()
            server._sums.given_up = 1
            server.terms.__dict__["digest"] = terms.digest
            with pytest.raises(RoundVoid, match="the terms have 1 rounds"):
                play(server, clients, mine, cohort=(0, 1, 2))
            continue
        found = every - play(server, clients, mine, cohort=(0, 1, 2)).total["sum"]
        np.testing.assert_allclose(found, statistic.summand(parties[3])["sum"], atol=1e-6)


@pytest.mark.parametrize("name", ["mean", "variance", "covariance", "covariance, ddof", "least squares"])
def test_the_error_bounds_what_any_errors_of_the_sums_do(name: str) -> None:
    """Random errors up to their bounds, of the count too: it is not exact under CKKS with many rows declared."""
    statistic, parties, expected = CASES[name]
    rng = np.random.default_rng(3)
    summands = [statistic._summand(*(party if isinstance(party, tuple) else (party, None))) for party in parties]
    sums = {key: np.sum([summand[key] for summand in summands], axis=0) for key in summands[0]}
    for size in (1e-9, 1e-3, 0.5, 3.0):
        for _ in range(200):
            error = {key: size * rng.uniform(0, 1) * (key == "count" or size < 0.1) for key in sums}
            sign = {key: rng.choice([-1.0, 1.0], np.shape(value)) for key, value in sums.items()}
            total = {key: np.asarray(value + error[key] * sign[key]) for key, value in sums.items()}
            value, bound, _ = statistic._value(Sums(total, error, noised=False))
            assert (np.abs(value - expected) <= bound + 1e-12 * (1 + np.abs(expected))).all()


def test_a_cell_of_one_person_is_left_out_and_no_total_of_a_line_tells_it() -> None:
    """The control: with `least_cell=1` it is released as 1."""
    rows = [np.repeat([[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]], (1, 9, 12, 8, 7), axis=0).astype(float)]
    whole = ContingencyTable((2, 3), rows=100, least_cell=1).simulate(rows)
    np.testing.assert_array_equal(whole.value, [[1, 9, 0], [12, 8, 7]])
    found = ContingencyTable((2, 3), rows=100).simulate(rows)
    hidden = found.detail["suppressed"]
    np.testing.assert_array_equal(np.isnan(found.value), hidden)
    np.testing.assert_array_equal(found.value[~hidden], whole.value[~hidden])
    assert hidden[0, 0]
    for _ in range(200):
        table = RNG.poisson(6.0, (3, 4)).astype(float)
        hidden = small_cells(table, 5, (0, 1))
        assert hidden[(table > 0) & (table < 5)].all()
        for axis in (0, 1):
            lines = np.moveaxis(hidden, axis, -1).reshape(-1, table.shape[axis])
            counts = np.moveaxis(table, axis, -1).reshape(-1, table.shape[axis])
            for line, count in zip(lines, counts, strict=True):
                assert not line.any() or line.all() or (line.sum() >= 2 and count[line].sum() >= 5)
    bins = Histogram((0.0, 1.0, 2.0, 3.0), rows=100).simulate([np.array([[0.5]] * 3 + [[1.5]] * 9 + [[2.5]] * 20)])
    np.testing.assert_array_equal(bins.detail["suppressed"], [[True, True, False]])


def test_under_noise_no_cell_is_left_out() -> None:
    found = Histogram((0.0, 1.0), rows=9, outliers="omit").simulate([np.full((1, 1), 0.5)] * 3, RECORD_NOISE)
    assert np.isfinite(found.value).all()
