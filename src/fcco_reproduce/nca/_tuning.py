"""One grid of rates for all methods, judged on a part of the training data."""

from __future__ import annotations

from typing import Any

import numpy as np

from fcco_reproduce._methods import as_tuned, grid
from fcco_reproduce.datasets import Split
from fcco_reproduce.nca._data import hold_out
from fcco_reproduce.nca._descent import descend


def tune(
    split: Split, method: str, *, lr: list[float], gamma: list[float], seed: int, width: int, steps: int, **fixed: Any
) -> dict[str, Any]:
    """The pair of the grid with the least loss after the last step on a held-out tenth of the training part.

    A pair with which the run diverges is out. ``fixed`` is batch and decay.
    """
    pairs, part = grid(method, lr=lr, gamma=gamma), hold_out(split)
    settings = [as_tuned(method, lr=step, gamma=rate, **fixed) for step, rate in pairs]
    runs = [descend(part, setting, width=width, seed=seed, steps=steps, every=steps) for setting in settings]
    losses = np.nan_to_num([run.losses[-1] for run in runs], nan=np.inf)
    best = int(np.argmin(losses))
    return {"lr": pairs[best][0], "gamma": pairs[best][1], "tried": len(pairs), "lost": int(np.isinf(losses).sum())}
