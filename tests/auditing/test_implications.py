"""An exposed secret exposes what follows from it, computed from the attack's own estimate and never from a word."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from securefed import Dataset, advise, audit, audit_algorithm
from securefed._auditing.engine.column_scores import columns_read, gram_leaks_by_column
from securefed._auditing.engine.statistics import EXPOSED, FOUND, INCONCLUSIVE, NOT_DETECTED, PARTIAL, interval, verdict
from securefed._auditing.gate.planted_tables import PLANTED_TABLES, UNASKED, check_table
from securefed._auditing.implied.implications import gram_of_rows
from securefed._auditing.implied.people_in_gradients import _scored
from securefed._auditing.implied.public_directions import Direction
from securefed._auditing.report.cards import conclusion
from securefed._auditing.report.plain_sums import with_sums
from securefed.attacks import Reconstruction
from securefed.attacks._gradient_inversion.class_sums import ClassGradient
from securefed.attacks._membership.gram_membership import GramMembership
from securefed.attacks._membership.membership_rates import membership_rates
from tests.auditing.test_report import cell, report
from tests.combinations import each_value, first_ones

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def readme():
    """Audit README's own example: five clients of four rows and four columns."""
    code = re.search(
        r"## Audit.*?```python\n(.*?)report = audit_algorithm", README.read_text(encoding="utf-8"), re.DOTALL
    )
    assert code is not None
    names: dict[str, object] = {}
    exec(code.group(1), names)  # noqa: S102 - our own page
    step, clients, start = names["contribute"], names["clients"], names["start"]
    return audit_algorithm(step, clients, start=start, combine=names["combine"], rounds=4, seeds=4)


def test_an_exposed_gram_matrix_of_four_rows_tells_membership_in_its_column(readme) -> None:
    members = [one for one in readme.cells if one.secret == "membership" and one.attack == "membership/gram"]
    assert [one.verdict.word for one in members] == [EXPOSED]
    assert members[0].leakage.mean == 1.0 and members[0].leakage.low == 1.0
    assert "can tell whether it was among a client's rows: right in 100% of comparisons" in " ".join(conclusion(readme))


def test_the_confirmation_of_a_record_is_said() -> None:
    made = report(cell("step", "plain", "server", 0.0, "samples"), cell("step", "plain", "server", 1.0, "confirmation"))
    assert "An attacker who knows all other rows can confirm the last one" in " ".join(conclusion(made))


def test_an_interval_far_above_chance_is_never_silence() -> None:
    wide = interval([-0.5, 0.9, 0.1, -0.2, 0.4, 0.6, -0.4, 0.3, -0.1, -0.5])
    null = interval([0.3, -0.2, 0.1, -0.3, 0.2, 0.0, -0.1, 0.1, -0.2, 0.1])
    assert wide.high > 0.25 and verdict(wide, null).word == INCONCLUSIVE
    narrow = interval([value / 4 for value in (-0.5, 0.9, 0.1, -0.2, 0.4, 0.6, -0.4, 0.3, -0.1, -0.5)])
    assert verdict(narrow, null).word == NOT_DETECTED
    lucky = interval([0.3 + value for value in (0.02, -0.05, 0.01, 0.0, -0.02)])
    assert verdict(lucky, interval([0.31, 0.35, 0.3, 0.38, 0.33])).word == NOT_DETECTED  # chance reaches as far


def rows(seed: int, count: int = 4, width: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).uniform(size=(count, width))


def auc(gram: np.ndarray, count: int, inside: np.ndarray, outside: np.ndarray) -> float:
    scores = GramMembership(gram, count).score(np.concatenate([inside, outside]))
    return membership_rates(scores[: len(inside)], scores[len(inside) :]).auc


@pytest.mark.parametrize("count", [1, 4, 8])
def test_membership_is_decided_right_where_rows_are_independent(count) -> None:
    found = [auc(rows(s, count).T @ rows(s, count), count, rows(s, count), rows(s + 99, 20)) for s in range(10)]
    assert found == [1.0] * 10


def test_own_centred_rows_have_another_leverage_and_are_decided_right() -> None:
    for seed in range(10):
        own = rows(seed, 9) - rows(seed, 9).mean(axis=0)  # nine rows in eight columns
        assert auc(own.T @ own, 9, own, rows(seed + 99, 20) - 0.5) == 1.0
        assert np.allclose(GramMembership(own.T @ own, 9).score(own), 0, atol=1e-9)


def test_duplicates_and_errors_lower_membership_and_other_rows_tell_nothing() -> None:
    exact, off, twice, other = [], [], [], []
    for seed in range(40):
        own, rest = rows(seed, 4, 4), rows(seed + 99, 40, 4)
        gram, error = own.T @ own, np.random.default_rng([seed, 1]).normal(size=(4, 4))
        error = (error + error.T) / np.linalg.norm(error + error.T) * np.linalg.norm(gram)
        double = np.vstack([own[:3], own[:1]])
        exact.append(auc(gram, 4, own, rest))
        off.append(auc(gram + 0.03 * error, 4, own, rest))
        twice.append(auc(double.T @ double, 4, double, rest))
        other.append(auc(rest[:4].T @ rest[:4], 4, own, rest[4:]))
    assert np.mean(exact) == 1.0
    assert 0.8 < np.mean(off) < 0.99 and 0.5 < np.mean(twice) < 1.0
    assert abs(np.mean(other) - 0.5) < 6 * np.std(other) / np.sqrt(40)


def test_many_rows_are_told_by_what_they_add_to_the_matrix_where_they_are_not_far_more_than_columns() -> None:
    few = [auc(rows(s, 16).T @ rows(s, 16), 16, rows(s, 16), rows(s + 99, 40)) for s in range(10)]
    many = [auc(rows(s, 4000).T @ rows(s, 4000), 4000, rows(s, 4000)[:100], rows(s + 99, 100)) for s in range(10)]
    assert np.mean(few) > 0.8 and abs(np.mean(many) - 0.5) < 0.05


def test_signs_of_rows_do_not_matter_to_their_gram_matrix() -> None:
    own = rows(0)
    flipped = own * np.array([1.0, -1.0, -1.0, 1.0])[:, None]
    assert np.allclose(gram_of_rows(Reconstruction("samples", flipped), 4).value, own.T @ own)
    partly = np.vstack([own[:2], rows(7)[:2]])  # a partial match implies nothing about the Gram matrix
    assert np.linalg.norm(gram_of_rows(Reconstruction("samples", partly), 4).value - own.T @ own) > 0.1


@pytest.mark.parametrize("planted", PLANTED_TABLES, ids=lambda one: one.name)
def test_what_planted_tables_imply_is_found_and_nothing_else(planted) -> None:
    right, said = check_table(planted)
    assert right, said


def test_a_planted_table_fails_where_the_computation_would_be_wrong() -> None:
    one = next(planted for planted in PLANTED_TABLES if planted.name == "a category of one person")
    assert not check_table(replace(one, words=(NOT_DETECTED,)))[0]
    assert not check_table(replace(one, words=(UNASKED,)))[0]
    assert not check_table(replace(one, part="the mean of 3 people"))[0]


def patients(path: Path, *, people: int = 1, hospital: bool = False) -> str:
    """Write 300 patients: six laboratory values, categories of which few people have the last, and a class.

    Args:
        path: the folder.
        people: number of people who have the last category.
        hospital: whether the first four patients are of a hospital of their own and of one class.
    """
    rng = np.random.default_rng(5)
    values = np.column_stack([rng.normal(size=(300, 6))])
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    stage = rng.integers(0, 3, 300)
    stage[rng.permutation(300)[:people]] = 3
    label, owner = rng.integers(0, 2, 300), [f"site {i % 4}" for i in range(300)]
    if hospital:
        label[:4], owner[:4] = 1, ["small"] * 4
    names = [*(f"lab{i}" for i in range(6)), *(f"stage_{level}" for level in "abcd"), "hospital", "label"]
    lines = [",".join(names)]
    for place in range(300):
        numbers = [*values[place], *np.eye(4)[stage[place]]]
        lines.append(",".join(f"{number:.12g}" for number in numbers) + f",{owner[place]},{label[place]}")
    (path / "patients.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path / "patients.csv")


@pytest.mark.parametrize("standardise", first_ones([True, False]))
def test_a_person_alone_in_a_category_is_read_from_the_pooled_moments(tmp_path, standardise) -> None:
    """Without scaling the line of the category is the row itself; with it too, by the sites' own means."""
    made = audit(
        ["pca/ssi"], ["secure_aggregation"], ["gram/power"], data=_without_owner(patients(tmp_path)), seeds=3,
        workers=1, standardise=standardise,
    )  # fmt: skip
    found = [one for one in made.cells if one.secret == "people" and one.view == "sum only"]
    assert [one.verdict.word for one in found] == [EXPOSED]
    assert found[0].leakage.low > 0.999999
    (held,) = made.to_json()["held"]
    assert held["all clients"] == EXPOSED and held["people"] == ["the row of one person (stage_d) of all clients' rows"]
    said = " ".join(conclusion(with_sums(made)))
    assert "The sums give all clients' data together away." in said
    if not standardise:
        assert "the server reads the row of one person (stage_d)" in said


@pytest.mark.parametrize(
    ("names", "who"),
    first_ones(
        [
            (("ward_intensive_care", "ward_gyn", "ward_surgery"), "none of the levels of ward"),
            (("stageII", "stageIII", "stageIV"), "none of stageII, stageIII and stageIV"),
        ]
    ),
)
def test_a_person_without_any_of_the_coded_levels_is_read_whatever_the_columns_are_called(tmp_path, names, who) -> None:
    path = Path(_without_owner(patients(tmp_path)))
    head, *lines = [line.split(",") for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [place for place, name in enumerate(head) if name != "stage_d"]
    coded = dict(zip(("stage_a", "stage_b", "stage_c"), names, strict=True))
    table = [
        [coded.get(head[place], head[place]) for place in kept],
        *([line[place] for place in kept] for line in lines),
    ]
    path.write_text("\n".join(",".join(line) for line in table) + "\n", encoding="utf-8")
    made = audit(
        ["pca/ssi"], ["secure_aggregation"], ["gram/power"], data=str(path), seeds=3, workers=1, standardise=True
    )
    found = [one for one in made.cells if one.secret == "people" and one.view == "sum only"]
    assert [one.verdict.word for one in found] == [EXPOSED] and found[0].leakage.low > 0.9
    assert f"the server reads the row of one person ({who})" in " ".join(conclusion(with_sums(made)))
    assert [alert.text for alert in made.alerts if alert.kind == "rare combination"] == [f"1 row has {who}."]


@pytest.mark.parametrize("public", ["percentages", "year of birth", "yes or no coded 2 and 1"])
def test_tables_as_they_stand_give_the_sums_that_an_omitted_level_needs(tmp_path, public) -> None:
    """The server's second moments, the sums that they show, and a subtraction give a person's row to all digits."""
    rng = np.random.default_rng(9)
    age, shares = rng.integers(30, 90, 300), np.round(100 * rng.dirichlet((4, 3, 2), 300), 1)
    shares[:, 2] = 100 - shares[:, :2].sum(axis=1)
    columns = {"percentages": shares, "year of birth": np.column_stack([age, 2026 - age])}
    answers = 1 + rng.integers(0, 2, (300, 16))
    stage = np.eye(3)[rng.integers(0, 2, 300)][:, :2]
    stage[[3, 40]] = 0
    labs = np.round(rng.normal((130, 26, 3.2), (18, 4, 0.9), size=(300, 3)), 2)
    table = np.column_stack([labs, columns.get(public, answers), stage])
    names = [*(f"lab{place}" for place in range(table.shape[1] - 2)), "stage_II", "stage_III", "label"]
    lines = [",".join(names), *(",".join(map(str, [*row, int(row[0] > 130)])) for row in table.tolist())]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    made = audit(["pca/ssi"], ["secure_aggregation"], ["gram/power"], data=str(tmp_path / "t.csv"), seeds=3, workers=1)
    (found,) = [one for one in made.cells if one.secret == "people" and one.view == "sum only"]
    assert found.verdict.word == EXPOSED and "none of the levels of stage" in found.read.part
    assert ("in 16 of 19 other columns" in found.read.part) == (public not in columns)


def _without_owner(path: str) -> str:
    """Drop the column of the hospital, whose words are no features."""
    lines = [line.split(",") for line in Path(path).read_text(encoding="utf-8").splitlines()]
    Path(path).write_text("\n".join(",".join([*line[:-2], line[-1]]) for line in lines) + "\n", encoding="utf-8")
    return path


def test_the_column_means_of_a_hospital_of_one_class_stand_in_its_first_message(tmp_path) -> None:
    made = audit(
        ["optimization/dsgd"], ["plain", "secure_aggregation"], ["gradient_inversion/naive"],
        data=patients(tmp_path, hospital=True), owner_column="hospital", seeds=3, workers=1, rounds=1,
        settings={"problem": "logistic"},
    )  # fmt: skip
    means = {
        one.defense: one for one in made.cells if one.attack.endswith("class_sums") and one.secret == "column means"
    }
    assert means["plain"].verdict.word in FOUND and "the column means of client 0" in means["plain"].read.part
    assert means["plain"].runs.highest > 0.999999
    said = " ".join(conclusion(with_sums(made)))
    assert "a part of a client's data" in said and "No attack here learnt" not in said


def test_a_client_that_stays_away_shows_its_labels_and_its_classes_in_the_differences_of_sums(tmp_path) -> None:
    made = audit(
        ["optimization/dsgd"], ["secure_aggregation"], ["gradient_inversion/naive"],
        data=patients(tmp_path), owner_column="hospital", seeds=3, workers=1, rounds=2, standardise=True,
        settings={"problem": "logistic", "learning_rate": 0.1},
    )  # fmt: skip
    words = {(one.view, one.secret): one for one in made.cells if one.attack.endswith("class_sums")}
    counts = words["changing survivors", "labels"]
    assert counts.verdict.word == EXPOSED and counts.leakage.low == 1.0
    assert words["sum only", "labels"].verdict.word == NOT_DETECTED  # the sums of all clients alone do not tell
    assert words["changing survivors", "class means"].leakage.low > 0.2
    assert words["sum only", "class means"].leakage.mean < 0.05


@pytest.mark.parametrize("steps", first_ones([1, 5]))
def test_a_client_that_stores_a_gradient_shows_it_in_the_first_sum_that_it_joins(tmp_path, steps) -> None:
    made = audit(
        ["optimization/scaffold"], ["secure_aggregation"], ["gradient_inversion/naive"],
        data=patients(tmp_path), owner_column="hospital", seeds=3, workers=1, rounds=2, standardise=True,
        settings={"problem": "logistic", "learning_rate": 0.1, "local_steps": steps},
    )  # fmt: skip
    words = {one.secret: one for one in made.cells if one.attack == "joining, gradient_inversion/class_sums"}
    assert {one.view for one in words.values()} == {"changing survivors"} and "people" not in words
    assert words["labels"].verdict.word == EXPOSED and words["labels"].leakage.low == 1.0
    assert words["class means"].leakage.low > 0.2


@pytest.mark.parametrize(("steps", "people"), each_value([1, 5], [1, 2]))
def test_the_outcome_of_the_few_people_of_a_category_stands_in_the_first_sum_of_all_clients(
    tmp_path, people, steps
) -> None:
    made = audit(
        ["optimization/fedavg"], ["secure_aggregation"], ["gradient_inversion/naive"],
        data=_without_owner(patients(tmp_path, people=people)), seeds=4, workers=1, rounds=1, standardise=True,
        settings={"problem": "logistic", "learning_rate": 0.1, "local_steps": steps},
    )  # fmt: skip
    (found,) = [one for one in made.cells if one.attack.endswith("labels_of_people") and one.view == "sum only"]
    assert found.secret == "people" and found.verdict.word == EXPOSED and found.leakage.low == 1.0
    assert found.null_leakage.high < 0.9 and "(stage_d)" in found.read.part


def test_noise_that_covers_the_label_of_one_person_is_never_rounded_into_it() -> None:
    rng = np.random.default_rng(0)
    noisy = ClassGradient(np.zeros((2, 1)), np.zeros(2), np.full(2, 0.5), frozenset({0, 1}))
    coded = np.eye(2)[np.arange(100) % 2]
    one = Direction("stage_d", (0,), (np.arange(100) == 3).astype(float), np.ones(1), 0.0, 1.0)
    leaks = []
    for _ in range(300):
        weight = 4.0 * rng.normal()
        found = _scored(replace(noisy, weight=np.array([[weight], [-weight]])), one, coded, rng)
        assert found is not None
        leaks.append(found[0])
    assert np.mean(np.array(leaks) > 0.5) < 0.1  # of three runs all look read once in a thousand


def test_one_heavy_tailed_column_does_not_hide_that_the_others_were_read() -> None:
    rng = np.random.default_rng(0)
    runs = []
    for _ in range(5):
        data = rng.normal(size=(20, 4)) * [1, 1, 1, 1000]
        gram, pooled = data.T @ data, 20 * np.diag([1.0, 1.0, 1.0, 1e6])
        estimate = gram.copy()
        estimate[3, 3] += rng.normal() * 20e6  # the error of the largest entry decides the norm
        assert np.linalg.norm(estimate - gram) > np.linalg.norm(pooled - gram)  # "worse than a guess"
        leaks = {str(place): leak for place, leak in gram_leaks_by_column(estimate, gram, pooled).items()}
        runs.append((leaks, dict.fromkeys(leaks, -1.0)))
    names, most = columns_read(runs)
    assert set(names) == {"0", "1", "2"} and most
    assert columns_read(runs[:2]) == ((), False)  # two runs judge no column


def test_columns_of_an_estimate_that_knows_nothing_are_not_called_read() -> None:
    rng, wrong = np.random.default_rng(1), 0
    for _ in range(200):
        runs = [
            ({str(j): float(rng.normal(scale=0.3)) for j in range(30)}, dict.fromkeys(map(str, range(30)), -0.5))
            for _ in range(10)
        ]
        wrong += bool(columns_read(runs)[0])
    assert wrong <= 12  # 2 % of 200 are 4; six standard errors above


def test_statistics_alone_never_say_that_all_of_a_clients_data_are_exposed() -> None:
    made = report(
        cell("pca/ssi", "plain", "server", 0.0),
        cell("pca/ssi", "plain", "server", 1.0, "column means"),
    )
    assert conclusion(made)[0] == "Without protection, the server can compute a part of a client's data."
    both = report(*made.cells, cell("pca/ssi", "plain", "server", 0.95, attack="other"))
    assert conclusion(both)[0] == "Without protection, the server can compute a client's data."
    assert PARTIAL not in {one.verdict.word for one in both.cells}


def test_a_dataset_of_labels_that_are_quantities_has_no_classes_to_count() -> None:
    data = [Dataset(rows(s), rows(s + 50)[:, 0]) for s in range(3)]
    made = audit_algorithm(
        lambda x, broadcast: {"gram": x.T @ x}, data, start={"round": np.zeros(1)}, seeds=2, rounds=1
    )
    assert not [one for one in made.cells if one.secret in ("labels", "class means")]


@pytest.mark.exhaustive
def test_advice_states_the_people_in_the_sums_beside_the_leak_of_one_client(tmp_path) -> None:
    advice = advise("pca/ssi", data=_without_owner(patients(tmp_path)), seeds=8, cohorts=())  # the floor needs them
    assert advice.advised is not None and advice.advised.leak_upper < 0.01
    assert advice.advised.pooled_leak > 0.999 and advice.advised.people_leak > 0.999
    said = advice.sentences[0]
    beside = (
        "0.00 at most with 95 % confidence.",
        "1 client or more together with the server may open",
        "That is one client's: the sums give all clients' data together away (a leak of 1.00).",
        "People stand in the sums: the server reads the row of one person (stage_d)",
    )
    assert [said.index(sentence) for sentence in beside] == sorted(said.index(sentence) for sentence in beside)
