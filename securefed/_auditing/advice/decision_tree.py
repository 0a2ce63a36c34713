"""The choice of a defence as a tree of questions: plain data, which the command line and the documentation both read.

`TREE` is the first question. An answer leads to another question or to a recommendation, so that any reader of the
data can draw it or ask it. The tree recommends by what each defence promises; `securefed advise` measures what it does
on the user's data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Recommendation:
    """A defence, named as `securefed list defenses` names it.

    Attributes:
        defense: its registered name, or that of an algorithm that brings its own noise (`private/fedavg`).
        settings: what to set, in words; empty if nothing.
        why: the reason, in a sentence.
        left_open: what it does not hide, in a sentence.
    """

    defense: str
    settings: str
    why: str
    left_open: str


@dataclass(frozen=True)
class Answer:
    """One answer to a question, and where it leads.

    Attributes:
        text: the answer.
        leads_to: the next question, or the recommendation.
    """

    text: str
    leads_to: Question | Recommendation


@dataclass(frozen=True)
class Question:
    """A question with its answers.

    Attributes:
        text: the question.
        answers: at least two.
    """

    text: str
    answers: tuple[Answer, ...]


# The recommendations; what is left open after every kind of sum comes first.
_POOLED: Final = (
    "The sums themselves: over few rows they can be solved for single rows; `securefed advise` measures whether yours "
    "can."
)

_MASKS: Final = Recommendation(
    "secure_aggregation",
    "threshold: number of clients that must not drop out",
    "The server learns the sum over at least `threshold` clients and no single contribution, at little more than the "
    "bytes of messages in the clear.",
    _POOLED,
)
_SIGNED_MASKS: Final = Recommendation(
    "secure_aggregation",
    "identities: the clients' public keys, given to every party before the run",
    "Signed keys and survivors keep a server that deviates from the protocol from a sum over fewer than `threshold`.",
    _POOLED + " Such a server still chooses the broadcasts.",
)
_HOLDERS: Final = Recommendation(
    "paillier_threshold",
    "threshold: number of clients that must agree to decrypt",
    "Each client sends one message and is done; the share holders decrypt only sums of signed uploads.",
    _POOLED + " Decryption takes seconds of computation a round.",
)
_SHARED_NOISE: Final = Recommendation(
    "ddp",
    "clip_norm and noise_multiplier as `securefed advise` prints them",
    "Every client adds a share of the noise before its mask, so that epsilon holds against the server and all who read "
    "the model.",
    "What an attacker learns within epsilon; and utility, which noise of few clients destroys.",
)
_CENTRAL_NOISE: Final = Recommendation(
    "dp",
    "clip_norm and noise_multiplier by `securefed.defenses.calibrate`",
    "One draw of noise on the sum hides each client from all who read the model.",
    "The server sees the sum before the noise.",
)
_ROW_NOISE: Final = Recommendation(
    "private/fedavg",
    "epsilon and delta of one row",
    "Clients train by DP-SGD, so that each upload hides single rows from everybody, whatever else is done to it. It "
    "suits few clients with many rows each: its noise depends on the rows, not on the number of clients.",
    "What all rows of a client have in common. Add secure_aggregation to hide single clients.",
)
_NOTHING: Final = Recommendation(
    "plain",
    "none",
    "The server may see every client's message, so that nothing has to be hidden from it.",
    "Everything: messages in the clear often give away the rows themselves.",
)

_NOISED_WHO = Question(
    "Who must learn no more than epsilon allows of one client?",
    (
        Answer("The server, and everybody who reads the model", _SHARED_NOISE),
        Answer("Only those who read the model; the server may see sums", _CENTRAL_NOISE),
    ),
)
_PROMISE = Question(
    "Do you need a promise that holds against every attack (differential privacy), and for whom?",
    (
        Answer("No: no attack known today should find a row in the sums", Question(
            "What may the server do?",
            (
                Answer("It follows the protocol and reads what it receives", Question(
                    "Can clients answer in several stages within a round?",
                    (
                        Answer("Yes", _MASKS),
                        Answer("No: each client sends one message a round", _HOLDERS),
                    ),
                )),
                Answer("It may lie about keys and dropouts", _SIGNED_MASKS),
            ),
        )),
        Answer("Yes: for each client as a whole (a hospital, a phone), with a hundred clients or more", _NOISED_WHO),
        Answer("Yes: for each single row (a patient); clients hold many rows", _ROW_NOISE),
    ),
)  # fmt: skip
TREE: Final = Question(
    "May the server see a single client's message?",
    (Answer("Yes, it is trusted with the data", _NOTHING), Answer("No", _PROMISE)),
)
"""The first question."""


def outline(at: Question | Recommendation = TREE, depth: int = 0) -> Iterator[str]:
    """Iterate over the lines of the tree as an indented list, for the terminal and for Markdown."""
    indent = "  " * depth
    if isinstance(at, Recommendation):
        settings = f" ({at.settings})" if at.settings not in ("", "none") else ""
        yield f"{indent}- **{at.defense}**{settings}. {at.why} Left open: {at.left_open[0].lower()}{at.left_open[1:]}"
        return
    yield f"{indent}- {at.text}"
    for answer in at.answers:
        yield f"{indent}  - {answer.text}:"
        yield from outline(answer.leads_to, depth + 2)
