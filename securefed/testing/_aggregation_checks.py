"""Checks that every aggregation must pass: it sums the contributions of five clients, some of which drop out.

An aggregation is the protocol that makes one sum, in stages of one request and one reply for each client. Its steps
take a state and return a new one; `_Exchange` below plays all parties.

An aggregation that hides single contributions sums one tensor more, the indicator. Every client that contributes adds
zero to it. A client that sits out uploads random numbers in all tensors, so that a sum of the indicator that is not
zero shows the server that the sums are noise.

Each check is a function of an aggregation. It raises `AssertionError` with what the aggregation does and what it should
do, or the aggregation's own named error. `securefed.testing.parametrize_with_checks` runs them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from securefed._messages import SERVER, Aggregate, ClientId, Message, PartyId
from securefed._persistence.packing import pack, restore
from securefed._tensors import Tensors
from securefed.defenses._base import Aggregation, Defense, Session, UploadContext, has_indicator, some_client_out
from securefed.defenses._chain import chain
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._plan import Plan
from securefed.errors import ProtocolError, SecureFedError, TooFewSurvivors
from securefed.testing._transform_checks import CLIENTS, LAYOUT, contributions

_RUN: Final = "ab" * 16
_ROUND: Final = 3
_CONTEXT: Final = bytes(32)
"""Stands for the digests of what clients were sent, to which an aggregation binds uploads."""
_LOST: Final[ClientId] = 2
"""The client whose replies are lost."""
_ROUNDING: Final = 1e-9
"""Rounding in float64 that is allowed on top of the plan's error."""


def check_plan_is_complete(aggregation: Aggregation) -> None:
    """Check that the plan keeps the tensors, and states stages, threshold, collusion and assumptions."""
    plan = _planned(aggregation)
    assert plan.own.names == LAYOUT.names, f"{aggregation}: `plan` must keep the tensors {LAYOUT.names}"
    assert aggregation.upload in plan.stages, f"{aggregation}: `Plan.stages` must hold {aggregation.upload!r}"
    assert 1 <= plan.threshold <= CLIENTS, f"{aggregation}: threshold {plan.threshold} of {CLIENTS} clients"
    assert plan.upload_bytes > 0, f"{aggregation}: `Plan.upload_bytes` must state what a client sends"
    assert plan.open_to, f"{aggregation}: `Plan.open_to` must name the parties that see single contributions"
    assert plan.assumptions, f"{aggregation}: `Plan.assumptions` must state what is assumed"
    assert all(tensor.max_clients >= CLIENTS for tensor in plan.tensors), f"{aggregation}: sums of the plan can wrap"
    assert has_indicator(plan) is aggregation.hides, f"{aggregation}: `plan` must keep the indicator it is given"
    assert plan == _planned(aggregation), f"{aggregation}: `plan` must depend on its argument alone"


def check_sum_is_right(aggregation: Aggregation) -> None:
    """Check the sum of all clients: within the plan's error and, where it is exact, equal to the integers' sum."""
    found = _Exchange(chain(aggregation)).run()
    assert found.survivors == tuple(range(CLIENTS)), f"{aggregation}: {found.survivors} are in a sum of all clients"
    _check_sum(aggregation, found)


def check_lost_replies(aggregation: Aggregation) -> None:
    """Check, stage by stage, that the sum stays right when a client's reply is lost and all later ones with it."""
    for stage in _planned(aggregation).stages:
        exchange = _Exchange(chain(aggregation), lost_at=stage)
        try:
            found = exchange.run()
        except TooFewSurvivors:
            assert _planned(aggregation).threshold == CLIENTS, (
                f"{aggregation}: one client lost at stage {stage!r} ends the exchange; the plan's threshold says that "
                f"{_planned(aggregation).threshold} of {CLIENTS} are enough"
            )
            continue
        counted, uploaded = _LOST in found.survivors, aggregation.upload in exchange.answered
        assert counted == uploaded, (
            f"{aggregation}: client {_LOST}, lost at stage {stage!r}, is {'' if counted else 'not '}counted, and its "
            f"upload {'arrived' if uploaded else 'was lost'}"
        )
        _check_sum(aggregation, found)


def check_too_few_survivors(aggregation: Aggregation) -> None:
    """Check that nothing is opened when every upload is lost."""
    try:
        _Exchange(chain(aggregation), all_lost=True).run()
    except TooFewSurvivors:
        return
    raise AssertionError(f"{aggregation}: `server_step` must raise TooFewSurvivors when no client uploads")


def check_states_freeze(aggregation: Aggregation) -> None:
    """Check that every state survives a process: packed and restored after each step, the sum is the same."""
    _check_sum(aggregation, _Exchange(chain(aggregation), freeze=True).run())


def check_server_steps_are_pure(aggregation: Aggregation) -> None:
    """Check that a server step made twice from one state gives the same sum."""
    first, second = (_Exchange(chain(aggregation), twice=twice).run().total for twice in (False, True))
    for name, value in second.items():
        if aggregation.exact:
            assert np.array_equal(value, first[name]), f"{aggregation}: `server_step` changes the state it is given"
    _check_sum(aggregation, _Exchange(chain(aggregation), twice=True).run())


def check_client_that_sits_out(aggregation: Aggregation) -> None:
    """Check that the sum shows that a client sat out, and only then; where single contributions are hidden."""
    if not aggregation.hides:
        return
    plan = _planned(aggregation)
    complete = _Exchange(chain(aggregation)).run().total
    assert not some_client_out(complete, plan), f"{aggregation}: the sum shows that a client sat out, but none did"
    total = _Exchange(chain(aggregation), sits_out=_LOST).run().total
    assert some_client_out(total, plan), (
        f"{aggregation}: a client that sits out (`client_upload` with None) must upload uniform residues in every "
        "tensor, the indicator included, so that the sum shows it"
    )


def check_refused_requests(aggregation: Aggregation) -> None:
    """Check that a client refuses an unknown stage, and a request for a second upload, by a `ProtocolError`."""
    defense, plan = chain(aggregation), _planned(aggregation)
    session = Session(_RUN, _ROUND, tuple(range(CLIENTS)), plan)
    state = aggregation.client_open(session, 0)
    encoded = defense.encode(contributions()[0], session.plan)
    _expect_refusal(aggregation, state, _request("no such stage", {}), None, "a stage that the plan does not have")
    exchange = _Exchange(defense)
    exchange.run()
    used, request = exchange.clients[0], exchange.requests[0]
    _expect_refusal(aggregation, used, request, encoded, "a second request for the upload of one exchange")


CHECKS: Final[tuple[Callable[[Aggregation], None], ...]] = (
    check_plan_is_complete,
    check_sum_is_right,
    check_lost_replies,
    check_too_few_survivors,
    check_states_freeze,
    check_server_steps_are_pure,
    check_client_that_sits_out,
    check_refused_requests,
)
"""All checks, each a function of an aggregation."""


@dataclass
class _Exchange:
    """One exchange of `contributions()` in this process.

    Attributes:
        defense: the defence.
        lost_at: the stage from which on the replies of one client are lost.
        all_lost: whether every upload is lost.
        sits_out: a client that has no contribution.
        freeze: whether states are packed and restored after each step.
        twice: whether each server step is made twice, and the second result used.
        clients: the clients' states after the exchange.
        requests: the requests for an upload, by client.
        answered: the stages at which replies of the client that may be lost reached the server.
        gone: whether that client is lost.
    """

    defense: Defense
    lost_at: str | None = None
    all_lost: bool = False
    sits_out: ClientId | None = None
    freeze: bool = False
    twice: bool = False
    clients: dict[PartyId, Any] = field(default_factory=dict)
    requests: dict[PartyId, Message] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    gone: bool = False

    def run(self) -> Aggregate:
        """Return the sum as the server holds it, before it is decoded."""
        protocol = self.defense.aggregation
        plan = self.defense.plan(LAYOUT, CLIENTS)
        session = Session(_RUN, _ROUND, tuple(range(CLIENTS)), plan, _CONTEXT)
        self.clients = {client: protocol.client_open(session, client) for client in session.cohort}
        helper = protocol.helper(CLIENTS)  # a further party, such as a key holder; `None` where none is needed
        state, stage, outgoing = protocol.server_open(session)
        while True:
            replies: dict[PartyId, Message] = {}
            for party, body in outgoing.items():
                request = Message(session.run, session.round, stage, SERVER, party, body)
                reply = self._answer(request, session.plan) if party in self.clients else None
                if reply is None:
                    assert helper is not None, f"{protocol}: a request to {party}, which takes no part"
                    reply = helper.handle(request)
                if not self._lost(stage, party):
                    replies[party] = Message(session.run, session.round, stage, party, SERVER, reply)
            state = self._thawed(state)
            step = protocol.server_step(state, dict(replies))
            if self.twice:
                step = protocol.server_step(state, dict(replies))
            if isinstance(step, Aggregate):
                return step
            state, stage, outgoing = step

    def _answer(self, request: Message, plan: Plan) -> Tensors:
        protocol, client = self.defense.aggregation, request.receiver
        state = self._thawed(self.clients[client])
        if request.stage != protocol.upload:
            self.clients[client], reply = protocol.client_step(state, request, None)
            return reply
        self.requests[client] = request
        encoded = None if client == self.sits_out else self.defense.encode(contributions()[client], plan)
        waiting = self._thawed(protocol.client_accept(state, request, UploadContext(_CONTEXT, _CONTEXT)))
        self.clients[client], reply = protocol.client_upload(waiting, encoded)
        return reply

    def _thawed(self, state: Any) -> Any:
        return restore(state, pack(state)) if self.freeze else state

    def _lost(self, stage: str, party: PartyId) -> bool:
        """Tell whether a reply is lost, and note that of the client that may be lost."""
        if party not in self.clients:
            return False
        if self.all_lost and stage == self.defense.aggregation.upload:
            return True
        if party != _LOST:
            return False
        self.gone = self.gone or stage == self.lost_at
        if not self.gone:
            self.answered.add(stage)
        return self.gone


def _planned(aggregation: Aggregation) -> Plan:
    return chain(aggregation).plan(LAYOUT, CLIENTS)


def _check_sum(aggregation: Aggregation, found: Aggregate) -> None:
    """Check a sum against that of the survivors' contributions."""
    defense, plan = chain(aggregation), _planned(aggregation)
    given = [contributions()[client] for client in found.survivors]
    total = defense.decode(found.total, plan, found.count)
    for tensor in plan.tensors:
        if tensor.name not in LAYOUT.names:
            continue
        off = float(np.abs(total[tensor.name] - sum(one[tensor.name] for one in given)).max())
        assert off <= tensor.error + _ROUNDING, (
            f"{aggregation}: the sum of {tensor.name!r} over clients {found.survivors} is off by {off:.3g}; the plan "
            f"allows {tensor.error:.3g}"
        )
        if aggregation.exact and isinstance(defense.transforms[-1], Quantise):
            integers = sum(defense.encode(one, plan)[tensor.name] for one in given)
            assert np.array_equal(found.total[tensor.name], integers), (
                f"{aggregation}: `exact` is True, and the sum of {tensor.name!r} is not that of the encoded integers"
            )


def _request(stage: str, body: Mapping[str, Any]) -> Message:
    return Message(_RUN, _ROUND, stage, SERVER, 0, body)


def _expect_refusal(aggregation: Aggregation, state: Any, request: Message, encoded: Tensors | None, what: str) -> None:
    other: SecureFedError | None = None
    message = f"{aggregation}: a client must refuse {what} by a ProtocolError; see `expect_stage`"
    try:
        aggregation.client_step(state, request, encoded)
    except ProtocolError:
        return
    except SecureFedError as error:
        other = error
    raise AssertionError(message) from other
