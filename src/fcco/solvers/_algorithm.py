"""An algorithm with all its parameters settled, made from a method and from what the caller of ``solve`` knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fcco import theory
from fcco._checks import whole_number
from fcco.core.rules import METHODS, SOX, Gamma, Method, Rule
from fcco.optim import Projection
from fcco.projections import Regulariser
from fcco.solvers._chosen import (
    SolveOptions,
    Theorem,
    choose_length,
    choose_projected,
    choose_sox,
    choose_stages,
    warn_if_out_of_reach,
)
from fcco.solvers._problem import Problem
from fcco.solvers._settings import Accuracy, SOXBoost, Stage, as_stages

# Only these methods use these fields of Accuracy.
_USED_BY = {
    "mu": ("sox-boost",),
    "radius": ("sox-boost",),
    "diameter": ("projected", "strongly-convex"),
    "c_r": ("strongly-convex",),
}
_WITH_SAFEGUARD = ("sox", "sox-boost", "projected", "strongly-convex")


@dataclass(frozen=True)
class GivenRule:
    """A rule that the caller made. Its rate is its own."""

    rule: Rule

    def __call__(self, gamma: Gamma) -> Rule:
        """Return the rule, whatever gamma is."""
        return self.rule


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """A method whose parameters are all known.

    Attributes
    ----------
    method : str
        Name of the method.
    rule : callable
        Returns the update rule of the table for a gamma.
    stages : tuple of Stage
        Step sizes and lengths. Only SOX-boost has more than one stage.
    outer_batch, inner_batch : int
        B1 and B2.
    pass_on : str
        See :class:`SOXBoost`.
    projection, regulariser : optional
        The set that F is minimised over, and R, which is added to F.
    estimate_all, safeguard : bool
        See ``solve``.
    convexifier : float
        mu of the term mu/2 |w|^2 that the corollary of Theorem 4 adds to F, or 0.
    """

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
        """The number of steps of all stages. A stage that passes on a random iterate may end earlier."""
        return sum(stage.steps for stage in self.stages)

    @property
    def is_composite(self) -> bool:
        """Whether a step is more than w - lr v."""
        return self.projection is not None or self.regulariser is not None

    def nearest(self, w: Tensor, lr: float) -> Tensor:
        """Return P(prox_{lr R}(w)), which is w itself if there is neither a regulariser nor a projection."""
        if self.regulariser is not None:
            w = self.regulariser.prox(w, lr)
        return w if self.projection is None else self.projection(w)

    def penalty(self, w: Tensor) -> Tensor:
        """Return the differentiable term that is added to F: mu/2 |w|^2 of the corollary."""
        return self.convexifier / 2 * w.square().sum()


def make_algorithm(problem: Problem, method: str | Rule | SOXBoost, options: SolveOptions) -> Algorithm:
    """Return the algorithm of a method, with every parameter checked.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid, or if one is missing. See ``solve``.
    """
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a fcco.solvers.Problem; got {problem!r}")
    name, make = _maker(method)
    options = _normalised(options)
    _check_options(problem, name, options)
    algorithm = make(problem, name, options)
    rule = algorithm.rule(algorithm.stages[0].gamma)
    if options.estimate_all and rule.start is not None:
        raise ValueError(f"estimate_all=True cannot be used with {name}, whose u starts from {rule.start:g}")
    return replace(algorithm, stages=tuple(_checked(stage, algorithm.rule) for stage in algorithm.stages))


Maker = Callable[[Problem, str, SolveOptions], Algorithm]


def _maker(method: str | Rule | SOXBoost) -> tuple[str, Maker]:
    """Return the name of a method, and the function that makes its algorithm."""
    if isinstance(method, SOXBoost):
        return "sox-boost", partial(_sox_boost, boost=method)
    if isinstance(method, Rule):
        return type(method).__name__, partial(_with_rule, rule=method)
    name = str(method).lower().replace("_", "-")
    if name not in _MAKERS:
        raise ValueError(
            f"method must be one of {', '.join(_MAKERS)}, a rule such as fcco.SOX(gamma=0.1), or a "
            f"fcco.solvers.SOXBoost; got {method!r}"
        )
    return name, _MAKERS[name]


def _normalised(options: SolveOptions) -> SolveOptions:
    """Return the options with sizes as Python integers and flags as bools."""
    return replace(
        options,
        outer_batch=whole_number("outer_batch", options.outer_batch),
        inner_batch=whole_number("inner_batch", options.inner_batch),
        estimate_all=bool(options.estimate_all),
        safeguard=bool(options.safeguard),
    )


def _check_options(problem: Problem, name: str, options: SolveOptions) -> None:
    if options.outer_batch > problem.n:
        raise ValueError(f"outer_batch must be at most n = {problem.n}; got {options.outer_batch!r}")
    if options.accuracy is not None:
        if not isinstance(options.accuracy, Accuracy):
            raise TypeError(f"accuracy must be a fcco.solvers.Accuracy; got {options.accuracy!r}")
        for field, users in _USED_BY.items():
            if name not in users and getattr(options.accuracy, field) is not None:
                raise ValueError(
                    f"Accuracy({field}=...) is only used by {' and '.join(users)}: leave it out for {name}"
                )
    if not options.safeguard and name not in _WITH_SAFEGUARD:
        raise ValueError(f"safeguard=False can only be used with {', '.join(_WITH_SAFEGUARD)}; got method {name}")
    if options.regulariser is not None and not isinstance(options.regulariser, Regulariser):
        raise TypeError(
            "regulariser must have mu, prox and a value, such as fcco.projections.SquaredL2(mu=0.1); "
            f"got {options.regulariser!r}"
        )
    if options.projection is not None:
        _check_feasible(problem.start, options.projection)


def _check_feasible(start: Tensor, projection: Projection) -> None:
    if not callable(projection):
        raise TypeError(f"projection must be callable; got {projection!r}")
    nearest = projection(start.detach().clone())
    if not isinstance(nearest, Tensor) or nearest.shape != start.shape:
        raise ValueError(f"projection must map {list(start.shape)} to the same shape; got {nearest!r}")
    tolerance = torch.finfo(start.dtype).eps ** 0.5
    distance = float((nearest - start).norm())
    if not distance <= tolerance * (1 + float(start.norm())):
        raise ValueError(f"start must be in the set that projection= maps to; got a start {distance:.3g} away from it")


def _checked(stage: Stage, rule: Callable[[Gamma], Rule]) -> Stage:
    steps = whole_number("steps", stage.steps, least=0)
    stage.rates(0)
    rule(stage.gamma)
    return replace(stage, steps=steps)


def _preset(method: Method) -> Maker:
    """Return the maker of one of the six presets. A preset ignores the rates that it does not have."""

    def make(problem: Problem, name: str, options: SolveOptions) -> Algorithm:
        used = replace(
            options,
            beta=options.beta if method.momentum else 1.0,
            gamma=options.gamma if "gamma" in method.rule_type.__dataclass_fields__ else 1.0,
        )
        theorem = choose_sox if name == "sox" else None
        rule = _sox(options) if name == "sox" else method.rule
        return _algorithm(name, rule, (_one_stage(problem, name, used, theorem),), options)

    return make


def _sox(options: SolveOptions) -> Callable[[Gamma], Rule]:
    return partial(SOX, safeguard=options.safeguard)


def _with_rule(problem: Problem, name: str, options: SolveOptions, rule: Rule) -> Algorithm:
    """Return the algorithm of a rule of the caller's, by default without momentum."""
    if options.gamma is not None:
        raise ValueError(f"gamma= cannot be used with a rule, which has its own rate; got gamma={options.gamma!r}")
    used = replace(options, beta=1.0 if options.beta is None else options.beta, gamma=rule.rate)
    return _algorithm(name, GivenRule(rule), (_one_stage(problem, name, used, None),), options)


def _sox_boost(problem: Problem, name: str, options: SolveOptions, boost: SOXBoost) -> Algorithm:
    for argument in ("steps", "lr", "beta", "gamma"):
        if getattr(options, argument) is not None:
            raise ValueError(
                f"{argument}= cannot be used with sox-boost: each stage of SOXBoost(stages) has a {argument}"
            )
    accuracy, convexifier = options.accuracy, 0.0
    if accuracy is not None and accuracy.radius is not None:
        convexifier = theory.convexifier(accuracy.epsilon, accuracy.radius)
    if boost.stages is not None:
        if accuracy is not None and accuracy.mu is not None:
            raise ValueError("Accuracy(mu=...) chooses the stages: leave it out if SOXBoost(stages) is given")
        stages = as_stages(boost.stages)
    else:
        stages = choose_stages(problem, name, options, convexifier)
    return _algorithm(name, _sox(options), stages, options, pass_on=boost.pass_on, convexifier=convexifier)


def _projected(problem: Problem, name: str, options: SolveOptions) -> Algorithm:
    if options.projection is None:
        raise ValueError("projected needs projection=, such as functools.partial(project_ball, radius=1.0)")
    stage = _one_stage(problem, name, replace(options, beta=1.0), choose_projected)
    return _algorithm(name, _sox(options), (stage,), options)


def _strongly_convex(problem: Problem, name: str, options: SolveOptions) -> Algorithm:
    regulariser = options.regulariser
    if regulariser is None:
        raise ValueError("strongly-convex needs regulariser=, such as fcco.projections.SquaredL2(mu=0.1)")
    if not regulariser.mu > 0:
        raise ValueError(f"strongly-convex needs a regulariser with mu > 0; got mu = {regulariser.mu!r}")
    schedule = theory.strongly_convex(n=problem.n, outer_batch=options.outer_batch, mu=regulariser.mu)
    steps = options.steps
    if steps is None:
        steps = choose_length(problem, name, options, regulariser.mu)
    used = replace(
        options,
        beta=1.0,
        lr=schedule.lr if options.lr is None else options.lr,
        gamma=schedule.gamma if options.gamma is None else options.gamma,
        steps=steps,
    )
    return _algorithm(name, _sox(options), (_one_stage(problem, name, used, None),), options)


def _algorithm(
    name: str, rule: Callable[[Gamma], Rule], stages: tuple[Stage, ...], options: SolveOptions, **more: Any
) -> Algorithm:
    return Algorithm(
        method=name,
        rule=rule,
        stages=stages,
        outer_batch=options.outer_batch,
        inner_batch=options.inner_batch,
        projection=options.projection,
        regulariser=options.regulariser,
        estimate_all=options.estimate_all,
        safeguard=options.safeguard,
        **more,
    )


def _one_stage(problem: Problem, name: str, options: SolveOptions, theorem: Theorem | None) -> Stage:
    """Return the given rates, completed by the theorem's."""
    values = {argument: getattr(options, argument) for argument in ("lr", "beta", "gamma", "steps")}
    missing = [argument for argument, value in values.items() if value is None]
    if missing:
        needs = f"{name} needs {', '.join(f'{argument}=' for argument in missing)}"
        if theorem is None:
            raise ValueError(f"{needs}: no theorem of the paper chooses it")
        if options.accuracy is None:
            raise ValueError(f"{needs}, or accuracy=Accuracy(epsilon) so that the theorem can choose")
        chosen = theorem(problem, name, options, options.accuracy).scaled(options.accuracy.scale)
        values.update({argument: getattr(chosen, argument) for argument in missing})
        warn_if_out_of_reach(problem, options, options.accuracy, values["lr"], values["steps"])
    return Stage(**values)


_MAKERS: Mapping[str, Maker] = {
    **{name.lower(): _preset(method) for name, method in METHODS.items()},
    "sox-boost": partial(_sox_boost, boost=SOXBoost()),
    "projected": _projected,
    "strongly-convex": _strongly_convex,
}
