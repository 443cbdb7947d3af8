"""What MkDocs calls while it builds the site (see ``hooks`` in mkdocs.yml)."""

from __future__ import annotations

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import directives
import names
import pages
import terms
from maths import Maths


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Teach Markdown formulas."""
    config.markdown_extensions.append(Maths())
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are files elsewhere in the repository."""

    def add(place: str, content: str) -> None:
        files.append(File.generated(config, place, content=content))

    for path, place in pages.MOVED.items():
        add(place, (pages.ROOT / path).read_text())
    for path in pages.COPIED:
        add(path, (pages.ROOT / path).read_text())
    for place, script in pages.examples().items():
        add(place, pages.example_page(script))
    add("examples/overview.md", pages.index_of_examples())
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Draw what a page asks for, and lead its links to other files of the repository to their pages."""
    place = page.file.src_uri
    if place.startswith("examples/"):
        return markdown
    if place in pages.DRAWN:
        markdown = directives.with_charts(markdown)
    if place == "benchmarks.md":
        markdown = markdown.replace("## Summary\n", "## Summary\n\n<!-- verdicts: BENCHMARKS.md > Summary -->\n", 1)
    markdown = pages.with_links(directives.carried_out(markdown), place)
    if not place.startswith("reference/"):
        markdown = names.with_references(markdown)
    return markdown + terms.abbreviations(place)
