"""Which definitions a piece of code reaches by name, across modules, read from source texts without importing them.

A definition is what a module binds to a name at its top: a function, a class, a constant. It reaches the names that it
uses. A name that a module imports leads to the module that defines it: through the re-exports of a package (imports,
and the `EXPORTS` of `securefed._lazy`), and from imports inside functions too. Local names count as uses of a global of
that name, and a module that is passed around counts as all of it: too much may be reached, but not too little. What is
looked up by a text at run time (a registry, `import_module`) is not followed; `tests/benchmarks/test_sources.py` keeps
the experiments from doing so. Words change no figure and are left out: docstrings, comments, layout, annotations of
functions, what is raised, and under which name a class is registered.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path

ROOT = Path(__file__).parents[2]
BESIDE = {"securefed": ROOT}
"""By package, a folder outside it that holds some of its packages: `securefed.attacks` is the folder `attacks`."""
Definition = tuple[str, str]
"""A module and a name that it binds."""
ALL = "*"
"""In place of a name: everything that a module binds or does."""
LOOSE = ""
"""In place of a name: the statements of a module that bind no name, such as calls; they belong to each definition."""
BLOCKS = (ast.For, ast.While, ast.If, ast.With, ast.Try)


@dataclass
class Sources:
    """Source texts by the names of modules.

    Attributes:
        overlay: texts that take the place of files, by module.
    """

    overlay: Mapping[str, str] = field(default_factory=dict)
    _modules: dict[str, Module | None] = field(default_factory=dict)
    _read: dict[Definition, tuple[str, tuple[Definition, ...]]] = field(default_factory=dict)

    def module(self, name: str) -> Module | None:
        """Return the module of this name, or `None` if there is none."""
        if name not in self._modules:
            path = path_of(name)
            text = self.overlay.get(name, path.read_text(encoding="utf-8") if path else None)
            self._modules[name] = None if text is None else Module.of(name, text)
        return self._modules[name]

    def changed(self, overlay: Mapping[str, str]) -> Sources:
        """Return these sources with other texts of some modules, which must bind the same names."""
        other = Sources({**self.overlay, **overlay}, {**self._modules}, {**self._read})
        for name in overlay:
            other._modules.pop(name, None)
        for place in [place for place in other._read if place[0] in overlay]:
            del other._read[place]
        return other

    def reached(self, uses: Iterable[Definition], follows: Callable[[str], bool]) -> dict[Definition, str]:
        """Follow uses to the definitions that they reach, in the modules that `follows` accepts.

        Args:
            uses: definitions, of which some may stand for a whole module (`ALL`), or be re-exported.
            follows: whether a module counts, by its name.

        Returns:
            A digest of the code of each definition.
        """
        found: dict[Definition, str] = {}
        ahead, seen = list(uses), set()
        while ahead:
            use = ahead.pop()
            module = self.module(use[0]) if use not in seen and follows(use[0]) else None
            seen.add(use)
            if module is None:
                continue
            if use[1] in module.bound:
                found[use], used = self.definition(module, use[1])
                ahead += [(module.name, LOOSE), *used]
            elif use[1] in module.imported:
                ahead.append(module.imported[use[1]])
            elif use[1] and self.module(".".join(use)) is not None:
                ahead.append((".".join(use), ALL))
            elif use[1]:  # all of the module, and so if it has no such name
                ahead += [(module.name, name) for name in (*module.bound, *module.imported)]
        return found

    def definition(self, module: Module, name: str) -> tuple[str, tuple[Definition, ...]]:
        """Return a digest of the code that binds a name, and what this code uses."""
        if (module.name, name) not in self._read:
            statements = module.bound[name]
            code = hashlib.sha256("".join(map(text, statements)).encode()).hexdigest()
            used = dict.fromkeys(use for statement in statements for use in self.uses(module, statement))
            self._read[module.name, name] = code, tuple(used)
        return self._read[module.name, name]

    def uses(self, module: Module, node: ast.AST) -> Iterator[Definition]:
        """Return the definitions that a piece of a module's code names."""
        for part in _walk(node):
            if isinstance(part, ast.Import | ast.ImportFrom):
                yield from _imports(part).values()
            elif isinstance(part, ast.Attribute | ast.Name):
                yield from self._named(module, _dotted(part))

    def _named(self, module: Module, names: Sequence[str]) -> Iterator[Definition]:
        """Return what `a.b.c` means in a module: one of its definitions, or one of a module that it imports."""
        if names and names[0] in module.bound:
            yield module.name, names[0]
        elif names and names[0] in module.imported:
            path, name = module.imported[names[0]]
            for following in (*names[1:], None):
                inner = path if name == ALL else f"{path}.{name}"
                if name != ALL and (self.module(inner) is None or self._binds(path, name)):
                    break
                path, name = inner, following or ALL
            yield path, name

    def _binds(self, path: str, name: str) -> bool:
        module = self.module(path)
        return module is not None and (name in module.bound or name in module.imported)


@dataclass(frozen=True)
class Module:
    """A module by what its statements bind.

    Attributes:
        name: of the module.
        bound: by name, the statements that bind it, without their words; `LOOSE` has those that bind none.
        imported: by name, the definition that it stands for.
    """

    name: str
    bound: Mapping[str, Sequence[ast.stmt]]
    imported: Mapping[str, Definition]

    @classmethod
    def of(cls, name: str, source: str) -> Module:
        """Read a module's text."""
        bound: dict[str, list[ast.stmt]] = {}
        imported: dict[str, Definition] = {}
        for_types: dict[str, Definition] = {}
        for statement in _Wordless().visit(ast.parse(source)).body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                imported |= _imports(statement)
            elif isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING":
                for inner in statement.body:  # where names come from that a package loads by a text
                    for_types |= _imports(inner) if isinstance(inner, ast.ImportFrom) else {}
            else:
                names = list(_names_bound(statement))
                for key in (*names, *((LOOSE,) if not names or isinstance(statement, BLOCKS) else ())):
                    bound.setdefault(key, []).append(statement)
        if "EXPORTS" in bound and isinstance(bound["EXPORTS"][0], ast.Assign):
            exports = ast.literal_eval(bound["EXPORTS"][0].value)
            imported |= {each: (path, each) for path, names in exports.items() for each in names.split()}
        return cls(name, bound, for_types | imported)


def path_of(name: str) -> Path | None:
    """Return the file of a module, or `None` if there is none; nothing is imported."""
    top, *inner = name.split(".")
    spec = PathFinder.find_spec(top)
    if spec is None or spec.origin is None:
        return None
    if not inner:
        return Path(spec.origin)
    folders = [Path(each) for each in spec.submodule_search_locations or ()]
    folders += [BESIDE[top]] if top in BESIDE else []
    ends = (Path(*inner).with_suffix(".py"), Path(*inner, "__init__.py"))
    return next((folder / end for folder in folders for end in ends if (folder / end).is_file()), None)


class _Wordless(ast.NodeTransformer):
    """Removes the words of a module, which change no figure."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        """Remove a string that stands alone: a docstring or a comment."""
        prose = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if prose else self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        """Remove what is raised, which ends a run."""
        return ast.Raise()

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Remove the message of `require(condition, message)`."""
        if isinstance(node.func, ast.Name) and node.func.id == "require":
            node.args, node.keywords = node.args[:1], []
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Keep an annotation, which may make a field of a dataclass, but not as a use of its names."""
        node.annotation = ast.Constant(ast.unparse(node.annotation))
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """Remove an argument's annotation."""
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remove the annotation of what a function returns, and its registration."""
        node.returns = None
        return self.visit_ClassDef(node)

    def visit_ClassDef(self, node: ast.ClassDef | ast.FunctionDef) -> ast.AST:
        """Remove the registration of a class."""
        node.decorator_list = [each for each in node.decorator_list if not _registers(each)]
        return self.generic_visit(node)


def _registers(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr == "register"


def text(node: object) -> str:
    """Return code as text, without its layout; the same in every version of Python, unlike `ast.dump`."""
    if isinstance(node, list):
        return "[" + " ".join(map(text, node)) + "]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = ((name, getattr(node, name, None)) for name in node._fields)
    said = (f"{name}={text(value)}" for name, value in fields if value is not None and value != [])
    return f"{type(node).__name__}({' '.join(said)})"


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Return a node and those below it, but of `a.b.c` the whole alone."""
    yield node
    if not _dotted(node):
        for inner in ast.iter_child_nodes(node):
            yield from _walk(inner)


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """Return the names of `a.b.c`; nothing for other code."""
    if isinstance(node, ast.Name):
        return (node.id,)
    before = _dotted(node.value) if isinstance(node, ast.Attribute) else ()
    return (*before, node.attr) if isinstance(node, ast.Attribute) and before else ()


def _imports(node: ast.Import | ast.ImportFrom) -> dict[str, Definition]:
    """Return what an import binds, by name."""
    if isinstance(node, ast.ImportFrom):
        return {each.asname or each.name: (node.module or "", each.name) for each in node.names}
    return {
        each.asname or each.name.partition(".")[0]: (each.name if each.asname else each.name.partition(".")[0], ALL)
        for each in node.names
    }


def _names_bound(statement: ast.stmt) -> Iterator[str]:
    """Return the names that a statement at the top of a module binds."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    else:
        for part in ast.walk(statement):
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                yield part.id
            elif isinstance(part, ast.Import | ast.ImportFrom):
                yield from _imports(part)
            elif isinstance(part, ast.FunctionDef | ast.ClassDef):
                yield part.name
