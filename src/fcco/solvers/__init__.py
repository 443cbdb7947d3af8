"""The paper's algorithms as written, on any problem, with step sizes that come from its theorems."""

from fcco.solvers import problems
from fcco.solvers._plan import Stage
from fcco.solvers._problem import Problem
from fcco.solvers._solution import Solution, State
from fcco.solvers._solve import solve

__all__ = ["Problem", "Solution", "Stage", "State", "problems", "solve"]
