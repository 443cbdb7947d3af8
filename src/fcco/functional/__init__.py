"""The objectives of all applications as pure functions: exact on all data, or as inner estimates from a batch.

``*_loss`` is the exact objective, differentiable, within bounded memory. ``*_inner`` is an estimate of its inner values
from the examples of a batch and, if there are any, further *rivals*. It returns an :class:`fcco.Estimate`, for a
:class:`fcco.CoupledLoss` of one's own.

The losses of :mod:`fcco.losses` estimate the exact objectives from mini-batches. Objectives that sorting can evaluate
cost O(n log n); the others go through all pairs a few rows at a time, in O(chunk · n) memory, forward and backward.

An objective without any term (no positives, no events, ...) is a zero that can be differentiated. Input that cannot be
meant raises, naming the value and its position.
"""

from fcco.functional._bipartite import average_precision_loss, p_norm_push_loss, partial_auc_loss
from fcco.functional._inner_bipartite import average_precision_inner, p_norm_push_inner, partial_auc_inner
from fcco.functional._inner_likelihood import in_batch_softmax_inner, latent_variable_inner, softmax_inner
from fcco.functional._inner_listwise import Lists, list_mle_inner, list_net_inner, ndcg_inner
from fcco.functional._inner_similarity import contrastive_inner, nca_inner
from fcco.functional._inner_survival import cox_inner
from fcco.functional._likelihood import latent_variable_loss, softmax_loss
from fcco.functional._listwise import list_mle_loss, list_net_loss, ndcg_loss
from fcco.functional._meta import maml_loss
from fcco.functional._robust import group_dro_loss, invariant_logistic_loss
from fcco.functional._similarity import contrastive_loss, nca_loss
from fcco.functional._survival import cox_loss

__all__ = [
    "Lists",
    "average_precision_inner",
    "average_precision_loss",
    "contrastive_inner",
    "contrastive_loss",
    "cox_inner",
    "cox_loss",
    "group_dro_loss",
    "in_batch_softmax_inner",
    "invariant_logistic_loss",
    "latent_variable_inner",
    "latent_variable_loss",
    "list_mle_inner",
    "list_mle_loss",
    "list_net_inner",
    "list_net_loss",
    "maml_loss",
    "nca_inner",
    "nca_loss",
    "ndcg_inner",
    "ndcg_loss",
    "p_norm_push_inner",
    "p_norm_push_loss",
    "partial_auc_inner",
    "partial_auc_loss",
    "softmax_inner",
    "softmax_loss",
]
