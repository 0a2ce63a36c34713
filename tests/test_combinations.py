"""The sample of a battery that `make test` runs covers what it says, and the marks leave out the rest and no more."""

from __future__ import annotations

from itertools import product

from securefed import _catalogue as catalogue
from tests.combinations import REPRESENTATIVES, cover, each_value, first_ones, of_each_family, pairs, quick, sampled

ALGORITHMS = catalogue.algorithms.names
DEFENSES, VIEWS, STAGES = ("clear", "masks", "paillier", "noise"), ("server", "sum"), (1, 2, 3)
ROWS = list(product(ALGORITHMS, DEFENSES, VIEWS, STAGES))


def families(rows: list) -> set[str]:
    return {row[0].split("/")[0] for row in rows}


def test_every_combination_of_the_representatives_is_kept() -> None:
    kept = set(quick(ROWS))
    assert {row for row in ROWS if row[0] in REPRESENTATIVES} <= kept
    assert set(REPRESENTATIVES) <= set(ALGORITHMS)


def test_each_algorithm_and_each_pair_of_values_occurs_in_the_rest() -> None:
    others = [row for row in ROWS if row[0] not in REPRESENTATIVES]
    kept = cover(others)
    assert {row[0] for row in kept} == set(ALGORITHMS) - set(REPRESENTATIVES)
    family = {(row[0].split("/")[0], *row[1:]) for row in kept}
    columns = [families(others), DEFENSES, VIEWS, STAGES]
    for i in range(4):
        for j in range(i):
            assert {(row[j], row[i]) for row in family} == set(product(columns[j], columns[i]))


def test_the_cover_is_small_and_the_same_each_time() -> None:
    others = [row for row in ROWS if row[0] not in REPRESENTATIVES]
    assert cover(others) == cover(others)
    assert len(cover(others)) < len(others) / 10
    assert len(cover(others)) == len(set(cover(others)))


def test_rows_that_leave_pairs_out_are_covered_as_they_are() -> None:
    rows = [("graph/igl", "clear", 1), ("graph/igl", "masks", 2), ("graph/ppgl", "clear", 1)]
    assert set(cover(rows)) == set(rows)
    assert cover([*rows, ("graph/ppgl", "masks", 2)]) == [rows[0], ("graph/ppgl", "masks", 2)]
    assert cover([]) == []


def test_marks_are_on_the_rest_alone() -> None:
    parameters = sampled(ALGORITHMS, DEFENSES, VIEWS, STAGES)
    assert [parameter.values for parameter in parameters] == ROWS
    unmarked = [parameter.values for parameter in parameters if not parameter.marks]
    assert set(unmarked) == set(quick(ROWS))
    assert {mark.name for parameter in parameters for mark in parameter.marks} == {"exhaustive"}


def test_of_the_others_each_family_has_one_row_and_each_value_occurs() -> None:
    parameters = of_each_family(ALGORITHMS, DEFENSES)
    assert [parameter.values for parameter in parameters] == list(product(ALGORITHMS, DEFENSES))
    kept = [parameter.values for parameter in parameters if not parameter.marks]
    assert set(product(REPRESENTATIVES, DEFENSES)) <= set(kept)
    others = [row for row in kept if row[0] not in REPRESENTATIVES]
    assert families(kept) == families([(name,) for name in ALGORITHMS])
    assert len({row[0].split("/")[0] for row in others}) == len(others) >= len({value for _, value in others}) == 4


def test_a_pair_is_told_by_its_columns() -> None:
    """A value in one column is not the same value in another."""
    assert pairs(("pca/ssi", "a", "b")) != pairs(("pca/ssi", "b", "a"))
    assert len(pairs(("pca/ssi", "a", "a"))) == 4


def test_each_value_of_each_factor_is_kept_and_no_combination_is_lost() -> None:
    parameters = each_value("abc", [1, 2])
    assert [parameter.values for parameter in parameters] == list(product("abc", [1, 2]))
    kept = [parameter.values for parameter in parameters if not parameter.marks]
    assert kept == [("a", 1), ("b", 2), ("c", 1)]


def test_the_first_values_are_kept_and_tuples_are_several_parameters() -> None:
    parameters = first_ones([("a", 1), ("b", 2), "c"], 2)
    assert [parameter.values for parameter in parameters] == [("a", 1), ("b", 2), ("c",)]
    assert [bool(parameter.marks) for parameter in parameters] == [False, False, True]
