"""Decide at a site which terms of a server its SuperNode accepts, by rules that the site's operator writes.

The server of a `SecureStrategy` proposes the terms of a sum: its tensors, clients, defence and threshold. `secure_mod`
at the site's SuperNode checks them against these rules with every request, before its app sees anything.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

from flwr.app import Context

from securefed._hyperparameters import check_positive
from securefed._persistence.sealing import Seal
from securefed._runtime.ledger import Ledger
from securefed._runtime.ledger_entries import Limits
from securefed.defenses._aggregation_facts import identities_in
from securefed.errors import ConfigError, StorageError
from securefed.parties._guards import check_seal, open_beside
from securefed.parties._terms import SumTerms

NODE_CONFIG: Final = "securefed"
"""Key of the SuperNode's `--node-config` that names the site's file."""
_LEAST: Final = 2
"""The smallest number of clients whose sum is not one client's own update. It is no larger, since secure aggregation
over three clients, the fewest that it accepts, opens sums over two."""


@dataclass(frozen=True)
class SitePolicy:
    """Rules of one site, and what it keeps for itself. A SuperNode refuses terms that they do not allow.

    Attributes:
        least: smallest number of clients that a sum may be opened over (the plan's threshold).
        defense: name of the aggregation that the terms must have, such as "secure_aggregation" ("plain" allows sums in
            the clear); by default any that hides single uploads from the server.
        terms: digests in hexadecimal of the only terms that are allowed (`SumTerms.digest`); any if empty.
        largest_weight: largest weight of this site's updates, such as its number of examples, which the server may
            read; terms that allow less are refused. By default a client with a larger weight than the terms allow sits
            out of each round.
        party: number of this client; by default the server gives one. Needed with identities.
        identity: this client's private identity, 32 bytes (`new_identity`).
        identities: the public identities of all clients; the terms must pin exactly these.
        ledger: counts the use of this site's data over all runs, refuses exchanges beyond the site's limits, and
            remembers over which parties the data were summed. Without one, a folder holds such a memory
            (`client-0.ledger`).
        folder: where the state of each sum is kept, so that a SuperNode that was killed answers nothing twice. Without
            one, the state lies in Flower's context, and without a ledger too, sums of two runs may be subtracted.
        seal: encrypts the files in the folder, which hold secrets. If it has an anchor (a small file that remembers the
            newest version of a sealed file, so that an older copy is refused), each file gets its own beside that,
            called `ANCHOR-FILENAME`.
        dp_sgd: whether this site sends only models that DP-SGD trained, and its ledger counts (`Ledger.reserve` and
            `record`, in the app): such an exchange costs no more epsilon. The app's reply holds the training's number,
            in a record `"dp-sgd": ConfigRecord({"training": training.number})`; one without it, or whose steps the
            ledger does not count within its limits, is not sent. The ledger cannot see which training made a model: the
            app has to name the right one. Terms that sum anything else, such as metrics or evaluations, are refused.
        announce_errors: whether the server reads that the app failed, so that the round goes on without this client,
            and in what the structure of its reply differs from the terms (names, shapes, kinds of metrics). By default
            the client sits out: the round is repeated, and the server does not learn because of which client.

    Raises:
        ConfigError: a rule of another type, or identities without this client's own, or the reverse.
    """

    least: int = _LEAST
    defense: str | None = None
    terms: tuple[str, ...] = ()
    largest_weight: float | None = None
    party: int | None = None
    identity: bytes | None = None
    identities: Mapping[int, bytes] | None = None
    ledger: Ledger | None = None
    folder: Path | str | None = None
    seal: Seal | None = None
    dp_sgd: bool = False
    announce_errors: bool = False

    def __post_init__(self) -> None:
        number = type(self.party) is int and self.party >= 0
        for name, allowed, wanted in (
            ("least", type(self.least) is int and self.least >= 1, "a whole number of clients from 1"),
            ("defense", isinstance(self.defense, str | None), "the name of an aggregation"),
            ("terms", _is_list_of_texts(self.terms), "a list of digests in hexadecimal"),
            ("party", self.party is None or number, "a client's number from 0"),
            ("announce_errors", type(self.announce_errors) is bool, "true or false"),
            ("dp_sgd", type(self.dp_sgd) is bool, "true or false"),
        ):
            if not allowed:
                raise ConfigError(f"{name} must be {wanted}; got {getattr(self, name)!r}")
        if self.largest_weight is not None:
            check_positive("largest_weight", self.largest_weight)
        if (self.identity is None) != (self.identities is None) or (self.identities and self.party is None):
            raise ConfigError(
                "identity (private, this site's), identities (public, all clients') and party (this site's number) "
                "belong together; give all three or none"
            )
        if self.dp_sgd and self.ledger is None:
            raise ConfigError("dp_sgd needs the ledger that counts the trainings; give ledger, too")

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a site's file in TOML. Paths in it are relative to its folder.

            least = 3
            defense = "secure_aggregation"
            largest_weight = 5000
            party = 0
            identity = "own.identity"          # file: the 32 bytes of new_identity()
            folder = "states"
            seal = "seal.key"                  # file: the key; such a seal has no anchor
            ledger = "data.ledger"
            [limits]                           # of the ledger: exchanges, epsilon, delta, unit; else its file's
            exchanges = 2000
            [identities]                       # public identities in hexadecimal
            0 = "..."

        Raises:
            ConfigError: an entry that is not known, or of another type.
            StorageError: a file that cannot be read.
        """
        place = Path(path)
        try:
            given = tomllib.loads(place.read_text(encoding="utf-8"))
            limits = Limits(**given.pop("limits")) if "limits" in given else None
            read = _readers(place.parent, limits)
            known = {field.name for field in fields(cls)}
            if unknown := sorted(set(given) - known):
                raise ConfigError(
                    f"{place} has the entries {unknown}, which no site policy has; known: {sorted(known)}"
                )
            return cls(**{name: read[name](value) if name in read else value for name, value in given.items()})
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise StorageError(f"the site's file {place} or one that it names cannot be read: {error}") from error
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"the site's file {place} holds an entry that cannot be used: {error}") from error

    @classmethod
    def of(cls, context: Context) -> Self:
        """Return the policy of a SuperNode: its file, if `--node-config` names one, or else the defaults."""
        path = context.node_config.get(NODE_CONFIG)
        return cls() if path is None else cls.load(str(path))

    def of_data(self, party: int) -> Ledger | None:
        """Return the ledger of this site's data: the given one, or that of the folder; `None` without either.

        Args:
            party: number of this client, by which sites that share a folder keep apart.

        Raises:
            LedgerLost: the folder holds states of this client, and no ledger: each was written with one.
        """
        if self.ledger is not None or self.folder is None:
            return self.ledger
        folder = Path(self.folder)
        written = any(folder.glob(f"*-{party}-*.state"))
        return open_beside(folder / f"client-{party}.state", self.seal, expected=written)

    def check(self, terms: SumTerms, party: int) -> None:
        """Raise `ConfigError`, whose text the server may read, unless this site allows the terms."""
        aggregation, plan = terms.defense.aggregation, terms.plan
        if self.folder is not None:
            check_seal(plan, self.seal)
        if aggregation.beside:
            raise ConfigError(f"{terms.defense.name} needs a key holder, which a Flower strategy has no place for")
        if self.defense is None and not aggregation.hides:
            raise ConfigError(f"this site uploads under a defence that hides single uploads; {aggregation} does not")
        if self.defense is not None and aggregation.name != self.defense:
            raise ConfigError(f"this site uploads under {self.defense} only, and the terms say {aggregation}")
        if plan.threshold < self.least:
            raise ConfigError(
                f"this site takes part in sums over at least {self.least} clients, and these terms open sums over "
                f"{plan.threshold}"
            )
        if self.terms and terms.digest.hex() not in self.terms:
            raise ConfigError(f"this site does not allow the terms {terms.digest.hex()[:16]}")
        if self.largest_weight is not None and terms.weighted and self.largest_weight > terms.largest_weight:
            raise ConfigError(
                f"this site's updates weigh up to {self.largest_weight:.12g}, and the terms allow "
                f"{terms.largest_weight:.12g}; give SecureStrategy largest_weight={self.largest_weight:.12g} or more"
            )
        if self.party is not None and party != self.party:
            raise ConfigError(f"this site is client {self.party}, and the server takes it for client {party}")
        self._check_identities(terms)

    def _check_identities(self, terms: SumTerms) -> None:
        named = identities_in(terms.defense.aggregation)
        mine = None if self.identities is None else dict(self.identities)
        if (None if named is None else dict(named.public)) != mine:
            raise ConfigError(
                "the identities that the terms pin are not those that this site pins"
                if mine is not None
                else "the terms pin identities, and this site pins none"
            )


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


def _readers(folder: Path, limits: Limits | None) -> dict[str, Any]:
    """Return, by entry of a site's file, the function that reads its value."""

    def seal(value: str) -> Seal:
        return Seal.from_file(folder / value, make=False)

    return {
        "terms": lambda value: tuple(value) if isinstance(value, list) else value,
        "identity": lambda value: (folder / value).read_bytes(),
        "identities": lambda value: {int(number): bytes.fromhex(key) for number, key in value.items()},
        "ledger": lambda value: Ledger.open(folder / value, limits),
        "folder": lambda value: folder / value,
        "seal": seal,
    }
