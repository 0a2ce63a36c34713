"""Models of several sums: between parties, what they refuse, what they merge, and what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed import chain
from securefed.defenses import gaussian, records, secure_aggregation
from securefed.errors import CollinearityError, ConfigError, ConvergenceError, DataError, SeparationError
from securefed.parties import SumClient, SumServer, SumTerms
from securefed.statistics import (
    ANOVA,
    ChiSquare,
    CoxModel,
    GroupBy,
    KaplanMeier,
    LinearRegression,
    LogisticModel,
    LogRank,
    OrderStatistics,
    PoissonModel,
    Quantiles,
    Together,
    TTest,
    from_terms,
)  # fmt: skip
from securefed.statistics._survival import interval_ends, merged_groups
from tests.parties.helpers import play
from tests.stats.battery import GRID, GRID_OF_TIMES, LINEAR, LIVES, NEWTON
from tests.stats.tables import SEXES, pooled, sites

SITES = sites(0, gaps=False)
RNG = np.random.default_rng(0)


def asked(tables: list[Any]) -> tuple[list[SumTerms], Any]:
    """A function for `fit` that carries out each sum between parties, and the terms that went round."""
    made: list[SumTerms] = []

    def ask(statistic: Any) -> Any:
        terms = SumTerms.from_bytes(statistic.terms(clients=len(tables), defense=secure_aggregation()).to_bytes())
        made.append(terms)
        clients = {i: SumClient(terms, i) for i in range(len(tables))}
        given = {i: {"update": lambda i=i: from_terms(terms).summand(tables[i])} for i in range(len(tables))}
        return statistic.estimate(play(SumServer(terms), clients, given))

    return made, ask


MODELS = pytest.mark.parametrize(
    "model",
    [
        LogisticModel(**NEWTON, target="readmitted"),
        PoissonModel(**NEWTON, target="visits", target_bound=60),
        CoxModel(**LIVES),
        LinearRegression(**LINEAR, robust="HC3"),
    ],
    ids=lambda model: type(model).__name__,
)


@MODELS
def test_each_iteration_is_one_sum_between_parties_which_make_it_from_its_terms(model: Any) -> None:
    terms, ask = asked(SITES)
    found = model.fit(ask)
    beside = model.simulate(SITES, secure_aggregation())
    np.testing.assert_allclose(found.coef_, beside.coef_, atol=1e-9)
    assert all(one.least_rows == 5 and one.least_parties == 3 for one in terms)
    assert len(terms) <= 12
    if not model.one_sum:
        with pytest.raises(ConfigError, match="statistics of one sum"):
            Together(model)


@MODELS
def test_a_model_whose_later_sums_are_over_other_parties_is_refused(model: Any) -> None:
    """The events of five parties beside the rows at risk of four gave hazard ratios of neither, without a word."""
    fewer, sums = SITES[:-1], iter(range(99))
    with pytest.raises(DataError, match=r"sum 2 of this model is over the parties .*, and the first one is over"):
        model.fit(lambda statistic: statistic.simulate(SITES if next(sums) == 0 else fewer))
    again = model.fit(lambda statistic: statistic.simulate(fewer))  # the remedy
    np.testing.assert_array_equal(again.coef_, model.simulate(fewer).coef_)


def test_a_summary_names_each_parameter_with_its_tests() -> None:
    found = LogisticModel(**NEWTON, target="readmitted").simulate(SITES)
    text = found.summary()
    for word in ("LogisticModel", "intercept", "age", "platelets", "std err", "P>|z|", "3 parties"):
        assert word in text
    frame = found.to_frame()
    np.testing.assert_allclose(frame["coef"], found.parameters_)
    assert (frame["[0.025"] < frame["coef"]).all() and (frame["coef"] < frame["0.975]"]).all()
    line = LinearRegression(**LINEAR).simulate(SITES)
    assert line.law == "t" and "R2" in line.summary()
    assert np.isnan(LinearRegression(**LINEAR, ridge=2.0).simulate(SITES).standard_errors_).all()


def told_apart(rows: int, gap: float) -> list[dict[str, Any]]:
    """Sites whose outcome is whether x is above 0, but for rows within a gap, which are both."""
    out = []
    for _ in range(3):
        x = RNG.uniform(-1, 1, rows)
        y = np.where(np.abs(x) < gap, RNG.integers(0, 2, rows), x > 0).astype(float)
        out.append({"x": x, "other": RNG.uniform(-1, 1, rows), "y": y})
    return out


def test_separation_is_named_with_the_column_that_tells_apart() -> None:
    model = LogisticModel(bound={"x": 1, "other": 1}, target="y", rows=100)
    with pytest.raises(SeparationError, match="told apart entirely, over all parties, by x"):
        model.simulate(told_apart(60, 0.0), secure_aggregation())
    model.simulate(told_apart(60, 0.3), secure_aggregation())  # the control
    ridged = LogisticModel(bound={"x": 1, "other": 1}, target="y", rows=100, ridge=0.1)
    assert np.isfinite(ridged.simulate(told_apart(60, 0.0), secure_aggregation()).coef_).all()


def test_a_category_whose_rows_have_one_outcome_is_named() -> None:
    """Quasi-separation: all rows of a rare level are readmitted."""
    tables = []
    for _ in range(3):
        rare = (np.arange(80) < 4).astype(float)
        y = np.where(rare == 1, 1.0, RNG.integers(0, 2, 80))
        tables.append({"rare": rare, "age": RNG.uniform(20, 90, 80), "y": y})
    model = LogisticModel(bound={"rare": 1, "age": (0, 120)}, target="y", rows=100)
    with pytest.raises(SeparationError, match="by rare"):
        model.simulate(tables, secure_aggregation())


@pytest.mark.parametrize("kind", [LinearRegression, LogisticModel, PoissonModel])
def test_dependent_columns_are_named(kind: Any) -> None:
    tables = told_apart(60, 0.5)
    for table in tables:
        table["twice"] = 2 * table["x"]
    more = {"target_bound": 1.0}
    with pytest.raises(CollinearityError, match="x, twice"):
        kind(bound={"x": 1, "other": 1, "twice": 2}, target="y", rows=100, **more).simulate(
            tables, secure_aggregation()
        )
    fits = {"bound": {"x": 1, "other": 1}, "target": "y", "rows": 100, **more}
    kind(**fits).simulate(tables, secure_aggregation())  # the control


def test_slow_convergence_is_named() -> None:
    model = LogisticModel(bound={"x": 1, "other": 1}, target="y", rows=100, iterations=2)
    with pytest.raises(ConvergenceError, match=r"no convergence in 2 sums.*in x"):
        model.simulate(told_apart(60, 0.3), secure_aggregation())


def test_times_of_few_events_are_merged_and_the_result_says_so() -> None:
    """The control: with one event at least the grid stays as it is."""
    settings = {**LIVES, "least_events": 8}
    merged, kept = (CoxModel(**one).simulate(SITES, secure_aggregation()) for one in (settings, LIVES))
    assert len(kept.detail["times"]) == len(GRID_OF_TIMES) > len(merged.detail["times"])
    assert "times merged to" in merged.summary() and "merged" not in kept.summary()
    at_each = np.histogram(
        [t for s in SITES for t, d in zip(s["time"], s["died"], strict=True) if d and t <= 40],
        np.append(0, merged.detail["times"] + 1e-9),
    )[0]
    assert at_each.min() >= 8
    again = CoxModel(**{**LIVES, "times": tuple(merged.detail["times"])}).simulate(SITES, secure_aggregation())
    np.testing.assert_allclose(merged.coef_, again.coef_, atol=1e-9)


def test_a_curve_is_given_where_enough_events_lie_between() -> None:
    fine = {"times": np.arange(1.0, 61.0), "event": "died", "rows": 300}
    few, every = KaplanMeier(**fine).simulate(SITES), KaplanMeier(**fine, least_events=1).simulate(SITES)
    given = few.detail["given"]
    assert not np.isnan(every.value).any() and 0 < given.sum() < 60
    np.testing.assert_array_equal(few.value[given], every.value[given])
    assert np.isnan(few.value[~given]).all() and np.isnan(few.detail["at_risk"][~given]).all()
    events = np.array([sum(((s["time"] == t) & (s["died"] == 1)).sum() for s in SITES) for t in fine["times"]])
    between = np.diff(np.append(0, np.cumsum(events)[given]))
    assert between.min() >= 5


@pytest.mark.parametrize("least", [1, 2, 5])
def test_intervals_hold_the_least_number_of_events_whatever_the_events_are(least: int) -> None:
    for _ in range(200):
        events = RNG.poisson(1.0, 12).astype(float)
        ends = interval_ends(events, least)
        if least > 1 and events.sum() >= least:
            between = np.diff(np.append(0, np.cumsum(events)[ends]))
            assert between.min() >= least and between.sum() == events.sum()
        parts = merged_groups(events, least)
        sizes = np.bincount(parts, events)
        assert len(sizes) == 1 or sizes.min() >= least


def test_small_groups_are_merged_or_left_out_of_tests() -> None:
    ward = {"event": "died", "rows": 300, "times": GRID_OF_TIMES, "by": "ward", "levels": ("icu", "surgery", "burns")}
    found = LogRank(**ward, least_events=40).simulate(SITES)
    assert found.detail["degrees"] == 1
    assert found.detail["merged"][2] in found.detail["merged"][:2]
    levels = {"ward": ("icu", "surgery", "burns"), "sex": SEXES}
    small, exact = (ChiSquare(levels, rows=300, least_cell=k).simulate(SITES) for k in (20, 1))
    assert (small.detail["degrees"], exact.detail["degrees"]) == (1, 2)
    test = {"bound": {"age": (0, 120)}, "by": "ward", "levels": ("icu", "surgery", "burns"), "rows": 300}
    assert np.isnan(ANOVA(**test, least_cell=200).simulate(SITES).value).all()
    assert np.isfinite(ANOVA(**test, least_cell=2).simulate(SITES).value).all()


def test_a_second_exchange_finds_a_quantile_to_more_digits_but_never_one_persons_value() -> None:
    coarse = Quantiles({"age": (0, 30, 60, 90, 120)}, rows=300)
    first = coarse.simulate(SITES, secure_aggregation())
    second = coarse.refined(first, bins=200).simulate(SITES, secure_aggregation())
    median = np.median(pooled(SITES)["age"])
    assert abs(second.value[0, 0] - median) <= second.error[0, 0] < 0.05 * first.error[0, 0]
    third = coarse.refined(second, bins=10_000).simulate(SITES, secure_aggregation())
    inside = (pooled(SITES)["age"] >= third.detail["low"][0, 0]) & (pooled(SITES)["age"] <= third.detail["high"][0, 0])
    assert inside.sum() >= 5
    with pytest.raises(ConfigError, match="single people's"):
        OrderStatistics(GRID, k=1)


def test_the_standard_errors_of_a_line_count_noise() -> None:
    """Over 200 draws the estimates spread by as much as is stated; without the noise's part it would be a third."""
    noise = chain(records(), gaussian(8.0))
    tables = []
    for _ in range(3):
        x = RNG.uniform(-1, 1, (150, 1))
        tables.append((x, x[:, 0] + RNG.normal(0, 0.3, 150).clip(-1, 1)))
    model = LinearRegression(1, bound=1.0, target_bound=4.0, rows=200, outliers="omit")
    exact = model.simulate(tables)
    found = [model.simulate(tables, noise) for _ in range(200)]
    draws = np.array([one.coef_[0] for one in found])
    stated = np.median([one.standard_errors_[1] for one in found])
    spread = np.hypot(draws.std(), exact.standard_errors_[1])  # the noise's, and the rows'
    assert 0.7 < stated / spread < 1.4
    assert exact.standard_errors_[1] < 0.5 * spread  # the control: what does not count it would be found


def test_noise_ends_the_steps_where_it_is_as_large_and_a_summary_says_that_it_is_not_counted() -> None:
    """3000 rows: noise of two rows' size moves a coefficient by a few thousandths, in a fit that is off by .1."""
    tables = told_apart(1000, 0.9)
    model = LogisticModel(bound={"x": 1, "other": 1}, target="y", rows=1500, outliers="omit")
    exact = model.simulate(tables)
    noised = model.simulate(tables, chain(records(), gaussian(0.5), secure_aggregation()))
    assert "do not count it" in noised.summary() and "do not count it" not in exact.summary()
    assert noised.detail["iterations"] <= 10
    assert (np.abs(noised.coef_ - exact.coef_) < 0.1).all() and (noised.coef_ != exact.coef_).all()
    with pytest.raises(ConvergenceError, match="the noise is larger than what the rows tell"):
        model.simulate(tables, chain(records(), gaussian(3000.0), secure_aggregation()))


def test_a_formula_is_read_once_and_its_columns_are_made_at_each_party_from_the_terms() -> None:
    levels = {"ward": ("icu", "surgery", "burns")}
    model = LinearRegression.from_formula(
        "cost ~ age + ward", bounds={"age": (0, 120)}, levels=levels, target_bound=600, rows=300
    )
    terms = model.terms(clients=3, defense=secure_aggregation())
    mine = from_terms(SumTerms.from_bytes(terms.to_bytes()))
    assert mine == model
    assert model.parameter_names() == ("intercept", "age", "ward[T.surgery]", "ward[T.burns]")
    for name, part in mine.summand(SITES[0]).items():
        np.testing.assert_array_equal(part, model.summand(SITES[0])[name])
    with pytest.raises(DataError, match="'ward' holds 'maternity'"):
        model.summand({**SITES[0], "ward": ["maternity"] * len(SITES[0]["age"])})
    omitting = LinearRegression.from_formula(
        "cost ~ age + ward", bounds={"age": (0, 120)}, levels=levels, target_bound=600, rows=300, outliers="omit"
    )
    assert omitting.summand({**SITES[0], "ward": ["maternity"] * len(SITES[0]["age"])})["count"] == 0


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        ("cost ~ log(age)", r"holds 'log\(age\)'"),
        ("cost ~ age + other", "names other, which has neither bounds nor levels"),
        ("cost ~ (", "is no formula"),
        ("cost ~ 1", "names no column"),
        ("cost + age ~ age", "several targets"),
        ("cost ~ age:ward", "age:ward without age"),
        ("cost ~ age + ward - 1", "without an intercept has no categories"),
    ],
)
def test_a_formula_that_cannot_be_summed_is_refused_by_name(formula: str, words: str) -> None:
    levels = {"ward": ("icu", "surgery")}
    with pytest.raises(ConfigError, match=words):
        LinearRegression.from_formula(formula, bounds={"age": 120}, levels=levels, target_bound=600, rows=300)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: LogisticModel(1).terms(clients=3, defense=None), ConfigError, "a sum for each iteration"),
        (lambda: GroupBy(LogisticModel(1), "sex", SEXES), ConfigError, "one sum"),
        (lambda: LogisticModel(1).simulate([(np.ones((9, 1)), np.full(9, 2.0))]), DataError, "targets are 0 or 1"),
        (lambda: PoissonModel(1, target_bound=(1, 4)).simulate([]), ConfigError, "start at 0"),
        (lambda: LinearRegression(1, robust="HC9"), ConfigError, "robust must be one of"),
        (lambda: LinearRegression(bound={"x": (0, 1)}, intercept=False), ConfigError, "without an intercept"),
        (lambda: CoxModel(1, times=(2, 1)), ConfigError, "ascending, positive"),
        (lambda: CoxModel(1, times=(1, 2), weights="w"), ConfigError, "takes no weights"),
        (lambda: LogRank((1, 2)), ConfigError, "compares groups"),
        (lambda: TTest(1.0, "g", ("a", "b", "c")), ConfigError, "Take ANOVA"),
        (lambda: ChiSquare((2, 2, 2)), ConfigError, "compares two columns"),
        (lambda: KaplanMeier((1, 2)).simulate([np.array([[1.0, 3.0]])]), DataError, "events are 0 or 1"),
        (
            lambda: CoxModel(1, times=(1, 2)).simulate([(np.zeros((9, 2)), np.ones(9))]),
            DataError,
            "no row has an event",
        ),
        (
            lambda: LinearRegression(1, robust="HC3").simulate([(np.eye(9)[:, :1], np.ones(9))]),
            DataError,
            "nearly determines a parameter alone",
        ),
        (lambda: ChiSquare((2, 2)).simulate([np.zeros((9, 2))]), DataError, "coarser levels"),
    ],
)
def test_misuse_is_named(call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()
