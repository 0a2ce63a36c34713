"""The files of one party of `securefed party`: the exchange folder, the party's own state, and the terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from securefed._persistence.frozen import frozen, thawed
from securefed._persistence.sealing import Seal
from securefed._persistence.state_file import StateFile
from securefed._tensors import Array, Tensors
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

    def file(self, kind: str) -> StateFile:
        """Return the file of this party's state, which `load` and `save` take."""
        return StateFile(self.state, kind, self.seal)

    def load(self, file: StateFile) -> tuple[dict[str, Any], dict[str, Array]] | None:
        """Read the state; `None` where there is none yet."""
        advice = "give the terms file that it was made with"
        return file.restore(lambda data: thawed(data, file.kind, self._owner, advice, older=(None,)))

    def save(self, file: StateFile, values: Mapping[str, Any], tensors: Tensors) -> None:
        """Write the state."""
        file.write(frozen(file.kind, self._owner, values, tensors))

    @property
    def _owner(self) -> dict[str, str]:
        return {"terms": self.terms.digest.hex()}
