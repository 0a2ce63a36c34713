"""Encode refusals as messages: the error's name, and its text if that holds public facts only.

A client that does not answer a request sends a refusal instead (`refusal_body`); the server decodes it into an error
(`read_refusal`), records it, and counts the client as dropped out.

Two refusals depend on the client's data: `RangeRefused` (a value is too large for the planned encoding) and
`DivergenceError` (its training diverged). Only clients that upload in the clear send them; under other defences such a
client uploads random numbers or zeros instead. The first ends the attempt to make a sum, and the server tries again
with doubled bounds; the second ends the run.
"""

from __future__ import annotations

import logging
from typing import Final

from securefed._messages import SERVER, Message
from securefed._persistence.packing import from_bytes
from securefed._runtime.ledger import Ledger
from securefed._runtime.privacy_cost import PrivacyCost
from securefed._tensors import Array
from securefed.errors import (
    BudgetSpent,
    ContradictionError,
    DivergenceError,
    MalformedError,
    MessageRefused,
    ProtocolError,
    RangeRefused,
    SecureFedError,
    StorageError,
)

_LOG = logging.getLogger("securefed.client")
_LONGEST: Final = 1000
"""Letters of a client's text that are kept."""


def refusal_body(error: SecureFedError) -> dict[str, Array]:
    """Encode a refusal: the error's name and text.

    The text is sent only for errors of the protocol, never for errors of data, files or configuration. A `RangeRefused`
    is sent without it, since its text tells how large the client's values are.
    """
    text = str(error) if isinstance(error, ProtocolError) and not isinstance(error, RangeRefused) else ""
    return {"name": from_bytes(type(error).__name__.encode()), "text": from_bytes(text.encode())}


def read_refusal(message: Message) -> SecureFedError:
    """Decode a refusal into the error that the server raises or records.

    Returns:
        `RangeRefused` or `DivergenceError`, which end the exchange in the clear; `MalformedError` for a refusal that
        cannot be read; `MessageRefused` with the client's name and text for all others. They are a stranger's words,
        which logs and terminals show: letters that do not print, such as line ends, are written as escapes, and what
        is longer than 1000 letters is cut.
    """
    try:
        name, text = (message.body[key].tobytes().decode() for key in ("name", "text"))
    except (KeyError, UnicodeDecodeError) as error:
        return MalformedError(message.sender, f"its refusal has no readable name or text: {error!r}")
    if name == RangeRefused.__name__:
        return RangeRefused(f"client {message.sender} has values beyond the planned range")
    if name == DivergenceError.__name__:
        return DivergenceError(
            f"client {message.sender}: its local steps diverged to values that are not finite; lower the step size"
        )
    return MessageRefused(message.sender, f"it refused the server's message: {_shown(name)}: {_shown(text)}")


def _shown(text: str) -> str:
    """Return a stranger's text in one line, without control codes, and not longer than `_LONGEST` letters."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[:_LONGEST])


def charge(ledger: Ledger, run: str, exchange: int, cost: PrivacyCost) -> None:
    """Charge an exchange that a server asks for. The server reads these errors, so they hold no totals and no path.

    Raises:
        BudgetSpent: the ledger's limits allow no further exchange.
        ContradictionError: it was charged before, so it was answered before.
        StorageError: the ledger cannot be read or written.
    """
    try:
        if not ledger.charge(run, exchange, cost):
            raise ContradictionError(
                SERVER, f"this client's ledger records that it answered exchange {exchange} before"
            )
    except BudgetSpent as error:
        _LOG.warning("exchange %d is not answered: %s", exchange, error)
        raise BudgetSpent("this client's ledger allows no further exchange; the client's log has the details") from None
    except StorageError as error:
        _LOG.error("exchange %d is not answered: %s", exchange, error)
        raise
