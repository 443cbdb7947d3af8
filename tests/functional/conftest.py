"""Common to the tests of the exact objectives."""

import pytest
import torch

# The scripts that made the golden values need packages that the tests do not.
collect_ignore_glob = ["golden/make_*.py"]


@pytest.fixture(autouse=True)
def _seeded():
    torch.default_generator.manual_seed(0)  # torch.manual_seed also formats the stack, for GPUs to come
