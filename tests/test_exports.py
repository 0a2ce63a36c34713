"""The public names of the package are pinned here, load when they are first used, and are listed by `help`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import pydoc
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest

import securefed

ROOT = Path(__file__).parents[1]
_NAMES = {
    "securefed": """
        ActiveRun Advice Aggregate Algorithm Array AttackSettings AuditSettings ClientId DataUsage Dataset
        DeviatingServer Federation
        InProcessTransport Layout Ledger Limits LossyTransport Message PartyId Public Result RunOptions SERVER
        Seal Server Setting TensorSpec Tensors Terms TrainingSetup Transcript advise audit audit_algorithm audit_noise
        audit_records audit_training audit_transcript chain identity local
        secure_mean secure_sum
    """,
    "securefed.algorithms": """
        Algorithm AuditCase ClientData CompositeFedADMM DSGD Ditto FAPS FLAME FedADMM FedAvg FedCM FedPE FedPG
        FedProx FedSaga GraphDitto GraphFedAvg GraphFedProx IGL L1 LoSAC LoSACProx LocalPower
        MRMTL MimeSVRG NoRegulariser Nuclear PFedMe PPGL PrincipalComponents PrivateFedAvg Regulariser
        RoundOutcome SSI Scaffold ScaffoldProx SelfLearningPCA SupportsBatches SupportsBroadcastCheck
        SupportsClientSelection SupportsPrivacyCost algorithms centralised clip_records community_scores
        edge_scores reconstruction_loss record_level
    """,
    "securefed.attacks": """
        ActiveAttack Attack BroadcastSigns ChosenBases ChosenBroadcast ChosenConsensus ClassThresholds ClientGroups
        ClientKernels ConsensusGram Dialogue DifferenceGram DistanceFit ESTIMATORS FitRows GradientSuppression
        InversionEffort LocalSteps NaiveDescent NetworkInversion ParticipationMatrix PowerGram Reconstruction
        RecoveredRows RoundView SampleFit Target TrapWeights View active_attacks attacks broadcast_signs
        disaggregate group_by_client insert_imprint_module invert isolate psnr tabular_accuracy
    """,
    "securefed.defenses": """
        AdaptiveTransform Aggregation Budget ChainStage Defense FixedSizeSampling Identities KeyHolder KeySet
        MaskingPlan PinnedIdentities Plain Plan PoissonSampling PrivacyPlan Session TensorPlan Transform UploadContext
        adaptive_clip calibrate chain ckks clip clip_each deal discrete_gaussian epsilon_of expect_stage
        gaussian grouped identity local_gaussian local_laplace new_identity one_message paillier poisson public_identity
        quantise records secure_aggregation sensitivity skellam sum_once threshold_paillier
    """,
    "securefed.datasets": """
        Dataset DetectionSplit LoadedDataset Table linear_rules load low_rank partitioned read_table
        related_graphs smooth_signals spectral
    """,
    "securefed.recording": """
        FlowerRecording Recording
    """,
    "securefed.flower": """
        AppReply SecureQueries SecureRound SecureStrategy SitePolicy client_app secure_mod serve statistics
    """,
    "securefed.parties": """
        SumClient SumHelper SumResult SumServer SumTerms SummedTensor hand_over_committee take_over_committee
    """,
    "securefed.statistics": """
        ANOVA ChiSquare ContingencyTable Correlation Count Covariance CoxModel Estimate Estimates Fitted GroupBy
        Histogram KaplanMeier LinearRegression LogRank LogisticModel Mean MissingValues OrderStatistics
        PoissonModel Quantiles Skewness Statistic TTest Together Variance from_terms
    """,
    "securefed.torch": """
        LightningMasking LoopRecording MaskingState RecordingCallback TrainerMasking average_batch_norm masked_allreduce
        record secure_all_reduce
    """,
}
PINNED = {package: names.split() for package, names in _NAMES.items()}
"""By package, the names that users may import. A change here is a change of the interface: say so in CHANGELOG."""

PUBLIC_MODULES = {
    "securefed.algorithms", "securefed.attacks", "securefed.attacks.scores", "securefed.attacks.views",
    "securefed.datasets", "securefed.datasets.partition", "securefed.datasets.scaling", "securefed.defenses",
    "securefed.detection", "securefed.errors", "securefed.flower", "securefed.parties", "securefed.problems",
    "securefed.recording", "securefed.statistics", "securefed.testing", "securefed.torch",
}  # fmt: skip
"""Modules without an underscore in their path; all others are the package's own business."""


def public_modules() -> set[str]:
    """The modules whose path holds no underscored part."""
    found = set()
    for top in ("securefed", "attacks", "defenses"):
        for path in (ROOT / top).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            if not any(part.startswith("_") for part in parts):
                found.add(".".join(parts if top == "securefed" else ("securefed", *parts)))
    return found


def test_only_these_modules_are_public() -> None:
    assert public_modules() == PUBLIC_MODULES | {"securefed"}


def test_the_version_is_the_distributions() -> None:
    """The build reads it from the package, which is then right in a clone that is not installed, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"] == {"version": {"attr": "securefed.__version__"}}


def for_type_checkers(package: str) -> set[str]:
    """The names that a package imports for type checkers alone."""
    file = import_module(package).__file__
    assert file is not None
    blocks = [node for node in ast.parse(Path(file).read_text()).body if isinstance(node, ast.If)]
    return {
        alias.name
        for block in blocks
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("package", PINNED)
def test_the_public_names_are_these(package: str) -> None:
    module = import_module(package)
    assert sorted(module.__all__) == sorted(PINNED[package]) == dir(module)
    assert for_type_checkers(package) == set(PINNED[package])
    for name in PINNED[package]:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"{package}.*no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("package", PINNED)
def test_help_lists_each_name_with_a_line(package: str) -> None:
    shown = pydoc.render_doc(import_module(package), renderer=pydoc.plaintext)
    for name in PINNED[package]:
        lines = [line.strip() for line in shown.splitlines() if line.strip().startswith(f"{name}: ")]
        assert len(lines) == 1 and lines[0].endswith("."), name


def test_naming_the_defences_imports_no_implementation() -> None:
    code = (
        "import sys, securefed.defenses\n"
        "dir(securefed.defenses), securefed.defenses.__doc__\n"
        "heavy = ('torch', 'scipy', 'cryptography', 'gmpy2', 'tenseal', 'sklearn')\n"
        "sys.exit(any(name in sys.modules for name in heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


MOST_PARAMETERS = 10
LONGER = {"securefed.Federation", "securefed.attacks.invert", "securefed.flower.SecureStrategy"}
"""Public functions, and classes that are no dataclass of named fields, which have more than the others may have."""


def test_public_functions_have_few_parameters() -> None:
    """What has more takes an object of documented settings, as `audit` takes `AuditSettings`."""
    named = {
        f"{package}.{name}": getattr(import_module(package), name) for package in PINNED for name in PINNED[package]
    }
    called = {
        name: item
        for name, item in named.items()
        if inspect.isfunction(item) or (inspect.isclass(item) and "__init__" in vars(item))
    }
    made = {name: item for name, item in called.items() if not dataclasses.is_dataclass(item)}
    longer = {name for name, item in made.items() if len(inspect.signature(item).parameters) > MOST_PARAMETERS}
    assert len(made) > 40
    assert longer <= LONGER


@pytest.mark.parametrize(
    ("door", "settings", "left"), [("audit", "AuditSettings", 8), ("audit_algorithm", "AttackSettings", 9)]
)
def test_the_options_of_an_audit_are_the_fields_of_its_settings(door: str, settings: str, left: int) -> None:
    function, made = getattr(securefed, door), getattr(securefed, settings)
    assert len(inspect.signature(function).parameters) == left
    (options,) = get_type_hints(function)["options"].__args__
    assert set(get_type_hints(options)) == {field.name for field in dataclasses.fields(made)}
    for field in dataclasses.fields(made):
        documented = "".join(str(one.__doc__) for one in made.__mro__)
        assert f"        {field.name}: " in documented, field.name
