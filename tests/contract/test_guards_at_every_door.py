"""Every guard on other sums of the same data holds at every door, in every run, for as long as the data live.

Each scenario is played over each door with clients that keep one ledger of their data, every sum in a run of its own.
The last column says where a guard does not apply, and why.

| guard | rule | does not apply |
| --- | --- | --- |
| equal sources keep their survivors | A | doors without a base, where every sum of the rows counts as equal (B) |
| no small block of parties | B | doors with a base, unless `survivor_change` asks for it: their contributions differ |
| absences of a base and of the data | | in the clear: a client refuses by name; under noise: it sends zeros |
| limits of the ledger | | |
| epsilon of the terms, beside a ledger | | doors whose clients have no budget of the run: `Federation`, `client_app` |
| the ledger is not lost | | clients in memory: their promise ends with the process, as the plan says |
| no check key in the clear | | clients in memory, which write no file |
| least parties and rows | | doors of training, whose terms carry neither |
| an answer at the named time | | `Federation`, `client_app`: a client step is the method's, not a caller's function |

A masked all-reduce between ranks has none of them: there is no server that names survivors, and a sum is over all
ranks or ends; its contributions are computed from parameters that all ranks hold.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import DataUsage, Ledger, Limits, Seal
from securefed._commands.party_answer import Contribution, answer
from securefed._commands.party_exchange import Exchange
from securefed._runtime.sum_memory import REFUSAL, SumMemory
from securefed.defenses import Identities, chain, clip, secure_aggregation, skellam
from securefed.errors import ConfigError, PlanError, RolledBackError, RoundVoid
from securefed.flower import SitePolicy
from securefed.parties import SumClient, SumServer, SumTerms, _client
from securefed.statistics import Histogram, from_terms
from tests.combinations import each_value
from tests.contract import doors
from tests.contract.doors import (
    ALL,
    CODES,
    DOORS,
    IDENTITIES,
    UPDATES,
    Door,
    Http,
    Mod,
    N,
    PartyFolder,
    Statistics,
    Sums,
    SumsWithoutBase,
    keys_of,
    masking,
)
from tests.parties.helpers import play

FOUR = ALL[:4]


def two_runs(door: Door) -> None:
    """A second run of the same terms leaves a client out; with the same clients, or from another base, it goes on."""
    assert door.play(ALL) == ALL
    assert door.play(FOUR) == ()
    assert door.play(ALL) == ALL
    assert door.play(FOUR, 1.0) == (FOUR if door.base else ())


def three_runs(door: Door) -> None:
    """Cohorts change and rotate: each differs from the one before by two clients, together they show client 0."""
    if door.base:
        assert [door.play(cohort) for cohort in (FOUR, ALL, ALL[1:])] == [FOUR, (), ()]
        assert [door.play(cohort, 1.0 + i) for i, cohort in enumerate((ALL, FOUR, ALL[1:]))] == [ALL, FOUR, ALL[1:]]
        return
    assert [door.play(cohort) for cohort in (ALL, (0, 1, 2), (0, 3, 4))] == [ALL, (0, 1, 2), ()]
    assert door.play((0, 1, 2)) == (0, 1, 2)


def absences(door: Door) -> None:
    """A client that sat out is counted by its ledger, and beyond the limit it declines in every later run."""
    door.ledger(0).allow_absences(2, 2)
    for number in range(2):
        door.failing = 0
        assert 0 not in door.play(ALL, float(number))  # void; `secure_mod` tries three times
        door.failing = None
    assert sum(door.ledger(0).sums.out.values()) == 2
    assert sum(door.ledger(1).sums.out.values()) == 0
    assert 0 not in door.play(ALL, 2.0)
    door.ledger(0).allow_absences(3, 3)
    assert door.play(ALL, 3.0) == ALL


def limits(door: Door) -> None:
    """The operator's limits stand in the ledger's file, and hold where a door opens it without naming any."""
    door.ledger(0)
    Ledger.open(door.path(0), Limits(exchanges=1)).change_sums(lambda sums: sums, always=True)
    assert door.play(ALL) == ALL
    assert 0 not in door.play(ALL)
    assert door.ledger(0).spent.exchanges == 1


SCENARIOS: list[Callable[[Door], None]] = [two_runs, three_runs, absences, limits]


def named(value: Any) -> str:
    return value.name if isinstance(value, type) else value.__name__


@pytest.mark.parametrize(("door", "scenario"), each_value(DOORS, SCENARIOS), ids=named)
def test_a_guard_holds_at_every_door(door: type[Door], scenario: Callable[[Door], None], tmp_path: Path) -> None:
    scenario(door(tmp_path))


@pytest.mark.parametrize(
    ("door", "scenario"), each_value([Sums, Statistics, Mod], [two_runs, three_runs, absences]), ids=named
)
def test_the_battery_finds_a_door_without_the_guard(
    door: type[Door], scenario: Callable[[Door], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = "checked_absences" if scenario is absences else "admitted"
    monkeypatch.setattr(SumMemory, guard, lambda memory, *_: memory)
    with pytest.raises(AssertionError):
        scenario(door(tmp_path))


@pytest.mark.parametrize("bound", [False, True])
def test_terms_that_bind_a_statistic_to_a_base_are_refused(bound: bool, tmp_path: Path, monkeypatch: Any) -> None:
    """Another base would make another source of the same rows: two tables would subtract, as the control shows."""
    monkeypatch.setattr(Statistics, "terms", replace(Statistics.terms, base=bound, differences=False))
    monkeypatch.setattr(Statistics, "base", bound)
    door = Statistics(tmp_path)
    if not bound:
        assert from_terms(door.terms) == door.statistic
        return
    with pytest.raises(ConfigError, match="bind a statistic to a base"):
        from_terms(door.terms)
    zeros = {tensor.name: np.zeros(tensor.shape) for tensor in door.terms.tensors}
    given = [({"base": value}, {"base": value}) for value in (zeros, {n: v + 1 for n, v in zeros.items()})]
    monkeypatch.setattr(Statistics, "given", lambda self, model: given[int(model)])
    tables = [door.result(cohort, model).total["cells"] for model, cohort in enumerate((ALL, FOUR))]
    np.testing.assert_allclose(tables[0] - tables[1], door.statistic.summand(CODES[4])["cells"], atol=1e-6)


def test_without_the_guard_two_tables_show_the_fifth_party_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: with the guards, the second table is refused."""
    monkeypatch.setattr(SumMemory, "admitted", lambda memory, *_: memory)
    door = Statistics(tmp_path)
    tables = [door.result(cohort).total["cells"] for cohort in (ALL, FOUR)]
    np.testing.assert_allclose(tables[0] - tables[1], door.statistic.summand(CODES[4])["cells"], atol=1e-6)


@pytest.mark.parametrize("door", [Sums, PartyFolder, Http, Mod], ids=lambda door: door.name)
def test_the_epsilon_of_the_terms_limits_a_run_where_a_ledger_counts_all_runs(
    door: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has no limit of its own; the server goes on beyond the budget, and the clients do not."""
    monkeypatch.setattr(SumTerms, "budget", lambda terms: None)
    noisy = chain(clip(1.0), skellam(1.0), masking())
    if door is Mod:
        monkeypatch.setattr(doors, "masking", lambda: noisy)
        monkeypatch.setattr(
            door, "options", {"epsilon": 0.5, "largest_weight": None, "train_metrics": (), "local": ("seen",)}
        )
    else:
        terms = SumTerms.like(UPDATES[0], clients=N, defense=noisy, epsilon=0.5, base=door.base, max_void=1)
        monkeypatch.setattr(door, "terms", terms)
        monkeypatch.setattr(doors, "WEIGHT", None)
    made = door(tmp_path)
    assert made.play(ALL) == ()
    assert made.ledger(0).spent.exchanges == 0


@pytest.mark.parametrize(("first", "second"), [(Sums, PartyFolder), (PartyFolder, Sums), (Statistics, SumsWithoutBase)])
def test_doors_share_the_ledger_of_the_data(first: type[Door], second: type[Door], tmp_path: Path) -> None:
    """Other terms and another door: the memory is of the data."""
    assert first(tmp_path).play(ALL) == ALL
    other = second(tmp_path)
    other.runs = 1
    assert other.play(FOUR) == ()
    assert other.play(ALL) == ALL


def test_statistics_after_training_and_training_after_statistics(tmp_path: Path) -> None:
    """A sweep that lost a site goes on; the statistics afterwards are over the sites that are there."""
    training, tables = Sums(tmp_path), Statistics(tmp_path)
    assert [training.play(cohort, float(i)) for i, cohort in enumerate((ALL, FOUR, ALL))] == [ALL, FOUR, ALL]
    assert tables.play(FOUR) == FOUR
    assert tables.play(ALL) == ()
    assert training.play(ALL, 3.0) == ALL


def test_the_blocks_are_larger_where_there_are_many_parties() -> None:
    table = Histogram((0.0, 1.0))
    many = Identities.generate(8)
    assert table.terms(clients=7, defense=secure_aggregation(identities=many)).core.rule.least_block == 2
    assert table.terms(clients=8, defense=secure_aggregation(identities=many)).core.rule.least_block == 3
    assert table.terms(clients=8, defense=secure_aggregation()).core.rule.least_block == 1
    assert "groups of fewer" not in str(Sums.terms.plan)
    assert "tell no group of fewer than 2 parties apart" in str(Statistics.terms.plan)
    assert "less B over 5, less C over 4" in str(Statistics.terms.plan)
    curious = table.terms(clients=8, defense=secure_aggregation()).plan
    assert "Across runs nothing is promised without identities" in str(curious)


@pytest.mark.parametrize("door", [Sums, SumsWithoutBase, Statistics], ids=lambda door: door.name)
@pytest.mark.parametrize("guarded", [True, False])
def test_of_two_runs_in_parallel_one_is_opened(
    door: Any, guarded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have all uploads before either asks for consent. Without the guard (the control) both are opened."""
    if not guarded:
        monkeypatch.setattr(SumMemory, "admitted", lambda memory, *_: memory)
    made = door(tmp_path)
    opened, own = made.given(0.0)
    servers = [SumServer(made.terms), SumServer(made.terms)]
    clients = [{i: made.client(i) for i in ALL} for _ in servers]
    for server, cohort in zip(servers, (ALL, FOUR), strict=True):
        server.open(cohort=cohort, **opened)
    results: list[Any] = [None, None]
    for stage in range(8):
        for place, server in enumerate(servers):
            if stage and not server.outgoing:
                continue
            members = clients[place]
            replies = {i: members[i].receive(r, made.update(i), **own) for i, r in server.outgoing.items()}
            try:
                results[place] = server.receive(replies)
            except RoundVoid as error:
                assert REFUSAL in str(error)
    assert [result is not None for result in results] == [True, not guarded]


@pytest.mark.parametrize("anchored", [True, False])
def test_a_ledger_that_was_set_back_is_refused_where_an_anchor_remembers_the_newest(
    anchored: bool, tmp_path: Path
) -> None:
    """Without an anchor (the control) a restored folder forgets, as the ledger's docstring says."""

    class Restored(Sums):
        def ledger(self, party: int) -> Ledger:
            seal = Seal(bytes(32), anchor=tmp_path / f"anchor-{party}" if anchored else None)
            if not self.path(party).exists():
                Ledger.create(self.path(party), Limits(), spent=DataUsage(), seal=seal)
            return Ledger.open(self.path(party), Limits(), seal)

    door = Restored(tmp_path)
    for party in ALL:
        door.ledger(party)
    shutil.copytree(tmp_path, tmp_path / "copy", ignore=shutil.ignore_patterns("copy", "anchor*"))
    assert door.play(ALL) == ALL
    for party in ALL:
        shutil.copy(tmp_path / "copy" / f"{party}.ledger", door.path(party))
    if anchored:
        with pytest.raises(RolledBackError):
            door.play(FOUR)
    else:
        assert door.play(FOUR) == FOUR


@pytest.mark.parametrize(
    "door", [Sums, SumsWithoutBase, Statistics, PartyFolder, Http, Mod], ids=lambda door: door.name
)
def test_every_door_answers_a_request_for_an_update_when_the_terms_say(
    door: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client whose function fails at once takes as long as the others."""
    held: list[tuple[int, float]] = []

    def hold(client: int, arrived: float, seconds: float | None) -> None:
        if seconds is not None:
            held.append((client, seconds))

    monkeypatch.setattr(_client, "hold", hold)
    if door is not Mod:
        monkeypatch.setattr(door, "terms", replace(door.terms, answer_after=0.25))
    else:
        monkeypatch.setattr(door, "options", {"answer_after": 0.25, "max_void": 1})
    made = door(tmp_path)
    made.failing = 2
    assert 2 not in made.play(ALL)
    assert sorted(held) == [(client, 0.25) for client in ALL]


VERIFIED = SumTerms.like(UPDATES[0], clients=N, defense=masking(verify=True), largest_weight=1.0)


@pytest.mark.parametrize(
    "door",
    [
        lambda folder, seal: SumClient(VERIFIED, 0, identity=IDENTITIES.own[0], file=folder / "state", seal=seal),
        lambda folder, seal: answer(
            Exchange(VERIFIED, folder, folder.parent / "0.state", seal), 0, keys_of(0), Contribution()
        ),
        lambda folder, seal: SitePolicy(
            identity=IDENTITIES.own[0], identities=IDENTITIES.public, party=0, folder=folder, seal=seal
        ).check(VERIFIED, 0),
    ],
    ids=["SumClient", "securefed party", "secure_mod"],
)
def test_a_check_key_is_not_kept_in_the_clear(door: Callable[[Path, Any], Any], tmp_path: Path) -> None:
    """`client_app` and the checkpoint refuse the same (test_flower_folder, test_federation_verified)."""
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ConfigError, match="must not be stored unencrypted: give a seal"):
        door(folder, None)
    door(folder, Seal(bytes(32)))


@pytest.mark.parametrize("identities", [None, IDENTITIES], ids=["curious", "active"])
def test_a_change_of_survivors_that_no_lost_client_leaves_room_for_is_refused_when_terms_are_made(
    identities: Identities | None,
) -> None:
    """Of 6 with threshold 4, a client lost for good would make every round void, as two more are left out with it."""
    six = Identities.generate(6) if identities else None
    for change, fits in ((2, True), (3, False)):
        defense = secure_aggregation(identities=six, survivor_change=change)
        if fits:
            SumTerms.like({"w": np.zeros(2)}, clients=6, defense=defense)
            continue
        with pytest.raises(PlanError, match="every further round is void; ask for 2 at most"):
            SumTerms.like({"w": np.zeros(2)}, clients=6, defense=defense)


@pytest.mark.parametrize("identities", [None, Identities.generate(6)], ids=["curious", "active"])
def test_a_run_goes_on_where_one_client_is_lost_for_good(identities: Identities | None) -> None:
    defense = secure_aggregation(identities=identities, survivor_change=2)
    terms = SumTerms.like({"w": np.zeros(2)}, clients=6, defense=defense, largest_weight=1.0)
    own = {} if identities is None else identities.own
    clients = {i: SumClient(terms, i, identity=own.get(i)) for i in range(6)}
    server, sizes = SumServer(terms), []
    for number in range(3):
        base = {"w": np.full(2, float(number))}
        given = {i: {"update": {"w": np.ones(2)}, "base": base} for i in range(6)}
        lost = (lambda stage, party: party == 5) if number else (lambda stage, party: False)
        sizes.append(len(play(server, clients, given, lost=lost, base=base).survivors))
    assert sizes == [6, 4, 4]


def test_a_statistic_needs_three_parties_and_five_rows_of_each(tmp_path: Path) -> None:
    """A party with four rows sits out, and the server does not learn which; of two parties nothing is released."""
    table = Histogram((0.0, 1.0, 2.0), rows=50)
    with pytest.raises(ConfigError, match="released over 3 parties or more, and these terms plan for 2"):
        table.terms(clients=2, defense=None)
    terms = replace(table.terms(clients=3, defense=secure_aggregation(2)), max_void=1)
    assert (terms.least_rows, terms.least_parties) == (5, 3)
    assert terms == SumTerms.from_bytes(terms.to_bytes())

    def made(*rows: int, cohort: Any = None) -> tuple[int, ...]:
        clients = {i: SumClient(terms, i) for i in range(3)}
        parts = {i: {"update": table.summand(np.full((n, 1), 0.5))} for i, n in enumerate(rows)}
        return play(SumServer(terms), clients, parts, cohort=cohort).survivors

    assert made(5, 5, 5) == (0, 1, 2)
    with pytest.raises(RoundVoid, match="a client sat out"):
        made(5, 4, 5)
    with pytest.raises(RoundVoid, match="no sum over fewer than 3 parties"):
        made(5, 5, 5, cohort=(0, 1))
    plain = replace(table.terms(clients=3, defense=None), max_void=1)
    parts = {i: {"update": table.summand(np.full((5, 1), 0.5))} for i in range(3)}
    with pytest.raises(RoundVoid, match="2 parties, and the terms release a result of 3"):
        play(SumServer(plain), {i: SumClient(plain, i) for i in range(3)}, parts, cohort=(0, 1))
