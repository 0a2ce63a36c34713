"""Pack all numbers of a reply into tensors of a fixed size, so that replies are summed whose structure no terms name.

The terms of a sum fix its tensors before any app has replied. Which numbers an app's reply holds (names of metrics,
lengths of lists) may depend on a site's data, and a site tells the server nothing that does. So the numbers travel in
`VALUES`, in an order that their names fix, and the names travel in the sum too: `STRUCTURE` holds them as bytes, with
their SHA-256. Where all clients sent the same bytes, the mean of these bytes is the bytes themselves, and their digest
is right. Where a client's reply has another structure, the mean is no structure, and none of the numbers can be read.
`ABSENT` counts where a number was not finite, or beyond the bound, at some client.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import numpy as np
from flwr.app import Array as FlowerArray
from flwr.app import ArrayRecord, MetricRecord, RecordDict

from securefed._tensors import Array
from securefed.parties._terms import SumTerms

PREFIX: Final = "numbers/"
VALUES, ABSENT, STRUCTURE = f"{PREFIX}values", f"{PREFIX}absent", f"{PREFIX}structure"
"""Names of the tensors in the terms."""
NUMBERS: Final = 256
"""Numbers in the metrics of one reply at most. With their names they add 12 kB to an update; twice as many add 24."""
LARGEST: Final = 2.0**20
"""Bound of a number where the caller declares none; larger ones are given back as NaN."""
_NAME: Final = 12
"""Bytes of names for each number."""
_PACKED: Final = 3
"""Bytes in an entry of `STRUCTURE`: the mean of 24-bit numbers is known to far less than a half in a ring of 64 bits,
where weights are up to a million times below the largest. With 4 it would not be beyond a few thousand times."""
_DIGEST, _LENGTH = 32, 4
_HALF: Final = 0.5
_LOG = logging.getLogger("securefed.flower")


def shapes_of(numbers: int = NUMBERS) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors that carry so many numbers, by name."""
    return {VALUES: (numbers,), ABSENT: (numbers,), STRUCTURE: (-(-(numbers * _NAME + _DIGEST + _LENGTH) // _PACKED),)}


def bounds_of(largest: float = LARGEST) -> dict[str, float]:
    """Return the bounds of the tensors, by name."""
    return {VALUES: largest, ABSENT: 1.0, STRUCTURE: 256.0**_PACKED}


def zeros(name: str, shape: tuple[int, ...]) -> Array:
    """Return a tensor's entry in the base of a sum."""
    kind: type = {ABSENT: bool, STRUCTURE: np.int64}.get(name, np.float64)
    return np.zeros(shape, kind)


def packed(records: Mapping[str, Any], terms: SumTerms) -> dict[str, Array]:
    """Return the tensors that hold all numbers of a reply.

    Args:
        records: metric records and array records by name; others are left out.
        terms: the terms, which fix the number of numbers and their bound.
    """
    structure, numbers = _flat(records)
    most = terms.shapes[VALUES][0]
    if len(numbers) > most:
        _LOG.warning("the reply holds %d numbers, and %d are summed: none of them is", len(numbers), most)
        structure, numbers = [], []
    text = json.dumps(structure, separators=(",", ":")).encode()
    length = terms.shapes[STRUCTURE][0] * _PACKED
    if len(text) > length - _DIGEST - _LENGTH:
        _LOG.warning("the names of the reply's numbers are longer than what is summed: none of them is")
        text, numbers = b"[]", []
    flat = np.zeros(most)
    flat[: len(numbers)] = numbers
    largest = next(tensor.bound for tensor in terms.tensors if tensor.name == VALUES)
    absent = ~(np.abs(flat) <= largest)
    whole = (hashlib.sha256(text).digest() + len(text).to_bytes(_LENGTH, "big") + text).ljust(length, b"\0")
    digits = np.frombuffer(whole, np.uint8).reshape(-1, _PACKED).astype(np.int64)
    return {
        VALUES: np.where(absent, 0.0, flat),
        ABSENT: absent,
        STRUCTURE: digits @ (256 ** np.arange(_PACKED - 1, -1, -1)),
    }


def unpacked(values: Mapping[str, Array], structure: Array, exact: Callable[[float], bool]) -> RecordDict | None:
    """Return the records that the clients sent, with the sums or means of their numbers.

    Args:
        values: by name, the sums or means of the tensors.
        structure: the mean of `STRUCTURE`.
        exact: whether a number of integers is one again, and is returned as an integer.

    Returns:
        The records; `None` where the clients' replies hold different numbers, or more than the terms sum.
    """
    digits = np.rint(structure).astype(np.int64)
    if (digits < 0).any() or (digits >= 256**_PACKED).any():
        return None
    whole = b"".join(int(digit).to_bytes(_PACKED, "big") for digit in digits)
    length = int.from_bytes(whole[_DIGEST : _DIGEST + _LENGTH], "big")
    text = whole[_DIGEST + _LENGTH :][:length]
    if hashlib.sha256(text).digest() != whole[:_DIGEST]:
        return None
    numbers = np.where(values[ABSENT] > _SOME, np.nan, values[VALUES])
    try:
        return _records(json.loads(text), iter(numbers.tolist()), exact)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, StopIteration):  # of a client that deviates
        return None


_SOME: Final = 1e-9
"""A share of clients without a number from which on it is missing: between rounding and one client of a million."""


def _flat(records: Mapping[str, Any]) -> tuple[list[Any], list[float]]:
    """Return what a reply holds, by record and name, and its numbers in that order."""
    structure: list[Any] = []
    numbers: list[float] = []
    for name, record in records.items():
        if isinstance(record, MetricRecord | dict):
            entries = [[key, *_kind(record[key])] for key in sorted(record)]
            numbers.extend(float(one) for key in sorted(record) for one in np.atleast_1d(record[key]))
        elif isinstance(record, ArrayRecord):
            arrays = {key: record[key].numpy() for key in record}
            entries = [[key, value.dtype.str, list(value.shape)] for key, value in arrays.items()]
            numbers.extend(float(one) for value in arrays.values() for one in value.ravel())
        else:
            continue
        structure.append([name, "arrays" if isinstance(record, ArrayRecord) else "metrics", entries])
    return structure, numbers


def _kind(value: Any) -> tuple[str, int | None]:
    """Return whether a metric holds integers, and how many numbers; no number of them for a single one."""
    alone = isinstance(value, int | float)
    whole = isinstance(value, int) if alone else all(isinstance(one, int) for one in value)
    return "i" if whole else "f", None if alone else len(value)


def _records(structure: Iterable[Any], numbers: Any, exact: Callable[[float], bool]) -> RecordDict:
    content = RecordDict()
    for name, kind, entries in structure:
        if kind == "arrays":
            arrays = {
                key: FlowerArray(_typed([next(numbers) for _ in range(int(np.prod(shape)))], dtype, shape))
                for key, dtype, shape in entries
            }
            content[name] = ArrayRecord(arrays)
            continue
        found: dict[str, Any] = {}
        for key, of, length in entries:
            given = [next(numbers) for _ in range(1 if length is None else length)]
            if of == "i" and all(map(exact, given)):
                given = [round(one) for one in given]
            found[key] = given[0] if length is None else given
        content[name] = MetricRecord(found)
    return content


def _typed(numbers: list[float], dtype: str, shape: list[int]) -> Array:
    """Return an array of a type; of integers, where a number is missing or no whole one, of floats."""
    made = np.asarray(numbers, np.float64).reshape(shape)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        near = np.isfinite(made).all() and (np.abs(made - np.rint(made)) < _HALF / 1000).all()
        return np.rint(made).astype(np.int64) if near else made
    return made.astype(kind if kind.kind == "f" else np.float64)
