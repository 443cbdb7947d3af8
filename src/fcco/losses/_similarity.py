"""Losses on embeddings: neighbourhood components analysis and contrastive learning."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fcco._pool import Estimate, Pool
from fcco._rules import SOAP, Rule
from fcco.functional._checks import check_choice, check_number
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_similarity import contrastive_inner, nca_inner
from fcco.losses._base import Loss, as_values, count_members, minus_share
from fcco.losses._likelihood import minus_log_share
from fcco.losses._population import check_class_sizes
from fcco.schedules import Power


def _mean_of_both(log_u: Tensor) -> Tensor:
    return log_u.mean(1)


class NCALoss(Loss):
    r"""Negative of the expected accuracy of a random nearest neighbour, among all training data.

    .. math:: F = -\frac 1 n \sum_i p_i, \qquad
        p_i = \frac{\sum_{j \ne i, y_j = y_i} e^{-|z_i - z_j|^2}}{\sum_{j \ne i} e^{-|z_i - z_j|^2}}

    or, with ``log_likelihood``, of the mean of log p_i, over the examples that have a mate in their class. It is the
    one that pulls at examples far from their mates, where p_i and its slope are nearly 0.

    Called as ``loss(embeddings, labels, index)`` with [B, d], [B] and [B]; in log space.

    The default, SOAP with γ = 0.9, was chosen by measurement: see docs/defaults.md.

    Args:
        n: training examples; ``index`` lies in [0, n).
        class_sizes: members of class 0, 1, ... (or see :meth:`from_targets`). If given, the batch may hold any share of
            the own class, which is weighed apart; and any shares of the others, where it has them all. Where it does
            not, the others in it are taken as drawn at random from all others: right for random batches, and for
            :class:`fcco.data.ClassSampler`, which visits classes in proportion to their sizes; batches that draw some
            of the classes with equal probabilities overweigh strangers from small ones. If None, the batch is taken as
            drawn at random altogether.
        rule: see :class:`fcco.SOX`; ``fcco.BSGD()`` is the in-batch loss. None: the default; with ``log_likelihood``,
            SOAP with γ = 1 / visits^0.1, which is 0.8 after 10 visits of a row and 0.6 after 200.
        log_likelihood: the mean of log p_i rather than of p_i. An example without a mate in the batch then has no term.

    >>> import torch
    >>> loss_fn = NCALoss(n=5)
    >>> embeddings = torch.tensor([[0.0], [1.0], [2.0]], requires_grad=True)
    >>> loss_fn(embeddings, torch.tensor([0, 0, 1]), index=torch.tensor([4, 0, 2])).backward()

    Reference: Goldberger et al., *Neighbourhood Components Analysis*, NIPS 2004.
    """

    class_sizes: Tensor | None
    estimated_from = "embeddings"

    def __init__(
        self,
        n: int,
        class_sizes: Any = None,
        rule: Rule | None = None,
        log_likelihood: bool = False,
    ) -> None:
        if rule is None:
            rule = SOAP(gamma=Power(0.1) if log_likelihood else 0.9)
        super().__init__(minus_log_share if log_likelihood else minus_share, n, dim=2, rule=rule, log=True)
        self.log_likelihood = log_likelihood
        if class_sizes is not None:
            class_sizes = as_values(class_sizes)
            counts = class_sizes.dim() == 1 and not class_sizes.is_floating_point()
            if not counts or (class_sizes < 0).any() or int(class_sizes.sum()) != self.n:
                raise ValueError(f"class_sizes must be counts that add up to n = {self.n}, got {class_sizes.tolist()}")
        self.register_buffer("class_sizes", class_sizes, persistent=False)
        self._identify(class_sizes=class_sizes)

    @classmethod
    def from_targets(cls, labels: Any, **options: Any) -> NCALoss:
        """With n and the class sizes counted in the training labels, 0 ... C - 1."""
        class_sizes = count_members(labels, "labels")
        return cls(int(class_sizes.sum()), class_sizes, **options)

    def forward(self, embeddings: Tensor, labels: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: embeddings [B, d], labels and rows [B]."""
        return self._loss(self._estimate, embeddings, labels, index=index)

    def _estimate(self, pool: Pool) -> Estimate:
        estimate = nca_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.rows,
            n=self._of_population(self.n),
            class_sizes=self._of_population(self.class_sizes),
            needs_mate=self.log_likelihood,
        )
        check_class_sizes(pool.rows, pool.joined()[1], self.class_sizes)
        return estimate


class ContrastiveLoss(Loss):
    r"""Global contrastive loss: every example against all others of the training set, not only those of its batch.

    .. math:: F = \frac{1}{2n} \sum_i \sum_{a \in \{first, second\}}
        \log \operatorname{mean}_c\, e^{(s(a_i, c) - s(first_i, second_i)) / \tau}

    Called as ``loss(first, second, index)`` with [B, d], [B, d] and [B], which are normalised here; in log space.
    ``ContrastiveLoss(n, include_positive=True, own_term="sampled", rule=fcco.BSGD())`` has the gradient of InfoNCE:
    SimCLR's NT-Xent with two views, CLIP's cross entropy in both directions across modalities.

    The default, SOAP with γ = 0.7 and an exact own term, was chosen by measurement: see docs/defaults.md.

    Args:
        n: training examples; ``index`` lies in [0, n).
        temperature: τ.
        mode: "two_views" of one thing: the candidates are both views of all others. "cross_modal", image and text: the
            candidates are of the other kind.
        include_positive: the positive pair is a candidate too.
        rule: see :class:`fcco.SOX`.
        own_term: of the positive pair, if it is included: "exact", one candidate beside all n - 1 others, or "sampled",
            one beside those of the batch.

    >>> import torch
    >>> loss_fn = ContrastiveLoss(n=5)
    >>> first, second = torch.eye(3).requires_grad_(), torch.eye(3)
    >>> loss_fn(first, second, index=torch.tensor([4, 0, 2])).backward()

    Reference: Yuan et al., *Provable Stochastic Optimization for Global Contrastive Learning*, ICML 2022.
    """

    estimated_from = "first"

    def __init__(
        self,
        n: int,
        temperature: float = 0.1,
        mode: str = "two_views",
        include_positive: bool = False,
        rule: Rule = SOAP(gamma=0.7),  # noqa: B008 (frozen)
        own_term: OwnTerm = "exact",
    ) -> None:
        super().__init__(_mean_of_both, n, dim=2, rule=rule, log=True)
        check_number(temperature, "temperature", above=0)
        check_choice(mode, "mode", ("two_views", "cross_modal"))
        check_own_term(own_term)
        self.temperature, self.mode, self.include_positive = temperature, mode, include_positive
        self.own_term: OwnTerm = own_term

    def forward(self, first: Tensor, second: Tensor, index: Tensor) -> Tensor:
        """The loss of a batch: two views or kinds of each example [B, d], and rows [B]."""
        return self._loss(self._estimate, first, second, index=index)

    def _estimate(self, pool: Pool) -> Estimate:
        return contrastive_inner(
            *pool.own,
            rivals=pool.rivals,
            rows=pool.rows,
            temperature=self.temperature,
            mode=self.mode,
            include_positive=self.include_positive,
            n=self._of_population(self.n),
            own_term=self.own_term,
        )
