"""Inner estimates of likelihoods from a sample of the latent variable or of the classes."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fcco._checks import reads_are_free, shape_of
from fcco._pool import Estimate
from fcco.functional._checks import check_floats, check_integers, check_per_example, check_same
from fcco.functional._inner import OwnTerm, as_estimate, check_own_term, masked_logsumexp, same
from fcco.functional._tensors import at_least_float32


def latent_variable_inner(log_likelihood: Tensor, log_weight: Tensor, *, log_q: Tensor | None = None) -> Estimate:
    """Estimate the logarithms of the inner values of the latent-variable likelihood from sampled z.

    The two inner values are the means over the sample of p(y|z, x) e^w and of e^w. With ``log_q``, each summand is
    divided by its sampling probability q. An example has no term if no z of its sample can explain y.

    Parameters
    ----------
    log_likelihood : Tensor of shape (B1, B2)
        log p(y_i | z, x_i), which is -inf where the likelihood is 0.
    log_weight : Tensor of shape (B1, B2)
        The weights w. Use -inf for a z that is impossible for example i.
    log_q : Tensor of shape (B1, B2) or (B2,), or None, default None
        The log-probabilities with which the z were drawn. By default, they were drawn uniformly.

    Returns
    -------
    Estimate
        ``inner`` of shape (B1, 2), which is log g, and ``weight`` of shape (B1,).

    See Also
    --------
    fcco.losses.LatentVariableLoss : The loss that uses this estimate.
    """
    check_floats(log_likelihood, "log_likelihood", "[B1, B2]", zero_weight=True, room=4)
    check_floats(log_weight, "log_weight", "[B1, B2]", zero_weight=True, room=4)
    check_same(log_weight, "log_weight", log_likelihood, "log_likelihood")
    weight = at_least_float32(log_weight)
    if log_q is not None:
        # Importance weights 1 / q turn the mean over the sample into an estimate of the sum over all z.
        weight = weight - _checked_log_q(log_q, log_weight, "log_weight").to(weight.dtype)
    joint = at_least_float32(log_likelihood) + weight
    explains = joint > -math.inf
    sums = masked_logsumexp(joint, explains), masked_logsumexp(weight, weight > -math.inf)
    inner = torch.stack(sums, 1) - math.log(weight.shape[1])
    return as_estimate(inner, explains.any(1), log=True)


def softmax_inner(
    target_logit: Tensor,
    sampled_logits: Tensor,
    *,
    n_classes: int | None = None,
    log_q: Tensor | None = None,
    own_term: OwnTerm = "exact",
    target: Tensor | None = None,
    candidates: Tensor | None = None,
) -> Tensor | Estimate:
    """Estimate log g of the softmax, g = Σ_c e^(s_c - s_target) over all classes, from sampled classes.

    A candidate that is the target itself carries no information about the other classes. If candidates were drawn with
    probabilities ``log_q``, it counts as a draw of weight 0. If they were drawn uniformly, it is left out, and an
    example without any other candidate has no term.

    Parameters
    ----------
    target_logit : Tensor of shape (B1,)
        The logits of the targets.
    sampled_logits : Tensor of shape (B1, B2)
        The logits of the sampled classes, called candidates.
    n_classes : int or None, default None
        The number of classes C. By default, the sampled classes are taken to be all other classes.
    log_q : Tensor of shape (B1, B2) or (B2,), or None, default None
        The log-probabilities with which the classes were drawn. By default, they were drawn uniformly.
    own_term : {"exact", "sampled"}, default "exact"
        "exact" is 1 plus C - 1 times the mean over the sample. "sampled" is C times the mean over the sample and the
        target.
    target : Tensor of shape (B1,) or None, default None
        The class of each target, an integer. By default, no candidate is taken to be the target.
    candidates : Tensor of shape (B1, B2) or (B2,), or None, default None
        The sampled classes, integers.

    Returns
    -------
    Tensor of shape (B1,) or Estimate
        log g. If ``candidates`` is given, an estimate with ``inner`` and ``weight`` of shape (B1,).

    See Also
    --------
    fcco.losses.SoftmaxLoss : The loss that uses this estimate.
    """
    check_own_term(own_term)
    check_floats(target_logit, "target_logit", "[B1]", room=1.01)
    check_floats(sampled_logits, "sampled_logits", "[B1, B2]", zero_weight=True, room=1.01)
    check_per_example(target_logit, "target_logit", sampled_logits, "sampled_logits")
    if target_logit.dtype != sampled_logits.dtype:
        raise TypeError(
            "target_logit and sampled_logits must have the same dtype; "
            f"got {target_logit.dtype} and {sampled_logits.dtype}"
        )
    logits = at_least_float32(sampled_logits) - at_least_float32(target_logit).unsqueeze(1)
    if log_q is not None:
        log_q = _checked_log_q(log_q, sampled_logits, "sampled_logits").to(logits.dtype)
    hits = _find_hits(target, candidates, sampled_logits, n_classes)
    drawn: int | Tensor = logits.shape[1]
    if hits is not None and log_q is None:
        drawn = drawn - hits.to(logits.dtype).sum(1, keepdim=True)
    return _weighted_sum(logits, *_weights(drawn, n_classes, log_q, own_term), hits, drawn)


def in_batch_softmax_inner(
    scores: Tensor,
    items: Tensor,
    *,
    n_classes: int | None = None,
    log_q: Tensor | None = None,
    own_term: OwnTerm = "sampled",
) -> Tensor | Estimate:
    """Estimate log g of a softmax over items from a batch whose examples use each other's targets as candidates.

    Parameters
    ----------
    scores : Tensor of shape (B, B)
        The scores of example i with the target of example j.
    items : Tensor of shape (B,)
        The item that is the target of each example, an integer. If another example has the same target, it is not a
        candidate.
    n_classes : int or None, default None
        The number of items C. By default, the items of the batch are taken to be all items.
    log_q : Tensor of shape (B,) or None, default None
        The log-probabilities with which an example has these targets. By default, all items are equally likely.
    own_term : {"exact", "sampled"}, default "sampled"
        "exact" is 1 plus an estimate of the sum over all other items. "sampled" weighs the target like the candidates.

    Returns
    -------
    Estimate
        ``inner`` of shape (B,), which is log g, and ``weight`` of shape (B,). An example has no term if it is alone in
        the batch or, without ``log_q``, if no other example has another item.

    See Also
    --------
    fcco.losses.SoftmaxLoss.in_batch : The loss that uses this estimate.
    """
    check_own_term(own_term)
    check_floats(scores, "scores", "[B, B]", room=4)
    if scores.shape[0] != scores.shape[1]:
        raise ValueError(f"scores must have the shape [B, B]; got {shape_of(scores)}")
    check_integers(items, "items", scores, "scores")
    _check_count(items, "items", n_classes)
    hits, wide = same(items), at_least_float32(scores)
    logits = wide - wide.diagonal().unsqueeze(1)
    if log_q is None:
        drawn = len(scores) - hits.to(wide.dtype).sum(1, keepdim=True)
        return _weighted_sum(logits, *_weights(drawn, n_classes, None, own_term), hits, drawn)
    check_floats(log_q, "log_q", "[B]", room=4)
    check_per_example(log_q, "log_q", scores, "scores")
    log_q, others = log_q.to(wide.dtype), len(scores) - 1
    own, each = _weights(others, n_classes, log_q, own_term)
    if own_term == "sampled":  # the probability of the target is known as well
        own, each = (-q - math.log(others + 1) for q in (log_q.unsqueeze(1), log_q))
    return _weighted_sum(logits, own, each, hits, others)


def _find_hits(target: Any, candidates: Any, sampled_logits: Tensor, n_classes: int | None) -> Tensor | None:
    """Return a mask of shape (B1, B2) of the candidates that are the target, or None if the classes are not given."""
    if target is None and candidates is None:
        return None
    if target is None or candidates is None:
        given = "candidates" if target is None else "target"
        raise ValueError(f"target and candidates must be given together; got only {given}")
    check_integers(target, "target", sampled_logits, "sampled_logits")
    if isinstance(candidates, Tensor) and candidates.shape == sampled_logits.shape:
        check_integers(candidates.flatten(), "candidates", sampled_logits.flatten(), "sampled_logits")
    else:
        check_integers(candidates, "candidates", sampled_logits.T, "a row of sampled_logits")
        _check_count(candidates, "candidates", n_classes)
    return candidates == target.unsqueeze(1)


def _check_count(ids: Tensor, name: str, n_classes: int | None) -> None:
    """Check that there are at most ``n_classes`` distinct classes, if reading values is free."""
    if n_classes is None or not reads_are_free(ids):
        return
    count = len(ids.unique())
    if count > n_classes:
        raise ValueError(f"{name} must have at most n_classes = {n_classes} distinct values; got {count}")


def _weights(drawn: int | Tensor, n_classes: int | None, log_q: Tensor | None, own_term: OwnTerm) -> tuple[Any, Any]:
    """Return the logarithms of the weights of the target and of each of ``drawn`` candidates."""
    count = drawn.clamp(min=1) if isinstance(drawn, Tensor) else max(drawn, 1)
    others = count if n_classes is None else n_classes - 1
    own, each = 0.0, _log(others / count)
    if own_term == "sampled":
        own = each = _log((others + 1) / (count + 1))
    if log_q is not None:
        # Importance weights 1 / (q (C - 1)) turn the mean over the sample into an estimate of the mean over the others.
        each = each - _log(others) - log_q
    return own, each


def _log(value: float | Tensor) -> Any:
    """Return the logarithm of a number or a tensor."""
    return value.log() if isinstance(value, Tensor) else math.log(value)


def _weighted_sum(logits: Tensor, own: Any, each: Any, hits: Tensor | None, drawn: int | Tensor) -> Tensor | Estimate:
    """Return the log of the weighted sum of e^logits, without hits, and of the target's own 1.

    If ``hits`` is given, examples without any candidate have no term.
    """
    terms = logits + each
    if hits is not None:
        terms = terms.masked_fill(hits, -math.inf)
    inner = torch.cat([torch.zeros_like(logits[:, :1]) + own, terms], 1).logsumexp(1)
    if hits is None:
        return inner
    known = drawn > 0 if isinstance(drawn, Tensor) else torch.full_like(hits[:, :1], drawn > 0)
    return as_estimate(inner, known.squeeze(1), log=True)


def _checked_log_q(log_q: Tensor, like: Tensor, name: str) -> Tensor:
    """Check the shape of ``log_q`` against that of ``like``, which messages call ``name``."""
    check_floats(log_q, "log_q", "[B2]" if isinstance(log_q, Tensor) and log_q.dim() == 1 else "[B1, B2]", room=4)
    if log_q.shape not in (like.shape, like.shape[1:]):
        raise ValueError(
            f"log_q must have the shape of {name}, {shape_of(like)}, or {shape_of(like[0])}; got {shape_of(log_q)}"
        )
    return log_q
