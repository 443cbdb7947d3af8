"""Train PyTorch models on objectives that score every example against a whole set."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fcco import data, distributed, functional, losses, optim, schedules
from fcco._checks import NotFiniteError
from fcco._table import InnerTable, load_anyway
from fcco.chunks import ChunkedModule, forward_in_chunks
from fcco.core.objective import Objective
from fcco.core.rules import BSGD, METHODS, MOAP, NASA, SCGD, SOAP, SOX, Batch, Method, Rule
from fcco.losses.coupled import CoupledLoss
from fcco.losses.loss import ObjectiveLoss
from fcco.losses.memory import Memory

if TYPE_CHECKING:
    from fcco import diagnostics, estimators, projections, solvers, theory
    from fcco.solvers import solve

__version__ = "0.1.0"

__all__ = [
    "BSGD",
    "METHODS",
    "MOAP",
    "NASA",
    "SCGD",
    "SOAP",
    "SOX",
    "Batch",
    "ChunkedModule",
    "CoupledLoss",
    "InnerTable",
    "Memory",
    "Method",
    "NotFiniteError",
    "Objective",
    "ObjectiveLoss",
    "Rule",
    "data",
    "diagnostics",
    "distributed",
    "estimators",
    "forward_in_chunks",
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


# What a training loop does not need is imported when it is first used.
_LATER = {"diagnostics", "estimators", "projections", "solvers", "theory"}


def __getattr__(name: str) -> Any:
    if name == "solve":
        return import_module("fcco.solvers").solve
    if name in _LATER:
        return import_module(f"fcco.{name}")
    raise AttributeError(f"module 'fcco' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
