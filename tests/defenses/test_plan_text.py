"""A plan prints as a reader wants it: every tensor, and every sentence that is assumed."""

from __future__ import annotations

import pytest

from securefed import Layout, TensorSpec
from securefed.defenses._base import defenses

LAYOUT = Layout((TensorSpec("first", (3, 2), 1.5), TensorSpec("second", (), 2.0)))


@pytest.mark.parametrize("name", defenses.names)
def test_a_plan_prints_by_line(name: str) -> None:
    plan = defenses.make(name).plan(LAYOUT, 5)
    lines = str(plan).splitlines()
    assert lines[0] == f"{plan.defense}, 5 clients"
    assert [line.split()[0] for line in lines[2 : 2 + len(plan.tensors)]] == [t.name for t in plan.tensors]
    assert [line[2:] for line in lines if line.startswith("- ")] == list(plan.assumptions)
    assert f"survivors needed: {plan.threshold} of 5" in str(plan)
    assert [line for line in lines if line.startswith("epsilon")] == [
        f"epsilon after {rounds} round{'s' * (rounds > 1)}: {epsilon:.3f}" for rounds, epsilon in plan.epsilon
    ]
    assert ("clip: " in str(plan)) is (plan.privacy is not None)
