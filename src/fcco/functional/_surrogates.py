"""Pairwise surrogates: smooth or convex replacements ℓ(t) of the indicator of t > 0.

The argument t is the rival's score minus the own score.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco.functional._checks import check_number, refuse_where
from fcco.functional._ramps import ramp, ramp_slope
from fcco.functional._tensors import widen

SurrogateLike = str | Callable[[Tensor], Tensor]

_BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {"ramp": ramp, "sigmoid": torch.sigmoid}
_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {"logistic": F.softplus, "exp": torch.exp, **_BOUNDED}
_HINGES = {"squared_hinge": 2, "hinge": 1}
_ALIASES = {"exponential": "exp"}
_LEAST_TEMPERATURE = 1e-30
SURROGATES = (*_PLAIN, *_HINGES, *_ALIASES)


@dataclass(frozen=True)
class Surrogate:
    """An elementwise surrogate ℓ together with what is known about its form.

    A *bounded* surrogate rises from 0 to 1, so that it tends to the indicator of t > 0 as scores grow. An unbounded one
    tends to infinity with t.

    ``hinge_power`` is k if ℓ(t) = (margin + t)₊^k, whose sums over a set can be computed by sorting, and None
    otherwise.
    """

    name: str
    function: Callable[[Tensor], Tensor]
    hinge_power: int | None = None
    margin: float = 0.0

    @property
    def is_exp(self) -> bool:
        """Whether ℓ(t) = e^t, so that log ℓ(t) = t and sums over a set are separable."""
        return self.function is torch.exp

    @property
    def has_name(self) -> bool:
        """Whether this is one of :data:`SURROGATES` rather than the caller's own function."""
        return self.hinge_power is not None or _PLAIN.get(self.name) is self.function

    @property
    def bounded(self) -> bool:
        """Whether this is one of the named surrogates that rise from 0 to 1."""
        return _BOUNDED.get(self.name) is self.function

    @property
    def is_ramp(self) -> bool:
        """Whether this is the ramp, whose sums over a set can be computed by sorting."""
        return self.function is ramp

    def __call__(self, t: Tensor) -> Tensor:
        values = self.function(t)
        if values.shape != t.shape:
            raise ValueError(
                f"surrogate {self.name} must be elementwise; it mapped the shape {tuple(t.shape)} to "
                f"{tuple(values.shape)}"
            )
        return values

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return ℓ(t) and ℓ'(t) of a surrogate that has a name, without a graph."""
        if self.hinge_power is not None:
            height = F.relu(self.margin + t)
            return (height, height.sign()) if self.hinge_power == 1 else (height.square(), 2 * height)
        values = self(t)
        if self.is_ramp:
            return values, ramp_slope(t)
        if self.name == "logistic":
            return values, torch.sigmoid(t)
        return values, values if self.is_exp else values * (1 - values)

    def __reduce__(self) -> str | tuple[Any, ...]:
        # Named surrogates are pickled by name, because hinges are closures, which pickle cannot find.
        if self.has_name:
            return resolve_surrogate, (self.name, self.margin)
        return Surrogate, (self.name, self.function)

    def at_zero(self, like: Tensor) -> float:
        """Return ℓ(0)."""
        return self(like.new_zeros(1)).item()

    def own_value(self, like: Tensor) -> Tensor:
        """Return the own term as a tensor of shape (1,): 1 if the surrogate is bounded, and ℓ(0) otherwise.

        An example is never below itself, so the indicator that a bounded surrogate tends to counts it in full.
        """
        return like.new_ones(1) if self.bounded else self(like.new_zeros(1))


def _hinge(margin: float, power: int) -> Callable[[Tensor], Tensor]:
    # The derivative of relu at the kink is 0, like that of the sorted sums; that of clamp is not.
    """Return the hinge (margin + t)₊ or its square."""
    return lambda t: F.relu(margin + t) if power == 1 else F.relu(margin + t).square()


def resolve_surrogate(surrogate: SurrogateLike, margin: float = 1.0) -> Surrogate:
    r"""Return the surrogate with the given name, or wrap a callable as one.

    ============= =========================
    ramp          :math:`[(t + 4)_+^2 - 2 t_+^2 + (t - 4)_+^2] / 32`, close to the sigmoid
    sigmoid       :math:`1 / (1 + e^{-t})`
    squared_hinge :math:`(margin + t)_+^2`
    hinge         :math:`(margin + t)_+`
    logistic      :math:`\log(1 + e^t)`
    exp           :math:`e^t`, also called "exponential"
    ============= =========================

    Parameters
    ----------
    surrogate : str or callable
        A name, or an elementwise function of t.
    margin : float, default 1.0
        The margin of the hinges. Other surrogates ignore it.

    Returns
    -------
    Surrogate
        The resolved surrogate.

    Raises
    ------
    ValueError
        If no surrogate has that name, or if the margin of a hinge is negative or not finite.
    TypeError
        If ``surrogate`` is neither a name nor callable.

    Examples
    --------
    >>> resolve_surrogate("squared_hinge", margin=0.5)(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.0000, 0.2500, 2.2500])
    """
    if isinstance(surrogate, Surrogate):
        return surrogate
    if not isinstance(surrogate, str):
        if not callable(surrogate):
            raise TypeError(f"surrogate must be a name or a callable; got {type(surrogate).__name__}")
        return Surrogate(getattr(surrogate, "__name__", type(surrogate).__name__), surrogate)
    name = _ALIASES.get(surrogate, surrogate)
    if name in _HINGES:
        check_number(margin, "margin", at_least=0.0)
        return Surrogate(name, _hinge(margin, _HINGES[name]), _HINGES[name], margin)
    if name not in _PLAIN:
        raise ValueError(f"surrogate must be callable or one of {', '.join(map(repr, SURROGATES))}; got {surrogate!r}")
    return Surrogate(name, _PLAIN[name])


def check_temperature(temperature: Any) -> float:
    """Return a temperature as a float; raise if it is not a finite number of at least 1e-30.

    Slopes are divided by it, and would overflow in float32 below.
    """
    check_number(temperature, "temperature", above=0)
    if temperature < _LEAST_TEMPERATURE:
        raise ValueError(f"temperature must be at least {_LEAST_TEMPERATURE:g}; got {temperature!r}")
    return float(temperature)


def in_units(scores: Tensor, temperature: float) -> Tensor:
    """Return the scores in units of the temperature, in float64, where a large offset costs no digits that matter.

    Raises
    ------
    ValueError
        If a score is so large that differences are not finite in these units.
    """
    if temperature == 1.0:
        return scores
    scaled = widen(scores) / temperature
    too_large = ~(scaled.detach().abs() <= torch.finfo(scaled.dtype).max / 4)
    refuse_where(
        "scores", scores, too_large, f"so small that 4 times the value over a temperature of {temperature} is finite"
    )
    return scaled
