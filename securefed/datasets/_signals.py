"""Load data sets of signals measured on people: phone sensors, EEG and functional MRI.

The files come from the folder that SECUREFED_DATA names: one `.npz` archive, or the original's own files. The error for
a missing file names both. Each loader returns a `LoadedDataset` of rows `x`, labels `y`, a bound on the entries of `x`,
and `groups`, facts of every row by which rows can be split over clients.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.datasets._dataset_files import DatasetFiles
from securefed.datasets._formats import read_matrix, read_npz
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._tables.table import Table
from securefed.datasets._tables.text_tables import read_csv
from securefed.errors import DataError

# Arguments: name; archive; for each of the original's files a tuple of patterns of its name, of which one suffices;
# where to get the files; the folder they unpack to.
UCI_HAR = DatasetFiles(
    "uci_har",
    "uci_har.npz",
    tuple((f"{part}/{what}_{part}.txt",) for part in ("train", "test") for what in ("X", "y", "subject")),
    "the UCI repository, https://archive.ics.uci.edu/dataset/240/human+activity+recognition+using+smartphones",
    "UCI HAR Dataset",
)
ESR = DatasetFiles(
    "esr",
    "esr.npz",
    (("Epileptic Seizure Recognition.csv", "data.csv"),),
    "the UCI repository, https://archive.ics.uci.edu/dataset/388/epileptic+seizure+recognition",
)
ABIDE = DatasetFiles(
    "abide",
    "abide_cc200.npz",
    (("Phenotypic_V1_0b_preprocessed*.csv",), ("**/*_rois_*.1D",)),
    "the Preprocessed Connectomes Project, http://preprocessed-connectomes-project.org/abide/ (ROI time series)",
)

ESR_SAMPLES = 178
"""Number of samples, X1 to X178, in a second of EEG."""
ESR_BOUND = 2048.0
"""Bound on the samples: the recordings come from a 12-bit converter."""
SEIZURE = 1
"""The original's class of seizures."""
ABIDE_BOUND = 4096.0
"""Bound on the entries of a preprocessed series, in the scanner's units without the mean; the largest found is 528."""


def uci_har() -> LoadedDataset:
    """Load UCI HAR: human activity from a phone's sensors, 561 features in [-1, 1], `y` 0..5.

    There are 7352 official training rows, and 2947 in `test`.

    Groups:
        subject: number of the person who wore the phone, 1 to 30; no subject is both in `data` and in `test`.
    """
    archive = UCI_HAR.archived()
    if archive:
        arrays = read_npz(archive, "x", "y", "subject", "official_test")
        test = arrays["official_test"].astype(bool)
        data = [Dataset(arrays["x"][rows], arrays["y"][rows].astype(np.int64)) for rows in (~test, test)]
        subject = arrays["subject"][~test].astype(np.int64)
    else:
        x, y, subjects, x_test, y_test, _ = (read_matrix(paths[0]) for paths in UCI_HAR.originals())
        data = [Dataset(x, _activity(y)), Dataset(x_test, _activity(y_test))]
        subject = subjects[:, 0].astype(np.int64)
    return LoadedDataset(data[0], "uci_har", 1.0, test=data[1], groups={"subject": subject})


def _activity(column: Array) -> Array:
    """Return the labels 0 to 5 of the original's activities 1 to 6."""
    return column[:, 0].astype(np.int64) - 1


def esr() -> LoadedDataset:
    """Load epileptic seizure recognition: 11500 seconds of EEG, 178 samples each, raw; `y` is 1 for a seizure, else 0.

    Groups:
        recording: number of the recording that a second was cut from.
        chunk: position of the second in its recording.
        condition: the five classes of the original, 1 (seizure) to 5.
    """
    x, groups = _seconds()
    return LoadedDataset(Dataset(x, (groups["condition"] == SEIZURE).astype(np.int64)), "esr", ESR_BOUND, groups=groups)


def esr_five() -> LoadedDataset:
    """Load `esr` with all five classes: `y` is the original's class less one, so that 0 is a seizure."""
    x, groups = _seconds()
    return LoadedDataset(Dataset(x, groups["condition"] - 1), "esr_five", ESR_BOUND, groups=groups)


def _seconds() -> tuple[Array, dict[str, Array]]:
    """Read the seconds of EEG (rows, samples), and the groups that `esr` explains."""
    archive = ESR.archived()
    if archive:
        arrays = read_npz(archive, "x", "y", "recording", "chunk")
        return arrays["x"], {
            "recording": arrays["recording"].astype(np.int64),
            "chunk": arrays["chunk"].astype(np.int64),
            "condition": arrays["y"].astype(np.int64),
        }
    ((path,),) = ESR.originals()
    rows = read_csv(path)
    first = rows.names[0]  # the column of row names has none, or `Unnamed`
    condition = rows.integers("y")
    chunk, recording = _places(path, rows.text(first).tolist(), condition)
    x = rows.numbers([f"X{sample}" for sample in range(1, ESR_SAMPLES + 1)])
    return x, {"recording": recording, "chunk": chunk, "condition": condition}


def _places(path: Path, names: Sequence[str], condition: Array) -> tuple[Array, Array]:
    """Return (chunk, recording) of rows named `X<chunk>.<recording>`; no recording spans two conditions."""
    parts = [re.fullmatch(r"X(\d+)\.(.+)", name) for name in names]
    if None in parts:
        odd = names[parts.index(None)]
        raise DataError(f"{path}: its first column must name rows like X21.V1.791, not {odd!r}")
    names_read = [part.groups() for part in parts if part is not None]
    recordings = [f"{place} {which}" for (_, place), which in zip(names_read, condition, strict=True)]
    return np.array([int(chunk) - 1 for chunk, _ in names_read]), np.unique(recordings, return_inverse=True)[1]


def abide() -> LoadedDataset:
    """Load ABIDE, functional MRI of people with autism and controls: rows are moments, columns brain regions.

    `y` is 1 for every row of a person with autism, else 0. A person's rows stand together, in the order of time;
    `partition.by_group(data, groups["subject"])` gives each person to a client. All series must be of one atlas.

    Groups:
        subject: the study's number of the person.
        site: where the person was scanned.
    """
    archive = ABIDE.archived()
    if archive:
        arrays = read_npz(archive, "ts", "length", "asd", "site", "subject")
        x, lengths = arrays["ts"], arrays["length"]
        autism, site, subject = arrays["asd"], arrays["site"], arrays["subject"]
        if lengths.sum() != len(x):
            raise DataError(f"{archive}: the lengths sum to {lengths.sum()}, not to the {len(x)} rows")
    else:
        (people,), paths = ABIDE.originals()
        series, lines = _scans(read_csv(people), paths)
        x, lengths = np.concatenate(series), np.array([len(scan) for scan in series])
        autism, site, subject = (np.array([line[at] for line in lines]) for at in range(3))
    groups = {"subject": np.repeat(subject.astype(np.int64), lengths), "site": np.repeat(site, lengths)}
    return LoadedDataset(Dataset(x, np.repeat(autism.astype(np.int64), lengths)), "abide", ABIDE_BOUND, groups=groups)


def _scans(people: Table, paths: tuple[Path, ...]) -> tuple[list[Array], list[tuple[bool, str, int]]]:
    """Return the series, and (autism, site, subject) of each, from the table of persons."""
    group, subject = people.integers("DX_GROUP"), people.integers("SUB_ID")  # group 1 is autism, 2 control
    site, file = people.text("SITE_ID"), people.text("FILE_ID")
    known = {str(file[row]): (bool(group[row] == 1), str(site[row]), int(subject[row])) for row in range(len(file))}
    series, lines = [], []
    for path in paths:
        person = path.name.split("_rois_")[0]
        if person not in known:
            raise DataError(f"{path}: {people.source} has no FILE_ID {person!r}")
        series.append(read_matrix(path))
        lines.append(known[person])
        if series[-1].shape[1] != series[0].shape[1]:
            raise DataError(
                f"{path} has {series[-1].shape[1]} regions, {paths[0]} has {series[0].shape[1]}; keep one atlas"
            )
    return series, lines
