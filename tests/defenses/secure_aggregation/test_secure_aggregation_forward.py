"""What is opened, or found in a state, opens nothing else: no other exchange, no other client; no key serves twice."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

from securefed import SERVER, Aggregate, Message
from securefed._persistence.packing import pack
from securefed.defenses import Session, secure_aggregation
from securefed.defenses._secure_aggregation import masks, primitives, shares, verification
from securefed.defenses._secure_aggregation.primitives import FIELD
from securefed.defenses._secure_aggregation.session import MaskingClient, seed_commitment
from tests.combinations import each_value

RUN = "0123456789abcdef0123456789abcdef"
CLIENTS, ENTRIES = 5, 20_000
VALUE = 3  # everybody's every entry: small, so that what is opened is far from uniform


@dataclass
class Run:
    """Some exchanges of the same clients, and all that anybody held in them."""

    plan: object
    protocol: object
    lost: dict = field(default_factory=dict)
    clients: dict = field(default_factory=dict)
    servers: list = field(default_factory=list)
    uploads: dict = field(default_factory=dict)
    held_shares: dict = field(default_factory=dict)
    states: dict = field(default_factory=dict)
    carried: object = None

    def exchange(self, number):
        session = Session(RUN, number, tuple(range(CLIENTS)), self.plan)
        contribution = {t.name: np.full(t.shape, VALUE, np.int64) for t in self.plan.tensors}
        for client in session.cohort:
            last = self.clients.get(client)
            resume = self.protocol.client_resume
            opened = self.protocol.client_open(session, client) if last is None else resume(session, client, last)
            self.clients[client] = opened
        state, stage, outgoing = self.protocol.server_resume(session, self.carried)
        while True:
            replies = {}
            for client, body in outgoing.items():
                request = Message(RUN, number, stage, SERVER, client, body)
                encoded = contribution if stage == "upload" else None
                self.clients[client], answer = self.protocol.client_step(self.clients[client], request, encoded)
                if stage == "upload":
                    self.uploads[number, client] = answer
                    self.held_shares[number, client] = self.clients[client].held_shares
                if client not in self.lost.get((number, stage), ()):
                    replies[client] = Message(RUN, number, stage, client, SERVER, answer)
            step = self.protocol.server_step(state, replies)
            if isinstance(step, Aggregate):
                self.servers.append(state)
                self.carried = self.protocol.server_carry(state, replies)
                self.states |= {(number, client): known_bytes(found) for client, found in self.clients.items()}
                return
            state, stage, outgoing = step

    def shared(self, number, client):
        """Both Shamir-shared secrets, from the shares of all."""
        row, t = self.servers[number].share_dealers.index(client), self.plan.masking.shares
        return FIELD.combine(range(1, t + 1), np.stack([self.held_shares[number, c][row] for c in range(t)]))

    def stripped(self, number, client, seed=None, mask_key=None, pairs=None):
        """The upload of w less the self mask of `seed`, and the masks that `mask_key` gives with `pairs`, or all."""
        server = self.servers[number]
        exchange = server.exchange
        applied = [] if seed is None else [masks.self_mask(seed, exchange, client)]
        for peer in range(CLIENTS) if pairs is None else pairs:
            if peer != client and mask_key is not None:
                public = server.mask_keys[server.advertised_clients.index(peer)].tobytes()
                agreement = primitives.agree(primitives.private_key(mask_key), public, peer)
                applied.append(masks.pair_mask(agreement, exchange, client, peer))
        flats = [self.uploads[number, client][f"masked/{t.name}"].reshape(-1).copy() for t in self.plan.tensors]
        masks.apply_masks(flats, applied, remove=True)
        return flats[0]

    def opened_by(self, known, number, client):
        """Which of the client's two secrets of an exchange something in `known` is, or derives as a root."""
        server = self.servers[number]
        row = server.share_dealers.index(client)
        commitment = server.commitments[row].tobytes()
        public = server.mask_keys[server.advertised_clients.index(client)].tobytes()
        found = {}
        for candidate in known:
            root = MaskingClient(client, "", candidate, server.session)
            for seed, mask_key in ((candidate, candidate), root.shared_secrets):
                if seed_commitment(server.digest, client, seed) == commitment:
                    found["seed"] = seed
                if primitives.public_bytes(primitives.private_key(mask_key)) == public:
                    found["mask_key"] = mask_key
        return found


def known_bytes(state):
    """Every 32 bytes in a row in what a state packs to; of arrays of rows, those where a row may begin."""
    windows = set()
    for value in pack(state).values():
        data = value.tobytes()
        step = 32 if value.ndim > 1 else 1
        windows |= {data[start : start + 32] for start in range(0, max(len(data) - 31, 0), step)}
    return windows


def run_of(net, exchanges, *, tensors=(("w", (ENTRIES,), 32),), lost=None, **options):
    run = Run(net.plan(CLIENTS, tensors, **options), secure_aggregation(**options), lost or {})
    for number in range(exchanges):
        run.exchange(number)
    return run


def uniform(words) -> bool:
    """Bytes by chi-square (255 degrees of freedom: more than 420 has probability below 1e-9), and each bit alone."""
    octets = np.frombuffer(words.tobytes(), np.uint8)
    counts = np.bincount(octets, minlength=256)
    expected = counts.sum() / 256
    bits = np.unpackbits(octets.reshape(-1, words.itemsize), axis=1).mean(axis=0)
    z = np.abs(bits - 0.5).max() * 2 * np.sqrt(len(words))
    return bool(((counts - expected) ** 2 / expected).sum() < 420 and z < 6.5)


def test_the_measure_has_power() -> None:
    """One bit of 32 that leans 55 : 45, one word in fifty that is small, and what is open are all recognised."""
    rng = np.random.default_rng(0)
    fair = rng.integers(0, 2**32, ENTRIES, np.uint32)
    assert uniform(fair)
    assert not uniform(fair | (rng.random(ENTRIES) < 0.1).astype(np.uint32))
    assert not uniform(np.where(rng.random(ENTRIES) < 1 / 50, np.uint32(7), fair))
    assert not uniform(np.full(ENTRIES, VALUE, np.uint32))


@pytest.mark.parametrize(("pipelined", "lost"), each_value([False, True], [{}, {(1, "upload"): [2]}]))
def test_all_shared_secrets_up_to_a_round_open_no_upload_after_it(net, pipelined, lost) -> None:
    """Both secrets of all clients in exchanges 0 and 1, a client lost among them, against exchanges 2 and 3."""
    run = run_of(net, 4, pipelined=pipelined, lost=lost)
    opened = [secret for number in (0, 1) for client in range(CLIENTS) for secret in run.shared(number, client)]
    for number, client in itertools.product((0, 1, 2, 3), (0, 2)):
        found = run.opened_by(opened, number, client)
        assert bool(found) is (number < 2)
        if found:  # power: with its own secrets, an upload is opened whole
            assert (run.stripped(number, client, **found) == VALUE).all()
        else:
            for before in (0, 1):
                seed, mask_key = run.shared(before, client)
                assert uniform(run.stripped(number, client, seed, mask_key))


def test_states_after_an_exchange_open_no_upload_of_it_or_before(net) -> None:
    """All that all clients hold when exchange 1 is over, against the uploads of exchanges 0 and 1, and 3.

    Power: where each exchange prepares the next, the same search in the same states does open the uploads of exchange 2
    (that prepared secrets wait in memory is said in `pipeline`); and before the upload its root is found.
    """
    for pipelined in (False, True):
        run = run_of(net, 4, pipelined=pipelined)
        known = set().union(*(run.states[1, client] for client in range(CLIENTS)))
        for number in (0, 1, 3):
            assert not run.opened_by(known, number, 1)
            assert uniform(run.stripped(number, 1))
        ahead = run.opened_by(run.states[1, 1], 2, 1)
        assert bool(ahead) is pipelined
        if ahead:
            assert (run.stripped(2, 1, **ahead) == VALUE).all()


def test_what_the_server_opens_of_a_round_leaves_each_upload_one_mask_short(net) -> None:
    """Exchange 0 with client 4 lost: the server has the survivors' seeds and 4's mask key, and t - 1 = 2 clients tell
    it all their pair secrets. What is left of another client's upload is one pair mask: uniform. Less that, open."""
    run = run_of(net, 1, lost={(0, "upload"): [4]})
    victim, colluders, dead, honest = 0, (1, 2), 4, 3
    seed, mask_key = run.shared(0, victim)
    assert run.plan.masking.shares - 1 == len(colluders)
    assert uniform(run.stripped(0, victim, seed, mask_key, pairs=[*colluders, dead]))
    assert uniform(run.stripped(0, victim, None, mask_key))  # the late upload of one that was declared dead
    whole = run.stripped(0, victim, seed, mask_key, pairs=[*colluders, dead, honest])
    assert (whole == VALUE).all()


def test_rounds_tensors_and_directions_never_share_a_key(net, monkeypatch) -> None:
    """Every key of a cipher in three exchanges with two tensors, sums verified: each encrypts one message, once."""
    used = Counter()

    def count(kind, real):
        def counted(key, *rest):
            used[kind, bytes(key)] += 1
            return real(key, *rest)

        return counted

    for module in (shares, verification):
        monkeypatch.setattr(module, "encrypt_once", count("message", module.encrypt_once))
    monkeypatch.setattr(masks, "mask_stream", count("mask", masks.mask_stream))
    for module in (verification, primitives, masks):
        monkeypatch.setattr(module, "key_stream", count(module.__name__, module.key_stream))
    tensors = (("w", (50,), 32), ("v", (50,), 32))
    run_of(net, 3, tensors=tensors, pipelined=True, verify=True)
    kinds = {kind for kind, _ in used}
    assert {"message", "mask"} < kinds
    keys = Counter(key for _, key in used)
    assert set(keys.values()) == {1}  # no key of one kind is one of another
    times = {kind: {count for (k, _), count in used.items() if k == kind} for kind in kinds}
    assert times["message"] == {1}  # the shares for one holder, or one piece, in one direction
    assert times["mask"] == {2}  # both ends of a pair; a self mask by its owner and by the server that removes it
    prefixes = Counter(key[:16] for kind, key in used if kind == "mask")
    assert set(prefixes.values()) == {1}  # nor do two streams share a cipher key and differ in the nonce alone
    exchanges, pairs = 3, CLIENTS * (CLIENTS - 1) // 2
    masks_made = sum(kind == "mask" for kind, _ in used)
    assert masks_made == exchanges * (pairs + CLIENTS)  # one stream over both tensors
    messages = sum(kind == "message" for kind, _ in used)
    assert messages == (exchanges + 1) * 2 * CLIENTS * (
        CLIENTS - 1
    )  # encrypted shares and pieces; one more exchange is prepared
