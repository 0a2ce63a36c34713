"""A line depends on the code that decides it, found by name: what it runs is in its digest, and nothing far from it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from benchmarks.ledger import (
    faps_runs,
    fedpca,
    flame,
    flame_tables,
    losac_readings,
    ppgl_runs,
    ppgl_tables,
    sources,
)
from benchmarks.ledger.catalogue import Catalogue, discover
from benchmarks.ledger.definitions import LOOSE, Sources, path_of
from securefed.algorithms import FAPS, PPGL, CompositeFedADMM, algorithms
from securefed.datasets import spectral
from securefed.datasets._spectral_matrices import arithmetic

LOOKED_UP = {
    ("securefed._catalogue", "algorithms"),
    ("securefed.datasets._loaders", "load"),
    ("securefed.problems._base", "problems"),
}
"""Functions that find a class or a function by a text at run time, which a digest could not follow."""


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return discover()


@pytest.fixture(scope="module")
def before(catalogue: Catalogue) -> dict[str, tuple[str, set[str]]]:
    """The digest of each experiment, and the modules that it reaches."""
    return {
        name: (
            sources.digest(entry.module, entry.experiment),
            {module for module, _ in sources.reached(entry.module, entry.experiment)},
        )
        for name, entry in catalogue.entries.items()
    }


def made_stale(
    overlay: Mapping[str, str], catalogue: Catalogue, before: Mapping[str, tuple[str, set[str]]]
) -> set[str]:
    """The experiments whose digest differs with other texts in place of some files; others do not read these."""
    texts = sources.tree().changed(overlay)
    return {
        name
        for name, entry in catalogue.entries.items()
        if before[name][1] & set(overlay) and sources.digest(entry.module, entry.experiment, texts) != before[name][0]
    }


PCA_COUNTED = {"fedpca/bytes", "fedpca/bytes-ton", "fedpca/time"}
COUNTED = {*PCA_COUNTED, "faps/time"}
"""Experiments on bytes and time."""
CHANGES = {
    # a module, a line of it, the line in its place, and the experiments whose lines become stale
    "an algorithm": (
        "securefed.algorithms._graph.ppgl",
        "1 / (distance +",
        "2 / (distance +",
        {
            "ppgl/coil20",
            "ppgl/abide",
            "ppgl/table1",
            "ppgl/table2",
            "ppgl/table3",
            "ppgl/fig6",
            "ppgl/fig5",
            "ppgl/degrees",
        },
    ),
    "FedPE": (
        "securefed.algorithms._pca.fedpe",
        "+ self.rho * excess",
        "- self.rho * excess",
        {
            *("fedpca/table1-unsw", "fedpca/table1-ton", "fedpca/start-fedpe-digits", "fedpca/start-fedpe-unsw"),
            *("fedpca/optimum", "fedpca/sweeps", "fedpca/rounds-unsw", "fedpca/rounds-ton", *PCA_COUNTED),
            *("fedpca/fig9", "fedpca/sweeps-ton"),
        },
    ),
    "a loader": (
        "securefed.datasets._signals",
        'arrays["y"][rows]',
        'arrays["y"][~rows]',
        {
            *("losac/table2-har", "losac/fig5-steps-har", "losac/fig6", "losac/fig5-clients-har", "losac/all-har"),
        },
    ),
    "the split of a data set": (
        "securefed.datasets._images",
        "train, test = (_pictures(x, y) for x, y in parts)",
        "test, train = (_pictures(x, y) for x, y in parts)",
        {
            *("faps/images", "losac/fig2", "losac/fig6", "losac/table2-mnist"),
            *("flame/fig4-lambda", "flame/fig5-epochs", "flame/fig6-rho", "flame/fig7-selection", "flame/mlp"),
            *("flame/cnn", "flame/mlr", "flame/mlr-fedavg", "flame/mlr-pfedme", "flame/mlr-fedadmm", "flame/anchors"),
            *("flame/mlr-100", "flame/fig3-loss-mlr", "faps/time", "losac/fig2-shares", "losac/fig3-mnist"),
            *("losac/fig4-mnist", "losac/all-mnist"),
        },
    ),
    "a draw of synthetic rows": (
        "securefed.datasets._synthetic",
        "rng.standard_normal((features + 1, classes))  # W over b",
        "rng.standard_normal((classes, features + 1)).T  # W over b",
        {
            *("flame/svm", "flame/svm-rivals", "flame/svm-100", "flame/fig3-loss-svm", "flame/fig4-lambda-svm"),
            *("flame/fig5-epochs-svm", "flame/fig6-rho-svm", "flame/fig7-selection-svm"),
        },
    ),
    "bytes": ("securefed._tensors", "{} if header is None", "{} if not header", COUNTED),
    "bytes of a run": (
        "securefed._runtime.exchange_header",
        "MAX_DOUBLINGS: Final = 20",
        "MAX_DOUBLINGS: Final = 21",
        COUNTED,
    ),
    "an attack": (
        "securefed.attacks._gradient_inversion.naive_descent",
        "- self.step_size * by_sample",
        "+ self.step_size * by_sample",
        {"losac/fig6"},
    ),
    "an attack that no experiment makes": (
        "securefed.attacks._duals.fedpg",
        "def solved(",
        "def solved_(",
        set(),
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_one_changed_line_makes_exactly_the_lines_stale_that_depend_on_it(
    change: tuple[str, str, str, set[str]], catalogue: Catalogue, before: dict[str, tuple[str, set[str]]]
) -> None:
    module, line, other, stale = change
    text = source(module)
    assert line in text
    assert made_stale({module: text.replace(line, other, 1)}, catalogue, before) == stale


def test_words_change_no_digest(catalogue: Catalogue, before: dict[str, tuple[str, set[str]]]) -> None:
    module = "securefed.algorithms._graph.ppgl"
    text = source(module).replace('"""', '"""More words. ', 1).replace("\n\n\n", "\n\n\n# a comment\n")
    assert text != source(module)
    assert made_stale({module: text}, catalogue, before) == set()


def test_each_experiment_is_found_by_itself_and_not_as_all_of_its_module(catalogue: Catalogue) -> None:
    for name, entry in catalogue.entries.items():
        module = sources.tree().module(entry.module)
        assert module is not None
        call = sources._call(entry.module, name, sources.tree())
        assert call is not module.bound["EXPERIMENTS"][0], f"{name}: write its name as a literal"


def test_an_experiment_looks_nothing_up_by_a_text(catalogue: Catalogue) -> None:
    for name, entry in catalogue.entries.items():
        for where, what in sources.reached(entry.module, entry.experiment):
            if where.startswith("benchmarks."):
                module = sources.tree().module(where)
                assert module is not None
                assert not LOOKED_UP & set(sources.tree().definition(module, what)[1]), (name, where, what)


def test_experiments_that_count_bytes_or_seconds_say_that_the_message_layer_decides_them(catalogue: Catalogue) -> None:
    counting = set()
    for name, entry in catalogue.entries.items():
        if reads_messages(entry.module, set(sources.reached(entry.module, entry.experiment))):
            counting.add(name)
    assert counting == {name for name, entry in catalogue.entries.items() if entry.experiment.messages}


def reads_messages(module: str, reached: set[tuple[str, str]]) -> bool:
    """Whether the experiment's own definitions read the bytes or the seconds of a round's history."""
    package = module.rpartition(".")[0]
    for where, name in reached:
        if where.startswith(package):
            for statement in sources.tree().module(where).bound[name]:  # type: ignore[union-attr]
                read = {part.attr for part in ast.walk(statement) if isinstance(part, ast.Attribute)}
                if read & {"up", "down", "perf_counter", "process_time", "monotonic"}:
                    return True
    return False


def test_the_registered_baselines_are_the_ones_that_the_ledger_makes() -> None:
    for name, make, setting, _ in fedpca.METHODS.values():
        assert algorithms.make(name, **setting) == make(**setting)


def faps_run() -> None:
    problem = faps_runs.Problem.of(spectral(arithmetic(20, 10), [30] * 4, np.random.default_rng(1)))
    faps_runs.residuals(FAPS(3, 0.0), problem, 1, 2)


def ppgl_run() -> None:
    (draw,) = ppgl_runs.draws(ppgl_tables.TABLE_1[0].make, 1, 1)
    ppgl_runs.learn(PPGL(), draw)


def losac_run() -> None:
    setting = losac_readings.SORTED
    losac_readings.descended(setting, CompositeFedADMM, setting.clients(1), 1, 2, 10)


def flame_run() -> None:
    clients = flame.synthetic(5, 1, rows=500)
    flame.trace(flame.flame(flame_tables.SVM.problem), clients, 1, 2, print)


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("faps/figure4", faps_run),
        ("ppgl/table1", ppgl_run),
        ("losac/counted-sorted", losac_run),
        ("flame/svm", flame_run),
    ],
)
def test_what_a_run_executes_is_in_its_digest(name: str, run: Callable[[], None], catalogue: Catalogue) -> None:
    entry = catalogue.entries[name]
    reached = set(sources.reached(entry.module, entry.experiment))
    with executed() as ran:
        run()
    layer = sources.tree().reached([("securefed._runtime.federation", "Federation")], lambda name: "securefed" in name)
    assert len(ran - set(layer)) > 15  # the control
    assert ran - reached - set(layer) == set()


@contextmanager
def executed() -> Iterator[set[tuple[str, str]]]:
    """Definitions of this project whose functions run, but for those of the message layer."""
    ran: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        module, name = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname.partition(".")[0]
        if event != "call" or not module.startswith(("securefed", "benchmarks")) or name.startswith(("<", "__")):
            return
        if not sources.in_message_layer(module) and module != sources.JUDGES:
            ran.add((module, name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield ran
    finally:
        sys.setprofile(before)


def test_names_are_followed_through_re_exports_aliases_and_imports_in_functions() -> None:
    texts = Sources({
        "p": "from p.a import f\nEXPORTS = {'p.b': 'g h'}\n",
        "p.a": "def f():\n    from p import g\n    return g()\n",
        "p.b": "import p.c as other\nfrom p import d\ng = lambda: other.x + d.y\ndef h(): ...\nregister(g)\n",
        "p.c": "x = 1\nz = 2\n",
        "p.d": "y = 1\nz = 2\n",
    })  # fmt: skip
    assert set(texts.reached([("p", "f")], lambda name: True)) == {
        ("p.a", "f"),
        ("p.b", "g"),
        ("p.b", LOOSE),
        ("p.c", "x"),
        ("p.d", "y"),
    }


def source(module: str) -> str:
    path = path_of(module)
    assert path is not None
    return Path(path).read_text()
