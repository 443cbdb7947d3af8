"""Train PyTorch models on objectives that score every example against a whole set."""

import importlib
from typing import Any

from fcco import (
    data,
    diagnostics,
    distributed,
    functional,
    losses,
    optim,
    projections,
    schedules,
    solvers,
    theory,
)
from fcco._checks import NotFiniteError
from fcco._coupled import CoupledLoss
from fcco._memory import Memory
from fcco._pool import Estimate, Pool, Recall
from fcco._rules import BSGD, METHODS, MOAP, MSVR, NASA, SCENT, SCGD, SOAP, SOX, Batch, Method, Rule
from fcco._table import InnerTable, load_anyway
from fcco.solvers import solve

__version__ = "0.1.0"

__all__ = [
    "BSGD",
    "METHODS",
    "MOAP",
    "MSVR",
    "NASA",
    "SCENT",
    "SCGD",
    "SOAP",
    "SOX",
    "Batch",
    "CoupledLoss",
    "Estimate",
    "InnerTable",
    "Memory",
    "Method",
    "NotFiniteError",
    "Pool",
    "Recall",
    "Rule",
    "data",
    "diagnostics",
    "distributed",
    "estimators",
    "functional",
    "load_anyway",
    "losses",
    "optim",
    "projections",
    "schedules",
    "solve",
    "solvers",
    "theory",
]


def __getattr__(name: str) -> Any:
    if name == "estimators":  # which needs an extra, and takes a second to import
        return importlib.import_module("fcco.estimators")
    raise AttributeError(f"module 'fcco' has no attribute {name!r}")
