"""Record the messages of a run in its transcript, and count their bytes.

The transcript is all that the server sees of a run; attacks and audits read it. The parts of the server that send and
receive call `note` for each message and add to `up` and `down` themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed._messages import Message, SentMessage, Transcript


@dataclass
class MessageLog:
    """Records the run's messages in its transcript, and counts their bytes.

    Attributes:
        transcript: the transcript.
        keep: whether it keeps the messages and sums; sizes are counted either way.
        up: bytes received so far, void exchanges included.
        down: bytes sent so far, void exchanges included.
    """

    transcript: Transcript
    keep: bool = True
    up: int = 0
    down: int = 0

    def note(self, message: Message, nbytes: int) -> None:
        """Keep one message that was sent or accepted."""
        if self.keep:
            self.transcript.sent.append(SentMessage(message, nbytes))
