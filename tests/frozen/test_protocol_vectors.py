"""For fixed secrets every message is, byte for byte, that of the frozen vectors of this version of the protocol.

What stands in a line: `recorded.Record`. A change of what travels changes `PROTOCOL_VERSION` (docs/release-policy.md),
and then the vectors are written anew, with a line in the changelog. Bodies are digested apart, so that a new header
leaves it to see whether what clients mask, encrypt and reveal is still the same.
"""

from __future__ import annotations

import json

import pytest

from securefed import _catalogue as catalogue
from securefed._messages import PROTOCOL_VERSION
from tests.frozen.cases import CASES, SUMS, SumCase
from tests.frozen.write_vectors import PLACE

FROZEN = json.loads(PLACE.read_text())


def stages(lines: list[str]) -> set[str]:
    return {line.split()[1] for line in lines if ">" in line}


def test_the_vectors_are_of_this_version_and_of_these_cases() -> None:
    assert FROZEN["protocol"] == PROTOCOL_VERSION
    assert FROZEN["cases"].keys() == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_every_message_is_the_frozen_one(name: str) -> None:
    found, frozen = CASES[name].record(), FROZEN["cases"][name]
    for place, (ours, wanted) in enumerate(zip(found, frozen, strict=False)):
        assert ours == wanted, (
            f"line {place} of {name!r}: what travels has changed; restore it, or change PROTOCOL_VERSION and run "
            "python -m tests.frozen.write_vectors"
        )
    assert len(found) == len(frozen)


def test_every_aggregation_and_every_stage_is_frozen() -> None:
    planned: dict[type, set[str]] = {}
    frozen: dict[type, set[str]] = {}
    for name, case in SUMS.items():
        aggregation, plan = case.make().defense.aggregation, case.make().plan
        planned.setdefault(type(aggregation), set()).update(plan.stages)
        frozen.setdefault(type(aggregation), set()).update(stages(FROZEN["cases"][name]))
    assert all(planned[kind] <= frozen[kind] for kind in planned)
    registered = {type(catalogue.defenses.make(name).aggregation) for name in catalogue.defenses.names}
    assert all(any(issubclass(ours, kind) for ours in frozen) for kind in registered)
    outside = set().union(*map(stages, FROZEN["cases"].values())) - set().union(*planned.values())
    assert outside == {"commit", "reveal"}


@pytest.mark.parametrize("name", ["masks", "masks, verified", "Paillier, half exponents", "Paillier with a threshold"])
def test_other_secrets_change_messages_and_not_their_lengths_or_the_sum(name: str) -> None:
    case = CASES[name]
    assert isinstance(case, SumCase)
    ours, others = ([line for line in case.record(secrets) if ">" in line] for secrets in ("frozen", "others"))
    assert [line.split()[:4] for line in ours] == [line.split()[:4] for line in others]
    upload = case.make().defense.aggregation.upload
    replies = [(a, b) for a, b in zip(ours, others, strict=True) if f" {upload} " in a and ">-1 " in a]
    assert replies and all(a.split()[5] != b.split()[5] for a, b in replies)  # the bodies, without the run's number
    results = [[line for line in case.record(secrets) if line.startswith("result")] for secrets in ("frozen", "others")]
    assert results[0] == results[1]
