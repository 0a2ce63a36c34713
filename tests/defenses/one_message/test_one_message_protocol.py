"""One message a client: exact sums, whoever drops out when, the same as in the clear, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Federation, InProcessTransport, LossyTransport, RunOptions
from securefed.algorithms import SSI, FedAvg, LoSAC
from securefed.defenses import Identities, chain, clip, one_message, quantise, skellam
from securefed.defenses._base import some_client_out
from securefed.defenses._one_message.plaintexts import Placing
from securefed.errors import ConfigError, PlanError, RoundVoid, TooFewSurvivors
from securefed.parties import SumClient, SumServer, SumTerms
from securefed.testing import parametrize_with_checks
from tests.combinations import each_value
from tests.defenses.one_message.play import (
    CLIENTS,
    IDENTITIES,
    MEMBERS,
    STAGES,
    Play,
    check_exact,
    losing,
    planned,
    protocol,
)

FIVE = Identities.generate(5)


@parametrize_with_checks([one_message(committee=range(5), identities=FIVE, lost=1)])
def test_it_passes_the_checks_of_every_aggregation(instance: Any, check: Any) -> None:
    check(instance)


@pytest.mark.parametrize(("stage", "lost"), each_value(STAGES, [(0,), (5,), (6,), (6, 7)]))
@pytest.mark.parametrize("direction", ["request", "reply"])
def test_clients_and_members_are_lost_at_every_moment(stage: str, lost: tuple[int, ...], direction: str) -> None:
    """A client is in the sum if its upload arrived, whatever it does afterwards."""
    play = Play(**{direction: losing(stage, *lost)})
    found = play.run()
    gone = lost if stage in ("keys", "upload") else ()
    assert found.survivors == tuple(c for c in range(CLIENTS) if c not in gone)
    check_exact(found, play.plan)


@pytest.mark.parametrize("stage", STAGES)
def test_more_lost_members_than_planned_void_the_round_at_every_stage(stage: str) -> None:
    with pytest.raises(TooFewSurvivors, match="3 members of the committee answered"):
        Play(protocol(committee=range(5)), reply=losing(stage, 0, 1)).run()


def test_too_few_uploads_open_nothing() -> None:
    with pytest.raises(TooFewSurvivors, match="4 clients uploaded, the threshold is 5"):
        Play(reply=lambda m: None if m.stage == "upload" and m.sender < 4 else m).run()


def test_a_client_sends_one_message_and_its_state_holds_no_secret() -> None:
    play = Play()
    play.run()
    assert sum(reply.sender == 7 for reply in play.replies) == 1
    state = play.clients[7]
    assert state.member is None
    assert state.stage == ""
    kept = {name for name, value in vars(state).items() if isinstance(value, bytes | np.ndarray) and len(value)}
    assert kept == {"keys", "exchange", "source"}  # all public
    member = play.clients[0].member
    assert member.secret == b""
    assert not member.shares.size


def test_a_client_that_sits_out_makes_the_sum_noise_and_is_not_seen_in_what_it_sends() -> None:
    play = Play(out=(6,))
    found = play.run()
    assert some_client_out(found.total, play.plan)
    sizes = {
        reply.sender: {name: (value.dtype, value.shape) for name, value in reply.body.items()}
        for reply in play.replies
        if reply.stage == "upload"
    }
    assert sizes[6] == sizes[7]
    assert not some_client_out(Play().run().total, play.plan)


def data(clients: int = 6) -> list[Dataset]:
    rng = np.random.default_rng(0)
    return [Dataset(rng.uniform(-1, 1, (5 + i, 6)), np.arange(5 + i) % 3) for i in range(clients)]


SIX = Identities.generate(6)


@pytest.mark.parametrize("algorithm", [SSI(rank=2), LoSAC(), FedAvg()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("links", [(), (quantise(32),), (quantise(16),)], ids=["own rings", "32 bits", "16 bits"])
def test_a_run_equals_the_run_with_quantise_bit_for_bit(algorithm: Any, links: Any) -> None:
    """While a client that is no member is lost in each round."""

    def lossy(endpoints: Any) -> Any:
        return LossyTransport(InProcessTransport(endpoints), replies=lambda m: m.stage == "upload" and m.sender == 5)

    defense = chain(*links, one_message(committee=range(5), identities=SIX, lost=1))
    clear = chain(*links) if links else quantise()
    runs = [Federation(algorithm, data(), d, seed=3, transport=lossy).run(2) for d in (defense, clear)]
    assert set(runs[0].output) == set(runs[1].output)
    for name, value in runs[0].output.items():
        np.testing.assert_array_equal(value, runs[1].output[name])


def test_noise_of_the_clients_is_summed_too() -> None:
    defense = chain(clip(1.0), skellam(1.0, survivors=4), one_message(committee=range(5), identities=SIX, threshold=4))
    assert Federation(FedAvg(), data(), defense).run(1).output


def test_a_round_that_loses_its_committee_is_void() -> None:
    def lossy(endpoints: Any) -> Any:
        return LossyTransport(InProcessTransport(endpoints), replies=lambda m: m.stage == "open" and m.sender < 2)

    run = Federation(
        SSI(rank=2), data(), one_message(committee=range(5), identities=SIX), transport=lossy,
        options=RunOptions(max_void=2),
    )  # fmt: skip
    with pytest.raises(RoundVoid, match="3 members of the committee answered at stage 'open'; 4 are needed"):
        run.run(1)


def test_parties_sum_by_it_each_with_its_own_identity() -> None:
    """`SumServer` and `SumClient` carry it as they are: members are clients."""
    updates = [{"w": np.arange(4.0) + i} for i in range(6)]
    defense = one_message(committee=range(5), identities=Identities(SIX.public), lost=1)
    terms = SumTerms.like(updates[0], clients=6, defense=defense)
    assert SumTerms.from_bytes(terms.to_bytes()).digest == terms.digest
    clients = {i: SumClient(terms, i, identity=SIX.own[i]) for i in range(6)}
    server = SumServer(terms)
    server.open(base=updates[0])
    while server.result is None:
        server.receive(
            {p: clients[p].receive(r, update=updates[p], base=updates[0]) for p, r in server.outgoing.items()}
        )
    np.testing.assert_array_equal(server.result.total["w"], 15.0 + 6 * np.arange(4.0))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"committee": range(3)}, "4 to 128 members"),
        ({"committee": (1, 0, 2, 3)}, "ascending"),
        ({"committee": (0, 1, 2, 2, 3)}, "ascending"),
        ({"committee": (-1, 0, 1, 2)}, "from 0"),
        ({"committee": range(6), "corrupt": 2}, "of 6 members of the committee 0 may be lost and 2 corrupt"),
        ({"committee": range(6), "corrupt": 1, "lost": 3}, "3 may be lost and 1 corrupt"),
        ({"committee": range(6), "corrupt": 0}, "corrupt"),
        ({"committee": range(2, 12)}, "client 8 has no identity"),
        ({"threshold": 2}, "threshold"),
        ({"identities": None}, "needs the clients' identities"),
        ({"keep_uploads": 1}, "True or False"),
    ],
)
def test_numbers_that_no_committee_meets_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        protocol(**({"lost": 0} | settings))


def test_plans_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(PlanError, match="6 members of the committee are clients, and 5 clients are planned"):
        planned(protocol(), 5)
    with pytest.raises(PlanError, match="a set of 9 uploads of 8 clients"):
        planned(protocol(threshold=9))
    with pytest.raises(PlanError, match="survivor_change=4"):
        planned(protocol(survivor_change=4))
    with pytest.raises(PlanError, match="not quantised"):
        protocol().plan(
            replace(
                planned(protocol()),
                tensors=tuple(replace(tensor, step=0.0, ring=0) for tensor in planned(protocol()).tensors),
            )
        )


def test_committees_stand_what_they_say() -> None:
    """Opening and quorum are reached without the lost ones, and any two quorums have an honest member in common."""
    everyone = Identities.generate(30)
    for size, lost in [(m, lost) for m in range(4, 30) for lost in range(m)]:
        try:
            own = protocol(committee=range(size), corrupt=None, lost=lost, identities=everyone).committee
        except ConfigError:
            assert size - lost < 4 or size < 2 * lost + 3
            continue
        assert size - lost >= 3 * own.corrupt + 1
        assert size - lost >= own.quorum
        assert 2 * own.quorum - size > own.corrupt
        assert own.handing_over <= size
        assert own.handing_over + own.quorum - own.corrupt > size


def test_members_must_be_invited() -> None:
    play = Play()
    session = replace(play.session, cohort=(0, 1, 2, 6, 7))
    with pytest.raises(ConfigError, match="3 members of the committee are among the invited clients"):
        play.aggregation.server_open(session)
    with pytest.raises(ConfigError, match="not in the cohort"):
        play.aggregation.client_open(replace(play.session, cohort=MEMBERS), 7)


def test_the_plan_says_that_it_is_experimental_and_how_many_bytes_a_message_has() -> None:
    plan = planned(protocol())
    assert "EXPERIMENTAL" in str(plan)
    play = Play()
    play.run()
    sent = {c: sum(v.nbytes for r in play.replies if r.sender == c for v in r.body.values()) for c in (0, 7)}
    assert sent[7] < sent[0] <= plan.upload_bytes
    assert sent[0] > 0.98 * plan.upload_bytes
    assert IDENTITIES.fingerprint in str(plan)
    assert Placing.of(plan).blocks == 1
    assert Placing.of(plan).encoding.primes == 2  # a tensor of 64 bits
