"""The key holder: the one party that can decrypt; it decrypts one batch of ciphertexts per exchange.

It takes part in sums under Paillier (`paillier_protocol`) and CKKS (`lattice`), beside the clients and the server. In
an exchange (one sum) the server asks it for the public key, and later to decrypt the sum of the survivors' ciphertexts;
survivors are the clients that uploaded. The runtime makes it once for a run (`Aggregation.helper`). The private key
lives in it for the whole run, and in its file (`freeze`); no message holds it.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from securefed._messages import KEY_HOLDER, SERVER, Message, PartyId
from securefed._tensors import Array, Tensors, decode, encode
from securefed.defenses._homomorphic import cipher
from securefed.defenses._homomorphic.keys import PrivateKey, PublicKey, generate
from securefed.errors import BindingError, ContradictionError, MalformedError

KEY: Final = "key"
DECRYPT: Final = "decrypt"
"""The stages of its requests."""
CIPHERTEXTS, PLAINTEXTS, SURVIVORS = "ciphertexts", "plaintexts", "survivors"


class AbstractKeyHolder(ABC):
    """Answers `key` with a public key, and `decrypt` with the plaintexts of one batch of ciphertexts.

    In each exchange of a run it answers one `key` and then at most one `decrypt`. Exchanges must come in ascending
    order of their numbers; it refuses everything else. For each run it remembers the last exchange's number and stage.

    Args:
        threshold: fewest survivors for whom it decrypts, as the plan says; at least 2, as the sum of one is that
            client's contribution.

    Guarantee: at most one batch is decrypted for an exchange, and none for fewer than `threshold` CLAIMED survivors.
    Not promised: that the batch is a sum. A key holder cannot tell a sum from one client's ciphertexts; that the
    server sends the product of all is the honest-but-curious assumption. It sees the sum it decrypts.
    """

    party: PartyId = KEY_HOLDER

    def __init__(self, threshold: int) -> None:
        self._threshold = max(threshold, 2)
        self._asked: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()

    @abstractmethod
    def public_body(self) -> dict[str, Array]:
        """Return the public key as named arrays, as sent to the server and by it to clients."""

    @abstractmethod
    def secret_body(self) -> dict[str, Array]:
        """Return the whole key, secret half included."""

    def freeze(self) -> bytes:
        """Return the key and what was answered, for the holder's own next process; keep it confidential."""
        return encode(self.secret_body(), {"asked": {run: list(last) for run, last in self._asked.items()}})

    def _recall(self, header: Mapping[str, Any]) -> None:
        self._asked = {run: (int(number), str(stage)) for run, (number, stage) in header["asked"].items()}

    @abstractmethod
    def opened(self, ciphertexts: Array, survivors: int, sender: PartyId) -> dict[str, Array]:
        """Decrypt one batch.

        Args:
            ciphertexts: the ciphertexts as they travel, uint8 (count, bytes of a ciphertext).
            survivors: number of clients whose sum it is said to be.
            sender: the party that asks.

        Returns:
            The reply's field `PLAINTEXTS`.

        Raises:
            MalformedError: numbers that are no ciphertexts; it names `sender`.
        """

    def handle(self, request: Message) -> Tensors:
        """Answer a request of the server; return the reply's body. It checks everything before it decrypts.

        Raises:
            BindingError: the request is not from the server to the key holder.
            ContradictionError: an unknown stage, a repeated or stale exchange, `decrypt` without `key`, or too few
                survivors.
            MalformedError: fields missing or of a wrong type, or numbers that are no ciphertexts.
        """
        parties = (request.sender, request.receiver)
        if parties != (SERVER, self.party):
            raise BindingError(request.sender, f"sender and receiver are {parties}, not {(SERVER, self.party)}")
        with self._lock:
            if request.stage == KEY:
                return self._key(request)
            if request.stage == DECRYPT:
                return self._decrypt(request)
        raise ContradictionError(request.sender, f"the key holder knows no stage {request.stage!r}")

    def _key(self, request: Message) -> dict[str, Array]:
        """Answer the stage `key`, which opens an exchange with a number above all before it."""
        last, _ = self._asked.get(request.run, (-1, ""))
        if request.round <= last:
            raise ContradictionError(request.sender, f"exchange {request.round} was opened before: a replay")
        if request.body:
            raise MalformedError(request.sender, f"a request for the key is empty, not {sorted(request.body)}")
        self._asked[request.run] = (request.round, KEY)
        return self.public_body()

    def _decrypt(self, request: Message) -> dict[str, Array]:
        """Answer the stage `decrypt`, once, for the exchange that was opened last."""
        asked = self._asked.get(request.run)
        if asked == (request.round, DECRYPT):
            raise ContradictionError(request.sender, f"exchange {request.round} was decrypted before")
        if asked != (request.round, KEY):
            raise ContradictionError(request.sender, f"exchange {request.round} is not the one that asked for the key")
        survivors = self._survivors(request)
        opened = self.opened(request.body[CIPHERTEXTS], survivors, request.sender)
        self._asked[request.run] = (request.round, DECRYPT)
        return opened

    def _survivors(self, request: Message) -> int:
        """Check the request's fields, and return the number of survivors that it claims."""
        sender, body = request.sender, request.body
        if set(body) != {CIPHERTEXTS, SURVIVORS}:
            raise MalformedError(sender, f"a request to decrypt holds ciphertexts and survivors, not {sorted(body)}")
        survivors = body[SURVIVORS]
        if survivors.dtype != np.int64 or survivors.shape != ():
            raise MalformedError(sender, "the number of survivors is no int64 scalar")
        if int(survivors) < self._threshold:
            raise ContradictionError(
                sender,
                f"decryption for {int(survivors)} survivors, the key holder needs {self._threshold}, as the plan does; "
                "a round of fewer is void",
            )
        return int(survivors)


class KeyHolder(AbstractKeyHolder):
    """Holds a Paillier key and decrypts sums.

    Args:
        private: its key.
        threshold: fewest survivors for which it decrypts.
    """

    def __init__(self, private: PrivateKey, *, threshold: int = 2) -> None:
        super().__init__(threshold)
        self._private = private

    @classmethod
    def generate(cls, bits: int, *, threshold: int = 2) -> KeyHolder:
        """Make a key holder with a fresh key of `bits` bits."""
        return cls(generate(bits), threshold=threshold)

    @classmethod
    def thaw(cls, frozen: bytes, *, threshold: int = 2) -> KeyHolder:
        """Restore the key holder whose `freeze` returned these bytes; `DataError` for other bytes."""
        secrets, header = decode(frozen)
        holder = cls(PrivateKey.from_body(secrets), threshold=threshold)
        holder._recall(header)
        return holder

    def requiring(self, threshold: int) -> KeyHolder:
        """Make a holder of the same key for other runs, with its own threshold and nothing answered yet.

        Audits use it, whose many runs would otherwise each make a key.
        """
        return type(self)(self._private, threshold=threshold)

    @property
    def public(self) -> PublicKey:
        """The public key."""
        return self._private.public

    def public_body(self) -> dict[str, Array]:
        """Return the public key, as sent to clients."""
        return self.public.to_body()

    def secret_body(self) -> dict[str, Array]:
        """Return the whole key, secret half included."""
        return self._private.to_body()

    def opened(self, ciphertexts: Array, survivors: int, sender: PartyId) -> dict[str, Array]:
        """Decrypt one batch."""
        numbers = cipher.from_wire(ciphertexts, None, self.public.ciphertext_bytes, sender)
        cipher.check(self.public, numbers, sender)
        return {PLAINTEXTS: cipher.to_wire(cipher.decrypt(self._private, numbers), self.public.plaintext_bytes)}

    def decrypt_upload(self, ciphertexts: cipher.Integers) -> list[int]:
        """Decrypt any ciphertexts, without the protocol's checks; only the audit's collusion view calls it."""
        return cipher.decrypt(self._private, ciphertexts)
