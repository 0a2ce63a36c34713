"""The kernel adds the words of RFC 8439 to any part of a tensor, as `cryptography` makes them."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st

from securefed.defenses._fixed_point import to_ring
from securefed.defenses._secure_aggregation import chacha_stream
from securefed.defenses._secure_aggregation.chacha_stream import BLOCK, CHACHA20, segment_key
from securefed.defenses._secure_aggregation.masks import SignedMask, apply_masks
from securefed.torch import _device_masks
from securefed.torch._chacha_kernel import LANES, add_streams
from securefed.torch._device_masks import add_masks
from tests.defenses.secure_aggregation.test_chacha_stream import RFC_8439_A_1

WIDTHS = {torch.int32: 4, torch.int64: 8}


def by_cryptography(secret: bytes, width: int, first: int, count: int) -> np.ndarray:
    """Words of a stream's first segment by the library alone: from word `first` on."""
    cipher = Cipher(algorithms.ChaCha20(segment_key(secret, width, 0), bytes(16)), None).encryptor()
    made = cipher.update(bytes((first + count) * width))
    return np.frombuffer(made, f"<u{width}")[first:]


def unsigned(words: torch.Tensor) -> np.ndarray:
    return words.numpy().view(f"<u{words.element_size()}")


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize(("key", "counter"), RFC_8439_A_1)
def test_the_blocks_are_those_of_rfc_8439_appendix_a_1(key: bytes, counter: int, wide: bool) -> None:
    words = torch.zeros(BLOCK // (8 if wide else 4), dtype=torch.int64 if wide else torch.int32)
    keys = torch.from_numpy(np.frombuffer(key, "<i4").copy())
    add_streams[(1,)](
        words, keys, torch.ones(1, dtype=torch.int32), 1, words.numel(), 0, counter, WIDE=wide, BLOCKS=LANES
    )
    assert words.numpy().tobytes().hex() == RFC_8439_A_1[key, counter]
    other = torch.zeros_like(words)  # the control: the next counter
    add_streams[(1,)](
        other, keys, torch.ones(1, dtype=torch.int32), 1, other.numel(), 0, counter + 1, WIDE=wide, BLOCKS=LANES
    )
    assert not torch.equal(other, words)


@settings(max_examples=15)
@given(
    data=st.data(),
    dtype=st.sampled_from(list(WIDTHS)),
    offset=st.integers(0, 3000),
    count=st.sampled_from([1, 7, 8, 15, 16, 17, 1023, 16 * LANES + 1]),
)
def test_random_offsets_and_lengths_are_those_of_cryptography(
    data: Any, dtype: torch.dtype, offset: int, count: int
) -> None:
    width = WIDTHS[dtype]
    signs = data.draw(st.lists(st.sampled_from([1, -1]), min_size=1, max_size=2))
    masks = [SignedMask(secrets.token_bytes(32), sign) for sign in signs]
    start = np.random.default_rng(count).integers(0, 2**32, count + 8).astype(f"<u{width}")
    expected = start[4:-4].copy()
    for mask in masks:
        made = by_cryptography(mask.secret, width, offset, count)
        expected = expected + made if mask.sign > 0 else expected - made
    whole = torch.from_numpy(start.view(f"<i{width}").copy())
    add_masks(whole[4:-4], masks, offset=offset)
    assert np.array_equal(unsigned(whole[4:-4]), expected)
    assert np.array_equal(unsigned(whole)[[*range(4), *range(-4, 0)]], start[[*range(4), *range(-4, 0)]])  # untouched
    add_masks(whole[4:-4], masks, offset=offset, remove=True)
    assert np.array_equal(unsigned(whole), start)


@pytest.mark.parametrize("ring", [10, 20, 32, 64])
def test_masks_are_those_of_the_message_layer_in_every_ring(ring: int) -> None:
    """So a party with a card and one without have the same pair mask; packed words are masked whole."""
    value = np.random.default_rng(ring).integers(-100, 100, 3001)
    words = to_ring(value, ring)
    masks = [SignedMask(secrets.token_bytes(32), sign) for sign in (1, -1, 1)]
    theirs = words.copy()
    ours = torch.from_numpy(words.view(f"<i{words.itemsize}").copy())
    apply_masks([theirs], masks, stream=CHACHA20)
    add_masks(ours, masks)
    assert np.array_equal(unsigned(ours), theirs)
    assert not np.array_equal(theirs, words)


@pytest.mark.parametrize("dtype", WIDTHS)
def test_segments_have_keys_of_their_own_on_the_device_too(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chacha_stream, _device_masks):
        monkeypatch.setattr(module, "SEGMENT", 4 * BLOCK)
    mask, count = SignedMask(secrets.token_bytes(32), 1), 3 * 4 * BLOCK // WIDTHS[dtype] + 5
    ours, theirs = torch.zeros(count, dtype=dtype), np.zeros(count, f"<u{WIDTHS[dtype]}")
    add_masks(ours, [mask])
    apply_masks([theirs], [mask], stream=CHACHA20)
    assert np.array_equal(unsigned(ours), theirs)
    part = torch.zeros(count - 61, dtype=dtype)
    add_masks(part, [mask], offset=61)
    assert torch.equal(part, ours[61:])


def test_the_counter_reaches_the_last_block_of_a_segment() -> None:
    mask, last = SignedMask(secrets.token_bytes(32), 1), 2**38 // 4 - 16
    words = torch.zeros(32, dtype=torch.int32)
    add_masks(words, [mask], offset=last)
    expected = chacha_stream.ChaChaStream(mask.secret, 4, 4 * last).update(bytes(128))
    assert words.numpy().tobytes() == expected


@pytest.mark.parametrize("dtype", WIDTHS)
def test_a_sign_of_zero_leaves_a_mask_out(dtype: torch.dtype) -> None:
    masks = [SignedMask(secrets.token_bytes(32), 1) for _ in range(2)]
    both, one = torch.zeros(50, dtype=dtype), torch.zeros(50, dtype=dtype)
    add_masks(both, masks, signs=torch.tensor([1, 0], dtype=torch.int32))
    add_masks(one, masks[:1])
    assert torch.equal(both, one)
    assert one.any()


def test_nothing_is_launched_without_words_or_masks() -> None:
    words = torch.zeros(0, dtype=torch.int32)
    add_masks(words, [SignedMask(bytes(32), 1)])
    one = torch.zeros(3, dtype=torch.int32)
    add_masks(one, [])
    assert not one.any()
