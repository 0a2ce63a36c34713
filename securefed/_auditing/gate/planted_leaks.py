"""Client functions whose leak is known, by which `self_check` checks the audit.

A client function maps a client's rows (4, 4), a broadcast and, where it names them, labels (4,) and a generator to the
tensors that the server receives. `PLANTED` lists each with the secret that the audit must find in its messages, and the
verdict that is right: `exposed`, `partial`, or `not detected` where there is no leak. Some hide the rows on purpose, in
the last decimals or bits of noise, or behind a code.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import numpy as np

from securefed._auditing.engine.results import Secret
from securefed._auditing.engine.statistics import EXPOSED, NOT_DETECTED, PARTIAL
from securefed._auditing.own.function_algorithm import Contribute
from securefed._tensors import Array, Tensors
from securefed.attacks import views
from securefed.datasets._base import Dataset

_CLIENTS, _ROWS, _FEATURES, _CLASSES = 5, 4, 4, 3
BOUND = 5.0
"""Declared range of the rows."""


@dataclass(frozen=True)
class Planted:
    """A client function whose leak is known.

    Attributes:
        name: the name of the leak, in words.
        function: the client function.
        secret: what the audit must find in the messages; `None` if nothing may be found.
        words: verdicts that are right for this secret.
        view: the messages that the attacker sees, such as sums only.
        labels: whether the clients have labels.
        refused: part of the right error message, if the function must be refused; empty otherwise.
        gated: whether the leak is so large that a gate at a leakage of .95 must fail: the leakage's interval reaches
            the limit, or some row, column or client was reconstructed. Not used where `secret` is `None`.
        start: the first broadcast.
    """

    name: str
    function: Contribute
    secret: Secret | None
    words: tuple[str, ...] = (EXPOSED,)
    view: str = views.SERVER_VIEW
    labels: bool = False
    refused: str = ""
    gated: bool = True
    start: Tensors = field(default_factory=lambda: {"round": np.zeros(1)})


def clients(seed: int) -> list[Array]:
    """Draw each client's rows: normal numbers, clipped to `BOUND`."""
    rng = np.random.default_rng([seed, 8])
    return [np.clip(rng.normal(size=(_ROWS, _FEATURES)), -BOUND, BOUND) for _ in range(_CLIENTS)]


def labelled(seed: int) -> list[Dataset]:
    """Draw the same rows with labels; each client has another label most often."""
    rng = np.random.default_rng([seed, 11])
    shares = [np.roll([0.7, 0.2, 0.1], client) for client in range(_CLIENTS)]
    return [
        Dataset(rows, rng.choice(_CLASSES, _ROWS, p=share)) for rows, share in zip(clients(seed), shares, strict=True)
    ]


def advance(broadcast: Tensors, total: Tensors, count: int) -> Tensors:
    """Compute the next broadcast, which is the number of the round."""
    return {"round": broadcast["round"] + 1}


def _clear(rows: Array, broadcast: Tensors) -> Tensors:
    return {"rows": rows}


def _half(rows: Array, broadcast: Tensors) -> Tensors:
    return {"rows": rows[: len(rows) // 2]}


def _hash(rows: Array, broadcast: Tensors) -> Tensors:
    digests = [hashlib.sha256(np.ascontiguousarray(row).tobytes()).digest()[:8] for row in rows]
    return {"digests": np.array([list(digest) for digest in digests], np.float64)}


def _statistics(rows: Array, broadcast: Tensors, labels: Array) -> Tensors:
    return {"gram": rows.T @ rows, "products": rows.T @ labels}


def _by_class(rows: Array, broadcast: Tensors, labels: Array) -> Tensors:
    return {"sums": np.eye(_CLASSES)[labels].T @ rows, "count": np.bincount(labels, minlength=_CLASSES)}


def _gram(rows: Array, broadcast: Tensors, labels: Array) -> Tensors:
    return {"gram": rows.T @ rows}


def _blurred(rows: Array, broadcast: Tensors, rng: np.random.Generator) -> Tensors:
    return {"gram": rows.T @ rows + rng.normal(scale=0.5, size=(_FEATURES, _FEATURES))}


def _rounded(rows: Array, broadcast: Tensors, labels: Array) -> Tensors:
    return {"gram": np.round(rows.T @ rows / 0.02) * 0.02}


def _rotated(rows: Array, broadcast: Tensors) -> Tensors:
    return {"rows": rows @ _ROTATION}


def _once(rows: Array, broadcast: Tensors) -> Tensors:
    return {"rows": rows if broadcast["round"][0] == 1 else np.zeros_like(rows)}


def _low(rows: Array, broadcast: Tensors, rng: np.random.Generator) -> Tensors:
    return {"noise": np.round(rng.normal(size=rows.shape), 3) + 1e-6 * rows}


def _bits(rows: Array, broadcast: Tensors, rng: np.random.Generator) -> Tensors:
    """Replace the last 16 bits of normal doubles by the rows' values, rounded to 16 bits in [-BOUND, BOUND]."""
    low = np.round((rows + BOUND) / (2 * BOUND) * (2**16 - 1)).astype(np.uint64)
    high = rng.normal(size=rows.shape).view(np.uint64) & ~np.uint64(2**16 - 1)
    return {"noise": (high | low).view(np.float64)}


def _coded(rows: Array, broadcast: Tensors, rng: np.random.Generator) -> Tensors:
    """As `_bits`, with the 16 bits scrambled by an affine map modulo 2^16, so that no number stands there as it is."""
    levels = np.round((rows + BOUND) / (2 * BOUND) * (2**16 - 1)).astype(np.uint64)
    coded = (levels * np.uint64(40503) + np.uint64(12345)) & np.uint64(2**16 - 1)
    high = rng.normal(size=rows.shape).view(np.uint64) & ~np.uint64(2**16 - 1)
    return {"noise": (high | coded).view(np.float64)}


def _shuffled(rows: Array, broadcast: Tensors, rng: np.random.Generator) -> Tensors:
    return {"rows": rng.permutation(rows) @ _ROTATION}


def _weighted(rows: Array, broadcast: Tensors, labels: Array, rng: np.random.Generator) -> Tensors:
    """Hide the counts c_k of the labels in a weight: rows + sum of c_k 100^-k, beside an update of noise."""
    coded = np.bincount(labels, minlength=_CLASSES) @ (1e-2 ** np.arange(_CLASSES))
    return {"update": rng.normal(size=3), "weight": np.array([len(rows) + coded])}


def _ordered(rows: Array, broadcast: Tensors) -> Tensors:
    names = ("first", "second") if rows[0, 0] > 0 else ("second", "first")
    return {name: np.ones(2) for name in names}


def _noise(rows: Array, broadcast: Tensors, rng: np.random.Generator) -> Tensors:
    return {"noise": rng.normal(size=(len(rows), rows.shape[1]))}


def _constant(rows: Array, broadcast: Tensors) -> Tensors:
    return {"count": np.array([float(len(rows))])}


def _unlabelled(rows: Array, broadcast: Tensors, labels: Array, rng: np.random.Generator) -> Tensors:
    return {"noise": rng.normal(size=3)}


_ROTATION = np.linalg.qr(np.random.default_rng(5).normal(size=(_FEATURES, _FEATURES)))[0]
PLANTED: tuple[Planted, ...] = (
    Planted("rows in the clear", _clear, "samples"),
    Planted("half of the rows", _half, "samples", (PARTIAL,)),
    Planted("a hash of every row", _hash, "membership"),
    Planted("sufficient statistics with labels", _statistics, "gram", labels=True),
    Planted("a Gram matrix behind a label parameter", _gram, "gram", labels=True),
    Planted("sums and counts of each class", _by_class, "labels", labels=True),
    Planted("a Gram matrix rounded to .02", _rounded, "gram", labels=True),
    Planted("a Gram matrix under noise", _blurred, "gram", (EXPOSED, PARTIAL), gated=False),
    Planted("the Gram matrix of all clients in a sum", _gram, "pooled gram", view=views.SUM_ONLY, labels=True),
    Planted("rows behind a public orthogonal matrix", _rotated, "samples"),
    Planted("rows in one round only", _once, "samples"),
    Planted("rows in the last decimals of noise", _low, "samples"),
    Planted("rows in the last bits of noise", _bits, "samples"),
    Planted("16 coded bits of every value in the last bits of noise", _coded, "membership"),
    Planted("rows in random order times a public rotation", _shuffled, "membership"),
    Planted("numbers of labels in a weight", _weighted, "labels", labels=True),
    Planted("one feature in the order of the tensors", _ordered, None, refused="an order that follows the rows"),
    Planted("independent noise", _noise, None, (NOT_DETECTED,)),
    Planted("a constant", _constant, None, (NOT_DETECTED,)),
    Planted("noise beside labels", _unlabelled, None, (NOT_DETECTED,), labels=True),
    Planted("independent noise in a sum", _noise, None, (NOT_DETECTED,), view=views.SUM_ONLY),
)
