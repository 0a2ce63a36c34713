"""Freeze the state of a party to bytes, in one format for all parties, and check whose state it is when it is read.

    data = frozen("client 3 of a sum", {"terms": digest}, values, tensors)
    values, tensors = thawed(data, "client 3 of a sum", {"terms": digest}, "give ...")

`freeze` and `thaw` of every party go through these two: `SumNode`, `SumRun`, `Server`, `SumClient`, `SumServer`,
`SumHelper`, `securefed party` and the folder of `client_app`. The bytes are those of safetensors; the header holds the
name of the party, the version of the format, the facts that say to what the state belongs, and the state's JSON values.
Secrets are in them: `StateFile` keeps them on disk, sealed where a key is given.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from securefed._tensors import Array, Tensors, decode, encode
from securefed.errors import DataError, StorageError

VERSION: Final = 4
"""Of all frozen states. Release 0.1 numbered a client's state so, a checkpoint 2, a server's sums 3, and others not
at all."""


def frozen(party: str, owner: Mapping[str, Any], values: Mapping[str, Any], tensors: Tensors) -> bytes:
    """Write a state to bytes. Inverse: `thawed`.

    Args:
        party: whose state it is, such as "the server of a sum".
        owner: facts that say to what the state belongs, in JSON values; a state of other facts is refused.
        values: the state's JSON values.
        tensors: its arrays.
    """
    return encode(tensors, {"party": party, "version": VERSION, **owner, **values})


def thawed(
    data: bytes, party: str, owner: Mapping[str, Any], advice: str, *, older: Collection[int | None] = (),
    anew: str = "start anew",
) -> tuple[dict[str, Any], dict[str, Array]]:  # fmt: skip
    """Read what `frozen` wrote.

    Args:
        data: the bytes.
        party: whose state it must be.
        owner: facts that must be those of the state.
        advice: what to do with a state of another party or owner.
        older: versions of earlier releases that hold the same fields; `None` for states without a version.
        anew: what to delete the file for, where its version is not read.

    Returns:
        The values (the facts among them) and the arrays.

    Raises:
        StorageError: the bytes cannot be read, or are of another party, version or owner.
    """
    try:
        tensors, header = decode(data)
        header = dict(json.loads(header["engine"])) if "engine" in header else header  # a server's sums in release 0.1
    except (DataError, TypeError, ValueError) as error:
        raise StorageError(f"the state of {party} cannot be read: {error}; restore it from a copy") from error
    if header.get("party", party) != party:
        raise StorageError(f"this is the state of {header['party']}, not of {party}; {advice}")
    found = header.get("version", header.get("format"))
    if found != VERSION and found not in older:
        raise StorageError(
            f"the state of {party} has version {found or 1}, and this release reads version {VERSION}; finish the run "
            f"with the release that began it, or delete the file to {anew}"
        )
    check_owner(header, owner, advice)
    return header, tensors


def check_owner(saved: Mapping[str, Any], owner: Mapping[str, Any], advice: str) -> None:
    """Raise `StorageError` that names a fact in which a state is of another owner.

    Facts that the state does not hold, as those of release 0.1, are not compared.
    """
    for name, value in owner.items():
        if (found := saved.get(name, value)) != value:
            raise StorageError(f"this state is of {name} {found!r}, not {value!r}; {advice}")


@contextmanager
def complete(party: str) -> Iterator[None]:
    """Raise `StorageError` where a field of a state is missing, or holds what no state does."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, DataError) as error:
        raise StorageError(f"the state of {party} lacks a field: {error!r}; restore it from a copy") from error
