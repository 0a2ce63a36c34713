"""The files of one party of `securefed party`: the exchange folder, the party's own state, and the terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securefed._persistence import container
from securefed._persistence.sealing import Seal
from securefed._tensors import Array
from securefed.errors import StorageError
from securefed.parties import SumTerms

# Kinds of state files: one of another kind is refused by name.
CLIENT_STATE: Final = "client's state of securefed party"
SERVER_STATE: Final = "server's state of securefed party"


@dataclass(frozen=True)
class Exchange:
    """The files of one party of a sum: the exchange folder, its state, and the terms.

    Attributes:
        terms: what all parties agreed on.
        folder: the exchange folder.
        state: the party's own file.
        seal: encrypts the state; `None` leaves it readable by its owner.
        ledger: of a client's data; by default beside its state.
    """

    terms: SumTerms
    folder: Path
    state: Path
    seal: Seal | None = None
    ledger: Path | None = None

    def load(self, kind: str) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Read the state; `None` where there is none yet."""
        if not self.state.exists():
            return None
        meta, tensors = container.load(self.state, kind, self.seal)
        if meta["terms"] != self.terms.digest.hex():
            raise StorageError(f"{self.state} belongs to other terms; give the terms file that it was made with")
        return meta, tensors

    def save(self, kind: str, meta: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        """Write the state."""
        container.save(self.state, kind, {"terms": self.terms.digest.hex(), **meta}, dict(tensors), self.seal)
