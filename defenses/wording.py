"""A plan in words, as `print(plan)` and `securefed plan` show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from securefed.defenses.plan import Plan, TensorPlan

HEAD = ("tensor", "shape", "bound", "ring", "step", "largest N", "error of the sum")


def plan_text(plan: Plan) -> str:
    """Tensors, stages, bytes, threshold, noise, epsilon and assumptions, by line."""
    lines = [f"{plan.defense}, {plan.clients} clients", *_table([HEAD, *map(_cells, plan.tensors)])]
    lines.append(f"stages: {' -> '.join(plan.stages)}")
    lines.append(f"upload per client and round: {plan.upload_bytes:,} bytes, headers left out")
    opened = f"; single contributions are open to: {plan.open_to}" if plan.open_to else ""
    lines.append(f"survivors needed: {plan.threshold} of {plan.clients}{opened}")
    if plan.clip is not None:
        whose = "a client's contribution" if plan.unit == "client" else "what one record moves"
        lines.append(f"clip: {whose} has at most norm {plan.clip:.4g}; noise multiplier {plan.noise_multiplier:.4g}")
    for rounds, epsilon in plan.epsilon:
        lines.append(f"epsilon after {rounds} round{'s' * (rounds > 1)}: {epsilon:.3f}")
    return "\n".join([*lines, *(f"- {sentence}" for sentence in plan.assumptions)])


def _cells(tensor: TensorPlan) -> tuple[str, ...]:
    bound = "none" if tensor.bound is None else f"{tensor.bound:.4g}"
    ring = f"2^{tensor.ring}" if tensor.ring else "float64"
    numbers = (f"{tensor.step:.3g}", str(tensor.max_clients), f"{tensor.error:.3g}")
    return (tensor.name, str(tensor.shape), bound, ring, *numbers)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
