"""Every registered algorithm gives the same result under every exact defence, whoever drops out, and when."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from securefed import catalogue
from securefed.algorithms.base import Public
from securefed.defenses.base import Defense, without_indicator
from securefed.defenses.compose import chain
from securefed.defenses.fixed_point import Quantise
from securefed.defenses.homomorphic import InsecurePaillier, insecure_deal, threshold_paillier
from securefed.defenses.secure_aggregation import secure_aggregation
from securefed.federation import Federation
from securefed.history import RoundHistory
from securefed.messages import SERVER, Message
from securefed.run_options import RunOptions
from securefed.server import Result
from securefed.transports.in_process import InProcess, Lossy
from tests.contract.settings import CLIENTS, SETTINGS, data, make

EXACT: dict[str, Defense] = {
    "secure_aggregation": chain(secure_aggregation()),
    "paillier": chain(InsecurePaillier(bits=512)),
    "paillier_threshold": chain(threshold_paillier(keys=insecure_deal(3, CLIENTS))),
}
QUANTISED = chain(Quantise())
NAMES = catalogue.algorithms.names


@dataclass
class Recording:
    """An algorithm that notes every contribution before a defence touches it."""

    inner: Any
    raw: list[Any] = field(default_factory=list)

    def contribute(self, client: Any, broadcast: Any, rng: Any) -> Any:
        state, tensors = self.inner.contribute(client, broadcast, rng)
        self.raw.append(tensors)
        return state, tensors

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def same_run(ours: Result, theirs: Result) -> None:
    assert len(ours.transcript.records) == len(theirs.transcript.records)
    for a, b in zip(ours.transcript.records, theirs.transcript.records, strict=True):
        assert (a.round, a.survivors) == (b.round, b.survivors)
        for name in a.encoded:
            np.testing.assert_array_equal(a.encoded[name], b.encoded[name])
    for name in ours.output:
        np.testing.assert_array_equal(ours.output[name], theirs.output[name])


def test_the_registry_is_not_empty_and_the_battery_covers_it() -> None:
    assert len(NAMES) >= 8
    assert set(NAMES) == set(SETTINGS)


@pytest.mark.parametrize("defense", EXACT)
@pytest.mark.parametrize("name", NAMES)
def test_every_round_sums_within_the_plan_and_the_run_is_bit_identical(name: str, defense: str) -> None:
    rounds = 3
    recording = Recording(make(name))
    ours = Federation(recording, data(), EXACT[defense], seed=3, batched=False).run(rounds)
    assert len(recording.raw) == rounds * CLIENTS
    worst = 0.0
    for index, record in enumerate(ours.transcript.records):
        raw = recording.raw[index * CLIENTS : (index + 1) * CLIENTS]
        for tensor in without_indicator(ours.plan).tensors:  # (a) from the same state, |sum - plain sum| <= plan
            exact = sum(np.asarray(tensors[tensor.name], np.float64) for tensors in raw)
            difference = float(np.abs(record.total[tensor.name] - exact).max())
            assert difference <= tensor.error
            worst = max(worst, difference)
    assert worst > 0  # rounding did happen: the bound was put to the test
    same_run(ours, Federation(make(name), data(), QUANTISED, seed=3, batched=False).run(rounds))  # (b)


class AllMetError(Exception):
    """Ends a run."""


def schedules(stages: tuple[str, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """All (stage, subset) combinations, in an order that mixes sizes."""
    every = [(s, c) for s in stages for k in range(CLIENTS + 1) for c in combinations(range(CLIENTS), k)]
    order = np.random.default_rng(1).permutation(len(every))
    return [every[i] for i in order]


def lost(plan: list[tuple[str, tuple[int, ...]]], message: Message) -> bool:
    party = message.receiver if message.sender == SERVER else message.sender
    if message.round >= len(plan):
        return False
    stage, clients = plan[message.round]
    return message.stage == stage and party in clients


@pytest.mark.parametrize("lose", ["requests", "replies"])
@pytest.mark.parametrize("name", NAMES)
def test_clients_lost_at_every_stage_in_every_subset(name: str, lose: str) -> None:
    """One run that meets each (stage, subset) once, against a plain run with the same survivors."""
    stages = EXACT["secure_aggregation"].plan(make(name).layout(Public.of(data())), CLIENTS).stages
    assert len(stages) == 4
    plan = schedules(stages)

    def lossy(endpoints: Any) -> Lossy:
        return Lossy(InProcess(endpoints), **{lose: lambda message: lost(plan, message)})

    one_by_one: dict[str, Any] = {
        "seed": 5,
        "batched": False,
        "options": RunOptions(max_void=500),
    }  # who is batched depends on who is lost
    ours = Federation(make(name), data(), EXACT["secure_aggregation"], transport=lossy, **one_by_one)
    completed = 0

    def until_all_are_met(entry: RoundHistory) -> None:
        nonlocal completed
        completed = entry.round + 1
        if entry.exchange + 1 >= len(plan):
            raise AllMetError

    with pytest.raises(AllMetError):  # one run: the end of a run takes an exchange number of its own
        ours.run(len(plan), progress=until_all_are_met)
    result = ours.run(completed)
    survivors = {record.round: record.survivors for record in result.transcript.records}
    assert any(len(s) < CLIENTS for s in survivors.values())
    assert any(entry.void for entry in result.history)

    def same_survivors(endpoints: Any) -> Lossy:
        return Lossy(
            InProcess(endpoints), replies=lambda m: m.stage == "upload" and m.sender not in survivors.get(m.round, ())
        )

    theirs = Federation(make(name), data(), QUANTISED, transport=same_survivors, **one_by_one)
    same_run(result, theirs.run(completed))


@pytest.mark.parametrize("defense", ["paillier", "paillier_threshold"])
@pytest.mark.parametrize("name", NAMES)
def test_dropouts_under_paillier(name: str, defense: str) -> None:
    plan = [("upload", (0,)), ("upload", (1, 3)), ("upload", ()), ("upload", (4,))]

    def lossy(endpoints: Any) -> Lossy:
        return Lossy(InProcess(endpoints), replies=lambda message: lost(plan, message))

    ours = Federation(make(name), data(), EXACT[defense], seed=5, transport=lossy).run(4)
    theirs = Federation(make(name), data(), QUANTISED, seed=5, transport=lossy).run(4)
    assert {len(r.survivors) for r in ours.transcript.records} == {3, 4, 5}
    same_run(ours, theirs)


def test_the_battery_sees_a_wrong_sum() -> None:
    """Positive control: one unit in one entry of one round is noticed."""
    ours = Federation(make("pca/ssi"), data(), QUANTISED, seed=3).run(2)
    theirs = Federation(make("pca/ssi"), data(), QUANTISED, seed=3).run(2)
    theirs.transcript.records[1].encoded["product"][0, 0] += 1  # type: ignore[index]
    with pytest.raises(AssertionError):
        same_run(ours, theirs)
