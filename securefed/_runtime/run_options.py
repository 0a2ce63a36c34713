"""Options of a run that the server decides alone, shared by `Federation`, `Server` and `flower.serve`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from securefed._hyperparameters import check_integer, check_limit
from securefed._persistence.sealing import Seal
from securefed._runtime.cohorts import Schedule
from securefed._runtime.exchange_header import MAX_VOID
from securefed.defenses._differential_privacy import Budget


@dataclass(frozen=True)
class RunOptions:
    """Options with which the server runs the rounds: cohorts, checkpoint, transcript, retries and budget.

    Attributes:
        schedule: function from a round's number to the ids of its clients, instead of a random cohort.
        checkpoint: file that holds the run's state. If it exists, the run resumes from it.
        checkpoint_every: rounds between two writes of the checkpoint; 10 in a simulation and 1 over Flower by default.
        seal: encrypts the checkpoint; without one it is in the clear, readable by its owner only.
        keep_transcript: whether the transcript keeps all messages. Attacks and audits need it; it grows with rounds x
            clients x tensors. By default a simulation keeps it, and a run over Flower does not.
        max_void: attempts at one sum before the run stops with `RoundVoid`; an attempt is void where too few clients
            reply, or one of them sat out.
        timeout: seconds that the server waits for the replies of one stage; clients that reply later count as dropped
            out. A simulation in one process never waits.
        budget: privacy budget of the defence's noise (`CentralGaussian.budget`). The server charges it before every
            exchange, and void exchanges count.
        prepare: whether simulated clients precompute their next upload between two rounds. With all clients in one
            process this saves nothing; it models clients that use their waiting time.

    Raises:
        ConfigError: a number outside its domain.
    """

    schedule: Schedule | None = None
    checkpoint: Path | str | None = None
    checkpoint_every: int | None = None
    seal: Seal | None = None
    keep_transcript: bool | None = None
    max_void: int = MAX_VOID
    timeout: float = 600.0
    budget: Budget | None = None
    prepare: bool = False

    def __post_init__(self) -> None:
        if self.checkpoint_every is not None:
            check_integer("checkpoint_every", self.checkpoint_every, 1)
        check_integer("max_void", self.max_void, 1)
        check_limit("timeout", self.timeout)

    def with_defaults(self, *, checkpoint_every: int, keep_transcript: bool) -> RunOptions:
        """Fill in the options that were left open.

        Args:
            checkpoint_every: rounds between two writes, unless the caller chose another number.
            keep_transcript: whether to keep the transcript, unless the caller chose.
        """
        every = checkpoint_every if self.checkpoint_every is None else self.checkpoint_every
        keep = keep_transcript if self.keep_transcript is None else self.keep_transcript
        return replace(self, checkpoint_every=every, keep_transcript=keep)
