"""Tables as people have them: at each door they give the right rows, or a refusal whose remedy then works."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from securefed import advise, audit
from securefed._commands.cli import app
from securefed._commands.party_files import read_arrays
from securefed.datasets import load, read_table
from securefed.datasets._loaders import load_once
from securefed.datasets._tables.table_format import TableFormat
from securefed.errors import ConfigError, DataError, UnknownNameError
from securefed.statistics import Mean

RUNNER = CliRunner()
NOTHING = "no_such_algorithm"
"""A name that is refused right after the table was read, before any work."""


@dataclass(frozen=True)
class Bad:
    """A table, and what is to be read from it.

    Attributes:
        text: the table.
        rows: the features.
        encoding: its encoding.
        options: columns of owners and labels.
        refused: the refusal, empty where the table is read at once.
        mended: the table as the refusal asks for it; where there is none, the refusal names options.
        y: the labels.
        owners: the owners.
        said: a part of the line on what was read.
    """

    text: str
    rows: list[list[float]]
    encoding: str = "utf-8"
    options: dict[str, str] = field(default_factory=dict)
    refused: str = ""
    mended: str = ""
    y: list[int] | None = None
    owners: list[str] | None = None
    said: str = ""


OWNER = {"owner": "site"}
BIG = 2**53
TABLES = {
    "older encoding": Bad(
        "age,site,y\n61,Bär,1\n48,Bör,0\n50,Bör,1\n", [[61], [48], [50]], "cp1252", OWNER,
        "not in UTF-8: line 2 holds the byte 0xe4. Its word is 'Bär' in cp1252", y=[1, 0, 1],
        owners=["Bär", "Bör", "Bör"], said="2 owners by 'site'",
    ),
    "older encoding of names": Bad(
        "größe,gräße,y\n61,3,1\n48,4,0\n", [[61, 3], [48, 4]], "cp1252", refused="line 1 holds the byte 0xf6",
        y=[1, 0], said="2 features: 'größe' integer, 'gräße' integer",
    ),
    "UTF-16": Bad("age,y\n61,1\n48,0\n", [[61], [48]], "utf-16", y=[1, 0], said="utf-16, commas"),
    "UTF-16 without a mark": Bad(
        "age,y\n61,1\n48,0\n", [[61], [48]], "utf-16-be", refused="looks like UTF-16 without a byte-order mark",
        y=[1, 0],
    ),
    "UTF-8 with a mark": Bad("age,y\n61,1\n48,0\n", [[61], [48]], "utf-8-sig", y=[1, 0], said="'age' integer"),
    "tabs": Bad("age\tcreat\ty\n61\t1.1\t1\n48\t.9\t0\n", [[61, 1.1], [48, 0.9]], y=[1, 0], said="tabs"),
    "a separator in a quoted name": Bad(
        'age;"Alter, Jahre";y\n61;3;1\n48;2;0\n', [[61, 3], [48, 2]], y=[1, 0], said="'Alter, Jahre' integer"
    ),
    "a declared separator": Bad("sep=;\nage;y\n61;1\n48;0\n", [[61], [48]], y=[1, 0], said="semicolons"),
    "two separators": Bad(
        "a, b;c, d\n1,5;2,5\n2,5;1,5\n", [[1.5, 2.5], [2.5, 1.5]],
        refused="separated by commas (3 columns: 'a', 'b;c', 'd') or semicolons (2 columns: 'a, b', 'c, d')",
    ),
    "decimal commas": Bad(
        "age;lab;y\n61;1,1;1\n48;1,102;0\n", [[61, 1.1], [48, 1.102]], y=[1, 0], said="decimal commas"
    ),
    "a comma of either kind": Bad(
        "age;lab;y\n61;1,102;1\n48;2,204;0\n", [[61, 1.102], [48, 2.204]],
        refused="column 'lab' holds '1,102', which is 1.102 or 1102", y=[1, 0],
    ),
    "a point of either kind": Bad(
        "age;lab;y\n61;1.102;1\n48;2.204;0\n", [[61, 1.102], [48, 2.204]],
        refused="column 'lab' holds '1.102', which is 1.102 or 1102", y=[1, 0],
    ),
    "two decimal marks": Bad(
        "age;lab;y\n61,5;1.5;1\n48;2;0\n", [[61.5, 1.5], [48, 2]], refused="column 'lab' holds '1.5' and column 'age'",
        mended="age;lab;y\n61.5;1.5;1\n48;2;0\n", y=[1, 0],
    ),
    "a ragged line": Bad(
        "age,dose,y\n61,1,1\n48,0\n", [[61, 1], [48, 2]],
        refused="line 3 has 2 cells between commas, and the header has 3",
        mended="age,dose,y\n61,1,1\n48,2,0\n", y=[1, 0],
    ),
    "one column with commas": Bad(
        "w\n1,5\n2,5\n", [[1.5], [2.5]], refused="line 2 has 2 cells between commas, and the header has one ('w')"
    ),
    "a quote without an end": Bad(
        'age,y\n61,1\n48,"0\n', [[61], [48]], refused="the cells of line 3 cannot be read",
        mended="age,y\n61,1\n48,0\n", y=[1, 0],
    ),
    "two columns of one name": Bad(
        "age,age,y\n61,1.1,1\n48,.9,0\n", [[61, 1.1], [48, 0.9]], refused="2 columns named 'age' (columns 1, 2)",
        mended="age,dose,y\n61,1.1,1\n48,.9,0\n", y=[1, 0],
    ),
    "two columns of labels": Bad(
        "age,y,y \n61,1,0\n48,0,1\n", [[61, 1], [48, 0]], refused="2 columns named 'y' (columns 2, 3)",
        mended="age,dose,y\n61,1,0\n48,0,1\n", y=[0, 1],
    ),
    "blanks": Bad(
        "age,site,y\n61,north,ill\n48, north,ill \n50,north ,well\n", [[61], [48], [50]], options=OWNER, y=[0, 0, 1],
        owners=["north"] * 3, said="'site' had 2 spellings more, which differed in blanks alone",
    ),
    "letters of two forms": Bad(
        "age,site,y\n61,Müller,1\n48,Mu\u0308ller,0\n", [[61], [48]], options=OWNER, y=[1, 0], owners=["Müller"] * 2,
        said="1 owner by 'site'",
    ),
    "one number in two spellings": Bad(
        "age,site,y\n61,7,1\n48,07,0\n", [[61], [48]], options=OWNER, refused="holds '7' and '07', one number in two",
        mended="age,site,y\n61,7,1\n48,7,0\n", y=[1, 0], owners=["7", "7"],
    ),
    "an owner that stands for none": Bad(
        "age,site,y\n61,NA,1\n48,N,0\n", [[61], [48]], options=OWNER, refused="row 0, which holds 'NA' and so no value",
        mended="age,site,y\n61,North America,1\n48,N,0\n", y=[1, 0], owners=["North America", "N"],
    ),
    "large labels": Bad(
        f"dose,y\n1.5,{BIG + 1}\n2,{BIG}\n3,{10**20}\n", [[1.5], [2], [3]], y=[1, 0, 2], said=f"3 classes: 0 = {BIG}"
    ),
    "large owners": Bad(
        f"dose,site,y\n1.5,{BIG + 1},1\n2,{BIG},0\n", [[1.5], [2]], options=OWNER, y=[1, 0],
        owners=[str(BIG + 1), str(BIG)], said="2 owners",
    ),
    "large features": Bad(
        f"dose,y\n{BIG + 1},1\n{BIG},0\n", [[1], [0]], refused=f"column 'dose' holds {BIG + 1}, which float64 does not",
        mended="dose,y\n1,1\n0,0\n", y=[1, 0],
    ),
    "row numbers": Bad(
        ",age,y\n0,61,1\n1,48,0\n", [[61], [48]], y=[1, 0], said="left out: 'column 1' (row numbers)"
    ),
    "row numbers that were read once more": Bad(
        "Unnamed: 0,age,y\n5,61,1\n3,48,0\n", [[61], [48]], y=[1, 0], said="left out: 'Unnamed: 0' (row numbers)"
    ),
    "a column without a name": Bad(
        "age,,y\n61,2,1\n48,2,0\n", [[61, 2], [48, 2]], refused="column 2 has no name (an empty header)",
        mended="age,dose,y\n61,2,1\n48,2,0\n", y=[1, 0],
    ),
    "a line without names": Bad(
        "61,1.1,1\n48,.9,0\n", [[61, 1.1], [48, 0.9]], refused="the first line holds numbers (61, 1.1, 1)",
        mended="age,dose,y\n61,1.1,1\n48,.9,0\n", y=[1, 0],
    ),
    "codes as labels": Bad(
        "age,y\n61,73211009\n48,38341003\n50,73211009\n", [[61], [48], [50]], y=[1, 0, 1],
        said="2 classes: 0 = 38341003, 1 = 73211009",
    ),
    "labels from 1": Bad("age,y\n61,1\n48,2\n", [[61], [48]], y=[0, 1], said="2 classes: 0 = 1, 1 = 2"),
    "a key": Bad(
        "patient_id,age,y\n1007,61,1\n1003,48,0\n", [[61], [48]], y=[1, 0], said="left out: 'patient_id' (a key"
    ),
    "whole numbers that are all distinct": Bad(
        "platelets,y\n" + "".join(f"{7 * row % 31},{row % 2}\n" for row in range(30)),
        [[7 * row % 31] for row in range(30)], y=[row % 2 for row in range(30)],
        said="'platelets' holds another whole number in each row",
    ),
    "truth values": Bad("age,ill\n61,TRUE\n48,false\n", [[61, 1], [48, 0]], said="'ill' boolean"),
    "an empty cell": Bad(
        "age,y\n61,1\n,0\n", [[61], [48]], refused="'age' (an empty cell; 1 of 2 rows)", mended="age,y\n61,1\n48,0\n",
        y=[1, 0],
    ),
}  # fmt: skip


def command(*arguments: str) -> Callable[..., str]:
    """Make a door of a command that is refused for its algorithm after the table was read."""

    def call(path: Path, owner: str = "", label: str = "", **form: str) -> str:
        columns = ["--owner-column", owner] * bool(owner) + ["--label-column", label] * bool(label)
        shown = RUNNER.invoke(
            app,
            [*arguments, "--data", str(path), *columns, *shlex.split(" ".join(TableFormat(**form).command_options()))],
        )
        assert shown.exit_code == 2, shown.output
        text = shown.output
        if "UnknownNameError" not in text:
            raise DataError(text)
        return text

    return call


def function(ask: Callable[..., Any]) -> Callable[..., str]:
    """Make a door of a function that is refused for its algorithm after the table was read."""

    def call(path: Path, owner: str = "", label: str = "", **form: str) -> str:
        with pytest.raises(UnknownNameError):
            ask(data=str(path), owner_column=owner, label_column=label, **form)
        return load(path, owner=owner, label=label, **form).summary

    return call


def loaded(path: Path, **options: str) -> str:
    return load(path, **options).summary


DOORS = {
    "load": loaded,
    "securefed audit": command("audit", "--algorithms", NOTHING, "--workers", "1", "--clients", "3"),
    "securefed advise": command("advise", NOTHING, "--workers", "1", "--clients", "3"),
    "securefed run": command("run", NOTHING),
    "audit": function(lambda **options: audit([NOTHING], clients=3, **options)),
    "advise": function(lambda **options: advise(NOTHING, clients=3, **options)),
}


def written(folder: Path, bad: Bad, *, mended: bool = False) -> Path:
    path = folder / "rows.csv"
    path.write_bytes((bad.mended if mended else bad.text).encode("utf-8" if mended else bad.encoding))
    return path


def remedy(message: str) -> dict[str, str]:
    """Read the options that a refusal names last, as a user would paste them."""
    named = re.findall(r"((?:--(?:encoding|separator|decimal) \S+ ?)+)\(", " ".join(message.split()))
    words = shlex.split(named[-1])
    return {name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}


def options_of(bad: Bad, path: Path) -> dict[str, str]:
    """Return the options under which a table is read, as its refusal names them."""
    if not bad.refused or bad.mended:
        return dict(bad.options)
    with pytest.raises(DataError) as refused:
        load(path, **bad.options)
    return bad.options | remedy(str(refused.value))


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", TABLES)
def test_each_door_reads_a_table_rightly_or_refuses_it_with_a_remedy_that_works(
    tmp_path: Path, name: str, door: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    bad, ask = TABLES[name], DOORS[door]
    path = written(tmp_path, bad)
    options = options_of(bad, path)
    if bad.refused:
        with pytest.raises(DataError, match=re.escape(bad.refused)):
            ask(path, **bad.options)
    if bad.mended:
        written(tmp_path, bad, mended=True)
    assert bad.said in ask(path, **options)


@pytest.mark.parametrize("name", TABLES)
def test_the_rows_labels_and_owners_are_those_of_the_table(tmp_path: Path, name: str) -> None:
    bad = TABLES[name]
    path = written(tmp_path, bad)
    options = options_of(bad, path)
    if bad.mended:
        written(tmp_path, bad, mended=True)
    source = load(path, **options)
    np.testing.assert_array_equal(source.data.x, bad.rows)
    assert (None if source.data.y is None else source.data.y.tolist()) == bad.y
    if bad.owners is not None:
        assert source.groups["site"].tolist() == bad.owners
    assert source.reading is not None and source.reading.features == source.features
    assert "61" not in repr(source.reading) + repr(source.reading.table.columns), "rows are printed nowhere"


@pytest.mark.parametrize("name", [name for name, bad in TABLES.items() if bad.owners is None and not bad.said])
def test_an_update_of_a_party_and_rows_of_a_statistic_are_read_by_the_same_reader(tmp_path: Path, name: str) -> None:
    bad = TABLES[name]
    path = written(tmp_path, bad)
    form = TableFormat()
    if bad.refused and "an empty header" not in bad.refused:
        with pytest.raises(DataError, match=re.escape(bad.refused.split(" (an empty")[0])) as refused:
            read_arrays(path)
        form = TableFormat() if bad.mended else TableFormat(**remedy(str(refused.value)))
    if bad.mended:
        written(tmp_path, bad, mended=True)
    columns = {name: values for name, values in read_arrays(path, form).items() if name != "y"}
    np.testing.assert_array_equal(np.column_stack(list(columns.values())), bad.rows)
    table = read_table(path, **form.given()).select(columns)
    mean = Mean(features=len(columns), bound=100.0).simulate([table])
    np.testing.assert_allclose(mean.value, np.mean(bad.rows, axis=0))


def test_party_commands_take_the_options_of_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "update.csv").write_bytes("größe;lab\n61;1,102\n".encode("cp1252"))
    terms = ["party", "terms", "terms.json", "--like", "update.csv", "--clients", "3", "--no-base"]
    first = RUNNER.invoke(app, terms)
    assert first.exit_code == 2
    second = RUNNER.invoke(app, [*terms, "--encoding", remedy(first.output)["encoding"]])
    assert "'1,102', which is 1.102 or 1102" in " ".join(second.output.split())
    options = ["--encoding", "cp1252", "--decimal", remedy(second.output)["decimal"]]
    done = RUNNER.invoke(app, [*terms, *options])
    assert done.exit_code == 0 and "'größe' integer, 'lab' real" in " ".join(done.output.split())
    np.savez(tmp_path / "update.npz", w=np.ones(2))
    wrong = RUNNER.invoke(app, [*terms[:4], "update.npz", *terms[5:], *options])
    assert wrong.exit_code == 2 and "leave out --encoding cp1252 --decimal ," in " ".join(wrong.output.split())


def test_an_audit_names_the_options_in_the_commands_that_it_prints(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    rng = np.random.default_rng(0)
    lines = ["größe;lab", *(f"{a:.3f};{b:.3f}".replace(".", ",") for a, b in rng.normal(2, 1, (40, 2)))]
    path.write_bytes("\n".join(lines).encode("cp1252"))
    form = {"encoding": "cp1252", "separator": ";", "decimal": ","}
    report = audit(
        ["ssi"], ["plain"], ["gram/power"], data=str(path), seeds=1, clients=3, workers=1, settings={"rank": 1}, **form
    )
    assert "--encoding cp1252 --separator ';' --decimal ," in report.command
    words = shlex.split(report.command)
    named = dict(pairwise(words))
    read = load(named["--data"], **{option: named[f"--{option}"] for option in form})
    assert read.data.rows == 40 and read.features == ("größe", "lab")


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    for rows in (2, 3):
        path.write_text("age\n" + "1\n" * rows)
        assert load_once(str(path)).data.rows == rows
    assert load_once(str(path)) is load_once(str(path))


def test_options_of_text_tables_are_refused_for_other_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.eye(3))
    for data in (tmp_path / "rows.npz", "digits"):
        with pytest.raises(ConfigError, match="text tables"):
            load(data, encoding="cp1252")
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1,2\n")
    for wrong in ({"encoding": "cp9999"}, {"separator": "ab"}, {"decimal": ";"}):
        with pytest.raises(ConfigError, match="must be"):
            load(path, **wrong)
    with pytest.raises(DataError, match="one cell a line between tabs, and 2 between commas") as refused:
        load(path, separator="tab")
    assert load(path, **remedy(str(refused.value))).features == ("a", "b")
    path.write_bytes("a,b\n1,2\n".encode("utf-8-sig"))
    with pytest.raises(DataError, match="byte-order mark of utf-8"):
        load(path, encoding="cp1252")


@pytest.mark.parametrize("asked", [["audit"], ["advise", "optimization/fedavg"], ["run", "optimization/fedavg"]])
def test_a_refusal_comes_before_heavy_imports(tmp_path: Path, asked: list[str]) -> None:
    (tmp_path / "rows.csv").write_bytes("größe\n1\n".encode("cp1252"))
    heavy = ("torch", "scipy", "sklearn", "securefed._auditing.registered", "securefed._runtime", "securefed.attacks")
    code = (
        "import sys\nfrom securefed._commands.cli import app\n"
        f"try:\n    app({[*asked, '--data', 'rows.csv']!r})\nexcept SystemExit as left:\n    assert left.code == 2\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]" and "not in UTF-8" in ran.stderr
