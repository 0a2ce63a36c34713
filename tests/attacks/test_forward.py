"""Every operation that the engine differentiates agrees with a difference quotient; every other one is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from securefed.attacks._engine import DualArray, NoDerivativeError
from securefed.attacks._engine.array_rules import STEERING
from securefed.attacks._engine.forward import FUNCTIONS, MOST_DIRECTIONS, UFUNCS

RNG = np.random.default_rng(0)
POSITIVE = RNG.uniform(0.5, 1.5, (4, 3))
SIGNED = RNG.normal(size=(4, 3))
OTHER = RNG.uniform(0.5, 1.5, (4, 3))
SQUARE = np.eye(4) * 3 + RNG.normal(size=(4, 4)) * 0.3
SYMMETRIC = SQUARE + SQUARE.T


def upright(vectors: Any) -> Any:
    """Fix the signs of singular and eigenvectors, which a difference quotient must not jump between."""
    return vectors * np.sign(vectors[:1].value if isinstance(vectors, DualArray) else vectors[:1])


UNARY = {f: POSITIVE if f in (np.sqrt, np.log, np.log1p, np.reciprocal) else SIGNED for f in UFUNCS if f.nin == 1}
BINARY = [f for f in UFUNCS if f.nin == 2 and f is not np.matmul]
CASES: dict[str, tuple[Any, Any, Any]] = {
    **{f.__name__: (f, f, x) for f, x in UNARY.items()},
    **{f"{f.__name__} {k}": (f, lambda x, f=f, k=k: [f(x, OTHER), f(OTHER, x), f(x, x + OTHER), f(x[0], OTHER)][k],
                             POSITIVE) for f in BINARY for k in range(4)},
    "matmul matrices": (np.matmul, lambda x: (x.T @ OTHER) @ (OTHER.T @ x) @ x.T, SIGNED),
    "matmul vectors": (np.matmul, lambda x: (x[0] @ x.T) @ x @ x[1] + x[0] @ OTHER[0], SIGNED),
    "matmul stacks": (np.matmul, lambda x: np.stack([x, 2 * x]) @ np.stack([OTHER.T, x.T]), SIGNED),
    "reshape": (np.reshape, lambda x: x.reshape(2, 6) * np.reshape(x, (2, 6)), SIGNED),
    "ravel": (np.ravel, lambda x: x.ravel()[3:9:2], SIGNED),
    "transpose": (np.transpose, lambda x: x[None].transpose(2, 0, 1) * x.T[:, None], SIGNED),
    "swapaxes": (np.swapaxes, lambda x: np.swapaxes(x, -1, 0) @ x.mT.T, SIGNED),
    "moveaxis": (np.moveaxis, lambda x: np.moveaxis(x[None], -1, 0), SIGNED),
    "squeeze": (np.squeeze, lambda x: x[:, :1].squeeze(), SIGNED),
    "expand_dims": (np.expand_dims, lambda x: np.expand_dims(x, -1) * x[:, None, :], SIGNED),
    "atleast_2d": (np.atleast_2d, lambda x: np.atleast_2d(x[0]), SIGNED),
    "broadcast_to": (np.broadcast_to, lambda x: np.broadcast_to(x[0], (2, 3)), SIGNED),
    "concatenate": (np.concatenate, lambda x: np.concatenate([x, OTHER, x[:1]], axis=0), SIGNED),
    "stack": (np.stack, lambda x: np.stack([x, OTHER], axis=-1), SIGNED),
    "hstack": (np.hstack, lambda x: np.hstack([x, OTHER]), SIGNED),
    "column_stack": (np.column_stack, lambda x: np.column_stack([x, OTHER]), SIGNED),
    "vstack": (np.vstack, lambda x: np.vstack([x[0], OTHER]), SIGNED),
    "copy": (np.copy, lambda x: x.copy(), SIGNED),
    "zeros_like": (np.zeros_like, lambda x: assigned(np.zeros_like(x), x), SIGNED),
    "take": (np.take, lambda x: np.take(x, [2, 0, 2], axis=-2), SIGNED),
    "repeat": (np.repeat, lambda x: np.repeat(x, 2, axis=0), SIGNED),
    "diagonal": (np.diagonal, lambda x: np.diagonal(np.stack([x, x * x]), axis1=-2, axis2=-1), SIGNED),
    "diag": (np.diag, lambda x: np.diag(np.diag(x @ x.T)), SIGNED),
    "triu": (np.triu, lambda x: np.triu(x, 1), SIGNED),
    "tril": (np.tril, np.tril, SIGNED),
    "trace": (np.trace, lambda x: np.trace(x @ x.T), SIGNED),
    "sum": (np.sum, lambda x: x.sum(axis=-1, keepdims=True) * x.sum(axis=0) + x.sum(), SIGNED),
    "cumsum": (np.cumsum, lambda x: x.cumsum(axis=-1), SIGNED),
    "mean": (np.mean, lambda x: x.mean(axis=0) + x.mean(), SIGNED),
    "var": (np.var, lambda x: x.var(axis=0, ddof=1), SIGNED),
    "std": (np.std, lambda x: x.std(axis=0), SIGNED),
    "max": (np.max, lambda x: x.max(axis=-1) + x.max(), SIGNED),
    "min": (np.min, lambda x: x.min(axis=0, keepdims=True) + x.min(), SIGNED),
    "where": (np.where, lambda x: np.where(x > 0, x * x, OTHER) + np.where(x > 0, 1.0, x), SIGNED),
    "clip": (np.clip, lambda x: np.clip(x, -0.5, 0.5), SIGNED),
    "soft threshold": (np.clip, lambda x: np.sign(x) * np.maximum(abs(x) - 0.3, 0.0), SIGNED),
    "dot": (np.dot, lambda x: np.dot(x.T, x) @ np.dot(x[0], 2.0), SIGNED),
    "inner": (np.inner, lambda x: np.inner(x[0], x[1]), SIGNED),
    "vdot": (np.vdot, lambda x: np.vdot(x, x * OTHER), SIGNED),
    "outer": (np.outer, lambda x: np.outer(x[0], x[:, 1]), SIGNED),
    "einsum": (np.einsum, lambda x: np.einsum("ij,kj,kl->il", x, OTHER, x) + np.einsum("ij,kj", x, x)[:, :3], SIGNED),
    "norm": (np.linalg.norm, lambda x: np.linalg.norm(x, axis=-1) + np.linalg.norm(x) + np.linalg.norm(x, 2), SIGNED),
    "solve": (np.linalg.solve, lambda x: np.linalg.solve(x, OTHER) + np.linalg.solve(x @ x, x[:, :3]), SQUARE),
    "inv": (np.linalg.inv, np.linalg.inv, SQUARE),
    "qr": (np.linalg.qr, lambda x: np.hstack([*np.linalg.qr(x @ x.T @ OTHER)]) if x.ndim > 3 else np.vstack(
        [*np.linalg.qr(x), np.linalg.qr(x.T)[1].T]), SIGNED),
    "cholesky": (np.linalg.cholesky, lambda x: np.linalg.cholesky(x @ x.T), SQUARE),
    "eigh": (np.linalg.eigh, lambda x: np.vstack([upright(np.linalg.eigh(x + x.T)[1]), np.linalg.eigh(x + x.T)[0]]),
             SYMMETRIC),
    "eigvalsh": (np.linalg.eigvalsh, lambda x: np.linalg.eigvalsh(x + x.T), SYMMETRIC),
    "svd": (np.linalg.svd, lambda x: np.vstack([upright(np.linalg.svd(x, full_matrices=False)[0]),
        np.linalg.svd(x, full_matrices=False)[1], upright(np.linalg.svd(x, full_matrices=False)[2].T)]), SIGNED),
    "index": (np.copy, lambda x: x[..., 1] * x[[0, 2, 1, 3], 2] + x[x[:, 0] != 0][:, 0], SIGNED),
}  # fmt: skip


def assigned(into: Any, x: Any) -> Any:
    """Write into parts of an array."""
    into[0] = x[1] * 2
    into[..., 1] = x[..., 0]
    return into


@pytest.mark.parametrize("name", CASES)
def test_the_slopes_are_those_of_a_difference_quotient(name: str) -> None:
    _, step, x = CASES[name]
    variables = DualArray.variables(x.ravel()).reshape(x.shape)
    out = step(variables)
    np.testing.assert_allclose(out.value, step(x), rtol=0, atol=1e-13)
    line = np.random.default_rng(1).normal(size=x.shape)
    quotient = (step(x + 1e-6 * line) - step(x - 1e-6 * line)) / 2e-6
    np.testing.assert_allclose(out.slopes @ line.ravel(), quotient, rtol=0, atol=1e-7 * (1 + np.abs(quotient).max()))


def test_every_rule_has_a_case() -> None:
    steering = set(STEERING)
    covered = {function for function, _, _ in CASES.values()}
    assert {*UFUNCS, *FUNCTIONS} - covered == steering
    x = DualArray.variables(SIGNED[0])
    for function in steering - {np.allclose, np.isclose, np.array_equal}:
        np.testing.assert_array_equal(function(x), function(SIGNED[0]))
    assert np.allclose(x, SIGNED[0]) and np.isclose(x, SIGNED[0]).all() and np.array_equal(x, SIGNED[0])


@pytest.mark.parametrize(
    "step",
    [
        np.asarray,
        np.array,
        float,
        int,
        lambda x: np.array([x, x]),
        lambda x: np.zeros(()).__iadd__(x),
        lambda x: x.astype(np.float32),
        lambda x: np.add.reduce(x[None]),
        np.floor,
        lambda x: np.median(x[None]),
        lambda x: np.linalg.norm(x[None], 1),
        lambda x: np.add(1.0, x, dtype=np.float32),
    ],
)
def test_what_would_drop_derivatives_is_refused_by_name(step: Any) -> None:
    with pytest.raises(NoDerivativeError, match=r"derivatives|differentiation"):
        step(DualArray.variables(np.ones(1))[0])


def test_ties_and_gaps_follow_their_rules() -> None:
    x = DualArray.variables(np.array([0.0, 0.0]))
    for out in (np.maximum(0.0, x), np.maximum(x, 0.0), np.minimum(0.0, x), np.clip(x, 0.0, 1.0)):
        np.testing.assert_array_equal(out.slopes, np.eye(2))
    np.testing.assert_array_equal(np.maximum(x[0], x[1]).slopes, [1.0, 0.0])
    assert not abs(x).slopes.any() and not np.linalg.norm(x).slopes.any()
    twice = DualArray.variables(np.eye(2).ravel()).reshape(2, 2)
    with pytest.raises(NoDerivativeError, match="repeated"):
        np.linalg.eigh(twice)
    np.testing.assert_array_equal(np.linalg.eigvalsh(twice).value, [1.0, 1.0])


def test_more_directions_than_the_limit_are_refused() -> None:
    with pytest.raises(NoDerivativeError, match="fit fewer"):
        DualArray(np.zeros(1), np.zeros((1, MOST_DIRECTIONS + 1)))
