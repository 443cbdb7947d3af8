"""Losses of one-way partial AUC: by soft maxima, and over the highest negatives alone."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco._pool import Estimate, Pool
from fcco.core.rules import SOAP, Rule
from fcco.functional._checks import check_number
from fcco.functional._inner_bipartite import partial_auc_inner
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.losses._array_outer import Logarithm
from fcco.losses._base import Default, Loss, Scale, choose
from fcco.losses._by_hand import step_by_hand
from fcco.losses._classes import PerClass, count_per_class, known_labels, refuse_memory
from fcco.losses._hand_bipartite import can_fuse, partial_auc_by_hand
from fcco.losses._options import PartialAUCOptions
from fcco.losses._population import check_members, outer_only
from fcco.losses.memory import Memory

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
