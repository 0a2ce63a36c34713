"""Keep the state of a `SecureStrategy`'s sums on disk, so that rounds and epsilon count over restarts.

A `SecureStrategy` makes one sum in each round's training and one in its evaluation, by a `SumServer` for each of these
two phases. The folder holds, for each phase, the server's state and the terms of the sum.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from securefed._persistence.sealing import Seal, write_atomically
from securefed.errors import ConfigError, StorageError
from securefed.parties._server import SumServer
from securefed.parties._terms import SumTerms

_LOG = logging.getLogger("securefed.flower")


def kept_sum(folder: Path, phase: str, terms: SumTerms, seal: Seal | None) -> SumServer:
    """Return the sum of a phase, with the state that its file in the folder holds.

    The exchanges and the epsilon of earlier runs count. A round that was open is given up, and keys that were prepared
    for the next round are discarded: in a new Flower run the SuperNodes have lost the state that they need to answer.
    The terms are those of the first run; the number of SuperNodes that are connected may differ.

    Args:
        folder: the folder.
        phase: `train` or `evaluate`, which names the files.
        terms: the terms as they would be made now.
        seal: encrypts the state. An anchor is a small file that remembers the newest version, so that an older copy is
            refused; each phase's file gets one of its own, `ANCHOR-FILENAME`, beside the seal's anchor.

    Raises:
        ConfigError: the folder's terms differ from these in more than the numbers of clients.
        StorageError: a file cannot be read or written.
    """
    place, agreed = folder / f"{phase}.state", folder / f"{phase}.terms.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if agreed.exists():
            terms = _same(SumTerms.from_bytes(agreed.read_bytes()), terms, folder)
            if not place.exists():
                raise StorageError(
                    f"{place} is gone, and with it the count of exchanges and epsilon; restore it, or give another "
                    "folder, whose epsilon then begins at 0"
                )
        elif place.exists():
            raise StorageError(f"{agreed} is gone, and {place} belongs to it; restore it, or give another folder")
        else:
            write_atomically(agreed, terms.to_bytes(), "terms of a sum")
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"the folder {folder} of the server cannot be used: {error}") from error
    server = SumServer(terms, file=place, seal=None if seal is None else seal.for_file(place.name))
    if server.outgoing:
        server.abandon()
    server.discard_prepared()
    if server.round:
        _LOG.info("%s: goes on after %d rounds, with epsilon %.4g", phase, server.round, server.epsilon)
    return server


def _same(kept: SumTerms, wanted: SumTerms, folder: Path) -> SumTerms:
    """Return the kept terms if they differ from the wanted ones in the numbers of clients at most."""
    if replace(wanted, clients=kept.clients, cohort=kept.cohort).digest != kept.digest:
        raise ConfigError(
            f"{folder} holds the state of a run under other terms (model, metrics, bounds, defence or budget); give "
            "SecureStrategy the same settings, or another folder, whose epsilon then begins at 0"
        )
    return kept
