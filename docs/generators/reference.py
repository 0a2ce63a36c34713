"""Write the reference: a page for each public module, with every name that it exports, from the names' docstrings."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import ModuleType
from typing import Any

MODULES = {
    "securefed": "the names that most programs begin with",
    "securefed.algorithms": "federated algorithms",
    "securefed.attacks": "attacks on recorded messages",
    "securefed.attacks.scores": "how close an estimate is",
    "securefed.attacks.views": "what an attacker sees of a run",
    "securefed.datasets": "data sets and their splits",
    "securefed.datasets.partition": "splits of a data set over clients",
    "securefed.datasets.scaling": "scaling of columns",
    "securefed.defenses": "secure aggregation, encryption, differential privacy",
    "securefed.detection": "anomaly detection",
    "securefed.flower": "Flower apps",
    "securefed.parties": "sums between parties, over any transport",
    "securefed.problems": "training problems",
    "securefed.recording": "runs of other frameworks as transcripts",
    "securefed.statistics": "statistics of all parties' rows",
    "securefed.testing": "checks for your own test suite",
    "securefed.torch": "masked all-reduce and recordings of torch loops",
}
"""Public modules, with what a reader finds there; `securefed.errors` has a page of its own (`error_names`)."""


def pages() -> dict[str, str]:
    """Return the pages of the reference by path, as reStructuredText."""
    home = _homes()
    return {f"reference/{module}.rst": _page(module, home) for module in MODULES}


def names(module: str) -> list[str]:
    """Return the public names of a module, sorted."""
    loaded = import_module(module)
    listed = getattr(loaded, "__all__", None)
    if listed is not None:
        return sorted(name for name in listed if not inspect.ismodule(getattr(loaded, name)))
    own = vars(loaded).items()
    return sorted(n for n, v in own if not n.startswith("_") and getattr(v, "__module__", None) == module)


def _homes() -> dict[int, str]:
    """Return, by the identity of an object, the module on whose page it is described."""
    found: dict[int, str] = {}
    for module in [*[m for m in MODULES if m != "securefed"], "securefed"]:
        for name in names(module):
            found.setdefault(id(getattr(import_module(module), name)), module)
    return found


def _page(module: str, home: dict[int, str]) -> str:
    loaded = import_module(module)
    lines = [f".. _{module}:", "", module, "=" * len(module), "", *_introduction(loaded), ""]
    lines += [f".. py:module:: {module}", "", ".. list-table::", "   :widths: 30 70", ""]
    for name in names(module):
        value = getattr(loaded, name)
        where = home[id(value)]
        lines += [f"   * - :py:obj:`~{where}.{name}`", f"     - {_summary(value, module, name)}"]
    lines.append("")
    for name in names(module):
        if home[id(getattr(loaded, name))] == module:
            lines += _entry(module, name, getattr(loaded, name))
    return "\n".join(lines) + "\n"


def _introduction(loaded: ModuleType) -> list[str]:
    from docs.generators.docstrings import converted  # noqa: PLC0415

    text = (loaded.__dict__.get("__doc__") or loaded.__doc__ or "").partition("\nPublic names:")[0]
    return converted(text.rstrip().splitlines())


def _entry(module: str, name: str, value: Any) -> list[str]:
    title = [name, "-" * len(name), ""]
    if inspect.isclass(value):
        return [*title, f".. autoclass:: {module}.{name}", "   :members:", ""]
    if inspect.isroutine(value):
        return [*title, f".. autofunction:: {module}.{name}", ""]
    return [*title, f".. py:data:: {module}.{name}", "", f"   {_summary(value, module, name)}", ""]


def _summary(value: Any, module: str, name: str) -> str:
    from docs.generators.docstrings import converted  # noqa: PLC0415

    text = _assigned(module, name)
    if text is None:
        text = (inspect.getdoc(value) or "").partition("\n")[0]
    return converted([text])[0]


def _assigned(module: str, name: str) -> str | None:
    """Return the first line of the docstring below an assignment; `None` where the name is a class or a function."""
    value = getattr(import_module(module), name)
    if inspect.isclass(value) or inspect.isroutine(value):
        return None
    from securefed._lazy import _summaries  # noqa: PLC0415 - reads them from the source

    where = vars(import_module(module)).get("_module_of", {}).get(name, module)
    return _summaries(where).get(name, "")
