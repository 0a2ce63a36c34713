"""Measure what the messages of a federated run give away, and protect them.

    from securefed import Dataset, Federation, chain
    from securefed.algorithms import SSI
    from securefed.defenses import secure_aggregation

    result = Federation(SSI(rank=5), clients, chain(secure_aggregation()), seed=0).run(rounds=20)

Names load when they are first used, so that `import securefed` stays quick and imports neither torch nor SciPy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from securefed._lazy import lazy_exports

if TYPE_CHECKING:
    from securefed._auditing.epsilon_noise import audit_noise
    from securefed._auditing.epsilon_records import audit_records
    from securefed._auditing.imported import audit_transcript
    from securefed._auditing.matrix import audit
    from securefed._auditing.own import audit_algorithm
    from securefed._messages import SERVER, Aggregate, ClientId, Message, PartyId, Transcript
    from securefed._persistence.packing import local
    from securefed._persistence.sealing import Seal
    from securefed._public import Public
    from securefed._runtime.federation import Federation
    from securefed._runtime.ledger import Ledger, Limits
    from securefed._runtime.ledger_entries import DataUsage
    from securefed._runtime.run_options import RunOptions
    from securefed._runtime.server import Result, Server
    from securefed._runtime.terms import Terms
    from securefed._tensors import Array, Layout, Tensors, TensorSpec
    from securefed._transports.in_process import InProcessTransport, LossyTransport
    from securefed._wrap import secure_mean, secure_sum
    from securefed.algorithms._base import Algorithm
    from securefed.datasets._base import Dataset
    from securefed.defenses._chain import chain, identity

__version__ = "0.1.0"

_HERE = Path(__file__).resolve().parent
if not (_HERE / "defenses").is_dir() and (_HERE.parent / "defenses" / "__init__.py").is_file():
    # Python started in a clone imports this folder even where securefed is installed, and `securefed.attacks` and
    # `securefed.defenses` stand beside it there.
    __path__.append(str(_HERE.parent))

__all__ = [
    "SERVER",
    "Aggregate",
    "Algorithm",
    "Array",
    "ClientId",
    "DataUsage",
    "Dataset",
    "Federation",
    "InProcessTransport",
    "Layout",
    "Ledger",
    "Limits",
    "LossyTransport",
    "Message",
    "PartyId",
    "Public",
    "Result",
    "RunOptions",
    "Seal",
    "Server",
    "TensorSpec",
    "Tensors",
    "Terms",
    "Transcript",
    "audit",
    "audit_algorithm",
    "audit_noise",
    "audit_records",
    "audit_transcript",
    "chain",
    "identity",
    "local",
    "secure_mean",
    "secure_sum",
]

EXPORTS = {
    "audit": ("securefed._auditing.matrix", "Attack registered algorithms under every defence, and report what leaks."),
    "audit_algorithm": ("securefed._auditing.own", "Attack an algorithm or client function of your own."),
    "audit_noise": ("securefed._auditing.epsilon_noise", "Measure whether a defence with noise keeps its epsilon."),
    "audit_records": ("securefed._auditing.epsilon_records", "Measure whether record-level privacy keeps its epsilon."),
    "audit_transcript": ("securefed._auditing.imported", "Attack a recorded run, of this or another framework."),
    "secure_mean": ("securefed._wrap", "Average updates of an existing training loop under a defence (simulation)."),
    "secure_sum": ("securefed._wrap", "Add updates under a defence (simulation)."),
    "Federation": (
        "securefed._runtime.federation",
        "Simulate a federation: server and clients in one process.",
    ),
    "Server": ("securefed._runtime.server", "Run an algorithm over clients that a transport reaches."),
    "Terms": ("securefed._runtime.terms", "The terms of a run, which all parties agree on before it."),
    "RunOptions": ("securefed._runtime.run_options", "Options of the server: checkpoint, transcript, retries, budget."),
    "Result": ("securefed._runtime.server", "The result of a run: model, history, plan and transcript."),
    "Dataset": ("securefed.datasets._base", "One client's rows, with labels where the task has them."),
    "Public": ("securefed._public", "Public facts of a run: number of clients, rows, features, declared bounds."),
    "Algorithm": ("securefed.algorithms._base", "Base class of a federated algorithm; six methods to write."),
    "Layout": ("securefed._tensors", "Names, shapes and bounds of a message's tensors."),
    "TensorSpec": ("securefed._tensors", "Name, shape and bound of one tensor."),
    "Aggregate": ("securefed._messages", "The sum of one exchange, and the clients in it."),
    "Message": ("securefed._messages", "One message, bound to run, exchange, stage, sender and receiver."),
    "Transcript": ("securefed._messages", "Everything that the server of a run saw; attacks and audits read it."),
    "InProcessTransport": (
        "securefed._transports.in_process",
        "Transport between parties in one process; the default.",
    ),
    "LossyTransport": ("securefed._transports.in_process", "Transport that loses chosen messages, for tests."),
    "Tensors": ("securefed._tensors", "Type of named arrays: the only numbers that cross the wire."),
    "Array": ("securefed._tensors", "Type of a NumPy array of any number type."),
    "ClientId": ("securefed._messages", "Type of a client's number, from 0."),
    "PartyId": ("securefed._messages", "Type of a party's number: a client, the server or a helper."),
    "SERVER": ("securefed._messages", "The server's number among the parties."),
    "local": ("securefed._persistence.packing", "Mark a state's field that stays with its owner and is not saved."),
    "chain": ("securefed.defenses._chain", "Compose a defence from transforms and an aggregation protocol."),
    "identity": ("securefed.defenses._chain", "The defence that sums contributions in the clear."),
    "Ledger": ("securefed._runtime.ledger", "Count the use of a client's data over all runs, on disk."),
    "Limits": ("securefed._runtime.ledger", "Limits of a ledger: exchanges and epsilon."),
    "DataUsage": ("securefed._runtime.ledger_entries", "Exchanges and epsilon that a client's data were used for."),
    "Seal": ("securefed._persistence.sealing", "Encrypt checkpoints and states at rest."),
}
__getattr__, __dir__ = lazy_exports(__name__, EXPORTS)
