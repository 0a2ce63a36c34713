"""Write and read the package's files: checkpoints, client states, transcripts, pinned identities.

The runtime saves a checkpoint or a client's state after each exchange, users save transcripts; all go through `save`
and `load`.

A file holds named arrays and JSON values in the safetensors format, with a kind ("checkpoint", "transcript", ...), a
version, and a SHA-256 of its content, so that a damaged file or one of another kind is refused. The digest is no
protection against an attacker, who can compute it anew: a `Seal` is, and encrypts the file too. A file is written under
a temporary name and renamed, so that a run that is killed while writing leaves the previous file whole. It is readable
by its owner only, as checkpoints hold clients' states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from securefed._persistence.file_errors import storage_errors
from securefed._persistence.sealing import Seal, is_sealed, write_atomically
from securefed._tensors import Array, Tensors, decode, encode
from securefed.errors import DataError, StorageError

VERSION = 1


def save(path: Path, kind: str, meta: Mapping[str, Any], tensors: Tensors, seal: Seal | None = None) -> None:
    """Write `tensors` and `meta` to `path` atomically, mode 0600.

    When it returns, file and folder are on disk: a power cut does not take the new file back.

    Args:
        path: the file; one that is there is replaced.
        kind: what the file is, such as "checkpoint".
        meta: JSON values.
        tensors: named arrays.
        seal: encrypts and authenticates the file; its anchor, if it has one, is written after the file.

    Raises:
        StorageError: the path cannot be written, or the seal's anchor cannot be read or written.
    """
    header = {"kind": kind, "version": VERSION, "meta": dict(meta), "digest": _digest(kind, tensors, meta)}
    data = encode(tensors, header)
    data = data if seal is None else seal.close(kind, data)
    write_atomically(path, data, kind)
    if seal is not None:
        seal.remember(data)


def load(path: Path, kind: str, seal: Seal | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read what `save` wrote: `(meta, tensors)`.

    Args:
        path: the file.
        kind: the kind that it must be of.
        seal: the one that it was sealed with; `None` for a file in the clear.

    Raises:
        StorageError: no such file, truncated, altered, or of another kind or version; sealed and no seal given, or the
            other way round.
        WrongKeyError, RolledBackError: as `Seal.open`.
    """
    with storage_errors(f"read {kind} {path}"):
        data = path.read_bytes()
    if seal is not None:
        data = seal.open(kind, data, f"{kind} {path}")
    elif is_sealed(data):
        raise StorageError(f"{kind} {path} is sealed; give the key it was written with")
    try:
        tensors, header = decode(data)
    except DataError as error:
        raise StorageError(
            f"{kind} {path} is truncated or corrupt ({error}); delete it, or restore it from a copy"
        ) from error
    if header.get("kind") != kind:
        raise StorageError(f"{path} is a {header.get('kind', 'foreign file')}, not a {kind}")
    if header.get("version") != VERSION:
        raise StorageError(f"{kind} {path} has version {header.get('version')}, this release reads {VERSION}")
    meta = header.get("meta")
    if not isinstance(meta, dict) or header.get("digest") != _digest(kind, tensors, meta):
        raise StorageError(f"{kind} {path} was altered: its digest does not match; restore it from a copy")
    return meta, tensors


def _digest(kind: str, tensors: Tensors, meta: Mapping[str, Any]) -> str:
    """Compute SHA-256 of kind, values, and every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(encode({}, {"kind": kind, "meta": dict(meta)}))
    for name in sorted(tensors):
        value = np.asarray(tensors[name], order="C")
        digest.update(f"{name}|{value.dtype.str}|{value.shape}|".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
