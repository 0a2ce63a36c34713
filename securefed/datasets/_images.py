"""Load data sets of images; a row is an image, its pixels row by row, scaled to [0, 1].

Except for `digits`, the files come from the folder that SECUREFED_DATA names: one `.npz` archive, or the original's own
files. The errors of a missing file name both. `LoadedDataset.groups` holds further facts of every row by name, such as
the angle (pose) from which an object was taken.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from securefed._extras import needed_for
from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.datasets._dataset_files import DatasetFiles
from securefed.datasets._formats import read_idx, read_image, read_npz
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.errors import DataError

MNIST = DatasetFiles(
    name="mnist",
    archive="mnist.npz",
    files=tuple((f"{part}-{what}-ubyte",) for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1")),
    site="the MNIST site, http://yann.lecun.com/exdb/mnist/",
    unpacked="MNIST/raw",
)
COIL20 = DatasetFiles(
    name="coil20",
    archive="coil20.npz",
    files=(("obj*__*.png",),),
    site="Columbia's COIL-20 site, https://www.cs.columbia.edu/CAVE/software/softlib/coil-20.php (processed images)",
    unpacked="coil-20-proc",
)
COIL20_SHAPE = (32, 32)
"""(height, width) of COIL-20's pictures as they are loaded."""


def digits() -> LoadedDataset:
    """Load 1797 handwritten digits, 8x8, scaled to [0, 1] (scikit-learn's copy of the UCI set)."""
    with needed_for("the data set digits"):
        from sklearn.datasets import load_digits  # noqa: PLC0415 - a second of import that most uses do not need

    bunch = load_digits()
    return LoadedDataset(Dataset(bunch.data / 16.0, bunch.target), "digits", 1.0, (8, 8))


def mnist() -> LoadedDataset:
    """Load MNIST: handwritten digits, 28x28, scaled to [0, 1]: 60000 training rows in `data`, 10000 in `test`."""
    archive = MNIST.archived()
    if archive:
        arrays = read_npz(archive, "x_train", "y_train", "x_test", "y_test")
        parts = [(arrays[f"x_{part}"], arrays[f"y_{part}"]) for part in ("train", "test")]
    else:
        files = [read_idx(paths[0]) for paths in MNIST.originals()]
        parts = [(files[0], files[1]), (files[2], files[3])]
    train, test = (_pictures(x, y) for x, y in parts)
    return LoadedDataset(train, "mnist", 1.0, (28, 28), test)


def coil20() -> LoadedDataset:
    """Load COIL-20: 20 objects, each from 72 angles 5 degrees apart: 1440 pictures of 32x32, scaled to [0, 1].

    `y` is the object, 0..19; rows are ordered by object, then by angle. The original's pictures of 128x128 are
    averaged over boxes of 4x4, which is near to, not bit for bit, the 32x32 copies in use.

    Groups:
        pose: 0..71, the angle is 5 degrees times it.
    """
    archive = COIL20.archived()
    if archive:
        arrays = read_npz(archive, "x", "y")
        objects = arrays["y"].astype(np.int64)
        order = np.argsort(objects, kind="stable")
        data = _pictures(arrays["x"][order], objects[order])
        pose = np.arange(data.rows) % 72
    else:
        (paths,) = COIL20.originals()
        keys = sorted((*_object_and_pose(path), path) for path in paths)
        data = _pictures(
            np.stack([read_image(path, COIL20_SHAPE) for *_, path in keys]), np.array([k[0] for k in keys])
        )
        pose = np.array([pose for _, pose, _ in keys])
    return LoadedDataset(data, "coil20", 1.0, COIL20_SHAPE, groups={"pose": pose})


def _object_and_pose(path: Path) -> tuple[int, int]:
    """Read object (from 0) and pose from a name such as obj1__0.png; raise `DataError` for another name."""
    named = re.fullmatch(r"obj(\d+)__(\d+)\.png", path.name)
    if named is None:
        raise DataError(f"{path} is not named as COIL-20 names its pictures, obj1__0.png to obj20__71.png")
    return int(named[1]) - 1, int(named[2])


def _pictures(x: Array, y: Array) -> Dataset:
    """Return pictures of bytes as rows of pixels in [0, 1]."""
    return Dataset(x.reshape(len(x), -1) / 255.0, y.astype(np.int64))
