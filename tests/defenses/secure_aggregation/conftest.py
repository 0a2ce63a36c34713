"""A hand-fed exchange: messages pass a `tamper` function on the way, states are packed between stages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from securefed import SERVER, Aggregate, Message
from securefed._persistence.packing import pack, restore
from securefed.defenses import Plan, Session, TensorPlan, secure_aggregation
from securefed.defenses._secure_aggregation import SecureAggregation
from securefed.errors import MessageRefused

RUN = "0123456789abcdef0123456789abcdef"
STAGES = ("keys", "shares", "upload", "unmask")
Tamper = Callable[[Message], Message | None]


def plan_for(clients, tensors=(("w", (5,), 32), ("loss", (), 64)), threshold=None, **graph) -> Plan:
    """A plan of quantised tensors, given as (name, shape, ring)."""
    parts = tuple(TensorPlan(name, shape, 1.0, ring, 2.0**-10, 2**20, 0.0) for name, shape, ring in tensors)
    plan = Plan("test", clients, parts, {name: ring for name, _, ring in tensors})
    return secure_aggregation(threshold, **graph).plan(plan)


def session_for(cohort, round=0, run=RUN, **kwargs) -> Session:
    return Session(run, round, tuple(cohort), plan_for(kwargs.pop("clients", len(cohort)), **kwargs))


def contributions_for(session, seed=0) -> dict[int, dict[str, np.ndarray]]:
    """Signed entries whose sum over the cohort does not wrap, extremes of the ring among them."""
    rng = np.random.default_rng(seed)
    out = {}
    for client in session.cohort:
        out[client] = {}
        for tensor in session.plan.tensors:
            top = (2 ** (tensor.ring - 1) - 1) // len(session.cohort)
            out[client][tensor.name] = np.asarray(rng.integers(-top, top, tensor.shape, np.int64, endpoint=True))
    return out


def sum_of(contributions, clients) -> dict[str, np.ndarray]:
    """The same sum by another route: Python integers."""
    clients = list(clients)
    names = contributions[clients[0]]
    return {name: np.asarray(sum(contributions[c][name].astype(object) for c in clients), np.int64) for name in names}


@dataclass
class Outcome:
    """How an exchange went: the aggregate, every message delivered, and what was refused by whom."""

    aggregate: Aggregate | None = None
    sent: list[Message] = field(default_factory=list)
    refusals: list[tuple[int, MessageRefused]] = field(default_factory=list)
    clients: dict[int, object] = field(default_factory=dict)
    server: object = None

    def bodies(self, stage, sender=None, receiver=None):
        return [
            m.body
            for m in self.sent
            if m.stage == stage and sender in (None, m.sender) and receiver in (None, m.receiver)
        ]


def drive(
    session: Session,
    contributions: Mapping[int, Mapping[str, np.ndarray]],
    drops: Mapping[str, Collection[int]] | None = None,
    *,
    protocol: SecureAggregation | None = None,
    tamper: Tamper = lambda message: message,
    repack: bool = False,
    adversary: Callable[[object], object] = lambda state: state,
) -> Outcome:
    """One exchange. `drops`: by stage, clients that stay silent from then on. Lost or refused messages are dropouts.

    Errors other than `MessageRefused` leave this function as they are; so does a refusal of one that did not reply.
    """
    protocol, drops, out = protocol or SecureAggregation(), drops or {}, Outcome()
    out.clients = {client: protocol.client_open(session, client) for client in session.cohort}
    state, stage, outgoing = protocol.server_open(session)
    gone: set[int] = set()
    for _ in session.plan.stages:
        gone |= set(drops.get(stage, ()))
        replies = {}
        for client, body in outgoing.items():
            request = tamper(Message(session.run, session.round, stage, SERVER, client, body))
            if client in gone or request is None:
                continue
            encoded = contributions[client] if stage == protocol.upload else None
            try:
                out.clients[client], answer = protocol.client_step(out.clients[client], request, encoded)
            except MessageRefused as refusal:
                out.refusals.append((client, refusal))
                gone.add(client)
                continue
            out.clients[client] = adversary(out.clients[client])
            reply = tamper(Message(session.run, session.round, stage, client, SERVER, answer))
            out.sent += [request, *([reply] if reply else [])]
            if reply is not None:
                replies[client] = reply
        result = _serve(protocol, state, replies, out)
        if isinstance(result, Aggregate):
            out.aggregate = result
            return out
        state, stage, outgoing = result
        if repack:
            state = restore(protocol.server_open(session)[0], pack(state))
            fresh = {client: protocol.client_open(session, client) for client in session.cohort}
            out.clients = {c: restore(fresh[c], pack(out.clients[c])) for c in session.cohort}
        out.server = state
    raise AssertionError("the server neither summed nor refused")


def _serve(protocol, state, replies, out):
    while True:
        before = {name: value.copy() for name, value in pack(state).items()}
        try:
            result = protocol.server_step(state, replies)
        except MessageRefused as refusal:
            after = pack(state)
            assert all(np.array_equal(before[name], after[name]) for name in before), "a refusal changed the state"
            out.refusals.append((SERVER, refusal))
            if refusal.sender not in replies:
                raise
            replies = {client: reply for client, reply in replies.items() if client != refusal.sender}
        else:
            return result


def upto(session, contributions, stage):
    """Client states, server state and sealed requests at the point where `stage` is asked for."""
    protocol = SecureAggregation()
    clients = {client: protocol.client_open(session, client) for client in session.cohort}
    server, now, outgoing = protocol.server_open(session)
    while now != stage:
        replies = {}
        for client, body in outgoing.items():
            request = Message(session.run, session.round, now, SERVER, client, body)
            encoded = contributions[client] if now == protocol.upload else None
            clients[client], answer = protocol.client_step(clients[client], request, encoded)
            replies[client] = Message(session.run, session.round, now, client, SERVER, answer)
        server, now, outgoing = protocol.server_step(server, replies)
    return clients, server, outgoing


@pytest.fixture(scope="session")
def net():
    return SimpleNamespace(
        upto=upto,
        drive=drive,
        session=session_for,
        contributions=contributions_for,
        sum=sum_of,
        plan=plan_for,
        STAGES=STAGES,
    )
