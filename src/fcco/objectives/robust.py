"""Robust learning: invariance to perturbations."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fcco.core.arrays import Array
from fcco.core.outers import Logistic
from fcco.objectives.given import OwnCandidates


class Observed(NamedTuple):
    scores: Array
    """[m, B2], of several observations of each example."""
    label: Array


class InvariantLogistic(OwnCandidates):
    """F = mean of log(1 + e^(-b_i g_i)), where g_i is the mean score of the observations of i."""

    Columns, outer = Observed, Logistic()

    def estimate_own(self, x: Observed) -> Array:
        mean = (x.scores / x.scores.shape[1]).sum(1)  # a sum may overflow where the mean does not
        return torch.where(x.label == 1, mean, -mean)
