"""Common to all tests."""

import gc
import os

# Some virtual machines advertise AMX but stop a process that uses it, as products in bfloat16 do.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import pytest
import torch

# Collecting makes a million objects that all stay: to look through them again and again takes half of its time.
gc.disable()

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core of its own, and so have its children
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # or else torch starts processes that compile


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Leave what was collected out of all collections of garbage to come."""
    gc.freeze()
    gc.enable()
