"""The generated pages hold what they promise; `make docs` builds the site from them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.generators import (
    decision_tree,
    docstrings,
    error_names,
    excerpts,
    figure_counts,
    licences,
    links,
    papers,
    records,
    reference,
    which_leaks,
)
from securefed._commands.cli import app
from tests.test_exports import PINNED, PUBLIC_MODULES

ROOT = Path(__file__).parents[1]


def test_every_error_says_what_to_do() -> None:
    assert len(error_names.classes()) > 25
    assert [error.__name__ for error in error_names.classes() if not error_names.remedy(error)] == []
    assert error_names.remedy(ValueError) == ""  # the control


def test_every_public_module_has_a_page_with_every_name() -> None:
    assert set(reference.MODULES) == (PUBLIC_MODULES | {"securefed"}) - {"securefed.errors"}
    pages = reference.pages()
    for module, names in PINNED.items():
        assert all(f".{name}`" in pages[f"reference/{module}.rst"] for name in names)


def test_every_command_is_on_the_page() -> None:
    from docs.generators import commands  # noqa: PLC0415

    page = commands.pages()["commands.md"]
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert len(names) > 5
    assert all(f"## securefed {name.strip('_')}" in page for name in names)
    assert "`--fail-above`" in page


def test_a_docstring_becomes_text_without_markup_of_its_own() -> None:
    given = ["Return x* of `f(x)`_.", "", "    run(*a)", "", "Claimed: much, and", "    more.", "Assumed: little."]
    assert docstrings.converted(given) == [
        "Return x\\* of `f(x)`_.",
        "",
        ".. code-block:: text",
        "",
        "    run(*a)",
        "",
        "Claimed: much, and",
        "more.",
        "",
        "Assumed: little.",
    ]


def test_links_out_of_the_folder_lead_to_pages_of_the_site() -> None:
    text = "[a](../examples/pipes) [b](../benchmarks/results/README.md#x) [c](../securefed/errors.py) [d](torch.md#y)"
    assert links.rewritten(text, ROOT / "docs") == (
        "[a](/generated/examples/pipes.md) [b](/generated/benchmark-results.md#x) c (`securefed/errors.py`) "
        "[d](torch.md#y)"
    )
    inner = "![p](../generated/pictures/paillier.svg) [q](../how-to/active-server.md) [r](https://example.org/a.md)"
    assert links.rewritten(inner, ROOT / "docs" / "explanation") == inner
    assert links.rewritten("[s](docs/torch.md) [t](SECURITY.md)", ROOT, copied=True) == (
        "[s](/torch.md) [t](/generated/security.md)"
    )


def test_every_link_of_the_pages_leads_to_a_file() -> None:
    """Links into the generated folder are checked by the build."""
    broken = []
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if "generated" not in page.parts:
            for target in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text()):
                path = (page.parent / target).resolve()
                if not target.startswith("/") and "generated" not in path.parts and not path.exists():
                    broken.append((page.name, target))
    assert broken == []


def test_every_table_that_a_page_includes_is_made_from_results() -> None:
    made = {**records.pages(), **papers.pages(), **figure_counts.pages(), **decision_tree.pages()}
    included = {
        name
        for page in sorted((ROOT / "docs").rglob("*.md"))
        if "generated" not in page.parts
        for name in re.findall(r"include} /generated/(\S+)", page.read_text())
    }
    assert included <= set(made)
    shown = {name for name in made if name.startswith("records/")}
    assert shown <= included  # what is made is shown
    assert all(re.search(r"\d", made[name]) for name in shown)


def test_the_table_of_leaks_holds_every_audited_algorithm() -> None:
    page = which_leaks.pages()["which-algorithm-leaks-what.md"]
    assert re.search(r"`pca/ssi` \| second moments \| \*\*exposed 1\.00\*\* \| not detected", page)
    assert page.count("`optimization/") == 22  # eleven algorithms, one client and all clients


def test_the_decision_tree_names_defences_that_are_registered() -> None:
    from securefed import _catalogue as catalogue  # noqa: PLC0415

    named = re.findall(r"- \*\*([\w/]+)\*\*", decision_tree.pages()["decision-tree.md"])
    assert len(named) > 5
    known = {entry.name for entry in (*catalogue.defenses, *catalogue.algorithms)}
    assert set(named) <= known


def test_licences_of_dependencies_are_named() -> None:
    assert "Apache" in licences.licence_of("cryptography")
    assert "**phe**" in licences.pages()["licences.md"]  # GPL: a reader who ships products has to know


@pytest.mark.exhaustive
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.glob("**/*.md"))
    page = (tmp_path / "explanation" / "secure-aggregation.html").read_text()
    assert 'src="../_images/secure-aggregation.svg"' in page
    assert 'href="../how-to/active-server.html"' in page
    index = (tmp_path / "searchindex.js").read_text()
    assert all(f'"{word}":' in index for word in ("dropout", "clip", "defenc"))


def test_the_search_has_the_text_of_each_page_where_the_site_is_read_as_files() -> None:
    body = "<h1>Paillier<a>#</a></h1><script>let x = 1</script><p>adds &amp; <em>multiplies</em>\n  twice</p>"
    assert excerpts.text_of(body) == "Paillier # adds & multiplies twice"
    made = excerpts.script({"generated/notebooks/06": 'a "quoted" text'})
    assert made.startswith('const EXCERPTS = {"generated/notebooks/06": "a \\"quoted\\" text"};')
    assert 'location.protocol === "file:"' in made
