"""From a method's name and what the caller knows, the stages it is run in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fcco import theory
from fcco._checks import whole_number
from fcco._rules import METHODS, SOX, Gamma, Method, Rule
from fcco.optim import Projection
from fcco.projections import Regulariser
from fcco.solvers._problem import Problem
from fcco.theory import Constants, Parameters
from fcco.theory._checks import number

Schedule = float | Callable[[int], float]

PASS_ON = ("last", "average", "random")
_ONLY_FOR = {
    "stages": "sox-boost",
    "pass_on": "sox-boost",
    "mu": "sox-boost",
    "radius": "sox-boost",
    "diameter": "projected",
}
_WITH_SAFEGUARD = ("sox", "sox-boost", "projected", "strongly-convex")


@dataclass(frozen=True)
class Stage:
    """How long SOX is run, and with which step sizes: numbers, or functions of the stage's step (0 at the first).

    >>> Stage(lr=lambda step: 1 / (step + 1), beta=0.1, gamma=0.5, steps=100).steps
    100
    """

    lr: Schedule
    beta: Schedule
    gamma: Gamma
    steps: int

    def rates(self, step: int) -> tuple[float, float]:
        """lr and beta of this step.

        Raises:
            TypeError: one of them is no number.
            ValueError: one of them is outside its range.
        """
        lr = self.lr(step) if callable(self.lr) else self.lr
        beta = self.beta(step) if callable(self.beta) else self.beta
        if not 0 <= number("lr", lr) < math.inf:
            raise ValueError(f"lr must be a finite number >= 0, got {lr!r} at step {step}")
        if not 0 < number("beta", beta) <= 1:
            raise ValueError(f"beta must be in (0, 1], got {beta!r} at step {step}")
        return float(lr), float(beta)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the caller of ``solve`` said about the step sizes and the problem; see there."""

    outer_batch: int
    inner_batch: int
    steps: int | None
    lr: Schedule | None
    beta: Schedule | None
    gamma: Gamma | None
    stages: Iterable[Stage | Parameters] | None
    pass_on: str
    epsilon: float | None
    gap: float | None
    mu: float | None
    radius: float | None
    diameter: float | None
    projection: Projection | None
    regulariser: Regulariser | None
    estimate_all: bool
    safeguard: bool


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run that is settled: the rule of the table, the stages, and what F is minimised over and with."""

    method: str
    rule: Callable[[Gamma], Rule]
    stages: tuple[Stage, ...]
    outer_batch: int
    inner_batch: int
    pass_on: str = "last"
    projection: Projection | None = None
    regulariser: Regulariser | None = None
    estimate_all: bool = False
    safeguard: bool = True
    convexifier: float = 0.0

    @property
    def steps(self) -> int:
        """Of all stages, at most."""
        return sum(stage.steps for stage in self.stages)

    @property
    def is_composite(self) -> bool:
        """Whether a step is more than w - lr v."""
        return self.projection is not None or self.regulariser is not None

    def nearest(self, w: Tensor, lr: float) -> Tensor:
        """The proximal step, P(prox_{lr R}(w)); w itself without a regulariser and a projection."""
        if self.regulariser is not None:
            w = self.regulariser.prox(w, lr)
        return w if self.projection is None else self.projection(w)

    def penalty(self, w: Tensor) -> Tensor:
        """What is added to F and has a gradient: mu/2 |w|^2 of the corollary."""
        return self.convexifier / 2 * w.square().sum()


def make_plan(problem: Problem, method: str, given: Given) -> Plan:
    """The plan of a method; refuses what is out of range or missing, and says which."""
    name = str(method).lower().replace("_", "-")
    if name not in _PLANNERS:
        raise ValueError(f"method must be one of {', '.join(_PLANNERS)}, got {method!r}")
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a fcco.solvers.Problem, got {problem!r}")
    given = _as_numbers(given)
    _check_given(problem, name, given)
    plan = _PLANNERS[name](problem, name, given)
    return replace(plan, stages=tuple(_checked(stage, plan.rule) for stage in plan.stages))


def _as_numbers(given: Given) -> Given:
    """The same with Python's own numbers, in range, and a tuple of stages."""
    known: dict[str, Any] = {
        argument: whole_number(argument, getattr(given, argument)) for argument in ("outer_batch", "inner_batch")
    }
    for argument in ("epsilon", "mu", "radius", "diameter", "gap"):
        value = getattr(given, argument)
        if value is None:
            continue
        known[argument] = number(argument, value)
        if argument == "gap" and not 0 <= known["gap"] < math.inf:
            raise ValueError(f"gap must be a finite number >= 0, got {value!r}")
        if argument != "gap" and not 0 < known[argument] < math.inf:
            raise ValueError(f"{argument} must be a positive number, got {value!r}")
    stages = None if given.stages is None else _as_stages(given.stages)
    return replace(
        given, stages=stages, estimate_all=bool(given.estimate_all), safeguard=bool(given.safeguard), **known
    )


def _check_given(problem: Problem, name: str, given: Given) -> None:
    if given.outer_batch > problem.n:
        raise ValueError(f"outer_batch must be at most n = {problem.n}, got {given.outer_batch!r}")
    if given.pass_on not in PASS_ON:
        raise ValueError(f"pass_on must be one of {', '.join(PASS_ON)}, got {given.pass_on!r}")
    for argument, owner in _ONLY_FOR.items():
        if name != owner and getattr(given, argument) not in (None, "last"):
            raise ValueError(f"{argument}= is for {owner}, not for {name}")
    if given.estimate_all and name == "moap":
        raise ValueError("estimate_all= is not for moap, whose u starts from zero")
    if not given.safeguard and name not in _WITH_SAFEGUARD:
        raise ValueError(f"safeguard= is for {', '.join(_WITH_SAFEGUARD)}, not for {name}")
    if given.regulariser is not None and not isinstance(given.regulariser, Regulariser):
        example = "fcco.projections.SquaredL2(mu=0.1)"
        raise TypeError(f"regulariser must have a value, a prox and mu, such as {example}, got {given.regulariser!r}")
    if given.projection is not None:
        _check_feasible(problem.start, given.projection)


def _check_feasible(start: Tensor, projection: Projection) -> None:
    if not callable(projection):
        raise TypeError(f"projection must be callable, got {projection!r}")
    nearest = projection(start.detach().clone())
    if not isinstance(nearest, Tensor) or nearest.shape != start.shape:
        raise ValueError(f"projection must map {list(start.shape)} to the same shape, got {nearest!r}")
    tolerance = torch.finfo(start.dtype).eps ** 0.5
    distance = float((nearest - start).norm())
    if not distance <= tolerance * (1 + float(start.norm())):
        raise ValueError(f"the start must be in the set that is projected on, and is {distance:.3g} away from it")


def _checked(stage: Stage, rule: Callable[[Gamma], Rule]) -> Stage:
    steps = whole_number("steps", stage.steps, least=0)
    stage.rates(0)
    rule(stage.gamma)
    return replace(stage, steps=steps)


def _with_momentum(method: Method) -> Callable[[Problem, str, Given], Plan]:
    """One of the six presets. The rates it does not have are ignored, as by ``METHODS``."""

    def plan(problem: Problem, name: str, given: Given) -> Plan:
        known = replace(
            given,
            beta=given.beta if method.momentum else 1.0,
            gamma=given.gamma if "gamma" in method.rule_type.__dataclass_fields__ else 1.0,
        )
        theorem = _theorem_1 if name == "sox" else None
        rule = _sox(given) if name == "sox" else method.rule
        return _plan(name, rule, (_one_stage(problem, name, known, theorem),), given)

    return plan


def _sox(given: Given) -> Callable[[Gamma], Rule]:
    return partial(SOX, safeguard=given.safeguard)


def _sox_boost(problem: Problem, name: str, given: Given) -> Plan:
    for argument in ("steps", "lr", "beta", "gamma"):
        if getattr(given, argument) is not None:
            raise ValueError(f"sox-boost has a {argument} in every stage: give stages= instead of {argument}=")
    if given.mu is not None and given.radius is not None:
        raise ValueError("give mu= where F has that constant, or radius= where F is only convex, and not both")
    convexifier = 0.0
    if given.radius is not None:
        if given.epsilon is None:
            raise ValueError("radius= chooses mu = 2 epsilon / radius^2, and needs epsilon=")
        convexifier = theory.convexifier(given.epsilon, given.radius)
    if given.stages is not None:
        if given.mu is not None:
            raise ValueError("mu= is for choosing the stages: leave it out where stages= are given")
        stages = _as_stages(given.stages)
    else:
        mu = given.mu if given.radius is None else convexifier
        if mu is None:
            raise ValueError("sox-boost needs mu= (or radius=, where F is only convex) and epsilon=, or stages=")
        stages = _theorem_2(problem, name, given, mu, convexifier)
    return _plan(name, _sox(given), stages, given, pass_on=given.pass_on, convexifier=convexifier)


def _projected(problem: Problem, name: str, given: Given) -> Plan:
    if given.projection is None:
        raise ValueError("projected needs projection=, such as functools.partial(project_ball, radius=1.0)")
    stage = _one_stage(problem, name, replace(given, beta=1.0), _theorem_3)
    return _plan(name, _sox(given), (stage,), given)


def _strongly_convex(problem: Problem, name: str, given: Given) -> Plan:
    regulariser = given.regulariser
    if regulariser is None:
        raise ValueError("strongly-convex needs regulariser=, such as fcco.projections.SquaredL2(mu=0.1)")
    if not regulariser.mu > 0:
        raise ValueError(f"strongly-convex needs a regulariser with mu > 0, got mu = {regulariser.mu!r}")
    schedule = theory.strongly_convex(n=problem.n, outer_batch=given.outer_batch, mu=regulariser.mu)
    known = replace(
        given,
        beta=1.0,
        lr=schedule.lr if given.lr is None else given.lr,
        gamma=schedule.gamma if given.gamma is None else given.gamma,
    )
    return _plan(name, _sox(given), (_one_stage(problem, name, known, None),), given)


def _plan(name: str, rule: Callable[[Gamma], Rule], stages: tuple[Stage, ...], given: Given, **more: Any) -> Plan:
    return Plan(
        method=name,
        rule=rule,
        stages=stages,
        outer_batch=given.outer_batch,
        inner_batch=given.inner_batch,
        projection=given.projection,
        regulariser=given.regulariser,
        estimate_all=given.estimate_all,
        safeguard=given.safeguard,
        **more,
    )


Theorem = Callable[[Problem, str, Given], Parameters]


def _one_stage(problem: Problem, name: str, given: Given, theorem: Theorem | None) -> Stage:
    """What was given, and the theorem's choice of the rest."""
    values = {argument: getattr(given, argument) for argument in ("lr", "beta", "gamma", "steps")}
    missing = [argument for argument, value in values.items() if value is None]
    if missing:
        needs = f"{name} needs {', '.join(f'{argument}=' for argument in missing)}"
        if theorem is None:
            raise ValueError(f"{needs}: no theorem of the paper chooses it")
        if given.epsilon is None:
            raise ValueError(f"{needs}, or epsilon= for the theorem to choose")
        chosen = theorem(problem, name, given)
        values.update({argument: getattr(chosen, argument) for argument in missing})
    return Stage(**values)


def _check_covered(theorem: str, given: Given, *parts: str) -> None:
    """Refuse rates of a theorem that does not speak of what is minimised."""
    for part in parts:
        if getattr(given, part) is not None:
            raise ValueError(f"{theorem} has no {part}: give the step sizes yourself where {part}= is given")


def _theorem_1(problem: Problem, name: str, given: Given) -> Parameters:
    _check_covered("Theorem 1", given, "projection", "regulariser")
    return theory.sox(_constants(problem, name), gap=_gap(problem, given, 0.0), **_sizes(problem, given))


def _theorem_2(problem: Problem, name: str, given: Given, mu: float, convexifier: float) -> tuple[Stage, ...]:
    if given.epsilon is None:
        raise ValueError("sox-boost needs epsilon=, or stages=")
    _check_covered("Theorem 2", given, "projection", "regulariser")
    chosen = theory.sox_boost(
        _constants(problem, name),
        gap=_gap(problem, given, convexifier),
        mu=mu,
        weight_decay=convexifier,
        **_sizes(problem, given),
    )
    return _as_stages(chosen)


def _theorem_3(problem: Problem, name: str, given: Given) -> Parameters:
    if given.diameter is None:
        raise ValueError("projected needs diameter=, of the set that is projected on, for the theorem to choose")
    _check_covered("Theorem 3", given, "regulariser")
    return theory.projected(_constants(problem, name), diameter=given.diameter, **_sizes(problem, given))


def _as_stages(stages: Iterable[Stage | Parameters]) -> tuple[Stage, ...]:
    if not isinstance(stages, Iterable):
        raise TypeError(f"stages must be a sequence of stages, got {stages!r}")
    found = []
    for stage in stages:
        if not isinstance(stage, Stage | Parameters):
            raise TypeError(f"a stage must be a fcco.solvers.Stage or fcco.theory.Parameters, got {stage!r}")
        found.append(Stage(stage.lr, stage.beta, stage.gamma, stage.steps))
    if not found:
        raise ValueError("stages must have at least one stage, got none")
    return tuple(found)


def _sizes(problem: Problem, given: Given) -> dict[str, Any]:
    return {
        "n": problem.n,
        "outer_batch": given.outer_batch,
        "inner_batch": given.inner_batch,
        "epsilon": given.epsilon,
    }


def _constants(problem: Problem, name: str) -> Constants:
    if problem.constants is None:
        raise ValueError(f"{name} cannot take its step sizes from epsilon=: {problem.name} has no constants")
    return problem.constants


def _gap(problem: Problem, given: Given, convexifier: float) -> float:
    """F(start) - min F; with mu/2 |w|^2 added to F, a bound on it."""
    gap = given.gap
    if gap is None:
        if problem.optimum is None or not problem.is_exact:
            raise ValueError(f"the theorem needs gap=, F(start) - min F, which {problem.name} does not tell")
        with torch.no_grad():
            gap = max(0.0, float(problem.value(problem.start) - problem.value(problem.optimum)))
    return gap + convexifier / 2 * float(problem.start.square().sum())


_PLANNERS: Mapping[str, Callable[[Problem, str, Given], Plan]] = {
    **{name.lower(): _with_momentum(method) for name, method in METHODS.items()},
    "sox-boost": _sox_boost,
    "projected": _projected,
    "strongly-convex": _strongly_convex,
}
