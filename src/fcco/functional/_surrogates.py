"""Pairwise surrogates: smooth or convex stand-ins ℓ(t) for the indicator t > 0, with t = rival's score - own score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco.functional._checks import check_number

SurrogateLike = str | Callable[[Tensor], Tensor]

_PLAIN: dict[str, Callable[[Tensor], Tensor]] = {"logistic": F.softplus, "exp": torch.exp, "sigmoid": torch.sigmoid}
_HINGES = {"squared_hinge": 2, "hinge": 1}
_ALIASES = {"exponential": "exp"}
SURROGATES = (*_HINGES, *_PLAIN, *_ALIASES)


@dataclass(frozen=True)
class Surrogate:
    """ℓ, elementwise, and what is known of its form.

    ``hinge_power`` is k where ℓ(t) = (margin + t)₊^k, whose sums over a set can be had by sorting; else None.
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
        """Whether it is one of :data:`SURROGATES`, and not a function of the caller's own."""
        return self.hinge_power is not None or _PLAIN.get(self.name) is self.function

    def __call__(self, t: Tensor) -> Tensor:
        values = self.function(t)
        if values.shape != t.shape:
            raise ValueError(
                f"surrogate {self.name} must be elementwise: it made {tuple(values.shape)} of {tuple(t.shape)}"
            )
        return values

    def value_and_slope(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return ℓ(t) and ℓ'(t) of a surrogate that has a name, without a graph."""
        if self.hinge_power is not None:
            height = F.relu(self.margin + t)
            return (height, height.sign()) if self.hinge_power == 1 else (height.square(), 2 * height)
        values = self(t)
        if self.name == "logistic":
            return values, torch.sigmoid(t)
        return values, values if self.is_exp else values * (1 - values)

    def __reduce__(self) -> str | tuple[Any, ...]:
        # By name where there is one: hinges are made on the spot, and pickle cannot find them.
        if self.has_name:
            return resolve_surrogate, (self.name, self.margin)
        return Surrogate, (self.name, self.function)

    def at_zero(self, like: Tensor) -> float:
        """ℓ(0), the term of an example against itself."""
        return self(like.new_zeros(1)).item()


def _hinge(margin: float, power: int) -> Callable[[Tensor], Tensor]:
    # relu, and not clamp: at the kink its derivative is 0, as that of the sorted sums.
    return lambda t: F.relu(margin + t) if power == 1 else F.relu(margin + t).square()


def resolve_surrogate(surrogate: SurrogateLike, margin: float = 1.0) -> Surrogate:
    r"""The surrogate of that name, or a callable as one.

    ============= =========================
    squared_hinge :math:`(margin + t)_+^2`
    hinge         :math:`(margin + t)_+`
    logistic      :math:`\log(1 + e^t)`
    exp           :math:`e^t`, also called "exponential"
    sigmoid       :math:`1 / (1 + e^{-t})`
    ============= =========================

    Args:
        surrogate: a name, or an elementwise function of t.
        margin: of the hinges; the others have none and ignore it.

    Raises:
        ValueError: no surrogate has that name; a hinge's margin is negative or not finite.
        TypeError: neither a name nor callable.

    >>> resolve_surrogate("squared_hinge", margin=0.5)(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.0000, 0.2500, 2.2500])
    """
    if isinstance(surrogate, Surrogate):
        return surrogate
    if not isinstance(surrogate, str):
        if not callable(surrogate):
            raise TypeError(f"surrogate must be a name or callable, got {type(surrogate).__name__}")
        return Surrogate(getattr(surrogate, "__name__", type(surrogate).__name__), surrogate)
    name = _ALIASES.get(surrogate, surrogate)
    if name in _HINGES:
        check_number(margin, "margin", at_least=0.0)
        return Surrogate(name, _hinge(margin, _HINGES[name]), _HINGES[name], margin)
    if name not in _PLAIN:
        raise ValueError(f"surrogate must be callable or one of {', '.join(map(repr, SURROGATES))}; got {surrogate!r}")
    return Surrogate(name, _PLAIN[name])
