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
    r"""log g: means over sampled z of p(y|z, x) e^w and of e^w; of both over q, where it is given.

    An example has no term where no z of its sample can explain y.

    Args:
        log_likelihood: log p(y_i | z, x_i), [B1, B2]; -inf where it is 0.
        log_weight: w, [B1, B2]; -inf for a z that example i cannot have.
        log_q: [B1, B2] or [B2], log-probabilities with which the z were drawn; None: uniformly.

    Returns:
        inner [B1, 2], weight [B1].
    """
    check_floats(log_likelihood, "log_likelihood", "[B1, B2]", zero_weight=True, room=4)
    check_floats(log_weight, "log_weight", "[B1, B2]", zero_weight=True, room=4)
    check_same(log_weight, "log_weight", log_likelihood, "log_likelihood")
    weight = at_least_float32(log_weight)
    if log_q is not None:
        # Importance weights 1 / q turn the mean over the sample into the sum over all z.
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
    r"""[B1], log g: the sum over all classes of e^(s_c - s_target), from sampled classes.

    A candidate that is the target itself says nothing of the other classes. Drawn with a probability of its own, it is
    a draw of weight 0; drawn uniformly, it is left out, and an example has no term where no other is left.

    Args:
        target_logit: [B1].
        sampled_logits: [B1, B2].
        n_classes: C. None: the sampled classes are taken to be all others.
        log_q: [B1, B2] or [B2], log-probabilities with which the classes were drawn; None: uniformly.
        own_term: "exact": 1 + (C - 1) times the mean over the sample. "sampled": C times the mean over the sample and
            the target.
        target: [B1] of integers, which class the target is. None: no candidate is the target.
        candidates: [B1, B2] or [B2] of integers, which classes were drawn.

    Returns:
        inner [B1]; with candidates, also weight [B1].
    """
    check_own_term(own_term)
    check_floats(target_logit, "target_logit", "[B1]", room=1.01)
    check_floats(sampled_logits, "sampled_logits", "[B1, B2]", zero_weight=True, room=1.01)
    check_per_example(target_logit, "target_logit", sampled_logits, "sampled_logits")
    if target_logit.dtype != sampled_logits.dtype:
        raise TypeError(
            f"target_logit is of {target_logit.dtype}, sampled_logits of {sampled_logits.dtype}: they must agree"
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
    r"""log g of a softmax over items, from a batch whose examples have each other's targets as candidates.

    Args:
        scores: [B, B], of example i with the target of example j.
        items: [B] of integers, which item the target is. Where another example has the same, it is no candidate.
        n_classes: C, how many items there are. None: those of the batch are taken to be all.
        log_q: [B], log-probabilities of the targets, with which an example has them; None: all are as likely.
        own_term: "exact": 1 + an estimate of the sum over all other items. "sampled": the target is weighed like the
            candidates.

    Returns:
        inner [B], weight [B]. An example has no term where nobody else is in the batch (or, without log_q, nobody with
        another item).
    """
    check_own_term(own_term)
    check_floats(scores, "scores", "[B, B]", room=4)
    if scores.shape[0] != scores.shape[1]:
        raise ValueError(f"scores must have the shape [B, B], got {shape_of(scores)}")
    check_integers(items, "items", scores, "scores")
    _check_count(items, "items", n_classes)
    hits, wide = same(items, None), at_least_float32(scores)
    logits = wide - wide.diagonal().unsqueeze(1)
    if log_q is None:
        drawn = len(scores) - hits.to(wide.dtype).sum(1, keepdim=True)
        return _weighted_sum(logits, *_weights(drawn, n_classes, None, own_term), hits, drawn)
    check_floats(log_q, "log_q", "[B]", room=4)
    check_per_example(log_q, "log_q", scores, "scores")
    log_q, others = log_q.to(wide.dtype), len(scores) - 1
    own, each = _weights(others, n_classes, log_q, own_term)
    if own_term == "sampled":  # the probability of the target is known too
        own, each = (-q - math.log(others + 1) for q in (log_q.unsqueeze(1), log_q))
    return _weighted_sum(logits, own, each, hits, others)


def _find_hits(target: Any, candidates: Any, sampled_logits: Tensor, n_classes: int | None) -> Tensor | None:
    """[B1, B2] of bool: which candidates are the target; None if that is not told."""
    if target is None and candidates is None:
        return None
    if target is None or candidates is None:
        raise ValueError("target and candidates, which classes the logits are of, must be given together")
    check_integers(target, "target", sampled_logits, "sampled_logits")
    if isinstance(candidates, Tensor) and candidates.shape == sampled_logits.shape:
        check_integers(candidates.flatten(), "candidates", sampled_logits.flatten(), "sampled_logits")
    else:
        check_integers(candidates, "candidates", sampled_logits.T, "a row of sampled_logits")
        _check_count(candidates, "candidates", n_classes)
    return candidates == target.unsqueeze(1)


def _check_count(ids: Tensor, name: str, n_classes: int | None) -> None:
    """Refuse more classes than there are, where looking is free."""
    if n_classes is None or not reads_are_free(ids):
        return
    count = len(ids.unique())
    if count > n_classes:
        raise ValueError(f"{name} has {count} different classes, and n_classes is {n_classes}")


def _weights(drawn: int | Tensor, n_classes: int | None, log_q: Tensor | None, own_term: OwnTerm) -> tuple[Any, Any]:
    """Logarithms of what the target weighs, and of what each of so many candidates does."""
    count = drawn.clamp(min=1) if isinstance(drawn, Tensor) else max(drawn, 1)
    others = count if n_classes is None else n_classes - 1
    own, each = 0.0, _log(others / count)
    if own_term == "sampled":
        own = each = _log((others + 1) / (count + 1))
    if log_q is not None:
        # Importance weights 1 / (q (C - 1)) turn the mean over the sample into the mean over the other classes.
        each = each - _log(others) - log_q
    return own, each


def _log(value: float | Tensor) -> Any:
    return value.log() if isinstance(value, Tensor) else math.log(value)


def _weighted_sum(logits: Tensor, own: Any, each: Any, hits: Tensor | None, drawn: int | Tensor) -> Tensor | Estimate:
    """log of the weighted sum of e^logits and of the target's own 1, without hits; no term where none was drawn."""
    terms = logits + each
    if hits is not None:
        terms = terms.masked_fill(hits, -math.inf)
    inner = torch.cat([torch.zeros_like(logits[:, :1]) + own, terms], 1).logsumexp(1)
    if hits is None:
        return inner
    known = drawn > 0 if isinstance(drawn, Tensor) else torch.full_like(hits[:, :1], drawn > 0)
    return as_estimate(inner, known.squeeze(1), log=True)


def _checked_log_q(log_q: Tensor, like: Tensor, name: str) -> Tensor:
    check_floats(log_q, "log_q", "[B2]" if isinstance(log_q, Tensor) and log_q.dim() == 1 else "[B1, B2]", room=4)
    if log_q.shape not in (like.shape, like.shape[1:]):
        raise ValueError(
            f"log_q must have the shape of {name}, {shape_of(like)}, or of one row of it, got {shape_of(log_q)}"
        )
    return log_q
