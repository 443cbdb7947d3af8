"""Common to the tests of the core."""

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def _quiet_and_seeded():
    """Callers of the core silence NumPy, which would warn of log 0 and of overflow."""
    with np.errstate(all="ignore"):
        torch.default_generator.manual_seed(0)
        yield
