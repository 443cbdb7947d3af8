"""Common to all tests: which of them share a worker when they run in parallel."""

import os
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core of its own, and so have its children
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items):
    """Keep the tests of a file together, and those that share processes or a compiler's cache."""
    for item in items:
        if HERE in item.path.parents:
            shares_ranks = "ranks" in getattr(item, "fixturenames", ())
            item.add_marker(pytest.mark.xdist_group("ranks" if shares_ranks else str(item.path.relative_to(HERE))))
