"""Losses of positives against negatives: average precision, p-norm push, one-way partial AUC."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco._pool import Estimate, Pool
from fcco._rules import SOAP, Rule
from fcco.functional._checks import check_number
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_bipartite import average_precision_inner, p_norm_push_inner, partial_auc_inner
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.losses._base import Loss, Scale, count_positives, minus_share
from fcco.losses._fused import can_fuse, fused_average_precision, fused_p_norm_push
from fcco.losses._population import check_members, outer_only, split


def _ratio(u: Tensor) -> Tensor:
    return -u[:, 0] / u[:, 1]


@dataclass(frozen=True)
class _Power:
    p: float
    log: bool

    def __call__(self, u: Tensor) -> Tensor:
        return torch.exp(self.p * u) if self.log else u.pow(self.p)


class AveragePrecisionLoss(Loss):
    r"""Negative of a surrogate of average precision, of a whole training set, from small batches.

    .. math:: F = -\frac{1}{n_+} \sum_{i \in S_+}
        \frac{\sum_{j \in S_+} \ell(h_j - h_i)}{\sum_{j \in S} \ell(h_j - h_i)}

    Called as ``loss(scores, target, index)`` with [B] each, targets 0 and 1 (or bool). The batch may hold any share of
    positives; the objective is that of the population, whose make-up n and n_pos tell. Without a negative in the batch,
    or (own term exact) without another positive, a positive has no term. Scores of bounded scale (a sigmoid's) suit a
    margin of 1. With ℓ = exp it lives in log space.

    The gradient of AP hardly reaches positives far down the list. To train from scratch, add cross entropy on the same
    batch, and take ``surrogate="sigmoid"`` on raw logits; an ``n_pos`` above the true number, as n / 5, gives those
    positives more weight. BENCHMARKS.md has this sum next to cross entropy alone.

    The default, SOAP with γ = 0.7 and a sampled own term, was chosen by measurement: see docs/defaults.md.

    Args:
        n: training examples; ``index`` lies in [0, n).
        n_pos: positives among them (or see :meth:`from_targets`).
        margin: of the hinges.
        surrogate: ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", or an elementwise function of t, with
            ℓ(0) > 0.
        rule: see :class:`fcco.SOX`; ``fcco.BSGD()`` has no table, and is the
            in-batch loss, weighed by the population's share of positives rather than the batch's.
        own_term: "exact", unbiased, or "sampled", as in-batch losses have it.

    Raises:
        ValueError: ℓ(0) is not positive, or n_pos exceeds n.

    >>> loss_fn = AveragePrecisionLoss.from_targets([1, 0, 0, 1, 0])
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()

    Reference: Qi et al., *Stochastic Optimization of Areas Under Precision-Recall Curves*, NeurIPS 2021.
    """

    def __init__(
        self,
        n: int,
        n_pos: int,
        margin: float = 1.0,
        surrogate: SurrogateLike = "squared_hinge",
        rule: Rule = SOAP(gamma=0.7),  # noqa: B008 (frozen)
        own_term: OwnTerm = "sampled",
    ) -> None:
        ell = resolve_surrogate(surrogate, margin)
        super().__init__(minus_share if ell.is_exp else _ratio, n, dim=2, rule=rule, log=ell.is_exp)
        self.n_pos = whole_number("n_pos", n_pos)
        if self.n_pos > self.n:
            raise ValueError(f"n_pos cannot exceed n = {self.n}, got {n_pos}")
        self._with_outer(self.n_pos)._identify(n_pos=self.n_pos)
        self._own_value = ell.at_zero(torch.zeros((), dtype=torch.float64))
        if not self._own_value > 0:
            raise ValueError(
                f"surrogate {ell.name} is {self._own_value} at 0: average precision needs more than 0 there"
            )
        check_own_term(own_term)
        self.surrogate = ell
        self.own_term: OwnTerm = own_term

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> AveragePrecisionLoss:
        """With n and n_pos counted in the training targets."""
        n, n_pos = count_positives(target)
        return cls(n, n_pos, **options)

    def forward(self, scores: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: scores, targets and rows, [B] each."""
        if can_fuse(self.coupled, self.surrogate, scores, target) and not self.surrogate.is_exp:
            fused = fused_average_precision(
                self.coupled,
                scores,
                target,
                index,
                surrogate=self.surrogate,
                own_value=self._own_value,
                n_pos=self.n_pos,
                exact=self.own_term == "exact",
            )
            if fused is not None:
                return fused
        return self._loss(self._estimate, scores, target, index=index)

    def _estimate(self, pool: Pool) -> Estimate:
        estimate = average_precision_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.repeated_rows,
            surrogate=self.surrogate,
            n=self._of_population(self.n),
            n_pos=self.n_pos,
            own_term=self.own_term,
        )
        check_members(pool, 1, split(self.n, self.n_pos, "n_pos", "positive", "negative"))
        return estimate


class PNormPushLoss(Loss):
    r"""How high negatives stand above positives, the highest ones weighing most.

    .. math:: F = \frac{1}{n_-} \sum_{i \in S_-} \Bigl( \frac{1}{n_+} \sum_{j \in S_+} \ell(h_i - h_j) \Bigr)^p

    Called as ``loss(scores, target, index)`` with [B] each, targets 0 and 1 (or bool). With ℓ = exp it lives in log
    space, and overflows only where its value does, the p-th power of an exponential. Start it from small scores: from
    large ones that is beyond any step size.

    The default, SOAP with γ = 0.5, was chosen by measurement: see docs/defaults.md.

    Args:
        n: training examples; ``index`` lies in [0, n).
        p: at least 1; the larger, the more the top of the list counts.
        surrogate: ℓ: "exp", "squared_hinge", "hinge", "logistic", "sigmoid", or an elementwise function of t.
        margin: of the hinges.
        rule: see :class:`fcco.SOX`; ``fcco.BSGD()`` is the in-batch loss.

    >>> loss_fn = PNormPushLoss(n=5)
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()

    Reference: Rudin, *The P-Norm Push*, JMLR 2009.
    """

    def __init__(
        self,
        n: int,
        p: float = 4,
        surrogate: SurrogateLike = "exp",
        margin: float = 1.0,
        rule: Rule = SOAP(gamma=0.5),  # noqa: B008 (frozen)
    ) -> None:
        check_number(p, "p", at_least=1)
        ell = resolve_surrogate(surrogate, margin)
        super().__init__(_Power(p, ell.is_exp), n, rule=rule, log=ell.is_exp)
        self.p, self.surrogate = p, ell

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> PNormPushLoss:
        """With n counted in the training targets."""
        n, n_pos = count_positives(target)
        return cls(n, **options)._with_outer(n - n_pos)._identify(n_pos=n_pos)

    def forward(self, scores: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: scores, targets and rows, [B] each."""
        if can_fuse(self.coupled, self.surrogate, scores, target):
            fused = fused_p_norm_push(self.coupled, scores, target, index, surrogate=self.surrogate, p=self.p)
            if fused is not None:
                return fused
        return self._loss(self._estimate, scores, target, index=index)

    def _estimate(self, pool: Pool) -> Estimate:
        estimate = p_norm_push_inner(*pool.own, rivals=pool.rivals, surrogate=self.surrogate)
        check_members(pool, 0, outer_only(self.coupled.n_outer, "negative", "positive"))
        return estimate


class PartialAUCLoss(Loss):
    r"""One-way partial AUC: for every positive, a soft maximum over the negatives above it.

    .. math:: F = \frac{1}{n_+} \sum_{i \in S_+} \tau \log \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Called as ``loss(scores, target, index)`` with [B] each, targets 0 and 1 (or bool); in log space. (ℓ itself may
    overflow if it is exp.)

    The default, SOAP with γ = 0.7, was chosen by measurement: see docs/defaults.md.

    Args:
        n: training examples; ``index`` lies in [0, n).
        temperature: τ; the smaller, the fewer negatives count.
        surrogate: ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", or an elementwise function of t.
        margin: of the hinges.
        rule: see :class:`fcco.SOX`; ``fcco.BSGD()`` is the in-batch loss.

    >>> loss_fn = PartialAUCLoss(n=5)
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()

    Reference: Zhu et al., *When AUC Meets DRO*, ICML 2022 (SOPA-s).
    """

    def __init__(
        self,
        n: int,
        temperature: float = 1.0,
        surrogate: SurrogateLike = "squared_hinge",
        margin: float = 1.0,
        rule: Rule = SOAP(gamma=0.7),  # noqa: B008 (frozen)
    ) -> None:
        check_number(temperature, "temperature", above=0)
        super().__init__(Scale(temperature), n, rule=rule, log=True)
        self.temperature = temperature
        self.surrogate = resolve_surrogate(surrogate, margin)

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> PartialAUCLoss:
        """With n counted in the training targets."""
        n, n_pos = count_positives(target)
        return cls(n, **options)._with_outer(n_pos)._identify(n_pos=n_pos)

    def forward(self, scores: Tensor, target: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: scores, targets and rows, [B] each."""
        return self._loss(self._estimate, scores, target, index=index)

    def _estimate(self, pool: Pool) -> Estimate:
        estimate = partial_auc_inner(
            *pool.own, rivals=pool.rivals, surrogate=self.surrogate, temperature=self.temperature
        )
        check_members(pool, 1, outer_only(self.coupled.n_outer, "positive", "negative"))
        return estimate
