"""Add mask streams of ChaCha20 (RFC 8439) to a tensor, as one kernel of Triton.

The words are those of `defenses/_secure_aggregation/chacha_stream.py`, which says how keys and counters follow from a
mask's secret. A lane of the kernel makes a block of 64 bytes of every mask in turn: 16 words of 32 bits, or 8 of 64
bits, little-endian. It adds them up in registers, each times its mask's sign, and writes the sums once. So memory is
read and written once, however many masks there are.

Importing this file imports triton, so it is imported where a stream is made on a device, and nowhere else. The compiler
of triton reads annotations as code, so that arguments have none but those that it knows.
"""

from __future__ import annotations

import triton
import triton.language as tl

LANES = 128
"""Blocks of ChaCha20 that a program makes, a power of two; `python -m benchmarks gpu` tries half and twice as many."""


@triton.jit
def _quarter(a, b, c, d):
    """The quarter round, RFC 8439, section 2.1."""
    a = a + b
    d = d ^ a
    d = (d << 16) | (d >> 16)
    c = c + d
    b = b ^ c
    b = (b << 12) | (b >> 20)
    a = a + b
    d = d ^ a
    d = (d << 8) | (d >> 24)
    c = c + d
    b = b ^ c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _key_word(keys, mask, word: tl.constexpr, zeros):
    """Load a word of a mask's key for all lanes."""
    return zeros + tl.load(keys + mask * 8 + word).to(tl.uint32, bitcast=True)


@triton.jit
def _add32(out, place, size, total):
    """Add a word of 32 bits to the tensor at a place of each lane, where the tensor has it."""
    inside = (place >= 0) & (place < size)
    old = tl.load(out + place, inside, 0).to(tl.uint32, bitcast=True)
    tl.store(out + place, (old + total).to(tl.int32, bitcast=True), inside)


@triton.jit
def _add64(out, place, size, total):
    """Add a word of 64 bits to the tensor at a place of each lane, where the tensor has it."""
    inside = (place >= 0) & (place < size)
    old = tl.load(out + place, inside, 0).to(tl.uint64, bitcast=True)
    tl.store(out + place, (old + total).to(tl.int64, bitcast=True), inside)


@triton.jit
def _wide(low, high):
    """Join two words of 32 bits, the low one first."""
    return low.to(tl.uint64) | (high.to(tl.uint64) << 32)


@triton.jit
def add_streams(  # noqa: PLR0915 - sixteen words, which Triton keeps in registers only if each has a name
    out, keys, signs, masks, size, before, block,
    WIDE: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Add the streams of all masks to a tensor, in place.

    Args:
        out: int32 or int64 (size,).
        keys: int32 (masks, 8), the keys' bytes.
        signs: int32 (masks,): 1 adds a mask, -1 subtracts it, 0 makes it and leaves it out.
        masks: number of masks.
        size: number of words of the tensor.
        before: words of the first block that lie before the tensor.
        block: counter of the first block.
        WIDE: whether words have 64 bits.
        BLOCKS: blocks that a program makes.
    """
    lane = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    counter = (lane + block).to(tl.uint32)
    zeros = tl.zeros([BLOCKS], tl.uint32)
    none = tl.zeros([BLOCKS], tl.uint64) if WIDE else zeros
    # totals of the lane's words: t0 to t15, or of 64 bits t0 to t7
    t0 = none
    t1 = none
    t2 = none
    t3 = none
    t4 = none
    t5 = none
    t6 = none
    t7 = none
    t8 = zeros
    t9 = zeros
    t10 = zeros
    t11 = zeros
    t12 = zeros
    t13 = zeros
    t14 = zeros
    t15 = zeros
    for mask in range(masks):
        k0 = _key_word(keys, mask, 0, zeros)
        k1 = _key_word(keys, mask, 1, zeros)
        k2 = _key_word(keys, mask, 2, zeros)
        k3 = _key_word(keys, mask, 3, zeros)
        k4 = _key_word(keys, mask, 4, zeros)
        k5 = _key_word(keys, mask, 5, zeros)
        k6 = _key_word(keys, mask, 6, zeros)
        k7 = _key_word(keys, mask, 7, zeros)
        x0 = zeros + 0x61707865
        x1 = zeros + 0x3320646E
        x2 = zeros + 0x79622D32
        x3 = zeros + 0x6B206574
        x4 = k0
        x5 = k1
        x6 = k2
        x7 = k3
        x8 = k4
        x9 = k5
        x10 = k6
        x11 = k7
        x12 = counter
        x13 = zeros
        x14 = zeros
        x15 = zeros
        for _ in tl.static_range(10):
            x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
            x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
            x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
            x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
            x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
            x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
            x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
            x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
        x0 += 0x61707865
        x1 += 0x3320646E
        x2 += 0x79622D32
        x3 += 0x6B206574
        x4 += k0
        x5 += k1
        x6 += k2
        x7 += k3
        x8 += k4
        x9 += k5
        x10 += k6
        x11 += k7
        x12 += counter
        if WIDE:
            sign = tl.load(signs + mask).to(tl.int64).to(tl.uint64, bitcast=True)
            t0 += sign * _wide(x0, x1)
            t1 += sign * _wide(x2, x3)
            t2 += sign * _wide(x4, x5)
            t3 += sign * _wide(x6, x7)
            t4 += sign * _wide(x8, x9)
            t5 += sign * _wide(x10, x11)
            t6 += sign * _wide(x12, x13)
            t7 += sign * _wide(x14, x15)
        else:
            sign = tl.load(signs + mask).to(tl.uint32, bitcast=True)
            t0 += sign * x0
            t1 += sign * x1
            t2 += sign * x2
            t3 += sign * x3
            t4 += sign * x4
            t5 += sign * x5
            t6 += sign * x6
            t7 += sign * x7
            t8 += sign * x8
            t9 += sign * x9
            t10 += sign * x10
            t11 += sign * x11
            t12 += sign * x12
            t13 += sign * x13
            t14 += sign * x14
            t15 += sign * x15
    if WIDE:
        place = lane * 8 - before
        _add64(out, place, size, t0)
        _add64(out, place + 1, size, t1)
        _add64(out, place + 2, size, t2)
        _add64(out, place + 3, size, t3)
        _add64(out, place + 4, size, t4)
        _add64(out, place + 5, size, t5)
        _add64(out, place + 6, size, t6)
        _add64(out, place + 7, size, t7)
    else:
        place = lane * 16 - before
        _add32(out, place, size, t0)
        _add32(out, place + 1, size, t1)
        _add32(out, place + 2, size, t2)
        _add32(out, place + 3, size, t3)
        _add32(out, place + 4, size, t4)
        _add32(out, place + 5, size, t5)
        _add32(out, place + 6, size, t6)
        _add32(out, place + 7, size, t7)
        _add32(out, place + 8, size, t8)
        _add32(out, place + 9, size, t9)
        _add32(out, place + 10, size, t10)
        _add32(out, place + 11, size, t11)
        _add32(out, place + 12, size, t12)
        _add32(out, place + 13, size, t13)
        _add32(out, place + 14, size, t14)
        _add32(out, place + 15, size, t15)
