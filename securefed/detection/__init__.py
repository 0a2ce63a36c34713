"""Anomaly detection by the reconstruction error of a model."""

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
