"""Losses with a sum over a large set inside a logarithm: latent variables, and softmax over many classes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fcco._checks import whole_number
from fcco._rules import BSGD, Rule
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_likelihood import in_batch_softmax_inner, latent_variable_inner, softmax_inner
from fcco.losses._base import Loss, Scale


def minus_log_share(log_u: Tensor) -> Tensor:
    """f = -log(u_1 / u_2), of log u."""
    return log_u[:, 1] - log_u[:, 0]


class LatentVariableLoss(Loss):
    r"""Negative log-likelihood of a model that retrieves a latent z, then predicts y, from a sample of all z.

    .. math:: F = \frac 1 n \sum_i \Bigl( -\log \sum_z p(y_i | z, x_i) e^{w_{iz}} + \log \sum_z e^{w_{iz}} \Bigr)

    Called as ``loss(log_likelihood, log_weight, index)`` with [B1, B2], [B1, B2] and [B1], for B2 values of z drawn
    uniformly for each example, or once for all; in log space. An example none of whose z can explain y (-inf
    throughout) has no term in the batch.

    If z is drawn with other probabilities q, ``log_q`` is a fourth argument, [B1, B2] or [B2]: near documents may then
    come more often than far ones. Without replacement, q is the probability that z is in the sample, over B2.

    The default, the in-batch loss without the table, was chosen by measurement: see docs/defaults.md.

    Args:
        n: training examples; ``index`` lies in [0, n).
        rule: see :class:`fcco.SOX`.

    >>> import torch
    >>> loss_fn = LatentVariableLoss(n=5)
    >>> w = torch.zeros(1, 2, requires_grad=True)
    >>> loss_fn(torch.tensor([[0.5, 0.25]]).log(), w, torch.tensor([3])).item()  # -log((1/2 + 1/4) / 2)
    0.98082...

    Reference: Guu et al., *Retrieval Augmented Language Model Pre-Training*, ICML 2020.
    """

    estimated_from = "log_weight"

    def __init__(self, n: int, rule: Rule = BSGD()) -> None:  # noqa: B008 (frozen)
        super().__init__(minus_log_share, n, dim=2, rule=rule, log=True)

    def forward(self, log_likelihood: Tensor, log_weight: Tensor, index: Tensor, log_q: Tensor | None = None) -> Tensor:
        """The loss of a batch: log p(y|z, x) and E(x)·E(z), [B1, B2] each, and rows [B1]."""
        return self._loss(
            lambda pool: latent_variable_inner(*pool.own, log_q=log_q),
            log_likelihood,
            log_weight,
            index=index,
            gather=False,
        )


class SoftmaxLoss(Loss):
    r"""Cross entropy of a softmax over a set too large to score, from sampled candidates.

    .. math:: F = \frac 1 n \sum_i \log \sum_{c=1}^C e^{s_{ic} - t_i}

    Called as ``loss(target_logit, sampled_logits, index)`` with [B1], [B1, B2] and [B1]; the sampled classes are drawn
    uniformly (or with probabilities e^log_q, [B1, B2] or [B2], as a fourth argument). If the target may be among them,
    say which classes they are: ``loss(..., target=, candidates=)`` with [B1] and [B1, B2] or [B2]. Candidates that are
    the target are then left out; otherwise it would count twice. ``SoftmaxLoss(n, rule=fcco.BSGD(),
    own_term="sampled")`` has the gradient of the usual sampled softmax, ``cross_entropy`` over the target and the
    sample.

    :meth:`in_batch` is the loss of two towers, where the candidates of an example are the targets of the others.

    The default, sampled softmax without the table, was chosen by measurement, in short runs: see docs/defaults.md. With
    log_q the own term is exact: the target's own probability, by which to weigh it like the others, is not known.

    Args:
        n: training examples; ``index`` lies in [0, n).
        n_classes: C. None: taken as B2 + 1, which scales u and shifts the value by a constant.
        rule: see :class:`fcco.SOX`.
        own_term: "exact": the target counts once and the sample stands for the C - 1 others, unbiased. "sampled": all
            alike, as if the target had been drawn uniformly. None: "exact" with log_q, "sampled" without and in batches
            of two towers.

    >>> import torch
    >>> loss_fn = SoftmaxLoss(n=5, n_classes=101)
    >>> loss_fn(torch.zeros(1), torch.zeros(1, 10), torch.tensor([3]))  # log 101
    tensor(4.6151)
    >>> loss_fn(torch.zeros(1), torch.zeros(1, 10), torch.tensor([3]), torch.full((10,), 0.1).log())  # log(1 + 1 / .1)
    tensor(2.3979)
    >>> drawn = torch.randint(101, (10,))
    >>> loss_fn(torch.zeros(1), torch.zeros(1, 10), torch.tensor([3]), target=torch.tensor([7]), candidates=drawn)
    tensor(4.6151)
    """

    estimated_from = "sampled_logits"

    def __init__(
        self,
        n: int,
        n_classes: int | None = None,
        rule: Rule = BSGD(),  # noqa: B008 (frozen)
        own_term: OwnTerm | None = None,
    ) -> None:
        super().__init__(Scale(), n, rule=rule, log=True)
        self.n_classes = None if n_classes is None else whole_number("n_classes", n_classes)
        if self.n_classes == 1:
            raise ValueError("n_classes must be at least 2, got 1")
        self._identify(n_classes=self.n_classes)
        if own_term is not None:
            check_own_term(own_term)
        self.own_term: OwnTerm | None = own_term

    def forward(
        self,
        target_logit: Tensor,
        sampled_logits: Tensor,
        index: Tensor,
        log_q: Tensor | None = None,
        *,
        target: Tensor | None = None,
        candidates: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch: logits of the targets [B1] and of sampled classes [B1, B2], and rows [B1].

        With ``target`` [B1] and ``candidates`` [B1, B2] or [B2], the classes that these are, candidates that are the
        target are left out.
        """
        own_term = self.own_term or ("sampled" if log_q is None else "exact")
        classes: dict[str, Any] = {"target": target, "candidates": candidates}
        options = {"n_classes": self.n_classes, "log_q": log_q, "own_term": own_term, **classes}
        return self._loss(
            lambda pool: softmax_inner(*pool.own, **options),
            target_logit,
            sampled_logits,
            index=index,
            gather=False,
            name="target_logit",
        )

    def in_batch(self, scores: Tensor, items: Tensor, index: Tensor, log_q: Tensor | None = None) -> Tensor:
        """The loss of a batch of two towers, in which every example has the others' targets as candidates.

        Without log_q and without a table it is ``cross_entropy(scores, arange(B))``, where candidates that are the
        target once more are left out; with log_q it has the gradient of ``cross_entropy(scores - log_q, arange(B))``,
        whose value it exceeds by -log B - mean(log_q), since it estimates the loss over all items. With
        ``own_term="exact"`` the inner estimates are unbiased.

        Args:
            scores: [B, B], of example i (a user, a query) with the item of example j: that of i is its target.
            items: [B] of integers, which item it is: the same one may be the target of several examples.
            index: [B], rows.
            log_q: [B], log-probabilities of the items: how large a share of the training examples has them. Items that
                many examples have come often as candidates, and weigh less. None: all weigh alike.

        >>> import torch
        >>> users, items = torch.randn(4, 8, requires_grad=True), torch.tensor([30, 10, 30, 20])
        >>> vectors, shares = torch.randn(50, 8), torch.full((50,), 1 / 50)
        >>> loss_fn = SoftmaxLoss(n=1000, n_classes=50)
        >>> loss = loss_fn.in_batch(users @ vectors[items].T, items, torch.tensor([4, 0, 8, 2]), shares[items].log())
        >>> loss.backward()

        Reference: Yi et al., *Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations*, RecSys
        2019.
        """
        options: Any = {"n_classes": self.n_classes, "log_q": log_q, "own_term": self.own_term or "sampled"}
        return self._loss(
            lambda pool: in_batch_softmax_inner(*pool.own, **options),
            scores,
            items,
            index=index,
            gather=False,
            name="scores",
        )
