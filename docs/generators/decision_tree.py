"""Write the decision tree of defences as a page of questions, from data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    """One question of the tree.

    Attributes:
        question: to be answered with yes.
        defense: what to use then, as Python text.
        because: why, and what it assumes.
    """

    question: str
    defense: str
    because: str


STEPS = (
    Step(
        "May the server see every client's update, and anybody who reads its messages too?",
        "none: `plain`",
        "Nothing is hidden. Audit first: in the clear almost every method gives rows or second moments away.",
    ),
    Step(
        "Would the sum itself say too much: fewer than about ten clients, few rows at each, or a published model?",
        "`chain(clip(norm), skellam(multiplier), secure_aggregation())`",
        "The clients add the noise, so that epsilon covers the server too. Few clients bear little noise.",
    ),
    Step(
        "Do you trust the server with the sums, and want to protect against readers of the released model only?",
        "`chain(clip(norm), gaussian(multiplier), secure_aggregation())`",
        "Central noise is smaller for the same epsilon. The server sees the sums before the noise.",
    ),
    Step(
        "May the server deviate from the protocol: make up clients, lie about who was lost?",
        "`secure_aggregation(identities=...)`",
        "The clients compare their public keys beforehand. One exchange more in a round.",
    ),
    Step(
        "Can clients answer only once a round, and does an organisation that shuns the server keep a key?",
        "`paillier()`",
        "One message a round. Slower and larger; the key holder sees sums. `ckks()` is faster and approximate.",
    ),
    Step(
        "The same, but without such an organisation?",
        "`threshold_paillier(t)`",
        "t of the clients open each sum together. A dealer makes the key shares once, and is trusted then.",
    ),
    Step(
        "More than about a hundred clients?",
        '`secure_aggregation(graph="auto", adversarial=0.1, dropouts=0.1)`',
        "A sparse graph: the costs of a client hardly grow with the number of clients.",
    ),
    Step(
        "None of these?",
        "`secure_aggregation()`",
        "Exact, milliseconds, four bytes a number; more than half of the clients must stay, and follow the protocol.",
    ),
)
"""Questions in the order in which they are asked; the first that is answered with yes decides."""


def pages() -> dict[str, str]:
    """Return the page `decision-tree.md`, which the page on choosing a defence includes."""
    lines = ["| | question | if yes, begin with | because |", "| --- | --- | --- | --- |"]
    for number, step in enumerate(STEPS, 1):
        lines.append(f"| {number} | {step.question} | {step.defense} | {step.because} |")
    return {"decision-tree.md": "\n".join(lines) + "\n"}
