"""Update rules: how a row u_i of the table meets a new estimate of g_i, and where f is differentiated.

A rule is a frozen dataclass with one method, ``update(old rows, batch) -> (new rows, rows to differentiate f at)``. It
remembers nothing. What must be kept between steps it declares in its class variables, and the table keeps it.
``METHODS`` names the six algorithms of the paper's figure as a rule plus gradient momentum.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from fcco._checks import check_rate
from fcco.core.spaces import Rate, Space

_TINY = torch.finfo(torch.float32).tiny

Gamma = float | Callable[..., float | Tensor]


class Batch:
    """What a rule is told about a step.

    Repeated rows are averaged already.

    Parameters
    ----------
    estimate, rate, space
        What the attributes of these names are to be.
    coverage : callable
        It takes no argument and returns the attribute of this name. It is called only if a rule asks.

    Attributes
    ----------
    estimate : Tensor
        Of g(w_t), [B1] or [B1, dim]; of log g in log space.
    rate : float or Tensor
        Gamma of this step: one number, or one for each row.
    coverage : float or Tensor
        n / number of distinct rows in the batch. Counting them takes an operation (and a message, on several ranks),
        which is only spent if a rule asks.
    space : Space
        The arithmetic of inner values, plain or logarithmic.
    """

    def __init__(self, estimate: Tensor, rate: Rate, coverage: Callable[[], Rate], space: Space) -> None:
        self.estimate, self.rate, self.space = estimate, rate, space
        self._coverage = coverage

    @property
    def coverage(self) -> Rate:
        return self._coverage()


def updated(rule: Rule, old: Any, batch: Batch) -> tuple[Any, Any]:
    """Return what a rule makes of rows. A rule may be the caller's own."""
    made = rule.update(old, batch)
    if not isinstance(made, tuple) or len(made) != 2:
        raise TypeError(
            f"update of {type(rule).__name__} must return two tensors, the new rows and the rows to differentiate f "
            f"at; got {made!r}"
        )
    for part in made:
        if type(part) is not type(old) or part.shape != old.shape or part.dtype != old.dtype:
            is_array = hasattr(part, "shape") and hasattr(part, "dtype")
            got = f"{list(part.shape)} of {part.dtype}" if is_array else repr(part)
            raise ValueError(
                f"update of {type(rule).__name__} must return tensors of shape {list(old.shape)} of {old.dtype}; "
                f"got {got}"
            )
    return made


def is_per_row(gamma: Gamma) -> bool:
    """Return whether a rate is a schedule of the visits of each row."""
    return getattr(gamma, "per_row", False)


@dataclass(frozen=True)
class Rule(ABC):
    """Base class of all rules.

    A rule of your own is a frozen dataclass with ``rate`` and ``update``. ``update`` must not change its
    arguments in place: they belong to the caller and to the table.

    The class variables say what a rule needs from the table and from the caller:

    - ``start``: what a row holds before its first visit (``None``: its first estimate);
    - ``decays``: rows that are not in the batch shrink by 1 - gamma;
    - ``all_rows``: ``inner`` holds an estimate for every one of the n rows at every step;
    - ``log``: the value of ``CoupledLoss(log=...)`` that the rule is defined for (``None``: both).
    """

    start: ClassVar[float | None] = None
    decays: ClassVar[bool] = False
    all_rows: ClassVar[bool] = False
    log: ClassVar[bool | None] = None

    @property
    @abstractmethod
    def rate(self) -> Gamma:
        """The rate of the moving average: a number or a schedule."""

    @property
    def bounded(self) -> bool:
        """Whether g / u, at the rows that f is differentiated at, has a bound that holds for all estimates.

        In log space the gradient contains this factor. If it has no bound, the gradient of every step is checked.
        """
        return False

    @abstractmethod
    def update(self, old: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the new rows and the rows to differentiate f at (the same object if they are the same).

        Parameters
        ----------
        old : Tensor of shape (B1,) or (B1, dim)
            What the rows of the batch hold: g, or log g in log space. A row that has not been visited holds its first
            estimate, or the value that the loss starts from. For rules that track all rows, B1 is n.
        batch : Batch
            The estimates that the rows meet, and the rate of this step.

        Returns
        -------
        new : Tensor
            The rows to write, with the shape and the dtype of ``old``.
        at : Tensor
            The rows to differentiate f at, with the same shape and dtype.
        """

    def check_rate(self, rate: Rate) -> Rate:
        """Refuse a rate, or rates, outside (0, 1].

        Parameters
        ----------
        rate : float or Tensor
            The rate of a step, or one for each row.

        Returns
        -------
        float or Tensor
            The same rate.

        Raises
        ------
        ValueError
            If a rate is outside (0, 1]. Where reading a tensor would stall a device, an asynchronous assertion fails.
        TypeError
            If the rate is neither a number nor a tensor.
        """
        check_rate("gamma", type(self).__name__, rate, largest=1.0)
        return rate


@dataclass(frozen=True)
class _MovingAverage(Rule):
    gamma: Gamma

    def __post_init__(self) -> None:
        if not callable(self.gamma):
            self.check_rate(self.gamma)

    @property
    def rate(self) -> Gamma:
        return self.gamma


@dataclass(frozen=True)
class SOX(_MovingAverage):
    """Moving average of the rows in the batch; f is differentiated at the row *before* the update.

        u_i^t = (1 - gamma) u_i^{t-1} + gamma g_i,    gradient at u_i^{t-1}

    In log space, the row that f is differentiated at is floored at gamma * g_i. The weight g / u is then at most
    1 / gamma, even if an estimate jumps far above a stale row. ``safeguard=False`` follows the paper to the letter,
    as SOX always does without log. The weight is then unbounded: if the gradient exceeds 2^64, the step is refused with
    a :class:`fcco.NotFiniteError`.

    Parameters
    ----------
    gamma : Gamma, default 0.1
        Rate in (0, 1], or a schedule (see :mod:`fcco.schedules`).
    safeguard : bool, default True
        Floor the row in log space.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, Algorithm 1.

    Examples
    --------
    >>> SOX(gamma=0.1)
    SOX(gamma=0.1, safeguard=True)
    """

    gamma: Gamma = 0.1
    safeguard: bool = True

    @property
    def bounded(self) -> bool:
        return self.safeguard

    def update(self, old: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the moving averages, and the rows before the update.

        Parameters
        ----------
        old : Tensor of shape (B1,) or (B1, dim)
            What the rows of the batch hold.
        batch : Batch
            The estimates that the rows meet, and the rate of this step.

        Returns
        -------
        new, at : Tensor
            The rows to write, and those to differentiate f at; see :meth:`Rule.update`.
        """
        new = batch.space.mix(old, batch.estimate, batch.rate)
        # Even without the safeguard, g / u must be a number; the gradient is one too if f has a slope at 0.
        floor = batch.rate if self.safeguard else _TINY
        return new, batch.space.floor(old, batch.estimate, floor)


@dataclass(frozen=True)
class SOAP(_MovingAverage):
    """Moving average of the rows in the batch; f is differentiated at the *updated* row.

        u_i^t = (1 - gamma) u_i^{t-1} + gamma g_i,    gradient at u_i^t

    Parameters
    ----------
    gamma : Gamma, default 0.1
        Rate in (0, 1], or a schedule (see :mod:`fcco.schedules`).

    References
    ----------
    Qi et al., *Stochastic Optimization of Areas Under Precision-Recall Curves*, NeurIPS 2021.

    Examples
    --------
    >>> SOAP(gamma=0.5)
    SOAP(gamma=0.5)
    """

    gamma: Gamma = 0.1
    bounded = True

    def update(self, old: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the moving averages, at which f is differentiated too.

        Parameters
        ----------
        old : Tensor of shape (B1,) or (B1, dim)
            What the rows of the batch hold.
        batch : Batch
            The estimates that the rows meet, and the rate of this step.

        Returns
        -------
        new, at : Tensor
            The rows to write, and those to differentiate f at; see :meth:`Rule.update`.
        """
        new = batch.space.mix(old, batch.estimate, batch.rate)
        return new, new


@dataclass(frozen=True)
class SCGD(SOAP):
    """SOAP's update on all n rows at every step: the compositional form without selective sampling.

    ``inner`` then holds n estimates, in row order, and ``index`` names the rows whose f enters the gradient.

    Parameters
    ----------
    gamma : Gamma, default 0.1
        Rate in (0, 1], or a schedule (see :mod:`fcco.schedules`).

    References
    ----------
    Wang, Fang and Liu, *Stochastic Compositional Gradient Descent*, Math. Programming 2017.

    Examples
    --------
    >>> import fcco
    >>> loss_fn = fcco.CoupledLoss(torch.square, n=3, rule=SCGD(gamma=0.5))
    >>> for inner in ([1.0, 2.0, 3.0], [3.0, 2.0, 1.0]):  # of all three rows
    ...     _ = loss_fn(torch.tensor(inner), torch.tensor([0, 2]))
    >>> loss_fn.table.u
    tensor([2., 2., 2.])
    """

    all_rows: ClassVar[bool] = True


@dataclass(frozen=True)
class NASA(SCGD):
    """The table of :class:`SCGD`; what sets NASA apart is the momentum of its gradient.

    Parameters
    ----------
    gamma : Gamma, default 0.1
        Rate in (0, 1], or a schedule (see :mod:`fcco.schedules`).

    References
    ----------
    Ghadimi, Ruszczynski and Wang, *A Single Timescale Stochastic Approximation Method*, SIAM J. Optim. 2020.

    Examples
    --------
    >>> import fcco
    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = fcco.optim.MovingAverageSGD([w], lr=0.5, beta=METHODS["NASA"].beta(0.1))
    >>> loss_fn = fcco.CoupledLoss(torch.square, n=3, rule=NASA(gamma=0.5))
    >>> loss_fn(w * torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2])).backward()
    >>> optimizer.step()
    """


@dataclass(frozen=True)
class MOAP(_MovingAverage):
    """Randomly sparsified tracking: sampled estimates weigh n / B1, and all other rows decay.

        u_i^t = (1 - gamma) u_i^{t-1} + gamma (n / B1) g_i   for sampled i
        u_i^t = (1 - gamma) u_i^{t-1}                        for all others,    gradient at u_i^t

    Rows start at zero. Together with the factor n / B1 this makes u unbiased. B1 counts distinct rows. The decay of a
    row is applied when it is next read, so the cost of a step does not depend on n; it takes 8 more bytes per row.

    Parameters
    ----------
    gamma : Gamma, default 0.1
        Rate in (0, 1], or a schedule of the step (see :mod:`fcco.schedules`).

    Raises
    ------
    ValueError
        If the schedule has a rate for each row, because all rows decay at one rate.

    References
    ----------
    Wang et al., *Momentum Accelerates the Convergence of Stochastic AUPRC Maximization*, AISTATS 2022.

    Examples
    --------
    >>> import fcco
    >>> loss_fn = fcco.CoupledLoss(torch.square, n=3, rule=MOAP(gamma=0.5))
    >>> value = loss_fn(torch.tensor([1.0, 2.0]), torch.tensor([0, 2]))
    >>> loss_fn.table.u  # 0.5 * 3/2 * g
    tensor([0.7500, 0.0000, 1.5000])
    """

    gamma: Gamma = 0.1
    start: ClassVar[float | None] = 0.0
    decays: ClassVar[bool] = True
    bounded = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if is_per_row(self.gamma):
            raise ValueError(f"MOAP decays all rows at one rate, so gamma cannot differ by row: got {self.gamma!r}")

    def update(self, old: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the moving averages with estimates times n / B1.

        Parameters
        ----------
        old : Tensor of shape (B1,) or (B1, dim)
            What the rows of the batch hold.
        batch : Batch
            The estimates that the rows meet, and the rate of this step.

        Returns
        -------
        new, at : Tensor
            The rows to write, and those to differentiate f at; see :meth:`Rule.update`.
        """
        new = batch.space.mix(old, batch.space.scale(batch.estimate, batch.coverage), batch.rate)
        return new, new


@dataclass(frozen=True)
class BSGD(Rule):
    """No table: f is differentiated at the estimate itself, which gives a biased gradient.

    References
    ----------
    Hu et al., *Biased Stochastic First-Order Methods for Conditional Stochastic Optimization*, NeurIPS 2020.

    Examples
    --------
    >>> import fcco
    >>> loss_fn = fcco.CoupledLoss(torch.square, n=3, rule=BSGD())
    >>> inner = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> loss_fn(inner, torch.tensor([0, 2])).backward()
    >>> inner.grad  # 2 g / B1, whatever came before
    tensor([1., 2.])
    """

    bounded = True

    @property
    def rate(self) -> float:
        return 1.0

    def update(self, old: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the estimates themselves.

        Parameters
        ----------
        old : Tensor of shape (B1,) or (B1, dim)
            What the rows of the batch hold.
        batch : Batch
            The estimates that the rows meet, and the rate of this step.

        Returns
        -------
        new, at : Tensor
            The rows to write, and those to differentiate f at; see :meth:`Rule.update`.
        """
        return batch.estimate, batch.estimate


@dataclass(frozen=True)
class Method:
    """A named algorithm: a rule for the table, with or without a moving average of the gradient.

    Parameters
    ----------
    rule_type : type
        The class of the rule.
    momentum : bool
        Whether the gradient has a moving average.
    """

    rule_type: type[Rule]
    momentum: bool

    def rule(self, gamma: Gamma = 0.1) -> Rule:
        """Return the rule at this rate, which BSGD ignores.

        Parameters
        ----------
        gamma : Gamma, default 0.1
            Rate of the table, in (0, 1], or a schedule.

        Returns
        -------
        Rule
            The rule.
        """
        return self.rule_type(gamma) if issubclass(self.rule_type, _MovingAverage) else self.rule_type()

    def beta(self, beta: float = 0.1) -> float:
        """Return the rate of the gradient's moving average: ``beta`` with momentum, 1 without.

        Parameters
        ----------
        beta : float, default 0.1
            The rate with momentum.

        Returns
        -------
        float
            The rate, for :class:`fcco.optim.MovingAverageSGD`.
        """
        return beta if self.momentum else 1.0


METHODS: Mapping[str, Method] = MappingProxyType(
    {
        "SCGD": Method(SCGD, momentum=False),
        "NASA": Method(NASA, momentum=True),
        "SOAP": Method(SOAP, momentum=False),
        "MOAP": Method(MOAP, momentum=True),
        "BSGD": Method(BSGD, momentum=False),
        "SOX": Method(SOX, momentum=True),
    }
)
"""The six algorithms of the paper's figure by name, each a rule with or without gradient momentum."""
