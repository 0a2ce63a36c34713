"""Choose a threshold on anomaly scores from the ROC curve, and compute seven metrics.

Source: Nguyen et al., Federated PCA on Grassmann Manifold for IoT Anomaly Detection, section V.

A row's score is its reconstruction error under a model, such as a PCA basis that a federation has trained: a high score
marks an anomaly. The threshold needs labelled rows; those of a validation set make honest metrics on test rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from securefed._extras import needed_for
from securefed._public import require
from securefed._tensors import Array
from securefed.detection._scores import Reconstruct, reconstruction_errors
from securefed.errors import DataError

ThresholdRule = Literal["rates", "accuracy"]


@dataclass(frozen=True)
class DetectionMetrics:
    """Measures of how well anomaly scores separate anomalies, the positive class, from normal rows.

    Attributes:
        threshold: rows scored at or above it are flagged.
        accuracy: share of rows classified correctly.
        precision: share of anomalies among the flagged rows; 0 where none is flagged.
        recall: share of the anomalies that are flagged.
        f1: harmonic mean of the two; 0 where both are.
        false_negative_rate: share of the anomalies that are missed, 1 - recall.
        auc_roc: area under the ROC curve: the chance that an anomaly scores above a normal row, ties counted half.
        average_precision: the average precision of the precision-recall curve.

    All but `threshold` lie in [0, 1]. The last two do not depend on the threshold.
    """

    threshold: float
    accuracy: float
    precision: float
    recall: float
    f1: float
    false_negative_rate: float
    auc_roc: float
    average_precision: float


@dataclass(frozen=True)
class AnomalyDetector:
    """Flag rows that a model reconstructs badly.

    Attributes:
        reconstruct: the model, a function from rows (rows, features) to their reconstructions of the same shape.
        threshold: rows with an error at or above it are flagged.
    """

    reconstruct: Reconstruct
    threshold: float

    @classmethod
    def fit(
        cls, reconstruct: Reconstruct, x: Array, anomalous: Array, rule: ThresholdRule = "rates"
    ) -> AnomalyDetector:
        """Make a detector with the threshold from the ROC curve of labelled rows.

        Args:
            reconstruct: the model.
            x: (rows, features).
            anomalous: (rows,) bool, or 0 and 1.
            rule: what the threshold maximises (see `roc_threshold`).
        """
        return cls(reconstruct, roc_threshold(reconstruction_errors(reconstruct, x), anomalous, rule))

    def flags(self, x: Array) -> Array:
        """Return (rows,) bool: which rows are anomalous."""
        return reconstruction_errors(self.reconstruct, x) >= self.threshold

    def measure(self, x: Array, anomalous: Array) -> DetectionMetrics:
        """Compute the metrics on labelled rows, at this threshold."""
        return metrics(reconstruction_errors(self.reconstruct, x), anomalous, self.threshold)


def roc_threshold(scores: Array, anomalous: Array, rule: ThresholdRule = "rates") -> float:
    """Return the best threshold on the ROC curve; of several best ones the highest.

    It is infinite where no threshold is better than flagging nothing (constant scores, or anomalies that all score
    below normal rows). Metrics on the same rows, as in the paper, are optimistic.

    Args:
        scores: (rows,) finite.
        anomalous: (rows,) bool, or 0 and 1.
        rule: what the threshold maximises: `rates`, true minus false positive rate, as in the paper; `accuracy`, the
            correctly classified rows, as in its authors' code: where most rows are anomalies it flags nearly all.

    Raises:
        DataError: scores and labels do not fit, or the rows are all of one class.
        ConfigError: an unknown rule.
    """
    with needed_for("the metrics of detection"):
        from sklearn.metrics import roc_curve  # noqa: PLC0415 - a second of import that most uses do not need

    require(rule in ("rates", "accuracy"), f"rule must be 'rates' or 'accuracy'; got {rule!r}")
    scores, labels = _checked(scores, anomalous)
    false_positive, true_positive, thresholds = roc_curve(labels, scores)
    anomalies, normal = int(np.sum(labels)), int(np.sum(~labels))
    # In whole numbers, as equals would differ by rounding: `accuracy` maximises hits - false alarms, `rates` maximises
    # hits / anomalies - false alarms / normal, here times anomalies * normal.
    hits, false_alarms = np.rint(anomalies * true_positive), np.rint(normal * false_positive)
    one, other = (1, 1) if rule == "accuracy" else (normal, anomalies)
    return float(thresholds[np.argmax(one * hits - other * false_alarms)])


def metrics(scores: Array, anomalous: Array, threshold: float | None = None) -> DetectionMetrics:
    """Compute the seven metrics at `threshold`, or at the one from the ROC curve of these very rows.

    Args:
        scores: (rows,) finite; higher is more anomalous.
        anomalous: (rows,) bool, or 0 and 1.
        threshold: rows scored at or above it are flagged.

    Raises:
        DataError: as in `roc_threshold`.
    """
    with needed_for("the metrics of detection"):
        from sklearn.metrics import average_precision_score, roc_auc_score  # noqa: PLC0415

    scores, labels = _checked(scores, anomalous)
    threshold = roc_threshold(scores, labels) if threshold is None else threshold
    flagged = scores >= threshold
    hits, false_alarms = int(np.sum(flagged & labels)), int(np.sum(flagged & ~labels))
    recall = hits / int(np.sum(labels))
    precision = hits / (hits + false_alarms) if hits else 0.0
    return DetectionMetrics(
        threshold=float(threshold),
        accuracy=float(np.mean(flagged == labels)),
        precision=precision,
        recall=recall,
        f1=2 * precision * recall / (precision + recall) if hits else 0.0,
        false_negative_rate=1 - recall,
        auc_roc=float(roc_auc_score(labels, scores)),
        average_precision=float(average_precision_score(labels, scores)),
    )


def _checked(scores: Array, anomalous: Array) -> tuple[Array, Array]:
    """Return scores in float64 and labels as bool; raise `DataError` for any that do not fit."""
    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(anomalous)
    if scores.ndim != 1 or scores.shape != labels.shape or not len(scores):
        raise DataError(
            f"scores and labels must be (rows,) arrays of one length; got shapes {scores.shape} and {labels.shape}"
        )
    if not np.isfinite(scores).all():
        raise DataError(f"{np.sum(~np.isfinite(scores))} scores are NaN or infinite; did the model diverge?")
    if not np.isin(labels, (0, 1)).all():
        raise DataError(f"labels are 0 (normal) and 1 (anomalous), not {np.unique(labels)[:5]}; encode attacks as 1")
    labels = labels.astype(bool)
    if labels.all() or not labels.any():
        kind = "anomalous" if labels.all() else "normal"
        raise DataError(f"all {len(labels)} rows are {kind}: a ROC curve needs rows of both kinds")
    return scores, labels
