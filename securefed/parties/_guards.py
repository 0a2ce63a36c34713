"""State and check what the terms of a sum promise about other sums of the same data, and about small numbers.

The rules themselves stand in `sum_memory`, and every client applies them through its ledger. Here is what follows from
the terms: which rule a sum falls under, the sentences that its plan prints, and two public minima, of rows at a party
and of parties in a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from securefed._hyperparameters import check_integer
from securefed._persistence.sealing import Seal
from securefed._runtime.ledger import Ledger
from securefed._runtime.ledger_entries import LedgerEntries, Limits
from securefed._runtime.privacy_cost import delta_of
from securefed._runtime.sum_memory import SumRule
from securefed.defenses._aggregation_facts import identities_in, survivor_change_in
from securefed.defenses._base import Defense, Plan
from securefed.defenses._differential_privacy import CentralGaussian
from securefed.defenses._differential_privacy.distributed import DistributedNoise
from securefed.defenses._grouped_sums import Grouped, masking_in
from securefed.defenses._one_message import OneMessage
from securefed.errors import ConfigError

COUNT: Final = "count"
"""Name of the tensor that holds a party's number of rows, where the terms ask for a least number."""
_COUNTS: Final = (COUNT, "counts")
"""Names of such tensors, alone or behind the name of a statistic and a dot; "counts" has one number a column."""
_LEAST_BLOCK, _OF_MANY, _MANY = 2, 3, 8


class GuardedTerms(Protocol):
    """The part of terms (`SumTerms`) that is read here."""

    @property
    def clients(self) -> int: ...
    @property
    def cohort(self) -> int: ...
    @property
    def defense(self) -> Defense: ...
    @property
    def base(self) -> bool: ...
    @property
    def epsilon(self) -> float | None: ...
    @property
    def answer_after(self) -> float | None: ...
    @property
    def least_rows(self) -> int | None: ...
    @property
    def least_parties(self) -> int | None: ...
    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...
    @property
    def plan(self) -> Plan: ...


def rule_of(terms: GuardedTerms) -> SumRule:
    """Return the rule by which clients of these terms let sums out.

    With a base, contributions to one base keep their survivors. Without one, contributions of the same rows are equal
    in all sums: with identities, no sums tell apart groups of fewer than 2 parties, or 3 where there are 8 or more.
    """
    asked = survivor_change_in(terms.defense.aggregation)
    return SumRule(terms.base, max(asked, _default_block(terms)), terms.least_parties or 1)


def adds_noise(defense: Defense) -> bool:
    """Tell whether a defence adds noise, which it does to contributions that it clips or to the sum."""
    return any(isinstance(link, CentralGaussian | DistributedNoise) for link in defense.transforms)


def notes(terms: GuardedTerms) -> tuple[str, ...]:
    """Return the sentences about other sums of the same data, and about small numbers, for the plan."""
    out: list[str] = []
    if not terms.base:
        out.append("No model is bound to a sum: a server that hands out different models is not noticed.")
    if (least := _default_block(terms)) > 1:
        out.append(
            f"Contributions without a model count as equal in all sums of the same rows: the sums that a client knows "
            f"tell no group of fewer than {least} parties apart, whatever their terms, until its operator declares "
            "changed rows. Against parties that tell the server their own, that many fewer."
        )
    if terms.least_parties:
        out.append(
            f"No result over fewer than {terms.least_parties} parties is released"
            + (
                ": clients open none."
                if masking_in(terms.defense.aggregation) is not None
                else ": members of the committee open none."
                if isinstance(terms.defense.aggregation, OneMessage)
                else ", by the server's word alone."
            )
        )
    if terms.least_parties and not adds_noise(terms.defense):
        out.append(
            "The server sees every entry of the sum, small cells too: leaving them out of a table protects the readers "
            "of a release only. Coarser levels, agreed before the sum, or noise protect against the server."
        )
    if terms.answer_after is not None:
        out.append(
            f"A client answers the request for its contribution {terms.answer_after:g} s after it arrived, whether its "
            "update was computed, failed or was computed early. One that takes longer answers later, which the server "
            "sees; that client tells its own site (LateAnswerWarning)."
        )
    if terms.least_rows:
        out.append(f"A party with fewer than {terms.least_rows} rows sits out, and the round is void.")
    return tuple(out)


def check_minima(terms: GuardedTerms) -> None:
    """Raise `ConfigError` for minima that no sum of these terms can reach, or that they cannot check."""
    if terms.least_parties is not None:
        check_integer("least_parties", terms.least_parties, 1)
        if terms.cohort < terms.least_parties:
            raise ConfigError(
                f"a result is released over {terms.least_parties} parties or more, and these terms plan for "
                f"{terms.cohort}: with fewer, each learns what the others hold; find more parties, or agree on "
                "least_parties below"
            )
        if (fewest := _smallest_group(terms)) < terms.least_parties:
            raise ConfigError(
                f"a result is released over {terms.least_parties} parties or more, and each client of a group counts "
                f"those of its group, {fewest} in the smallest; give least_parties={fewest}, or fewer groups"
            )
    if terms.least_rows is not None:
        check_integer("least_rows", terms.least_rows, 1)
        if not any(shape == () for name, shape in terms.shapes.items() if counts_rows(name)):
            raise ConfigError(f"least_rows is compared with the number of rows, a tensor {COUNT!r} of one number")


def check_seal(plan: Plan, seal: Seal | None) -> None:
    """Raise `ConfigError` if a client's file would hold, unencrypted, the key by which it checks the server's sums."""
    if plan.verified and seal is None:
        raise ConfigError(
            "with verify=True a client keeps a key between rounds, which must not be stored unencrypted: give a seal "
            "(Seal.from_file; seal= of client_app, on the command line --seal-key-file, in a site's file seal), or "
            "keep no file"
        )


def ledger_beside(state: Path) -> Path:
    """Return where a client without a ledger keeps its own: beside its state, `client-0.ledger` for `client-0.state`.

    It outlives the state: a new run at the same place goes on with it.
    """
    return state.with_name(f"{state.name.removesuffix('.state')}.ledger")


def open_beside(state: Path, seal: Seal | None, *, expected: bool, named: Path | None = None) -> Ledger:
    """Open the ledger of a client's data: the one that is named, or the one beside its state, made at first use.

    Args:
        state: the client's state.
        seal: of the state; the ledger gets an anchor of its own.
        expected: whether there is a state, which was written with a ledger.
        named: the ledger's file, where the operator names it.

    Raises:
        LedgerLost: it is named or expected, and there is none.
        StorageError, RolledBackError: as `Ledger.open`.
    """
    path = named or ledger_beside(state)
    own = None if seal is None else seal.for_file(path.name)
    return Ledger.beside(path, own, expected=expected or named is not None)


def run_budget(terms: GuardedTerms, book: LedgerEntries | None = None) -> Ledger | None:
    """Return the ledger of one run that limits it to the epsilon of its terms; `None` where they name none."""
    if terms.epsilon is None:
        return None
    privacy = terms.plan.privacy
    limits = Limits(
        epsilon=terms.epsilon, delta=delta_of(terms.defense), unit="client" if privacy is None else privacy.unit
    )
    return Ledger.in_memory(limits, book)


def counts_rows(name: str) -> bool:
    """Tell whether a tensor of this name holds numbers of a party's rows."""
    return name.rpartition(".")[2] in _COUNTS


def _default_block(terms: GuardedTerms) -> int:
    """Return the least block of sums without a base; 1 without identities, as nothing is promised then."""
    if terms.base or identities_in(terms.defense.aggregation) is None:
        return 1
    return _OF_MANY if terms.clients >= _MANY else _LEAST_BLOCK


def _smallest_group(terms: GuardedTerms) -> int:
    """Return the number of clients of the smallest group; the cohort where one sum is made."""
    aggregation = terms.defense.aggregation
    return terms.cohort // (aggregation.groups if isinstance(aggregation, Grouped) else 1)
