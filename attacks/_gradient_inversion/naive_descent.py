"""Recover rows by plain gradient descent on the distance between two gradients, as in the papers.

With g the observed mean gradient of logistic or softmax regression and g(x', y') the gradient of guessed rows x' and
soft labels y' = softmax(scores), it descends ||g(x', y') - g||^2 in the rows and the scores. Both gradients are taken
at the broadcast model.

Source: Zhu et al., Deep Leakage from Gradients, (3)-(4); LoSAC (Liu et al.), sec. 5.4 and Fig. 6, with its settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from securefed._tensors import Array
from securefed.attacks._base import Reconstruction, Target, View
from securefed.attacks._gradient_inversion.gradient_rounds import (
    GradientEstimate,
    estimate_gradients,
    method_of,
    read_rounds,
    why_not_invertible,
)
from securefed.attacks._gradient_inversion.linear_model import LinearModel


@dataclass(frozen=True)
class NaiveDescent:
    """Minimise ||g(x', y') - g||^2 over rows x' and labels y' by gradient descent, with one round's update as g.

    It moves rows by a few percent only, whether a method is protected or not, so that its failure is no evidence of
    protection; it is included to show this. Rows start uniform in [0, feature_bound], label scores (the logits of y')
    normal.

    Attributes:
        steps: number of gradient steps.
        step_size: their size.
        round: the round to attack, counted from 1; the last one if the view holds fewer.
    """

    steps: int = 100
    step_size: float = 1e-3
    round: int = 5

    name: ClassVar[str] = "gradient_inversion/naive"
    secret: ClassVar[str] = "samples"

    def applies(self, target: Target, observed: View) -> str | None:
        """Return why the attack does not apply, or `None` if it does."""
        return why_not_invertible(target, observed)

    def run(self, observed: View, target: Target, rng: np.random.Generator) -> Reconstruction:
        """Recover the rows of data.

        Raises:
            TranscriptError: the attack does not apply to this view.
        """
        rounds = read_rounds(observed, target)
        model = LinearModel.of(target)
        assert model is not None  # `read_rounds` refuses other models
        index = min(self.round, len(rounds)) - 1
        members = rounds[index].members
        count = sum(target.public.rows[client] for client in members)
        # earlier rounds too, since a method may send its gradient relative to what it remembers of them
        estimate = estimate_gradients(rounds[: index + 1], method_of(target), target.public, model)[index]
        mean = GradientEstimate(estimate.point, estimate.gradient / count)
        samples = rng.uniform(0.0, target.public.feature_bound, (count, target.public.features))
        scores = rng.normal(size=(count, model.outputs))
        with np.errstate(all="ignore"):
            for _ in range(self.steps):
                _, by_sample, by_score = _distance(model, mean, samples, scores)
                samples, scores = samples - self.step_size * by_sample, scores - self.step_size * by_score
            distance = _distance(model, mean, samples, scores)[0]
        norm = float(np.linalg.norm(mean.gradient))
        labels = (scores[:, 0] > 0).astype(np.int64) if model.logistic else scores.argmax(axis=1)
        residual = np.sqrt(distance) / norm if norm > 0 else float("nan")
        bound = target.public.feature_bound
        samples = np.clip(np.nan_to_num(samples, nan=0.0), -bound, bound)  # the public range of features
        return Reconstruction(
            "samples",
            samples,
            labels=labels,
            residual=float(residual),
            unknowns=samples.size,
            members=frozenset(members),
            diagnostics={"round": index + 1},
        )


def _distance(
    model: LinearModel, estimate: GradientEstimate, samples: Array, scores: Array
) -> tuple[float, Array, Array]:
    """Return ||g' - g||^2 and its derivatives by the rows and by the label scores.

    With p the predicted and q the guessed probabilities of B rows X, the differences of weights and bias are
    D = (p - q)^T X / B - g_W and d = mean(p - q) - g_b. By p - q the derivative is (2 / B) (X D^T + d); by the rows
    directly (2 / B) (p - q) D, and through the logits of p.
    """
    count = len(samples)
    p, q = model.probabilities(model.logits(estimate.point, samples)), model.probabilities(scores)
    slope = p - q
    weight = slope.T @ samples / count - model.weight(estimate.gradient)
    offset = slope.mean(axis=0) - np.asarray(model.offset(estimate.gradient)) if model.bias else np.zeros(model.outputs)
    by_slope = (2.0 / count) * (samples @ weight.T + offset)
    by_logit = _derivative_by_logits(model, p, by_slope)
    by_sample = (2.0 / count) * slope @ weight + by_logit @ model.weight(estimate.point)
    return float(np.sum(weight**2) + np.sum(offset**2)), by_sample, -_derivative_by_logits(model, q, by_slope)


def _derivative_by_logits(model: LinearModel, p: Array, by_p: Array) -> Array:
    """Turn derivatives by the probabilities p (rows, outputs) into derivatives by their logits."""
    if model.logistic:
        return np.asarray(p * (1.0 - p) * by_p)
    return np.asarray(p * (by_p - np.sum(p * by_p, axis=1, keepdims=True)))
