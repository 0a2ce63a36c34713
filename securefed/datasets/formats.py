"""Readers of the file formats that public sets come in. Each refuses a damaged file by name."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from securefed.errors import DataError
from securefed.tensors import Array

IDX_UNSIGNED_BYTE = 0x08


def read_npz(path: Path, *required: str) -> dict[str, Array]:
    """All arrays of an `.npz`, never unpickling. Raises `DataError` for another kind of file, or an array missing."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:  # an .npy file has no `files`
        raise DataError(f"cannot read {path} as an .npz file without pickles: {error}") from error
    lacking = [name for name in required if name not in arrays]
    if lacking:
        raise DataError(f"{path} holds {sorted(arrays)}; it needs also {lacking}")
    return arrays


def read_idx(path: Path) -> Array:
    """An IDX file of unsigned bytes (MNIST's format), plain or `.gz`: uint8 of the shape that its header states."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    # two zero bytes, the type, the number of axes, then one big-endian 32-bit length an axis
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != IDX_UNSIGNED_BYTE:
        raise DataError(f"{path} is no IDX file of unsigned bytes: it starts with {raw[:4].hex()}")
    start = 4 + 4 * raw[3]
    shape = tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4))
    if len(raw) - start != math.prod(shape):
        raise DataError(f"{path} is cut or damaged: its header states {shape}, {len(raw) - start} bytes follow")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_matrix(path: Path) -> Array:
    """Numbers separated by white space, `#` starting a comment line: (lines, numbers a line) float64."""
    try:
        matrix = np.loadtxt(path, dtype=np.float64, comments="#", ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} as rows of numbers: {error}") from error
    if not matrix.size:
        raise DataError(f"{path} holds no numbers")
    return matrix


@dataclass(frozen=True)
class Table:
    """Columns of text, by name.

    Attributes:
        path: the file they came from, for refusals.
        columns: (rows,) strings each.
    """

    path: Path
    columns: Mapping[str, Sequence[str]]

    def text(self, column: str) -> Array:
        """(rows,) strings. Raises `DataError` where the table lacks the column."""
        return np.array(self._column(column))

    def numbers(self, columns: Iterable[str], value: Callable[[str], float] = float) -> Array:
        """(rows, columns) float64, each entry read by `value`. Raises `DataError` that names an entry it refuses."""
        return np.column_stack([self._numbers(column, value) for column in columns])

    def integers(self, column: str) -> Array:
        """(rows,) int64. Raises `DataError` for an entry that is no whole number."""
        numbers = self._numbers(column, float)
        if (numbers != np.floor(numbers)).any():
            raise DataError(f"{self.path}: column {column!r} must hold whole numbers")
        return numbers.astype(np.int64)

    def _column(self, column: str) -> Sequence[str]:
        if column not in self.columns:
            raise DataError(f"{self.path} has no column {column!r}; it has {', '.join(self.columns)}")
        return self.columns[column]

    def _numbers(self, column: str, value: Callable[[str], float]) -> Array:
        entries = self._column(column)
        try:
            return np.fromiter(map(value, entries), np.float64, len(entries))
        except ValueError as error:
            raise DataError(f"{self.path}: column {column!r}: {error}") from error


def read_csv(path: Path) -> Table:
    """A table with a header line, fields separated by commas, or by bars where the header holds one.

    A field that holds a separator stands in quotes. Names lose outer blanks.

    Raises:
        DataError: an unreadable or empty file, or a line with more or fewer fields than the header (named).
    """
    try:
        # utf-8-sig: published tables start with a byte-order mark that would become part of the first name
        with _open_text(path, "utf-8-sig") as file:
            separator = "|" if "|" in file.readline() else ","
            file.seek(0)
            lines = list(csv.reader(file, delimiter=separator))
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DataError(f"cannot read {path} as a table: {error}") from error
    return table(path, [name.strip() for name in lines[0]] if lines else [], [line for line in lines[1:] if line])


def table(path: Path, names: Sequence[str], lines: Sequence[Sequence[str]]) -> Table:
    """Columns out of lines. Raises `DataError` for no lines, or a line of another length than `names`."""
    if not names or not lines:
        raise DataError(f"{path} holds no rows")
    odd = next((number for number, line in enumerate(lines) if len(line) != len(names)), None)
    if odd is not None:
        raise DataError(f"{path}: row {odd} has {len(lines[odd])} fields, the header {len(names)}; is the file cut?")
    return Table(path, dict(zip(names, zip(*lines, strict=True), strict=True)))


def read_zeek(path: Path) -> Table:
    """A Zeek log: names from its `#fields` line, fields separated by blanks, no field holding one.

    Blanks and not tabs alone, since the labelled logs of IoT-23 put three blanks before each of their own two fields.
    """
    names: list[str] = []
    lines = []
    try:
        with _open_text(path, "utf-8") as file:
            for line in file:
                if line.startswith("#fields"):
                    names = line.split()[1:]
                elif line.strip() and not line.startswith("#"):
                    lines.append(line.split())
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    return table(path, names, lines)


def read_image(path: Path, shape: tuple[int, int]) -> Array:
    """A picture in grey, (height, width) uint8; larger ones shrunk to `shape` by averaging boxes."""
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - only picture folders need it

    height, width = shape
    try:
        with Image.open(path) as image:
            grey = image.convert("L")
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"cannot read {path} as a picture: {error}") from error
    if grey.size != (width, height):
        grey = grey.resize((width, height), Image.Resampling.BOX)
    return np.asarray(grey)


def _open_text(path: Path, encoding: str) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="", encoding=encoding, errors="replace")
    return path.open(newline="", encoding=encoding, errors="replace")
