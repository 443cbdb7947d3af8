"""Losses over the engine: call them in a training loop with the rows of the batch.

Each one is the objective of the same name in :mod:`fcco.functional`, estimated from a batch. ``rule=fcco.BSGD()`` turns
any of them into its in-batch counterpart.

- Examples of a batch that have no term (no negative to compare with, nobody else of the class, ...) are left out of the
  mean, and their rows keep what they hold; a batch without any term is a zero that can be differentiated.
- A batch that contradicts what a loss was told of the training data (more members of a class than there are, another
  relevance than the item had) is refused, where that can be seen without waiting: eagerly, on the CPU.
- In ``eval()`` mode a loss is the exact objective of the batch by itself, for validation data: neither the table nor
  the sizes of the training set are used, and ``index`` may be anything.
- Scores in half precision, and autocast, are taken to float32 first.
- A saved state loads only into the loss it belongs to, with the same population; see :func:`fcco.load_anyway`.
"""

from fcco.losses._bipartite import AveragePrecisionLoss, PartialAUCLoss, PNormPushLoss
from fcco.losses._likelihood import LatentVariableLoss, SoftmaxLoss
from fcco.losses._listwise import ListMLELoss, ListNetLoss, NDCGLoss
from fcco.losses._meta import MAMLLoss
from fcco.losses._robust import GroupDROLoss, InvariantLogisticLoss
from fcco.losses._similarity import ContrastiveLoss, NCALoss
from fcco.losses._survival import BaselineCoxLoss, CoxLoss

__all__ = [
    "AveragePrecisionLoss",
    "BaselineCoxLoss",
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
