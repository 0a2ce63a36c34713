"""Configure Sphinx: `make docs` builds the site from this folder into `build/site`, without the network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import securefed  # noqa: E402
from docs.generators import docstrings, excerpts, links, mathml, pages  # noqa: E402

project = "securefed"
author = "the securefed maintainers"
project_copyright = "the securefed maintainers, Apache-2.0"
version = release = securefed.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
_INCLUDED = ["generated/decision-tree.md", "generated/papers", "generated/records"]  # parts of other pages
_DOWNLOADED = ["generated/student"]
exclude_patterns = ["generators", *_INCLUDED, *_DOWNLOADED, "**/.ipynb_checkpoints"]
default_role = "literal"  # docstrings of this package put code between single backticks
nitpicky = False

# Markdown. Headings get anchors, so that a link to `page.md#section` is checked.
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline", "dollarmath"]
myst_dmath_allow_digits = False  # a price is no formula
myst_heading_anchors = 4
suppress_warnings = ["misc.highlighting_failure"]

# Notebooks are executed by the tests; the site shows the outputs that they keep.
nb_execution_mode = "off"
nb_merge_streams = True

# The reference: signatures as written, members in the order of the source.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Array": "Array", "Tensors": "Tensors"}
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"securefed {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

pages.write_all(ROOT / "docs" / "generated")


def setup(app: Any) -> None:
    """Connect what the site does beside Sphinx: links out of this folder, and docstrings as reStructuredText."""
    mathml.setup(app)
    excerpts.setup(app)
    app.connect("source-read", links.rewrite)
    app.connect("autodoc-process-docstring", docstrings.convert, priority=400)  # before napoleon's
    app.connect("autodoc-skip-member", docstrings.skip)
