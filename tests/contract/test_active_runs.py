"""Whole runs under identities: the result of the run in the clear, in three exchanges a round after the first."""

from __future__ import annotations

from typing import Any

import pytest

from securefed import SERVER, Federation, InProcessTransport, LossyTransport, Message, RunOptions, chain
from securefed import _catalogue as catalogue
from securefed.defenses import Identities, secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.errors import RoundVoid
from tests.combinations import first_ones
from tests.contract.test_pipelined_runs import CLIENTS, data, make, same_sums

FULL, SHORT = ("keys", "shares", "upload", "confirm", "unmask"), ("upload", "confirm", "unmask")
IDENTITIES = Identities.generate(CLIENTS)
DEFENSE, CLEAR = chain(secure_aggregation(identities=IDENTITIES, pipelined=True)), chain(Quantise())
LOSSES: list[tuple[int, ...]] = [(2,), (0, 2, 4)]  # one, and too many: threshold 3 of 5


def stages_of(result: Any) -> list[tuple[str, ...]]:
    found: dict[int, dict[str, None]] = {}
    for sent in result.transcript.sent:
        if sent.message.sender == SERVER and sent.message.stage in FULL:
            found.setdefault(sent.message.round, {})[sent.message.stage] = None
    return [tuple(stages) for stages in found.values()]


@pytest.mark.parametrize("name", ["pca/ssi", "optimization/losac"])
def test_a_run_is_bit_identical_and_takes_three_exchanges_after_the_first(name: str) -> None:
    ours = Federation(make(name), data(), DEFENSE, seed=3).run(4)
    same_sums(ours, Federation(make(name), data(), CLEAR, seed=3).run(4))
    assert stages_of(ours) == [FULL, SHORT, SHORT, SHORT]


def test_without_preparation_it_takes_five() -> None:
    defense = chain(secure_aggregation(identities=IDENTITIES))
    assert stages_of(Federation(make("pca/ssi"), data(), defense, seed=3).run(2)) == [FULL, FULL]


@pytest.mark.parametrize("lose", first_ones(["replies", "requests"]))
def test_clients_lost_at_every_stage_of_both_openings(lose: str) -> None:
    """Mini-batches are drawn anew for every exchange, so void rounds are repeated with the clients that are left.

    But a client that confirmed a sum over all refuses one without client 0, as the two would subtract: that takes one
    attempt more.
    """
    events: list[tuple[str, tuple[int, ...]]] = []
    for subset in LOSSES:
        for stage in FULL:
            events += [("upload", (subset[0],)), (stage, subset)]
        for stage in SHORT:
            events += [("none", ()), (stage, subset)]
    events.append(("none", ()))

    def lost(message: Message) -> bool:
        party = message.receiver if message.sender == SERVER else message.sender
        stage, clients = events[message.round] if message.round < len(events) else ("none", ())
        return message.stage == stage and party in clients

    settings: dict[str, Any] = {"seed": 5, "batched": False, "options": RunOptions(max_void=8)}
    algorithm = catalogue.algorithms.make("optimization/fedavg", learning_rate=0.02, local_epochs=1, batch_size=2)
    rounds = sum(len(clients) < 3 for _, clients in events) - 1  # the attempt after ("confirm", (0, 2, 4)) is refused
    result = Federation(
        algorithm,
        data(),
        DEFENSE,
        transport=lambda ends: LossyTransport(InProcessTransport(ends), **{lose: lost}),
        **settings,
    ).run(rounds)
    survivors = {record.round: record.survivors for record in result.transcript.records}
    assert sum(len(entry.void) for entry in result.history) == len(events) - rounds

    def same_survivors(endpoints: Any) -> LossyTransport:
        return LossyTransport(
            InProcessTransport(endpoints),
            replies=lambda m: m.stage == "upload" and m.sender not in survivors.get(m.round, ()),
        )

    same_sums(result, Federation(algorithm, data(), CLEAR, transport=same_survivors, **settings).run(rounds))


def test_a_round_that_failed_after_a_release_is_repeated_with_the_same_survivors_only() -> None:
    """Power iteration contributes the same again. All are back at the second attempt, or one of them never is."""

    def run(gone_for_good: bool) -> Any:
        def lost(message: Message) -> bool:
            if message.round == 2:
                return message.stage == "unmask" and message.sender in (0, 1, 2)
            return gone_for_good and message.round > 2 and message.stage == "upload" and message.sender == 4

        return Federation(
            make("pca/ssi"),
            data(),
            DEFENSE,
            seed=5,
            transport=lambda ends: LossyTransport(InProcessTransport(ends), replies=lost),
        ).run(5)

    result = run(gone_for_good=False)
    assert [len(entry.void) for entry in result.history] == [0, 0, 1, 0, 0]
    same_sums_of = Federation(make("pca/ssi"), data(), CLEAR, seed=5).run(5)
    for name, value in same_sums_of.output.items():
        assert (result.output[name] == value).all()
    with pytest.raises(RoundVoid, match="other survivors"):
        run(gone_for_good=True)
