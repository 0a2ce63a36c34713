"""Secret cohorts: uniform, unpredictable, accounted for as drawn, and told by no result; no scalar beside noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare

from securefed import Aggregate, Dataset, Federation, Public, Terms, chain
from securefed import _catalogue as catalogue
from securefed._runtime.cohorts import uniform, unpredictable
from securefed._runtime.privacy_checks import check_cohort_secrecy, check_sampling, coins_of
from securefed.algorithms import SSI, FedAvg, Scaffold
from securefed.defenses import (
    Defense,
    FixedSizeSampling,
    PoissonSampling,
    clip,
    gaussian,
    local_gaussian,
    poisson,
    secure_aggregation,
    skellam,
)
from securefed.defenses._differential_privacy import CentralGaussian, InsecureGaussian
from securefed.errors import ConfigError, SecureFedError


def public(clients: int = 6, cohort: int = 3) -> Public:
    rng = np.random.default_rng(0)
    return Public.of([Dataset(rng.normal(size=(4, 2)), np.array([0, 1, 0, 1])) for _ in range(clients)], cohort=cohort)


def test_every_set_is_equally_likely() -> None:
    # 20 sets, 6000 draws: a set that came twice as often as the others would add 300 to a statistic of about 19.
    found = [unpredictable(range(6), 3) for _ in range(6000)]
    counts = [found.count(chosen) for chosen in combinations(range(6), 3)]
    assert sum(counts) == 6000
    assert chisquare(counts).pvalue > 1e-9
    assert chisquare([counts[0] + 300, *counts[1:]], np.full(20, 315.0)).pvalue < 1e-9


def test_a_secret_draw_is_not_repeated_and_a_seeded_one_is() -> None:
    everyone = range(1000)
    assert unpredictable(everyone, 10) != unpredictable(everyone, 10)
    assert uniform(everyone, 10, 0, 3) == uniform(everyone, 10, 0, 3)
    assert unpredictable([4, 7], 2) == (4, 7)


def test_a_sampler_that_is_not_drawn_is_refused() -> None:
    def drawn(sampler: Any, *, chosen: bool = False) -> None:
        noise = clip(1.0) if sampler is None else chain(clip(1.0), gaussian(1.0, sampler=sampler))
        check_sampling(chain(noise, secure_aggregation()), 3, 6, chosen=chosen)

    drawn(None, chosen=True)
    drawn("full", chosen=True)
    drawn(FixedSizeSampling(3, 6))
    for sampler, message in (
        (PoissonSampling(0.5), "fixed size"),
        (FixedSizeSampling(2, 6), "not this"),
        (FixedSizeSampling(3, 7), "not this"),
    ):
        with pytest.raises(ConfigError, match=message):
            drawn(sampler)
    with pytest.raises(ConfigError, match="a schedule or a selection"):
        drawn(FixedSizeSampling(3, 6), chosen=True)


# What a result says of who took part


def uneven(rows: Sequence[int], cohort: int = 3, features: int = 2) -> list[Dataset]:
    rng = np.random.default_rng(1)
    return [Dataset(rng.normal(size=(count, features)), np.arange(count) % 3) for count in rows]


ROWS = [6, 6, 6, 6, 6, 600]


def test_the_noise_that_is_left_shows_the_client_with_most_rows_and_a_secret_draw_is_not_accounted_for() -> None:
    """Divided by the survivors' rows, the same noise is smaller by a factor where the large client takes part."""
    clients, noise = uneven(ROWS, features=60), 5.0
    run = Federation(FedAvg(), clients, chain(clip(1.0), gaussian(noise)), cohort=3, seed=0).run(20)
    models = [record.broadcast for record in run.transcript.records] + [run.output]
    for entry, before, after in zip(run.history, models[:-1], models[1:], strict=True):
        moved = np.concatenate([(after[name] - before[name]).ravel() for name in after])
        # Deviation of the noise: 5 / (612 / 105) = .9 with the large client, 5 / (18 / 105) = 29 without it.
        assert bool(moved.std() < noise) is (5 in entry.survivors)
    assert 0 < sum(5 in entry.survivors for entry in run.history) < 20
    secret = chain(clip(1.0), gaussian(noise, sampler=FixedSizeSampling(3, 6)))
    with pytest.raises(ConfigError, match="FedAvg's result depends on which 3 of 6 clients"):
        Federation(FedAvg(), clients, secret, cohort=3)
    assert Federation(FedAvg(weighting="uniform"), clients, secret, cohort=3).run(1).history
    assert Federation(FedAvg(), uneven([6] * 6), secret, cohort=3).run(1).history


def _released(algorithm: Any, here: Public, cohorts: Sequence[tuple[int, ...]]) -> list[Any]:
    """What a run on equal sums shows, said to be of these clients."""
    rng, server, seen = np.random.default_rng(5), algorithm.start(here, np.random.default_rng(0)), []
    total = {s.name: rng.uniform(0, 1e-3, s.shape) * (s.bound or 1.0) for s in algorithm.layout(here)}
    for cohort in cohorts:
        with np.errstate(all="ignore"):
            server = algorithm.combine(server, Aggregate(total, cohort))
        seen += [algorithm.finished(server), *(value.tobytes() for value in algorithm.broadcast(server).values())]
    return seen


@pytest.mark.parametrize("rows", [[6] * 6, ROWS], ids=["even", "uneven"])
def test_every_algorithm_that_passes_shows_the_same_whoever_took_part_and_some_are_refused(rows: list[int]) -> None:
    here, rng, passed, refused = Public.of(uneven(rows, features=6), cohort=3), np.random.default_rng(9), [], []
    for name in catalogue.algorithms.names:
        settings = {"rank": 2} if name.startswith("pca/") else {"widths": (6, 3)} if name == "private/fedavg" else {}
        algorithm = catalogue.algorithms.make(name, **settings)
        try:
            check_cohort_secrecy(algorithm, here)
        except ConfigError:
            refused.append(name)
            continue
        passed.append(name)
        draws = [[tuple(sorted(rng.choice(6, 3, replace=False).tolist())) for _ in range(3)] for _ in range(4)]
        first, *others = (_released(algorithm, here, cohorts) for cohorts in draws)
        assert all(other == first for other in others), name
    by_rows = {"optimization/fedavg", "optimization/dsgd", "graph/fedavg", "personalized/ditto", "private/fedavg"}
    assert by_rows <= set(refused if rows is ROWS else passed)
    assert "optimization/fedadmm" in refused  # it divides by how many it has not heard of before
    assert {"optimization/scaffold", "personalized/pfedme", "graph/igl"} <= set(passed)


def test_a_stop_rule_that_compares_rounds_of_the_same_survivors_is_found_and_may_be_turned_off() -> None:
    here = Public.of(uneven([6] * 6), cohort=3)
    with pytest.raises(ConfigError, match="stop rule"):
        check_cohort_secrecy(SSI(rank=1), here)
    check_cohort_secrecy(SSI(rank=1, tolerance=0.0), here)
    check_cohort_secrecy(SSI(rank=1), Public.of(uneven([6] * 6), cohort=6))  # everybody takes part: nothing to tell


def test_an_algorithm_that_cannot_be_tried_out_is_refused() -> None:
    class Fragile(Scaffold):
        def combine(self, server: Any, aggregate: Aggregate) -> Any:
            raise SecureFedError("not like this")

    with pytest.raises(ConfigError, match="could not be tried out"):
        check_cohort_secrecy(Fragile(), Public.of(uneven([6] * 6), cohort=3))


# Scalars beside noise


@dataclass(frozen=True, kw_only=True)
class Choosy(FedAvg):
    """Takes the clients with the largest mean."""

    candidates: int = 4

    @property
    def reveals(self) -> Mapping[str, str]:
        return {"mean": "the mean of its rows"}

    def reveal(self, client: Any, rng: np.random.Generator) -> Mapping[str, float]:
        return {"mean": float(client.data.x.mean())}

    def choose(self, revealed: Mapping[int, Mapping[str, float]], cohort: int) -> Sequence[int]:
        return sorted(revealed, key=lambda client: -revealed[client]["mean"])[:cohort]


@pytest.mark.parametrize(
    "defense",
    [
        chain(clip(1.0), gaussian(2.0)),
        chain(clip(1.0), InsecureGaussian(CentralGaussian(2.0), 1)),
        chain(clip(1.0), local_gaussian(2.0)),
        chain(clip(1.0), skellam(2.0), secure_aggregation()),
        chain(clip(1.0), poisson(0.5), gaussian(2.0, sampler=PoissonSampling(0.5))),
    ],
    ids=str,
)
@pytest.mark.parametrize("reveal", [True, None])
def test_scalars_are_not_revealed_beside_any_noise(defense: Defense, reveal: bool | None) -> None:
    here = public(cohort=3)
    with pytest.raises(ConfigError, match=r"mean .* no epsilon covers|pass reveal=True|toss its own coin"):
        Terms.of(Choosy(), here, defense, reveal=reveal)
    if reveal:
        with pytest.raises(ConfigError, match=r"no epsilon covers|toss its own coin"):
            Terms.of(Choosy(), here, defense, reveal=reveal)
    assert Terms.of(Choosy(), here, chain(clip(1.0), secure_aggregation()), reveal=True).reveals
    if coins_of(defense) is None:  # else a cohort of 3 is refused already
        assert not Terms.of(FedAvg(), here, defense).reveals
