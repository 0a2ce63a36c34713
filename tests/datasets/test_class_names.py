"""Parties that read a table each number their labels alike, or are refused by name with a remedy that works."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import Dataset, Federation, Public, audit_transcript
from securefed._commands.cli import app
from securefed.algorithms import FedAvg
from securefed.datasets import LoadedDataset, load, partition, read_table
from securefed.datasets._tables.table_format import TableFormat, split_classes
from securefed.datasets.scaling import z_score
from securefed.errors import ConfigError, DataError
from securefed.problems import SoftmaxRegression
from securefed.statistics import ContingencyTable

NAMES = ["healthy", "ill", "unknown"]
SITES: dict[str, tuple[list[list[Any]], list[Any]]] = {
    "words": ([["healthy", "ill", "ill", "healthy"], ["ill", "unknown", "ill", "ill"]], NAMES),
    "codes": ([[1, 3, 3, 1], [1, 2, 3, 2]], [1, 2, 3]),
    "one code alone": ([[0, 1, 1, 0], [1, 1, 1, 1]], [0, 1]),
    "words and codes": ([[1, 2, 1, 2], [2, "unknown", 1, 2]], [1, 2, "unknown"]),
    "codes with a gap": ([[0, 1, 2, 1], [0, 2, 2, 0]], [0, 1, 2]),
}
"""By name the labels of two sites, and all of their classes."""


def written(folder: Path, labels: list[Any], name: str = "site") -> Path:
    path = folder / f"{name}.csv"
    lines = [f"{1.5 * row},{label}" for row, label in enumerate(labels)]
    path.write_text("\n".join(["age,outcome", *lines]) + "\n", encoding="utf-8")
    return path


def archive(folder: Path, labels: list[Any], name: str = "site") -> Path:
    path = folder / f"{name}.npz"
    y = np.array(labels) if len({type(label) for label in labels}) == 1 else np.array(labels, dtype=str)
    np.savez(path, x=np.arange(len(labels))[:, None] * 1.5, outcome=y)
    return path


def read(path: Path, **options: Any) -> LoadedDataset:
    return load(path, label="outcome", **options)


def parts_of(folder: Path, sites: list[list[Any]], write: Any = written, **options: Any) -> list[Dataset]:
    return [read(write(folder, labels, f"site{at}"), **options).data for at, labels in enumerate(sites)]


@pytest.mark.parametrize("write", [written, archive])
@pytest.mark.parametrize("name", SITES)
def test_declared_classes_have_the_same_numbers_at_all_sites(tmp_path: Path, name: str, write: Any) -> None:
    sites, classes = SITES[name]
    for data, labels in zip(parts_of(tmp_path, sites, write, classes=classes), sites, strict=True):
        assert data.labels().tolist() == [classes.index(label) for label in labels]
        assert data.class_names == tuple(classes) and data.classes == len(classes)


@pytest.mark.parametrize("name", SITES)
def test_clients_that_number_their_classes_differently_are_refused_with_a_remedy_that_works(
    tmp_path: Path, name: str
) -> None:
    sites, classes = SITES[name]
    clients = parts_of(tmp_path, sites)
    with pytest.raises(DataError, match="numbers classes as") as refused:
        Public.of(clients)
    public = Public(2, 2, 1, (4, 4), len(classes), 10.0)
    for facts in (None, public):
        with pytest.raises(DataError, match="numbers classes as"):
            Federation(FedAvg(problem=SoftmaxRegression(), learning_rate=0.1), clients, public=facts)
    named = json.loads(re.findall(r"classes=(\[.*\])", str(refused.value))[0].replace("'", '"'))
    declared = parts_of(tmp_path, sites, classes=named)
    assert Federation(FedAvg(problem=SoftmaxRegression(), learning_rate=0.1), declared).run(1).output
    found = Public.of(declared)
    assert found.classes == len(classes)
    assert found.class_names == (() if classes == list(range(len(classes))) else tuple(classes))


def test_labels_that_are_their_own_numbers_need_no_names(tmp_path: Path) -> None:
    clients = parts_of(tmp_path, [[0, 1, 0, 1], [0, 1, 2, 0]])
    assert Public.of(clients) == Public(2, 2, 1, (4, 4), 3, 4.5)
    assert "hold for this file" not in read(written(tmp_path, [0, 1, 0, 1])).summary


def test_truth_values_have_numbers_of_their_own(tmp_path: Path) -> None:
    one = read(written(tmp_path, ["true", "True", "TRUE"]))
    assert one.data.labels().tolist() == [1, 1, 1] and one.data.classes == 2
    declared = read(written(tmp_path, ["true", "True", "false"]), classes=["true", "false"])
    assert declared.data.labels().tolist() == [0, 0, 1]


def test_the_line_says_that_numbers_hold_for_one_file_and_how_to_declare_classes(tmp_path: Path) -> None:
    path = written(tmp_path, ["ill", "well, now", "ill"]).rename(tmp_path / "one.csv")
    path.write_text('age,outcome\n1,ill\n2,"well, now"\n3,ill\n', encoding="utf-8")
    said = read(path).summary
    assert "hold for this file alone" in said
    options = re.findall(r"--classes '(.*?)' \(classes=(\[.*?\])", said)[0]
    assert split_classes(options[0]) == ("ill", "well, now") and options[1] == "['ill', 'well, now']"
    declared = read(path, classes=split_classes(options[0]))
    assert "2 classes as declared: 0 = ill, 1 = well, now" in declared.summary
    assert "hold for this file" not in declared.summary


@pytest.mark.parametrize("write", [written, archive])
def test_a_value_that_is_not_declared_is_refused_by_name_with_a_remedy_that_works(tmp_path: Path, write: Any) -> None:
    path = write(tmp_path, ["ill", "unknown", "healthy", "unknown"])
    with pytest.raises(DataError) as refused:
        read(path, classes=["healthy", "ill"])
    said = str(refused.value)
    assert f"{path}: column 'outcome' holds 'unknown' (first: row 1; 2 of 4 rows)" in said
    assert "the declared classes are 0 = healthy, 1 = ill;" in said
    remedy = re.findall(r"--classes (\S+) \(", said)[0]
    assert read(path, classes=split_classes(remedy)).data.labels().tolist() == [1, 2, 0, 2]
    with pytest.raises(DataError, match=r"holds '1\.5'.*--classes 0,1 \("):
        read(written(tmp_path, [0, 1.5, 1]), classes=[0, 1])


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        ("ill", "must be a list of names"),
        (["ill", " ill"], "'ill' is named twice"),
        (["ill", ""], "a text or a whole number; got ''"),
        ([1, 1.5], "a text or a whole number; got 1.5"),
        ([1, None], "a text or a whole number; got None"),
    ],
)
def test_classes_that_are_no_list_of_names_are_refused(classes: Any, said: str) -> None:
    for ask in (
        lambda: TableFormat(classes=classes),
        lambda: load("digits", classes=classes),
        lambda: Public(2, 2, 1, (1, 1), 2, 1.0, classes),
        lambda: Dataset(np.eye(2), [0, 1], classes),
    ):
        with pytest.raises(ConfigError, match=said):
            ask()


def test_classes_of_data_without_a_column_of_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no column of labels called y or label"):
        load(written(tmp_path, [0, 1]), classes=[0, 1])
    with pytest.raises(ConfigError, match="digits has its own classes; leave out --classes 0,1"):
        load("digits", classes=[0, 1])
    with pytest.raises(ConfigError, match="name each of 3 classes; got 2"):
        Public(2, 2, 1, (1, 1), 3, 1.0, ("a", "b"))
    with pytest.raises(DataError, match="the label 2 has no name"):
        Dataset(np.eye(3), [0, 1, 2], ("a", "b"))


def test_names_stay_with_rows_that_are_taken_scaled_and_split(tmp_path: Path) -> None:
    data = read(written(tmp_path, ["ill", "healthy"] * 10), classes=NAMES).data
    parts = [
        data.single(),
        data.take(np.arange(3)),
        z_score(data)(data),
        *partition.split(data, 0.2, np.random.default_rng(0)),
    ]
    assert [part.class_names for part in parts] == [tuple(NAMES)] * 5
    assert "ill" not in repr(data)


def test_test_rows_that_number_their_classes_differently_are_refused(tmp_path: Path) -> None:
    train, test = [read(written(tmp_path, labels, f"{at}")) for at, labels in enumerate(SITES["words"][0])]
    with pytest.raises(DataError, match="the data of 0 numbers classes as 0 = healthy, 1 = ill, and the test rows"):
        replace(train, test=test.data)


def test_rows_to_score_a_recorded_run_by_must_number_their_classes_alike(tmp_path: Path) -> None:
    sites, _ = SITES["words"]
    method = FedAvg(problem=SoftmaxRegression(), learning_rate=0.1)
    result = Federation(method, parts_of(tmp_path, sites, classes=NAMES)).run(1)
    assert result.transcript is not None
    with pytest.raises(DataError, match="numbers classes as"):
        audit_transcript(result.transcript, method, clients=parts_of(tmp_path, sites))


def test_public_facts_without_names_keep_their_fingerprint() -> None:
    plain = Public(clients=2, cohort=2, features=1, rows=(4, 4), classes=3, feature_bound=10.0)
    assert repr(plain) == "Public(clients=2, cohort=2, features=1, rows=(4, 4), classes=3, feature_bound=10.0)"
    assert repr(replace(plain, class_names=NAMES)) != repr(replace(plain, class_names=NAMES[::-1])) != repr(plain)


COMMANDS = [
    ["run", "optimization/fedavg", "--set", "problem=softmax", "--set", "learning_rate=0.1", "--rounds", "1"],
    ["audit", "--algorithms", "no/such", "--clients", "2"],
    ["advise", "no/such", "--clients", "3"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_commands_take_classes_and_refuse_others(
    tmp_path: Path, command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    path = written(tmp_path, ["ill", "unknown"] * 12)
    asked = [*command, "--data", str(path), "--label-column", "outcome", "--classes"]
    refused = CliRunner().invoke(app, [*asked, "healthy,ill"])
    assert refused.exit_code == 2 and "holds 'unknown'" in refused.output
    remedy = re.findall(r"--classes (\S+) \(", refused.output)[0]
    taken = CliRunner().invoke(app, [*asked, remedy])
    assert "3 classes as declared: 0 = healthy, 1 = ill, 2 = unknown" in taken.output
    assert taken.exit_code == (0 if command[0] == "run" else 2), taken.output


def test_a_run_of_a_file_has_a_place_for_each_declared_class(tmp_path: Path) -> None:
    path, study = written(tmp_path, ["ill", "healthy"] * 12), tmp_path / "study.toml"
    study.write_text(
        'algorithm = "optimization/fedavg"\nlabel_column = "outcome"\nrounds = 1\nclients = 2\n'
        f"data = {str(path)!r}\nclasses = {NAMES!r}\n[settings]\nproblem = 'softmax'\nlearning_rate = 0.1\n",
        encoding="utf-8",
    )
    ran = CliRunner().invoke(app, ["run", str(study), "--json"])
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["run"]["classes"] == NAMES
    study.write_text(study.read_text(encoding="utf-8").replace(f"{NAMES!r}", "'ill'"), encoding="utf-8")
    assert "classes must be a list" in CliRunner().invoke(app, ["run", str(study)]).output


def test_codes_of_a_contingency_table_are_those_of_the_declared_classes(tmp_path: Path) -> None:
    sites, classes = SITES["words"]
    paths = [written(tmp_path, labels, f"{at}") for at, labels in enumerate(sites)]
    codes = [read(path, classes=classes).data.labels()[:, None] for path in paths]
    assert ContingencyTable(levels=(3,), least_cell=1).simulate(codes).value.tolist() == [2, 5, 1]
    with pytest.raises(DataError, match="hold other cells: 'outcome'"):  # texts are never numbered by a site alone
        ContingencyTable(levels=(3,)).summand(read_table(paths[0]).select(["outcome"]))
