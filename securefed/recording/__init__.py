"""Record runs of other frameworks as transcripts, which attacks and audits read like runs of our own.

A transcript holds what the server sent and received in each round, and the public facts of the run. `Recording` takes
arrays from any loop, `FlowerRecording` Flower's messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed.recording._flower import FlowerRecording
    from securefed.recording._recording import Recording

__all__ = ["FlowerRecording", "Recording"]

EXPORTS = {
    "securefed.recording._recording": "Recording",
    "securefed.recording._flower": "FlowerRecording",
}
export_lazily(__name__, EXPORTS)
