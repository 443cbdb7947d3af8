"""The paper's algorithms as written, on any problem, with the step sizes of its theorems."""

from fcco.solvers import problems
from fcco.solvers._checkpoint import Checkpoint
from fcco.solvers._problem import Problem
from fcco.solvers._settings import Accuracy, SOXBoost, Stage
from fcco.solvers._solution import Solution, SolverState
from fcco.solvers._solve import solve

__all__ = ["Accuracy", "Checkpoint", "Problem", "SOXBoost", "Solution", "SolverState", "Stage", "problems", "solve"]
