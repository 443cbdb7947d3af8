"""What a type checker must refuse. An error that it no longer finds is an unused comment, which mypy reports.

This file is checked, and never run.
"""

from typing import TYPE_CHECKING

import torch

import fcco
from fcco.losses import AUCLoss, AveragePrecisionLoss, ContrastiveLoss, ListNetLoss, NCALoss, SoftmaxLoss

if TYPE_CHECKING:
    x = torch.ones(3, 2)
    NCALoss(10, gama=0.1)  # type: ignore[call-arg]
    NCALoss.from_targets(x, gama=0.1)  # type: ignore[call-arg]
    AveragePrecisionLoss.from_targets(x, gama=0.1)  # type: ignore[call-arg]
    AveragePrecisionLoss.from_targets(x, memory="all")  # type: ignore[arg-type]
    AveragePrecisionLoss(10, 2)(x)  # type: ignore[call-arg]
    fcco.CoupledLoss(torch.log, n=3)(x)  # type: ignore[call-arg]
    SoftmaxLoss(10)(x, x)  # type: ignore[call-arg]
    ListNetLoss(10)(x, x, x)  # type: ignore[call-arg]
    ContrastiveLoss(10, mode="crossmodal")  # type: ignore[arg-type]
    AUCLoss(10, 2, form="minmax")  # type: ignore[arg-type]
    fcco.SOX(gama=0.1)  # type: ignore[call-arg]

    loss: torch.Tensor = NCALoss(10)(x, x, x)  # the type of a call is known
