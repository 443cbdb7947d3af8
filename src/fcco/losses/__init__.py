"""Losses for training loops: call them with the outputs of a batch and the rows of its examples.

Each loss estimates the objective of the same name in :mod:`fcco.functional` from mini-batches. With
``rule=fcco.BSGD()``, each becomes its in-batch counterpart. Terms such as *row*, *visit*, *own term* and *rival* are
defined in :mod:`fcco.functional`.

Notes
-----
- Examples without a term in a batch (no negative to compare with, nobody else of the class, ...) are left out of the
  mean, and their rows keep their values. A batch without any term gives a zero that can be differentiated.
- A batch that contradicts what the loss knows about the training data (more members of a class than there are, another
  relevance than the item had) raises an error. This check only runs where it does not stall a device: in eager mode on
  the CPU.
- In ``eval()`` mode a loss computes the exact objective of the batch by itself, for validation data. It uses neither
  the table nor the sizes of the training set, and ``index`` may be anything.
- Scores in half precision, also under autocast, are converted to float32 first.
- A saved state only loads into the same loss with the same population; see :func:`fcco.load_anyway`. A model that
  contains a loss is loaded without that by ``load_state_dict(state, strict=False)``: the state of a loss that does not
  fit is left out, with one warning that names the loss.
"""

from fcco.losses.auc import AUCLoss
from fcco.losses.baseline_cox import BaselineCoxLoss
from fcco.losses.bipartite import AveragePrecisionLoss, PNormPushLoss
from fcco.losses.contrastive import ContrastiveLoss, RobustContrastiveLoss
from fcco.losses.group_dro import GroupDROLoss
from fcco.losses.likelihood import LatentVariableLoss, SoftmaxLoss
from fcco.losses.lists import ListMLELoss, ListNetLoss, NDCGLoss
from fcco.losses.meta import MAMLLoss
from fcco.losses.neighbours import NCALoss, SupervisedContrastiveLoss
from fcco.losses.partial_auc import CVaRPartialAUCLoss, PartialAUCLoss, TwoWayPartialAUCLoss
from fcco.losses.robust import InvariantLogisticLoss
from fcco.losses.survival import CoxLoss

__all__ = [
    "AUCLoss",
    "AveragePrecisionLoss",
    "BaselineCoxLoss",
    "CVaRPartialAUCLoss",
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
    "RobustContrastiveLoss",
    "SoftmaxLoss",
    "SupervisedContrastiveLoss",
    "TwoWayPartialAUCLoss",
]
