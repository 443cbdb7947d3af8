"""Losses of partial AUC beside :class:`PartialAUCLoss`: of the highest negatives alone, and two-way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco._coupled import CoupledLoss
from fcco._memory import Memory, as_memory
from fcco._pool import Estimate, Pool
from fcco._rules import SOAP, Rule
from fcco.functional._auc import check_fpr
from fcco.functional._checks import check_number
from fcco.functional._inner_auc import cvar_partial_auc_inner
from fcco.functional._inner_bipartite import partial_auc_inner
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.losses._base import Loss, Scale, count_positives
from fcco.losses._population import check_members, outer_only, split
from fcco.schedules import RunningMean

_TINY = torch.finfo(torch.float32).tiny
_LARGEST_EXPONENT = 60.0  # e^60 and its square are finite in float32


@dataclass(frozen=True)
class _AmongHighest:
    """f(u) = u_3 / β, times how much of a negative is among the share β of the highest.

    The latter has no derivative: at the edge, the loss of the negative that enters is that of the one that leaves.
    """

    share: float

    def __call__(self, u: Tensor) -> Tensor:
        inside = ((self.share - u[:, 0]) / u[:, 1].clamp(min=_TINY)).clamp(0, 1)
        return inside.detach() * u[:, 2] / self.share


class CVaRPartialAUCLoss(Loss):
    r"""One-way partial AUC: the loss of AUC over the negatives with the highest scores alone.

    .. math:: F = \frac{1}{n_+ k} \sum_{i \in S_+} \sum_{j \in S_-^{\uparrow k}} \ell(h_j - h_i)

    If ℓ does not decrease, this is the mean over the positives of the conditional value at risk (CVaR) of ℓ.

    Parameters
    ----------
    n : int
        The number of training examples.
    n_pos : int
        The number of positives among them; see also :meth:`from_targets`.
    max_fpr : float, default 0.1
        The largest false positive rate, in (0, 1]; k = max_fpr · n₋ need not be a whole number.
    top_k : int or None, default None
        The number k of negatives, instead of ``max_fpr``.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise function.
    margin : float, default 1.0
        The margin of the hinges.
    rule : Rule, default ``fcco.SOAP(fcco.schedules.RunningMean(floor=0.1))``
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss, over the highest negatives
        of each batch.
    memory : Memory or int, default 0
        Which outputs of recent batches to compare with; a number is that of outputs per class. See
        :class:`fcco.Memory`.

    Raises
    ------
    ValueError
        If an option is invalid, if ``n_pos`` is not below ``n``, or if ``top_k`` exceeds the number of negatives.

    See Also
    --------
    fcco.functional.cvar_partial_auc_loss : The exact objective.
    PartialAUCLoss : A smooth form, in which all negatives count.

    Notes
    -----
    **Call.** ``loss(scores, target, index)`` takes three tensors of shape (B,): scores, targets (0 and 1, or bool), and
    rows in [0, n). It returns a scalar.

    The usual form of this objective has a threshold for every positive, which is trained with a step size of its own.
    Here the outer examples are the negatives. The row of a negative tracks which share of the negatives is above it,
    and whether the negative counts follows from that. There is no threshold. The three estimates of a row are unbiased.
    The loss is not, because it is not linear in the first two: near the edge, a negative counts in part while its row
    is uncertain. In ``eval()`` mode, the share of the negatives that count is that of the training set.

    References
    ----------
    .. [1] Zhu et al., *When AUC Meets DRO*, ICML 2022 (SOPA).

    Examples
    --------
    >>> loss_fn = CVaRPartialAUCLoss.from_targets([1, 0, 0, 1, 0], max_fpr=0.5)
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        n_pos: int,
        max_fpr: float = 0.1,
        top_k: int | None = None,
        surrogate: SurrogateLike = "squared_hinge",
        margin: float = 1.0,
        rule: Rule = SOAP(RunningMean(floor=0.1)),  # noqa: B008 (frozen)
        memory: Memory | int = 0,
    ) -> None:
        n_neg = whole_number("n", n) - whole_number("n_pos", n_pos)
        if n_neg < 1:
            raise ValueError(f"n_pos must be below n = {n}, because negatives are the outer examples; got {n_pos}")
        check_fpr(max_fpr, top_k)
        if top_k is not None and top_k > n_neg:
            raise ValueError(f"top_k must be at most n - n_pos = {n_neg}; got {top_k}")
        share = float(max_fpr) if top_k is None else top_k / n_neg
        super().__init__(_AmongHighest(share), n, dim=3, rule=rule, memory=as_memory(memory, strata=2))
        self.n_pos, self.share, self.surrogate = n_pos, share, resolve_surrogate(surrogate, margin)
        self._with_outer(n_neg)._identify(n_pos=n_pos)

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> CVaRPartialAUCLoss:
        """Create the loss with n and n_pos counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,)
            The labels of the training data: 0 and 1, or bool.
        **options
            Further arguments of the constructor.

        Returns
        -------
        CVaRPartialAUCLoss
            The loss.
        """
        return cls(*count_positives(target), **options)

    def forward(self, scores: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch from scores, targets and rows, each of shape (B,)."""
        return self._loss(self._estimate, scores, target, index=index, stratum=target, check=self._check)

    def _estimate(self, pool: Pool) -> Estimate:
        """Estimate the inner values of the negatives in a pool."""
        return cvar_partial_auc_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.repeated_rows,
            surrogate=self.surrogate,
            n_neg=self._of_population(self.n - self.n_pos),
            recall=pool.recall,
        )

    def _check(self, pool: Pool) -> None:
        """Refuse a batch that contradicts the training data."""
        check_members(pool, 1, split(self.n, self.n_pos, "n_pos", "positive", "negative"))


@dataclass(frozen=True)
class _PowerOverPeak:
    """f(u) = u^p / e^peak, given log u."""

    p: float

    def __call__(self, log_u: Tensor, index: Tensor, found: dict[str, Tensor]) -> Tensor:
        # A row may still hold what it was when losses were much larger. It then counts as far as it can.
        return torch.exp((self.p * log_u - found["peak"].to(log_u.dtype)).clamp(max=_LARGEST_EXPONENT))


class TwoWayPartialAUCLoss(Loss):
    r"""Two-way partial AUC: a soft maximum over the positives of soft maxima over the negatives.

    .. math:: F = \tau_+ \log \frac{1}{n_+} \sum_{i \in S_+} g_i^{\tau / \tau_+}, \qquad
        g_i = \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Parameters
    ----------
    n : int
        The number of training examples.
    temperature : float, default 1.0
        The temperature τ of the negatives, positive. The smaller it is, the more the highest negatives count.
    positive_temperature : float, default 1.0
        The temperature τ₊ of the positives, positive. The smaller it is, the more the lowest positives count.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise function.
    margin : float, default 1.0
        The margin of the hinges.
    rule : Rule, default ``fcco.SOAP(gamma=0.7)``
        How rows are updated, on both levels; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss.

    Raises
    ------
    ValueError
        If a temperature is not positive.

    See Also
    --------
    fcco.functional.two_way_partial_auc_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, target, index)`` takes three tensors of shape (B,): scores, targets (0 and 1, or bool), and
    rows in [0, n). It returns a scalar. The loss works in log space.

    The objective has three levels: a logarithm of a mean of powers of means. Two engines track them: one has a row for
    every g_i, and its loss, the mean of the powers, is the inner value of the other, which has one row. The estimates
    of g are unbiased, and so is that of the mean of powers, given the rows of g. With ``fcco.SOX`` and rows that are
    right, the gradient is therefore unbiased.

    References
    ----------
    .. [1] Zhu et al., *When AUC Meets DRO*, ICML 2022 (SOTA-s).

    Examples
    --------
    >>> loss_fn = TwoWayPartialAUCLoss(n=5)
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        temperature: float = 1.0,
        positive_temperature: float = 1.0,
        surrogate: SurrogateLike = "squared_hinge",
        margin: float = 1.0,
        rule: Rule = SOAP(gamma=0.7),  # noqa: B008 (frozen)
    ) -> None:
        check_number(temperature, "temperature", above=0)
        check_number(positive_temperature, "positive_temperature", above=0)
        super().__init__(_PowerOverPeak(temperature / positive_temperature), n, rule=rule, log=True)
        self.temperature, self.positive_temperature = temperature, positive_temperature
        self.surrogate = resolve_surrogate(surrogate, margin)
        self.over_positives = CoupledLoss(Scale(positive_temperature), 1, rule=rule, log=True)
        self.over_positives.outer_may_fail = False

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> TwoWayPartialAUCLoss:
        """Create the loss with n and the number of positives counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,)
            The labels of the training data: 0 and 1, or bool.
        **options
            Further arguments of the constructor.

        Returns
        -------
        TwoWayPartialAUCLoss
            The loss.
        """
        n, n_pos = count_positives(target)
        return cls(n, **options)._with_outer(n_pos)._identify(n_pos=n_pos)

    def forward(self, scores: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch from scores, targets and rows, each of shape (B,)."""
        found: dict[str, Tensor] = {}

        def estimate(pool: Pool) -> Estimate:
            made = self._estimate(pool.own, pool.rivals)
            with torch.no_grad():
                everyone = made if pool.rivals is None else self._estimate(pool.joined(), None)
                known, ratio = everyone.share > 0, self.temperature / self.positive_temperature
                peak = torch.where(known, ratio * everyone.inner.detach(), -torch.inf).amax()
                found["known"] = known.any().unsqueeze(0)
                found["peak"] = torch.where(known.any(), peak, 0.0)
            return made

        powers = self._loss(estimate, scores, target, index=index, check=self._check, sample=found)
        # A rank without positives has a sum of 0, whose logarithm must not have a gradient.
        some = powers.detach() > 0
        log_mean = torch.where(some, torch.where(some, powers, 1.0).log() + found["peak"], -torch.inf)
        row = torch.zeros(1, dtype=torch.long, device=powers.device)
        return self.over_positives(log_mean.unsqueeze(0), row, weight=found["known"], options=vars(self))

    def _estimate(self, own: Any, rivals: Any) -> Estimate:
        """Estimate log g of the positives among the own examples."""
        return partial_auc_inner(*own, rivals=rivals, surrogate=self.surrogate, temperature=self.temperature)

    def _check(self, pool: Pool) -> None:
        """Refuse a batch that contradicts the training data."""
        check_members(pool, 1, outer_only(self.coupled.n_outer, "positive", "negative"))
