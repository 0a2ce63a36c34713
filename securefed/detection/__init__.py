"""Anomaly detection by the reconstruction error of a model.

    detector = AnomalyDetector.fit(projection(basis), x, anomalous)      # a PCA basis that a federation has trained
    detector.flags(new_rows)

A model that was trained on normal rows reconstructs them well and other rows badly.
"""

from __future__ import annotations

from securefed.detection._detector import AnomalyDetector, DetectionMetrics, ThresholdRule, metrics, roc_threshold
from securefed.detection._scores import Reconstruct, projection, reconstruction_errors

__all__ = [
    "AnomalyDetector",
    "DetectionMetrics",
    "Reconstruct",
    "ThresholdRule",
    "metrics",
    "projection",
    "reconstruction_errors",
    "roc_threshold",
]
