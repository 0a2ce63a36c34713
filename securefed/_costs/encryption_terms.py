"""The terms of the cost of an exchange under Paillier encryption, as counts that its plan fixes: mostly ciphertexts.

In an exchange (one sum) each client packs its contribution into plaintexts and encrypts them, the server multiplies the
clients' ciphertexts, which adds what they encrypt, and the key holder (a helper beside the server) decrypts the result.

Each quantity, such as the server's CPU seconds, is predicted (`prediction`) as a sum of terms: a count times a constant
that was fitted to measured exchanges. `TERMS` has the counts as functions of `EncryptionCounts`, by quantity and name
of the term; `figures.json` has the constants, one set for each length of the modulus and each way in which clients draw
the random factor of a ciphertext (`encryption_randomness`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from securefed.defenses._base import Plan
from securefed.defenses._homomorphic.packing import Packing
from securefed.errors import PlanError


@dataclass(frozen=True)
class EncryptionCounts:
    """The counts that the cost of one exchange depends on.

    Attributes:
        clients: number of clients.
        lost: number of clients that do not upload.
        ciphertexts: number of ciphertexts of one upload.
        key: bytes of the public key as clients receive it.
    """

    clients: int
    lost: int
    ciphertexts: int
    key: int

    @classmethod
    def of(cls, plan: Plan, bits: int, lost: int = 0) -> EncryptionCounts:
        """Count for an exchange under `plan` and a modulus of `bits` bits.

        Args:
            plan: the plan of the exchange.
            bits: length of the modulus.
            lost: number of clients that do not upload.

        Raises:
            PlanError: the plan's tensors do not fit plaintexts, or more clients are lost than it survives.
        """
        if not 0 <= lost <= plan.clients - plan.threshold:
            raise PlanError(f"the plan survives 0 to {plan.clients - plan.threshold} lost clients, not {lost}")
        key = bits // 4  # bytes: the modulus n, and the number h whose powers give random factors, each of bits / 8
        return cls(plan.clients, lost, Packing.of(plan, bits).plaintexts, key)

    @property
    def added(self) -> int:
        """Number of ciphertexts that the server checks and multiplies."""
        return (self.clients - self.lost) * self.ciphertexts


Term = Callable[[EncryptionCounts], float]
TERMS: Final[Mapping[str, Mapping[str, Term]]] = {
    "client_cpu": {"exchange": lambda s: 1, "ciphertext": lambda s: s.ciphertexts},
    "server_cpu": {"exchange": lambda s: 1, "client": lambda s: s.clients, "uploaded ciphertext": lambda s: s.added},
    "helper_cpu": {"exchange": lambda s: 1, "ciphertext": lambda s: s.ciphertexts},
    "received": {"byte of the key": lambda s: s.key},
}
"""By quantity, the terms of its model, each a count."""
