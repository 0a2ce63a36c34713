"""What an algorithm may declare besides: that a computed contribution costs its client something, sent or not."""

from __future__ import annotations

from typing import Protocol, TypeVar, runtime_checkable

from securefed.algorithms.base import Public

Client = TypeVar("Client")


@runtime_checkable
class Spending(Protocol[Client]):
    """What an algorithm may declare besides: that a contribution costs its client something once it is computed.

    Roll-back does not undo that (privacy of records: what was computed may have been seen).
    """

    def spend(self, state: Client, computed: Client) -> Client:
        """`state` with the cost that `computed` has run up."""
        ...

    def noised_steps(self, state: Client) -> tuple[float, float, int]:
        """What the next contribution of the client with this `state` will run, whatever its data hold.

        Returns:
            The steps of DP-SGD as (noise multiplier, sampling rate, number of steps), for the client's ledger.
        """
        ...

    def assumptions(self, public: Public) -> tuple[str, ...]:
        """What it promises for that, and what is assumed: sentences for the plan."""
        ...
