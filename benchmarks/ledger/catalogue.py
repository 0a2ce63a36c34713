"""Which experiments there are: `EXPERIMENTS` of every module here that is named after one of the five papers."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.ledger.ledger import Experiment
from securefed._public import require
from securefed.errors import UnknownNameError

PACKAGE = "benchmarks.ledger"
CORE_MINUTES = {"faps": 19.0, "fedpca": 13.0, "flame": 34.0, "ppgl": 13.0, "losac": 39.8}
"""Most minutes of a paper's experiments together, so that all but the nightly ones take an hour on two cores."""
PAPERS = tuple(CORE_MINUTES)
"""Beginnings of module names, and first parts of experiment names, in the order of the page."""


@dataclass(frozen=True)
class Entry:
    """An experiment and the module it lives in, by which a process of its own finds it."""

    module: str
    experiment: Experiment


@dataclass(frozen=True)
class Catalogue:
    """Experiments by name, in the order of the page; `broken` says what could not be collected, and why."""

    entries: Mapping[str, Entry]
    broken: Mapping[str, str]

    def select(self, names: Sequence[str], nightly: bool = False) -> list[Entry]:
        """The experiments of these names, longest first; "losac" means all of that paper, no names mean all.

        Those for the nightly run are left out unless they are named themselves, or `nightly`.

        Raises:
            UnknownNameError: a name that is neither; it says the nearest one.
        """
        families = {name.partition("/")[0] for name in self.entries}
        for name in names:
            if name not in self.entries and name not in families:
                raise UnknownNameError("experiment", name, [*self.entries, *families])
        chosen = [
            entry
            for name, entry in self.entries.items()
            if name in names
            or ((not names or name.partition("/")[0] in names) and (nightly or not entry.experiment.nightly))
        ]
        return sorted(chosen, key=lambda entry: -entry.experiment.core_minutes)


def discover(package: str = PACKAGE, papers: Sequence[str] = PAPERS) -> Catalogue:
    """Import the papers' modules and collect their experiments.

    A module without `EXPERIMENTS` is a helper of its neighbours. A module that fails to import and a paper without any
    experiment are named in `broken`: nothing is left out in silence.

    Raises:
        ConfigError: two experiments of one name, or one whose name belongs to no paper.
    """
    entries: dict[str, Entry] = {}
    broken: dict[str, str] = {}
    modules = [found.name for found in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    for paper in papers:
        for module in sorted(f"{package}.{name}" for name in modules if name.startswith(paper)):
            try:
                experiments = getattr(importlib.import_module(module), "EXPERIMENTS", ())
            except Exception as error:  # whatever it is: it is that module's, and the others go on
                broken[module] = f"{type(error).__name__}: {error}"
                continue
            for experiment in experiments:
                name = experiment.name
                require(name not in entries, f"two experiments are called {name!r}; rename the one in {module}")
                require(name.startswith(f"{paper}/"), f"experiment {name!r} of {module} must be called '{paper}/...'")
                entries[name] = Entry(module, experiment)
        if not any(name.startswith(f"{paper}/") for name in entries):
            broken.setdefault(paper, f"no experiments; add EXPERIMENTS to a module {package}.{paper}*")
    return Catalogue(entries, broken)


def load(module: str, name: str) -> Experiment:
    """The experiment of this name in this module."""
    experiments: tuple[Experiment, ...] = importlib.import_module(module).EXPERIMENTS
    return next(experiment for experiment in experiments if experiment.name == name)
