"""Several statistics in one exchange: as many messages as one, each with its own rows, bounds, rules and result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import chain
from securefed.defenses import gaussian, records, secure_aggregation
from securefed.errors import ConfigError, DataError, PlanError, RoundVoid, SecureFedError, UnknownNameError
from securefed.parties import SumClient, SumResult, SumServer, SumTerms
from securefed.statistics import (
    ContingencyTable,
    Correlation,
    Count,
    Covariance,
    GroupBy,
    Histogram,
    LinearRegression,
    Mean,
    Quantiles,
    Skewness,
    Together,
    Variance,
    from_terms,
)  # fmt: skip
from tests.parties.helpers import play
from tests.stats.battery import EDGES, GRID, LINEAR
from tests.stats.tables import BOUNDS, SEXES, WARDS, sites
from tests.test_party import SERVER, party, server

SITES = sites(1, gaps=True)
TEN = Together(
    Count(bound=BOUNDS, rows=300, outliers="omit"),
    Mean(bound=BOUNDS, rows=300, outliers="omit entries"),
    Variance(bound={"age": (0, 120)}, rows=300, outliers="omit entries"),
    Skewness(bound={"age": (0, 120)}, rows=300, outliers="omit"),
    Covariance(bound=BOUNDS, rows=300, outliers="omit"),
    Correlation(bound=BOUNDS, rows=300, outliers="omit"),
    Histogram(EDGES, rows=300, outliers="omit entries"),
    wards=ContingencyTable({"ward": WARDS, "sex": SEXES}, rows=300),
    median=Quantiles(GRID, rows=300, outliers="omit entries"),
    line=LinearRegression(**LINEAR, outliers="omit"),
)


def parts_of(together: Any) -> dict[str, Any]:
    return dict(zip(together.names, together.statistics, strict=True))


def messages(statistic: Any) -> tuple[int, Any]:
    """The number of messages between the parties of one round, and the result."""
    terms = statistic.terms(clients=len(SITES), defense=secure_aggregation())
    sent: list[int] = []
    found = play(
        SumServer(terms), {i: SumClient(terms, i) for i in range(len(SITES))},
        {i: {"update": lambda i=i: from_terms(terms).summand(SITES[i])} for i in range(len(SITES))},
        lost=lambda stage, party: bool(sent.append(stage)),
    )  # fmt: skip
    return len(sent), statistic.estimate(found)


def test_ten_statistics_take_as_many_messages_as_one_and_each_has_its_own_result() -> None:
    of_one, _ = messages(Mean(bound=BOUNDS, rows=300, outliers="omit"))
    of_ten, found = messages(TEN)
    assert of_ten == of_one > 0
    assert list(found) == list(TEN.names) and len(found) == 10
    for name, statistic in parts_of(TEN).items():
        alone = statistic.simulate(SITES, secure_aggregation())
        assert found[name].count == alone.count
        np.testing.assert_allclose(found[name].value, alone.value, rtol=0, atol=1e-9 + 2 * np.max(alone.error))
        np.testing.assert_array_equal(np.isnan(found[name].value), np.isnan(alone.value))  # small cells of each


def test_a_statistic_is_found_by_name_and_by_place() -> None:
    found = Together(Mean(bound=120.0), Mean(bound=60.0), old=Mean(bound=90.0)).simulate([np.full((5, 1), 50.0)] * 3)
    assert list(found) == ["mean", "mean_2", "old"]
    assert found[1] is found["mean_2"]
    with pytest.raises(UnknownNameError, match="mean_2"):
        found["mean_3"]


def test_all_statistics_go_through_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("exchange").mkdir()
    party("identity", "server.key")
    terms = TEN.terms(clients=len(SITES), defense=secure_aggregation())
    Path("terms.json").write_bytes(terms.to_bytes())
    mine = from_terms(SumTerms.from_bytes(Path("terms.json").read_bytes()))  # at each site
    for site, table in enumerate(SITES):
        np.savez(f"update-{site}.npz", **mine.summand(table))
    while "Round 1 is complete" not in server():
        for site in range(len(SITES)):
            given = ("--party", site, "--update", f"update-{site}.npz", *SERVER)
            party("contribute", "exchange", "--terms", "terms.json", *given)
    found = mine.estimate(SumResult.from_folder("exchange", terms))
    beside = TEN.simulate(SITES, secure_aggregation())
    for name in TEN.names:
        np.testing.assert_allclose(found[name].value, beside[name].value, atol=1e-8)


def test_a_site_gives_its_table_to_the_command_and_learns_why_it_sat_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message says which site it was, or why; what the site's own command prints stays there."""
    monkeypatch.chdir(tmp_path)
    Path("exchange").mkdir()
    party("identity", "server.key")
    table = Together(ages=Mean(bound={"age": (0, 120)}, rows=50), wards=ContingencyTable({"ward": WARDS}, rows=50))
    terms = table.terms(clients=3, defense=secure_aggregation())
    Path("terms.json").write_bytes(terms.to_bytes())
    lines = ["age,ward,name", *(f"{40 + row},icu,patient {row}" for row in range(30))]
    files = {site: Path(f"site-{site}.csv") for site in range(3)}
    for file in files.values():
        file.write_text("\n".join(lines))

    def turns(most: int = 20) -> tuple[str, str]:
        """What the sites' commands said, and what the server's did, until the round is complete."""
        of_sites, of_server = "", ""
        for _ in range(most):
            of_server += server()
            if "is complete" in of_server:
                break
            for site, file in files.items():
                given = ("--party", site, "--update", file, *SERVER)
                of_sites += party("contribute", "exchange", "--terms", "terms.json", *given)
        return of_sites, of_server

    said, of_server = turns()
    assert "sit out" not in said and "Round 1 is complete" in of_server
    found = from_terms(terms).estimate(SumResult.from_folder("exchange", terms))
    assert found["ages"].value[0] == pytest.approx(54.5, abs=1e-9)
    assert found["wards"].value[0] == 90
    for line, why in (("130,icu,x", "age from 0 to 120"), ("50,maternity,x", "holds 'maternity'")):
        fresh = tmp_path / why[:3]
        fresh.mkdir()
        monkeypatch.chdir(fresh)
        Path("exchange").mkdir()
        party("identity", "server.key")
        Path("terms.json").write_bytes(terms.to_bytes())
        for site, file in files.items():
            file.write_text("\n".join([*lines, *([line] if site == 1 else [])]))
        said, of_server = turns(6)
        assert "You sit out" in said and why in said
        assert why not in of_server and "is complete" not in of_server


def answers(statistic: Any, tables: list[Any], **terms: Any) -> Any:
    agreed = statistic.terms(clients=len(tables), defense=secure_aggregation(), **terms)
    clients = {i: SumClient(agreed, i) for i in range(len(tables))}
    given = {i: {"update": lambda i=i: statistic.summand(tables[i])} for i in range(len(tables))}
    return play(SumServer(agreed), clients, given)


def test_the_least_number_of_rows_holds_for_each_statistic_and_each_column() -> None:
    """One site has 40 rows of which 3 hold platelets: it sits out of a mean of platelets alone, and so together."""
    tables = [{"age": np.full(40, 50.0 + i), "platelets": np.full(40, 200.0)} for i in range(3)]
    tables[1]["platelets"] = np.where(np.arange(40) < 3, 200.0, np.nan)
    age = Mean(bound={"age": 120}, rows=50)
    for outliers in ("omit", "omit entries"):
        both = Together(age, Mean(bound={"age": 120, "platelets": 1500}, rows=50, outliers=outliers))
        with pytest.raises(RoundVoid):
            answers(both, tables)
        both.estimate(answers(both, tables, least_rows=3))  # the controls
    answers(Together(age, age), tables)


def test_the_least_number_of_parties_holds_together() -> None:
    with pytest.raises(ConfigError, match="3 parties or more"):
        Together(Mean(), Variance()).terms(clients=2, defense=None)


def test_small_cells_are_left_out_of_each_table() -> None:
    rows = [{"ward": ["icu"] * 9 + ["burns"], "age": [50.0] * 9 + [90.0]} for _ in range(3)]
    found = Together(
        a=ContingencyTable({"ward": WARDS}, rows=20),
        b=Histogram({"age": (0, 60, 80, 120)}, rows=20),
        c=GroupBy(Mean(bound={"age": 120}, rows=20), "ward", WARDS),
    ).simulate(rows)
    assert np.isnan(found["a"].value).sum() == np.isnan(found["b"].value).sum() == 2
    assert np.isnan(found["c"].value[:, 0]).tolist() == [True, True, True]  # none of surgery, 3 of burns, and a second
    assert found["c"].detail["suppressed"].sum() >= 2


def test_a_column_with_few_entries_in_a_group_is_left_out_of_it() -> None:
    """Of 10 patients in each group one alone has platelets in one of them: the mean would be this patient's value."""
    wards = ["icu"] * 4 + ["surgery"] * 4 + ["burns"] * 4
    rows = [{"ward": wards, "age": np.full(12, 50.0), "platelets": np.full(12, 200.0)} for _ in range(3)]
    for part in rows:
        part["platelets"][:4] = np.nan
    rows[1]["platelets"][0] = 77.0
    mean = Mean(bound={"age": 120, "platelets": 1500}, rows=20, outliers="omit entries")
    found = GroupBy(mean, "ward", WARDS).simulate(rows, secure_aggregation())
    np.testing.assert_allclose(found.value[:, 0], 50.0)
    assert np.isnan(found.value[0, 1]) and np.isnan(found.detail["counts"][0, 1])
    assert np.isnan(found.value[:, 1]).sum() == 2  # a second one: the mean of all rows is known
    every = GroupBy(mean, "ward", WARDS, least_cell=1).simulate(rows, secure_aggregation())
    np.testing.assert_allclose(every.value[0, 1], 77.0)  # the control


def test_noise_for_single_rows_asks_every_statistic_to_omit() -> None:
    noise = chain(records(), gaussian(1.0), secure_aggregation())
    median = Quantiles((0.0, 1.0), outliers="omit entries")
    omitting = Together(Mean(outliers="omit"), Variance(outliers="omit"), median)
    found = omitting.simulate([np.full((50, 1), 0.5)] * 3, noise)
    assert found["mean"].noise["sum"] > 0
    with pytest.raises(ConfigError, match=r"Variance\(..., outliers='omit'\)"):
        Together(Mean(outliers="omit"), Variance()).simulate([np.full((50, 1), 0.5)] * 3, noise)


@pytest.mark.parametrize("statistic", [*TEN.statistics, TEN], ids=[*TEN.names, "together"])
def test_terms_hold_all_settings_and_other_settings_are_other_terms(statistic: Any) -> None:
    terms = statistic.terms(clients=3, defense=secure_aggregation())
    again = SumTerms.from_bytes(terms.to_bytes())
    assert from_terms(again) == statistic
    assert again.digest == terms.digest


def test_parties_that_order_levels_differently_are_never_summed() -> None:
    """The tensors are the same, and the sum would be wrong without a word."""
    mine = ContingencyTable({"sex": ("f", "m")}, rows=100)
    theirs = ContingencyTable({"sex": ("m", "f")}, rows=100)
    terms, other = (each.terms(clients=3, defense=secure_aggregation()) for each in (mine, theirs))
    assert terms.tensors == other.tensors
    request = SumServer(terms).open()[0]
    assert SumClient(terms, 0).receive(request, mine.summand({"sex": ["f"] * 9}))  # the control
    with pytest.raises(SecureFedError, match="terms"):
        SumClient(other, 0).receive(request, theirs.summand({"sex": ["f"] * 9}))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Together, "0 statistics"),
        (lambda: Together(3), "needs statistics"),
        (lambda: Together(Together(Mean())), "needs statistics"),
        (lambda: Together(**{"a.b": Mean()}), "letters, digits and _"),
        (lambda: from_terms(SumTerms.like({"w": np.ones(2)}, clients=3, defense=None)), "do not say what is summed"),
        (lambda: from_terms(b"terms"), "needs the terms"),
    ],
)
def test_misuse_is_named(call: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        call()


def test_settings_that_do_not_fit_the_sums_are_refused() -> None:
    from dataclasses import replace  # noqa: PLC0415

    terms = Mean(bound=120.0).terms(clients=3, defense=None)
    with pytest.raises(DataError, match="do not fit the tensors"):
        from_terms(replace(terms, about=Mean(bound=999.0).terms(clients=3, defense=None).about))
    for text in ("{", "[]", '{"class": "os.system"}', '{"class": "Mean", "bound": "x"}', "3", "null"):
        with pytest.raises((DataError, ConfigError, PlanError)):
            from_terms(replace(terms, about=text))
