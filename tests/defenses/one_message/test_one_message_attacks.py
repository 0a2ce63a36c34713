"""Attempts of a server to open one client, with corrupt parties; each works once an assumption is broken."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from securefed import Aggregate, Message
from securefed._runtime.sum_memory import SumMemory, SumRule
from securefed._sampling.random_stream import SecureRandomStream
from securefed.defenses._one_message import encryption, ring
from securefed.defenses._one_message.parameters import DEVIATION, MODULI, MODULUS
from securefed.defenses._one_message.plaintexts import Placing
from securefed.defenses._one_message.session import seed_of_tests, signed, upload_statement
from securefed.defenses._one_message.sharing import interpolated
from securefed.errors import ContradictionError
from tests.defenses.one_message.play import CLIENTS, IDENTITIES, Play, check_exact, contribution, protocol

VICTIM = 6


def seen(play: Play) -> tuple[Aggregate, tuple[np.ndarray, ...], dict[int, np.ndarray]]:
    """The sum; the victim's y; and by member its share of the victim's key, had it told the server."""
    shares: dict[int, np.ndarray] = {}

    def note(message: Message) -> Message:
        if message.stage == "confirm":
            own = play.clients[message.sender].member
            shares[message.sender] = own.shares[own.clients.index(VICTIM)]
        return message

    play.reply = note
    found = play.run()
    upload = next(m for m in play.replies if (m.stage, m.sender) == ("upload", VICTIM))
    return found, tuple(upload.body[name] for name in encryption.PLANES), shares


def opens(play: Play, y: tuple[np.ndarray, ...], key: np.ndarray) -> bool:
    """Whether the victim's upload decrypts under this key."""
    total = encryption.decrypt(y, Placing.of(play.plan), key, play.clients[VICTIM].exchange)
    return all(np.array_equal(total[name], value) for name, value in contribution(VICTIM, play.plan).items())


def test_corrupt_members_up_to_the_bound_open_nobody_and_one_more_opens_everybody() -> None:
    play = Play()
    _, y, shares = seen(play)
    assert play.aggregation.committee.corrupt == 1
    assert not opens(play, y, shares[2])  # the best that one member has: its own share
    assert not opens(play, y, interpolated([0, 3], np.stack([np.zeros_like(shares[2]), shares[2]]), 1))
    assert opens(play, y, interpolated([1, 3], np.stack([shares[0], shares[2]]), 0))  # control: two members


def test_the_sum_of_keys_opens_the_sum_and_no_upload() -> None:
    play = Play()
    found, y, shares = seen(play)
    check_exact(found, play.plan)
    state = play.states[-1]
    openings = [ring.from_bytes(m.body["share"].tobytes()) for m in play.replies if m.stage == "open"]
    key = interpolated([1, 2], np.stack(openings[:2]), 0)
    everything = encryption.decrypt(state.totals, Placing.of(play.plan), key, state.exchange)
    assert np.array_equal(everything["w"], found.total["w"])  # the server has the sum of keys
    mean = ring.residues(np.rint(ring.centred(key) / CLIENTS).astype(np.int64))
    for guess in (key, mean, np.zeros_like(key)):
        assert not opens(play, y, guess)
    assert opens(play, y, interpolated([1, 2], np.stack([shares[0], shares[1]]), 0))  # control: the victim's own key


def test_what_two_opened_keys_leave_of_each_is_wide_and_of_ternary_ones_is_not() -> None:
    """Half of the sum is the best estimate of a Gaussian key. Its error keeps the deviation over sqrt(2); at six
    standard errors of 2^16 draws. Of two ternary keys, the sums 2 and -2 give both away: in 2 of 9 entries."""
    encoding = Placing.of(Play().plan).encoding
    draw = np.concatenate([encryption.draw_key(encoding, SecureRandomStream()) for _ in range(64)]).reshape(2, -1)
    left = (draw[0] - draw.sum(axis=0) / 2).std()
    assert abs(left / (DEVIATION / np.sqrt(2)) - 1) < 6 / np.sqrt(2 * draw.shape[1])
    assert left > 3.2
    ternary = np.random.default_rng(0).integers(-1, 2, draw.shape)
    assert abs(np.mean(np.abs(ternary.sum(axis=0)) == 2) - 2 / 9) < 0.01


def test_one_source_over_two_sets_would_show_a_client_and_members_refuse_it() -> None:
    without = tuple(client for client in range(CLIENTS) if client != VICTIM)
    first = Play(number=1)
    whole = first.run()
    second = Play(number=2, reply=lambda m: None if (m.stage, m.sender) == ("upload", VICTIM) else m)
    rest = second.run()
    assert rest.survivors == without
    shown = {name: whole.total[name] - rest.total[name] for name in whole.total}  # control: without memory it works
    assert all(np.array_equal(shown[name], value) for name, value in contribution(VICTIM, first.plan).items())
    for member, release in first.releases.items():
        memory = SumMemory().admitted("run", release, SumRule())
        with pytest.raises(ContradictionError, match="entered a sum over other survivors"):
            memory.admitted("run", second.releases[member], SumRule())


def test_members_that_were_lost_in_the_first_sum_are_too_few_to_sign_the_second() -> None:
    """The quorum of the second set would need more members without memory than are lost and corrupt together."""
    own = protocol().committee
    forgetful = (len(own.members) - own.quorum) + own.corrupt
    assert forgetful < own.quorum


def test_an_upload_made_from_the_victims_cancels_nothing_that_the_server_could_not_compute() -> None:
    """A colluding client that uploads minus the victim's y has no shares of minus its key: the sum is noise."""
    play = Play()
    stolen: dict[str, np.ndarray] = {}

    def copy(message: Message) -> Message:
        if message.stage == "upload" and message.sender == VICTIM:
            stolen.update(message.body)
        if message.stage != "upload" or message.sender != 7:
            return message
        rows = [ring.joined(*(stolen[name][row] for name in encryption.PLANES), q=q) for row, q in enumerate(MODULI)]
        minus = np.stack([(q - y) % q for y, q in zip(rows, MODULI, strict=True)])
        body = dict(message.body) | dict(zip(encryption.PLANES, ring.planes(minus), strict=True))
        return replace(message, body=body | {"signature": resigned(play, body)})

    play.reply = copy
    found = play.run()
    assert found.survivors == tuple(range(CLIENTS))
    expected = sum(contribution(client, play.plan)["w"] for client in range(VICTIM))
    assert not np.array_equal(found.total["w"], expected)


def resigned(play: Play, body: dict[str, np.ndarray]) -> np.ndarray:
    """Sign a changed upload of client 7 by its own identity."""
    exchange, ephemeral = play.clients[7].exchange, body["ephemeral"].tobytes()
    hashes = b"".join(_hash(bundle) for bundle in body["bundles"])
    seed = seed_of_tests(exchange, 7, ephemeral, hashes)
    ciphertext = _hash(np.concatenate([body[name].reshape(-1).view(np.uint8) for name in encryption.PLANES]))
    statement = upload_statement(exchange, 7, body["source"].tobytes(), ciphertext, seed, body["tests"].tobytes())
    return signed(IDENTITIES, 7, statement)


def _hash(data: np.ndarray) -> bytes:
    return hashlib.sha256(data.tobytes()).digest()


def first_row(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    """An upload modulo the first prime."""
    return ring.joined(*(part[0] for part in parts))


def test_an_upload_looks_uniform_whatever_it_holds() -> None:
    """16 bins of the top bits of 2^15 coefficients: 15 degrees of freedom, mean 15, deviation 5.5; six are 48.

    Control: without the mask A s, a scaled contribution fills few bins.
    """
    placing = Placing.of(Play().plan)
    stream = SecureRandomStream()
    largest = {t.name: np.full(t.shape, int(t.bound / t.step)) for t in placing.tensors}

    def statistic(key: np.ndarray) -> float:
        parts = [first_row(encryption.encrypt(largest, placing, key, bytes([k]) * 32, stream)) for k in range(16)]
        values = np.concatenate(parts)
        counts = np.bincount(values // (MODULUS // 16 + 1), minlength=16)
        return float(((counts - values.size / 16) ** 2 / (values.size / 16)).sum())

    assert statistic(encryption.draw_key(placing.encoding, stream)) < 48
    assert statistic(np.zeros(placing.encoding.degree, np.int64)) > 1000
