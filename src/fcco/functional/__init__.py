"""The objectives of all applications as pure functions, and metrics.

Each objective has the form F = mean_i f_i(g_i). It comes in two kinds of functions.

- ``*_loss`` computes the exact, differentiable objective on all data, in bounded memory. Objectives that can be
  evaluated by sorting cost O(n log n). The others compare all pairs a few rows at a time and need O(chunk · n) memory,
  both forward and backward.
- ``*_inner`` estimates the inner values g_i from the examples of a batch and, optionally, from further rivals. It
  returns ``inner`` and ``weight``, which you can pass on to your own :class:`fcco.CoupledLoss`.

Names without such an ending are metrics, such as :func:`roc_auc`, and :func:`as_one_vs_rest`. A metric has no gradient,
takes O(n log n), and is NaN if it is not defined. For survival models, :func:`baseline_hazard` and
:func:`survival_function` lead from log-hazards to curves, and :func:`brier_score` says how good these are.

An objective without any term (no positives, no events, ...) is a zero that can be differentiated. Invalid input raises
an error that names the argument, the value and its position.

Notes
-----
The documentation uses these terms:

inner value
    g_i, the sum or mean over a set that the outer function f is applied to.
rival
    An example j that example i is compared with in g_i.
own term
    The term of g_i in which example i is compared with itself.
population
    The training data that the sums of the objective run over.
stratum
    A part of the population whose size is known, such as the positives or the examples of one class.
row
    The position of an example in the training set, which is also the row of the table that holds its running estimate
    u_i of g_i.
visit
    A training step whose batch contains the row.
"""

from fcco.core.kernels import logsumexp
from fcco.functional._auc import auc_loss, cvar_partial_auc_loss, two_way_partial_auc_loss
from fcco.functional._bipartite import average_precision_loss, p_norm_push_loss, partial_auc_loss
from fcco.functional._classes import as_one_vs_rest
from fcco.functional._contrastive_variants import robust_contrastive_loss, supervised_contrastive_loss
from fcco.functional._inner_auc import cvar_partial_auc_inner
from fcco.functional._inner_bipartite import average_precision_inner, p_norm_push_inner, partial_auc_inner
from fcco.functional._inner_likelihood import in_batch_softmax_inner, latent_variable_inner, softmax_inner
from fcco.functional._inner_listwise import Lists, list_mle_inner, list_net_inner, ndcg_inner
from fcco.functional._inner_similarity import contrastive_inner, nca_inner
from fcco.functional._inner_survival import cox_inner
from fcco.functional._likelihood import latent_variable_loss, softmax_loss
from fcco.functional._listwise import list_mle_loss, list_net_loss, ndcg_loss
from fcco.functional._meta import maml_loss
from fcco.functional._metrics import (
    average_precision,
    concordance_index,
    ndcg,
    precision_at_k,
    recall_at_k,
    roc_auc,
)
from fcco.functional._robust import group_dro_loss, invariant_logistic_loss
from fcco.functional._similarity import contrastive_loss, nca_loss
from fcco.functional._survival import cox_loss
from fcco.functional._survival_curves import (
    BaselineHazard,
    baseline_hazard,
    brier_score,
    integrated_brier_score,
    survival_function,
)

__all__ = [
    "BaselineHazard",
    "Lists",
    "as_one_vs_rest",
    "auc_loss",
    "average_precision",
    "average_precision_inner",
    "average_precision_loss",
    "baseline_hazard",
    "brier_score",
    "concordance_index",
    "contrastive_inner",
    "contrastive_loss",
    "cox_inner",
    "cox_loss",
    "cvar_partial_auc_inner",
    "cvar_partial_auc_loss",
    "group_dro_loss",
    "in_batch_softmax_inner",
    "integrated_brier_score",
    "invariant_logistic_loss",
    "latent_variable_inner",
    "latent_variable_loss",
    "list_mle_inner",
    "list_mle_loss",
    "list_net_inner",
    "list_net_loss",
    "logsumexp",
    "maml_loss",
    "nca_inner",
    "nca_loss",
    "ndcg",
    "ndcg_inner",
    "ndcg_loss",
    "p_norm_push_inner",
    "p_norm_push_loss",
    "partial_auc_inner",
    "partial_auc_loss",
    "precision_at_k",
    "recall_at_k",
    "robust_contrastive_loss",
    "roc_auc",
    "softmax_inner",
    "softmax_loss",
    "supervised_contrastive_loss",
    "survival_function",
    "two_way_partial_auc_loss",
]
