"""Inner estimates of Cox's partial likelihood from a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from fcco.functional._checks import as_mask, check_floats, check_time
from fcco.functional._inner import Estimate, OwnTerm, check_own_term, masked_logsumexp, mean_weight, settle
from fcco.functional._inner import stratum_weight as weigh


def cox_inner(
    risk: Tensor, time: Tensor, event: Tensor, *, n: int, n_events: int | None = None, own_term: OwnTerm = "sampled"
) -> Estimate:
    r"""log g of the partial likelihood for the events of a batch.

    .. math:: g_i = \sum_{j : T_j \ge T_i} e^{h_j - h_i}

    Args:
        risk: h, [B].
        time: T, [B].
        event: [B], 1 where the event was seen.
        n: size of the population.
        n_events: events in it. If given, events and censored examples are weighed apart, and the batch may hold any
            share of each; if None the batch is taken as drawn at random from all.
        own_term: "exact" or "sampled".

    Returns:
        inner [B], weight [B].
    """
    check_own_term(own_term)
    check_floats(risk, "risk", "[B]")
    check_time(time, risk, "risk")
    seen = as_mask(event, "event", risk, "risk", signs=False)
    exact = own_term == "exact"
    if n_events is None:
        everyone = torch.ones_like(seen)
        stands_for = weigh(everyone, n, of_others=exact).to(risk.dtype).expand_as(risk)
    else:
        of_events = weigh(seen, n_events, of_others=exact).to(risk.dtype)
        of_censored = weigh(~seen, n - n_events, of_others=False).to(risk.dtype)
        stands_for = torch.where(seen, of_events, of_censored)
    own = torch.eye(len(risk), dtype=torch.bool, device=risk.device)
    logits = risk.unsqueeze(0) - risk.unsqueeze(1) + stands_for.log()
    if exact:
        logits = logits.masked_fill(own, 0.0)
    at_risk = (time.unsqueeze(0) >= time.unsqueeze(1)) & ((stands_for > 0) | own)
    return settle(masked_logsumexp(logits, at_risk), mean_weight(seen, risk), log=True)
