"""Train PyTorch models on objectives that score every example against a whole set."""

from fcco import data, functional, losses, optim, projections, schedules, solvers, theory
from fcco._coupled import CoupledLoss
from fcco._rules import BSGD, METHODS, MOAP, MSVR, NASA, SCENT, SCGD, SOAP, SOX, Batch, Method, Rule
from fcco._table import InnerTable
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
    "InnerTable",
    "Method",
    "Rule",
    "data",
    "functional",
    "losses",
    "optim",
    "projections",
    "schedules",
    "solve",
    "solvers",
    "theory",
]
