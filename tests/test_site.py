"""The documentation builds without a warning, has every public name, and loads nothing from elsewhere."""

import ast
import importlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parent.parent
LOADED = dict.fromkeys(("script", "img", "iframe", "source", "audio", "video", "embed"), "src")
LOADED |= dict.fromkeys(("link", "image", "use"), "href")
OUTSIDE = ["fcco.integrations.lightning", "fcco.integrations.skorch", "fcco_reproduce", "fcco_reproduce.datasets"]


class Page(HTMLParser):
    """What a page of the site loads and links to, its anchors, and its pictures without words."""

    def __init__(self, path):
        super().__init__()
        self.path, self.loaded, self.links, self.anchors, self.wordless = path, [], [], set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.anchors.update(value for name, value in attributes if name in ("id", "name"))
        if tag in LOADED and given.get(LOADED[tag]):
            self.loaded.append(given[LOADED[tag]])
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if (tag == "img" and not given.get("alt")) or (
            tag == "svg" and given.get("role") == "img" and not given.get("aria-label")
        ):
            self.wordless.append(attributes)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for needed in ("material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(needed)
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return {path.relative_to(folder).as_posix(): Page(path) for path in folder.rglob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site):
    for name, page in site.items():
        assert not [url for url in page.loaded if urlsplit(url).netloc or url.startswith("//")], name
        assert 'class="mermaid"' not in page.path.read_text(), f"{name}: the theme fetches Mermaid"
    for sheet in site["index.html"].path.parent.rglob("*.css"):
        assert not re.search(r"""(url\(|@import)\s*["']?(https?:)?//""", sheet.read_text()), sheet


def test_links_within_the_site_lead_somewhere(site):
    for name, page in site.items():
        if name == "404.html":
            continue
        for url in [*page.loaded, *page.links]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
            assert target.exists(), f"{name}: {url}"


def test_pictures_have_words(site):
    assert not {name: page.wordless for name, page in site.items() if page.wordless}


def public_names(module):
    """Return the names in a module's ``__all__``, and those of the modules among them, without importing anything."""
    path = ROOT / "src" / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.exists():
        return []
    assigned = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.Assign)]
    names = next(node.value for node in assigned if node.targets[0].id == "__all__")
    full = [f"{module}.{name}" for name in ast.literal_eval(names)]
    return full + [name for member in full for name in public_names(member)]


@pytest.mark.parametrize("module", ["fcco", *OUTSIDE])
def test_every_public_name_is_in_the_reference(site, module):
    anchors = set().union(*(page.anchors for name, page in site.items() if name.startswith("reference/")))
    names = public_names(module)
    assert names
    assert not [name for name in names if name not in anchors]


def test_figures_are_taken_from_tables():
    tables = pytest.importorskip("tables")
    found = tables.read_table("BENCHMARKS.md", "Summary").where("Survival")
    assert found.head[0] == "application"
    assert all(row[0] == "Survival" for row in found.rows)
    with pytest.raises(ValueError, match="no such heading"):
        tables.read_table("BENCHMARKS.md", "Nothing")
    with pytest.raises(ValueError, match="no row with 'Nothing'"):
        found.where("Nothing")


def test_charts_of_stored_results_have_their_standard_errors():
    table = importlib.import_module("tables").read_table("docs/memory.md", "Cox")
    assert table.errors["metabric, 8, 20", "in-batch"] > 0
    chart = importlib.import_module("charts").dot_plot(table, "Excess.")
    assert "Bars are standard errors over seeds." in chart
    assert chart.count('class="bar-ours"') == len(table.rows) - 1, "one in each row but that of the means"


@pytest.mark.parametrize("page", ["ap.html", "nca.html", "push.html", "theory.html"])
def test_studies_show_dots(site, page):
    assert "Dot plot." in site[page].path.read_text()


def test_text_for_readers_of_the_file_is_not_on_the_site(site):
    text = importlib.import_module("directives").carried_out("a <!-- off the site -->b\n<!-- on the site -->c")
    assert text == "a c"
    assert "The site that" not in site["choose.html"].path.read_text()


@pytest.mark.parametrize(
    ("cell", "value"),
    [("0.4186 ± 0.0096", (0.4186, 0.0096)), ("**.0066 +**", (0.0066, 0.0)), ("-3.02", (-3.02, 0.0)), ("even", None)],
)
def test_numbers_in_cells(cell, value):
    assert importlib.import_module("tables").number(cell) == value


def test_the_questions_of_the_flow_chart_are_in_the_file_too():
    page = (ROOT / "docs/choose.md").read_text(encoding="utf-8")
    for question, answer, _ in importlib.import_module("diagrams").QUESTIONS:
        assert f"{' '.join(question)}\n   Yes: {' '.join(answer)}\n" in page


def test_drawings_that_are_files_are_up_to_date():
    for place, draw in importlib.import_module("diagrams").FILES.items():
        assert (ROOT / place).read_text(encoding="utf-8") == draw()


def test_links_to_other_files_of_the_repository():
    pages = importlib.import_module("pages")
    assert pages.with_links("[a](docs/memory.md#networks)", "benchmarks.md") == "[a](memory.md#networks)"
    assert pages.with_links("[a](../examples/bags.py)", "coming_from_libauc.md") == "[a](examples/bags.md)"
    assert pages.with_links("[a](../../RESULTS.md)", "applications/nca.md") == "[a](../results.md)"
    assert pages.with_links("`[a](nowhere)`", "choose.md") == "`[a](nowhere)`"
    with pytest.raises(ValueError, match=r"docs/choose.md links to ../nowhere.md"):
        pages.with_links("[a](../nowhere.md)", "choose.md")


COMPARISON = """*Metric*: accuracy.

| data | batch | ours | best competitor | which | difference |
|---|---|---|---|---|---|
| digits | 16 | 0.91 ± 0.01 | 0.89 ± 0.02 | in-batch | +0.02, **ours** |

| another | table |
|---|---|
| stays | so |
"""


def test_tables_that_compare_get_a_chart():
    page = importlib.import_module("directives").with_charts(COMPARISON)
    assert 'aria-label="Dot plot. Metric: accuracy. digits, batch 16: fcco 0.91, best competitor 0.89' in page
    assert page.count("<circle") == 2 + 2, "two in the legend, two in the row"
    assert "Higher is better." in page
    assert (
        page.index("<details") < page.index("| digits | 16 |") < page.index("</details>") < page.index("| stays | so |")
    )


METHODS = """![The curves.](curves.svg)

| block | method | lr | test loss | std | paper |
|---|---|---|---|---|---|
| as published | SOX | 1 | 0.91 | 0.01 | 0.92 |
| tuned alike | BSGD | 1 | nan | nan |  |
| tuned alike | SOX | 1 | 0.89 | 0.02 |  |
"""


def test_tables_of_methods_get_a_chart():
    page = importlib.import_module("directives").with_charts(METHODS)
    words = "SOX: fcco 0.91, the paper 0.92 (as published); SOX: fcco 0.89 (tuned alike)"
    assert f'aria-label="Dot plot. test loss. {words}"' in page
    assert page.startswith("![The curves.](curves.svg)\n\n<figure")
    assert page.index("<details") < page.index("| tuned alike | BSGD |") < page.index("</details>")


def test_terms_are_explained_in_words():
    terms = importlib.import_module("terms")
    found = terms.definitions()
    assert found["visit"] == "A training step whose batch contains the row."
    assert not [name for name in found if name not in terms.PLAIN and "\\" in found[name]]
    assert "*[visits]: A training step" in terms.abbreviations("choose.md")
    assert terms.abbreviations("glossary.md") == ""


def test_names_of_the_library_lead_to_the_reference():
    linked = importlib.import_module("names").with_references
    assert linked("`CoxLoss` and `rule`") == "[`CoxLoss`][fcco.losses.CoxLoss] and `rule`"
    assert linked("`CoxLoss.from_targets(event)`") == "[`CoxLoss.from_targets(event)`][fcco.losses.CoxLoss]"
    assert linked("`fcco.functional.cox_loss`") == "[`fcco.functional.cox_loss`][fcco.functional.cox_loss]"
    for left_alone in ("[`CoxLoss`](cox.md)", "## `CoxLoss`", "```python\n`CoxLoss`\n```", "`CoxLoss2`"):
        assert linked(left_alone) == left_alone
