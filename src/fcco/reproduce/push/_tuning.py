"""One grid of rates for all methods, judged on a part of the training data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fcco.datasets import Split
from fcco.reproduce.push._data import hold_out, load
from fcco.reproduce.push._descent import Batches, descend, draw_batches
from fcco.reproduce.push._settings import BATCH, Setting, tuned_setting

STEP_SIZES = (0.00003, 0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
GAMMAS = (0.01, 0.1, 0.5, 0.9)
TUNING_SEEDS = (101, 102, 103)  # none of them is used for a result


def grid(method: str, *, quick: bool = False) -> list[tuple[float, float]]:
    """All pairs of lr and gamma; BSGD has no gamma.

    >>> len(grid("SOX")), len(grid("BSGD"))
    (40, 10)
    """
    gammas = (1.0,) if method == "BSGD" else GAMMAS[1:3] if quick else GAMMAS
    return [(lr, gamma) for lr in (STEP_SIZES[5:8] if quick else STEP_SIZES) for gamma in gammas]


def tune(method: str, *, data: str, steps: int, quick: bool) -> list[dict[str, Any]]:
    """The best pairs of the grid, by three measures with a fifth of the training data held out.

    They are the loss on that fifth, which is what is reported; the objective there, which has the weight decay; and the
    objective on the rest, which is what is minimised. All are means over seeds after the last step, and a pair with
    which a seed diverges is out.
    """
    split, seeds = hold_out(load(data)), TUNING_SEEDS[:1] if quick else TUNING_SEEDS
    # Every seed's batches are the same for all pairs, so that luck favours none.
    batches = {seed: draw_batches(split.train.y, BATCH, steps, seed) for seed in seeds}
    pairs = grid(method, quick=quick)
    scores = np.array([_scores(split, tuned_setting(method, *pair), batches) for pair in pairs])
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
    held, trained, penalty = np.mean([(t.losses[-1], t.train_loss, t.penalty) for t in traces], axis=0).tolist()
    return held, held + penalty, trained + penalty
