"""Settings of the documentation build: `make docs` writes HTML to docs/_build/html.

The build reads nothing but this directory. It fetches no inventory and no font.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

project = "brokerd"
author = "The brokerd authors"
copyright = author
language = "en"

# `:ref:` finds a section by page and title, for example `operations:Disk space`.
extensions = ["sphinx.ext.autosectionlabel"]
autosectionlabel_prefix_document = True

nitpicky = True
exclude_patterns = ["_build"]
highlight_language = "none"
smartquotes = False

html_theme = "alabaster"
html_theme_options = {
    "description": "A durable message broker on Twisted",
    "fixed_sidebar": True,
    "page_width": "1100px",
    "sidebar_width": "230px",
    # Fonts of the reader's machine.
    "font_family": "sans-serif",
    "head_font_family": "sans-serif",
}
html_static_path = ["_static"]
html_css_files = ["brokerd.css"]
html_show_sourcelink = False


def setup(app: Any) -> None:
    """Show the screenshots of the console, if ``make screenshots`` has made them."""
    if (Path(__file__).parent / "_static" / "console").is_dir():
        app.tags.add("screenshots")
