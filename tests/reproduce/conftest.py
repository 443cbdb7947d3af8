"""Common to the tests of the experiments."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    """The problems are small, and threads that wait for each other on a busy machine take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
