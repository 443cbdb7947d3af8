"""Common to all tests."""

import os

# Some virtual machines advertise AMX but stop a process that uses it, as products in bfloat16 do.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")

import torch

if "PYTEST_XDIST_WORKER" in os.environ:  # each worker has a core of its own, and so have its children
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
