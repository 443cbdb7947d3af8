"""One grid of rates for all methods, judged on a part of the training data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcco_reproduce._methods import Setting, as_tuned, grid
from fcco_reproduce.datasets import Split
from fcco_reproduce.push._data import hold_out, load, penalty
from fcco_reproduce.push._descent import Batches, descend, draw_batches


def tune(
    method: str,
    *,
    data: str,
    steps: int,
    batch: int,
    decay: float,
    lr: list[float],
    gamma: list[float],
    seeds: list[int],
) -> list[dict[str, Any]]:
    """The best pairs of the grid, by three measures with a fifth of the training data held out.

    They are the loss on that fifth, which is what is reported; the objective there, which has the weight decay; and the
    objective on the rest, which is what is minimised. All are means over seeds after the last step, and a pair with
    which a seed diverges is out.
    """
    split = hold_out(load(data))
    # Every seed's batches are the same for all pairs, so that luck favours none.
    batches = {seed: draw_batches(split.train.y, batch, steps, seed) for seed in seeds}
    pairs = grid(method, lr=lr, gamma=gamma)
    settings = [as_tuned(method, lr=step, gamma=rate, batch=batch, decay=decay) for step, rate in pairs]
    scores = np.array([_scores(split, setting, batches) for setting in settings])
    return [
        {"lr": pairs[best][0], "gamma": pairs[best][1], "tried": len(pairs), "lost": int(np.isinf(scores[:, 0]).sum())}
        for best in scores.argmin(axis=0)
    ]


def _scores(split: Split, setting: Setting, batches: dict[int, Batches]) -> tuple[float, float, float]:
    """Loss and objective on the part held out, and the objective on the part trained on."""
    last = len(next(iter(batches.values())).outer) // setting.batch - 1
    traces = [descend(split, setting, some, seed=seed, every=last) for seed, some in batches.items()]
    if not all(math.isfinite(trace.losses[-1]) for trace in traces):
        return math.inf, math.inf, math.inf
    ends = [(trace.losses[-1], trace.train_loss, penalty(trace.w, setting.decay)) for trace in traces]
    held, trained, added = np.mean(ends, axis=0).tolist()
    return held, held + added, trained + added
