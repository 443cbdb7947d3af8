"""Inner estimates of Cox's partial likelihood from a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fcco._pool import Estimate, Recall, Sides, join
from fcco.functional._checks import as_mask, check_floats, check_integers, check_time
from fcco.functional._inner import (
    OwnTerm,
    above,
    against,
    as_estimate,
    can_estimate,
    check_own_term,
    copies_of,
    diagonal,
    each_represents,
    masked_logsumexp,
    own_terms_fixed,
    own_weight,
    population_of,
    same,
    stratum_weight,
)
from fcco.functional._tensors import at_least_float32


def cox_inner(
    risk: Tensor,
    time: Tensor,
    event: Tensor,
    strata: Tensor | None = None,
    *,
    n: int | None = None,
    n_events: int | None = None,
    own_term: OwnTerm = "sampled",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
    recall: Recall | None = None,
) -> Estimate:
    r"""Estimate log g of the partial likelihood for the events of a batch.

    .. math:: g_i = \sum_{j : T_j \ge T_i} e^{h_j - h_i}

    With ``strata``, the sum runs over the examples of the same stratum. Sizes are still those of the whole population:
    an example represents as many others whether or not they are in the stratum.

    With an exact own term, an event has no term if the batch has no other example to represent the rest of a stratum,
    be it the events or the censored examples. With a sampled own term, if the batch has no example of one stratum, the
    other stratum represents both.

    Parameters
    ----------
    risk : Tensor of shape (B,)
        The log-hazards h.
    time : Tensor of shape (B,)
        The times T.
    event : Tensor of shape (B,)
        1 if the event was observed, 0 if the example is censored.
    strata : Tensor of shape (B,) or None, default None
        The stratum of each example, an integer.
    n : int or None, default None
        The size of the population. By default, the batch is the whole population.
    n_events : int or None, default None
        The number of events in the population. If given, events and censored examples are weighed separately, and the
        batch may hold any share of each. If None, the batch is taken as a random sample of the population.
    own_term : {"exact", "sampled"}, default "sampled"
        "exact" counts the own term once, which is unbiased. "sampled" weighs it like the other terms of the batch,
        which has less variance.
    rows : Tensor of shape (B + R,) or None, default None
        The row of each example, needed if an example may appear more than once.
    rivals : sequence of Tensors of shape (R,) or None, default None
        The same columns for R further rivals. No estimates are made for them.
    recall : Recall or None, default None
        How to read the pool if some of its examples are remembered.

    Returns
    -------
    Estimate
        ``inner`` of shape (B,), which is log g, and ``weight`` of shape (B,).

    See Also
    --------
    fcco.losses.CoxLoss : The loss that uses this estimate.
    """
    check_own_term(own_term)
    (risk, time, event, *stratum), sides = join(
        (risk, time, event) if strata is None else (risk, time, event, strata), rivals, recall
    )
    check_floats(risk, "risk", "[B]", room=4)
    check_time(time, risk, "risk")
    seen = as_mask(event, "event", risk, "risk", signs=False)
    for ids in stratum:
        check_integers(ids, "strata", risk, "risk")
    risk = at_least_float32(risk)
    parts = _parts(seen, sides, population_of(seen, sides)[0] if n is None else n, n_events)
    theirs, mine = against(time, sides)
    differences, known = above(risk, sides), sides.members_of_mine(seen)
    if sides.recall.expected is not None:
        stands_for = _represented(parts, sides.recall.expected)
    elif own_term == "sampled":
        stands_for = _weigh_alike(parts, risk)
        if sides.recall.apart:
            differences = own_terms_fixed(differences, copies_of(rows, risk, sides), sides)
    else:
        copies = copies_of(rows, risk, sides)
        stands_for, enough = _weigh_own_apart(parts, copies.sum(1), risk)
        stands_for = torch.where(copies, diagonal(risk, sides), stands_for)
        differences, known = own_terms_fixed(differences, copies, sides), known & enough
    at_risk = (theirs >= mine) & (stands_for > 0)
    for ids in stratum:
        at_risk = at_risk & same(ids, sides)
    inner = masked_logsumexp(differences + stands_for.log(), at_risk)
    if sides.recall.held is not None:
        held, size = (sides.recall.held.sum(), parts[0][1]) if n_events is None else (sides.recall.held[1], n_events)
        inner = torch.logaddexp(inner, own_weight(size, held, own_term).log().to(inner.dtype).expand_as(inner))
    return as_estimate(inner, known, log=True)._replace(rivals=at_risk.sum(1))


def risk_set_sums(risk: Tensor, stands_for: Tensor, sets: Tensor, n_sets: int) -> tuple[Tensor, Tensor]:
    r"""Estimate the logarithms of the sums over several nested risk sets.

    .. math:: G_k = \sum_{j : s_j > k} c_j e^{h_j}

    Parameters
    ----------
    risk : Tensor of shape (B,)
        The log-hazards h.
    stands_for : Tensor of shape (B,)
        How many examples c of the population each example represents.
    sets : Tensor of shape (B,)
        How many of the sets s, counted from the first, each example belongs to, in 0 ... K.
    n_sets : int
        The number of sets K.

    Returns
    -------
    log_sums : Tensor of shape (K,)
        log G, which is -inf for a set without members in the batch.
    members : Tensor of shape (K,)
        The number of members of each set in the batch.

    Examples
    --------
    >>> log_sums, members = risk_set_sums(torch.zeros(3), torch.ones(3), torch.tensor([1, 0, 3]), 3)
    >>> log_sums.exp(), members
    (tensor([2., 1., 1.]), tensor([2, 1, 1]))
    """
    longest_first = sets.argsort(descending=True, stable=True)
    # An example that represents nobody gets a tiny weight, because the -inf of a zero weight has no gradient.
    log_terms = risk + stands_for.clamp(min=torch.finfo(risk.dtype).tiny).log()
    sums = log_terms[longest_first].logcumsumexp(0)
    members = len(sets) - torch.searchsorted(
        sets[longest_first].flip(0), torch.arange(n_sets, device=sets.device), right=True
    )
    return torch.cat([sums.new_full((1,), -math.inf), sums])[members], members


def _parts(seen: Tensor, sides: Sides, n: int | Tensor, n_events: int | None) -> list[tuple[Tensor, int | Tensor]]:
    """Return the members among the rivals and the size in the population of each part, the events first."""
    if n_events is None:
        return [(sides.members(torch.ones_like(seen)), n)]
    return [(sides.members(seen), n_events), (sides.members(~seen), n - n_events)]


def _weigh_alike(parts: list[tuple[Tensor, int | Tensor]], like: Tensor) -> Tensor:
    """Return what each rival represents, of shape (pool,); parts in the pool also represent those it lacks."""
    stands_for = torch.zeros_like(parts[0][0], dtype=like.dtype)
    for member, size in parts:
        stands_for = torch.where(member, stratum_weight(member, size, like), stands_for)
    return stands_for * (sum(size for _, size in parts) / stands_for.sum().clamp(min=1))


def _represented(parts: list[tuple[Tensor, int | Tensor]], expected: Tensor) -> Tensor:
    """Return what each fresh rival represents to a remembered event, of shape (pool,)."""
    members, n_events = parts[0]
    if len(parts) == 1:
        return torch.where(members, each_represents(n_events, expected.sum(), apart=True), 0.0)
    others, n_others = parts[1]
    of_event = each_represents(n_events, expected[1], apart=True).clamp(min=0)
    return torch.where(members, of_event, torch.where(others, each_represents(n_others, expected[0]), 0.0))


def _weigh_own_apart(parts: list[tuple[Tensor, int | Tensor]], copies: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Weigh events and censored examples apart from the own term.

    Returns what j represents in the risk set of event i for j != i, of shape (B, B), and whether the batch has enough
    examples to represent the population, of shape (B,).
    """
    stands_for = torch.zeros_like(parts[0][0], dtype=like.dtype)
    known = torch.ones_like(copies, dtype=torch.bool)
    for place, (member, size) in enumerate(parts):
        of_own_stratum = copies if place == 0 else None
        weight = stratum_weight(member, size, like, copies=of_own_stratum).unsqueeze(-1)
        stands_for = torch.where(member, weight, stands_for)
        known = known & can_estimate(member, size, copies=of_own_stratum)
    return stands_for, known
