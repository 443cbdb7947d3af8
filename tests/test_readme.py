"""What the README says runs."""

from pathlib import Path

import pytest
import torch

from snippets import snippets

SNIPPETS = [code for _, code in snippets(Path(__file__).parent.parent / "README.md")]


@pytest.fixture(scope="module")
def namespace():
    """The snippets run in order and share their names, as in a reader's session."""
    return {}


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_snippet_runs(number, namespace):
    exec(compile(SNIPPETS[number], f"README snippet {number + 1}", "exec"), namespace)


def test_first_example_learns(namespace):
    """It ranks nearly as well as the feature that made the labels does."""
    exec(SNIPPETS[0], namespace)
    x, y, model = (namespace[name] for name in ("x", "y", "model"))

    def average_precision(scores):
        hits = y[scores.argsort(descending=True)].double()
        return ((hits.cumsum(0) / torch.arange(1, len(y) + 1)) * hits).sum() / hits.sum()

    with torch.no_grad():
        assert average_precision(model(x).ravel()) > 0.95 * average_precision(x[:, 0])


def test_example_is_short():
    assert len([line for line in SNIPPETS[0].splitlines() if line.strip()]) <= 17
