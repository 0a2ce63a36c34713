"""What uploads look like, that no stream serves twice, and what collusion does and does not open."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from securefed.defenses._fixed_point import lanes, to_ring
from securefed.defenses._secure_aggregation import masks, primitives, shares
from securefed.defenses._secure_aggregation import session as session_module
from securefed.defenses._secure_aggregation.primitives import FIELD
from securefed.errors import AuthenticationError

ENTRIES = 20_000
LARGEST_CHI_SQUARE = 420  # 255 degrees of freedom: probability of more is below 1e-9
LARGEST_Z = 6.5  # two-sided 8e-11 for each bit


def byte_statistic(words):
    counts = np.bincount(np.frombuffer(words.tobytes(), np.uint8), minlength=256)
    expected = counts.sum() / 256
    return ((counts - expected) ** 2 / expected).sum()


def bit_statistic(words):
    """Largest |z| over bit positions of the hypothesis that the bit is fair."""
    bits = np.unpackbits(
        np.frombuffer(words.tobytes(), np.uint8).reshape(-1, words.itemsize), axis=1, bitorder="little"
    )
    return (np.abs(bits.mean(axis=0) - 0.5) * 2 * np.sqrt(len(bits))).max()


def looks_uniform(words):
    return byte_statistic(words) < LARGEST_CHI_SQUARE and bit_statistic(words) < LARGEST_Z


@pytest.mark.parametrize("ring", [20, 32, 64])
def test_masked_uploads_look_uniform_and_lesser_masks_do_not(net, ring):
    """Everybody contributes the same small numbers. Power: entries in the clear, one mask used for two uploads, and
    masks in which one bit in thirty-two leans 55 : 45 are all recognised with these numbers of entries."""
    entries = ENTRIES * lanes(ring)
    session = net.session([0, 1, 2, 3], tensors=(("w", (entries,), ring),))
    same = {client: {"w": np.full(entries, -3, np.int64)} for client in session.cohort}
    out = net.drive(session, same)
    uploads = [body["masked/w"] for body in out.bodies("upload") if "masked/w" in body]
    assert len(uploads) == 4
    for upload in uploads:
        assert looks_uniform(upload)
    for left, right in itertools.combinations(uploads, 2):
        assert looks_uniform(left - right)
        assert looks_uniform(left + right)
    dtype = uploads[0].dtype
    assert not looks_uniform(to_ring(same[0]["w"], ring))
    again = uploads[0] + np.arange(ENTRIES, dtype=dtype)
    assert not looks_uniform(again - uploads[0])
    rng = np.random.default_rng(0)
    leaning = uploads[0] | (rng.random(ENTRIES) < 0.1).astype(dtype)  # bit 0: 1/2 + 1/2 * 0.1
    assert bit_statistic(leaning) > LARGEST_Z


def spied_keys(monkeypatch):
    """Record the keys of masks and of their streams from now on."""
    keys, real = [], masks.stream_key

    def spied(*arguments):
        keys.append(real(*arguments))
        return keys[-1]

    monkeypatch.setattr(masks, "stream_key", spied)
    return keys


def test_no_stream_serves_two_rounds_pairs_tensors_or_directions(net, monkeypatch):
    """Every stream that clients make in two rounds, with the very same client secrets in both."""
    seeds = spied_keys(monkeypatch)
    cohort, tensors = (0, 1, 2, 3), (("a", (4,), 32), ("b", (4,), 32), ("c", (40,), 32))
    contributions, made = None, []
    for round in (0, 1):
        roots = itertools.count(1)
        monkeypatch.setattr(session_module.secrets, "token_bytes", lambda n, roots=roots: bytes([next(roots)]) * n)
        session = net.session(cohort, round=round, tensors=tensors)
        contributions = net.contributions(session)
        clients, _, requests = net.upto(session, contributions, "unmask")
        made.append(Counter(seeds))
        seeds.clear()
        assert set(requests) == set(clients)
    assert not set(made[0]) & set(made[1])
    pairs, own = len(cohort) * (len(cohort) - 1) // 2, len(cohort)
    for counts in made:
        assert Counter(counts.values()) == {2: pairs, 1: own}  # both ends of a pair
    keys = {seed[:16] for counts in made for seed in counts}
    assert len(keys) == 2 * (pairs + own)


def test_other_advertised_clients_or_share_dealers_give_other_shares_and_masks(net, monkeypatch):
    """The same client secrets in the same round: a server that asks again with others sees nothing recur."""
    uploads = []
    for drops in ({}, {"keys": [4]}, {"shares": [4]}):
        roots = itertools.count(1)
        monkeypatch.setattr(session_module.secrets, "token_bytes", lambda n, roots=roots: bytes([next(roots)]) * n)
        session = net.session(range(5), tensors=(("w", (1000,), 32),))
        out = net.drive(session, {c: {"w": np.zeros(1000, np.int64)} for c in range(5)}, drops)
        uploads.append(out.bodies("upload", sender=0)[0]["masked/w"])
    for left, right in itertools.combinations(uploads, 2):
        assert not (left == right).any()


def spy(net, session, contributions, drops=None):
    """An exchange, and what each client held when it had uploaded."""
    held = {}

    def keep(state):
        if state.stage == "unmask":
            held[state.client] = state
        return state

    return net.drive(session, contributions, drops, adversary=keep), held


def open_upload(session, out, held, victim, colluders):
    """What the server and `colluders` make of the victim's upload, as `Plan.open_to` says."""
    server, roster = out.server, out.server.advertised_clients
    points = [roster.index(c) + 1 for c in colluders]
    row = server.share_dealers.index(victim)
    both = np.stack([held[c].held_shares[row] for c in colluders])
    seed, key = FIELD.combine(points, both)
    exchange = server.exchange
    mask_key = primitives.private_key(key)
    applied = [masks.self_mask(seed, exchange, victim)]
    for peer in server.share_dealers:
        if peer != victim:
            public = server.mask_keys[roster.index(peer)].tobytes()
            applied.append(masks.pair_mask(primitives.agree(mask_key, public, peer), exchange, victim, peer))
    flat = out.bodies("upload", sender=victim)[0]["masked/w"].copy()
    masks.apply_masks([flat], applied, remove=True)
    return flat.view(np.int32).astype(np.int64), primitives.public_bytes(mask_key)


def test_t_colluding_clients_and_the_server_open_an_upload_and_one_fewer_do_not(net):
    session = net.session([1, 2, 4, 6, 7], tensors=(("w", (50,), 32),))
    contributions = net.contributions(session)
    out, held = spy(net, session, contributions)
    victim = 4
    advertised = out.server.mask_keys[out.server.advertised_clients.index(victim)].tobytes()
    for colluders in itertools.combinations([1, 2, 6, 7], session.plan.threshold):
        opened, public = open_upload(session, out, held, victim, colluders)
        assert public == advertised
        assert np.array_equal(opened, contributions[victim]["w"])
    for colluders in itertools.combinations([1, 2, 6, 7], session.plan.threshold - 1):
        opened, public = open_upload(session, out, held, victim, colluders)
        assert public != advertised
        assert not (opened == contributions[victim]["w"]).any()


def test_the_last_honest_survivor_is_opened_by_the_sum_itself(net):
    """The second half of `open_to`, with t - 1 colluders only: no protocol that gives the sum can prevent it."""
    session = net.session([0, 1, 2, 3, 4])
    contributions = net.contributions(session)
    out = net.drive(session, contributions, {"upload": [3, 4]})
    assert out.aggregate.survivors == (0, 1, 2)
    rest = net.sum(contributions, [0, 1])
    assert np.array_equal(out.aggregate.total["w"] - rest["w"], contributions[2]["w"])


def test_the_late_upload_of_a_client_declared_dead_stays_closed(net):
    """The server holds the dead client's mask key, so all pair masks, and (late) its upload: the self mask is left."""
    session = net.session([0, 1, 2, 3, 4], tensors=(("w", (ENTRIES,), 32),))
    late = {}

    def delay(message):
        if message.stage == "upload" and message.sender == 3:
            late["upload"] = message.body["masked/w"]
            return None
        return message

    contributions = {c: {"w": np.full(ENTRIES, 1, np.int64)} for c in session.cohort}
    out = net.drive(session, contributions, tamper=delay)
    assert out.aggregate.survivors == (0, 1, 2, 4)
    server = out.server
    replies = [out.bodies("unmask", sender=c)[0]["shares"] for c in (0, 1, 2)]
    opened = FIELD.combine([1, 2, 3], np.stack(replies))
    key = primitives.private_key(opened[3])
    assert primitives.public_bytes(key) == server.mask_keys[3].tobytes()
    exchange = server.exchange
    pairs = [
        masks.pair_mask(primitives.agree(key, server.mask_keys[i].tobytes(), i), exchange, 3, i) for i in (0, 1, 2, 4)
    ]
    flat = late["upload"].copy()
    masks.apply_masks([flat], pairs, remove=True)
    assert looks_uniform(flat)
    control = masks.self_mask(out_seed(out, net), exchange, 0)
    own = out.bodies("upload", sender=0)[0]["masked/w"].copy()
    masks.apply_masks([own], [control], remove=True)
    assert looks_uniform(own)  # an alive client: its self mask is known, its pair masks are not


def out_seed(out, net):
    replies = [out.bodies("unmask", sender=c)[0]["shares"] for c in (0, 1, 2)]
    return FIELD.combine([1, 2, 3], np.stack(replies))[0]


def test_a_dead_clients_mask_key_does_not_open_its_encrypted_shares(net):
    """Two key pairs: the one that shares reveal does not encrypt. The other, as a control, opens them."""
    session = net.session([0, 1, 2, 3, 4])
    clients, server, requests = net.upto(session, net.contributions(session), "upload")
    share_key = primitives.public_bytes(primitives.private_key(clients[0].share_secret))
    bundle = requests[0]["bundles"][3]
    tags = bundle[80:].tobytes()
    bound = primitives.label("bundle", server.digest, 3, 0, tags)

    def attempt(secret):
        agreement = primitives.agree(primitives.private_key(secret), share_key, 0)
        key, _ = shares.encrypted_shares_keys(agreement, server.digest, 3, 0)
        return primitives.decrypt_once(key, bundle[:80].tobytes(), bound, 3)

    assert len(attempt(clients[3].share_secret)) == 64
    with pytest.raises(AuthenticationError):
        attempt(clients[3].shared_secrets[1])
