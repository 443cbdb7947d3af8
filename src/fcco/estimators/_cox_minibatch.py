"""The steps of a Cox model by mini-batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fcco.estimators._descent import Steps
from fcco.estimators._kernels import OUTERS, RULES, SURROGATES, Form
from fcco.estimators._loop import WHOLE, Draws
from fcco.estimators._risk_sets import CoxObjective

Array = NDArray[Any]


def cox_draws(time: Array, event: Array, batch_size: int) -> Draws:
    """Batches of any rows; events are outer ones, and their rivals those who live as long."""
    return Draws(
        kind=WHOLE,
        outer=min(batch_size, len(time)),
        inner=0,
        gain=event.astype(np.float64),
        key=time,
        share=np.ones(2),
    )


def cox_form(method: str, gamma: float, events: int) -> Form:
    """log of a mean of e^(h_j - h_i)."""
    return Form(
        surrogate=SURROGATES["exp"],
        margin=0.0,
        sign=1.0,
        outer=OUTERS["log"],
        power=1.0,
        log=True,
        rule=RULES[method],
        gamma=gamma,
        n_outer=float(events),
        own_shift=0.0,
    )


def cox_steps(
    x: Array,
    time: Array,
    event: Array,
    objective: CoxObjective,
    *,
    form: Form,
    batch_size: int,
    alpha: float,
    beta: float,
) -> Steps:
    """Steps on X as it is, scaled to features of unit spread.

    Args:
        x: [n, d], C-contiguous and writable, as ``time`` [n] is.
        time: [n].
        event: [n] of bool.
        objective: of the same data, standardised.
        form: as by :func:`cox_form`.
        batch_size: rows of a batch.
        alpha: of the penalty.
        beta: rate of the gradient's moving average.
    """
    draws, spread = cox_draws(time, event, batch_size), finite_spread(objective)
    return Steps(
        x=x,
        form=form,
        draws=draws,
        first=np.arange(len(x)),
        second=np.zeros(0, np.int64),
        count=max(1, len(x) // draws.outer),
        scale=objective.rows.scale**-2.0,
        alpha=alpha,
        beta=beta,
        value=lambda w: objective.value(w * spread),
    )


def finite_spread(objective: CoxObjective) -> Array:
    """[d], the spread of each feature, 0 for a constant one."""
    return np.where(np.isfinite(objective.rows.scale), objective.rows.scale, 0.0)
