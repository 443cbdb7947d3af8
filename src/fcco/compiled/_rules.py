"""The update rules of the table of inner estimates, compiled: BSGD, SOAP, MOAP and SOX, as in :mod:`fcco`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fcco.compiled._compile import njit

Array = NDArray[Any]

RULES = {"bsgd": 0, "soap": 1, "moap": 2, "sox": 3}
UNGUARDED_SOX = 4  # SOX(safeguard=False)
_BSGD, _SOAP, _MOAP, _SOX = RULES.values()
_LOG_OF_NOTHING = -1e5  # as in fcco.InnerTable
_LOG_OF_LEAST = math.log(float(np.finfo(np.float32).tiny))  # as in fcco.SOX


class TableUpdate(NamedTuple):
    """How the table is updated.

    ``gamma`` has the rate of every step. Later steps keep the last one. If ``exponent`` is positive, the rate of a row
    is max(visits ** -exponent, floor) instead, where this visit counts.
    """

    rule: int  # of RULES, or UNGUARDED_SOX
    gamma: Array  # [steps], in (0, 1]
    n_outer: float  # rows that are ever outer ones; MOAP scales by their number over that in the batch
    exponent: float = 0.0
    floor: float = 0.0
    factor: float = 1.0  # of the gradient


class Table(NamedTuple):
    """The running estimates of the inner values, as in :class:`fcco.InnerTable`."""

    u: Array  # [n, dim]
    written: Array  # [n]: the step of a row's last visit, from 1; 0 for a row without one
    visits: Array  # [n]


class Rate(NamedTuple):
    """The rate of a step, with the logarithms that the rules need."""

    gamma: float
    log: float
    log_rest: float  # of 1 - gamma
    coverage: float  # n_outer over the outer rows of the batch
    log_coverage: float


def new_update(rule: str, gamma: float, n_outer: float, **options: Any) -> TableUpdate:
    """Return the update of a named rule with a constant rate."""
    return TableUpdate(RULES[rule], np.array([gamma], np.float64), float(n_outer), **options)


def new_table(n: int, dim: int) -> Table:
    """Return a table of n rows without a visit."""
    return Table(np.zeros((n, dim)), np.zeros(n, np.int64), np.zeros(n, np.int64))


@njit(borrows=True)
def make_rate(gamma: float, coverage: float) -> Rate:
    log_rest = _LOG_OF_NOTHING
    if gamma < 1.0:
        log_rest = math.log1p(-gamma)
    return Rate(gamma, math.log(gamma), log_rest, coverage, math.log(coverage))


@njit(borrows=True)
def rate_of_step(update: TableUpdate, clock: int, present: float) -> Rate:
    """Return the rate of step ``clock``, counted from 1, of a batch with ``present`` outer rows."""
    gammas = update.gamma
    gamma = gammas[(clock if clock < len(gammas) else len(gammas)) - 1]
    return make_rate(gamma, update.n_outer / (present if present > 1.0 else 1.0))


@njit(borrows=True)
def rate_of_row(update: TableUpdate, rate: Rate, table: Table, row: int) -> Rate:
    """Return the rate of a row that is about to be visited."""
    if update.exponent > 0.0:
        gamma = (table.visits[row] + 1.0) ** -update.exponent
        return make_rate(gamma if gamma > update.floor else update.floor, rate.coverage)
    return rate


@njit(borrows=True)
def step_row(rule: int, log: bool, rate: Rate, old: float, estimate: float, age: int) -> tuple[float, float]:
    """Return the new value of a row, and the one to differentiate f at.

    ``age`` is the number of steps since the row's last visit, and 0 if there was none. With ``log``, values are
    logarithms.
    """
    if rule == _BSGD:
        return estimate, estimate
    if rule == _MOAP:
        if age == 0:
            old = -math.inf if log else 0.0
        elif age > 1:
            # All rows decay at every step; this step's share is the mixing's.
            decay = (age - 1) * rate.log_rest
            old = old + decay if log else old * math.exp(decay)
        estimate = estimate + rate.log_coverage if log else estimate * rate.coverage
    elif age == 0:
        old = estimate
    if not log:
        new = old + rate.gamma * (estimate - old)
    elif rate.gamma >= 1.0:
        new = estimate
    else:
        new, less = old + rate.log_rest, estimate + rate.log
        if less > new:
            new, less = less, new
        if new > -math.inf:
            new += math.log1p(math.exp(less - new))
    if rule < _SOX:
        return new, new
    if not log:
        return new, old
    least = estimate + (rate.log if rule == _SOX else _LOG_OF_LEAST)
    return new, least if least > old else old
