"""Common to the tests of the losses."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    torch.default_generator.manual_seed(0)  # torch.manual_seed also formats the stack, for GPUs to come
