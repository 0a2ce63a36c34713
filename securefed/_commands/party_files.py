"""Read and write the files of `securefed party`: updates, message files with their names, identities and states.

The commands (`party`) and their turns (`party_turns`) call it. Sites make a secure sum by files in a folder that people
carry or share. A round takes one exchange, or several where an attempt is repeated; an exchange goes in stages, with
one request file and one reply file for each client.
"""

from __future__ import annotations

import csv
import io
import os
import re
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from rich.markup import escape

from securefed._commands.display import errors
from securefed._persistence.file_errors import NO_NPZ, storage_errors
from securefed._persistence.sealing import make_key
from securefed._tensors import Array
from securefed.errors import ConfigError, DataError, StorageError

if TYPE_CHECKING:
    from securefed.datasets._tables.table_format import TableFormat

_KEY_BYTES: Final = 32
_TABLES: Final = (".csv", ".csv.gz", ".parquet")
"""Endings of tables, in lower case."""
_ADVICE: Final = (
    "; an update is numbers alone, such as a site's counts or means, not its patients: leave other columns out"
)
_NAME: Final = re.compile(
    r"round-(\d+)-exchange-(\d+)-stage-(\d+)-([a-z]+)-client-(\d+)\.(request|reply)", flags=re.ASCII
)


@dataclass(frozen=True, order=True)
class MessageName:
    """The place of one message in a run, as its file name says it.

    Attributes:
        round: number of the round, from 1.
        exchange: number of the exchange, from 1; a round that is repeated has several.
        stage: number of the stage, from 1.
        word: name of the stage.
        party: number of the client.
    """

    round: int
    exchange: int
    stage: int
    word: str
    party: int

    def file(self, kind: Literal["request", "reply"]) -> str:
        """Return the file name of the request to this client, or of its reply."""
        return f"round-{self.round}-exchange-{self.exchange}-stage-{self.stage}-{self.word}-client-{self.party}.{kind}"

    def place(self, stages: int | None = None) -> str:
        """Say the round and the stage, without the client; of how many stages, where that is known."""
        again = "" if self.exchange == self.round else f", exchange {self.exchange}"
        of = "" if stages is None else f" of {stages}"
        return f"Round {self.round}{again}, stage {self.stage}{of} ({self.word})"


def requests_in(folder: Path) -> list[MessageName]:
    """List the requests of the newest stage in a folder, by client; empty where there are none.

    Raises:
        StorageError: the folder cannot be read.
    """
    return next(iter(stages_in(folder)), [])


def stages_in(folder: Path) -> list[list[MessageName]]:
    """List the requests in a folder by stage, the newest stage first, each by client.

    Raises:
        StorageError: the folder cannot be read.
    """
    with storage_errors(f"read the exchange folder {folder}", "make it first"):
        matches = [_NAME.fullmatch(path.name) for path in folder.iterdir()]
    found = [match for match in matches if match is not None and match[6] == "request"]
    names = [MessageName(int(m[1]), int(m[2]), int(m[3]), m[4], int(m[5])) for m in found]
    stages: dict[tuple[int, int], list[MessageName]] = {}
    for name in sorted(names):
        stages.setdefault((name.exchange, name.stage), []).append(name)
    return [stages[place] for place in sorted(stages, reverse=True)]


def read_message(path: Path, most: int) -> bytes:
    """Read a file that another site wrote into the exchange folder.

    Args:
        path: the file.
        most: the most bytes that a message of these terms has, generously.

    Raises:
        StorageError: it cannot be read; or it is no file (reading a pipe or a device need not end), or a larger one.
    """
    with storage_errors(f"read {path}"), open(path, "rb", opener=_without_waiting) as file:
        found = os.fstat(file.fileno())
        data = file.read(found.st_size) if stat.S_ISREG(found.st_mode) and found.st_size <= most else None
    if data is None:
        raise StorageError(
            f"{path} is no message of these terms: it is no file, or has more than {most} bytes; remove it, and have "
            "its sender copy it anew"
        )
    return data


def _without_waiting(path: str, flags: int) -> int:
    """Open a file, and a pipe without waiting for a process that writes into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it, so that no reader sees half of it; leave equal bytes.

    A symbolic link is replaced and not followed: other sites write into the exchange folder, and a link of theirs would
    name a file outside it.

    Raises:
        StorageError: the path cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        if path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror}; choose another path") from error


def read_arrays(path: Path, form: TableFormat | None = None) -> dict[str, Any]:
    """Read arrays by name from an .npz or .safetensors file, or a table (.csv, .csv.gz or .parquet).

    Each column of a table is an array, or a number where it has one row.

    Args:
        path: the file.
        form: how a .csv file is written, where the user says so.

    Raises:
        DataError: another ending, or what is in the file is not what its ending says.
        StorageError: the file cannot be read.
    """
    ending = path.name.lower()
    if not ending.endswith((".npz", ".safetensors", *_TABLES)):
        raise DataError(f"{path} must end in .npz, .safetensors or {', '.join(_TABLES)}, and hold arrays by name")
    with storage_errors(f"read {path}"):
        data = path.read_bytes()
    if ending.endswith(_TABLES):
        return _read_table(path, form)
    try:
        arrays = _read_npz(data) if ending.endswith(".npz") else _read_safetensors(data)
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    if not arrays:
        raise DataError(f"{path} holds no arrays")
    return arrays


def npz_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Encode arrays by name as an .npz file; the same arrays give the same bytes."""
    out = io.BytesIO()
    np.savez(out, **dict(arrays))  # type: ignore[arg-type]
    return out.getvalue()


def csv_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Encode arrays by name as a .csv file that `read_arrays` reads; empty where they are not one table of columns."""
    columns = [np.atleast_1d(array) for array in arrays.values()]
    if len({column.shape for column in columns}) != 1 or columns[0].ndim != 1:
        return b""
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows([[*arrays], *zip(*(one.tolist() for one in columns), strict=True)])
    return out.getvalue().encode()


def _read_npz(data: bytes) -> dict[str, Any]:
    """Read NumPy arrays by name; nothing is unpickled."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except NO_NPZ as error:
        raise DataError(f"it is no .npz file of numbers: {error}") from error


def _read_safetensors(data: bytes) -> dict[str, Any]:
    """Read torch tensors by name."""
    from safetensors import SafetensorError  # noqa: PLC0415 - only for files of this kind
    from safetensors.torch import load  # noqa: PLC0415 - NumPy has no bfloat16

    try:
        return dict(load(data))
    except SafetensorError as error:
        raise DataError(f"it is no .safetensors file: {error}") from error


def _read_table(path: Path, form: TableFormat | None) -> dict[str, Any]:
    """Read the columns of a table by their names, and say what was read; a single row gives scalars."""
    from securefed.datasets._tables.files import read_file  # noqa: PLC0415 - only for files of these kinds

    table = read_file(path, form if path.name.lower().endswith((".csv", ".csv.gz")) else None)
    if "" in table.names:
        raise DataError(f"{path}: column {table.names.index('') + 1} has no name; the first line must name each column")
    columns = table.matrix(advice=_ADVICE).T
    errors.print(escape(table.summary), highlight=False, soft_wrap=True)
    return {name: column[0] if len(column) == 1 else column for name, column in zip(table.names, columns, strict=True)}


def make_identity(path: Path) -> bytes:
    """Return the private identity in a file; make the file, readable by its owner only, if there is none."""
    if not path.exists():
        make_key(path)  # a private key of Ed25519 is 32 random bytes
    return read_identity(path)


def read_identity(path: Path) -> bytes:
    """Read a private identity that `make_identity` wrote.

    Raises:
        StorageError: the file is missing, holds no identity, or others may read it.
    """
    try:
        if os.name == "posix" and path.stat().st_mode & 0o077:
            raise StorageError(f"identity {path} can be read by others than its owner; chmod 600 it, or make another")
        key = path.read_bytes()
    except FileNotFoundError as error:
        raise StorageError(f"there is no identity {path}; make one with `securefed party identity {path}`") from error
    except PermissionError as error:
        raise StorageError(f"cannot read identity {path}: {error.strerror}") from error
    if len(key) != _KEY_BYTES:
        raise StorageError(f"{path} holds no private identity of {_KEY_BYTES} bytes; give the file of `party identity`")
    return key


def read_public_identity(text: str) -> bytes:
    """Read a public identity: 64 hexadecimal digits, or the path of a file that holds them.

    Raises:
        ConfigError: it is neither.
    """
    try:
        digits = text if re.fullmatch(r"[0-9a-fA-F]{64}", text) else Path(text).read_text().strip()
        key = bytes.fromhex(digits)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{text!r} is no public identity of 64 hexadecimal digits, and no file of one") from error
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"{text!r} holds {len(key)} bytes; a public identity has {_KEY_BYTES}")
    return key


def check_private(state: Path, folder: Path) -> None:
    """Raise `ConfigError` for a state file in the exchange folder, where the other parties would read its secrets."""
    if folder.resolve() in state.resolve().parents:
        raise ConfigError(f"the state {state} holds secrets and lies in the exchange folder; give --state elsewhere")
