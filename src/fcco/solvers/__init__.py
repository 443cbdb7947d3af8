"""The paper's algorithms as written, on any problem, with the step sizes of its theorems."""

from fcco.solvers import problems
from fcco.solvers._checkpoint import Checkpoint
from fcco.solvers._compare import Comparison, Trials, compare
from fcco.solvers._module import ModuleProblem
from fcco.solvers._problem import Problem
from fcco.solvers._settings import Accuracy, SOXBoost, Stage
from fcco.solvers._solution import Solution, SolverState
from fcco.solvers._solve import solve

__all__ = [
    "Accuracy",
    "Checkpoint",
    "Comparison",
    "ModuleProblem",
    "Problem",
    "SOXBoost",
    "Solution",
    "SolverState",
    "Stage",
    "Trials",
    "compare",
    "problems",
    "solve",
]
