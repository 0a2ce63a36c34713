"""Whole runs whose exchanges prepare one another: the same result as in the clear, whoever is lost, and when."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefed import (
    SERVER,
    Dataset,
    Federation,
    InProcessTransport,
    LossyTransport,
    Message,
    Result,
    RunOptions,
    chain,
)
from securefed import _catalogue as catalogue
from securefed._persistence import container
from securefed._persistence.packing import pack
from securefed._tensors import decode
from securefed.defenses import secure_aggregation
from securefed.defenses._fixed_point import Quantise
from securefed.defenses._secure_aggregation.pipeline import PipelinedClient
from tests.combinations import each_value, first_ones

CLIENTS = 5
FULL, SHORT = ("keys", "shares", "upload", "unmask"), ("upload", "unmask")
DEFENSE, CLEAR = chain(secure_aggregation(pipelined=True)), chain(Quantise())
SETTINGS: dict[str, dict[str, Any]] = {
    "pca/ssi": {"rank": 2, "tolerance": 0.0},
    "optimization/losac": {"learning_rate": 0.002, "local_steps": 2, "blocks": 2},
}


def make(name: str) -> Any:
    return catalogue.algorithms.make(name, **SETTINGS[name])


def data() -> list[Dataset]:
    rng = np.random.default_rng(7)
    return [Dataset(rng.uniform(-1, 1, (4 + i, 6)), np.arange(4 + i) % 3) for i in range(CLIENTS)]


def stages_of(result: Result) -> dict[int, tuple[str, ...]]:
    """The stages of every exchange, in order of first use."""
    found: dict[int, dict[str, None]] = {}
    for sent in result.transcript.sent:
        if sent.message.sender == SERVER and sent.message.stage in FULL:
            found.setdefault(sent.message.round, {})[sent.message.stage] = None
    return {number: tuple(stages) for number, stages in found.items()}


def same_sums(ours: Result, theirs: Result) -> None:
    assert len(ours.transcript.records) == len(theirs.transcript.records)
    for a, b in zip(ours.transcript.records, theirs.transcript.records, strict=True):
        assert (a.round, a.survivors) == (b.round, b.survivors)
        assert all(np.array_equal(a.encoded[name], b.encoded[name]) for name in a.encoded)
    assert all(np.array_equal(ours.output[name], theirs.output[name]) for name in ours.output)


@pytest.mark.parametrize(("batched", "name"), each_value([False, True], SETTINGS))
def test_a_run_is_bit_identical_and_takes_two_stages_after_the_first(name: str, batched: bool) -> None:
    ours = Federation(make(name), data(), DEFENSE, seed=3, batched=batched).run(4)
    same_sums(ours, Federation(make(name), data(), CLEAR, seed=3, batched=batched).run(4))
    numbers = [record.round for record in ours.transcript.records]
    assert [stages_of(ours)[number] for number in numbers] == [FULL, SHORT, SHORT, SHORT]


def test_evaluations_between_the_rounds_are_short_exchanges_too() -> None:
    """Another layout, the same clients: what was prepared serves either kind."""
    settings = dict(SETTINGS["optimization/losac"])
    run = Federation(catalogue.algorithms.make("optimization/losac", **settings), data(), DEFENSE, seed=3)
    result = run.run(3, evaluate_every=1)
    found = list(stages_of(result).values())
    assert len(found) > 3
    assert found == [FULL] + [SHORT] * (len(found) - 1)


EVERY_SIZE = [(3,), (1, 3), (0, 2, 4)]
"""Subsets of clients that are lost: one, two and (the exchange is void) three."""
SUBSETS = [*combinations(range(CLIENTS), 1), (0, 1), (1, 3), (2, 4), (0, 2, 4)]


def schedule(subsets: list[tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    """What is lost exchange by exchange, so that each (opening, stage, subset) occurs: before a full exchange a client
    is lost, before a short one none is. None is lost at the end."""
    out: list[tuple[str, tuple[int, ...]]] = []
    for subset in subsets:
        for stage in FULL:
            out += [("upload", (subset[0],)), (stage, subset)]
        for stage in SHORT:
            out += [("none", ()), (stage, subset)]
    return [*out, ("none", ())]


@pytest.mark.parametrize(
    ("name", "lose", "subsets"),
    first_ones(
        [
            ("optimization/losac", "replies", EVERY_SIZE),
            ("optimization/losac", "replies", SUBSETS),
            ("pca/ssi", "requests", SUBSETS),
        ]
    ),
)
def test_clients_lost_at_every_stage_of_both_openings(name: str, lose: str, subsets: list[tuple[int, ...]]) -> None:
    plan = schedule(subsets)

    def lost(message: Message) -> bool:
        party = message.receiver if message.sender == SERVER else message.sender
        stage, clients = plan[message.round] if message.round < len(plan) else ("none", ())
        return message.stage == stage and party in clients

    def lossy(endpoints: Any) -> LossyTransport:
        return LossyTransport(InProcessTransport(endpoints), **{lose: lost})

    one_by_one: dict[str, Any] = {"seed": 5, "batched": False, "options": RunOptions(max_void=500)}
    ours = Federation(make(name), data(), DEFENSE, transport=lossy, **one_by_one)
    rounds = sum(len(clients) < 3 for _, clients in plan)  # the others are void and attempted again
    result = ours.run(rounds)
    openings = stages_of(result)
    tried = {(openings[number][0], *event) for number, event in enumerate(plan) if event[1]}
    for subset in subsets:
        assert {("keys", stage, subset) for stage in FULL} <= tried
        assert {("upload", stage, subset) for stage in SHORT} <= tried
    survivors = {record.round: record.survivors for record in result.transcript.records}
    assert any(entry.void for entry in result.history)

    def same_survivors(endpoints: Any) -> LossyTransport:
        return LossyTransport(
            InProcessTransport(endpoints),
            replies=lambda m: m.stage == "upload" and m.sender not in survivors.get(m.round, ()),
        )

    same_sums(result, Federation(make(name), data(), CLEAR, transport=same_survivors, **one_by_one).run(rounds))


def test_a_resumed_run_makes_new_keys_and_its_checkpoint_holds_none(tmp_path: Path) -> None:
    path = tmp_path / "run.checkpoint"
    first = Federation(
        make("pca/ssi"), data(), DEFENSE, seed=3, options=RunOptions(checkpoint=path, checkpoint_every=1)
    )
    first.run(2)
    tensors, _ = decode(container.load(path, "checkpoint")[1]["state"].tobytes())
    held = b"".join(value.tobytes() for value in tensors.values())
    for node in first.nodes.values():
        state = node.state.protocol
        assert isinstance(state, PipelinedClient)
        precomputed = pack(state)["prepared:y"].tobytes()
        assert len(precomputed) > 1000
        assert precomputed[-64:] not in held
    assert not any("prepared" in name or "protocol" in name for name in tensors)
    resumed = Federation(
        make("pca/ssi"), data(), DEFENSE, seed=3, options=RunOptions(checkpoint=path, checkpoint_every=1)
    )
    result = resumed.run(4)
    assert list(stages_of(result).values())[:2] == [FULL, SHORT]
    whole = Federation(make("pca/ssi"), data(), CLEAR, seed=3).run(4)
    for name, value in whole.output.items():
        np.testing.assert_array_equal(result.output[name], value)
