"""Show secrets beside their reconstructions: images and matrices as pictures, other rows as numbers, graphs, texts.

An `Artifact` is a secret and an attack's estimate of it, kept from the first run; rows are matched already. `recovered`
selects which artifacts the page shows, and calls `evidence` for each.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from markupsafe import Markup

from securefed._auditing.engine.results import Artifact
from securefed._auditing.report.neighbour_graph import neighbour_graphs
from securefed._auditing.sentences.names import secret_title
from securefed._extras import needed_for
from securefed._tensors import Array

_SCALE = 12
"""Pixels of one entry of a picture that is 8 entries wide; of wider ones fewer, so that all are about as large."""
_MOST = 8
"""Most rows of a client that are shown."""
_VALUES: Final = 8
"""Most values of a record that are shown: as many as fit beside each other on a telephone."""
_RECORDS: Final = 3
"""Most records of which values are shown."""


@dataclass(frozen=True)
class Pair:
    """A picture of a secret and one of its reconstruction.

    Attributes:
        caption: what they show.
        truth: picture of the secret, as a `data:` URI.
        estimate: picture of the reconstruction, as a `data:` URI.
    """

    caption: str
    truth: str
    estimate: str


@dataclass(frozen=True)
class Lines:
    """A record or a text beside its reconstruction.

    Attributes:
        caption: which one.
        columns: for each value or character the original, its reconstruction, and whether the two agree as far as they
            are shown.
    """

    caption: str
    columns: tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True)
class Evidence:
    """What an attack recovered, beside the original.

    Attributes:
        pairs: pictures.
        records: rows of numbers.
        texts: texts, of which each part is a character.
        graphs: drawings of the original and of the reconstruction; empty if the secret is no graph.
        note: what is shown and what is left out.
    """

    pairs: tuple[Pair, ...] = ()
    records: tuple[Lines, ...] = ()
    texts: tuple[Lines, ...] = ()
    graphs: tuple[Markup, ...] = ()
    note: str = ""


def kind_of(artifact: Artifact, secret: str) -> str:
    """Return the kind of secret that an artifact shows; the arguments are those of `evidence`."""
    return artifact.secret if artifact.secret in ("gram", "samples", "pooled samples", "pooled gram") else secret


def evidence(artifact: Artifact, secret: str) -> Evidence:
    """Show an artifact by its kind.

    Args:
        artifact: the secret and its estimate.
        secret: kind of one client's data that is this algorithm's secret, as its settings state it: `samples` or `data`
            (rows), `personal` (the client's own model, a row each), `gram`, `distances` and others (matrices). It
            decides where `artifact.secret` says whose data it is (`client`) and not which kind.
    """
    kind = kind_of(artifact, secret)
    if artifact.truth.dtype.kind == "U":  # arrays of text
        return Evidence(texts=_texts(artifact))
    if kind in ("samples", "pooled samples", "data", "personal"):
        return Evidence(pairs=_samples(artifact)) if artifact.image_shape else _records(artifact)
    if kind == "distances":
        drawn, note = neighbour_graphs(artifact.truth, artifact.estimate)
        return Evidence(pairs=_matrix(artifact, secret_title(kind)), graphs=drawn, note=note)
    return Evidence(pairs=_matrix(artifact, secret_title(kind)))


def _samples(artifact: Artifact) -> tuple[Pair, ...]:
    """Draw the first rows as images, in the grey levels of the originals."""
    truth, estimate = artifact.truth[:_MOST], artifact.estimate[:_MOST]
    low, high = min(float(truth.min()), 0.0), float(max(truth.max(), 1e-12))
    return tuple(
        Pair(
            f"row {index + 1}",
            _png(_shaped(own, artifact.image_shape), low, high),
            _png(_shaped(found, artifact.image_shape), low, high),
        )
        for index, (own, found) in enumerate(zip(truth, estimate, strict=True))
    )


def _records(artifact: Artifact) -> Evidence:
    """Show the first values of the first rows, to three digits."""
    truth, estimate = (np.atleast_2d(values) for values in (artifact.truth, artifact.estimate))
    made = []
    for index, (own, found) in enumerate(zip(truth[:_RECORDS], estimate[:_RECORDS], strict=True)):
        made.append(
            _lines(f"record {index + 1}", *([f"{value:.3g}" for value in row[:_VALUES]] for row in (own, found)))
        )
    note = f"The first {min(_VALUES, truth.shape[1])} of {truth.shape[1]} values, to three digits"
    return Evidence(records=tuple(made), note=f"{note}, bold where they agree; {len(made)} of {len(truth)} records.")


def _texts(artifact: Artifact) -> tuple[Lines, ...]:
    """Set texts beside their reconstructions, character by character; the shorter one is filled with spaces."""
    made = []
    for index, (own, found) in enumerate(zip(artifact.truth.ravel(), artifact.estimate.ravel(), strict=True)):
        width = max(len(own), len(found))
        made.append(_lines(f"text {index + 1}", str(own).ljust(width), str(found).ljust(width)))
    return tuple(made[:_MOST])


def _lines(caption: str, truth: Sequence[str], estimate: Sequence[str]) -> Lines:
    return Lines(caption, tuple((a, b, a == b) for a, b in zip(truth, estimate, strict=True)))


def _matrix(artifact: Artifact, caption: str) -> tuple[Pair, ...]:
    """Draw two matrices in grey levels; of a Gram matrix of images also its three leading eigenvectors, as images."""
    high = float(np.abs(artifact.truth).max()) or 1.0
    out = [Pair(caption, _png(artifact.truth, -high, high), _png(artifact.estimate, -high, high))]
    if artifact.image_shape is not None:
        own, found = (_directions(gram, 3) for gram in (artifact.truth, artifact.estimate))
        for index, (a, b) in enumerate(zip(own, found, strict=True)):
            sign = 1 if float(a @ b) >= 0 else -1  # a direction has no sign
            high = float(np.abs(a).max())
            pictures = (_png(_shaped(vector, artifact.image_shape), -high, high) for vector in (a, sign * b))
            out.append(Pair(f"direction {index + 1}", *pictures))
    return tuple(out)


def _directions(gram: Array, count: int) -> Array:
    """Return the leading eigenvectors, (count, features), each with the sign that makes its sum positive."""
    _, vectors = np.linalg.eigh((gram + gram.T) / 2)
    leading = vectors[:, ::-1][:, :count].T
    return leading * np.where(leading.sum(axis=1, keepdims=True) < 0, -1, 1)


def _shaped(vector: Array, shape: tuple[int, int] | None) -> Array:
    """Shape a row as an image if it is one; otherwise, like a personal model, as a strip."""
    if shape is not None and vector.size == shape[0] * shape[1]:
        return vector.reshape(shape)
    return vector.reshape(1, -1)


def _png(values: Array, low: float, high: float) -> str:
    """Draw values in grey levels, dark for `high`, each as a square of equal size without smoothing."""
    with needed_for("the audit's page"):
        from PIL import Image  # noqa: PLC0415 - an extra

    clipped = np.clip((np.nan_to_num(values) - low) / max(high - low, 1e-12), 0.0, 1.0)
    grey = (255 * (1 - clipped)).round().astype(np.uint8)
    scale = max(1, _SCALE * 8 // max(grey.shape))
    image = Image.fromarray(np.kron(grey, np.ones((scale, scale), np.uint8)))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
