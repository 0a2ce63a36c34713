"""Messages that enrol SuperNodes: which party each one is, and that it agrees to the terms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from flwr.app import ConfigRecord, RecordDict

from securefed._messages import PartyId
from securefed._runtime.terms import Terms
from securefed.defenses._homomorphic import ThresholdPaillier
from securefed.errors import ConfigError, DataError

ACTION: Final = "query.securefed_enrol"
_RECORD: Final = "securefed.enrol"


@dataclass(frozen=True)
class Invitation:
    """The server's invitation to a SuperNode.

    Attributes:
        run: the run's identifier.
        terms: fingerprint of the server's terms.
        resumes: the run that it goes on from, empty for a new one.
    """

    run: str
    terms: str
    resumes: str = ""

    def content(self) -> RecordDict:
        """As a Flower message's content. Inverse: `read`."""
        return _content({"run": self.run, "terms": self.terms, "resumes": self.resumes})

    @classmethod
    def read(cls, content: RecordDict) -> Invitation:
        """Raises `DataError` for another content."""
        fields = _fields(content, ("run", "terms", "resumes"))
        found = cls(*(str(fields[name]) for name in ("run", "terms", "resumes")))
        for run in (found.run, found.resumes or found.run):
            if re.fullmatch("[0-9a-f]{32}", run) is None:
                raise DataError(f"{run[:40]!r} is no run's identifier")
        return found


@dataclass(frozen=True)
class EnrolmentReply:
    """A SuperNode's answer to an invitation.

    Attributes:
        party: which client it is, or which party beside.
        refusal: why it does not take part, empty where it does.
    """

    party: PartyId
    refusal: str = ""

    def content(self) -> RecordDict:
        """As a Flower message's content. Inverse: `read`."""
        return _content({"party": self.party, "refusal": self.refusal})

    @classmethod
    def read(cls, content: RecordDict) -> EnrolmentReply:
        """Raises `DataError` for another content."""
        fields = _fields(content, ("party", "refusal"))
        if type(fields["party"]) is not int:
            raise DataError(f"party {fields['party']!r} is no number")
        return cls(fields["party"], str(fields["refusal"]))


def check_apart(terms: Terms) -> None:
    """Raise `ConfigError` for a defence whose parties must share what each of these processes would make of its own."""
    aggregation = terms.defense.aggregation
    if isinstance(aggregation, ThresholdPaillier) and aggregation.keys is None:
        raise ConfigError(
            f"{aggregation} without keys deals them where it runs, and these parties run apart: deal() once, and give "
            "each party what is its own (KeySet.only)"
        )


def _content(fields: dict[str, str | int]) -> RecordDict:
    return RecordDict({_RECORD: ConfigRecord(dict(fields))})


def _fields(content: RecordDict, names: tuple[str, ...]) -> dict[str, object]:
    record = content.config_records.get(_RECORD)
    if record is None or set(record) != set(names):
        raise DataError("no message of securefed's enrolment; is the other side of the same release?")
    return dict(record)
