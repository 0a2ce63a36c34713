from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from securefed import chain, secure_mean, secure_sum
from securefed.defenses import clip, gaussian, secure_aggregation, skellam
from securefed.defenses._homomorphic import InsecurePaillier
from securefed.errors import ConfigError, DataError, PlanError, PrecisionWarning, RangeRefused
from securefed.parties import SumTerms

RNG = np.random.default_rng(0)
UPDATES = [{"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=2)} for _ in range(4)]
WEIGHTS = [1, 5, 2, 2]
DEFENSES = {
    "plain": chain(),
    "secure_aggregation": chain(secure_aggregation()),
    "paillier": chain(InsecurePaillier(bits=512)),
}


@pytest.mark.parametrize("name", DEFENSES)
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_it_is_the_weighted_mean_under_every_defence(name, weights) -> None:
    found = secure_mean(UPDATES, weights, DEFENSES[name])
    for key in ("w", "b"):
        expected = np.average([u[key] for u in UPDATES], axis=0, weights=weights)
        np.testing.assert_allclose(found[key], expected, atol=1e-12)


def test_torch_state_dicts_keep_their_types() -> None:
    models = [torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)) for _ in range(3)]
    for index, model in enumerate(models):
        model[1].num_batches_tracked += index
    found = secure_mean([m.state_dict() for m in models], [1, 1, 2], chain(secure_aggregation()))
    models[0].load_state_dict(found)
    assert found["0.weight"].dtype == torch.float32
    assert found["1.num_batches_tracked"].dtype == torch.int64
    assert int(found["1.num_batches_tracked"]) == 1  # (0 + 1 + 2 * 2) / 4 = 1.25


def test_an_existing_loop_changes_two_lines() -> None:
    """The README's example: plain FedAvg, and the same loop with its averaging line replaced."""

    def local_step(model: dict, x: np.ndarray, y: np.ndarray) -> dict:
        return {"w": model["w"] - 0.1 * x.T @ (x @ model["w"] - y) / len(x)}

    x = RNG.normal(size=(4, 10, 3))
    y = x @ np.array([1.0, -2.0, 0.5])
    plain = secured = {"w": np.zeros(3)}
    for _ in range(20):
        updates = [local_step(plain, a, b) for a, b in zip(x, y, strict=True)]
        plain = {"w": np.mean([u["w"] for u in updates], axis=0)}
        updates = [local_step(secured, a, b) for a, b in zip(x, y, strict=True)]
        secured = secure_mean(updates, defense=chain(secure_aggregation()))
    np.testing.assert_allclose(secured["w"], plain["w"], atol=1e-12)


@pytest.mark.parametrize(
    ("updates", "weights", "error"),
    [
        ([], None, DataError),
        ([{"w": np.zeros(2)}, {"v": np.zeros(2)}], None, DataError),
        ([{"w": np.zeros(2)}, {"w": np.zeros(3)}], None, DataError),
        ([{"w": np.zeros(2)}, {"w": np.array([0, np.inf])}], None, DataError),
        (UPDATES, [1, 2], ConfigError),
        (UPDATES, [1, 2, -1, 0], ConfigError),
        (UPDATES, [0, 0, 0, 0], ConfigError),
    ],
)
def test_bad_input_is_refused_by_name(updates, weights, error) -> None:
    with pytest.raises(error):
        secure_mean(updates, weights, chain())


@pytest.mark.parametrize("summed", [secure_mean, secure_sum])
def test_nothing_is_summed_in_the_clear_unless_it_is_asked_for(summed) -> None:
    with pytest.raises(ConfigError, match=r"needs a defense.*defense=chain\(\)"):
        summed(UPDATES)
    summed(UPDATES, defense=chain())


@pytest.mark.parametrize("defense", ["plain", "secure_aggregation"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_torch_floats_of_every_width(dtype: torch.dtype, defense: str) -> None:
    values = torch.tensor([0.5, -3.0, 1.25], dtype=dtype)
    found = secure_mean([{"w": values}, {"w": 2 * values}, {"w": 3 * values}], None, DEFENSES[defense])["w"]
    assert found.dtype == dtype
    assert torch.equal(found, 2 * values)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (np.array([1 + 2j, 0]), "complex numbers"),
        (torch.tensor([1 + 2j, 0]), "complex numbers"),
        ([1j], "complex numbers"),
        (np.array(["1", "2"]), "real numbers"),
        (np.array([None, 1.0]), "real numbers"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), "real numbers"),
        (torch.zeros(2, 2).to_sparse(), "cannot hold"),
    ],
)
def test_what_holds_no_real_numbers_is_refused_by_name(value, says) -> None:
    with pytest.raises(DataError, match=rf"update 0: 'w' .*{says}"):
        secure_mean([{"w": value}] * 2, defense=DEFENSES["secure_aggregation"])


def test_a_large_counter_does_not_coarsen_the_weights_beside_it() -> None:
    """In 32 bits with one bound for both, a step is 1e5 * 2 / 2^31 = 1e-4; each with its own, 1e-9."""
    rng = np.random.default_rng(4)
    updates = [{"w": rng.uniform(-1, 1, 200), "counter": np.array([100_000 + k])} for k in range(4)]
    expected = np.mean([update["w"] for update in updates], axis=0)
    for bound in (None, {"w": 1.0, "counter": 2e5}):
        found = secure_mean(updates, defense=DEFENSES["secure_aggregation"], bound=bound, ring=32)
        assert np.abs(found["w"] - expected).max() < 1e-8
        assert int(found["counter"][0]) == 100_002  # 100_001.5
    one = secure_mean(updates, defense=DEFENSES["secure_aggregation"], bound=2e5, ring=32)
    assert np.abs(one["w"] - expected).max() > 1e-5  # the control: one bound for all


@pytest.mark.parametrize(
    "bound", [{"w": 1.0}, {"w": 1.0, "b": 1.0, "c": 1.0}, {"w": 1.0, "b": 0.0}, -1.0, float("nan")]
)
def test_bounds_that_do_not_fit_are_refused(bound) -> None:
    secure_mean(UPDATES, defense=DEFENSES["secure_aggregation"], bound={"w": 10.0, "b": 10.0})
    with pytest.raises(ConfigError, match="bound"):
        secure_mean(UPDATES, defense=DEFENSES["secure_aggregation"], bound=bound)
    with pytest.raises(RangeRefused, match="'b' reaches"):
        secure_mean(UPDATES, defense=DEFENSES["secure_aggregation"], bound={"w": 10.0, "b": 1e-3})


def test_entries_beyond_a_declared_bound_are_refused_not_clipped() -> None:
    secure_mean(UPDATES, defense=DEFENSES["secure_aggregation"], bound=10.0)
    with pytest.raises(RangeRefused):
        secure_mean(UPDATES, defense=DEFENSES["secure_aggregation"], bound=0.1)


@pytest.mark.parametrize("name", DEFENSES)
def test_a_sum_is_the_sum_under_every_defence(name) -> None:
    found = secure_sum([u | {"rows": np.array(3)} for u in UPDATES], DEFENSES[name])
    np.testing.assert_allclose(found["w"], sum(u["w"] for u in UPDATES), atol=1e-12)
    assert found["rows"] == 12


@pytest.mark.parametrize("noise", [skellam(0.01), gaussian(0.01)])
def test_noise_and_clips_work_on_equal_weights(noise) -> None:
    """Each update is clipped to norm 1: with noise of .01 the mean is within .1 of the mean of the clipped ones."""
    defense = chain(clip(1.0), noise, secure_aggregation())
    norms = [np.sqrt(sum((value**2).sum() for value in update.values())) for update in UPDATES]
    assert min(norms) > 1
    found = secure_mean(UPDATES, defense=defense)
    expected = np.mean([u["w"] / norm for u, norm in zip(UPDATES, norms, strict=True)], axis=0)
    np.testing.assert_allclose(found["w"], expected, atol=0.1)
    with pytest.raises(ConfigError, match="leave the weights out"):
        secure_mean(UPDATES, WEIGHTS, defense)


@pytest.mark.parametrize("means", [pytest.param(10), pytest.param(60, marks=pytest.mark.exhaustive)])
def test_the_error_of_a_mean_is_within_six_times_the_plan_s_error_and_can_exceed_it(means: int) -> None:
    """One heavy client and light ones: every rounding counts, and the sum is divided by little more than one weight."""
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(means):
        weights = np.concatenate([[1.000001], rng.uniform(0, 1e-6, 7)])
        updates = [{"x": rng.uniform(-1, 1, 50)} for _ in weights]
        found = secure_mean(updates, weights.tolist(), secure_aggregation(), bound=1.0, ring=32)["x"]
        expected = np.average([update["x"] for update in updates], axis=0, weights=weights)
        planned = SumTerms.like(
            updates[0],
            clients=8,
            defense=secure_aggregation(),
            bounds=1.0,
            largest_weight=1.000001,
            base=False,
            ring=32,
        ).plan
        error = next(tensor.error for tensor in planned.tensors if tensor.name == "update.x")
        worst = max(worst, float(np.abs(found - expected).max()) / error)
    assert 1 < worst <= 6


def test_a_sum_that_its_type_does_not_hold_is_named() -> None:
    with pytest.raises(DataError, match="300, which int8 does not"):
        secure_sum([{"n": np.array([100], np.int8)}] * 3, secure_aggregation())
    assert secure_sum([{"n": np.array([42], np.int8)}] * 3, secure_aggregation())["n"] == 126


@pytest.mark.parametrize("most", [2.0**20, np.nextafter(2.0**20, np.inf), np.nextafter(2.0**20, 0)])
def test_a_largest_entry_or_weight_beside_a_power_of_two_stays_within_its_own_bound(most: float) -> None:
    """log2 of the number just above 2^20 rounds to 20, so that a bound computed from it would lie below the number."""
    updates = [{"w": np.array([most, 1.0])} for _ in range(3)]
    found = secure_mean(updates, [most, 1.0, 1.0], DEFENSES["secure_aggregation"])
    np.testing.assert_allclose(found["w"], [most, 1.0], rtol=1e-9)


def test_floats_for_a_first_updates_integer_are_refused_and_not_rounded() -> None:
    updates = [{"b": 0}, {"b": 0.8}, {"b": 0.9}]  # the mean .57 became 1
    with pytest.raises(
        DataError, match=r"update 1: 'b' is of type float64, and the first update says integers.*0\.0 for 0"
    ):
        secure_mean(updates, defense=secure_aggregation())
    found = secure_mean([{"b": 0.0}, *updates[1:]], defense=secure_aggregation())
    assert found["b"] == pytest.approx(1.7 / 3)


def test_the_smallest_integer_of_a_type_is_summed() -> None:
    """Its absolute value overflows, so that a bound computed from that would be far too small."""
    updates = [{"w": np.array([-(2**63), 1])} for _ in range(3)]
    assert secure_mean(updates, None, DEFENSES["secure_aggregation"])["w"][0] == -(2**63)


def test_a_generator_of_updates_and_a_bound_in_words_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="secure_mean needs a list with one update for each client; got generator"):
        secure_mean((update for update in UPDATES), None, chain())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the bound of 'w' must be a positive, finite number; got '1'"):
        secure_mean(UPDATES, None, chain(), bound="1")  # type: ignore[arg-type]


BOOLEANS = {
    "numpy": (np.array, np.int64, np.float64),
    "torch": (torch.tensor, torch.int64, torch.float64),
}


@pytest.mark.parametrize("name", BOOLEANS)
@pytest.mark.parametrize("defense", [chain(), secure_aggregation()])
def test_booleans_are_counted_and_their_mean_is_a_share(name: str, defense: Any) -> None:
    """The sum of three True came back as True, and the mean of two of three as True."""
    make, count, share = BOOLEANS[name]
    updates = [{"flag": make(values)} for values in ([True, True, False], [True, False, False], [True, True, False])]
    total, mean = secure_sum(updates, defense)["flag"], secure_mean(updates, defense=defense)["flag"]
    assert (total.dtype, mean.dtype) == (count, share)
    assert total.tolist() == [3, 2, 0]
    np.testing.assert_allclose(mean, [1, 2 / 3, 0], atol=1e-12)
    weighted = secure_mean(updates, [1, 2, 5], defense)["flag"]
    np.testing.assert_allclose(weighted, [1, 6 / 8, 0], atol=1e-12)
    noised = secure_sum(updates, chain(clip(9.0), gaussian(1.0), defense))["flag"]
    assert noised.dtype == share  # no whole numbers


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ([np.array([100], np.int8)] * 3, "300, which int8 does not"),
        ([np.array([200], np.uint8)] * 3, "600, which uint8 does not"),
        ([np.array([6e4], np.float16)] * 3, "180000, which float16 does not"),
        ([np.array([2**53 + 1]), np.array([0]), np.array([0])], r"update 0: 'x' holds integers beyond 2\^53"),
    ],
)
def test_no_sum_comes_back_in_a_type_that_does_not_hold_it(values: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        secure_sum([{"x": value} for value in values], secure_aggregation())


@pytest.mark.parametrize("make", [secure_mean, secure_sum])
@pytest.mark.parametrize("ring", [32, 64])
def test_a_bound_that_leaves_nothing_of_the_updates_is_refused(make: Any, ring: Any) -> None:
    """Ones under a bound of 1e19 came back as zeros."""
    bound = 1e19 if ring == 64 else 1e10
    updates = [{"w": np.ones(3), "still": np.zeros(2)}] * 3
    with pytest.raises(PlanError, match=r"'w' has entries up to 1, .* nothing of it would be left"):
        make(updates, defense=secure_aggregation(), bound=bound, ring=ring)
    with pytest.raises(PlanError, match="'w' has entries"):  # of one tensor too
        make(updates, defense=secure_aggregation(), bound={"w": bound, "still": 1.0}, ring=ring)
    found = make(updates, defense=secure_aggregation(), bound={"w": 1.0, "still": bound}, ring=ring)
    assert not found["still"].any() and (found["w"] > 0.9).all()


def test_a_mean_whose_error_exceeds_it_is_said_by_name() -> None:
    updates = [{"w": np.full(3, value)} for value in (1.0, -1.0, 0.3)]
    with pytest.warns(PrecisionWarning, match="larger than the mean or sum itself: w "):
        secure_mean(updates, defense=secure_aggregation(), bound=3e17)
    assert not secure_mean([{"w": np.zeros(3)}] * 3, defense=secure_aggregation(), bound=1e19)["w"].any()
