"""Fixtures of the solver tests."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    """Use one thread. The problems are small, and on a busy machine most of the time is spent waiting for threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
