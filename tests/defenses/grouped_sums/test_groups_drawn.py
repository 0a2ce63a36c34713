"""Groups are drawn alike by all parties, nearly equal in size, and stay the same as long as they must."""

from __future__ import annotations

import itertools
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from securefed.defenses import Identities
from securefed.defenses._grouped_sums.drawing import exposed, groups_of, sizes

RUNS = st.text("0123456789abcdef", min_size=32, max_size=32)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[int, int]:
    groups = draw(st.integers(1, 12))
    return draw(st.integers(3 * groups, 80)), groups


@given(numbers(), RUNS)
def test_every_client_is_in_one_group_and_sizes_differ_by_one_at_most(drawn: tuple[int, int], run: str) -> None:
    clients, groups = drawn
    made = groups_of(None, run, clients, groups)
    assert sorted(itertools.chain.from_iterable(made)) == list(range(clients))
    lengths = sorted(map(len, made))
    assert len(made) == groups
    assert lengths[0] >= 3
    assert lengths[-1] - lengths[0] <= 1
    assert set(lengths) == set(sizes(clients, groups))
    assert all(list(group) == sorted(group) for group in made)


@given(numbers(), RUNS, RUNS)
def test_all_parties_draw_the_same_groups(drawn: tuple[int, int], run: str, other: str) -> None:
    """With identities in every run; each party holds its own private key, or none. Without them in one run."""
    clients, groups = drawn
    public = {client: bytes([client]) * 32 for client in reversed(range(clients))}
    parties = [Identities(public), Identities(dict(sorted(public.items())), {})]
    assert groups_of(parties[0], run, clients, groups) == groups_of(parties[1], other, clients, groups)
    assert groups_of(None, run, clients, groups) == groups_of(None, run, clients, groups)


def test_groups_depend_on_all_keys_on_the_number_of_groups_and_without_keys_on_the_run() -> None:
    public = {client: bytes([client]) * 32 for client in range(20)}
    known = groups_of(Identities(public), "", 20, 5)
    assert groups_of(Identities(public | {19: bytes([200]) * 32}), "", 20, 5) != known
    assert groups_of(Identities(public), "", 20, 4) != known
    assert groups_of(None, "a" * 32, 20, 5) != groups_of(None, "b" * 32, 20, 5)


def test_the_chance_of_colluders_is_that_of_drawing_them_blindly() -> None:
    """Compared with a count over all draws, and with the frequency over many runs."""
    clients, groups, colluders = 8, 2, {1, 2, 3}
    others = [set(found) for found in itertools.combinations(range(1, clients), 3)]
    for threshold in (3, 4):
        share = sum(len(found & colluders) >= threshold - 1 for found in others) / comb(7, 3)
        assert exposed(clients, 4, threshold, 3) == pytest.approx(share)
    runs = 4000
    met = 0
    for number in range(runs):
        mine = next(group for group in groups_of(None, f"{number:032x}", clients, groups) if 0 in group)
        met += len(colluders & set(mine)) >= 3
    share = exposed(clients, 4, 4, 3)  # 1 / 35: six standard errors; twice as much lies twelve away
    error = (share * (1 - share) / runs) ** 0.5
    assert abs(met / runs - share) < 6 * error
    assert abs(met / runs - 2 * share) > 6 * error


def test_the_figures_of_the_documentation() -> None:
    """20 clients in groups of 4, four colluders: .4 % a draw, and 34 % where groups are fresh in 100 rounds."""
    once = exposed(20, 4, 4, 4)
    assert once == pytest.approx(0.0041, abs=5e-5)
    assert 1 - (1 - once) ** 100 == pytest.approx(0.34, abs=0.005)
    assert exposed(20, 4, 3, 4) == pytest.approx(0.097, abs=5e-4)
