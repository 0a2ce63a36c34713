"""Import a package's public names when they are first used, so that importing the package stays quick.

A package's `__init__.py` lists, by module, the names that it exports, and hands the list to `export_lazily`:

    EXPORTS = {"securefed.algorithms._base": "Algorithm algorithms", "securefed.algorithms._pca.ssi": "SSI"}
    export_lazily(__name__, EXPORTS)

`help(package)` lists the names, each with the first line of its docstring; the lines are read from the source files,
because importing every module for `help` would load torch. For type checkers the package also imports the names under
`if TYPE_CHECKING:` and lists them in `__all__`. `tests/test_exports.py` checks that `EXPORTS`, these imports and
`__all__` hold the same names.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from itertools import accumulate
from types import ModuleType
from typing import Any

from securefed._extras import EXTRA_OF, is_installed, needed_for


def export_lazily(package: str, exports: Mapping[str, str], *, needs: Mapping[str, str] | None = None) -> None:
    """Make a package import its public names when they are first used.

    Args:
        package: the package's `__name__`; the package is being imported.
        exports: by module, the names that it defines, with spaces between them; `help` shows them in this order.
        needs: for a name that cannot be imported without an extra, a module of that extra (`EXTRA_OF`). While that
            module is not installed, `dir` and `__all__` omit the name, so that neither `help` nor `import *` imports
            it, and `help` says beside the name which extra it needs.
    """
    module = sys.modules[package]
    module.__dict__["_needs"] = dict(needs or {})
    module.__dict__["_module_of"] = {name: path for path, names in exports.items() for name in names.split()}
    module.__class__ = _LazyPackage


class _LazyPackage(ModuleType):
    """A package that imports its public names when they are first used, and lists them in its `__doc__`."""

    _module_of: dict[str, str]
    _needs: dict[str, str]

    def __getattr__(self, name: str) -> Any:
        if name not in self._module_of:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}; see help({self.__name__})")
        with needed_for(f"{self.__name__}.{name}"):
            value = getattr(import_module(self._module_of[name]), name)
        self.__dict__[name] = value
        return value

    def __dir__(self) -> list[str]:
        return sorted(set(self._module_of) - set(self._missing()))

    @property
    def __all__(self) -> list[str]:
        missing = self._missing()
        return [name for name in self.__dict__["__all__"] if name not in missing]

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        missing = self._missing()
        ends = {
            name: f" Needs securefed[{EXTRA_OF[module]}], which is not installed." for name, module in missing.items()
        }
        described = (
            f"    {name}: {_summaries(path).get(name, '')}{ends.get(name, '')}"
            for name, path in self._module_of.items()
        )
        return "\n".join([(self.__dict__["__doc__"] or "").rstrip(), "", "Public names:", "", *described, ""])

    def _missing(self) -> dict[str, str]:
        """Return the names that cannot be imported, each with the module that is not installed."""
        absent = {module for module in set(self._needs.values()) if not is_installed(module)}
        return {name: module for name, module in self._needs.items() if module in absent}


@cache
def _summaries(module: str) -> dict[str, str]:
    """Return the first docstring line of what a module defines at its top, by name, without importing the module."""
    body = ast.parse(_source(module)).body
    found: dict[str, str] = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        match statement, following:
            case (ast.ClassDef(name=name) | ast.FunctionDef(name=name)) as definition, _:
                found[name] = ast.get_docstring(definition) or ""
            case (
                ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = text
    return {name: text.partition("\n")[0] for name, text in found.items()}


def _source(module: str) -> str:
    """Return the source text of a module, or an empty text if the module is not installed.

    Finders look a module up in its package's path, so that for "a.b.c" this finds "a", then "a.b", then "a.b.c".
    `importlib.util.find_spec` would do the same, and import "a" and "a.b" on the way.
    """
    path, spec = None, None
    for name in accumulate(module.split("."), "{}.{}".format):
        specs = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next(filter(None, specs), None)
        if spec is None:
            return ""
        path = spec.submodule_search_locations
    loader: Any = spec.loader if spec else None
    return (loader.get_source(module) if hasattr(loader, "get_source") else None) or ""
