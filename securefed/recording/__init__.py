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
        "Build a Transcript that views and attacks read like that of a run of this package.",
    ),
    "FlowerRecording": (
        "securefed.recording._flower",
        "Collect the models of each round; finish turns them into contributions like those of our algorithms.",
    ),
}
__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
