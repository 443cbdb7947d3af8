"""Losses with a sum over a large set inside a logarithm: latent variables, and softmax over many classes."""

from __future__ import annotations

from torch import Tensor

from fcco._checks import whole_number
from fcco._rules import BSGD, Rule
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_likelihood import latent_variable_inner, softmax_inner
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
        return self._finish(self._make(latent_variable_inner, log_likelihood, log_weight, log_q=log_q), index)


class SoftmaxLoss(Loss):
    r"""Cross entropy of a softmax over a set too large to score, from sampled candidates.

    .. math:: F = \frac 1 n \sum_i \log \sum_{c=1}^C e^{s_{ic} - t_i}

    Called as ``loss(target_logit, sampled_logits, index)`` with [B1], [B1, B2] and [B1]; the sampled classes are others
    than the target, drawn uniformly (or with probabilities e^log_q, [B1, B2] or [B2], as a fourth argument).
    ``SoftmaxLoss(n, rule=fcco.BSGD(), own_term="sampled")`` has the gradient of the usual sampled softmax,
    ``cross_entropy`` over the target and the sample.

    The default, sampled softmax without the table, was chosen by measurement, in short runs: see docs/defaults.md. With
    log_q the own term is exact: the target's own probability, by which to weigh it like the others, is not known.

    Args:
        n: training examples; ``index`` lies in [0, n).
        n_classes: C. None: taken as B2 + 1, which scales u and shifts the value by a constant.
        rule: see :class:`fcco.SOX`.
        own_term: "exact": the target counts once and the sample stands for the C - 1 others. "sampled": all alike, as
            if the target had been drawn uniformly. None: "exact" with log_q, "sampled" without.

    >>> import torch
    >>> loss_fn = SoftmaxLoss(n=5, n_classes=101)
    >>> loss_fn(torch.zeros(1), torch.zeros(1, 10), torch.tensor([3]))  # log 101
    tensor(4.6151)
    >>> loss_fn(torch.zeros(1), torch.zeros(1, 10), torch.tensor([3]), torch.full((10,), 0.1).log())  # log(1 + 1 / .1)
    tensor(2.3979)
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
        if own_term is not None:
            check_own_term(own_term)
        self.own_term: OwnTerm | None = own_term

    def forward(
        self, target_logit: Tensor, sampled_logits: Tensor, index: Tensor, log_q: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch: logits of the targets [B1] and of sampled classes [B1, B2], and rows [B1]."""
        own_term = self.own_term or ("sampled" if log_q is None else "exact")
        options = {"n_classes": self.n_classes, "log_q": log_q, "own_term": own_term}
        inner = self._make(softmax_inner, target_logit, sampled_logits, **options)
        self._rows(index, target_logit, "target_logit")
        return self._finish(inner, index)
