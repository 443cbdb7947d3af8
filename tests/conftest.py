"""Common to all tests: which of them share a worker when they run in parallel."""

import os
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core of its own, and so have its children
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


def pytest_collection_modifyitems(items):
    """Keep the tests of a file together, and those that share processes or a compiler's cache."""
    for item in items:
        if HERE in item.path.parents:
            folder = item.path.relative_to(HERE).parts[0]
            group = folder if folder == "distributed" else str(item.path)
            item.add_marker(pytest.mark.xdist_group(group))
