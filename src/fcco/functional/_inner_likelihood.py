"""Inner estimates of likelihoods from a sample of the latent variable or of the classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco.functional._checks import check_floats, check_per_example, check_same
from fcco.functional._inner import OwnTerm, check_own_term


def latent_variable_inner(log_likelihood: Tensor, log_weight: Tensor) -> Tensor:
    r"""[B1, 2], log g: means over sampled z of p(y|z, x) e^w and of e^w.

    Args:
        log_likelihood: log p(y_i | z, x_i), [B1, B2]; -inf where it is 0.
        log_weight: w, [B1, B2].
    """
    check_floats(log_likelihood, "log_likelihood", "[B1, B2]", zero_weight=True)
    check_floats(log_weight, "log_weight", "[B1, B2]")
    check_same(log_weight, "log_weight", log_likelihood, "log_likelihood")
    # -inf throughout, no sampled z that explains y, is legal; its gradient is none, and not NaN.
    joint = log_likelihood + log_weight
    lost = (log_likelihood == -math.inf).all(1)
    explained = torch.where(lost, -math.inf, joint.masked_fill(lost.unsqueeze(1), 0.0).logsumexp(1))
    return torch.stack([explained, log_weight.logsumexp(1)], 1) - math.log(log_weight.shape[1])


def softmax_inner(
    target_logit: Tensor,
    sampled_logits: Tensor,
    *,
    n_classes: int | None = None,
    log_q: Tensor | None = None,
    own_term: OwnTerm = "exact",
) -> Tensor:
    r"""[B1], log g: the sum over all classes of e^(s_c - s_target), from sampled classes other than the target.

    Args:
        target_logit: [B1].
        sampled_logits: [B1, B2].
        n_classes: C. None: the sampled classes are taken to be all others.
        log_q: [B1, B2] or [B2], log-probabilities with which the classes were drawn; None: uniformly.
        own_term: "exact": 1 + (C - 1) times the mean over the sample. "sampled": C times the mean over the sample and
            the target.
    """
    check_own_term(own_term)
    check_floats(target_logit, "target_logit", "[B1]")
    check_floats(sampled_logits, "sampled_logits", "[B1, B2]", zero_weight=True)
    check_per_example(target_logit, "target_logit", sampled_logits, "sampled_logits")
    size = sampled_logits.shape[1]
    classes = size + 1 if n_classes is None else n_classes
    logits = sampled_logits - target_logit.unsqueeze(1)
    if log_q is not None:
        # Importance weights 1 / (q (C - 1)) turn the mean over the sample into the mean over the other classes.
        logits = logits - log_q - math.log(classes - 1)
    own = torch.zeros_like(target_logit)
    if own_term == "exact":
        scale = math.log(classes - 1) - math.log(size)
        return torch.cat([own.unsqueeze(1), logits + scale], 1).logsumexp(1)
    return torch.cat([own.unsqueeze(1), logits], 1).logsumexp(1) + math.log(classes) - math.log(size + 1)
