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

from securefed._lazy import export_lazily

if TYPE_CHECKING:
    from securefed._auditing.active.deviating_server import ActiveRun, DeviatingServer
    from securefed._auditing.advice.advice_values import Advice, Setting
    from securefed._auditing.advice.search import advise
    from securefed._auditing.cases.audit_settings import AuditSettings
    from securefed._auditing.cases.setup import TrainingSetup
    from securefed._auditing.differential_privacy.noise_audit import audit_noise
    from securefed._auditing.differential_privacy.record_audit import audit_records
    from securefed._auditing.own.attack_settings import AttackSettings
    from securefed._auditing.own.own_audit import audit_algorithm
    from securefed._auditing.registered.registered_audit import audit
    from securefed._auditing.registered.transcript_audit import audit_transcript
    from securefed._auditing.training.training_audit import audit_training
    from securefed._messages import SERVER, Aggregate, ClientId, Message, PartyId, Transcript
    from securefed._persistence.packing import local
    from securefed._persistence.sealing import Seal
    from securefed._public import Public
    from securefed._runtime.federation import Federation
    from securefed._runtime.history import Result
    from securefed._runtime.ledger import Ledger
    from securefed._runtime.ledger_entries import DataUsage, Limits
    from securefed._runtime.run_options import RunOptions
    from securefed._runtime.server import Server
    from securefed._runtime.terms import Terms
    from securefed._tensors import Array, Layout, Tensors, TensorSpec
    from securefed._transports import InProcessTransport, LossyTransport
    from securefed.algorithms._base import Algorithm
    from securefed.datasets._base import Dataset
    from securefed.defenses._chain import chain, identity
    from securefed.parties._simulation import secure_mean, secure_sum

__version__ = "0.1.0"

_HERE = Path(__file__).resolve().parent
if not (_HERE / "defenses").is_dir() and (_HERE.parent / "defenses" / "__init__.py").is_file():
    # Python started in a clone imports this folder even where securefed is installed, and `securefed.attacks` and
    # `securefed.defenses` stand beside it there.
    __path__.append(str(_HERE.parent))

__all__ = [
    "SERVER",
    "ActiveRun",
    "Advice",
    "Aggregate",
    "Algorithm",
    "Array",
    "AttackSettings",
    "AuditSettings",
    "ClientId",
    "DataUsage",
    "Dataset",
    "DeviatingServer",
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
    "Setting",
    "TensorSpec",
    "Tensors",
    "Terms",
    "TrainingSetup",
    "Transcript",
    "advise",
    "audit",
    "audit_algorithm",
    "audit_noise",
    "audit_records",
    "audit_training",
    "audit_transcript",
    "chain",
    "identity",
    "local",
    "secure_mean",
    "secure_sum",
]

EXPORTS = {
    "securefed._auditing.active.deviating_server": "DeviatingServer ActiveRun",
    "securefed._auditing.advice.advice_values": "Advice Setting",
    "securefed._auditing.advice.search": "advise",
    "securefed._auditing.cases.audit_settings": "AuditSettings",
    "securefed._auditing.cases.setup": "TrainingSetup",
    "securefed._auditing.registered.registered_audit": "audit",
    "securefed._auditing.own.attack_settings": "AttackSettings",
    "securefed._auditing.own.own_audit": "audit_algorithm",
    "securefed._auditing.differential_privacy.noise_audit": "audit_noise",
    "securefed._auditing.differential_privacy.record_audit": "audit_records",
    "securefed._auditing.registered.transcript_audit": "audit_transcript",
    "securefed._auditing.training.training_audit": "audit_training",
    "securefed.parties._simulation": "secure_mean secure_sum",
    "securefed._runtime.federation": "Federation",
    "securefed._runtime.history": "Result",
    "securefed._runtime.server": "Server",
    "securefed._runtime.terms": "Terms",
    "securefed._runtime.run_options": "RunOptions",
    "securefed.datasets._base": "Dataset",
    "securefed._public": "Public",
    "securefed.algorithms._base": "Algorithm",
    "securefed._tensors": "Layout TensorSpec Tensors Array",
    "securefed._messages": "Aggregate Message Transcript ClientId PartyId SERVER",
    "securefed._transports": "InProcessTransport LossyTransport",
    "securefed._persistence.packing": "local",
    "securefed.defenses._chain": "chain identity",
    "securefed._runtime.ledger": "Ledger",
    "securefed._runtime.ledger_entries": "DataUsage Limits",
    "securefed._persistence.sealing": "Seal",
}
export_lazily(__name__, EXPORTS, needs={"audit_training": "torch"})
