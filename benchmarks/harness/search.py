"""The search for a learning rate: a grid that is the same for every method, and no walk.

A walk from one side ends in the first local optimum. One benchmark made a competitor look three times worse than it is
in that way. A grid sees the whole range.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from statistics import fmean
from typing import NamedTuple

REACH = 5  # the coarse grid has this many factors of four on either side of its centre
AROUND = 2  # the fine grid has this many factors of two on either side of the best coarse value

log = logging.getLogger("fcco.benchmarks.search")


class Found(NamedTuple):
    """The outcome of a search.

    Attributes
    ----------
    lr : float
        The learning rate whose mean score over all seeds is lowest.
    scores : list of float
        The scores of all seeds at ``lr``.
    at_end : bool
        Whether ``lr`` lies at the end of the grid. A better value may then lie beyond it.
    """

    lr: float
    scores: list[float]
    at_end: bool


def search_lr(
    score: Callable[[float, int], float], centre: float, seeds: int, *, reach: int = REACH, around: int = AROUND
) -> Found:
    """Find the learning rate with the lowest mean score over seeds, on a grid.

    The coarse grid ``centre * 4**k`` with ``|k| <= reach`` is evaluated on seed 0. The fine grid ``best * 2**j`` with
    ``|j| <= around`` is then evaluated on all seeds. No pair of learning rate and seed is evaluated twice.

    Parameters
    ----------
    score : callable
        Maps a learning rate and a seed to a number, the lower the better. A run that diverged scores ``inf``; NaN is
        treated as ``inf``.
    centre : float
        The middle of the coarse grid. It must be the same for all methods that are compared.
    seeds : int
        The number of seeds.
    reach : int
        The number of coarse values on either side of the centre.
    around : int
        The number of fine values on either side of the best coarse one.

    Returns
    -------
    Found
        Ties are resolved in favour of the smaller learning rate.

    Examples
    --------
    >>> search_lr(lambda lr, seed: abs(math.log2(lr) - 5) + seed, centre=1.0, seeds=2)
    Found(lr=32.0, scores=[0.0, 1.0], at_end=False)
    """
    known: dict[tuple[float, int], float] = {}

    def at(lr: float, seed: int) -> float:
        if (lr, seed) not in known:
            value = score(lr, seed)
            known[lr, seed] = math.inf if math.isnan(value) else value
        return known[lr, seed]

    def over_seeds(lr: float) -> float:
        return fmean(at(lr, seed) for seed in range(seeds))

    # Both grids ascend, and min() returns the first of equal values: the smaller learning rate.
    coarse = [centre * 4.0**k for k in range(-reach, reach + 1)]
    middle = min(coarse, key=lambda lr: at(lr, 0))
    fine = [middle * 2.0**j for j in range(-around, around + 1)]
    best = min(fine, key=over_seeds)
    beyond = best <= coarse[0] or best >= coarse[-1]
    at_end = best in (fine[0], fine[-1]) or (beyond and reach > 0)
    if at_end:
        log.warning("the best learning rate, %g, lies at the end of the grid around %g", best, centre)
    return Found(best, [at(best, seed) for seed in range(seeds)], at_end)
