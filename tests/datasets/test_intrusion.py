"""Sets of network traffic, from our archives and in the originals' own formats."""

import gzip

import numpy as np
import pytest

from securefed.datasets import load
from securefed.datasets._intrusion import IOT23_FEATURES, TON_FEATURES, UNSW_FEATURES
from securefed.errors import DataError
from tests.datasets.files import table, write


def unsw(values, category, label):
    return (7, *values[:1], "tcp", "-", "FIN", *values[1:], category, label)


UNSW_NAMES = ("\ufeffid", "dur", "proto", "service", "state", *UNSW_FEATURES[1:], "attack_cat", "label")


def test_unsw_nb15_in_its_own_format(folder):
    first, second = np.arange(39) / 2, np.arange(39) + 100.0
    train = table(UNSW_NAMES, unsw(first, "Normal", 0), unsw(second, " Fuzzers", 1))
    write(folder / "unsw_nb15" / "UNSW_NB15_training-set.csv", train)
    write(folder / "unsw_nb15" / "UNSW_NB15_testing-set.csv", table(UNSW_NAMES, unsw(second, "DoS", 1)))
    source = load("unsw_nb15")
    assert np.array_equal(source.data.x, [first, second])
    assert source.data.y.tolist() == [0, 1]
    assert source.groups["attack_cat"].tolist() == ["Normal", "Fuzzers"]
    assert np.array_equal(source.test.x, [second])
    assert source.column("ct_srv_src") == UNSW_FEATURES.index("ct_srv_src") == 27
    with pytest.raises(DataError, match="no column 'srv'"):
        source.column("srv")


@pytest.mark.parametrize(
    ("broken", "refusal"),
    [
        (lambda text: text.replace("ct_srv_src", "other"), "no column 'ct_srv_src'"),
        (lambda text: text.replace("19.0", "many"), r"these hold other cells: '.*' \('many'; 1 of 1 rows"),
        (lambda text: text.rsplit(",", 1)[0], "line 2 has .* cells between commas, and the header"),
        (lambda text: text.split("\n")[0], "holds no rows"),
        (lambda text: text.replace("Normal,0", "Normal,0.5"), "whole numbers"),
        (lambda text: text.replace("Normal,0", "Normal,inf"), "whole numbers"),
    ],
)
def test_a_broken_table_is_refused_by_name(folder, broken, refusal):
    text = table(UNSW_NAMES, unsw(np.arange(39) / 2, "Normal", 0))
    write(folder / "UNSW_NB15_training-set.csv", broken(text))
    write(folder / "UNSW_NB15_testing-set.csv", text)
    with pytest.raises(DataError, match=refusal) as error:
        load("unsw_nb15")
    assert "UNSW_NB15_training-set.csv" in str(error.value)


def test_unsw_nb15_from_the_archive(folder):
    x = np.arange(6.0).reshape(3, 2).astype(np.float32)
    np.savez(
        folder / "unsw_nb15.npz",
        x=x,
        y=np.array([0, 1, 0], np.uint8),
        attack_cat=np.array([0, 1, 0], np.uint8),
        attack_names=np.array(["Normal", "DoS"]),
        role=np.array([0, 2, 1], np.uint8),
        role_paper_test=np.array([1, 2, 0], np.uint8),
        features=np.array(["a", "b"]),
    )
    source = load("unsw_nb15")
    assert np.array_equal(source.data.x, x)
    assert source.groups["attack_cat"].tolist() == ["Normal", "DoS", "Normal"]
    assert source.groups["role"].tolist() == [0, 2, 1]
    assert source.features == ("a", "b")


def test_ton_iot_in_its_own_format(folder):
    names = ("ts", "src_ip", "src_port", *TON_FEATURES, "dns_query", "label", "type")
    flow = dict.fromkeys(TON_FEATURES, "-") | {"duration": 1.5, "dns_AA": "T", "dns_RD": "F", "dns_qtype": 28}
    line = ("15", "10.0.0.1", 4444, *flow.values(), '"a, quoted, name"', 1, "scanning")
    write(folder / "Train_Test_Network.csv", table(names, line))
    source = load("ton_iot")
    found = dict(zip(source.features, source.data.x[0], strict=True))
    assert (found["duration"], found["dns_qtype"], found["src_bytes"]) == (1.5, 28, 0)
    assert (found["dns_AA"], found["dns_RD"], found["dns_RA"], found["weird_notice"]) == (1, 0, -1, -1)
    assert source.data.y.tolist() == [1]
    assert source.groups["src_port"].tolist() == [4444]
    assert source.groups["attack_cat"].tolist() == ["scanning"]
    write(folder / "Train_Test_Network.csv", table(names, line).replace(",T,", ",maybe,"))
    with pytest.raises(DataError, match=r"'dns_AA'.*'maybe' is no flag"):
        load("ton_iot")


ZEEK = """#separator \\x09
#fields\tts\tproto\tduration\torig_bytes\tresp_bytes\tmissed_bytes\torig_pkts\torig_ip_bytes\tresp_pkts\tresp_ip_bytes\ttunnel_parents   label   detailed-label
1.5\ttcp\t2.25\t10\t20\t0\t1\t50\t2\t60\t-   Malicious   C&C
1.6\tudp\t-\t-\t-\t0\t1\t40\t0\t0\t(empty)   Benign   -
#close\t2019
"""  # noqa: E501 - a log line


def test_iot23_in_its_own_formats(folder):
    write(folder / "CTU-IoT-Malware-Capture-1-1" / "bro" / "conn.log.labeled", ZEEK)
    write(folder / "CTU-Honeypot-Capture-4-1" / "bro" / "conn.log.labeled", ZEEK.replace("Malicious", "benign"))
    source = load("iot23")
    assert source.features == IOT23_FEATURES
    assert np.array_equal(source.data.x[2:], [[2.25, 10, 20, 0, 1, 50, 2, 60], [0, 0, 0, 0, 1, 40, 0, 0]])
    assert source.data.y.tolist() == [0, 0, 1, 0]
    assert source.groups["capture"].tolist() == [0, 0, 1, 1]


def test_iot23_as_a_table_of_bars(folder):
    write(folder / "iot23" / "1-1conn.log.labeled.csv", "|".join(IOT23_FEATURES) + "|label\n1|2|3|4|5|6|7|-|Benign\n")
    source = load("iot23")
    assert source.data.x.tolist() == [[1, 2, 3, 4, 5, 6, 7, 0]]
    assert source.data.y.tolist() == [0]


def test_zipped_tables_and_logs_are_read_and_cut_ones_refused(folder):
    path = folder / "conn.log.labeled.gz"
    path.write_bytes(gzip.compress(ZEEK.encode()))
    assert load("iot23").data.y.tolist() == [1, 0]
    path.write_bytes(gzip.compress(ZEEK.encode())[:-20])
    with pytest.raises(DataError, match=r"cannot read .*conn\.log"):
        load("iot23")
    path.unlink()
    bars = "|".join(IOT23_FEATURES) + "|label\n1|2|3|4|5|6|7|-|Benign\n"
    (folder / "1conn.log.labeled.csv.gz").write_bytes(gzip.compress(bars.encode()))
    assert load("iot23").data.x.tolist() == [[1, 2, 3, 4, 5, 6, 7, 0]]


def test_traffic_archives(folder):
    rows = {name: np.full((n, 8), n, np.float32) for n, name in enumerate(("x_train_normal", "x_test_normal"), 2)}
    np.savez(folder / "iot23.npz", **rows, x_test_abnormal=np.ones((1, 8)), features=np.array(IOT23_FEATURES))
    source = load("iot23")
    assert source.groups["role"].tolist() == [0, 0, 1, 1, 1, 2]
    assert source.data.y.tolist() == [0, 0, 0, 0, 0, 1]
    role = np.array([0, 2], np.uint8)
    np.savez(folder / "ton_iot_22.npz", x=np.ones((2, 22)), y=role // 2, role=role, features=np.array(TON_FEATURES))
    assert load("ton_iot").groups["role"].tolist() == [0, 2]
