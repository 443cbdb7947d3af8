"""What the README says runs."""

from pathlib import Path

import pytest
import torch

import fcco
from fcco.functional import average_precision, concordance_index
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
    """It orders patients nearly as well as the feature that made the times does."""
    exec(SNIPPETS[0], namespace)
    x, time, event, model = (namespace[name] for name in ("x", "time", "event", "model"))
    with torch.no_grad():
        reached, best = (concordance_index(risk, time, event) for risk in (model(x)[:, 0], x[:, 0]))
    assert reached > 0.99 * best


def test_own_objective_learns():
    """The scores rank nearly as well as the feature that made the labels does."""
    torch.manual_seed(0)
    x = torch.randn(2000, 10)
    y = x[:, 0] + 0.5 * torch.randn(2000) > 1.5
    (snippet,) = (text for text in SNIPPETS if "CoupledLoss(lambda" in text)
    names = {"torch": torch, "fcco": fcco, "x": x, "y": y}
    exec(snippet, names)
    with torch.no_grad():
        assert average_precision(names["scorer"](x).ravel(), y) > 0.95 * average_precision(x[:, 0], y)


def test_example_is_short():
    assert len([line for line in SNIPPETS[0].splitlines() if line.strip()]) <= 17
