"""Mutate messages, files and terms: bytes, lengths, and the values of the JSON inside."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

_MOST_NODES: Final = 3000
_DEEPEST: Final = 12
_STARTS = (0, 50, 114)
"""Where the tensors of a message begin: at once in files, after the header, after header and signature."""
_NUMBERS: list[Any] = [
    0, 1, -1, 2, 3, 7, 255, 256, 2**15, 2**20, 2**24, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64,
    -(2**63), 10**40, 0.5, -0.0, 1e-308, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), 2.0**-1074,
]  # fmt: skip
_OTHERS: list[Any] = [None, True, False, "", "x", "1", "\0", "é" * 40, "a" * 3000, [], {}, [[]], [0] * 50, {"": {}}]


def mutate(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Return a mutated input.

    Args:
        data: a valid input.
        others: further valid inputs, of which pieces are taken.
        rng: draws the mutations.
    """
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(_MUTATIONS)(data, others, rng)
    return data


def _flip(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    if not data:
        return b"\xff"
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _overwrite(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    if not data:
        return bytes(rng.randrange(1, 64))
    start, fill = rng.randrange(len(data)), rng.choice((b"\0", b"\xff", b"\x7f", b"\x80", b"9", b"["))
    size = rng.choice((1, 2, 4, 8, 32))
    return data[:start] + fill * size + data[start + size :]


def _cut(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _remove(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 8, 64)) :]


def _insert(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    start, size = rng.randrange(len(data) + 1), rng.choice((1, 2, 8, 64, 4096))
    return data[:start] + rng.choice((bytes(size), b"[" * size, b'{"' * size, rng.randbytes(size))) + data[start:]


def _splice(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _repeat(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    piece = data[start : start + rng.choice((8, 64, 512))]
    return data[:start] + piece * rng.choice((2, 5, 50)) + data[start:]


def _structure(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """Change values of JSON: in the index of tensors, whose length is set right, or the whole of the input."""
    for start in rng.sample(_STARTS, len(_STARTS)):
        length = int.from_bytes(data[start : start + 8], "little")
        text = data[start + 8 : start + 8 + length]
        if len(text) == length and text.startswith(b"{") and (index := _parsed(text)) is not None:
            changed = _written(_changed(index, rng))
            changed += b" " * (-len(changed) % 8)
            return data[:start] + len(changed).to_bytes(8, "little") + changed + data[start + 8 + length :]
    if (tree := _parsed(data)) is not None:
        return _written(_changed(tree, rng))
    return _flip(data, others, rng)


_MUTATIONS: list[Callable[[bytes, list[bytes], random.Random], bytes]] = [
    _flip, _overwrite, _cut, _remove, _insert, _splice, _repeat, *[_structure] * 10,
]  # fmt: skip


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _written(tree: Any) -> bytes:
    try:
        return json.dumps(tree).encode()
    except (ValueError, RecursionError):
        return b"[" * 5000


def _changed(tree: Any, rng: random.Random) -> Any:
    """Return JSON with one to three nodes replaced, removed or added; texts that hold JSON are changed inside, too."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        tree = _at(tree, rng.choice(list(islice(_paths(tree), _MOST_NODES))), rng)
    return tree


def _paths(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Iterate over the places of all nodes, the tree itself first."""
    yield path
    if len(path) < _DEEPEST:
        entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
        for key, value in entries:
            yield from _paths(value, (*path, key))


def _at(tree: Any, path: tuple[Any, ...], rng: random.Random) -> Any:
    """Return the tree with the node at this place changed, or its entry removed, renamed or repeated."""
    if len(path) > 1 or (path and rng.random() < 0.8):
        inner = _at(tree[path[0]], path[1:], rng)
        if isinstance(tree, dict):
            return {**tree, path[0]: inner}
        return [*tree[: path[0]], inner, *tree[path[0] + 1 :]]
    if not path:
        return _value(tree, rng)
    kind, key = rng.randrange(3), path[0]
    if isinstance(tree, list):
        return [tree[:key] + tree[key + 1 :], tree * rng.choice((2, 30)), [*tree, _value(None, rng)]][kind]
    without = {name: value for name, value in tree.items() if name != key}
    return [without, {**without, f"{key}x": tree[key]}, {**tree, "more": _value(None, rng)}][kind]


def _value(value: Any, rng: random.Random) -> Any:
    """Return another value in place of one."""
    if isinstance(value, str) and value[:1] in ("{", "[") and rng.random() < 0.8 and (inner := _parsed(value.encode())):
        return json.dumps(_changed(inner, rng))
    if isinstance(value, bool) and rng.random() < 0.7:
        return not value
    if isinstance(value, int | float) and rng.random() < 0.5:
        half = value / 2 if abs(value) < 2**1000 else value // 2  # an integer may be beyond all floats
        return rng.choice((value + 1, value - 1, value * 2, -value, value * 1000, half))
    if rng.random() < 0.02:
        return json.loads("[" * (depth := rng.choice((50, 900))) + "]" * depth)
    return rng.choice(_NUMBERS) if rng.random() < 0.6 else rng.choice(_OTHERS)
