"""The public names of the package's rooms: pinned here, loaded when they are first used, and listed by `help`."""

from __future__ import annotations

import ast
import pydoc
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

DEFENSES = [
    "AdaptiveTransform",
    "Aggregation",
    "Budget",
    "ChainStage",
    "Defense",
    "FixedSize",
    "Identities",
    "KeyHolder",
    "KeySet",
    "MaskingPlan",
    "Plain",
    "Plan",
    "Poisson",
    "PrivacyPlan",
    "Session",
    "TensorPlan",
    "Transform",
    "UploadContext",
    "adaptive_clip",
    "calibrate",
    "chain",
    "ckks",
    "clip",
    "clip_each",
    "deal",
    "discrete_gaussian",
    "epsilon_of",
    "expect_stage",
    "gaussian",
    "identity",
    "local_gaussian",
    "local_laplace",
    "new_identity",
    "paillier",
    "poisson",
    "public_identity",
    "quantise",
    "records",
    "secure_aggregation",
    "sensitivity",
    "skellam",
    "sum_once",
    "threshold_paillier",
]
PINNED = {"securefed.defenses": DEFENSES}


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
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match=f"{package}.*no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("package", PINNED)
def test_help_lists_each_name_with_a_line(package: str) -> None:
    shown = pydoc.render_doc(import_module(package), renderer=pydoc.plaintext)
    for name in PINNED[package]:
        lines = [line.strip() for line in shown.splitlines() if line.strip().startswith(f"{name}: ")]
        assert len(lines) == 1 and lines[0].endswith("."), name


def test_a_function_is_not_hidden_by_the_package_that_it_comes_from() -> None:
    code = (
        "import securefed.defenses.secure_aggregation.masking_client, sys\n"
        "from securefed.defenses import secure_aggregation\n"
        "sys.exit(not callable(secure_aggregation))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_naming_the_defences_imports_no_implementation() -> None:
    code = (
        "import sys, securefed.defenses\n"
        "dir(securefed.defenses), securefed.defenses.__doc__\n"
        "heavy = ('torch', 'scipy', 'cryptography', 'gmpy2', 'tenseal', 'sklearn')\n"
        "sys.exit(any(name in sys.modules for name in heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
