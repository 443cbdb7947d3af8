"""Losses on embeddings: neighbourhood components analysis and contrastive learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fcco._rules import SOX, Rule
from fcco.functional._checks import check_choice, check_number
from fcco.functional._inner_similarity import contrastive_inner, nca_inner
from fcco.losses._base import Loss


def _minus_share(log_u: Tensor) -> Tensor:
    return -(log_u[:, 0] - log_u[:, 1]).exp()


def _mean_of_both(log_u: Tensor) -> Tensor:
    return log_u.mean(1)


class NCALoss(Loss):
    r"""Negative of the expected accuracy of a random nearest neighbour, among all training data.

    .. math:: F = -\frac 1 n \sum_i p_i, \qquad
        p_i = \frac{\sum_{j \ne i, y_j = y_i} e^{-|z_i - z_j|^2}}{\sum_{j \ne i} e^{-|z_i - z_j|^2}}

    Called as ``loss(embeddings, labels, index)`` with [B, d], [B] and [B]; in log space.

    Args:
        n: training examples; ``index`` lies in [0, n).
        class_sizes: members of class 0, 1, ... (or see :meth:`from_targets`). If given, the batch may hold any classes
            in any shares; if None it is taken as drawn at random.
        rule: see :class:`fcco.SOX`; ``fcco.BSGD()`` is the in-batch loss.

    >>> loss_fn = NCALoss(n=5)
    >>> embeddings = torch.tensor([[0.0], [1.0], [2.0]], requires_grad=True)
    >>> loss_fn(embeddings, torch.tensor([0, 0, 1]), index=torch.tensor([4, 0, 2])).backward()

    Reference: Goldberger et al., *Neighbourhood Components Analysis*, NIPS 2004.
    """

    class_sizes: Tensor | None

    def __init__(
        self,
        n: int,
        class_sizes: Any = None,
        rule: Rule = SOX(gamma=0.1),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(_minus_share, n, dim=2, rule=rule, log=True)
        if class_sizes is not None:
            class_sizes = torch.as_tensor(np.asarray(class_sizes))
            if class_sizes.dim() != 1 or (class_sizes < 0).any() or int(class_sizes.sum()) != self.n:
                raise ValueError(f"class_sizes must be counts that add up to n = {self.n}, got {class_sizes.tolist()}")
        self.register_buffer("class_sizes", class_sizes, persistent=False)

    @classmethod
    def from_targets(cls, labels: Any, **options: Any) -> NCALoss:
        """With n and the class sizes counted in the training labels, 0 ... C - 1."""
        labels = torch.as_tensor(np.asarray(labels))
        if labels.dtype == torch.bool or labels.is_floating_point() or (labels < 0).any():
            raise ValueError("labels must be integers from 0; number the classes first")
        return cls(len(labels), labels.bincount(), **options)

    def forward(self, embeddings: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: embeddings [B, d], labels and rows [B]."""
        return self._finish(nca_inner(embeddings, labels, n=self.n, class_sizes=self.class_sizes), index)


class ContrastiveLoss(Loss):
    r"""Global contrastive loss: every example against all others of the training set, not only those of its batch.

    .. math:: F = \frac{1}{2n} \sum_i \sum_{a \in \{first, second\}}
        \log \operatorname{mean}_c\, e^{(s(a_i, c) - s(first_i, second_i)) / \tau}

    Called as ``loss(first, second, index)`` with [B, d], [B, d] and [B], which are normalised here; in log space.
    ``rule=fcco.BSGD()`` with ``include_positive=True`` has the gradient of InfoNCE (SimCLR's or CLIP's) where n = B.

    Args:
        n: training examples; ``index`` lies in [0, n).
        temperature: τ.
        mode: "two_views" of one thing: the candidates are both views of all others. "cross_modal", image and text: the
            candidates are of the other kind.
        include_positive: the positive pair is a candidate too.
        rule: see :class:`fcco.SOX`.

    >>> loss_fn = ContrastiveLoss(n=5)
    >>> first, second = torch.eye(3).requires_grad_(), torch.eye(3)
    >>> loss_fn(first, second, index=torch.tensor([4, 0, 2])).backward()

    Reference: Yuan et al., *Provable Stochastic Optimization for Global Contrastive Learning*, ICML 2022.
    """

    def __init__(
        self,
        n: int,
        temperature: float = 0.1,
        mode: str = "two_views",
        include_positive: bool = False,
        rule: Rule = SOX(gamma=0.1),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(_mean_of_both, n, dim=2, rule=rule, log=True)
        check_number(temperature, "temperature", above=0)
        check_choice(mode, "mode", ("two_views", "cross_modal"))
        self.temperature, self.mode, self.include_positive = temperature, mode, include_positive

    def forward(self, first: Tensor, second: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: two views or kinds of each example [B, d], and rows [B]."""
        inner = contrastive_inner(
            first,
            second,
            n=self.n,
            temperature=self.temperature,
            mode=self.mode,
            include_positive=self.include_positive,
        )
        return self.coupled(inner, index, weight=None if len(first) > 1 else first.new_zeros(1))
