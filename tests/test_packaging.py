"""Test securefed as another project installs it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import securefed

ROOT = Path(__file__).parents[1]


def packages() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])


def test_every_package_folder_is_listed() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for top in ("securefed", "attacks", "defenses")
        for path in (ROOT / top).rglob("__init__.py")
    }
    names = {name if name.startswith("securefed") else f"securefed.{name}" for name in found}
    assert names == packages()


def test_the_citation_has_the_version_of_the_distribution() -> None:
    assert f"\nversion: {securefed.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_every_extra_is_on_the_page_of_installation() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "install.md").read_text()
    assert [extra for extra in extras if f"| `{extra}` |" not in page] == []


def test_import_is_light() -> None:
    heavy = ("torch", "flwr", "sklearn", "scipy", "matplotlib")
    code = f"import sys, securefed; securefed.chain; sys.exit(any(m in sys.modules for m in {heavy!r}))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_exported_names_exist_and_are_listed() -> None:
    for name in securefed.__all__:
        assert getattr(securefed, name) is not None
    with pytest.raises(AttributeError):
        securefed.nothing  # noqa: B018


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built wheel, unpacked where nothing of the repository is on the path."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("securefed", "attacks", "defenses", "pyproject.toml", "README.md", "LICENSE"):
        (source / name).symlink_to(ROOT / name)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder / "site"), str(source)]
    subprocess.run([*command, "--no-build-isolation"], check=True, capture_output=True)
    return folder / "site"


@pytest.mark.exhaustive
def test_python_started_in_the_clone_finds_all_of_an_installed_securefed(installed: Path) -> None:
    """`pip install .`, then Python in the clone, whose folder `securefed` comes first and holds no attacks."""
    outside = [path for path in sys.path if path.endswith("site-packages")]
    code = (
        f"import sys; sys.path += {[str(installed), *outside]!r}\n"  # and no .pth file, so no editable install
        "import securefed, securefed.attacks.views, securefed._catalogue\n"
        "from securefed import chain\n"
        "from securefed.defenses._secure_aggregation import secure_aggregation\n"
        f"assert securefed.__file__.startswith({str(ROOT / 'securefed')!r}), securefed.__file__\n"
        f"assert securefed.attacks.__file__.startswith({str(ROOT / 'attacks')!r}), securefed.attacks.__file__\n"
        "print(chain(secure_aggregation()).name)\n"
    )
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("secure_aggregation")
    hidden = code.replace("import securefed,", "import securefed; securefed.__path__[1:] = []\nimport", 1)
    control = subprocess.run(
        [sys.executable, "-S", "-c", hidden], cwd=ROOT, check=False, capture_output=True, text=True
    )
    assert "No module named 'securefed." in control.stderr


@pytest.mark.exhaustive
def test_imports_work_beside_folders_of_the_same_names(installed: Path, tmp_path: Path) -> None:
    for name in ("attacks", "defenses"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("MINE = True\n")
    code = (
        f"import sys; sys.path[:] = [p for p in sys.path if p != {str(ROOT)!r}]\n"
        f"sys.path.insert(0, {str(installed)!r})\n"
        "sys.path.insert(0, '')\n"
        "import attacks, defenses, securefed, securefed.attacks, securefed.defenses, securefed._catalogue\n"
        "assert attacks.MINE and defenses.MINE\n"
        f"assert securefed.__file__.startswith({str(installed)!r}), securefed.__file__\n"
        f"assert securefed.attacks.__file__.startswith({str(installed)!r}), securefed.attacks.__file__\n"
        "from securefed.defenses._chain import chain; chain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", "import site; site.main()\n" + code],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (installed / "securefed" / "_auditing" / "report" / "report.html.j2").is_file()
