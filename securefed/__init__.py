"""securefed: what do the messages of a federated run give away, and how is it stopped?

Names load when they are first used, so that `import securefed` stays quick and does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from securefed.algorithms.base import Algorithm
    from securefed.auditing.matrix import audit
    from securefed.auditing.own import audit_algorithm
    from securefed.datasets.base import Dataset
    from securefed.defenses.compose import chain, identity
    from securefed.federation import Federation
    from securefed.messages import Aggregate, Message, Transcript
    from securefed.public import Public
    from securefed.run_options import RunOptions
    from securefed.server import Result, Server
    from securefed.terms import Terms
    from securefed.wrap import secure_mean

_HERE = Path(__file__).resolve().parent
if not (_HERE / "defenses").is_dir() and (_HERE.parent / "defenses" / "base.py").is_file():
    # Python started in a clone imports this folder even where securefed is installed, and `securefed.attacks` and
    # `securefed.defenses` stand beside it there.
    __path__.append(str(_HERE.parent))

_WHERE = {
    "Aggregate": "securefed.messages",
    "Algorithm": "securefed.algorithms.base",
    "Dataset": "securefed.datasets.base",
    "Federation": "securefed.federation",
    "Message": "securefed.messages",
    "Public": "securefed.public",
    "Result": "securefed.server",
    "RunOptions": "securefed.run_options",
    "Server": "securefed.server",
    "Terms": "securefed.terms",
    "Transcript": "securefed.messages",
    "audit": "securefed.auditing.matrix",
    "audit_algorithm": "securefed.auditing.own",
    "chain": "securefed.defenses.compose",
    "identity": "securefed.defenses.compose",
    "secure_mean": "securefed.wrap",
}

__all__ = [
    "Aggregate",
    "Algorithm",
    "Dataset",
    "Federation",
    "Message",
    "Public",
    "Result",
    "RunOptions",
    "Server",
    "Terms",
    "Transcript",
    "audit",
    "audit_algorithm",
    "chain",
    "identity",
    "secure_mean",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'securefed' has no attribute {name!r}")
