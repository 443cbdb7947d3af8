"""What a caller of ``solve`` says about the step sizes: given as numbers, as stages, or as an accuracy to reach."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields

from fcco.core.rules import Gamma
from fcco.theory import Parameters
from fcco.theory._checks import non_negative, positive, real_number

StepSize = float | Callable[[int], float]

PASS_ON = ("last", "average", "random")


@dataclass(frozen=True)
class Stage:
    """The length and the step sizes of one run of SOX.

    A step size is a number, or a function of the step within the stage. The first step is 0.

    Parameters
    ----------
    lr : float or callable
        Step size, at least 0.
    beta : float or callable
        Rate of the gradient's moving average, in (0, 1].
    gamma : float or callable
        Rate of the table's moving average, in (0, 1]. See :mod:`fcco.schedules`.
    steps : int
        Number of steps.

    Examples
    --------
    >>> Stage(lr=lambda step: 1 / (step + 1), beta=0.1, gamma=0.5, steps=100).steps
    100
    """

    lr: StepSize
    beta: StepSize
    gamma: Gamma
    steps: int

    def rates(self, step: int) -> tuple[float, float]:
        """Return lr and beta of a step.

        Parameters
        ----------
        step : int
            Step within the stage. The first is 0.

        Returns
        -------
        tuple of float
            lr and beta.

        Raises
        ------
        TypeError
            If one of them is not a number.
        ValueError
            If one of them is outside its range.
        """
        lr = self.lr(step) if callable(self.lr) else self.lr
        beta = self.beta(step) if callable(self.beta) else self.beta
        if not 0 <= real_number("lr", lr) < math.inf:
            raise ValueError(f"lr must be a finite number >= 0; got {lr!r} at step {step}")
        if not 0 < real_number("beta", beta) <= 1:
            raise ValueError(f"beta must be in (0, 1]; got {beta!r} at step {step}")
        return float(lr), float(beta)


@dataclass(frozen=True)
class SOXBoost:
    """Algorithm 2 of the paper: SOX in stages, where each stage starts from the w, u and v of the previous one.

    Pass an instance as the ``method`` of :func:`fcco.solve`. ``method="sox-boost"`` is short for ``SOXBoost()``.

    Parameters
    ----------
    stages : iterable of Stage or of fcco.theory.Parameters, optional
        Step sizes and length of every stage. By default Theorem 4 chooses them from the ``accuracy`` given to
        :func:`fcco.solve`.
    pass_on : {"last", "average", "random"}, default "last"
        The iterate that a stage hands to the next stage. The last stage hands it to the caller.

        - ``"last"`` is the last iterate, as Algorithm 2 says.
        - ``"random"`` is one of the T_k iterates, drawn uniformly, with the u and v that were estimated at it. The
          proof of Theorem 4 is about this choice. The stage ends at that iterate, with a step of lr 0.
        - ``"average"`` is the mean of the stage's iterates, with the last u and v. If F is convex, F at the average
          is no worse than at a random iterate. The proof's bounds on the errors of u and v do not cover this choice.

    Raises
    ------
    TypeError
        If ``stages`` is not an iterable of stages.
    ValueError
        If there is no stage, or if ``pass_on`` is unknown.

    Examples
    --------
    >>> boost = SOXBoost([Stage(0.1, 0.5, 0.5, steps=100), Stage(0.05, 0.25, 0.25, steps=200)], pass_on="average")
    >>> len(boost.stages)
    2

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, Algorithm 2.
    """

    stages: Iterable[Stage | Parameters] | None = None
    pass_on: str = "last"

    def __post_init__(self) -> None:
        if self.pass_on not in PASS_ON:
            raise ValueError(f"pass_on must be one of {', '.join(PASS_ON)}; got {self.pass_on!r}")
        if self.stages is not None:
            object.__setattr__(self, "stages", as_stages(self.stages))


def as_stages(stages: Iterable[Stage | Parameters]) -> tuple[Stage, ...]:
    """Return stages, or what a theorem prescribes, as a tuple of :class:`Stage`."""
    if not isinstance(stages, Iterable):
        raise TypeError(f"stages must be a sequence of fcco.solvers.Stage; got {stages!r}")
    found = []
    for stage in stages:
        if not isinstance(stage, Stage | Parameters):
            raise TypeError(f"each stage must be a fcco.solvers.Stage or a fcco.theory.Parameters; got {stage!r}")
        found.append(Stage(stage.lr, stage.beta, stage.gamma, stage.steps))
    if not found:
        raise ValueError("stages must contain at least one stage; got none")
    return tuple(found)


@dataclass(frozen=True)
class Accuracy:
    r"""The accuracy to reach, and what the theorems need to know to choose the step sizes for it.

    Parameters
    ----------
    epsilon : float
        The accuracy. It bounds the norm of the gradient for Theorem 3, the excess of F for Theorem 4, the *weak*
        primal-dual gap for Theorem 5, and both the excess of F + R and the squared distance to the minimiser for
        Theorem 7.
    gap : float, optional
        F(start) - min F, or an upper bound of it, for Theorems 3 and 4. It is computed if the problem knows its
        optimum.
    mu : float, optional
        A constant such that :math:`\|\nabla F\|^2 \ge 2 \mu (F - \min F)`, for Theorem 4.
    radius : float, optional
        A bound on the norm of a minimiser, for the corollary of Theorem 4. It takes the place of ``mu`` if F is only
        convex.
    diameter : float, optional
        The diameter of the set that is projected onto, for Theorems 5 and 7.
    scale : float, default 1.0
        A factor for practice: the theorem's rates are multiplied by it, and its number of steps is divided by it. See
        :meth:`fcco.theory.Parameters.scaled`. The rates of Theorem 7 stay as they are. The guarantee of the theorem
        holds for ``scale=1`` only.
    c_r : float, optional
        A Lipschitz constant of the regulariser on the set, for Theorem 7. For mu/2 |w|^2, it is mu times the largest
        norm in the set.

    Raises
    ------
    TypeError
        If a value is not a number.
    ValueError
        If a value is outside its range, or if both ``mu`` and ``radius`` are given.

    Examples
    --------
    >>> Accuracy(0.1, mu=0.5)
    Accuracy(epsilon=0.1, gap=None, mu=0.5, radius=None, diameter=None, scale=1.0, c_r=None)
    """

    epsilon: float
    gap: float | None = None
    mu: float | None = None
    radius: float | None = None
    diameter: float | None = None
    scale: float = 1.0
    c_r: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.name in ("epsilon", "scale"):
                check = non_negative if field.name in ("gap", "c_r") else positive
                object.__setattr__(self, field.name, check(field.name, value))
        if self.mu is not None and self.radius is not None:
            raise ValueError(
                "mu and radius cannot both be given: give mu if F has that constant, or radius if F is only convex"
            )
