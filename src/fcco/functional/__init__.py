"""The exact objective of every application, on all data: pure functions, differentiable, within bounded memory.

These are what the losses of :mod:`fcco.losses` estimate from mini-batches. Objectives that sorting can evaluate cost
O(n log n); the others go through all pairs a few rows at a time, in O(chunk · n) memory, forward and backward.

An objective without any term (no positives, no events, ...) is a zero that can be differentiated. Input that cannot be
meant raises, naming the value and its position.
"""

from fcco.functional._bipartite import average_precision_loss, p_norm_push_loss, partial_auc_loss
from fcco.functional._likelihood import latent_variable_loss, softmax_loss
from fcco.functional._listwise import list_mle_loss, list_net_loss, ndcg_loss
from fcco.functional._meta import maml_loss
from fcco.functional._robust import group_dro_loss, invariant_logistic_loss
from fcco.functional._similarity import contrastive_loss, nca_loss
from fcco.functional._survival import cox_loss

__all__ = [
    "average_precision_loss",
    "contrastive_loss",
    "cox_loss",
    "group_dro_loss",
    "invariant_logistic_loss",
    "latent_variable_loss",
    "list_mle_loss",
    "list_net_loss",
    "maml_loss",
    "nca_loss",
    "ndcg_loss",
    "p_norm_push_loss",
    "partial_auc_loss",
    "softmax_loss",
]
