"""Write the decision tree of defences, which `securefed advise` shares, as nested questions."""

from __future__ import annotations

from securefed._auditing.advice.decision_tree import outline


def pages() -> dict[str, str]:
    """Return the page `decision-tree.md`, which the page on choosing a defence includes."""
    return {"decision-tree.md": "\n".join(outline()) + "\n"}
