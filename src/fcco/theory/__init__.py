"""The step sizes, batch splits and iteration counts of the paper's theorems, as pure functions."""

from fcco.theory._boost import BoostConstants, boost_constants, convexifier, sox_boost
from fcco.theory._complexity import REGIMES, Complexity, complexities
from fcco.theory._constants import Constants, Parameters
from fcco.theory._convex import DecreasingSteps, projected, strongly_convex, strongly_convex_steps
from fcco.theory._estimate import estimate_constants
from fcco.theory._nonconvex import sox, split_batch, tracking_error

__all__ = [
    "REGIMES",
    "BoostConstants",
    "Complexity",
    "Constants",
    "DecreasingSteps",
    "Parameters",
    "boost_constants",
    "complexities",
    "convexifier",
    "estimate_constants",
    "projected",
    "sox",
    "sox_boost",
    "split_batch",
    "strongly_convex",
    "strongly_convex_steps",
    "tracking_error",
]
