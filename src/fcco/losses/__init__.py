"""Losses over the engine: call them in a training loop with the rows of the batch.

Each one is the objective of the same name in :mod:`fcco.functional`, estimated from a batch. ``rule=fcco.BSGD()`` turns
any of them into its in-batch counterpart.
"""

from fcco.losses._bipartite import AveragePrecisionLoss, PartialAUCLoss, PNormPushLoss
from fcco.losses._likelihood import LatentVariableLoss, SoftmaxLoss
from fcco.losses._listwise import ListMLELoss, ListNetLoss, NDCGLoss
from fcco.losses._meta import MAMLLoss
from fcco.losses._robust import GroupDROLoss, InvariantLogisticLoss
from fcco.losses._similarity import ContrastiveLoss, NCALoss
from fcco.losses._survival import CoxLoss

__all__ = [
    "AveragePrecisionLoss",
    "ContrastiveLoss",
    "CoxLoss",
    "GroupDROLoss",
    "InvariantLogisticLoss",
    "LatentVariableLoss",
    "ListMLELoss",
    "ListNetLoss",
    "MAMLLoss",
    "NCALoss",
    "NDCGLoss",
    "PNormPushLoss",
    "PartialAUCLoss",
    "SoftmaxLoss",
]
