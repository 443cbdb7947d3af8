"""The rates and the lengths of runs that the theorems choose."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fcco import theory
from fcco.core.rules import Gamma
from fcco.optim import Projection
from fcco.projections import Regulariser
from fcco.solvers._problem import Problem
from fcco.solvers._settings import Accuracy, Stage, StepSize, as_stages
from fcco.theory import Constants, Parameters


@dataclass(frozen=True, kw_only=True)
class SolveOptions:
    """The arguments of ``solve`` from which an algorithm is made. They are documented there."""

    outer_batch: int
    inner_batch: int
    steps: int | None
    lr: StepSize | None
    beta: StepSize | None
    gamma: Gamma | None
    accuracy: Accuracy | None
    projection: Projection | None
    regulariser: Regulariser | None
    estimate_all: bool
    safeguard: bool


Theorem = Callable[[Problem, str, SolveOptions, Accuracy], Parameters]


def warn_if_out_of_reach(problem: Problem, options: SolveOptions, accuracy: Accuracy, lr: StepSize, steps: int) -> None:
    """Warn if w cannot travel as far as a minimiser is away: F falls by at most C_f C_g for each unit of the way."""
    c, gap = problem.constants, accuracy.gap
    if gap is None and problem.optimum is not None and problem.is_exact:
        gap = _gap(problem, accuracy, 0.0)
    if c is None or gap is None or callable(lr):
        return
    reach = lr * steps * c.c_f * c.inner_slope(options.inner_batch)
    distance = gap / (c.c_f * c.c_g)
    if reach < distance:
        warnings.warn(
            f"{steps} steps with lr = {lr:.3g} move w by about {reach:.3g} at most, but F(start) - min F = {gap:.3g} "
            f"means that a minimiser is at least {distance:.3g} away: take more steps, or Accuracy(scale=...)",
            stacklevel=6,
        )


def _check_covered(theorem: str, problem: Problem, options: SolveOptions, *arguments: str) -> None:
    """Raise if a theorem would choose rates for something that it does not cover."""
    if problem.log and options.safeguard:
        raise ValueError(
            f"{theorem} does not cover the safeguard in log space: give safeguard=False, or the step sizes yourself"
        )
    for argument in arguments:
        if getattr(options, argument) is not None:
            raise ValueError(f"{theorem} does not cover a {argument}: give the step sizes yourself, or no {argument}=")


def _check_scalar(theorem: str, problem: Problem) -> None:
    """Raise if g has several values, of which no monotone f is a convex function."""
    if problem.dim != 1:
        raise ValueError(
            f"{theorem} needs a scalar g, dim=1; {problem.name} has dim={problem.dim}. Give the step sizes yourself"
        )


def choose_sox(problem: Problem, name: str, options: SolveOptions, accuracy: Accuracy) -> Parameters:
    _check_covered("Theorem 3", problem, options, "projection", "regulariser")
    gap = _gap(problem, accuracy, 0.0)
    return theory.sox(_constants(problem, name), gap=gap, **_sizes(problem, options, accuracy))


def choose_stages(problem: Problem, name: str, options: SolveOptions, convexifier: float) -> tuple[Stage, ...]:
    accuracy = options.accuracy
    if accuracy is None or (accuracy.mu is None and accuracy.radius is None):
        raise ValueError(
            "sox-boost needs accuracy=Accuracy(epsilon, mu=...), or Accuracy(epsilon, radius=...) if F is only convex, "
            "or method=SOXBoost(stages)"
        )
    _check_covered("Theorem 4", problem, options, "projection", "regulariser")
    chosen = theory.sox_boost(
        _constants(problem, name),
        gap=_gap(problem, accuracy, convexifier),
        mu=convexifier if accuracy.mu is None else accuracy.mu,
        weight_decay=convexifier,
        **_sizes(problem, options, accuracy),
    )
    return as_stages(stage.scaled(accuracy.scale) for stage in chosen)


def choose_projected(problem: Problem, name: str, options: SolveOptions, accuracy: Accuracy) -> Parameters:
    if accuracy.diameter is None:
        raise ValueError("projected needs Accuracy(diameter=...), the diameter of the set, for Theorem 5")
    _check_scalar("Theorem 5", problem)
    _check_covered("Theorem 5", problem, options, "regulariser")
    sizes = _sizes(problem, options, accuracy)
    return theory.projected(_constants(problem, name), diameter=accuracy.diameter, **sizes)


def choose_length(problem: Problem, name: str, options: SolveOptions, mu: float) -> int:
    """Return the number of steps of Theorem 7, which holds for its own lr and gamma only."""
    accuracy = options.accuracy
    if accuracy is None or accuracy.diameter is None or accuracy.c_r is None:
        raise ValueError(
            "strongly-convex needs steps=, or accuracy=Accuracy(epsilon, diameter=..., c_r=...) so that the theorem "
            "can choose"
        )
    for argument in ("lr", "gamma"):
        if getattr(options, argument) is not None:
            raise ValueError(f"Theorem 7 has a {argument} of its own: give steps= together with {argument}=")
    _check_scalar("Theorem 7", problem)
    _check_covered("Theorem 7", problem, options)
    steps = theory.strongly_convex_steps(
        _constants(problem, name),
        mu=mu,
        c_r=accuracy.c_r,
        diameter=accuracy.diameter,
        **_sizes(problem, options, accuracy),
    )
    return math.ceil(steps / accuracy.scale)


def _sizes(problem: Problem, options: SolveOptions, accuracy: Accuracy) -> dict[str, Any]:
    return {
        "n": problem.n,
        "outer_batch": options.outer_batch,
        "inner_batch": options.inner_batch,
        "epsilon": accuracy.epsilon,
    }


def _constants(problem: Problem, name: str) -> Constants:
    if problem.constants is None:
        raise ValueError(
            f"{name} cannot choose its step sizes from accuracy=, because {problem.name} has no constants: "
            "fcco.theory.estimate_constants measures them"
        )
    return problem.constants


def _gap(problem: Problem, accuracy: Accuracy, convexifier: float) -> float:
    """Return F(start) - min F, or, if mu/2 |w|^2 is added to F, a bound on it."""
    gap = accuracy.gap
    if gap is None:
        if problem.optimum is None or not problem.is_exact:
            raise ValueError(f"Accuracy needs gap=, because {problem.name} does not know F(start) - min F")
        with torch.no_grad():
            gap = max(0.0, float(problem.value(problem.start) - problem.value(problem.optimum)))
    return gap + convexifier / 2 * float(problem.start.square().sum())
