"""One grid of rates for all methods, judged on a part of the training data."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcco.datasets import Split
from fcco.reproduce.nca._data import hold_out
from fcco.reproduce.nca._descent import descend
from fcco.reproduce.nca._settings import tuned_setting

STEP_SIZES = (0.1, 0.3, 1.0, 3.0, 10.0)
GAMMAS = (0.1, 0.5, 0.9)
TUNING_SEED = 101  # not used for a result


def grid(method: str, *, quick: bool = False) -> list[tuple[float, float]]:
    """All pairs of lr and gamma; BSGD has no gamma.

    >>> len(grid("SOX")), len(grid("BSGD"))
    (15, 5)
    """
    gammas = (1.0,) if method == "BSGD" else GAMMAS[1:] if quick else GAMMAS
    return [(lr, gamma) for lr in (STEP_SIZES[1:3] if quick else STEP_SIZES) for gamma in gammas]


def tune(split: Split, method: str, *, width: int, steps: int, quick: bool) -> dict[str, Any]:
    """The pair of the grid with the least loss after the last step on a held-out tenth of the training part.

    A pair with which the run diverges is out.
    """
    pairs, part = grid(method, quick=quick), hold_out(split)
    runs = [
        descend(part, tuned_setting(method, *pair), width=width, seed=TUNING_SEED, steps=steps, every=steps)
        for pair in pairs
    ]
    losses = np.array([run.losses[-1] for run in runs])
    best = int(np.nanargmin(losses))
    return {"lr": pairs[best][0], "gamma": pairs[best][1], "tried": len(pairs), "lost": int(np.isnan(losses).sum())}
