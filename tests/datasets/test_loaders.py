"""Sets by name: what all of them promise, and those of pictures from our archives and in the originals' own formats."""

import gzip
import struct

import numpy as np
import pytest
from PIL import Image

from securefed import Dataset
from securefed.datasets import LoadedDataset, load
from securefed.datasets._loaders import LOADERS
from securefed.errors import DataError, UnknownNameError

EMBEDDED = ("digits", "breast_cancer")


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(place, zipped=False):
    """(x, y, x_test, y_test) as written."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (5, 28, 28)), np.arange(5), rng.integers(0, 256, (2, 28, 28)), np.array([9, 0])]
    place.mkdir(parents=True, exist_ok=True)
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    for name, array in zip(names, arrays, strict=True):
        raw = idx(array.astype(np.uint8))
        path = place / f"{name}-ubyte{'.gz' if zipped else ''}"
        path.write_bytes(gzip.compress(raw) if zipped else raw)
    return arrays


# what every name promises


@pytest.mark.parametrize("name", sorted(set(LOADERS) - set(EMBEDDED)))
def test_a_missing_set_is_refused_with_its_files_their_site_and_their_place(name, folder, monkeypatch):
    with pytest.raises(DataError, match=r"\.npz, or the original's own files: \S+") as refusal:
        load(name)
    assert str(folder) in str(refusal.value)
    assert "SECUREFED_DATA" in str(refusal.value)
    assert "http" in str(refusal.value)
    monkeypatch.delenv("SECUREFED_DATA")
    with pytest.raises(DataError, match=r"set SECUREFED_DATA to the folder.*\.npz"):
        load(name)


@pytest.mark.parametrize(
    ("name", "shape", "image"), [("digits", (1797, 64), (8, 8)), ("breast_cancer", (569, 30), None)]
)
def test_embedded_sets_need_no_folder(name, shape, image, monkeypatch):
    monkeypatch.delenv("SECUREFED_DATA", raising=False)
    source = load(name)
    assert (source.name, source.data.x.shape, source.image_shape) == (name, shape, image)
    assert np.abs(source.data.x).max() == source.feature_bound == 1.0


def test_an_unknown_name_is_refused_with_the_nearest_known():
    with pytest.raises(UnknownNameError, match="nearest known one is 'uci_har'"):
        load("ucihar")


# pictures


@pytest.mark.parametrize("place", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_in_its_own_format(folder, place, zipped):
    x, y, x_test, y_test = write_mnist(folder / place, zipped)
    source = load("mnist")
    assert np.array_equal(source.data.x * 255, x.reshape(5, 784))
    assert np.array_equal(source.data.y, y)
    assert np.array_equal(source.test.x * 255, x_test.reshape(2, 784))
    assert np.array_equal(source.test.y, y_test)
    assert source.image_shape == (28, 28)


def test_mnist_from_the_archive_which_goes_first(folder):
    write_mnist(folder)
    x, labels = np.full((3, 28, 28), 255, np.uint8), np.array([1, 2, 3], np.uint8)
    np.savez(folder / "mnist.npz", x_train=x, y_train=labels, x_test=x[:1], y_test=labels[:1])
    source = load("mnist")
    assert (source.data.rows, source.test.rows) == (3, 1)
    assert (source.data.x == 1).all()
    np.savez(folder / "mnist.npz", x_train=x)
    with pytest.raises(DataError, match=r"it needs also .*y_train"):
        load("mnist")


@pytest.mark.parametrize(
    ("damage", "refusal"),
    [
        (lambda raw: raw[:-1], "cut or damaged"),
        (lambda raw: raw[:2] + b"\x0d" + raw[3:], "no IDX file of unsigned bytes"),
        (lambda raw: b"", "no IDX file"),
    ],
)
def test_a_damaged_idx_file_is_refused(folder, damage, refusal):
    write_mnist(folder)
    path = folder / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=refusal):
        load("mnist")


def test_one_of_several_files_missing_is_a_missing_set(folder):
    write_mnist(folder)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte"):
        load("mnist")


def test_coil20_as_pictures(folder):
    place = folder / "coil-20-proc"
    place.mkdir()
    for thing, pose in [(10, 0), (2, 1), (2, 0), (2, 10)]:
        picture = np.zeros((128, 128), np.uint8)
        picture[:4, :4] = thing * 10 + pose  # becomes the first of 32x32 boxes of 4x4
        Image.fromarray(picture).save(place / f"obj{thing}__{pose}.png")
    source = load("coil20")
    assert source.image_shape == (32, 32)
    assert source.data.y.tolist() == [1, 1, 1, 9]
    assert source.groups["pose"].tolist() == [0, 1, 10, 0]
    assert np.array_equal(source.data.x[:, 0] * 255, [20, 21, 30, 100])
    assert not source.data.x[:, 1:].any()
    (place / "obj1__x.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"obj1__0\.png to obj20__71\.png"):
        load("coil20")
    (place / "obj1__x.png").rename(place / "obj1__3.png")
    with pytest.raises(DataError, match="as a picture"):
        load("coil20")


def test_coil20_from_the_archive(folder):
    y = np.repeat([1, 0], 72)
    np.savez(folder / "coil20.npz", x=np.tile(y[:, None, None], (1, 32, 32)).astype(np.uint8), y=y.astype(np.uint8))
    source = load("coil20")
    assert np.array_equal(source.data.y, np.repeat([0, 1], 72))
    assert np.array_equal(source.groups["pose"][:73], [*range(72), 0])
    assert np.array_equal(source.data.x[:, 5] * 255, source.data.y)


# any .npz, and what a set must hold


def test_any_npz_by_its_path(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x=np.array([[[1, -3]], [[2, 0]]]), y=np.array([0, 1]))
    source = load(str(path))
    assert (source.name, source.feature_bound, source.image_shape) == ("own", 3.0, (1, 2))
    assert source.data.x.tolist() == [[1, -3], [2, 0]]
    np.savez(path, z=np.ones(3))
    with pytest.raises(DataError, match="needs also"):
        load(str(path))
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="without pickles"):
        load(str(path))
    with pytest.raises(DataError, match="cannot read"):
        load(str(tmp_path / "absent.npz"))


def test_a_set_that_contradicts_what_it_declares_is_refused():
    data = Dataset(np.array([[0.5, -2.0]]), np.array([0]))
    assert LoadedDataset(data, "mine", 2.0).data is data
    with pytest.raises(DataError, match="beyond the declared range 1"):
        LoadedDataset(data, "mine", 1.0)
    with pytest.raises(DataError, match="beyond the declared range 1"):
        LoadedDataset(Dataset(data.x / 2, data.y), "mine", 1.0, test=data)
    with pytest.raises(DataError, match="1 features, not 2"):
        LoadedDataset(data, "mine", 2.0, test=Dataset(np.ones((1, 1))))
    with pytest.raises(DataError, match="'subject' has shape"):
        LoadedDataset(data, "mine", 2.0, groups={"subject": np.arange(2)})
    with pytest.raises(DataError, match="1 names for 2 columns"):
        LoadedDataset(data, "mine", 2.0, features=("a",))
