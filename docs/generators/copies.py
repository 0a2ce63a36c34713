"""Make pages of the repository's own files: examples, templates, notebooks, changelog."""

from __future__ import annotations

from pathlib import Path

from docs.generators import student_copies
from docs.generators.links import rewritten

ROOT = Path(__file__).parents[2]
_LANGUAGES = {".py": "python", ".sh": "bash", ".toml": "toml"}
_WHOLE = {
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
}


def pages() -> dict[str, str]:
    """Return the pages by path."""
    whole = {
        name: rewritten((ROOT / source).read_text(), (ROOT / source).parent, copied=True)
        for name, source in _WHOLE.items()
    }
    return {**whole, **_examples(), **_templates(), **_student_notebooks()}


def binary_files() -> dict[str, Path]:
    """Return the files that are copied as they are: the notebooks."""
    return {f"notebooks/{path.name}": path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}


def _student_notebooks() -> dict[str, str]:
    paths = sorted((ROOT / "notebooks").glob("*.ipynb"))
    return {f"student/{path.name}": student_copies.text_of(path) for path in paths}


def _examples() -> dict[str, str]:
    folder = ROOT / "examples"
    inner = [path for path in sorted(folder.iterdir()) if path.is_dir() and (path / "README.md").exists()]
    found = {"examples/index.md": _readme(folder) + _toctree(path.name for path in inner)}
    for path in inner:
        files = [file for file in sorted(path.rglob("*")) if file.suffix in _LANGUAGES and file.name != "__init__.py"]
        found[f"examples/{path.name}.md"] = _readme(path) + "".join(map(_listing, files))
    return found


def _templates() -> dict[str, str]:
    folder = ROOT / "extension_templates"
    files = sorted(folder.glob("*.py"))
    found = {"extension_templates/index.md": _readme(folder) + _toctree(file.stem for file in files)}
    for file in files:
        found[f"extension_templates/{file.stem}.md"] = f"# Template: {file.stem}\n" + _listing(file)
    return found


def _readme(folder: Path) -> str:
    return rewritten((folder / "README.md").read_text(), folder, copied=True)


def _listing(file: Path) -> str:
    name = file.relative_to(ROOT)
    return f"\n## `{name}`\n\n````{{code-block}} {_LANGUAGES[file.suffix]}\n{file.read_text().rstrip()}\n````\n"


def _toctree(names: object) -> str:
    return "\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"  # type: ignore[arg-type]
