"""Test problems with an exact objective, a known optimum and, if they exist, the constants of the theorems."""

from fcco.solvers._from_data import invariant_logistic, p_norm_push
from fcco.solvers._known import KnownProblem, minimiser
from fcco.solvers._synthetic import pseudo_huber

__all__ = ["KnownProblem", "invariant_logistic", "minimiser", "p_norm_push", "pseudo_huber"]
