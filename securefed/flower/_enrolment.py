"""Messages by which SuperNodes enrol in a run: each reports which party it is, and agrees to the terms or refuses.

A SuperNode is Flower's process at a party's site. Before the first round the server app (`flower/_server`) sends an
`Invitation` to every SuperNode, and the client app (`flower/_client`) answers with an `EnrolmentReply`. The terms are
what all parties agree on before a run (algorithm, defence, public facts, seed). Each party makes them by itself, and
compares their fingerprint with the server's. Both messages name the version of the protocol, which is compared before
anything else is read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from flwr.app import ConfigRecord, RecordDict

from securefed._messages import PROTOCOL_VERSION, SERVER, PartyId, check_version
from securefed._runtime.terms import Terms
from securefed.defenses._homomorphic import ThresholdPaillier
from securefed.errors import ConfigError, DataError

ACTION: Final = "query.securefed_enrol"
_RECORD: Final = "securefed.enrol"
_VERSION: Final = "version"


@dataclass(frozen=True)
class Invitation:
    """The server's invitation to a SuperNode.

    Attributes:
        run: the run's identifier.
        terms: fingerprint of the server's terms.
        resumes: identifier of the run that it continues; empty for a new run.
    """

    run: str
    terms: str
    resumes: str = ""

    def content(self) -> RecordDict:
        """Return the content of the Flower message, which `read` reads."""
        return _content({"run": self.run, "terms": self.terms, "resumes": self.resumes})

    @classmethod
    def read(cls, content: RecordDict) -> Invitation:
        """Read the content of a Flower message.

        Raises:
            DataError: it is of another kind.
            VersionRefused: the server speaks another version of the protocol.
        """
        fields = _fields(content, ("run", "terms", "resumes"), SERVER)
        found = cls(*(str(fields[name]) for name in ("run", "terms", "resumes")))
        for run in (found.run, found.resumes or found.run):
            if re.fullmatch("[0-9a-f]{32}", run) is None:
                raise DataError(f"{run[:40]!r} is no run's identifier; it must be 32 hexadecimal digits")
        return found


@dataclass(frozen=True)
class EnrolmentReply:
    """A SuperNode's answer to an invitation.

    Attributes:
        party: number of the client, or of a party that is no client (negative).
        refusal: reason why it does not take part; empty if it does.
    """

    party: PartyId
    refusal: str = ""

    def content(self) -> RecordDict:
        """Return the content of the Flower message, which `read` reads."""
        return _content({"party": self.party, "refusal": self.refusal})

    @classmethod
    def read(cls, content: RecordDict, node: int) -> EnrolmentReply:
        """Read the content of a Flower message from a SuperNode.

        Raises:
            DataError: it is of another kind.
            VersionRefused: the SuperNode speaks another version of the protocol; the error names `node` as its sender.
        """
        fields = _fields(content, ("party", "refusal"), node, f"SuperNode {node}")
        if type(fields["party"]) is not int:
            raise DataError(f"party must be a whole number; got {fields['party']!r}")
        return cls(fields["party"], str(fields["refusal"]))


def check_apart(terms: Terms) -> None:
    """Raise `ConfigError` for a defence without the keys that its parties must share; both apps call it first.

    Without given keys threshold Paillier deals them in each process (as simulations want), so parties would differ.
    """
    aggregation = terms.defense.aggregation
    if isinstance(aggregation, ThresholdPaillier) and aggregation.keys is None:
        raise ConfigError(
            f"{aggregation} without keys draws new ones in each process, so parties would have different keys: call "
            "deal() once, and give each party its part (KeySet.only)"
        )


def _content(fields: dict[str, str | int]) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord({_VERSION: PROTOCOL_VERSION, **fields})})


def _fields(content: RecordDict, names: tuple[str, ...], sender: int, name: str = "it") -> dict[str, object]:
    """Return the fields; the version is checked first, since messages of another version may have other fields."""
    record = content.config_records.get(_RECORD)
    fields: dict[str, object] = {} if record is None else dict(record)
    if fields:
        check_version(fields.pop(_VERSION, None), sender, name)
    if set(fields) != set(names):
        raise DataError("the message is no enrolment message of securefed; use the same release on both sides")
    return fields
