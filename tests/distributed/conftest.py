"""What the tests of several files ask two ranks, all at once, since starting them takes seconds."""

import os

import pytest
import torch
from filelock import FileLock
from ranks import run_ranks
from two_ranks import everything


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """What either of two ranks has made of everything they were asked; workers share one answer."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    answer = folder / "ranks.pt"
    with FileLock(f"{answer}.lock"):
        if not answer.exists():
            torch.save(run_ranks(everything, 2, tmp_path_factory.mktemp("ranks")), answer)
    return torch.load(answer, weights_only=False)
