"""What a type checker must refuse. An error that it no longer finds is an unused comment, which mypy reports.

This file is checked, and never run.
"""

from typing import TYPE_CHECKING

import torch

import fcco
from fcco.estimators import (
    AveragePrecisionClassifier,
    CoxRegressor,
    ListwiseRanker,
    NeighborhoodComponentsAnalysis,
    PNormPushClassifier,
)
from fcco.losses import (
    AUCLoss,
    ContrastiveLoss,
    CoxLoss,
    NCALoss,
)

if TYPE_CHECKING:
    x = torch.ones(3, 2)
    NCALoss(10, gama=0.1)  # type: ignore[call-arg]
    ContrastiveLoss(10, mode="crossmodal")  # type: ignore[arg-type]
    AUCLoss(10, 2, form="minmax")  # type: ignore[arg-type]
    fcco.SOX(gama=0.1)  # type: ignore[call-arg]
    CoxRegressor(method="soxx")  # type: ignore[arg-type]
    CoxRegressor(ties="effron")  # type: ignore[arg-type]
    CoxRegressor(learning_rate="slow")  # type: ignore[arg-type]
    ListwiseRanker(objective="x")  # type: ignore[arg-type]
    ListwiseRanker(surrogate="exp")  # type: ignore[arg-type]
    ListwiseRanker(method="soxx")  # type: ignore[arg-type]
    PNormPushClassifier(surrogate="rmap")  # type: ignore[arg-type]
    PNormPushClassifier(method="soxx")  # type: ignore[arg-type]
    AveragePrecisionClassifier("exp")  # type: ignore[arg-type]
    AveragePrecisionClassifier(method="soxx")  # type: ignore[arg-type]
    AveragePrecisionClassifier(start="x")  # type: ignore[arg-type]
    NeighborhoodComponentsAnalysis(method="soxx")  # type: ignore[arg-type]
    NeighborhoodComponentsAnalysis(init="pcaa")  # type: ignore[arg-type]

    AUCLoss(10, 2)(x, x), ContrastiveLoss(10)(x, x), CoxLoss(10)(x, x, x)  # these need no index by default
    PNormPushClassifier(surrogate="exp"), NeighborhoodComponentsAnalysis(init=[[1.0, 0.0]])
