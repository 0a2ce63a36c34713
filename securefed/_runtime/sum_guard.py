"""Ask the client's ledger before a contribution is let out: the one place at which every door does it.

`SumNode` calls the guard three times in an exchange (the making of one sum): when it accepts the request for the
upload, when it has made the upload, and before it helps to open the sum. All doors answer through a `SumNode`:
`Federation`, `SumClient`, statistics, `securefed party`, `secure_mod`, `client_app`. (Ranks of a masked all-reduce have
no server that names survivors: their sum is over all ranks or ends.)
"""

from __future__ import annotations

from dataclasses import dataclass

from securefed._runtime.ledger import Ledger
from securefed._runtime.sum_memory import SumRule
from securefed.defenses._aggregation import Release


@dataclass(frozen=True)
class SumGuard:
    """Checks the sums of one client against what its ledger remembers of the data.

    Attributes:
        ledger: remembers the sums.
        rule: which sums the terms let out.
        frozen: whether the memory is written with the client's state, because no one else keeps the ledger.
    """

    ledger: Ledger
    rule: SumRule
    frozen: bool = False

    def accept(self, source: bytes) -> None:
        """Raise `ClientDeclines` if the client sat out as often as it may."""
        base = self._base(source)
        self.ledger.change_sums(lambda sums: sums.checked_absences(base))

    def uploaded(self, source: bytes, *, absent: bool) -> None:
        """Count an exchange that the client sat out; the same is computed and written whether or not it did."""
        base = self._base(source)
        self.ledger.change_sums(lambda sums: (sums, sums.with_absence(base))[absent], always=True)

    def release(self, run: str, release: Release) -> None:
        """Check a sum and reserve it, in one write, before the client helps to open it.

        Raises:
            ContradictionError: the sum would subtract from others.
            ClientDeclines: the memory is full.
            StorageError: the ledger cannot be read or written.
        """
        self.ledger.change_sums(lambda sums: sums.admitted(run, release, self.rule))

    def _base(self, source: bytes) -> bytes:
        """Return the source under rule A; without a base all sums count together."""
        return source if self.rule.sources else b""
