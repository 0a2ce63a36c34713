"""The data raise alerts before any attack: planted faults are found, and the order of the table changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from typer.testing import CliRunner

from securefed import Array, audit_algorithm, audit_training
from securefed._auditing.advice import search
from securefed._auditing.advice.candidates import candidates
from securefed._auditing.alerts import TableColumn, TableFacts, alerts, facts_of, facts_of_clients
from securefed._auditing.alerts import alert as kinds
from securefed._auditing.engine.audit_report import Report
from securefed._auditing.gate.planted_alerts import clean, planted_tables
from securefed._auditing.gate.self_check import check_alerts
from securefed._commands.cli import app
from securefed.datasets import Dataset, load
from securefed.errors import ConfigError

QUICK = ["--algorithms", "ssi", "--defenses", "plain", "--seeds", "1", "--workers", "1"]


def named(kind: str, facts: TableFacts, fewest: int = 5) -> list[str]:
    """Return the sentences of one kind."""
    return [alert.text for alert in alerts(facts, fewest) if alert.kind == kind]


def of(**columns: Array) -> TableFacts:
    """Make the facts of a table of these columns alone."""
    return TableFacts(tuple(TableColumn(name, values) for name, values in columns.items()))


def hospital(path: Path, *, faults: bool = True) -> Path:
    """Write 300 rows with a disease of one patient, a hospital of four and one heavy tail; or without these."""
    rng = np.random.default_rng(1)
    probnp = np.exp(rng.normal(5, 0.3, 300))
    probnp[7] *= 400 if faults else 1
    rare = (np.arange(300) == 11) if faults else rng.integers(0, 2, 300)
    sizes = (120, 90, 86, 4) if faults else (120, 90, 90, 0)
    hospitals = np.repeat(["north", "south", "east", "west"], sizes)
    lines = ["age,bmi,sodium,nt_probnp,disease,hospital,outcome"] + [
        f"{','.join(f'{lab:.3f}' for lab in rng.normal(60, 12, 3))},{value:.4f},{int(one)},{place},{rng.integers(0, 2)}"
        for value, one, place in zip(probnp, rare, hospitals, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("checked", check_alerts(), ids=lambda checked: checked.name)
def test_the_self_check_finds_each_planted_table_and_passes_a_clean_one(checked) -> None:
    assert checked.right, checked.said


@pytest.mark.parametrize("name", planted_tables())
def test_a_planted_fault_raises_no_alert_of_another_kind(name: str) -> None:
    facts, kind, _ = planted_tables()[name]
    also = {kinds.MINORITY} if kind == kinds.SMALL_CLASS else set()  # a class of three is a minority too
    assert {alert.kind for alert in alerts(facts)} == {kind} | also


@given(st.sampled_from([clean(), *(facts for facts, *_ in planted_tables().values())]), st.randoms())
def test_the_order_of_rows_and_columns_changes_nothing(facts: TableFacts, random) -> None:
    rows = np.array(random.sample(range(facts.rows), facts.rows))
    columns = [TableColumn(one.name, one.values[rows]) for one in random.sample(facts.columns, len(facts.columns))]
    classes = None if facts.classes is None else facts.classes[rows]
    parties = dict(random.sample(sorted(facts.parties.items()), len(facts.parties)))
    assert alerts(replace(facts, columns=tuple(columns), classes=classes, parties=parties)) == alerts(facts)


@given(st.integers(2, 9), st.integers(1, 8), st.booleans())
def test_a_category_is_rare_below_the_number_that_the_caller_names(fewest: int, rows: int, complement: bool) -> None:
    column = (np.arange(200) < rows).astype(float)
    found = named(kinds.RARE_CATEGORY, of(one=1 - column if complement else column), fewest)
    assert bool(found) == (rows < fewest)
    assert not found or f"{rows} row" in found[0]


@given(st.integers(0, 2**32 - 1), st.integers(100, 400), st.integers(1, 6))
def test_normal_columns_raise_nothing(seed: int, rows: int, columns: int) -> None:
    x = np.random.default_rng(seed).normal(size=(rows, columns))
    assert alerts(of(**{f"lab{number}": x[:, number] for number in range(columns)})) == ()


@given(st.floats(0.05, 0.95), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_one_row_dominates_from_half_of_the_squares_on_wherever_the_column_is_centred(
    share: float, mean: float, scale: float
) -> None:
    column = np.where(np.arange(1000) % 2 == 0, 1.0, -1.0) * np.linspace(0.9, 1.1, 1000)
    rest = float((column[1:-1] ** 2).sum())
    column[0] = np.sqrt(rest * share / (1 - share))
    column[-1] = 0.0  # the share of the first row around the mean differs from `share` by less than a hundredth
    found = named(kinds.DOMINATED, of(lab=mean + scale * column))
    if abs(share - 0.5) > 0.02:
        assert bool(found) == (share > 0.5)


def test_ages_and_visits_are_no_codes_and_no_keys() -> None:
    rng = np.random.default_rng(0)
    assert alerts(of(age=np.round(rng.normal(60, 12, 300)))) == alerts(of(visits=rng.poisson(6.0, 3000) % 12)) == ()


def levels(rows: int, rare: int, names: tuple[str, ...], omitted: bool = True) -> dict[str, Array]:
    """Code a category of three common levels and one of `rare` rows as columns of 0 and 1, the rare one without."""
    code = np.random.default_rng(3).permutation(np.where(np.arange(rows) < rare, 3, np.arange(rows) % 3))
    return {name: (code == level).astype(float) for level, name in enumerate(names[: 3 if omitted else 4])}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("stage_I", "stage_II", "stage_III"), "none of the levels of stage"),
        (("ward_intensive_care", "ward_gyn", "ward_surgery"), "none of the levels of ward"),
        (("stageII", "stageIII", "stageIV"), "none of stageII, stageIII and stageIV"),
        (("male", "diverse", "female"), "none of diverse, female and male"),
    ],
)
def test_people_of_an_omitted_level_are_named_whatever_the_columns_are_called(
    names: tuple[str, ...], words: str
) -> None:
    for rare, said in ((1, f"1 row has {words}."), (4, f"4 rows have {words}."), (5, None)):
        assert named(kinds.COMBINATION, of(**levels(300, rare, names))) == ([said] if said else [])


def test_people_by_whom_two_categories_differ_are_named() -> None:
    many, rng = np.arange(300) % 3 == 0, np.random.default_rng(0)
    few = rng.permutation(np.flatnonzero(many))[:2]
    less = many.copy()
    less[few] = False
    for columns, words in (
        ({"diabetes": many, "insulin": less}, "diabetes and not insulin"),
        ({"alive": ~many, "dead": less}, "neither alive nor dead"),
        ({"public": ~less, "private": many}, "both private and public"),
    ):
        table = of(**{name: values.astype(float) for name, values in columns.items()})
        assert named(kinds.COMBINATION, table) == [f"2 rows have {words}."]
        assert not named(kinds.COMBINATION, table, fewest=2)


def test_a_copy_that_few_rows_break_is_named_in_whatever_unit_it_stands() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(140, 3, 300)
    second = 0.1 * first - 5
    second[[4, 9]] += 0.3
    (found,) = alerts(of(sodium=first, sodium_dl=second, other=rng.normal(size=300)))
    assert (found.kind, found.count) == (kinds.COMBINATION, 2)
    assert found.text == "Columns sodium and sodium_dl say the same but in 2 rows."


@pytest.mark.parametrize("wrong", [[17], [4, 9]])
def test_a_total_that_few_rows_break_is_named_with_its_parts(wrong: list[int]) -> None:
    rng = np.random.default_rng(0)
    albumin, globulin, other = rng.normal(40, 4, (3, 300)).round(1)
    total = albumin + globulin
    table = of(total=total, albumin=albumin, globulin=globulin, other=other)
    assert not alerts(table)
    total = total + np.isin(np.arange(300), wrong) * 3.3
    (found,) = alerts(of(total=total, albumin=albumin, globulin=globulin, other=other))
    assert (found.kind, found.count) == (kinds.COMBINATION, len(wrong))
    same = f"A weighted sum of columns albumin, globulin and total is the same in all rows but {len(wrong)}."
    assert found.text == same


def test_a_score_that_one_row_breaks_is_named_once_whatever_its_items_are() -> None:
    """Some items have few levels, and one is a category; where a rare item tells these people, that is enough."""
    rng = np.random.default_rng(1)
    items = {f"item{number}": rng.integers(0, 4, 300) for number in range(3)} | {"smoker": rng.integers(0, 2, 300)}
    score, one = sum(items.values()), (np.arange(300) == 5).astype(int)
    assert not named(kinds.COMBINATION, of(score=score, **items))
    said = "A weighted sum of columns item0, item1, item2, score and smoker is the same in all rows but 1."
    assert named(kinds.COMBINATION, of(score=score + one, **items)) == [said]
    assert not named(kinds.COMBINATION, of(score=score + one, rare=one, **items))


def test_rows_that_stand_twice_and_numbers_of_patients_that_come_twice_are_named() -> None:
    rng = np.random.default_rng(0)
    labs = {f"lab{number}": rng.normal(size=300) for number in range(3)}
    patient = rng.permutation(300) + 7000
    patient[5] = patient[6]
    (key,) = alerts(of(**labs, patient=patient))
    assert (key.kind, key.text) == (kinds.KEY, "Column patient has another value in each of its 300 rows but 1.")
    for values in labs.values():
        values[:3] = values[3:6]
    (found,) = alerts(of(**labs))
    assert (found.kind, found.count, found.personal) == (kinds.REPEATED, 3, False)
    assert "epsilon for a row is not epsilon for the person" in str(found)


def test_a_rare_code_says_what_opens_it_and_a_rare_quantity_too() -> None:
    code = np.arange(300) % 4 + 1.0
    code[7] = 9
    (alert,) = alerts(of(grade=code))
    assert str(alert).startswith("Column grade has the value 9 in 1 row. If these numbers are codes of categories: ")
    dose = np.where(np.arange(300) < 2, np.arange(300) + 1.5, 0.0)
    assert "A second moment" in str(alerts(of(dose=dose))[0])


def test_a_column_of_few_levels_counts_as_a_code_only_where_the_levels_have_rows_enough() -> None:
    ties = np.round(2 * np.random.default_rng(0).normal(size=60))  # 9 levels over 60 rows, the outer ones rare
    assert named(kinds.RARE_CATEGORY, of(score=ties)) and not named(kinds.RARE_CATEGORY, of(score=ties[:20]))


def test_codes_of_many_categories_are_told_from_quantities_by_the_gaps_between_them() -> None:
    rng = np.random.default_rng(3)
    codes = rng.choice(np.arange(100, 999), 40, replace=False)
    icd = codes[rng.integers(0, 40, 3000)]
    assert not alerts(of(icd=icd))
    icd[5] = 17
    (found,) = alerts(of(icd=icd))
    assert (found.kind, found.text) == (kinds.RARE_CATEGORY, "Column icd has the value 17 in 1 row.")
    assert found.opens.startswith("If these numbers are codes of categories")
    quantities = {
        "age": np.clip(rng.normal(60, 12, 3000), 18, 99).round(),
        "visits": rng.negative_binomial(1, 0.15, 3000),
        "dose": 25 * rng.poisson(20, 3000),
        "platelets": rng.normal(250, 60, 3000).round(),
    }
    assert not named(kinds.RARE_CATEGORY, of(**quantities))


def test_many_columns_of_a_kind_share_one_alert() -> None:
    facts = facts_of(load("digits"))
    found = alerts(facts)
    assert [alert.kind for alert in found] == [kinds.RARE_CATEGORY, *[kinds.DOMINATED] * 2, kinds.CONSTANT]
    assert all(" 4 rows hold 8" in one.text for one in found[1:3])  # of 1797 pictures, at a pixel of the edge
    assert found[3].text == "3 columns are constant: column 0, column 32 and column 39."
    many = of(**{f"gene{number}": (np.arange(100) == number).astype(float) for number in range(40)})
    (one,) = alerts(many)
    assert one.text.startswith("40 columns have values that few rows hold, the rarest 1 row: gene0, gene1, ")
    assert one.text.endswith("and 34 more.") and one.column.count(",") == 39


def test_small_tables_and_parties_raise_one_alert_and_not_one_for_each_class() -> None:
    rng = np.random.default_rng(0)
    four = TableFacts(
        tuple(TableColumn(f"word{n}", np.array(["a", "b", "c", "d"])) for n in range(9)), classes=np.arange(4)
    )
    assert [alert.text for alert in alerts(four)] == ["The whole table has 4 rows."]
    clients = [Dataset(rng.normal(size=(4, 3)), rng.integers(0, 2, 4)) for _ in range(30)]
    found = [alert for alert in alerts(facts_of_clients(clients)) if alert.kind == kinds.SMALL_PARTY]
    assert [alert.text for alert in found] == ["All 30 clients have 4 rows each."]
    classes = TableFacts((TableColumn("x", rng.normal(size=60)),), classes=np.arange(60) // 2)
    assert [alert.kind for alert in alerts(classes)] == [kinds.SMALL_CLASS, kinds.MINORITY]


def test_thirty_even_classes_are_no_minorities() -> None:
    even = TableFacts((TableColumn("x", np.random.default_rng(0).normal(size=3000)),), classes=np.arange(3000) % 30)
    assert alerts(even) == ()


def test_a_rare_class_has_the_name_that_the_table_gives_it(tmp_path: Path) -> None:
    rows = "".join(f"{place * 0.37 % 1:.3f},{'fatal' if place == 7 else 'ab'[place % 2]}\n" for place in range(60))
    (tmp_path / "rows.csv").write_text(f"lab,outcome\n{rows}")
    (text,) = named(kinds.SMALL_CLASS, facts_of(load(str(tmp_path / "rows.csv"), label="outcome"), label="outcome"))
    assert text == "In column outcome a class has fewer than 5 rows: class 'fatal' with 1 row."


def test_texts_gaps_and_numbers_in_texts_are_read() -> None:
    texts = np.array(["1.5", " 2.5", None, "", "4.0"] * 20, object)
    found = alerts(of(lab=texts, blood=np.array(["A", "A ", "B", None] * 25, object)))
    assert [(alert.kind, alert.column, alert.count) for alert in found] == [
        (kinds.MISSING, "blood", 25),
        (kinds.MISSING, "lab", 40),
    ]


@pytest.mark.parametrize("fewest", [1, 2.5])
def test_a_number_that_makes_nothing_rare_is_refused(fewest: float) -> None:
    with pytest.raises(ConfigError, match="fewest"):
        alerts(clean(), fewest)  # type: ignore[arg-type]


def test_alerts_stand_first_on_terminal_page_and_json_and_fail_the_command(tmp_path: Path) -> None:
    data = ["--data", str(hospital(tmp_path / "rows.csv")), "--owner-column", "hospital", "--label-column", "outcome"]
    out = tmp_path / "report"
    ran = CliRunner().invoke(app, ["audit", *data, *QUICK, "--standardise", "--out", str(out), "--fail-on-alerts"])
    assert ran.exit_code == 3
    assert ran.stdout.startswith("alert: Hospital west has 4 rows.")
    assert "personal data" in ran.stdout
    for said in (
        "Hospital west has 4 rows.",
        "Column disease has the value 1 in 1 row.",
        "In column nt_probnp one row",
    ):
        assert said in ran.stderr
    saved = json.loads((out / "audit.json").read_text())
    assert [alert["kind"] for alert in saved["alerts"]] == ["small party", "rare category", "dominated column"]
    assert saved["alerts"][0]["personal"] and saved["alerts"][0]["count"] == 4
    page = (out / "audit.html").read_text()
    first = page.index("Look at the data first")
    assert first < page.index("Hospital west has 4 rows.") < page.index('class="answers"')
    assert "what you read here is personal data" in page


def test_a_table_without_alerts_passes_and_its_page_has_no_such_part(tmp_path: Path) -> None:
    rows = hospital(tmp_path / "rows.csv", faults=False)
    data = ["--data", str(rows), "--owner-column", "hospital", "--label-column", "outcome", "--standardise"]
    ran = CliRunner().invoke(app, ["audit", *data, *QUICK, "--out", str(tmp_path / "report"), "--fail-on-alerts"])
    assert ran.exit_code == 0 and "alert:" not in ran.stdout
    assert "Look at the data first" not in (tmp_path / "report" / "audit.html").read_text()


def test_an_audit_of_the_callers_own_rows_has_alerts_too() -> None:
    rng = np.random.default_rng(0)
    clients = [rng.normal(size=(rows, 3)) * [1, 1, 0] for rows in (30, 30, 3)]
    report = audit_algorithm(
        lambda rows, broadcast: {"n": np.ones(1)}, clients, start={"round": np.zeros(1)}, rounds=1, seeds=1
    )
    assert [alert.text for alert in report.alerts] == ["Client 2 has 3 rows.", "Column 2 is constant."]
    assert str(report).startswith("alert: Client 2 has 3 rows.")


def test_a_training_audit_looks_at_tables_and_not_at_pictures_or_texts() -> None:
    rng = np.random.default_rng(0)

    def step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()

    def report(shape: tuple[int, ...]) -> Report:
        clients = [(rng.normal(size=(3, *shape)).astype(np.float32), rng.integers(0, 2, 3)) for _ in range(3)]
        model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        loss = nn.CrossEntropyLoss()
        return audit_training(model, loss, step, clients, seeds=1, seconds=1, view=("server",))

    assert [alert.text for alert in report((4,)).alerts if alert.kind == kinds.SMALL_PARTY] == [
        "Client 0 has 3 rows.",
        "Client 1 has 3 rows.",
        "Client 2 has 3 rows.",
    ]
    assert report((2, 2)).alerts == ()


class Visits(nn.Module):
    """A table model: a lookup table for a code, two numbers, one logit."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(60, 2), nn.Linear(4, 1)

    def forward(self, ward: torch.Tensor, labs: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.cat([self.table(ward), labs], dim=1))[:, 0]


def test_a_training_audit_names_rare_codes_of_a_lookup_table_and_rare_labels_of_one_logit() -> None:
    rng = np.random.default_rng(0)
    loss = nn.functional.binary_cross_entropy_with_logits

    def step(model: nn.Module, x: dict[str, torch.Tensor], y: torch.Tensor) -> None:
        optimiser = torch.optim.SGD(model.parameters(), 0.1)
        loss(model(**x), y).backward()
        optimiser.step()

    wards, ill = np.arange(300) % 30, (np.arange(300) < 3).astype(np.float32)
    wards[[4, 110]] = 55, 44  # more codes than a column of numbers may have to count as a code
    labs = rng.normal(size=(300, 2)).astype(np.float32)
    clients = [({"ward": wards[own], "labs": labs[own]}, ill[own]) for own in np.array_split(np.arange(300), 3)]
    report = audit_training(Visits(), loss, step, clients, seeds=1, seconds=1, view=("server",))
    assert [alert.text for alert in report.alerts] == [
        "Column ward has 2 categories of fewer than 5 rows: 44 in 1 row and 55 in 1 row.",
        "In column label a class has fewer than 5 rows: class 1 with 3 rows.",
        "Class 1 of column label has 3 rows, 1.0% of the table.",
    ]


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search no defence and secure aggregation alone: what an advice says of the table does not hang on the others."""
    monkeypatch.setattr(search, "candidates", lambda *sizes: candidates(*sizes)[:2])
    monkeypatch.setattr(search, "record_settings", lambda *arguments: ((), "Not tried."))


@pytest.mark.usefixtures("few_candidates")
def test_an_advice_begins_with_the_alerts_and_fails_on_them(tmp_path: Path) -> None:
    data = ["--data", str(hospital(tmp_path / "rows.csv")), "--owner-column", "hospital", "--standardise"]
    few = ["--seeds", "2", "--rounds", "1", "--workers", "1", "--label-column", "outcome"]
    out = tmp_path / "advice.json"
    ran = CliRunner().invoke(app, ["advise", "ssi", *data, *few, "--out", str(out), "--fail-on-alerts"])
    assert ran.exit_code == 3 and ran.stdout.startswith("alert: Hospital west has 4 rows.")
    assert json.loads(out.read_text())["alerts"][1]["column"] == "disease"


@pytest.mark.usefixtures("few_candidates")
def test_the_number_from_which_on_people_are_not_few_is_the_callers(tmp_path: Path) -> None:
    data = ["--data", str(hospital(tmp_path / "rows.csv")), "--owner-column", "hospital", "--label-column", "outcome"]
    out = tmp_path / "report"
    ran = CliRunner().invoke(app, ["audit", *data, *QUICK, "--standardise", "--fewest", "4", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    saved = json.loads((out / "audit.json").read_text())
    assert "small party" not in [alert["kind"] for alert in saved["alerts"]]
    assert "--fewest 4" in saved["command"]
    refused = CliRunner().invoke(app, ["audit", *data, *QUICK, "--fewest", "1", "--out", str(out)])
    assert refused.exit_code == 2 and "fewest" in refused.output
    few = ["--seeds", "2", "--rounds", "1", "--workers", "1", "--standardise"]
    advised = CliRunner().invoke(app, ["advise", "ssi", *data, *few, "--fewest", "4"])
    assert advised.exit_code == 0 and "Hospital west" not in advised.stdout
    assert "+ holds for one client's data as long as the same clients take part" in " ".join(advised.stdout.split())
