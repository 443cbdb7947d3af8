"""How many steps SOX takes to a fixed accuracy, with lr and gamma tuned; and gradient descent beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad

from fcco.solvers.problems import KnownProblem, pseudo_huber
from fcco_reproduce._runner import Job
from fcco_reproduce.theory._replicas import Replicas

BETA = 0.5
EVERY = 2  # steps between two measurements
Problem = dict[str, Any]  # the arguments of pseudo_huber, but for n


def steps_to(
    *,
    problem: Problem,
    n: int,
    outer_batch: int,
    inner_batch: int,
    lr: list[float],
    gamma: float,
    epsilon: list[float],
    steps: int,
    seeds: int,
) -> dict[str, Any]:
    """Return the steps of SOX to |grad F|^2 <= epsilon^2 in the mean over seeds, by epsilon and lr."""
    made = pseudo_huber(n=n, **problem)
    sizes: dict[str, Any] = {"outer_batch": outer_batch, "inner_batch": inner_batch}
    # All lr are run at once; the moving average of gradients is linear, so that lr may stand before it.
    factors = torch.tensor(lr, dtype=torch.float64).repeat_interleave(seeds)
    runs = Replicas(made, "SOX", count=len(factors), seed=0, every_row=True, factors=factors, **sizes)
    found = []
    for step in range(steps + 1):
        if step % EVERY == 0:
            found.append(runs.squared_gradient().view(len(lr), seeds).mean(dim=1))
        runs.step(lr=1.0, beta=BETA, gamma=gamma)
    at = list(range(0, steps + 1, EVERY))
    arrived = {str(e): [arrival(at, curve, e**2) for curve in torch.stack(found, dim=1)] for e in epsilon}
    return {"problem": problem, "n": n, **sizes, "lr": lr, "gamma": gamma, "arrived": arrived}


def descent(*, problem: Problem, n: int, lr: list[float], epsilon: list[float], steps: int) -> dict[str, Any]:
    """Return the same of gradient descent: exact gradients, no noise, no table, and no batch to depend on."""
    made = pseudo_huber(n=n, **problem)
    curves = torch.stack([_descend(made, rate, steps) for rate in lr])
    at = list(range(steps + 1))
    arrived = {str(e): [arrival(at, curve, e**2) for curve in curves] for e in epsilon}
    return {"problem": problem, "n": n, "lr": lr, "arrived": arrived}


def _descend(problem: KnownProblem, lr: float, steps: int) -> Tensor:
    slope, w, found = grad(problem.value), problem.start, []
    for _ in range(steps + 1):
        gradient = slope(w)
        found.append(gradient.square().sum())
        w = w - lr * gradient
    return torch.stack(found)


def arrival(at: Sequence[int], values: Tensor, level: float) -> int | None:
    """Return the first step from which on values stay at or below ``level`` for as long again; None if there is none.

    Passing below it on the way is no arrival: with a stale table, w may pass the minimum and leave it.

    Examples
    --------
    >>> arrival([0, 1, 2, 3, 4, 5, 6], torch.tensor([9.0, 1.0, 9.0, 1.0, 1.0, 1.0, 1.0]), 2.0)
    3
    >>> arrival([0, 1, 2, 3], torch.tensor([9.0, 9.0, 9.0, 1.0]), 2.0) is None
    True
    """
    below = np.asarray(values <= level)
    for k, step in enumerate(at):
        end = int(np.searchsorted(at, 2 * step))
        if end < len(at) and below[k : end + 1].all():
            return step
    return None


def jobs_of(settings: dict[str, Any], problem: str, sizes: list[dict[str, int]], seeds: int) -> list[Job]:
    """Return the jobs of all sizes and gammas on one of the problems in the settings, and of the control."""
    own = settings["problems"][problem]
    plan = {"problem": own["problem"], "lr": settings["lr"], "epsilon": own["epsilon"], "steps": own["steps"]}
    some = [
        Job(steps_to, {**plan, **size, "gamma": gamma, "seeds": seeds}, cost=own["steps"])
        for size in sizes
        for gamma in settings["gamma"]
    ]
    counts = dict.fromkeys(size["n"] for size in sizes)
    return some + [Job(descent, {**plan, "n": n}, cost=own["steps"] / 5) for n in counts]


def best(results: list[Any], epsilon: float, **size: Any) -> dict[str, Any]:
    """Return the fewest steps to epsilon over lr and gamma, with the rates that take them.

    ``edge`` says whether lr or gamma is an end of its grid, beyond which fewer steps may do; gamma = 1 is no end.
    """
    mine = [result for result in results if all(result.get(key) == value for key, value in size.items())]
    gammas = sorted(result["gamma"] for result in mine if "gamma" in result)
    found = [
        {"steps": steps, "lr": lr, "gamma": result.get("gamma"), "edge": lr in (result["lr"][0], result["lr"][-1])}
        for result in mine
        for lr, steps in zip(result["lr"], result["arrived"][str(epsilon)], strict=True)
        if steps is not None
    ]
    if not found:
        return {"steps": None, "lr": None, "gamma": None, "edge": False}
    chosen = min(found, key=lambda one: one["steps"])
    low = chosen["gamma"] is not None and len(gammas) > 1 and chosen["gamma"] == gammas[0]
    return {**chosen, "edge": chosen["edge"] or low}


def is_control(result: dict[str, Any]) -> bool:
    """Return whether a result is that of gradient descent."""
    return "gamma" not in result
