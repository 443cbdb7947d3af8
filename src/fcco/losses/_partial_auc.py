"""Losses of one-way partial AUC: by soft maxima, and over the highest negatives alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco._memory import as_memory
from fcco._pool import Estimate, Pool
from fcco.core.rules import SOAP, Rule
from fcco.functional._auc import check_fpr
from fcco.functional._checks import check_number
from fcco.functional._inner_auc import cvar_partial_auc_inner
from fcco.functional._inner_bipartite import partial_auc_inner
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.losses._array_outer import Logarithm
from fcco.losses._base import Default, Loss, Scale, choose, count_both_classes
from fcco.losses._by_hand import step_by_hand
from fcco.losses._classes import PerClass, count_per_class, known_labels, refuse_memory
from fcco.losses._hand_bipartite import can_fuse, partial_auc_by_hand
from fcco.losses._options import CVaROptions, PartialAUCOptions
from fcco.losses._population import check_members, outer_only, split
from fcco.losses.memory import Memory
from fcco.schedules import RunningMean

_TINY = torch.finfo(torch.float32).tiny


# What measured best; see docs/defaults.md.
PARTIAL_AUC = Default(SOAP(gamma=0.7), Memory(64), remembers=False)


class PartialAUCLoss(Loss):
    r"""One-way partial AUC: for every positive, a soft maximum over the negatives above it.

    .. math:: F = \frac{1}{n_+} \sum_{i \in S_+} \tau \log \frac{1}{n_-} \sum_{j \in S_-} e^{\ell(h_j - h_i) / \tau}

    Parameters
    ----------
    n : int
        The number of training examples.
    temperature : float, default 1.0
        The temperature τ, positive. The smaller it is, the fewer negatives count.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", or an elementwise function. With "exp",
        ℓ itself may overflow.
    margin : float, default 1.0
        The margin of the hinges.
    rule : Rule or None, default None
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` gives the in-batch loss. The default is
        ``fcco.SOAP(gamma=0.7)`` and no memory. With ``memory`` alone, there is no table.
    memory : Memory, int or None, default None
        Which outputs of recent batches to compare with; a number is that of outputs per class, and 0 stands for
        none. See :class:`fcco.Memory`.
    n_classes : int or None, default None
        The number of classes C, if there are several.

    Raises
    ------
    ValueError
        If ``temperature`` is not positive.

    See Also
    --------
    fcco.functional.partial_auc_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, target, index)`` takes three tensors of shape (B,): scores, targets (0 and 1, or bool), and
    rows in [0, n). It returns a scalar. The loss works in log space.

    With ``n_classes``, scores have the shape (B, C), as in :class:`AveragePrecisionLoss` with several classes.

    The default rule and memory were chosen by measurement; see docs/defaults.md and docs/memory.md.

    References
    ----------
    .. [1] Zhu et al., *When AUC Meets DRO*, ICML 2022 (SOPA-s).

    Examples
    --------
    >>> loss_fn = PartialAUCLoss(n=5)
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3])).backward()
    """

    def __init__(
        self,
        n: int,
        temperature: float = 1.0,
        surrogate: SurrogateLike = "squared_hinge",
        margin: float = 1.0,
        rule: Rule | None = None,
        memory: Memory | int | None = None,
        n_classes: int | None = None,
    ) -> None:
        check_number(temperature, "temperature", above=0)
        per_class = None if n_classes is None else PerClass(whole_number("n", n), whole_number("n_classes", n_classes))
        if per_class is not None:
            refuse_memory(memory)
            n = n * per_class.count
        rule, memory = choose(rule, memory, PARTIAL_AUC, strata=2)
        super().__init__(Scale(temperature), n, rule=rule, log=True, memory=memory)
        self.temperature, self._per_class = temperature, per_class
        self.surrogate = resolve_surrogate(surrogate, margin)

    @classmethod
    def from_targets(cls, target: Any, **options: Unpack[PartialAUCOptions]) -> PartialAUCLoss:
        """Create the loss with n and the number of positives counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,) or (n, C)
            The labels of the training data: 0 and 1, or bool. With a column for each class, -1 and NaN stand for
            missing labels.
        **options
            Further arguments of the constructor.

        Returns
        -------
        PartialAUCLoss
            The loss.
        """
        n, n_pos = count_per_class(target)
        if isinstance(n_pos, int):
            loss = cls(n, **options)._with_outer(n_pos)._identify(n_pos=n_pos)
            return loss._know_labels(*known_labels(target))
        loss = cls(n, n_classes=len(n_pos), **options)._with_outer(sum(n_pos))._identify(n_pos=torch.tensor(n_pos))
        loss._per_class = PerClass(n, len(n_pos), n_pos)
        return loss._know_labels(*known_labels(target))

    def forward(self, scores: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,) or (B, C)
            The scores, with a column for each class if there are several.
        target : Tensor of shape (B,) or (B, C)
            The labels: 0 and 1, or bool. With a column for each class, -1 and NaN stand for missing labels. For several
            classes, they may also be the classes, integers of shape (B,).
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        if self._per_class is not None:
            return self._per_class.loss(self, self._estimate, scores, target, index)
        by_hand = self.memory is None and can_fuse(self.coupled, self.surrogate, scores, target)
        if by_hand and self._agrees(target, index):
            options: dict[str, Any] = {"temperature": self.temperature, "n_outer": self.coupled.n_outer}
            estimate = partial(partial_auc_by_hand, surrogate=self.surrogate, **options)
            loss = step_by_hand(self.coupled, (scores,), index, Logarithm(self.temperature), estimate, target)
            if loss is not None:
                return loss
        return self._loss(self._estimate, scores, target, index=index, stratum=target, check=self._check)

    if TYPE_CHECKING:  # forward, but with an index, which the defaults need in training; it may be None

        def __call__(self, scores: Tensor, target: Tensor, index: Tensor | None) -> Tensor: ...

    def _estimate(self, pool: Pool, k: int = 0) -> Estimate:
        """Estimate the inner values of the positives of class k in a pool."""
        return partial_auc_inner(
            *pool.own,
            rivals=pool.rivals,
            surrogate=self.surrogate,
            temperature=self.temperature,
            recall=pool.recall,
        )

    def _check(self, pool: Pool) -> None:
        """Refuse a batch that contradicts the training data."""
        check_members(pool, 1, outer_only(self.coupled.n_outer, "positive", "negative"))
        self._check_labels(pool)


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
    def from_targets(cls, target: Any, **options: Unpack[CVaROptions]) -> CVaRPartialAUCLoss:
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
        return cls(*count_both_classes(target), **options)._know_labels(*known_labels(target))

    def forward(self, scores: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,)
            The scores.
        target : Tensor of shape (B,)
            The labels: 0 and 1, or bool.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return self._loss(self._estimate, scores, target, index=index, stratum=target, check=self._check)

    if TYPE_CHECKING:  # forward, but with an index, which the defaults need in training; it may be None

        def __call__(self, scores: Tensor, target: Tensor, index: Tensor | None) -> Tensor: ...

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
        self._check_labels(pool)
