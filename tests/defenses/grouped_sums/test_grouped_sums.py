"""One exchange of a grouped sum: parity, dropouts at every stage, clients that sit out or lie, refusals, the plan."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed import SERVER, Message
from securefed.defenses import Identities, chain, clip, gaussian, grouped, paillier, secure_aggregation
from securefed.defenses._base import some_client_out
from securefed.defenses._grouped_sums.robust import ESTIMATORS, robust_mean
from securefed.defenses._plan import plan_digest
from securefed.errors import ConfigError, ContradictionError, PlanError, TooFewSurvivors
from securefed.testing._aggregation_checks import CHECKS
from tests.defenses.grouped_sums.helpers import LAYOUT, Play, contributions, grouping, groups

PINNED = Identities.generate(20)
N = 20
MINE = contributions(N)
NAMES = list(ESTIMATORS)
CURIOUS = ("keys", "shares", "upload", "unmask")
ACTIVE = ("keys", "shares", "upload", "confirm", "unmask")


def decoded(play: Play, found: Any) -> dict[str, Any]:
    return play.defense.decode(found.total, play.plan, found.count)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_one_group_and_the_mean_pass_the_published_checks(check: Any) -> None:
    check(grouped(secure_aggregation(), groups=1, aggregator="mean"))


@pytest.mark.parametrize(("groups", "lost"), [*itertools.product([1, 4, 5], ["keys", "upload", "unmask", ""]), (6, "")])
def test_the_mean_is_the_plain_sum_bit_for_bit(groups: int, lost: str) -> None:
    """Of groups of equal and of unequal sizes, with two clients that are lost at a stage."""
    gone = {0, 7}
    plays = [
        Play(defense, N, MINE, lambda stage, client: stage == lost and client in gone)
        for defense in (chain(secure_aggregation()), grouping(groups, "mean"))
    ]
    plain, ours = (play.run() for play in plays)
    assert ours.survivors == plain.survivors
    for name, value in plain.total.items():
        np.testing.assert_array_equal(ours.total[name], value)
    assert sorted(c for group in ours.groups for c in group.survivors) == list(ours.survivors)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("identities", [None, PINNED], ids=["curious", "active"])
def test_the_sum_is_the_number_of_survivors_times_the_robust_mean_within_the_plan(name: str, identities: Any) -> None:
    play = Play(grouping(5, name, secure_aggregation(identities=identities)), N, MINE, freeze=True)
    found = play.run()
    means = []
    for members in groups(play):
        flat = [np.concatenate([MINE[c]["w"].reshape(-1), MINE[c]["b"]]) for c in members]
        means.append(np.mean(flat, axis=0))
    expected = N * robust_mean(np.stack(means), name, 1)
    got = decoded(play, found)
    errors = {tensor.name: tensor.error for tensor in play.plan.tensors}
    many = 100 if name == "geometric_median" else 1  # the plan's error is that of the means
    np.testing.assert_allclose(got["w"].reshape(-1), expected[:8], atol=many * errors["w"])
    np.testing.assert_allclose(got["b"], expected[8:], atol=many * errors["b"])
    assert found.left_out == {}
    assert [group.counted for group in found.groups] == [True] * 5


@pytest.mark.parametrize("identities", [None, PINNED], ids=["curious", "active"])
@pytest.mark.parametrize("stage", ACTIVE)
def test_a_group_below_its_threshold_is_left_out_and_named(identities: Any, stage: str) -> None:
    """Two of four lost leave fewer than three; the median of the four others is of those, and says so."""
    if stage not in (CURIOUS if identities is None else ACTIVE):
        return
    defense = grouping(5, "median", secure_aggregation(identities=identities))
    gone = set(groups(Play(defense, N, MINE))[2][:2])
    play = Play(defense, N, MINE, lambda at, client: at == stage and client in gone)
    found = play.run()
    third = groups(play)[2]
    assert found.survivors == tuple(c for c in range(N) if c not in third)
    assert set(found.left_out) == set(third)
    assert all("is left out" in reason and "threshold is 3" in reason for reason in found.left_out.values())
    later = [(at, c) for at, c in play.asked if c in third]
    stages = list(play.plan.stages)
    assert max(stages.index(at) for at, _ in later) == stages.index(stage)  # its clients are asked nothing more


@settings(max_examples=max(12, settings.default.max_examples // 8))
@given(st.sets(st.tuples(st.sampled_from(CURIOUS), st.integers(0, N - 1)), max_size=8), st.sampled_from(NAMES))
def test_losses_anywhere_give_the_estimate_of_the_groups_that_are_left_or_void(schedule: set[Any], name: str) -> None:
    """An independent count: a group is left where 3 of its 4 clients answer to the end; uploads count."""
    play = Play(grouping(5, name), N, MINE, lambda stage, client: (stage, client) in schedule)
    first = {c: min((CURIOUS.index(s) for s, who in schedule if who == c), default=9) for c in range(N)}
    uploaded = [[c for c in members if first[c] > 2] for members in groups(play)]
    left = [who for who, members in zip(uploaded, groups(play), strict=True) if sum(first[c] > 3 for c in members) >= 3]
    if len(left) < min(ESTIMATORS[name].needs(1), 4):
        with pytest.raises(TooFewSurvivors, match="groups are left"):
            play.run()
        return
    found = play.run()
    assert found.survivors == tuple(sorted(c for who in left for c in who))
    encoded = {c: play.encoded(c) for c in found.survivors}
    units = {tensor.name: tensor.step for tensor in play.plan.tensors}
    means = np.stack([
        np.concatenate([
            np.mean([encoded[c][key] * units[key] for c in who], axis=0).reshape(-1) for key in ("w", "b")
        ])
        for who in left
    ])  # fmt: skip
    liars = int(len(left) >= ESTIMATORS[name].needs(1))  # Krum of four groups of five stands no further liar
    expected = found.count * robust_mean(means, name, liars)
    got = np.concatenate([decoded(play, found)[key].reshape(-1) for key in ("w", "b")])
    np.testing.assert_allclose(got, expected, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_a_group_with_a_client_that_sits_out_is_left_out_where_the_estimator_stands_it(name: str) -> None:
    """The server learns one bit of the group; where too few are left the exchange is void, and bounds double."""
    play = Play(grouping(6, name), N, {**MINE, 4: None})
    found = play.run()
    own = next(members for members in groups(play) if 4 in members)
    assert set(found.left_out) == set(own)
    assert "sat out" in found.left_out[4]
    assert not np.any(found.total["out.indicator"])
    assert [group.counted for group in found.groups].count(False) == 1
    several = {members[0]: None for members in groups(play)[:2]}
    void = Play(grouping(6, name), N, {**MINE, **several})
    noise = void.run()
    assert some_client_out(noise.total, void.plan)
    assert noise.survivors == tuple(range(N))


def test_one_client_that_sits_out_voids_a_mean() -> None:
    play = Play(grouping(5, "mean"), N, {**MINE, 4: None})
    assert some_client_out(play.run().total, play.plan)


@pytest.mark.parametrize("times", [8, 10])
def test_a_sum_beyond_what_a_group_may_send_is_left_out(times: float) -> None:
    """A liar sends any integers. Within the bounds of its group (control) its group counts."""
    plan = Play(grouping(), N, MINE).plan
    steps = {tensor.name: tensor.step for tensor in plan.tensors}

    def lie(size: float) -> dict[str, Any]:
        out = {spec.name: np.full(spec.shape, int(size * spec.bound / steps[spec.name]), np.int64) for spec in LAYOUT}  # type: ignore[operator]
        return out | {"out.indicator": np.zeros(2, np.int64)}

    play = Play(grouping(), N, {**MINE, 11: lie(times)})
    found = play.run()
    own = next(members for members in groups(play) if 11 in members)
    assert set(found.left_out) == set(own)
    assert "larger than its clients may send together" in found.left_out[11]
    assert Play(grouping(), N, {**MINE, 11: lie(0.99)}).run().left_out == {}


def test_a_group_that_is_not_invited_is_not_asked() -> None:
    whole = Play(grouping(), N, MINE)
    absent = groups(whole)[1]
    play = Play(grouping(), N, MINE, cohort=tuple(c for c in range(N) if c not in absent[1:]))
    found = play.run()
    assert found.survivors == tuple(c for c in range(N) if c not in absent)
    assert not {c for _, c in play.asked} & set(absent)


def test_a_reply_of_a_client_in_no_open_group_is_refused() -> None:
    play = Play(grouping(), N, MINE, cohort=tuple(c for c in range(N) if c != 3))
    server, stage, _ = play.defense.aggregation.server_open(play.session)
    with pytest.raises(ContradictionError, match="in no group"):
        play.defense.aggregation.server_step(server, {3: Message("ab" * 16, 3, stage, 3, SERVER, {})})


def test_clients_of_other_terms_are_not_summed() -> None:
    """Number of groups, estimator and liars are bound to masks: of two plans no digest is the same."""
    several = [
        grouping(5),
        grouping(4),
        grouping(5, "krum"),
        grouping(5, "trimmed_mean"),
        grouping(5, "median", liars=2),
    ]
    digests = {plan_digest(d.plan(LAYOUT, N)) for d in several}
    inner = {plan_digest(p) for d in several for p in d.plan(LAYOUT, N).grouping.plans.values()}  # type: ignore[union-attr]
    assert len(digests) == 5
    assert len(inner) == 5
    assert plan_digest(chain(secure_aggregation()).plan(LAYOUT, 4)) not in inner


def test_the_plan_says_what_groups_cost_and_promise() -> None:
    text = str(grouping(5, "trimmed_mean", secure_aggregation(identities=PINNED)).plan(LAYOUT, N))
    for words in (
        "survivors needed: 3 of 4 in a group, and 3 of 5 groups",
        "20 clients are in 5 groups of 4, and the server sees the sum of each, over 3 clients or more; one sum of all",
        "2 others in a sum of 3 leave one contribution",
        "with probability 0.097",
        "drawn from all identity keys",
        "a client that makes its identity last can try many",
        "One bit a group shows the server",
        "the trimmed mean, entry by entry, of the group means. It stands 1 group with a liar",
        "biased where honest clients differ",
        "left out and named; where only the 3 groups that must count are left, they stand 1 with a liar",
        "In a group: The server may deviate in any way while at most 1 of the clients",
    ):
        assert words in text
    curious = str(grouping().plan(LAYOUT, N))
    assert "drawn from the run's identifier" in curious
    assert "a server that draws many identifiers chooses the groups" in curious
    assert "4 of 5" not in curious
    assert "survivors needed: 3 of 3 or 4 in a group, and 6 of 6 groups" in str(grouping(6, "mean").plan(LAYOUT, N))


REFUSED: list[tuple[Any, type[Exception], str]] = [
    (lambda: grouped(paillier(), groups=5), ConfigError, "the sums of groups are masked"),  # type: ignore[arg-type]
    (lambda: grouped(secure_aggregation(pipelined=True), groups=5), ConfigError, "give pipelined=False"),
    (lambda: grouped(secure_aggregation(verify=True), groups=5), ConfigError, "verify=True is for one sum"),
    (lambda: grouped(secure_aggregation(graph="auto", adversarial=0.1, dropouts=0.1), groups=5), ConfigError, "graph="),
    (lambda: grouped(secure_aggregation(), groups=0), ConfigError, "groups"),
    (lambda: grouped(secure_aggregation(), groups=5, aggregator="best"), ConfigError, "aggregator"),  # type: ignore[arg-type]
    (lambda: grouped(secure_aggregation(), groups=2), ConfigError, "median needs 3 groups for liars=1"),
    (lambda: grouped(secure_aggregation(), groups=4, aggregator="krum"), ConfigError, "krum needs 5 groups"),
    (lambda: grouped(secure_aggregation(), groups=5, liars=0), ConfigError, "for none take aggregator='mean'"),
    (lambda: grouped(secure_aggregation(), groups=5, aggregator="mean", liars=1), ConfigError, "stands no liar"),
    (lambda: grouping(5).plan(LAYOUT, 14), PlanError, "plan for at least 15 clients"),
    (lambda: grouping(5, masking=secure_aggregation(identities=PINNED)).plan(LAYOUT, 16), PlanError, "there are 20"),
    (
        lambda: chain(clip(1.0), gaussian(1.0), grouped(secure_aggregation(), groups=5)).plan(LAYOUT, N),
        PlanError, "noise that is sized for one sum",
    ),
    (lambda: grouping(5, masking=secure_aggregation(2)).plan(LAYOUT, N), PlanError, "not above half of 4"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "error", "words"), REFUSED, ids=[words for _, _, words in REFUSED])
def test_what_cannot_be_grouped_is_refused_when_it_is_made(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words.replace("(", r"\(")):
        make()


def test_a_clip_goes_with_groups() -> None:
    plan = chain(clip(1.0), grouped(secure_aggregation(), groups=5)).plan(LAYOUT, N)
    assert plan.privacy is not None
    assert not plan.noised
