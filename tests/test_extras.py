"""The core does without the packages of extras, and an error names the extra where one is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from securefed._extras import EXTRA_OF, check_installed, is_installed, needed_for
from securefed.errors import ConfigError, MissingExtraError

ROOT = Path(__file__).parents[1]
WITHOUT = """
import importlib.metadata, sys
MISSING, FOUND = {missing!r}, importlib.metadata.version
def version(package):
    if package in MISSING:
        raise importlib.metadata.PackageNotFoundError(package)
    return FOUND(package)
importlib.metadata.version = version
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in MISSING:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from securefed.errors import ConfigError, MissingExtraError
def named(extra, call):
    try:
        call()
    except MissingExtraError as error:
        assert error.extra == extra and f"install securefed[{{extra}}]" in str(error), error
    else:
        raise SystemExit(f"nothing said that the extra {{extra}} is missing")
"""


def run(code: str, *, extra: str = "") -> None:
    """Run code in an interpreter without the packages of extras, those of one extra aside."""
    missing = sorted(module for module, of in EXTRA_OF.items() if of != extra)
    code = WITHOUT.format(missing=missing) + code
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_core_registers_everything_sums_and_attacks_without_any_extra() -> None:
    run("""
import numpy as np
import securefed._catalogue as catalogue
from securefed import Dataset, Federation, chain, secure_mean
from securefed.algorithms import SSI
from securefed.attacks import PowerGram, Target, views
from securefed.defenses import secure_aggregation, skellam, clip
assert len(catalogue.algorithms) > 25 and len(catalogue.attacks) > 10
updates = [{"w": np.arange(3.0) + client} for client in range(3)]
assert np.allclose(secure_mean(updates, defense=secure_aggregation())["w"], [1, 2, 3])
clients = [Dataset(np.random.default_rng(i).uniform(size=(9, 4))) for i in range(3)]
run = Federation(SSI(rank=2), clients)
seen = views.server(run.run(rounds=6).transcript, 0)
found = PowerGram().run(seen, Target(run.algorithm, run.public), np.random.default_rng(0)).value
assert np.allclose(found, clients[0].x.T @ clients[0].x)
""")


def test_each_missing_extra_is_named_where_it_is_needed() -> None:
    run("""
import securefed.attacks, securefed.datasets, securefed.defenses, securefed.problems, securefed.torch
from securefed import _catalogue, secure_mean
import numpy as np
named("torch", lambda: securefed.attacks.invert)
named("torch", lambda: securefed.torch.MaskingState)
named("torch", lambda: securefed.problems.DenseNetwork)
named("torch", lambda: securefed.problems.problems.make("2nn"))
named("audit", lambda: securefed.datasets.load("digits"))
named("audit", lambda: securefed.datasets.load("breast_cancer"))
named("paillier", lambda: secure_mean([{"w": np.ones(2)}] * 3, defense=securefed.defenses.paillier()))
named("torch", lambda: _catalogue.algorithms.make("private/fedavg"))
from securefed.statistics import LinearRegression, Mean, Together
found = Together(Mean()).simulate([np.ones((3, 1))] * 3)
named("statistics", found.to_frame)
named("statistics", found["mean"].to_frame)
model = LinearRegression.from_formula
named("statistics", lambda: model("y ~ x", bounds={"x": 1}))
""")


@pytest.mark.exhaustive
def test_help_of_each_package_works_without_any_extra_and_names_what_is_missing() -> None:
    run("""
import pydoc
from importlib import import_module
for package in ("", ".algorithms", ".attacks", ".datasets", ".defenses", ".detection", ".parties", ".problems",
                ".recording", ".statistics", ".testing", ".torch"):
    module = import_module(f"securefed{package}")
    shown = pydoc.render_doc(module, renderer=pydoc.plaintext)
    hidden = set(vars(module)["__all__"]) - set(dir(module)) if package != ".problems" else set()
    for name in hidden:
        line, = (line for line in shown.splitlines() if line.strip().startswith(f"{name}: "))
        assert line.endswith("], which is not installed."), line
        extra = line.rpartition("securefed[")[2].partition("]")[0]
        try:
            getattr(module, name)
        except MissingExtraError as error:
            assert error.extra in (extra, "torch"), (name, error)
        else:
            raise SystemExit(f"{name} is hidden from help and can be imported")
    if package in ("", ".algorithms", ".attacks", ".torch"):
        assert hidden, package
""")


@pytest.mark.exhaustive
def test_all_names_of_a_package_can_be_imported_without_any_extra() -> None:
    """`import *` takes what is there; a name that needs an extra still says so where it is asked for."""
    run("""
for package, present, absent in (
    ("", "audit_algorithm", "audit_training"), (".algorithms", "SSI", "PrivateFedAvg"),
    (".attacks", "PowerGram", "invert"), (".datasets", "load", None), (".defenses", "paillier", None),
    (".detection", None, None), (".parties", "SumTerms", None), (".problems", "SoftmaxRegression", "DenseNetwork"),
    (".recording", None, None), (".statistics", "Mean", None), (".testing", None, None),
    (".torch", None, "MaskingState"),
):
    names = {}
    exec(f"from securefed{package} import *", names)
    assert present is None or present in names, package
    assert absent not in names, package
    if absent is not None:
        named("torch", lambda: exec(f"from securefed{package} import {absent}"))
""")


def test_an_audit_that_could_not_write_its_page_is_refused_before_it_runs(tmp_path: Path) -> None:
    run(f"""
from typer.testing import CliRunner
from securefed._commands.cli import app
done = CliRunner().invoke(app, ["audit", "--algorithms", "ssi", "--out", {str(tmp_path)!r}])
assert done.exit_code == 2, done.output
assert "install securefed[audit]" in done.output, done.output
assert not list(__import__("pathlib").Path({str(tmp_path)!r}).iterdir())
""")


@pytest.mark.exhaustive
def test_the_extra_audit_alone_audits_and_names_the_defence_that_it_does_not_bring(tmp_path: Path) -> None:
    run(
        f"""
import json
from pathlib import Path
from typer.testing import CliRunner
from securefed._commands.cli import app
asked = ["audit", "--algorithms", "ssi", "--rounds", "2", "--seeds", "1", "--clients", "4", "--workers", "1"]
out = Path({str(tmp_path)!r})
done = CliRunner().invoke(app, [*asked, "--out", str(out)])
reason = "the defence paillier needs phe; install securefed[paillier]"
assert done.exit_code == 0 and reason in done.output, done.output
assert reason in (out / "audit.html").read_text()
report = json.loads((out / "audit.json").read_text())
assert {{cell["defense"] for cell in report["cells"]}} == {{"plain", "secure_aggregation", "ddp"}}
(gap,) = report["missing"]
assert (gap["defense"], gap["ran"], gap["reason"]) == ("paillier", 0, reason), gap
assert "--defenses plain,secure_aggregation,ddp " in report["command"], report["command"]
assert report["environment"]["phe"] == report["environment"]["torch"] == "not installed", report["environment"]
assert report["environment"]["numpy"][0].isdigit()
done = CliRunner().invoke(app, [*asked, "--out", str(out), "--fail-above", "0.99"])
assert done.exit_code == 3 and "did not run: SSI, Paillier: " in done.output, done.output
for name, extra in ("paillier", "paillier"), ("paillier_threshold", "paillier"), ("ckks", "lattice"):
    done = CliRunner().invoke(app, [*asked, "--out", str(out / name), "--defenses", f"plain,{{name}}"])
    assert done.exit_code == 2, done.output
    assert f"the defence {{name}} needs" in done.output and f"install securefed[{{extra}}]" in done.output, done.output
    assert not (out / name / "unfinished").exists()
""",
        extra="audit",
    )


@pytest.mark.exhaustive
def test_membership_under_the_extra_audit_alone_names_the_canary_that_it_does_not_measure(tmp_path: Path) -> None:
    run(
        f"""
import json
from pathlib import Path
from typer.testing import CliRunner
from securefed._commands.cli import app
asked = ["audit", "--algorithms", "ssi", "--rounds", "1", "--seeds", "2", "--clients", "3", "--workers", "1"]
asked += ["--defenses", "plain", "--attacks", "gram/power", "--membership"]
out = Path({str(tmp_path)!r})
done = CliRunner().invoke(app, [*asked, "--out", str(out)])
reason = "DP-SGD, record canary: DP-SGD needs PyTorch; install securefed[torch]"
assert done.exit_code == 0 and f"did not run: {{reason}}" in done.output, (done.output, done.exception)
report = json.loads((out / "audit.json").read_text())
assert reason in report["skipped"] and reason in (out / "audit.html").read_text()
assert "gaussian, records" in {{row["defense"] for row in report["membership"]}}
""",
        extra="audit",
    )


def test_every_extra_that_an_error_names_exists_and_brings_its_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {"sklearn": "scikit-learn", "PIL": "pillow"}
    for module, extra in EXTRA_OF.items():
        assert any(one.startswith(names.get(module, module)) for one in extras[extra]), module


def test_other_missing_modules_and_errors_pass_as_they_are() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), needed_for("a test"):
        import no_such_module  # type: ignore[import-not-found] # noqa: F401, PLC0415
    with pytest.raises(ZeroDivisionError), needed_for("a test"):
        _ = 1 / 0
    with (
        pytest.raises(MissingExtraError, match=r"a test needs PyTorch; install securefed\[torch\]"),
        needed_for("a test"),
    ):
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")


def test_a_missing_extra_is_an_import_error_and_a_configuration_error() -> None:
    assert issubclass(MissingExtraError, ImportError) and issubclass(MissingExtraError, ConfigError)
    check_installed("a test", "sklearn")
    assert is_installed("numpy") and not is_installed("no_such_module")


def test_the_kernel_for_cards_is_imported_where_it_runs_and_names_its_extra() -> None:
    run(
        """
import sys
import securefed.torch, securefed.torch._state, securefed.torch._device_sums, securefed.torch._device_encoding
assert "triton" not in sys.modules
import torch
from securefed.defenses._secure_aggregation.masks import SignedMask
from securefed.errors import MissingExtraError
from securefed.torch import _device_masks
_device_masks.on_processor = lambda device: False
try:
    _device_masks.add_masks(torch.zeros(3, dtype=torch.int32), [SignedMask(bytes(32), 1)])
except MissingExtraError as error:
    assert error.extra == "gpu" and "masks made on a graphics card" in str(error), error
else:
    raise SystemExit("nothing said that the extra gpu is missing")
""",
        extra="torch",
    )
