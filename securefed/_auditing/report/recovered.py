"""Select the reconstructions that an audit's HTML report shows beside the original data.

`algorithm_section` shows those of one algorithm (`recovered`), `first_screen` those of the whole report (`examples`).
A cell is the result of one attack on one secret (rows, a Gram matrix) under one defence, in one view (what an attacker
sees), over all runs. Its artifact is the secret of its first run, `truth`, with the attack's estimate; not every
cell has one. `selections.weight` ranks cells: first those whose verdict states a leak (`FOUND`: exposed or partial),
then those with none; each by mean leakage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from securefed._auditing.engine.audit_result import AuditResult
from securefed._auditing.engine.results import CLIENT, FEDERATION, Artifact, Cell
from securefed._auditing.engine.statistics import FOUND
from securefed._auditing.report.pictures import evidence, kind_of
from securefed._auditing.report.report_words import leak_text
from securefed._auditing.report.selections import PLAIN, alone, weight
from securefed._auditing.sentences.names import in_sentence, protection, secret_title, short

_EXAMPLES: Final = 3
"""Largest number of pictures of an example on the first screen, so that two examples fit beside each other."""
_OWNERS: Final = {CLIENT: "one client's", FEDERATION: "all clients'"}
"""By owner of a secret, the words for it."""
_ROWS: Final = ("samples", "data")
"""Kinds of secrets of which the pictures show rows."""


def recovered(report: AuditResult, algorithm: str) -> list[dict[str, Any]]:
    """Describe an algorithm's strongest cell on one client's data and, if it states a leak, that on all clients' data.

    Returns:
        For each a `title`, a `text` and the `evidence`, as the page's template reads them.
    """
    out = []
    for owner, whose in ((CLIENT, "One client"), (FEDERATION, "All clients together")):
        found = strongest_artifact(report, algorithm, owner)
        if found is not None and (owner == CLIENT or found[0].verdict.word in FOUND):
            out.append({"title": whose} | _shown(report, *found))
    return out


def examples(report: AuditResult) -> list[dict[str, Any]]:
    """Select reconstructions for the first screen: the best without a defence, and the best from sums alone.

    Sums alone are what the server sees under a defence, without the help of a client or key holder (`alone`).

    Returns:
        As of `recovered`, with the largest number of pictures to show, `most`.
    """
    plain = _best(report, lambda cell: cell.defense == PLAIN)
    sums = _best(report, lambda cell: cell.defense != PLAIN and cell.view in alone(report))
    out = []
    for found in (plain, sums):
        if found is not None:
            cell, artifact = found
            how = "without protection" if cell.defense == PLAIN else f"under {in_sentence(cell.defense)}"
            title = f"{short(cell.algorithm)}, {how}: {_what(report, cell, artifact)}"
            out.append(_shown(report, cell, artifact) | {"title": title, "most": _EXAMPLES})
    return out


def _what(report: AuditResult, cell: Cell, artifact: Artifact) -> str:
    """Name what the pictures of an artifact show, for instance "one client's Gram matrix"."""
    kind = kind_of(artifact, report.settings[cell.algorithm]["secret"]).removeprefix("pooled ")
    return f"{_OWNERS[cell.owner]} {'rows' if kind in _ROWS else secret_title(kind)}"


def _best(report: AuditResult, chosen: Callable[[Cell], bool]) -> tuple[Cell, Artifact] | None:
    """Select a leak among the chosen cells: rows before square matrices, images before numbers, then by leakage."""
    known = {(a.algorithm, a.defense, a.view, a.attack, a.secret): a for a in report.artifacts}
    candidates = []
    for cell in report.cells:
        artifact = known.get((cell.algorithm, cell.defense, cell.view, cell.attack, cell.secret))
        if artifact is not None and cell.owner in _OWNERS and cell.verdict.word in FOUND and chosen(cell):
            square = artifact.truth.ndim > 1 and artifact.truth.shape[0] == artifact.truth.shape[1]
            rank, leak = weight(cell)
            candidates.append((not square, artifact.image_shape is not None, rank, round(leak, 2), (cell, artifact)))
    return max(candidates, key=lambda item: item[:4])[4] if candidates else None  # of equals the first


def strongest_artifact(report: AuditResult, algorithm: str, owner: str) -> tuple[Cell, Artifact] | None:
    """Select an algorithm's strongest cell with an artifact.

    Of cells whose leakage is equal to two digits it is the first one in the report.
    """
    known = {(a.defense, a.view, a.attack, a.secret): a for a in report.artifacts if a.algorithm == algorithm}
    cells = [cell for cell in report.of(algorithm) if cell.owner == owner]
    for cell in sorted(cells, key=lambda cell: (weight(cell)[0], round(weight(cell)[1], 2)), reverse=True):
        artifact = known.get((cell.defense, cell.view, cell.attack, cell.secret))
        if artifact is not None:
            return cell, artifact
    return None


def _shown(report: AuditResult, cell: Cell, artifact: Artifact) -> dict[str, Any]:
    """Return a sentence about a cell as `text`, and its artifact for the template as `evidence`."""
    text = (
        f"{protection(cell.defense)}, view “{cell.view}”, attack {cell.attack}: {cell.verdict.word}, "
        f"leakage {leak_text(cell.leakage.mean)}, median error {cell.figure('error_median'):.1e}."
    )
    return {
        "text": text,
        "evidence": evidence(artifact, report.settings[cell.algorithm]["secret"]),
    }
