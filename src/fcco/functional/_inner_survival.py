"""Inner estimates of Cox's partial likelihood from a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fcco._pool import Estimate, join
from fcco.functional._checks import as_mask, check_floats, check_time
from fcco.functional._inner import (
    OwnTerm,
    above,
    against,
    as_estimate,
    can_estimate,
    check_own_term,
    copies_of,
    diagonal,
    masked_logsumexp,
    own_part,
    stratum_weight,
)
from fcco.functional._tensors import at_least_float32


def cox_inner(
    risk: Tensor,
    time: Tensor,
    event: Tensor,
    *,
    n: int | None = None,
    n_events: int | None = None,
    own_term: OwnTerm = "sampled",
    rows: Tensor | None = None,
    rivals: Sequence[Tensor] | None = None,
) -> Estimate:
    r"""log g of the partial likelihood for the events of a batch.

    .. math:: g_i = \sum_{j : T_j \ge T_i} e^{h_j - h_i}

    With the own term exact, an event has no term where the batch has nobody else to stand for the rest of the
    population, be it of the events or of the censored. With the own term sampled, a stratum that the batch lacks is
    stood for by the other.

    Args:
        risk: h, [B].
        time: T, [B].
        event: [B], 1 where the event was seen.
        n: size of the population; None: the batch is all there is.
        n_events: events in it. If given, events and censored examples are weighed apart, and the batch may hold any
            share of each; if None the batch is taken as drawn at random from all.
        own_term: "exact" or "sampled".
        rows: [B + R], which example each is, if one may stand twice.
        rivals: the same columns of further examples, [R] each, which no estimates are made of.

    Returns:
        inner [B], weight [B].
    """
    check_own_term(own_term)
    (risk, time, event), own = join((risk, time, event), rivals)
    check_floats(risk, "risk", "[B]", room=4)
    check_time(time, risk, "risk")
    seen = as_mask(event, "event", risk, "risk", signs=False)
    risk = at_least_float32(risk)
    strata = _strata(seen, len(risk) if n is None else n, n_events)
    theirs, mine = against(time, own)
    at_risk = theirs >= mine
    if own_term == "sampled":
        stands_for, known = _all_alike(strata, risk), own_part(seen, own)
    else:
        copies = copies_of(rows, risk, own)
        stands_for, known = _apart(strata, copies.sum(1), risk)
        stands_for = torch.where(copies, diagonal(risk, own), stands_for)
        known = known & own_part(seen, own)
    logits = above(risk, own) + stands_for.log()
    return as_estimate(masked_logsumexp(logits, at_risk & (stands_for > 0)), known, log=True)


def risk_set_sums(risk: Tensor, stands_for: Tensor, sets: Tensor, n_sets: int) -> tuple[Tensor, Tensor]:
    r"""log of the sum over each of several nested risk sets, as far as the batch knows.

    .. math:: G_k = \sum_{j : s_j > k} c_j e^{h_j}

    Args:
        risk: h, [B].
        stands_for: c, [B], how many of the population each stands for.
        sets: s, [B], of 0 ... K: how many of the sets, from the first on, each belongs to.
        n_sets: K.

    Returns:
        log G, [K], -inf for a set that nobody of the batch belongs to; and how many do, [K].

    >>> log_sums, members = risk_set_sums(torch.zeros(3), torch.ones(3), torch.tensor([1, 0, 3]), 3)
    >>> log_sums.exp(), members
    (tensor([2., 1., 1.]), tensor([2, 1, 1]))
    """
    longest_first = sets.argsort(descending=True, stable=True)
    # Of one that stands for nobody next to nothing is left, rather than -inf, which has no gradient.
    log_terms = risk + stands_for.clamp(min=torch.finfo(risk.dtype).tiny).log()
    sums = log_terms[longest_first].logcumsumexp(0)
    members = len(sets) - torch.searchsorted(
        sets[longest_first].flip(0), torch.arange(n_sets, device=sets.device), right=True
    )
    return torch.cat([sums.new_full((1,), -math.inf), sums])[members], members


def _strata(seen: Tensor, n: int, n_events: int | None) -> list[tuple[Tensor, int]]:
    """Members in the batch and size in the population, that of the events first."""
    if n_events is None:
        return [(torch.ones_like(seen), n)]
    return [(seen, n_events), (~seen, n - n_events)]


def _all_alike(strata: list[tuple[Tensor, int]], like: Tensor) -> Tensor:
    """[B]: what each stands for; what the batch lacks is stood for by what it has."""
    stands_for = torch.zeros_like(like)
    for member, size in strata:
        stands_for = torch.where(member, stratum_weight(member, size, like), stands_for)
    return stands_for * (sum(size for _, size in strata) / stands_for.sum().clamp(min=1))


def _apart(strata: list[tuple[Tensor, int]], copies: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """[B, B]: what j stands for in the risk set of an event i, other than j = i; [B]: whether there is enough of it."""
    stands_for, known = torch.zeros_like(like), torch.ones_like(copies, dtype=torch.bool)
    for place, (member, size) in enumerate(strata):
        of_own_stratum = copies if place == 0 else None
        weight = stratum_weight(member, size, like, copies=of_own_stratum).unsqueeze(-1)
        stands_for = torch.where(member, weight, stands_for)
        known = known & can_estimate(member, size, copies=of_own_stratum)
    return stands_for, known
