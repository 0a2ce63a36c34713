"""Sets of signals from people, from our archives and in the originals' own formats."""

import numpy as np
import pytest

from securefed.datasets import load
from securefed.errors import DataError
from tests.datasets.files import table, write


def test_uci_har_in_its_own_format(folder):
    place = folder / "UCI HAR Dataset"
    rng = np.random.default_rng(0)
    rows = {"train": rng.uniform(-1, 1, (3, 561)), "test": rng.uniform(-1, 1, (2, 561))}
    for part, x in rows.items():
        write(place / part / f"X_{part}.txt", "\n".join("  ".join(f"{v:.7e}" for v in line) for line in x))
        write(place / part / f"y_{part}.txt", "\n".join(str(6 - row) for row in range(len(x))))
        write(place / part / f"subject_{part}.txt", "\n".join(str(30 - row) for row in range(len(x))))
    source = load("uci_har")
    assert np.allclose(source.data.x, rows["train"], atol=1e-7)
    assert np.allclose(source.test.x, rows["test"], atol=1e-7)
    assert source.data.y.tolist() == [5, 4, 3]
    assert source.test.y.tolist() == [5, 4]
    assert source.groups["subject"].tolist() == [30, 29, 28]
    write(place / "train" / "X_train.txt", "1 2\n3")
    with pytest.raises(DataError, match=r"X_train.txt as rows of numbers"):
        load("uci_har")


def test_uci_har_from_the_archive(folder):
    x = np.linspace(-1, 1, 4 * 561).reshape(4, 561).astype(np.float16)
    test = np.array([False, True, False, True])
    np.savez(folder / "uci_har.npz", x=x, y=np.array([0, 1, 2, 3], np.uint8), subject=np.arange(4), official_test=test)
    source = load("uci_har")
    assert np.array_equal(source.data.x, x[[0, 2]])
    assert source.test.y.tolist() == [1, 3]
    assert source.groups["subject"].tolist() == [0, 2]


@pytest.mark.parametrize("file", ["data.csv", "Epileptic Seizure Recognition.csv"])
def test_esr_in_its_own_format(folder, file):
    samples = [f"X{i}" for i in range(1, 179)]
    values = np.arange(178) - 100
    rows = [
        ("X21.V1.791", *values, 4),
        ("X1.V1.924", *values + 1, 1),
        ("X2.V1.791", *values, 4),
        ("X2.V1.924", *values, 5),
    ]
    write(folder / "esr" / file, table(("", *samples, "y"), *rows))
    source = load("esr")
    assert np.array_equal(source.data.x, [values, values + 1, values, values])
    assert source.data.y.tolist() == [0, 1, 0, 0]
    assert source.groups["condition"].tolist() == [4, 1, 4, 5]
    assert source.groups["chunk"].tolist() == [20, 0, 1, 1]
    assert source.groups["recording"].tolist() == [0, 1, 0, 2]  # one name under two conditions is two recordings
    assert load("esr_five").data.y.tolist() == [3, 0, 3, 4]
    write(folder / "esr" / file, table(("", *samples, "y"), ("row 1", *values, 4)))
    with pytest.raises(DataError, match=r"X21\.V1\.791, not 'row 1'"):
        load("esr")


def test_esr_from_the_archive(folder):
    labels = np.array([5, 1], np.uint8)
    np.savez(folder / "esr.npz", x=np.ones((2, 178), np.int16), y=labels, recording=labels, chunk=labels)
    assert load("esr").data.y.tolist() == [0, 1]
    assert load("esr_five").data.y.tolist() == [4, 0]


def write_abide(folder, regions=(3, 3)):
    people = table(
        ("SUB_ID", "SITE_ID", "FILE_ID", "DX_GROUP", "NOTE"),
        (50002, "PITT", "Pitt_0050002", 1, '"left, right"'),
        (50003, "UM_1", "UM_1_0050003", 2, "-"),
    )
    write(folder / "Phenotypic_V1_0b_preprocessed1.csv", people)
    rng = np.random.default_rng(0)
    scans = []
    for person, count, length in zip(("Pitt_0050002", "UM_1_0050003"), regions, (4, 2), strict=True):
        scans.append(rng.normal(0, 10, (length, count)).round(6))
        text = "#" + "\t".join(f"#{i}" for i in range(count)) + "\n"
        write(
            folder / "rois_aal" / f"{person}_rois_aal.1D",
            text + "\n".join("\t".join(map(repr, line)) for line in scans[-1].tolist()),
        )
    return scans


def test_abide_in_its_own_format(folder):
    scans = write_abide(folder)
    source = load("abide")
    assert np.array_equal(source.data.x, np.concatenate(scans))
    assert source.data.y.tolist() == [1, 1, 1, 1, 0, 0]
    assert source.groups["subject"].tolist() == [50002] * 4 + [50003] * 2
    assert source.groups["site"].tolist() == ["PITT"] * 4 + ["UM_1"] * 2


def test_abide_scans_that_do_not_fit_are_refused(folder):
    write_abide(folder, regions=(3, 4))
    with pytest.raises(DataError, match="keep one atlas"):
        load("abide")
    write_abide(folder)
    (folder / "rois_aal" / "UM_1_0050003_rois_aal.1D").rename(folder / "rois_aal" / "nobody_rois_aal.1D")
    with pytest.raises(DataError, match="no FILE_ID 'nobody'"):
        load("abide")


def test_abide_from_the_archive(folder):
    arrays = {
        "ts": np.arange(10.0).reshape(5, 2).astype(np.float16),
        "asd": np.array([1, 0], np.uint8),
        "site": np.array(["NYU", "UCLA_1"]),
        "subject": np.array([7, 8]),
    }
    np.savez(folder / "abide_cc200.npz", **arrays, length=np.array([3, 2]))
    source = load("abide")
    assert source.data.y.tolist() == [1, 1, 1, 0, 0]
    assert source.groups["subject"].tolist() == [7, 7, 7, 8, 8]
    np.savez(folder / "abide_cc200.npz", **arrays, length=np.array([3, 3]))
    with pytest.raises(DataError, match="sum to 6, not to the 5 rows"):
        load("abide")
