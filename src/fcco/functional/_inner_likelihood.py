"""Inner estimates of likelihoods from a sample of the latent variable or of the classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco._checks import shape_of
from fcco.functional._checks import check_floats, check_per_example, check_same
from fcco.functional._inner import Estimate, OwnTerm, check_own_term, masked_logsumexp, settle
from fcco.functional._tensors import at_least_float32


def latent_variable_inner(log_likelihood: Tensor, log_weight: Tensor, *, log_q: Tensor | None = None) -> Estimate:
    r"""log g: means over sampled z of p(y|z, x) e^w and of e^w; of both over q, where it is given.

    An example has no term where no z of its sample can explain y.

    Args:
        log_likelihood: log p(y_i | z, x_i), [B1, B2]; -inf where it is 0.
        log_weight: w, [B1, B2]; -inf for a z that example i cannot have.
        log_q: [B1, B2] or [B2], log-probabilities with which the z were drawn; None: uniformly.

    Returns:
        inner [B1, 2], weight [B1].
    """
    check_floats(log_likelihood, "log_likelihood", "[B1, B2]", zero_weight=True)
    check_floats(log_weight, "log_weight", "[B1, B2]", zero_weight=True)
    check_same(log_weight, "log_weight", log_likelihood, "log_likelihood")
    weight = at_least_float32(log_weight)
    if log_q is not None:
        # Importance weights 1 / q turn the mean over the sample into the sum over all z.
        weight = weight - _checked_log_q(log_q, log_weight, "log_weight").to(weight.dtype)
    joint = at_least_float32(log_likelihood) + weight
    explains = joint > -math.inf
    sums = masked_logsumexp(joint, explains), masked_logsumexp(weight, weight > -math.inf)
    inner = torch.stack(sums, 1) - math.log(weight.shape[1])
    return settle(inner, explains.any(1), log=True)


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
    if target_logit.dtype != sampled_logits.dtype:
        raise TypeError(
            f"target_logit is of {target_logit.dtype}, sampled_logits of {sampled_logits.dtype}: they must agree"
        )
    size = sampled_logits.shape[1]
    classes = size + 1 if n_classes is None else n_classes
    logits = at_least_float32(sampled_logits) - at_least_float32(target_logit).unsqueeze(1)
    if log_q is not None:
        # Importance weights 1 / (q (C - 1)) turn the mean over the sample into the mean over the other classes.
        logits = (
            logits - _checked_log_q(log_q, sampled_logits, "sampled_logits").to(logits.dtype) - math.log(classes - 1)
        )
    own = torch.zeros_like(logits[:, :1])
    if own_term == "exact":
        return torch.cat([own, logits + (math.log(classes - 1) - math.log(size))], 1).logsumexp(1)
    return torch.cat([own, logits], 1).logsumexp(1) + (math.log(classes) - math.log(size + 1))


def _checked_log_q(log_q: Tensor, like: Tensor, name: str) -> Tensor:
    check_floats(log_q, "log_q", "[B2]" if isinstance(log_q, Tensor) and log_q.dim() == 1 else "[B1, B2]")
    if log_q.shape not in (like.shape, like.shape[1:]):
        raise ValueError(
            f"log_q must have the shape of {name}, {shape_of(like)}, or of one row of it, got {shape_of(log_q)}"
        )
    return log_q
