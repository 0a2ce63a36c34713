"""What a client keeps to, whatever the server asks: its ledger, one answer a number, survivors, and its refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import (
    SERVER,
    Dataset,
    DataUsage,
    Federation,
    InProcessTransport,
    Ledger,
    Limits,
    Message,
    Public,
    RunOptions,
    Seal,
    Server,
    Terms,
    chain,
)
from securefed import _catalogue as catalogue
from securefed._persistence import container
from securefed._runtime.exchange_header import EVALUATE, ExchangeHeader, ExchangeSchedule
from securefed._runtime.refusals import refusal_body
from securefed._tensors import decode
from securefed.algorithms import SSI
from securefed.defenses import Budget, clip, gaussian, secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.errors import (
    BudgetSpent,
    ConfigError,
    DataError,
    DivergenceError,
    LedgerLost,
    MalformedError,
    RangeRefused,
    RoundVoid,
)

RNG = np.random.default_rng(5)
DATA = [Dataset(RNG.uniform(-1, 1, (8, 5)), np.arange(8) % 2) for _ in range(6)]
METHOD = SSI(rank=2, tolerance=0.0)


def dsgd(**options: Any) -> Any:
    return catalogue.algorithms.make("optimization/dsgd", learning_rate=0.05, **options)


# --- the ledger -------------------------------------------------------------------------------------------------------


def test_a_ledger_counts_over_runs_and_terms_and_its_client_drops_out_beyond_its_limit(tmp_path: Path) -> None:
    """`rank=3` instead of 2 is another run, of other terms, and of the same data."""
    ledger = Ledger.create(tmp_path / "ledger", Limits(exchanges=5), spent=DataUsage())
    first = Federation(SSI(rank=2, tolerance=0.0), DATA, chain(secure_aggregation()), ledgers={2: ledger}).run(3)
    assert all(2 in entry.survivors for entry in first.history)
    second = Federation(SSI(rank=3, tolerance=0.0), DATA, chain(secure_aggregation()), ledgers={2: ledger}).run(3)
    assert [2 in entry.survivors for entry in second.history] == [True, True, False]
    assert "allows no further exchange" in second.history[2].refusals[2]
    assert "5" not in second.history[2].refusals[2]  # totals over other servers' runs are not this server's to know
    assert Ledger.open(tmp_path / "ledger", Limits()).spent.exchanges == 5


def test_epsilon_is_charged_at_the_client_and_stops_it() -> None:
    ledger, free = Ledger.in_memory(Limits(epsilon=4.0)), Ledger.in_memory()
    defense = chain(clip(1.0), gaussian(2.0), secure_aggregation())
    history = Federation(dsgd(), DATA, defense, ledgers={0: ledger, 1: free}).run(6).history
    answered = sum(0 in entry.survivors for entry in history)
    plan = defense.plan(dsgd().layout(Public.of(DATA)), len(DATA))
    assert 0 < answered < 6
    assert ledger.spent.epsilon <= 4.0
    assert free.spent.exchanges == 6
    assert free.spent.epsilon > 4.0
    assert dict(plan.epsilon)[1] == pytest.approx(Ledger.in_memory(book=_one(ledger)).spent.epsilon, abs=1e-9)


def _one(ledger: Ledger) -> Any:
    """The book of one exchange at the cost that `ledger` was charged."""
    ((cost, _),) = ledger.book.charged.items()
    return type(ledger.book)().with_charge("r", 0, cost)


def test_an_exchange_is_charged_before_it_is_computed_and_once() -> None:
    events: list[str] = []

    class Watching(Ledger):
        def charge(self, *arguments: Any) -> bool:
            events.append("charge")
            return super().charge(*arguments)

    class Noting(SSI):
        def contribute(self, *arguments: Any) -> Any:
            events.append("compute")
            return super().contribute(*arguments)

    ledger = Watching(Limits(), None, None, Ledger.in_memory().book)
    federation = Federation(
        Noting(rank=2, tolerance=0.0), DATA[:1], chain(Quantise()), ledgers={0: ledger}, batched=False
    )
    federation.run(2)
    assert events == ["charge", "compute"] * 2
    requests = [s.message for s in federation.transcript.sent if s.message.sender == SERVER]
    node = federation.nodes[0]
    node.state = replace(node.state, last_round=-1, place=(-1, 0, 0), protocol=None, session=None)  # set back
    reply = node.handle(requests[0])
    assert b"ContradictionError" in reply.body["name"].tobytes()
    assert events == ["charge", "compute"] * 2 + ["charge"]


def test_garbage_costs_nothing_and_a_lost_ledger_is_a_named_refusal(tmp_path: Path) -> None:
    ledger = Ledger.create(tmp_path / "ledger", Limits(exchanges=9), spent=DataUsage())
    federation = Federation(METHOD, DATA, chain(secure_aggregation()), ledgers={1: ledger})
    federation.run(1)
    node, asked = federation.nodes[1], [s.message for s in federation.transcript.sent if s.message.receiver == 1]
    spent = ledger.spent.exchanges
    for message in asked:
        for number in (0, 1, 7, 2**40):
            assert node.handle(replace(message, round=number)).stage in ("refusal", "keys", "commit")
            assert node.handle(replace(message, round=number, body={})).stage == "refusal"
    assert ledger.spent.exchanges == spent == 1
    (tmp_path / "ledger").unlink()
    with pytest.raises(LedgerLost, match="restore it"):
        Ledger.open(tmp_path / "ledger", Limits())


# --- numbers, budgets, files ------------------------------------------------------------------------------------------


def test_a_resumed_run_goes_on_above_every_number_that_was_used(tmp_path: Path) -> None:
    class KilledError(Exception):
        pass

    def dies(endpoints: Any) -> Any:
        inner = InProcessTransport(endpoints)

        class Dying:
            def exchange(self, outgoing: Any, timeout: Any = None) -> Any:
                message = Message.decode(next(iter(outgoing.values())))
                if message.round == 3 and message.stage == "unmask":  # the uploads of exchange 3 are made
                    raise KilledError
                return inner.exchange(outgoing, timeout)

        return Dying()

    path, method = tmp_path / "run", catalogue.algorithms.make("optimization/fedavg", batch_size=2, local_steps=2)
    kept: dict[str, Any] = {"seed": 3, "options": RunOptions(checkpoint=path, checkpoint_every=5)}
    with pytest.raises(KilledError):
        Federation(method, DATA, chain(secure_aggregation()), transport=dies, **kept).run(6)
    resumed = Federation(method, DATA, chain(secure_aggregation()), **kept).run(6)
    whole = Federation(method, DATA, chain(Quantise()), seed=3).run(6)
    for name, value in whole.output.items():  # draws follow from round and attempt, not from the exchange's number
        np.testing.assert_array_equal(resumed.output[name], value)
    assert min(entry.exchange for entry in resumed.history[3:]) > 3


def test_a_resumed_run_gives_no_exchange_the_number_of_the_last_commit(tmp_path: Path) -> None:
    """Clients elsewhere live on; they have seen that number, and would refuse the exchange as a replay."""
    terms = Terms.of(METHOD, Public.of(DATA), chain(Quantise()))
    transport = InProcessTransport({client: terms.node(client, "run", rows) for client, rows in enumerate(DATA)})
    kept: dict[str, Any] = {"run": "run", "options": RunOptions(checkpoint=tmp_path / "run")}
    Server(terms, transport, **kept).run(2)
    resumed = Server(terms, transport, **kept).run(4)
    assert [(entry.exchange, entry.void) for entry in resumed.history] == [(0, ()), (1, ()), (3, ()), (4, ())]
    again = Server(terms, transport, **kept)
    again.run(5)
    assert [entry.exchange for entry in again.run(6).history[-2:]] == [6, 8]  # the same server goes on as a resumed one


def test_a_number_outside_an_exchange_is_reserved_on_disk_too(tmp_path: Path) -> None:
    path = tmp_path / "run"
    federation = Federation(METHOD, DATA, chain(Quantise()), options=RunOptions(checkpoint=path, checkpoint_every=100))
    for _ in range(70):
        federation._ask("reveal", (), {})
    _, meta = decode(container.load(path, "checkpoint")[1]["state"].tobytes())
    assert meta["loop"]["exchanges"] >= 70


def test_a_kill_without_a_clean_end_reserves_numbers_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "run"
    federation = Federation(METHOD, DATA, chain(Quantise()), options=RunOptions(checkpoint=path, checkpoint_every=100))
    used = [federation._take_number() for _ in range(70)]  # as before each exchange
    _, meta = decode(container.load(path, "checkpoint")[1]["state"].tobytes())
    assert meta["loop"]["exchanges"] > max(used)


def test_exchanges_before_a_budget_was_set_count_when_a_run_resumes_with_one(tmp_path: Path) -> None:
    defense, path = chain(clip(1.0), gaussian(2.0), secure_aggregation()), tmp_path / "run"
    Federation(dsgd(), DATA, defense, options=RunOptions(checkpoint=path)).run(20)
    budget = Budget(epsilon=10.0, delta=1e-5, noise_multiplier=2.0)
    with pytest.raises(BudgetSpent):
        Federation(dsgd(), DATA, defense, options=RunOptions(checkpoint=path, budget=budget)).run(40)
    fresh = Federation(dsgd(), DATA, defense, options=RunOptions(budget=budget)).run(3)  # positive control
    assert len(fresh.history) == 3


def test_a_key_that_checks_sums_is_not_written_in_clear(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give a seal"):
        Federation(
            METHOD, DATA, chain(secure_aggregation(verify=True)), options=RunOptions(checkpoint=tmp_path / "run")
        )
    sealed = Seal(bytes(range(32)))
    Federation(
        METHOD,
        DATA,
        chain(secure_aggregation(verify=True)),
        options=RunOptions(checkpoint=tmp_path / "run", seal=sealed),
    ).run(1)


def test_other_exchanges_than_the_terms_list_are_refused() -> None:
    terms = Terms.of(METHOD, Public.of(DATA), chain(Quantise()), rounds=2)
    federation = Federation(METHOD, DATA, chain(Quantise()))
    federation.run(1)
    request = next(s.message for s in federation.transcript.sent if s.message.receiver == 0)

    def answer(**changes: Any) -> str:
        node = terms.node(0, federation.transcript.run, DATA[0])
        body = request.body | {name.replace("_", "/", 1): np.asarray(value) for name, value in changes.items()}
        reply = node.handle(replace(request, body=body))
        return reply.stage if reply.stage != "refusal" else reply.body["text"].tobytes().decode()

    assert answer() == "upload"
    assert answer(session_place=[1, 7]) == "upload"
    assert "the terms have none" in answer(session_kind=1)
    assert "the terms have 2 rounds" in answer(session_place=[2, 0])
    assert "8 attempts" in answer(session_place=[1, 8])


def test_an_evaluation_after_more_rounds_than_the_terms_have_is_refused() -> None:
    schedule, last = ExchangeSchedule(rounds=2, evaluate_every=2), (1, 1, 0)
    after = ExchangeHeader((0, 1), EVALUATE, 0, round=2)
    assert schedule.check(last, after) == (2, 0, 0)  # the positive control: after the last round
    with pytest.raises(MalformedError, match="after round 4; the terms have 2 rounds"):
        schedule.check(last, replace(after, round=4))


# --- refusals ---------------------------------------------------------------------------------------------------------


def forging(name: str) -> Callable[[Any], Any]:
    """One client's upload is replaced by a refusal that it did not make."""

    class Forging(InProcessTransport):
        def arrivals(self, outgoing: Mapping[int, bytes], timeout: float | None = None) -> Any:
            for party, data in super().arrivals(outgoing, timeout):
                message = Message.decode(data)
                if party == 3 and message.stage == "upload":
                    body = {"name": np.frombuffer(name.encode(), np.uint8), "text": np.zeros(0, np.uint8)}
                    yield party, Message(message.run, message.round, "refusal", 3, SERVER, body).encode()
                else:
                    yield party, data

    return Forging


@pytest.mark.parametrize("name", ["DivergenceError", "RangeRefused", "BudgetSpent"])
def test_a_forged_refusal_drops_one_client_and_neither_ends_the_run_nor_coarsens_its_step(name: str) -> None:
    result = Federation(METHOD, DATA, chain(secure_aggregation()), transport=forging(name)).run(3)
    assert [entry.survivors for entry in result.history] == [(0, 1, 2, 4, 5)] * 3
    assert not any(entry.void for entry in result.history)
    assert "refused without the keys of this exchange" in result.history[0].refusals[3]
    assert result.plan.steps == Federation(METHOD, DATA, chain(secure_aggregation())).run(1).plan.steps


def test_a_refusal_of_ones_own_is_believed() -> None:
    class Unplanned(InProcessTransport):
        def arrivals(self, outgoing: Mapping[int, bytes], timeout: float | None = None) -> Any:
            return super().arrivals({party: self.altered(party, data) for party, data in outgoing.items()}, timeout)

        def altered(self, party: int, data: bytes) -> bytes:
            message = Message.decode(data)
            if party != 3 or message.stage != "upload":
                return data
            return replace(message, body={**message.body, "broadcast/basis": np.ones((5, 2))}).encode()

    result = Federation(METHOD, DATA, chain(secure_aggregation()), transport=Unplanned).run(1)
    assert "not orthonormal" in result.history[0].refusals[3]


def test_refusals_say_nothing_of_data_files_or_configuration() -> None:
    for error in (
        ConfigError("secret"),
        LedgerLost("/a/path"),
        DataError("3.7"),
        RangeRefused("3.7"),
        DivergenceError("3.7"),
    ):
        assert refusal_body(error)["text"].size == 0
    assert refusal_body(BudgetSpent("said"))["text"].tobytes() == b"said"


# --- asked anew -------------------------------------------------------------------------------------------------------


def test_a_sum_that_is_asked_for_anew_goes_on_behind_its_attempts() -> None:
    """In one process: a round after `RoundVoid`, and evaluations of one model after another."""

    class Deaf(InProcessTransport):
        to = ""

        def arrivals(self, outgoing: Mapping[int, bytes], timeout: float | None = None) -> Any:
            heard = {party: data for party, data in outgoing.items() if Message.decode(data).stage != Deaf.to}
            return super().arrivals(heard, timeout)

    federation = Federation(METHOD, DATA, chain(secure_aggregation()), transport=Deaf, options=RunOptions(max_void=2))
    federation.run(1)
    Deaf.to = "upload"
    with pytest.raises(RoundVoid):
        federation.run(2)
    Deaf.to = ""
    assert [entry.void for entry in federation.run(2).history] == [(), ()]
    for _ in range(3):
        assert federation.evaluate()["clients"] == len(DATA)
