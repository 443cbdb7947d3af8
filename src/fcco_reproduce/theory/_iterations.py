"""How many steps SOX takes to an averaged squared gradient of epsilon^2, with rates proportional to Theorem 1's."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from fcco import theory
from fcco.solvers.problems import pseudo_huber
from fcco_reproduce.theory._replicas import Replicas

# Practical factors, the same in all settings: gamma and beta are 60 times the theorem's, and lr 60 times this.
RATE_FACTOR = 60.0
STEP_FACTOR = 100.0
NOISE: dict[str, Any] = {"sigma": 1.0, "zeta": 0.5}
REFERENCE: dict[str, Any] = {"epsilon": 0.25, "n": 64, "outer_batch": 8, "inner_batch": 8}


def binding_terms(*, epsilon: float, n: int, outer_batch: int, inner_batch: int) -> str:
    """Which terms of Theorem 1 decide gamma and lr: its first regime is T ~ n / (B1 B2 epsilon^4)."""
    constants = pseudo_huber(n=2, **NOISE).constants
    assert constants is not None
    rates = theory.sox(constants, n=n, outer_batch=outer_batch, inner_batch=inner_batch, epsilon=epsilon, gap=1.0)
    slope = constants.inner_slope(inner_batch)
    by_noise = math.isclose(
        rates.gamma, inner_batch * epsilon**2 / (240 * (constants.l_f * slope) ** 2 * constants.sigma2)
    )
    by_tracking = math.isclose(rates.lr, rates.gamma * outer_batch / (30 * constants.l_f * n * slope * constants.c_g))
    return "n/(B1 B2 eps^4)" if by_noise and by_tracking else "another"


def iterations(
    *, epsilon: float, n: int, outer_batch: int, inner_batch: int, step_factor: float, seeds: int, seed: int = 0
) -> dict[str, Any]:
    """The first T with 1/T sum_t |grad F(w_t)|^2 <= epsilon^2: in the mean over seeds, and for each of them.

    The gradient is exact, and measured at some 300 steps, evenly spaced, up to 20 times the number that a gradient
    flow would need. None: not reached by then.
    """
    problem = pseudo_huber(n=n, **NOISE)
    assert problem.constants is not None
    gap = float(problem.value(problem.start))
    sizes: dict[str, Any] = {"outer_batch": outer_batch, "inner_batch": inner_batch}
    rates = theory.sox(problem.constants, n=n, epsilon=epsilon, gap=gap, **sizes)
    lr = RATE_FACTOR * step_factor * rates.lr
    beta, gamma = min(1.0, RATE_FACTOR * rates.beta), min(1.0, RATE_FACTOR * rates.gamma)
    expected = gap / (lr * epsilon**2)
    every = max(1, int(expected / 300))
    runs = Replicas(problem, "SOX", count=seeds, seed=seed, every_row=True, **sizes)
    total, measured = torch.zeros(seeds, dtype=torch.float64), 0
    mean: int | None = None
    own: list[int | None] = [None] * seeds
    for step in range(math.ceil(20 * expected)):
        if step % every == 0:
            total += runs.squared_gradient()
            measured += 1
            reached = total <= measured * epsilon**2
            own = [step + 1 if first is None and now else first for first, now in zip(own, reached, strict=True)]
            mean = step + 1 if mean is None and total.mean() <= measured * epsilon**2 else mean
            if mean is not None and None not in own:
                break
        runs.step(lr=lr, beta=beta, gamma=gamma)
    return {"lr": lr, "beta": beta, "gamma": gamma, "mean": mean, "own": own, "theorem": rates.steps}


def spread(result: dict[str, Any]) -> tuple[float, float]:
    """The least and the most steps that a seed took; infinite where one did not arrive."""
    own = [math.inf if steps is None else steps for steps in result["own"]]
    return float(np.min(own)), float(np.max(own))
