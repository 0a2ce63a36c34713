"""The key holder of a sum: the party that opens encrypted sums, where the defence has one.

Under Paillier or CKKS encryption clients send ciphertexts to the server, which adds them without a key and asks the key
holder to decrypt the sum. Like a client, the key holder answers the server's requests with bytes.
"""

from __future__ import annotations

from typing import Final

from securefed._messages import SERVER, Message
from securefed._persistence.frozen import complete, frozen, thawed
from securefed._persistence.packing import from_bytes
from securefed._transports import HelperNode
from securefed.errors import BindingError, ConfigError
from securefed.parties._envelope import header, unwrap
from securefed.parties._terms import SumTerms

_PARTY: Final = "a key holder"


class SumHelper:
    """The key holder of Paillier and CKKS. It must not collude with the server, which holds the uploads.

    Args:
        terms: what all parties agreed on.
        frozen: what `freeze` returned, to continue in another process.

    Raises:
        ConfigError: the defence needs no key holder.
        StorageError: `frozen` is no state of a key holder.
    """

    def __init__(self, terms: SumTerms, frozen: bytes | None = None) -> None:
        self.terms, self.run, self._owner = terms, "", {"terms": terms.digest.hex()}
        state = None
        if frozen is not None:
            advice = "give the terms that it was written with"
            values, tensors = thawed(frozen, _PARTY, self._owner, advice, older=(None,))
            with complete(_PARTY):
                state, self.run = tensors["helper"].tobytes(), str(values["run"])
        helper = terms.defense.aggregation.helper(terms.cohort, state)
        if helper is None:
            raise ConfigError(f"{terms.defense.name} has no key holder; only Paillier and CKKS need a SumHelper")
        self._helper = helper
        self.party = helper.party
        """The number under which the server addresses it."""

    def receive(self, request: bytes) -> bytes:
        """Answer one request of the server.

        Raises:
            MessageRefused: a request that it must not answer, or of another run than its first one.
        """
        data = unwrap(self.terms.digest, request, SERVER, limits=self.terms.core.limits)
        message = Message.decode(data, claimed_sender=SERVER)
        if not message.run:
            raise BindingError(SERVER, "the request names no run")
        if self.run not in ("", message.run):
            raise BindingError(
                SERVER, f"this key holder belongs to run {self.run}, and the request is of {message.run}"
            )
        reply = HelperNode(self._helper, message.run).handle(message)
        self.run = message.run
        return reply.encode(before=header(self.terms.digest))

    def freeze(self) -> bytes:
        """Return the whole state, private key included. Keep it where only the key holder can read it."""
        return frozen(_PARTY, self._owner, {"run": self.run}, {"helper": from_bytes(self._helper.freeze())})
