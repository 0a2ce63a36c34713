"""Batched simulation gives what client by client gives; selection by revealed scalars is declared, agreed, recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from securefed import Dataset, Federation, InProcessTransport, LossyTransport, chain
from securefed._runtime.client import REVEAL
from securefed.algorithms import FedAvg, LoSAC
from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError, RoundVoid


def data(clients: int = 6) -> list[Dataset]:
    rng = np.random.default_rng(3)
    return [Dataset(rng.uniform(-1, 1, (5 + 3 * i, 4)), np.arange(5 + 3 * i) % 3) for i in range(clients)]


@dataclass(frozen=True)
class Counting:
    """How many contributions each way computed."""

    inner: Any
    together: list[int]
    alone: list[int]

    def contribute(self, *args: Any) -> Any:
        self.alone.append(1)
        return self.inner.contribute(*args)

    def contribute_together(self, clients: Any, *args: Any) -> Any:
        self.together.append(len(clients))
        return self.inner.contribute_together(clients, *args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("defense", [None, chain(secure_aggregation())], ids=["plain", "secure_aggregation"])
@pytest.mark.parametrize(
    "method", [FedAvg(local_steps=3, batch_size=4), LoSAC(learning_rate=0.01, local_steps=2, blocks=3)], ids=type
)
def test_a_batched_run_is_the_run_client_by_client(method: Any, defense: Any) -> None:
    runs = {}
    for batched in (True, False):
        counting = Counting(method, [], [])
        federation = Federation(counting, data(), defense, seed=4, cohort=4, batched=batched)
        runs[batched] = federation.run(5).output
        assert (sum(counting.together), sum(counting.alone)) == ((20, 0) if batched else (0, 20))
    for name, value in runs[True].items():
        np.testing.assert_allclose(value, runs[False][name], rtol=0, atol=1e-10 if defense is None else 1e-6)
        assert np.abs(value).max() > 1e-3, "something was learned"


def test_a_client_that_diverges_alone_is_named_in_a_batch() -> None:
    clients = data(3)
    clients[1] = Dataset(clients[1].x * 1e200, clients[1].y)
    with np.errstate(all="ignore"), pytest.raises(Exception, match="client 1: its local steps diverged"):
        Federation(FedAvg(learning_rate=1.0), clients, seed=0).run(1)


@dataclass(frozen=True)
class Picky(FedAvg):
    """Takes the clients with the most rows among the candidates."""

    candidates: int = 4

    @property
    def reveals(self) -> Mapping[str, str]:
        return {"rows": "its number of rows"}

    def reveal(self, client: Any, rng: np.random.Generator) -> Mapping[str, float]:
        return {"rows": float(client.data.rows)}

    def choose(self, revealed: Mapping[int, Mapping[str, float]], cohort: int) -> Sequence[int]:
        return sorted(revealed, key=lambda client: -revealed[client]["rows"])[:cohort]


def test_candidates_reveal_and_the_algorithm_chooses() -> None:
    federation = Federation(Picky(candidates=6), data(), seed=0, cohort=2)
    assert any("its number of rows" in sentence for sentence in federation.plan.assumptions)
    result = federation.run(2)
    assert [entry.survivors for entry in result.history] == [(4, 5), (4, 5)]
    revealed = [s.message for s in result.transcript.sent if s.message.stage == REVEAL and s.message.sender >= 0]
    assert [float(m.body["rows"]) for m in revealed] == [5.0, 8.0, 11.0, 14.0, 17.0, 20.0] * 2
    assert result.transcript.meta["reveals"] == ["rows"]
    assert any("its number of rows" in sentence for sentence in result.plan.assumptions)


def test_only_candidates_are_asked_and_those_that_answer_are_chosen_from() -> None:
    def lossy(endpoints: Any) -> LossyTransport:
        return LossyTransport(InProcessTransport(endpoints), replies=lambda m: m.stage == REVEAL and m.sender == 5)

    result = Federation(Picky(candidates=6), data(), seed=0, cohort=2, transport=lossy).run(1)
    assert result.history[0].survivors == (3, 4)
    few = Federation(Picky(candidates=3), data(), seed=1, cohort=3).run(1)
    asked = {s.message.receiver for s in few.transcript.sent if s.message.stage == REVEAL and s.message.sender < 0}
    assert asked == set(few.history[0].survivors) and len(asked) == 3


def test_nobody_answers() -> None:
    def silent(endpoints: Any) -> LossyTransport:
        return LossyTransport(InProcessTransport(endpoints), replies=lambda m: m.stage == REVEAL)

    with pytest.raises(RoundVoid, match="no candidate revealed"):
        Federation(Picky(), data(), seed=0, cohort=2, transport=silent).run(1)


def test_a_defence_does_not_hide_what_is_revealed_so_it_must_be_asked_for() -> None:
    protected = chain(secure_aggregation())
    with pytest.raises(ConfigError, match=r"rows .* outside the defence.*reveal=True"):
        Federation(Picky(), data(), protected, cohort=3)
    with pytest.raises(ConfigError, match="select uniformly"):
        Federation(Picky(), data(), cohort=3, reveal=False)
    agreed = Federation(Picky(), data(), protected, cohort=3, reveal=True)
    assert len(agreed.run(1).history[0].survivors) == 3
    assert any("outside the defence" in sentence for sentence in agreed.plan.assumptions)


def test_a_client_that_did_not_agree_reveals_nothing() -> None:
    federation = Federation(Picky(), data(), cohort=2)
    for node in federation.nodes.values():
        node._agreed = replace(node._agreed, reveals=False)
    with pytest.raises(RoundVoid, match="no candidate revealed"):
        federation.run(1)
