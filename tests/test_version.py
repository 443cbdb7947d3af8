"""The version is written in several files, which must agree."""

import re
from pathlib import Path

import fcco

ROOT = Path(__file__).parent.parent


def test_the_changelog_the_citation_and_the_package_are_of_one_version():
    release = re.search(r"^## \[(\d.*)\] - (.*)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    cited = re.findall(r"^(?:version|date-released): (.*)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert tuple(cited) == release.groups()
    assert fcco.__version__ == release[1]
