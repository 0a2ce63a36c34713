"""The server's steps: relay the members' keys, add uploads as they arrive, relay shares, open the sum of one set.

A lost client costs nothing: the sum is over the clients that uploaded. A lost member is an erasure, a lying one an
error, and both are corrected up to the numbers of the committee. A member says which clients' shares do not fit; where
it does, client or member is at fault, and the server cannot tell which. It first leaves members out as long as enough
are left to open the sum, those with the most complaints first, and a client of whom more than c members complain is at
fault for certain. Clients of whom the others still complain are left out of the sum, which needs their uploads
(`keep`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from securefed._messages import SERVER, Aggregate, ClientId, Message, PartyId
from securefed._persistence.packing import from_bytes
from securefed._tensors import Array
from securefed.defenses._aggregation import Outgoing
from securefed.defenses._one_message.client import hash_of
from securefed.defenses._one_message.decoding import opened
from securefed.defenses._one_message.encryption import PLANE_TYPES, PLANES, added, decrypt, taken_away
from securefed.defenses._one_message.parameters import MODULUS
from securefed.defenses._one_message.plaintexts import Placing
from securefed.defenses._one_message.ring import from_bytes as elements
from securefed.defenses._one_message.session import (
    CHECK,
    CONFIRM,
    HASH_BYTES,
    KEYS,
    OPEN,
    SIGNATURE,
    SIGNATURES,
    UPLOAD,
    OneMessageServer,
    Parties,
    bundle_bytes,
    complaints_statement,
    key_statement,
    opening_bytes,
    opening_statement,
    seed_of_tests,
    set_statement,
    share_hash,
    upload_statement,
)
from securefed.defenses._one_message.sharing import TESTS
from securefed.defenses._plan import Session
from securefed.defenses._secure_aggregation.identities import SIGNATURE_BYTES
from securefed.defenses._secure_aggregation.primitives import KEY_BYTES, check_order
from securefed.errors import ContradictionError, MalformedError, SurvivorsTooClose, TooFewSurvivors

Replies = Mapping[PartyId, Message]
Step = tuple[OneMessageServer, str, Outgoing]


def server_open(session: Session, parties: Parties, *, keep: bool) -> Step:
    """Start an exchange: ask the invited members for keys."""
    parties.check(session)
    asked = tuple(member for member in parties.committee.members if member in set(session.cohort))
    return OneMessageServer(KEYS, asked, session, parties, keep), KEYS, {member: {} for member in asked}


def server_step(state: OneMessageServer, replies: Replies) -> Step | Aggregate:
    """Take the replies of one stage, and return the next requests or the sum.

    Raises:
        MessageRefused: a reply is malformed, or not signed by its sender.
        TooFewSurvivors: too few uploads or members.
        SurvivorsTooClose: the run's sums, with this one, would tell too few clients apart.
    """
    for party, reply in replies.items():
        _expect(state, party, reply)
    if state.stage == UPLOAD:
        for client, reply in sorted(replies.items()):
            state = absorb(state, client, reply)
        return _relay(state)
    needed = state.parties.committee.needed if state.stage in (KEYS, CHECK) else 0
    _enough(replies, needed, state.stage)
    steps: dict[str, Callable[[OneMessageServer, Replies], Step | Aggregate]] = {
        KEYS: _distribute,
        CHECK: _choose,
        CONFIRM: _collect,
        OPEN: _finish,
    }
    return steps[state.stage](state, replies)


def _expect(state: OneMessageServer, party: PartyId, reply: Message) -> None:
    """Raise `MessageRefused` unless the reply is of a party that was asked, and of this exchange and stage."""
    if party not in state.asked:
        raise MalformedError(party, f"the server did not ask it at stage {state.stage!r}")
    session = state.session
    reply.check(run=session.run, round=session.round, stage=state.stage, sender=party, receiver=SERVER)


def _enough(members: Sequence[PartyId] | Replies, needed: int, stage: str) -> None:
    if len(members) < needed:
        raise TooFewSurvivors(
            f"{len(members)} members of the committee answered at stage {stage!r}; {needed} are needed, and the round "
            "is void"
        )


def _distribute(state: OneMessageServer, replies: Replies) -> Step:
    """Check the members' keys, and ask all clients for their uploads under them."""
    members, digest = tuple(sorted(replies)), state.parties.digest(state.session)
    keys, signatures = [], []
    for member in members:
        reply = replies[member]
        reply.expect_fields(("key", SIGNATURE))
        key = reply.take("key", np.uint8, (KEY_BYTES,))
        check_order(key.tobytes(), member)
        keys.append(key)
        signatures.append(_signature(state, reply, key_statement(digest, member, key.tobytes())))
    state = replace(
        state, stage=UPLOAD, asked=state.session.cohort, members=members, keys=np.stack(keys),
        key_signatures=np.stack(signatures),
    )  # fmt: skip
    return state, UPLOAD, dict.fromkeys(state.session.cohort, _keys_of(state))


def _keys_of(state: OneMessageServer) -> dict[str, Array]:
    return {
        "members": np.asarray(state.members, np.int64),
        "keys": state.keys,
        SIGNATURES: state.key_signatures,
    }


def _signature(state: OneMessageServer, reply: Message, statement: bytes) -> Array:
    """Return the reply's signature, once it is checked."""
    signature = reply.take(SIGNATURE, np.uint8, (SIGNATURE_BYTES,))
    what = f"what it sent at stage {reply.stage!r}"
    state.parties.identities.verify(reply.sender, statement, signature.tobytes(), what)
    return signature


def absorb(state: OneMessageServer, client: ClientId, reply: Message) -> OneMessageServer:
    """Add one upload to the running sum.

    Raises:
        MessageRefused: it is malformed or not signed by its client, or the client uploaded before.
    """
    _expect(state, client, reply)
    if client in state.uploads:
        raise ContradictionError(client, "it uploaded before in this exchange")
    reply.expect_fields((*PLANES, "source", "ephemeral", "bundles", "tests", SIGNATURE))
    placing, degree = Placing.of(state.session.plan), state.parties.committee.degree
    shape = placing.encoding.primes, placing.size
    parts = tuple(reply.take(name, kind, shape) for name, kind in zip(PLANES, PLANE_TYPES, strict=True))
    source = reply.take("source", np.uint8, (HASH_BYTES,))
    ephemeral = reply.take("ephemeral", np.uint8, (KEY_BYTES,))
    bundles = reply.take("bundles", np.uint8, (len(state.members), bundle_bytes(placing.encoding)))
    tests = reply.take("tests", np.int64, (TESTS, degree + 1))
    if tests.min() < 0 or tests.max() >= MODULUS:
        raise MalformedError(client, "its tests are no elements of the field")
    hashes, ciphertext = b"".join(map(share_hash, bundles)), hash_of(parts)
    seed = seed_of_tests(state.exchange, client, ephemeral.tobytes(), hashes)
    statement = upload_statement(state.exchange, client, source.tobytes(), ciphertext, seed, tests.tobytes())
    signature = _signature(state, reply, statement)
    own = {
        "source": source,
        "ciphertext": from_bytes(ciphertext),
        "ephemeral": ephemeral,
        "hashes": from_bytes(hashes).reshape(-1, HASH_BYTES),
        "tests": tests,
        "bundles": bundles,
        "statement": from_bytes(statement),
        SIGNATURE: signature,
    }
    kept = {**state.kept, client: parts} if state.keep else state.kept
    uploads = {**state.uploads, client: own}
    return replace(state, uploads=uploads, totals=added(state.totals, parts), kept=kept)


def _relay(state: OneMessageServer) -> Step:
    """Show every member all uploads, without y and with its share of each."""
    clients = tuple(sorted(state.uploads))
    _enough_uploads(state, clients)

    def column(name: str) -> Array:
        return np.stack([state.uploads[client][name] for client in clients])

    shown = _keys_of(state) | {
        "context": from_bytes(state.context),
        "ids": np.asarray(clients, np.int64),
        "sources": column("source"),
        "ciphertexts": column("ciphertext"),
        "ephemeral": column("ephemeral"),
        "hashes": column("hashes"),
        "tests": column("tests"),
        "signatures of uploads": column(SIGNATURE),
    }
    requests = {}
    for row, member in enumerate(state.members):
        requests[member] = shown | {"bundles": np.stack([state.uploads[client]["bundles"][row] for client in clients])}
    return replace(state, stage=CHECK, asked=state.members), CHECK, requests


def _enough_uploads(state: OneMessageServer, clients: Sequence[ClientId]) -> None:
    if len(clients) < state.session.plan.threshold:
        raise TooFewSurvivors(
            f"{len(clients)} clients uploaded, the threshold is {state.session.plan.threshold}; the round is void"
        )


def _choose(state: OneMessageServer, replies: Replies) -> Step:
    """Choose the set of uploads and the members that can open it, and ask the members to sign the set."""
    clients, members = tuple(sorted(state.uploads)), tuple(sorted(replies))
    shown, complaints = state.statements(clients), np.zeros((len(members), len(clients)), bool)
    for row, member in enumerate(members):
        reply = replies[member]
        reply.expect_fields(("complaints", SIGNATURE))
        one = reply.take("complaints", np.uint8, (len(clients),))
        _signature(state, reply, complaints_statement(state.exchange, member, shown, one.tobytes()))
        complaints[row] = one != 0
    dealt, out = settled(complaints, state.parties.committee.corrupt, state.parties.committee.opening)
    left_out = _explained(clients, members, complaints, dealt, out)
    survivors = tuple(client for client, gone in zip(clients, out, strict=True) if not gone)
    totals = state.totals
    for client in sorted(set(clients) - set(survivors)):
        if not state.keep:
            raise TooFewSurvivors(
                f"{left_out[client]}; the round is void (with keep_uploads=True the server would leave it out)"
            )
        totals = taken_away(totals, state.kept[client])
    _enough_uploads(state, survivors)
    least = state.session.so_far.least
    if least > 1 and (apart := state.session.so_far.smallest_with(survivors)) < least:
        raise SurvivorsTooClose(survivors, apart, least)
    able = tuple(member for member, well in zip(members, dealt, strict=True) if well)
    ids = np.asarray(survivors, np.int64)
    state = replace(
        state, stage=CONFIRM, asked=members, survivors=survivors, dealt=able, totals=totals, left_out=left_out
    )
    return state, CONFIRM, {member: {"ids": ids} for member in members}


def settled(complaints: Array, corrupt: int, opening: int) -> tuple[Array, Array]:
    """Decide which members open a sum, and which clients are left out, so that every pair of them is without complaint.

    Args:
        complaints: whether a member's share of a client does not fit, bool (members, clients).
        corrupt: c.
        opening: fewest members that open.

    Returns:
        Whether a member opens (members,), and whether a client is left out (clients,).
    """
    out = complaints.sum(axis=0) > corrupt
    opens = np.ones(len(complaints), bool)
    while opens.sum() > opening:
        left = (complaints & ~out)[opens].sum(axis=1)
        if not left.size or not left.max():
            break
        opens[np.flatnonzero(opens)[int(left.argmax())]] = False
    return opens, out | complaints[opens].any(axis=0)


def _explained(
    clients: Sequence[ClientId], members: Sequence[ClientId], complaints: Array, dealt: Array, out: Array
) -> dict[ClientId, str]:
    """Say why clients are left out, and members do not open the sum."""
    told: dict[ClientId, str] = {}
    for row, member in enumerate(members):
        if not dealt[row]:
            names = [client for client, bad in zip(clients, complaints[row], strict=True) if bad][:8]
            told[member] = f"member {member} reports that its shares from clients {names} do not fit: it opens no sum"
    for column, client in enumerate(clients):
        if out[column]:
            names = [member for member, bad in zip(members, complaints[:, column], strict=True) if bad]
            told[client] = (
                f"the shares of client {client} do not fit, say members {names} of the committee: it is left out, and "
                "one of them is at fault"
            )
    return told


def _collect(state: OneMessageServer, replies: Replies) -> Step:
    """Check the members' signatures of the set, and relay a quorum of them."""
    _enough(replies, state.parties.committee.quorum, CONFIRM)
    chosen = _chosen(state)
    signatures = {member: _signature(state, reply, chosen) for member, reply in sorted(replies.items())}
    for reply in replies.values():
        reply.expect_fields((SIGNATURE,))
    asked = tuple(member for member in state.dealt if member in signatures)
    _enough(asked, state.parties.committee.opening, CONFIRM)
    body = {"members": np.asarray(tuple(signatures), np.int64), SIGNATURES: np.stack(list(signatures.values()))}
    return replace(state, stage=OPEN, asked=asked, signatures=signatures), OPEN, dict.fromkeys(asked, body)


def _chosen(state: OneMessageServer) -> bytes:
    return set_statement(state.exchange, state.survivors, state.statements(state.survivors))


def _finish(state: OneMessageServer, replies: Replies) -> Aggregate:
    """Open the sum of the clients' keys, correct wrong shares, and decrypt."""
    committee, placing = state.parties.committee, Placing.of(state.session.plan)
    _enough(replies, committee.opening, OPEN)
    members, shares, chosen = tuple(sorted(replies)), [], _chosen(state)
    for member in members:
        reply = replies[member]
        reply.expect_fields(("share", SIGNATURE))
        share = reply.take("share", np.uint8, (opening_bytes(placing.encoding),)).tobytes()
        _signature(state, reply, opening_statement(chosen, member, share))
        shares.append(elements(share))
    points = committee.points(members)
    key, wrong = opened(points, np.stack(shares), committee.degree)
    left_out = dict(state.left_out)
    for member, point in zip(members, points, strict=True):
        if point in wrong:
            left_out[member] = f"member {member} revealed a wrong share of the sum, which was corrected"
    total = decrypt(state.totals, placing, key, state.exchange)
    return Aggregate(total, state.survivors, left_out=left_out)
