"""Read arrays from the file formats of public data sets; a damaged file is refused by name.

The loaders of data sets (`_images`, `_signals`, `_intrusion`) and of users' own archives call these functions. Tables
have a reader of their own (`_tables`).
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from securefed._extras import needed_for
from securefed._persistence.file_errors import NO_NPZ
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
    except NO_NPZ as error:  # an .npy file has no `files`
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
