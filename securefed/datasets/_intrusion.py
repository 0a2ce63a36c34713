"""Load data sets of network traffic, one row a flow, normal or attack; values are raw, scale them (`scaling`).

The files come from the folder that SECUREFED_DATA names: one `.npz` archive, or the original's own files. The errors of
a missing file name both. Archives keep a fact `role` of every row, which says whether it is for training or for tests
of an anomaly detector. In the lists of groups below, "(archive)" and "(original)" mark facts that only one form has.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from securefed._tensors import Array
from securefed.datasets._base import Dataset
from securefed.datasets._dataset_files import DatasetFiles
from securefed.datasets._formats import read_npz
from securefed.datasets._loaded_dataset import LoadedDataset
from securefed.datasets._tables.table import Table
from securefed.datasets._tables.text_tables import read_csv, read_zeek

# Each: name, our archive, the original's files (several names for one file in a tuple of their own), the official site.
UNSW_NB15 = DatasetFiles(
    "unsw_nb15",
    "unsw_nb15.npz",
    (("UNSW_NB15_training-set.csv",), ("UNSW_NB15_testing-set.csv",)),
    "UNSW Canberra, https://research.unsw.edu.au/projects/unsw-nb15-dataset",
)
TON_IOT = DatasetFiles(
    "ton_iot",
    "ton_iot_22.npz",
    (("train_test_network.csv", "Train_Test_Network.csv"),),
    "UNSW Canberra, https://research.unsw.edu.au/projects/toniot-datasets (train-test data sets, network)",
)
IOT23 = DatasetFiles(
    "iot23",
    "iot23.npz",
    (("**/*conn.log.labeled", "**/*conn.log.labeled.csv"),),
    "Stratosphere Laboratory, https://www.stratosphereips.org/datasets-iot23",
)

# The columns that are read, in the order of the features, by the originals' names.
UNSW_FEATURES = (
    *("dur", "spkts", "dpkts", "sbytes", "dbytes", "rate", "sttl", "dttl", "sload", "dload", "sloss", "dloss"),
    *("sinpkt", "dinpkt", "sjit", "djit", "swin", "stcpb", "dtcpb", "dwin", "tcprtt", "synack", "ackdat", "smean"),
    *("dmean", "trans_depth", "response_body_len", "ct_srv_src", "ct_state_ttl", "ct_dst_ltm", "ct_src_dport_ltm"),
    *("ct_dst_sport_ltm", "ct_dst_src_ltm", "is_ftp_login", "ct_ftp_cmd", "ct_flw_http_mthd", "ct_src_ltm"),
    *("ct_srv_dst", "is_sm_ips_ports"),
)
TON_FLAGS = ("dns_AA", "dns_RD", "dns_RA", "dns_rejected", "ssl_resumed", "ssl_established", "weird_notice")
TON_FEATURES = (
    *("duration", "src_bytes", "dst_bytes", "missed_bytes", "src_pkts", "src_ip_bytes", "dst_pkts", "dst_ip_bytes"),
    *("dns_qclass", "dns_qtype", "dns_rcode", "dns_AA", "dns_RD", "dns_RA", "dns_rejected", "ssl_resumed"),
    *("ssl_established", "http_trans_depth", "http_request_body_len", "http_response_body_len", "http_status_code"),
    "weird_notice",
)
IOT23_FEATURES = (
    *("duration", "orig_bytes", "resp_bytes", "missed_bytes"),
    *("orig_pkts", "orig_ip_bytes", "resp_pkts", "resp_ip_bytes"),
)

UNSW_BOUND = float(2**33)
"""Bound on the entries of UNSW-NB15, whose largest are the bits a second of one flow (`sload`)."""
TON_BOUND = float(2**32)
"""Bound on the entries of TON-IoT, whose largest are the bytes of one flow."""
IOT23_BOUND = float(2**40)
"""Bound on the entries of IoT-23, whose largest are the bytes of one flow; some of its captures hold long floods."""


def unsw_nb15() -> LoadedDataset:
    """Load UNSW-NB15, 39 numeric columns, `y` 0 normal or 1 attack.

    From the original's tables `data` is the training set (175341 rows) and `test` the testing set (82332). Our archive
    holds the testing set alone, all of it in `data`, with a random split in the group `role`.

    Groups:
        attack_cat: the kind of attack, `Normal` where there is none.
        role: (archive) 0 normal row to train on, 1 normal row to test on, 2 attack.
        role_paper_test: (archive) likewise, but split in the file's order, which drifts with time; the name is the
            archive's.
    """
    archive = UNSW_NB15.archived()
    if archive:
        arrays = read_npz(archive, "x", "y", "attack_cat", "attack_names", "role", "role_paper_test", "features")
        groups = {
            "attack_cat": arrays["attack_names"][arrays["attack_cat"]],
            "role": arrays["role"],
            "role_paper_test": arrays["role_paper_test"],
        }
        return _source(UNSW_NB15, arrays["x"], arrays["y"], groups, UNSW_BOUND, tuple(map(str, arrays["features"])))
    train, test = (read_csv(paths[0]) for paths in UNSW_NB15.originals())
    kinds = {"attack_cat": np.char.strip(train.text("attack_cat"))}
    held = Dataset(test.numbers(UNSW_FEATURES), test.integers("label"))
    return _source(
        UNSW_NB15, train.numbers(UNSW_FEATURES), train.integers("label"), kinds, UNSW_BOUND, UNSW_FEATURES, held
    )


def ton_iot() -> LoadedDataset:
    """Load TON-IoT's network flows, 22 numeric columns, `y` 0 normal or 1 attack.

    A flag that a flow does not have is -1 (else 0 or 1), a count that it does not have is 0.

    Groups:
        role: (archive) 0 normal row to train on, 1 normal row to test on, 2 attack.
        src_port: (original) the source's port.
        attack_cat: (original) the kind of attack, or `normal`.
    """
    archive = TON_IOT.archived()
    if archive:
        arrays = read_npz(archive, "x", "y", "role", "features")
        groups = {"role": arrays["role"]}
        return _source(TON_IOT, arrays["x"], arrays["y"], groups, TON_BOUND, tuple(map(str, arrays["features"])))
    ((path,),) = TON_IOT.originals()
    flows = read_csv(path)
    x = np.column_stack([flows.numbers([name], _flag if name in TON_FLAGS else _count)[:, 0] for name in TON_FEATURES])
    groups = {"src_port": flows.integers("src_port"), "attack_cat": flows.text("type")}
    return _source(TON_IOT, x, flows.integers("label"), groups, TON_BOUND, TON_FEATURES)


def iot23() -> LoadedDataset:
    """Load IoT-23's connections, 8 numeric columns, `y` 0 benign or 1 malicious. A count that a connection lacks is 0.

    Of the original, every capture in the folder is read whole; some have tens of millions of rows.

    Groups:
        role: (archive) 0 benign row to train on, 1 benign row to test on, 2 malicious.
        capture: (original) the log a row comes from, numbered in the order of their paths.
    """
    archive = IOT23.archived()
    if archive:
        names = ("x_train_normal", "x_test_normal", "x_test_abnormal")
        arrays = read_npz(archive, *names, "features")
        role = np.repeat(np.arange(3), [len(arrays[name]) for name in names])
        x = np.concatenate([arrays[name] for name in names])
        columns = tuple(map(str, arrays["features"]))
        return _source(IOT23, x, role == 2, {"role": role}, IOT23_BOUND, columns)
    (paths,) = IOT23.originals()
    captures = [_capture(path) for path in paths]
    capture = np.repeat(np.arange(len(captures)), [len(x) for x, _ in captures])
    x = np.concatenate([x for x, _ in captures])
    y = np.concatenate([y for _, y in captures])
    return _source(IOT23, x, y, {"capture": capture}, IOT23_BOUND, IOT23_FEATURES)


def _capture(path: Path) -> tuple[Array, Array]:
    """Read one capture of IoT-23: its connections (rows, columns), and whether each is malicious."""
    log: Table = read_csv(path) if ".csv" in path.suffixes else read_zeek(path)
    benign = np.char.lower(log.text("label")) == "benign"
    return log.numbers(IOT23_FEATURES, _count), ~benign


def _count(entry: str) -> float:
    """Read a number; 0 where the field is empty."""
    return 0.0 if entry.strip() in ("-", "") else float(entry)


def _flag(entry: str) -> float:
    """Read a flag as 1 or 0; -1 where the field is empty."""
    known = {"-": -1.0, "": -1.0, "F": 0.0, "0": 0.0, "T": 1.0, "1": 1.0}
    if entry.strip() not in known:
        raise ValueError(f"{entry!r} is no flag: T, F or -")
    return known[entry.strip()]


def _source(
    origin: DatasetFiles,
    x: Array,
    y: Array,
    groups: Mapping[str, Array],
    bound: float,
    features: tuple[str, ...],
    test: Dataset | None = None,
) -> LoadedDataset:
    """Put a data set together, its labels 0 or 1."""
    data = Dataset(x, y.astype(np.int64))
    return LoadedDataset(data, origin.name, bound, test=test, groups=groups, features=features)
