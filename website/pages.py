"""Pages of the site that are files elsewhere in the repository, and links between them."""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent

# Pages next to docs/, by their place on the site.
MOVED = {
    "BENCHMARKS.md": "benchmarks.md",
    "RESULTS.md": "results.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Pages whose tables are written by a benchmark or a study, and drawn on the site.
DRAWN = {*MOVED.values(), "ap.md", "nca.md", "push.md", "theory.md"}
COPIED = ("CITATION.cff", "LICENSE")
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def examples() -> dict[str, Path]:
    """Return the example scripts, by the page that shows them."""
    return {f"{path.relative_to(ROOT).with_suffix('')}.md": path for path in sorted((ROOT / "examples").rglob("*.py"))}


def on_site(path: str) -> str | None:
    """Return where a file of the repository is on the site, or None if it is not there."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in MOVED:
        return MOVED[path]
    if path in COPIED:
        return path
    page = f"{path.removesuffix('.py')}.md"
    return page if page in examples() else None


def in_repository(page: str) -> str:
    """Return the file that a page of the site is made of."""
    return next((path for path, moved in MOVED.items() if moved == page), f"docs/{page}")


def with_links(text: str, page: str) -> str:
    """Return the text of a page with its links to files of the repository as links of the site.

    Raises
    ------
    ValueError
        If a link leads to a file that the site does not have.
    """
    source = in_repository(page)

    def moved(found: re.Match[str]) -> str:
        before, target, anchor, after = found.groups()
        if re.match(r"[a-z]+:", target):
            return found.group(0)
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        place = on_site(path)
        if place is None:
            raise ValueError(f"{source} links to {target}, which is not on the site")
        return f"{before}{posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor or ''}{after}"

    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if k % 2 else LINK.sub(moved, part) for k, part in enumerate(parts))


def example_page(path: Path) -> str:
    """Return the page of an example: what it is about, and its source."""
    source, name = path.read_text(), path.relative_to(ROOT)
    return f"# {summary(path)}\n\n`{name}`\n\n```python\n{source}```\n"


def summary(path: Path) -> str:
    """Return the first line of a script's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or path.stem
    return text.splitlines()[0].removesuffix(".").replace("``", "`")


def index_of_examples() -> str:
    """Return a page that lists all examples."""
    lines = ["# Examples", "", "Scripts that run, and that the tests run in a short form.", ""]
    lines += ["| script | what it shows |", "|---|---|"]
    for page, path in examples().items():
        lines.append(f"| [`{path.relative_to(ROOT)}`]({page.removeprefix('examples/')}) | {summary(path)} |")
    return "\n".join([*lines, ""])
