"""Read the file formats of public data sets; a damaged file is refused by name.

The loaders of data sets (`_images`, `_signals`, `_intrusion`) and of users' own tables call these functions.
"""

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

from securefed._extras import needed_for
from securefed._tensors import Array
from securefed.errors import DataError

IDX_UNSIGNED_BYTE = 0x08
"""Third byte of an IDX file of unsigned bytes."""


def read_npz(path: Path, *required: str) -> dict[str, Array]:
    """Read all arrays of an `.npz` file, without unpickling anything.

    Args:
        path: the file.
        *required: names of arrays that it must hold.

    Raises:
        DataError: the file is missing or of another kind, or lacks an array.
    """
    if not path.is_file():
        raise DataError(f"cannot read {path}: there is no such file; give the path of an .npz file")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError) as error:  # an .npy file has no `files`
        raise DataError(f"cannot read {path} as an .npz file without pickles: {error}") from error
    lacking = [name for name in required if name not in arrays]
    if lacking:
        raise DataError(f"{path} holds {sorted(arrays)}; it needs also {lacking}: write them by numpy.savez")
    return arrays


def read_idx(path: Path) -> Array:
    """Read an IDX file of unsigned bytes (MNIST's format), plain or `.gz`: uint8 of the shape in its header."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    # IDX's header: two zero bytes, the type, the number of axes, then one big-endian 32-bit length an axis
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != IDX_UNSIGNED_BYTE:
        raise DataError(f"{path} is no IDX file of unsigned bytes: it starts with {raw[:4].hex()}")
    start = 4 + 4 * raw[3]
    shape = tuple(int.from_bytes(raw[at : at + 4], "big") for at in range(4, start, 4))
    if len(raw) - start != math.prod(shape):
        raise DataError(f"{path} is cut or damaged: its header states {shape}, {len(raw) - start} bytes follow")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_matrix(path: Path) -> Array:
    """Read numbers separated by white space, `#` starting a comment line: (lines, numbers a line) float64."""
    try:
        matrix = np.loadtxt(path, dtype=np.float64, comments="#", ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read {path} as rows of numbers: {error}") from error
    if not matrix.size:
        raise DataError(f"{path} holds no numbers")
    return matrix


@dataclass(frozen=True)
class TextTable:
    """A table read from a file: columns of text by name, which are turned into numbers on demand.

    Attributes:
        path: the file of the table, for errors.
        columns: (rows,) strings of each column.
    """

    path: Path
    columns: Mapping[str, Sequence[str]]

    def text(self, column: str) -> Array:
        """Return a column as (rows,) strings; raise `DataError` where the table lacks it."""
        return np.array(self._column(column))

    def numbers(self, columns: Iterable[str], value: Callable[[str], float] = float) -> Array:
        """Return columns as (rows, columns) float64; raise `DataError` for an entry that `value` cannot read."""
        return np.column_stack([self._numbers(column, value) for column in columns])

    def integers(self, column: str) -> Array:
        """Return a column as (rows,) int64; raise `DataError` for an entry that is no whole number."""
        numbers = self._numbers(column, float)
        if not (np.isfinite(numbers) & (numbers == np.floor(numbers))).all():
            raise DataError(f"{self.path}: column {column!r} must hold whole numbers")
        return numbers.astype(np.int64)

    def _column(self, column: str) -> Sequence[str]:
        """Return a column; raise `DataError` where the table lacks it."""
        if column not in self.columns:
            raise DataError(f"{self.path} has no column {column!r}; it has {', '.join(self.columns)}")
        return self.columns[column]

    def _numbers(self, column: str, value: Callable[[str], float]) -> Array:
        """Return a column as (rows,) float64; raise `DataError` for an entry that `value` cannot read."""
        entries = self._column(column)
        try:
            return np.fromiter(map(value, entries), np.float64, len(entries))
        except ValueError as error:
            raise DataError(f"{self.path}: column {column!r}: {error}") from error


def read_csv(path: Path) -> TextTable:
    """Read a table with a header line, fields separated by commas.

    By bars where the header holds one, and by semicolons where it holds one and no comma, as spreadsheets export them.
    A field that holds a separator stands in quotes. Names lose outer blanks.

    Raises:
        DataError: an unreadable or empty file, or a line with more or fewer fields than the header (named).
    """
    try:
        # utf-8-sig: published tables start with a byte-order mark that would become part of the first name
        with _open_text(path, "utf-8-sig") as file:
            header = file.readline()
            separator = "|" if "|" in header else ";" if ";" in header and "," not in header else ","
            file.seek(0)
            lines = list(csv.reader(file, delimiter=separator))
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        raise DataError(f"cannot read {path} as a table: {error}") from error
    return table(path, [name.strip() for name in lines[0]] if lines else [], [line for line in lines[1:] if line])


def table(path: Path, names: Sequence[str], lines: Sequence[Sequence[str]]) -> TextTable:
    """Make a table of lines; raise `DataError` for no lines, or a line of another length than `names`."""
    if not names or not lines:
        raise DataError(f"{path} holds no rows")
    odd = next((number for number, line in enumerate(lines) if len(line) != len(names)), None)
    if odd is not None:
        raise DataError(f"{path}: row {odd} has {len(lines[odd])} fields, the header {len(names)}; is the file cut?")
    return TextTable(path, dict(zip(names, zip(*lines, strict=True), strict=True)))


def read_zeek(path: Path) -> TextTable:
    """Read a Zeek log: names from its `#fields` line, fields separated by blanks, no field holding one.

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
    """Read a picture in grey, (height, width) uint8; one of another size is brought to `shape` by averaging boxes."""
    with needed_for("reading pictures"):
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
    """Open a text file, plain or compressed by gzip."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", newline="", encoding=encoding, errors="replace")
    return path.open(newline="", encoding=encoding, errors="replace")
