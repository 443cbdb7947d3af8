"""Common to all tests."""

import os

import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core of its own, and so have its children
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
