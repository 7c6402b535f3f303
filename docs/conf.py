"""Settings of the documentation build: `make docs` writes HTML to build/docs.

The build reads nothing but this directory. It fetches no inventory and no font.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

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


SCREENSHOTS = "_static/console"


class Screenshots(SphinxDirective):
    """Show screenshots of the console, if ``make screenshots`` has made them.

    A line is ``NAME: description``. Each has one picture for desktops and one for phones, light or
    dark as the reader's browser asks.
    """

    has_content = True

    def run(self) -> list[nodes.Node]:
        if not (Path(__file__).parent / SCREENSHOTS).is_dir():
            return []
        pictures = []
        for line in self.content:
            name, _, text = line.partition(": ")
            for place, width, kind in ((name, 70, ""), (f"{name}-phone", 26, ", on a phone")):
                pictures.append(
                    f'<picture><source media="(prefers-color-scheme: dark)" '
                    f'srcset="{SCREENSHOTS}/{place}-dark.png"><img loading="lazy" '
                    f'src="{SCREENSHOTS}/{place}-light.png" alt="{escape(text + kind)}" '
                    f'width="{width}%"></picture>'
                )
        return [nodes.raw("", f"<p>{' '.join(pictures)}</p>", format="html")]


def setup(app: Any) -> None:
    app.add_directive("screenshots", Screenshots)
