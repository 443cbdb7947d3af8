"""What the pages of the documentation show runs."""

from pathlib import Path

import pytest
import torch

from snippets import run, snippets

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if snippets(page)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Pages may write files, and begin with the same seed."""
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_page_runs(page):
    run(page, {"__name__": "__main__", "__file__": str(page)})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_no_block_is_left_out(page):
    """A block that is indented, or not closed, would not be run."""
    text = page.read_text()
    assert len(snippets(page)) == text.count("```python") + text.count("<!--python")
