"""The loss of two-way partial AUC, an objective of three levels: one engine over another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from fcco._coupled import CoupledLoss
from fcco._pool import Estimate, Pool
from fcco.core.rules import SOAP, Rule
from fcco.functional._checks import check_number
from fcco.functional._inner_bipartite import partial_auc_inner
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.losses._base import Loss, Scale, count_both_classes
from fcco.losses._classes import known_labels
from fcco.losses._options import TwoWayOptions
from fcco.losses._population import check_members, outer_only

_LARGEST_EXPONENT = 60.0  # e^60 and its square are finite in float32


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
    def from_targets(cls, target: Any, **options: Unpack[TwoWayOptions]) -> TwoWayPartialAUCLoss:
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
        n, n_pos = count_both_classes(target)
        loss = cls(n, **options)._with_outer(n_pos)._identify(n_pos=n_pos)
        loss._know_labels(*known_labels(target))
        # Otherwise a state that the first table refuses would change the second one.
        loss.over_positives.table.identity |= {name: loss.table.identity[name] for name in ("n_pos", "labels")}
        return loss

    def forward(self, scores: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,)
            The scores.
        target : Tensor of shape (B,)
            The labels: 0 and 1, or bool.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
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

    if TYPE_CHECKING:  # forward, but with an index, which the defaults need in training; it may be None

        def __call__(self, scores: Tensor, target: Tensor, index: Tensor | None) -> Tensor: ...

    def _estimate(self, own: Any, rivals: Any) -> Estimate:
        """Estimate log g of the positives among the own examples."""
        return partial_auc_inner(*own, rivals=rivals, surrogate=self.surrogate, temperature=self.temperature)

    def _check(self, pool: Pool) -> None:
        """Refuse a batch that contradicts the training data."""
        check_members(pool, 1, outer_only(self.coupled.n_outer, "positive", "negative"))
        self._check_labels(pool)
