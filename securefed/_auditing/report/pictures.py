"""Draw secrets beside their reconstructions, as PNG images in data URIs."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image

from securefed._auditing.engine.results import Artifact
from securefed._auditing.report.report_words import secret_title
from securefed._tensors import Array

_SCALE = 12
"""Pixels of one entry of a picture that is 8 entries wide; wider pictures get fewer."""
_MOST = 8
"""Most rows of a client that are shown."""


@dataclass(frozen=True)
class Pair:
    """A picture of a secret (`truth`) and one of its reconstruction (`estimate`), as `data:` URIs, with a caption."""

    caption: str
    truth: str
    estimate: str


def pairs(artifact: Artifact, secret: str) -> list[Pair]:
    """Draw an artifact: rows as images, or the matrix of another secret and its leading eigenvectors."""
    if secret == "samples":
        return _samples(artifact)
    return _matrix(artifact, secret_title(secret))


def _samples(artifact: Artifact) -> list[Pair]:
    truth, estimate = artifact.truth[:_MOST], artifact.estimate[:_MOST]
    high = float(max(truth.max(), 1e-12))
    return [
        Pair(
            f"sample {index + 1}",
            _png(_shaped(own, artifact.image_shape), 0.0, high),
            _png(_shaped(found, artifact.image_shape), 0.0, high),
        )
        for index, (own, found) in enumerate(zip(truth, estimate, strict=True))
    ]


def _matrix(artifact: Artifact, caption: str) -> list[Pair]:
    high = float(np.abs(artifact.truth).max()) or 1.0
    out = [Pair(caption, _png(artifact.truth, -high, high), _png(artifact.estimate, -high, high))]
    if artifact.image_shape is not None:
        own, found = (_directions(gram, 3) for gram in (artifact.truth, artifact.estimate))
        for index, (a, b) in enumerate(zip(own, found, strict=True)):
            sign = 1 if float(a @ b) >= 0 else -1  # a direction has no sign
            high = float(np.abs(a).max())
            pictures = (_png(_shaped(vector, artifact.image_shape), -high, high) for vector in (a, sign * b))
            out.append(Pair(f"direction {index + 1}", *pictures))
    return out


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
    clipped = np.clip((np.nan_to_num(values) - low) / (high - low), 0.0, 1.0)
    grey = (255 * (1 - clipped)).round().astype(np.uint8)
    scale = max(1, _SCALE * 8 // max(grey.shape))
    image = Image.fromarray(np.kron(grey, np.ones((scale, scale), np.uint8)))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
