"""Record runs of other frameworks as transcripts, which attacks and audits read like runs of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import lazy_exports

if TYPE_CHECKING:
    from securefed.recording._flower import FlowerRecording
    from securefed.recording._recording import Recording

__all__ = [
    "FlowerRecording",
    "Recording",
]

EXPORTS = {
    "Recording": (
        "securefed.recording._recording",
        "Build a Transcript that every view and attack reads like one of our own runs.",
    ),
    "FlowerRecording": (
        "securefed.recording._flower",
        "Collect rounds of models; finish turns them into contributions as our algorithms send them.",
    ),
}
__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
