"""Extensions as a newcomer writes them, from the templates: short, passing the published checks, refused by name."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from securefed import Algorithm, Dataset, Federation, Layout, RunOptions, TensorSpec, audit
from securefed._auditing.report.cards import conclusion
from securefed._auditing.report.next_runs import NextRun, enough_seeds, open_runs, parsed
from securefed._registry import Entry
from securefed.algorithms import algorithms
from securefed.attacks import attacks
from securefed.defenses import secure_aggregation
from securefed.errors import ConfigError, DataError, RoundVoid
from securefed.testing import checks_for, parametrize_with_checks
from securefed.testing._algorithm_checks import labelled_clients
from securefed.testing._attack_checks import check_description, check_views_of

ROOT = Path(__file__).parents[1]
REGISTERED: dict[str, Entry[Any]] = {}


def loaded(path: str) -> ModuleType:
    """The module of a file. What it registers is taken out again: other tests go over the registries."""
    known = set(algorithms.names), set(attacks.names)
    spec = importlib.util.spec_from_file_location(f"extension_{Path(path).stem}", ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    for registry, before in zip((algorithms, attacks), known, strict=True):
        for name in set(registry.names) - before:
            REGISTERED[name] = registry._registered.pop(name)
    return module


RIDGE, MEAN_ROW = loaded("tests/extensions/ridge_regression.py"), loaded("tests/extensions/mean_row.py")
TEMPLATE, ATTACK = loaded("extension_templates/algorithm.py"), loaded("extension_templates/attack.py")


@pytest.mark.parametrize(("path", "most"), [("ridge_regression.py", 35), ("mean_row.py", 15)])
def test_an_extension_is_short(path: str, most: int) -> None:
    """All lines but blank ones and the module's docstring."""
    lines = (ROOT / "tests" / "extensions" / path).read_text().splitlines()[1:]
    assert len([line for line in lines if line.strip()]) <= most


@parametrize_with_checks([kind(**kind.test_settings) for kind in (RIDGE.Ridge, TEMPLATE.FederatedMean)])
def test_algorithms_pass_the_published_checks(instance: Any, check: Any) -> None:
    check(instance)


def test_ridge_regression_is_that_of_the_pooled_rows() -> None:
    rng = np.random.default_rng(3)
    clients = [Dataset(rng.uniform(-1, 1, (rows, 4)), rng.uniform(-1, 1, rows)) for rows in (5, 7, 9)]
    x, y = np.concatenate([c.x for c in clients]), np.concatenate([c.responses() for c in clients])
    found = Federation(RIDGE.Ridge(penalty=0.5), clients).run(1).output["weights"]
    np.testing.assert_allclose(found, np.linalg.solve(x.T @ x + 0.5 * np.eye(4), x.T @ y))


@pytest.mark.parametrize(
    ("attack", "algorithm"),
    [(MEAN_ROW.MeanOfGradients(), "optimization/dsgd"), (ATTACK.MeanRow(), "statistics/mean")],
    ids=["mean of gradients", "template"],
)
def test_attacks_pass_the_published_checks(monkeypatch: Any, attack: Any, algorithm: str) -> None:
    """On an algorithm that the attack is for, and on one that it is not for."""
    monkeypatch.setitem(algorithms._registered, "statistics/mean", REGISTERED["statistics/mean"])
    check_description(attack)
    for name in (algorithm, "pca/ssi"):
        check_views_of(attack, name)


def test_an_algorithm_is_registered_with_its_settings_and_its_audit_case(monkeypatch: Any) -> None:
    entry = REGISTERED["statistics/ridge"]
    assert entry.test_settings == RIDGE.Ridge.test_settings
    assert entry.audit_case is RIDGE.Ridge.audit_case
    assert entry.make(penalty=2.0) == RIDGE.Ridge(penalty=2.0)
    assert entry.details == {"transmits": "X^T X, X^T y"}


def test_a_class_of_an_own_module_is_found_by_its_place(tmp_path: Path, monkeypatch: Any) -> None:
    source = (ROOT / "tests" / "extensions" / "ridge_regression.py").read_text()
    (tmp_path / "own_ridge.py").write_text(source.replace('"statistics/ridge"', '"statistics/own-ridge"'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *sys.path])
    monkeypatch.setattr(algorithms, "_registered", dict(algorithms._registered))
    monkeypatch.setattr(algorithms, "_imported", {})
    assert algorithms["own_ridge:Ridge"].name == "own_ridge:Ridge"
    assert algorithms["own_ridge:Ridge"].source == "textbook"
    with pytest.raises(ConfigError, match="has no class 'Lasso'"):
        algorithms["own_ridge:Lasso"]
    with pytest.raises(ConfigError, match="cannot be imported"):
        algorithms["no_such_module:Ridge"]


@dataclass(frozen=True)
class Broken(RIDGE.Ridge):
    """A correct algorithm; each case below breaks one of its methods."""

    penalty: float = 1.0


class NoLayout(Broken):
    def layout(self, public):
        return {"gram": (6, 6)}


class EmptyLayout(Broken):
    def layout(self, public):
        return Layout(())


class NoBroadcast(Broken):
    def broadcast(self, server):
        return server.weights


class OtherNames(Broken):
    def contribute(self, client, broadcast, rng):
        return client, {"hessian": np.eye(6)}


class OtherShape(Broken):
    def contribute(self, client, broadcast, rng):
        return client, {"gram": np.eye(5), "moment": np.zeros(6)}


class OtherType(Broken):
    def contribute(self, client, broadcast, rng):
        return client, {"gram": np.eye(6) * 1j, "moment": np.zeros(6)}


class NoPair(Broken):
    def contribute(self, client, broadcast, rng):
        return {"gram": np.eye(6), "moment": np.zeros(6)}


class ListOfArrays(Broken):
    def contribute(self, client, broadcast, rng):
        return client, [np.eye(6), np.zeros(6)]


class NoServer(Broken):
    def combine(self, server, aggregate):
        return None


class Lacking:
    needs_outcome: ClassVar[bool] = False

    def layout(self, public):
        return Layout((TensorSpec("sum", (6,)),))


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (RIDGE.Ridge, r"got the class Ridge. Write Ridge\(penalty=0.5\)"),
        ("pca/ssi", r"got the text 'pca/ssi'. Write .* securefed.algorithms.algorithms.make"),
        (None, "got None"),
        (Lacking(), "Lacking lacks `broadcast`, `combine`, `commit`, `contribute`"),
        (NoLayout(), "NoLayout.layout must return a securefed.Layout.*got dict"),
        (EmptyLayout(), "names no tensor"),
        (NoBroadcast(), "NoBroadcast.broadcast must return arrays by name.*got ndarray"),
        (OtherNames(), "must return the tensors of the layout, gram, moment; got hessian"),
        (OtherShape(), r"tensor 'gram' must have shape \(6, 6\), as the layout says; got \(5, 5\)"),
        (OtherType(), "tensor 'gram' must hold real numbers; got complex128"),
        (NoPair(), r'must return a pair \(state, \{"gram": array, \.\.\.\}\); got dict'),
        (ListOfArrays(), r'a pair \(state, \{"gram": array, \.\.\.\}\); got list in place of the tensors'),
        (NoServer(), "NoServer.combine must return the new server state; got None"),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", type(value).__name__),
)
@pytest.mark.parametrize("defended", [False, True])
def test_misuse_is_refused_by_name(algorithm: Any, words: str, defended: bool) -> None:
    with pytest.raises(ConfigError, match=words):
        Federation(algorithm, labelled_clients(), secure_aggregation() if defended else None).run(1)


class Mistaken(Broken):
    """Its client step has a mistake."""

    def contribute(self, client, broadcast, rng):
        return client, {"gram": client.data.rows_of_mine, "moment": np.zeros(6)}


class NotFinite(Broken):
    """Its messages are not finite."""

    def contribute(self, client, broadcast, rng):
        return client, {"gram": np.full((6, 6), np.nan), "moment": np.zeros(6)}


@pytest.mark.parametrize(
    ("algorithm", "words", "cause"),
    [(Mistaken(), "AttributeError: .*rows_of_mine", AttributeError), (NotFinite(), "'gram' holds NaN", DataError)],
)
def test_a_round_without_contributions_says_what_went_wrong_at_simulated_clients(
    algorithm: Any, words: str, cause: type[Exception], caplog: Any
) -> None:
    """Over a network only the client's own log says it; there each client says the same thing once."""
    with pytest.raises(RoundVoid, match=f"the simulated client 0 had no contribution because of .*{words}") as found:
        Federation(algorithm, labelled_clients(), secure_aggregation()).run(1)
    assert isinstance(found.value.__cause__, cause)
    assert len(caplog.records) == len(labelled_clients())


def test_the_shape_of_a_tensor_is_a_tuple() -> None:
    with pytest.raises(DataError, match=r"a tuple of sizes, such as \(4,\), or \(\) for a scalar; got 4"):
        TensorSpec("sum", 4)  # type: ignore[arg-type]


def test_messages_that_no_registered_attack_reads_are_attacked_by_simulation(tmp_path: Path, monkeypatch: Any) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "rows.npz", x=rows, y=np.arange(40) % 2)
    monkeypatch.setitem(algorithms._registered, "statistics/ridge", REGISTERED["statistics/ridge"])
    settings: dict[str, Any] = {"data": str(tmp_path / "rows.npz"), "clients": 3, "rows_per_client": 2, "workers": 1}
    report = audit(["statistics/ridge"], ["plain", "ddp"], **settings, seeds=2, acceptable=0.2)
    assert {cell.defense for cell in report.cells} == {"plain"}  # sums were not asked for
    assert [(item.defense, item.ran) for item in report.missing] == [("ddp", 0)]  # and noise is not passed over
    assert report.settings["audit"]["acceptable"] == 0.2
    found = [cell.leakage.low for cell in report.cells if (cell.view, cell.secret) == ("server", "gram")]
    assert max(found) > 0.99
    again = [*open_runs(report), NextRun("", "", enough_seeds(report))]
    assert all(run.command.startswith("securefed audit") for run in again)
    assert all(dict(parsed(run.command))["--algorithms"] == "statistics/ridge" for run in again)
    named = audit(["statistics/ridge"], ["plain"], ["gram/power"], **settings, seeds=1)
    assert not named.cells
    assert "says nothing of what the messages give away" in " ".join(conclusion(named))


@pytest.mark.exhaustive
def test_an_attack_of_an_own_module_is_audited_by_its_place(tmp_path: Path) -> None:
    for name in ("algorithm", "attack"):
        (tmp_path / f"own_{name}.py").write_text((ROOT / "extension_templates" / f"{name}.py").read_text())
    options = ["--attacks", "own_attack:MeanRow", "--defenses", "plain", "--seeds", "2", "--workers", "1", "--json"]
    shown = run_beside(tmp_path, "audit", "--algorithms", "own_algorithm:FederatedMean", *options)
    own, *implied = json.loads(shown)["cells"]
    assert own["attack"] == "statistics/mean-row"
    assert [cell["attack"] for cell in implied] == ["rows/means", "membership/gram"]  # computed from the mean it found


def test_a_class_without_a_method_says_which() -> None:
    class Unfinished(Algorithm):
        def layout(self, public):
            return Layout((TensorSpec("sum", (6,)),))

    with pytest.raises(ConfigError, match="Unfinished lacks `broadcast`, `combine`, `contribute`, `enroll`, `start`"):
        Unfinished()


def test_a_state_that_cannot_be_stored_is_refused_where_there_is_a_checkpoint(tmp_path: Path) -> None:
    class Dicts(Broken):
        def start(self, public, rng):
            return {"weights": np.zeros(6)}

        def broadcast(self, server):
            return server

    with pytest.raises(ConfigError, match="start returned a state that cannot be stored"):
        Federation(Dicts(), labelled_clients(), options=RunOptions(checkpoint=tmp_path / "run.checkpoint"))


def test_evaluation_of_an_algorithm_without_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="Ridge defines no evaluation"):
        Federation(RIDGE.Ridge(), labelled_clients()).run(1, evaluate_every=1)


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (None, "a list with one securefed.Dataset for each client; got NoneType"),
        (np.zeros((4, 3)), "got ndarray"),
        ([np.zeros((4, 3))], r"client 0 is a ndarray; give securefed.Dataset\(x\)"),
    ],
)
def test_clients_that_are_no_data_sets_are_refused(clients: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Federation(RIDGE.Ridge(), clients)


class Forgetful(Broken):
    """Its generator is its own."""

    def contribute(self, client, broadcast, rng):
        state, sent = super().contribute(client, broadcast, rng)
        return state, sent | {"moment": np.random.default_rng().uniform(0, 1, 6)}


class Larger(Broken):
    """Its contributions are beyond their bound."""

    def contribute(self, client, broadcast, rng):
        state, sent = super().contribute(client, broadcast, rng)
        return state, sent | {"moment": np.full(6, 1e6)}


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [(Forgetful(), "with equal generators, the contribution"), (Larger(), "beyond the bound")],
    ids=["own generator", "beyond its bound"],
)
def test_the_checks_find_what_is_wrong(algorithm: Any, words: str) -> None:
    """Positive control."""
    with pytest.raises(AssertionError, match=words):
        for check in checks_for(algorithm):
            check(algorithm)


def test_what_has_no_checks_is_refused() -> None:
    for value, words in ((RIDGE.Ridge, "got the class Ridge"), (3, "int is none of algorithm, attack")):
        with pytest.raises(ConfigError, match=words):
            checks_for(value)


def run_beside(folder: Path, *command: str) -> str:
    """What a Python prints, errors included, to which the packages in `folder` look installed."""
    known = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "securefed", *command],
        env={**os.environ, "PYTHONPATH": known, "OMP_NUM_THREADS": "1"},
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout + done.stderr


def install(folder: Path, name: str, source: str, point: str) -> None:
    """Write a module and the metadata that pip would write for its entry point."""
    (folder / f"{name}.py").write_text(source)
    (folder / f"{name}-1.0.dist-info").mkdir()
    (folder / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (folder / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(f"[securefed.algorithms]\n{name} = {point}\n")


@pytest.mark.exhaustive
def test_an_installed_package_brings_its_algorithm_by_an_entry_point(tmp_path: Path) -> None:
    """The list shows it, and the audit runs it in other processes too; without the entry point neither knows it."""
    template = (ROOT / "extension_templates" / "algorithm.py").read_text()
    source = template.replace('"statistics/mean"', '"installed/mean"')
    assert "installed/mean" not in run_beside(tmp_path, "list", "algorithms")
    install(tmp_path, "mean_package", source, "mean_package:FederatedMean")
    assert "installed/mean" in run_beside(tmp_path, "list", "algorithms")
    options = ["--defenses", "plain", "--clients", "3", "--seeds", "2", "--workers", "2", "--rows-per-client", "4"]
    run_beside(tmp_path, "audit", "--algorithms", "installed/mean", "--out", str(tmp_path / "report"), *options)
    assert "FederatedMean" in (tmp_path / "report" / "audit.json").read_text()


def test_entry_points_that_bring_nothing_are_named(tmp_path: Path) -> None:
    """The other algorithms stay available."""
    install(tmp_path, "broken_package", "raise RuntimeError('out of order')", "broken_package")
    install(tmp_path, "forgetful_package", "class Unregistered: ...", "forgetful_package:Unregistered")
    shown = run_beside(tmp_path, "list", "algorithms")
    assert "'broken_package' of group securefed.algorithms cannot be loaded: RuntimeError('out of order')" in shown
    assert "Unregistered is not registered; decorate the class with @algorithms.register(" in shown
    assert "pca/ssi" in shown
