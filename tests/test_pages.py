"""What the pages of the documentation show runs, and the commands that they name exist."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

import fcco_command
from snippets import commands, run, snippets

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if snippets(page)]
WITH_COMMANDS = [
    page
    for page in sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
    if page.name != "CHANGELOG.md" and commands(page)  # which names commands of earlier versions
]


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


def check_make(words):
    makefile = (ROOT / "Makefile").read_text()
    for word in words:
        name, given, _ = word.partition("=")
        assert re.search(rf"\$\({name}\)" if given else rf"^{name}:", makefile, flags=re.MULTILINE), word


def check_python(words, folder):
    if words[0] == "-m":
        module = ROOT / folder / words[1]
        found = [*module.rglob("*.py")] if (module / "__main__.py").exists() else [module.with_suffix(".py")]
    else:
        found = [ROOT / words[0]]
    source = "".join(path.read_text() for path in found)
    for option in (word.partition("=")[0] for word in words if word.startswith("--")):
        assert f'"{option}"' in source, option


def check_pip(words):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert words[0] == "install"
    for found in (re.fullmatch(r"\.\[(.*)\]", word) for word in words):
        assert not found or {*found.group(1).split(",")} <= {*extras}, words


def check_fcco(words):
    assert words[0] in fcco_command.COMMANDS
    if words[1:]:  # a sentence may name a command without what it needs
        try:
            fcco_command.parser(words[0]).parse_args(words)
        except SystemExit as end:
            if end.code:  # 0 is that of --help
                raise


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_exist(page):
    for words in commands(page):
        first = next(place for place, word in enumerate(words) if "=" not in word)
        variables, command, rest = dict(word.split("=", 1) for word in words[:first]), words[first], words[first + 1 :]
        if command == "python":
            check_python(rest, variables.get("PYTHONPATH", ""))
        else:
            {"make": check_make, "pip": check_pip, "fcco": check_fcco}[command](rest)
        for word in rest:
            assert not re.match("(docs|benchmarks|examples|tests)/", word) or (ROOT / word).exists(), words
