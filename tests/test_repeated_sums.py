"""Sums that would subtract: what a client lets out again, and over whom."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from securefed import (
    Dataset,
    Federation,
    InProcessTransport,
    Layout,
    LossyTransport,
    Message,
    Public,
    RunOptions,
    chain,
)
from securefed import _catalogue as catalogue
from securefed._runtime.sum_memory import SumMemory
from securefed.algorithms import SSI, Ditto
from securefed.defenses import Identities, clip, gaussian, secure_aggregation
from securefed.defenses._plan import SumsSoFar
from securefed.errors import RoundVoid
from tests.combinations import each_value

RNG = np.random.default_rng(5)
DATA = [Dataset(RNG.uniform(-1, 1, (8, 5)), np.arange(8) % 2) for _ in range(6)]
METHOD = SSI(rank=2, tolerance=0.0)


def dsgd(**options: Any) -> Any:
    return catalogue.algorithms.make("optimization/dsgd", learning_rate=0.05, **options)


class Narrow(SSI):
    """Its bound is half of what the data need, so that the first exchange of a run is void."""

    def layout(self, public: Public) -> Layout:
        largest = max(float(np.abs(d.x.T @ d.x).max()) for d in DATA)
        return Layout(tuple(replace(spec, bound=largest) for spec in super().layout(public)))


def without(party: int, when: Callable[[Message], bool]) -> Callable[[Any], LossyTransport]:
    return lambda endpoints: LossyTransport(
        InProcessTransport(endpoints), replies=lambda m: m.sender == party and m.stage == "upload" and when(m)
    )


def test_a_doubled_range_does_not_make_a_repeated_contribution_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server opens a round's sum, doubles the range, and asks again without client 0."""

    def repeat(match: str | None) -> Federation:
        identities = Identities.generate(len(DATA))
        federation = Federation(
            METHOD,
            DATA,
            chain(secure_aggregation(identities=identities)),
            transport=without(0, lambda m: m.round > 0),
            options=RunOptions(max_void=2),
        )
        server = federation.state
        federation.run(1)
        federation.state = server  # the same broadcast again
        federation._counted.exchanges.clear()
        federation._doublings["train"] = 1
        if match is None:
            federation.run(2)
        else:
            with pytest.raises(RoundVoid, match=match):
                federation.run(2)
        return federation

    repeat("entered a sum over other survivors")
    monkeypatch.setattr(SumMemory, "admitted", lambda memory, *_: memory)  # positive control: without the rule
    whole, rest = repeat(None).transcript.records
    own = DATA[0].x.T @ DATA[0].x @ whole.broadcast["basis"]
    np.testing.assert_allclose(whole.total["product"] - rest.total["product"], own, atol=1e-9)


def test_the_repeat_of_a_void_exchange_keeps_its_survivors() -> None:
    identities = Identities.generate(len(DATA))
    narrow = Narrow(rank=2, tolerance=0.0)
    federation = Federation(
        narrow, DATA, chain(secure_aggregation(identities=identities)), transport=without(5, lambda m: m.round == 0)
    )
    history = federation.run(2).history
    assert history[0].void
    assert history[0].survivors == (0, 1, 2, 3, 4)
    assert history[1].survivors == (0, 1, 2, 3, 4, 5)


def test_a_void_exchange_and_then_a_lost_client_do_not_use_up_the_others_absences() -> None:
    """The repeat waits for the lost client, as its sum must keep its survivors; meanwhile the bounds go on doubling."""

    class Narrower(Narrow):
        """Five doublings short."""

        def layout(self, public: Public) -> Layout:
            return Layout(tuple(replace(spec, bound=spec.bound / 16) for spec in super().layout(public)))

    federation = Federation(
        Narrower(rank=2, tolerance=0.0), DATA, chain(secure_aggregation(identities=Identities.generate(len(DATA)))),
        transport=without(4, lambda m: 0 < m.round < 6),
    )  # fmt: skip
    history = federation.run(2).history
    assert len(history[0].void) == 6
    assert [entry.survivors for entry in history] == [(0, 1, 2, 3, 4, 5)] * 2
    assert all(node.state.out < 8 for node in federation.nodes.values())


def test_a_client_that_had_zeros_to_send_under_noise_goes_on_with_the_next_round() -> None:
    method = catalogue.algorithms.make("pca/fedpg", rank=2, tolerance=0.0, local_steps=2)
    federation = Federation(method, DATA, chain(clip(1.0), gaussian(1.0), secure_aggregation()), batched=False)
    real, failed = type(method).contribute, []

    def once(self: Any, client: Any, broadcast: Any, rng: Any) -> Any:
        if not failed:
            failed.append(True)
            raise np.linalg.LinAlgError("of this client's data")
        return real(self, client, broadcast, rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(method), "contribute", once)
        federation.run(3)
    states = [node.state for node in federation.nodes.values()]
    assert failed and not any(state.stuck for state in states)
    assert all(state.committed.basis is not None for state in states)


@pytest.mark.parametrize(("identities", "pipelined"), each_value([None, Identities.generate(len(DATA))], [False, True]))
def test_survivors_change_by_none_or_by_several(identities: Identities | None, pipelined: bool) -> None:
    defense = chain(secure_aggregation(4, identities=identities, pipelined=pipelined, survivor_change=2))
    lossy = without(1, lambda m: m.round in (2, 3, 4))
    history = Federation(METHOD, DATA, defense, transport=lossy).run(6).history
    sets = [set(entry.survivors) for entry in history]
    changes = [len(a ^ b) for a, b in itertools.pairwise(sets)]
    assert any(changes)
    assert all(change == 0 or change >= 2 for change in changes)
    free = chain(secure_aggregation(4, identities=identities, pipelined=pipelined))  # positive control
    sets = [set(entry.survivors) for entry in Federation(METHOD, DATA, free, transport=lossy).run(6).history]
    assert 1 in [len(a ^ b) for a, b in itertools.pairwise(sets)]


@pytest.mark.parametrize("identities", [None, Identities.generate(len(DATA))], ids=["curious", "active"])
def test_a_server_that_does_not_keep_to_the_change_of_survivors_is_refused_by_the_clients(
    identities: Identities | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own check is taken out, and then the clients' rule, as the control."""
    defense = chain(secure_aggregation(4, identities=identities, survivor_change=2))
    monkeypatch.setattr(SumsSoFar, "smallest_with", lambda self, _: self.least)

    def run() -> list[int]:
        options = RunOptions(max_void=2)
        lossy = without(1, lambda m: m.round > 0)
        history = Federation(METHOD, DATA, defense, transport=lossy, options=options).run(2).history
        return [len(entry.survivors) for entry in history]

    with pytest.raises(RoundVoid, match=r"0 of 5 clients replied.*entered a sum over other survivors"):
        run()
    monkeypatch.setattr(SumMemory, "admitted", lambda memory, *_: memory)
    assert run() == [6, 5]


def test_a_broadcast_repeated_after_its_round_was_counted_is_answered_by_a_method_that_remembers() -> None:
    """Ditto's upload does not depend on what Ditto remembers: over other survivors the two sums subtract."""

    class Stubborn(Ditto):
        def combine(self, server: Any, aggregate: Any) -> Any:
            return replace(server, round=server.round + 1)  # the same broadcast again

    def sums(method: Any) -> Federation:
        layer = chain(secure_aggregation(identities=Identities.generate(len(DATA))))
        lossy = without(0, lambda m: m.round > 0)
        return Federation(method, DATA, layer, transport=lossy, options=RunOptions(max_void=2))

    federation = sums(Stubborn(learning_rate=0.02, local_steps=2))
    federation.run(2)
    whole, rest = federation.transcript.records
    own = federation.transcript.contributions[whole.round, 0]
    for name, value in own.items():
        np.testing.assert_array_equal(whole.total[name] - rest.total[name], value * whole.step[name])

    class StubbornSSI(SSI):  # positive control: a method that remembers nothing
        def combine(self, server: Any, aggregate: Any) -> Any:
            return replace(super().combine(server, aggregate), basis=server.basis)

    with pytest.raises(RoundVoid, match="entered a sum over other survivors"):
        sums(StubbornSSI(rank=2, tolerance=0.0)).run(2)
