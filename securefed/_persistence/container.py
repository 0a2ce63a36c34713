"""Files of ours: one safetensors container with a kind, a version and a digest.

Written to a temporary name and renamed, so that a run killed while writing leaves the previous file whole.
Readable by the owner only: checkpoints hold clients' states. With a `Seal` the file is encrypted too.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from securefed._persistence.sealing import Seal, is_sealed, sync_folder
from securefed._tensors import Array, Tensors, decode, encode
from securefed.errors import DataError, StorageError

VERSION = 1


def save(path: Path, kind: str, meta: Mapping[str, Any], tensors: Tensors, seal: Seal | None = None) -> None:
    """Write `tensors` and `meta` (JSON values) to `path` atomically, mode 0600, encrypted where there is a `seal`.

    When it returns, file and folder are on disk: a power cut does not take the new file back.

    Raises:
        StorageError: the path cannot be written.
    """
    header = {"kind": kind, "version": VERSION, "meta": dict(meta), "digest": _digest(kind, tensors, meta)}
    data = encode(tensors, header)
    data = data if seal is None else seal.close(kind, data)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {kind} {path}: {error.strerror}; choose another path") from error
    if seal is not None:
        seal.remember(data)


def load(path: Path, kind: str, seal: Seal | None = None) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read what `save` wrote: `(meta, tensors)`.

    Raises:
        StorageError: no such file, truncated, altered, or of another kind or version; sealed and no seal given, or the
            other way round.
        WrongKeyError, RolledBackError: as `Seal.open`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"cannot read {kind} {path}: {error.strerror}") from error
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
    digest = hashlib.sha256(encode({}, {"kind": kind, "meta": dict(meta)}))
    for name in sorted(tensors):
        value = np.asarray(tensors[name], order="C")
        digest.update(f"{name}|{value.dtype.str}|{value.shape}|".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
