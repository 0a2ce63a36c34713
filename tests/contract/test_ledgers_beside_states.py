"""A client without a ledger of its data gets one beside its state, at every door that keeps a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from securefed import DataUsage, Ledger, Limits
from securefed._commands.party_answer import Contribution, answer
from securefed._commands.party_exchange import Exchange
from securefed._commands.party_turns import take_turn
from securefed.errors import LedgerLost, RoundVoid
from securefed.flower import SitePolicy
from securefed.parties import SumClient, SumServer
from securefed.parties._guards import ledger_beside
from tests.contract.doors import (
    ALL,
    IDENTITIES,
    SERVER_KEY,
    UPDATES,
    ClientApp,
    Mod,
    Sums,
    keys_of,
)
from tests.parties.helpers import play

FOUR = ALL[:4]


def client_file(tmp_path: Path) -> tuple[Callable[[], Any], Path]:
    """A `SumClient` with a file alone."""
    terms = Sums.terms
    clients = {i: SumClient(terms, i, identity=IDENTITIES.own[i], file=tmp_path / f"{i}.state") for i in ALL}
    base = {"w": np.zeros(2)}
    play(SumServer(terms), clients, {i: {"update": UPDATES[i], "base": base} for i in ALL}, base=base)
    return lambda: SumClient(terms, 0, identity=IDENTITIES.own[0], file=tmp_path / "0.state"), tmp_path / "0.ledger"


def party_command(tmp_path: Path) -> tuple[Callable[[], Any], Path]:
    """`securefed party contribute` without `--ledger`."""
    (tmp_path / "exchange").mkdir()
    base = {"w": np.zeros(2)}
    server = Exchange(Sums.terms, tmp_path / "exchange", tmp_path / "server.state")
    mine = Exchange(Sums.terms, tmp_path / "exchange", tmp_path / "0.state")

    def turn(party: int, at: Exchange) -> Any:
        return answer(at, party, keys_of(party), Contribution(UPDATES[party], 1.0, base=base))

    def goes_on() -> None:
        for party in ALL[1:]:
            turn(party, replace(mine, state=tmp_path / f"{party}.state"))
        take_turn(server, SERVER_KEY)
        turn(0, mine)

    take_turn(server, SERVER_KEY, base=base)
    turn(0, mine)
    return goes_on, tmp_path / "0.ledger"


def site_folder(tmp_path: Path) -> tuple[Callable[[], Any], Path]:
    """A site of `secure_mod` with a folder and no ledger."""

    class Folder(Mod):
        def policy(self, party: int) -> SitePolicy:
            return replace(super().policy(party), ledger=None, folder=tmp_path / f"site-{party}")

    door = Folder(tmp_path)
    assert door.play(ALL) == ALL
    assert door.play(FOUR) == ()
    return lambda: door.policy(0).of_data(0), tmp_path / "site-0" / "client-0.ledger"


def app_folder(tmp_path: Path) -> tuple[Callable[[], Any], Path]:
    """A `client_app` with a folder and no ledger."""

    class Folder(ClientApp):
        kept: ClassVar[dict[str, Any]] = {"folder": lambda _: tmp_path}

    door = Folder(tmp_path)
    assert door.play(ALL) == ALL
    assert door.play(FOUR) == ()
    return lambda: SitePolicy(folder=tmp_path).of_data(0), tmp_path / "client-0.ledger"


@pytest.mark.parametrize("door", [client_file, party_command, site_folder, app_folder])
def test_a_ledger_beside_the_state_is_made_at_first_use_and_its_loss_is_no_first_use(door: Any, tmp_path: Path) -> None:
    goes_on, ledger = door(tmp_path)
    goes_on()  # positive control
    counted = Ledger.open(ledger).spent.exchanges
    assert counted >= (door is not party_command)  # which has not answered with its update yet
    ledger.unlink()
    with pytest.raises(LedgerLost, match="securefed ledger create"):
        goes_on()
    Ledger.create(ledger, Limits(), spent=DataUsage())  # the remedy
    goes_on()


def test_a_new_state_at_the_same_place_goes_on_with_the_ledger_beside_it(tmp_path: Path) -> None:
    """A user deletes the state for a new experiment; the sums of the data stay known."""
    client_file(tmp_path)
    for state in tmp_path.glob("*.state"):
        state.unlink()
    base = {"w": np.zeros(2)}
    clients = {i: SumClient(Sums.terms, i, identity=IDENTITIES.own[i], file=tmp_path / f"{i}.state") for i in ALL}
    given: dict[int, Any] = {i: {"update": UPDATES[i], "base": base} for i in ALL}
    with pytest.raises(RoundVoid, match="entered a sum over other survivors"):
        play(SumServer(Sums.terms), clients, given, base=base, cohort=FOUR)


def test_a_client_in_memory_remembers_as_long_as_its_state(tmp_path: Path) -> None:
    clients = {i: SumClient(Sums.terms, i, identity=IDENTITIES.own[i]) for i in ALL}
    base = {"w": np.zeros(2)}
    given: dict[int, Any] = {i: {"update": UPDATES[i], "base": base} for i in ALL}
    server = SumServer(Sums.terms)
    assert play(server, clients, given, base=base).survivors == ALL
    thawed = {
        i: SumClient.thaw(Sums.terms, i, client.freeze(), identity=IDENTITIES.own[i]) for i, client in clients.items()
    }
    with pytest.raises(RoundVoid, match="entered a sum over other survivors"):
        play(server, thawed, given, base=base, cohort=FOUR)
    assert "forgets this when its process ends" in str(Sums.terms.plan)


def test_a_state_that_was_written_with_a_ledger_asks_for_it(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "data", Limits(), spent=DataUsage())
    server, file, own = SumServer(Sums.terms), tmp_path / "0.state", IDENTITIES.own[0]
    request = server.open({"w": np.zeros(2)})[0]
    SumClient(Sums.terms, 0, identity=own, ledger=ledger, file=file).receive(request)
    SumClient(Sums.terms, 0, identity=own, ledger=ledger, file=file)  # positive control
    with pytest.raises(LedgerLost, match="give it"):
        SumClient(Sums.terms, 0, identity=own, file=file)
    assert not ledger_beside(file).exists()
