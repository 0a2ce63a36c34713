"""ChaCha20 mask streams make the words of RFC 8439, and no block of a key twice."""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.defenses._secure_aggregation import chacha_stream, masks, primitives
from securefed.defenses._secure_aggregation import session as session_module
from securefed.defenses._secure_aggregation.chacha_stream import BLOCK, CHACHA20, STREAMS, ChaChaStream

SECRET = bytes(range(32))
SHORT = 4 * BLOCK
"""Bytes of a segment in these tests, where one is to end."""

RFC_8439_A_1 = {
    (bytes(32), 0): "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    (bytes(32), 1): "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    (bytes(31) + b"\1", 1): "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
    "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    (b"\0\xff" + bytes(30), 2): "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
    "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
}
"""RFC 8439, appendix A.1, test vectors 1 to 4, by key and block counter: those whose nonce is 0, as it is here."""


def block_of(key: bytes, counter: int) -> bytes:
    """The block function of RFC 8439, section 2.3, in Python's integers: another route to the words."""
    state = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
    x = list(state)

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for i, j, k, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[i] = (x[i] + x[j]) % 2**32
            mixed = x[k] ^ x[i]
            x[k] = (mixed << by | mixed >> (32 - by)) % 2**32

    for _ in range(10):
        for i in range(4):
            quarter(i, 4 + i, 8 + i, 12 + i)
        for i in range(4):
            quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4)
    return struct.pack("<16I", *((a + b) % 2**32 for a, b in zip(x, state, strict=True)))


@pytest.fixture
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chacha_stream, "SEGMENT", SHORT)


@pytest.mark.parametrize(("key", "counter"), RFC_8439_A_1)
def test_the_blocks_are_those_of_rfc_8439_appendix_a_1(key: bytes, counter: int) -> None:
    assert chacha_stream.start(key, counter).update(bytes(BLOCK)).hex() == RFC_8439_A_1[key, counter]
    assert block_of(key, counter).hex() == RFC_8439_A_1[key, counter]
    assert chacha_stream.start(key, counter + 1).update(bytes(BLOCK)).hex() != RFC_8439_A_1[key, counter]


@given(key=st.binary(min_size=32, max_size=32), counter=st.integers(0, 2**32 - 1))
def test_a_block_is_that_of_the_reference_at_any_counter(key: bytes, counter: int) -> None:
    assert chacha_stream.start(key, counter).update(bytes(BLOCK)) == block_of(key, counter)


@pytest.mark.parametrize("width", [4, 8])
def test_the_stream_is_blocks_from_zero_under_a_key_for_its_width_and_segment(width: int, short_segments: None) -> None:
    made = ChaChaStream(SECRET, width).update(bytes(3 * SHORT))
    keys = [primitives.hkdf(SECRET, primitives.label("mask", "chacha20", width, segment)) for segment in range(3)]
    assert made == b"".join(block_of(key, counter) for key in keys for counter in range(SHORT // BLOCK))


def test_a_segment_ends_where_the_block_counter_does() -> None:
    """The last block of a segment has the counter 2^32 - 1, and the next byte comes under the next key."""
    first, second = (chacha_stream.segment_key(SECRET, 4, segment) for segment in (0, 1))
    made = ChaChaStream(SECRET, 4, 2**38 - BLOCK).update(bytes(2 * BLOCK))
    assert made == block_of(first, 2**32 - 1) + block_of(second, 0)
    assert ChaChaStream(SECRET, 4, 2**38).update(bytes(BLOCK)) == block_of(second, 0)
    with pytest.raises(ValueError, match="counter"):  # the control: the cipher itself refuses to go beyond
        chacha_stream.start(first, 2**32 - 1).update(bytes(2 * BLOCK))


@given(offset=st.integers(0, 2 * SHORT), lengths=st.lists(st.integers(0, SHORT), max_size=5))
def test_any_offset_and_any_parts_give_the_same_bytes(offset: int, lengths: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chacha_stream, "SEGMENT", SHORT)
        whole = ChaChaStream(SECRET, 4).update(bytes(8 * SHORT))
        stream = ChaChaStream(SECRET, 4, offset)
        assert b"".join(stream.update(bytes(n)) for n in lengths) == whole[offset : offset + sum(lengths)]
        stream, buffer = ChaChaStream(SECRET, 4, offset), np.zeros(sum(lengths) + 15, np.uint8)
        place = 0
        for n in lengths:
            assert stream.update_into(np.zeros(n, np.uint8), buffer[place:]) == n
            place += n
        assert buffer[:place].tobytes() == whole[offset : offset + place]


@pytest.mark.parametrize("sizes", [(9,), (4, 5), (33_000, 1, 40_001), (1,), (0,)])
@pytest.mark.parametrize("dtype", [np.uint32, np.uint64])
def test_masks_are_the_stream_laid_over_all_tensors_of_a_width(dtype: type, sizes: tuple[int, ...]) -> None:
    """However short: no mask is the key itself, as it is under the other stream, so that a card makes all of them."""
    flats, other = (
        [np.zeros(size, dtype) for size in sizes],
        np.zeros(3, np.uint64 if dtype == np.uint32 else np.uint32),
    )
    masks.apply_masks([flats[0], other, *flats[1:]], [masks.SignedMask(SECRET, -1)], stream=CHACHA20)
    width = flats[0].itemsize
    expected = np.frombuffer(ChaChaStream(SECRET, width).update(bytes(width * sum(sizes))), f"<u{width}")
    assert np.array_equal(np.concatenate(flats), np.negative(expected))
    assert (
        other.tobytes()
        == np.negative(
            np.frombuffer(ChaChaStream(SECRET, other.itemsize).update(bytes(other.nbytes)), other.dtype)
        ).tobytes()
    )


def test_the_two_streams_of_one_secret_have_nothing_in_common() -> None:
    flats = {name: np.zeros(1000, np.uint32) for name in STREAMS}
    for name, flat in flats.items():
        masks.apply_masks([flat], [masks.SignedMask(SECRET, 1)], stream=name)
    assert (flats["chacha20"] != flats["aes-128-ctr"]).sum() > 990
    assert masks.stream_key(SECRET, 4) != chacha_stream.segment_key(SECRET, 4, 0)


# No key and counter serve twice


def blocks_of(net, monkeypatch: pytest.MonkeyPatch, rounds: int) -> Iterator[Counter[tuple[bytes, int]]]:
    """By round, how often the clients made each block, with the very same client secrets in every round."""
    made: Counter[tuple[bytes, int]] = Counter()
    real = chacha_stream.start

    class Spied:
        def __init__(self, key: bytes, block: int) -> None:
            self.key, self.at, self.cipher = key, block * BLOCK, real(key, block)

        def count(self, length: int) -> None:
            made.update((self.key, byte // BLOCK) for byte in range(self.at, self.at + length) if byte % BLOCK == 0)
            self.at += length

        def update(self, data: bytes) -> bytes:
            self.count(len(data))
            return self.cipher.update(data)

        def update_into(self, data: np.ndarray, buffer: np.ndarray) -> int:
            self.count(len(data))
            return self.cipher.update_into(data, buffer)

    monkeypatch.setattr(chacha_stream, "start", Spied)
    cohort, tensors = (0, 1, 2, 3), (("a", (70,), 32), ("b", (4,), 32), ("c", (40,), 64), ("d", (1,), 20))
    for round in range(rounds):
        roots = itertools.count(1)
        monkeypatch.setattr(session_module.secrets, "token_bytes", lambda n, roots=roots: bytes([next(roots)]) * n)
        session = net.session(cohort, round=round, tensors=tensors, stream=CHACHA20)
        made.clear()
        net.upto(session, net.contributions(session), "unmask")
        yield Counter(made)


def reused(counts: list[Counter[tuple[bytes, int]]]) -> list[str]:
    """Say which rule is broken: a block is made by both ends of a pair, or by the one client whose own mask it is."""
    found = []
    if set.intersection(*(set(one) for one in counts)):
        found.append("a block serves two rounds")
    for one in counts:
        times = Counter(Counter(one.values()))
        if set(times) != {1, 2}:
            found.append(f"blocks are made {sorted(times)} times")
        # 4 own masks and 6 pairs; 296 bytes of 32-bit integers are 5 blocks, 328 of 64-bit ones 6
        elif times != {1: 4 * 11, 2: 6 * 11}:
            found.append(f"{times} blocks are made once and twice")
    return found


def test_no_block_serves_two_rounds_tensors_widths_segments_or_directions(
    net, monkeypatch: pytest.MonkeyPatch, short_segments: None
) -> None:
    counts = list(blocks_of(net, monkeypatch, 2))
    assert not reused(counts)
    assert {block for one in counts for _, block in one} == set(range(SHORT // BLOCK))  # a second segment was begun


def _without(*left_out: str):
    """A derivation of segment keys that forgets a part of what it should depend on."""
    real = chacha_stream.segment_key

    def key(secret: bytes, width: int, segment: int) -> bytes:
        return real(
            bytes(32) if "secret" in left_out else secret,
            4 if "width" in left_out else width,
            0 if "segment" in left_out else segment,
        )

    return key


@pytest.mark.parametrize("part", ["width", "segment", "secret"])
def test_the_test_above_finds_a_key_that_forgets(part: str, net, monkeypatch, short_segments: None) -> None:
    monkeypatch.setattr(chacha_stream, "segment_key", _without(part))
    assert reused(list(blocks_of(net, monkeypatch, 2)))


def test_the_test_above_finds_a_secret_that_forgets_the_exchange_or_the_pair(net, monkeypatch, short_segments) -> None:
    from securefed.defenses._secure_aggregation import masking_client  # noqa: PLC0415 - patched where it is used

    real = masking_client.pair_mask
    with monkeypatch.context() as patch:
        patch.setattr(
            masking_client,
            "pair_mask",
            lambda a, exchange, i, j: masks.SignedMask(bytes(32), real(a, exchange, i, j).sign),
        )
        assert reused(list(blocks_of(net, patch, 2)))
    monkeypatch.setattr(masking_client, "self_mask", lambda seed, exchange, client: masks.self_mask(seed, b"", client))
    assert "a block serves two rounds" in reused(list(blocks_of(net, monkeypatch, 2)))
