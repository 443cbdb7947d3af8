"""Losses with a sum over a large set inside a logarithm: latent-variable models and softmax over many classes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fcco._checks import whole_number
from fcco.core.rules import BSGD, Rule
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._inner_likelihood import in_batch_softmax_inner, latent_variable_inner, softmax_inner
from fcco.losses._array_outer import Logarithm
from fcco.losses._base import Loss, Scale
from fcco.losses._by_hand import can_work_by_hand, step_by_hand
from fcco.losses._hand_likelihood import softmax_by_hand


def minus_log_share(log_u: Tensor) -> Tensor:
    """Return f = -log(u_1 / u_2), given log u."""
    return log_u[:, 1] - log_u[:, 0]


class LatentVariableLoss(Loss):
    r"""Negative log-likelihood of a model that retrieves a latent z and then predicts y, from a sample of all z.

    .. math:: F = \frac 1 n \sum_i \Bigl( -\log \sum_z p(y_i | z, x_i) e^{w_{iz}} + \log \sum_z e^{w_{iz}} \Bigr)

    Parameters
    ----------
    n : int
        The number of training examples.
    rule : Rule, default ``fcco.BSGD()``
        How rows are updated; see :class:`fcco.SOX`. The default is the in-batch loss without a table.

    See Also
    --------
    fcco.functional.latent_variable_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(log_likelihood, log_weight, index, log_q=None)`` returns a scalar.

    - ``log_likelihood`` and ``log_weight`` have shape (B1, B2), for B2 values of z. The z are drawn uniformly, either
      for each example or once for all.
    - ``index`` has shape (B1,) and holds rows in [0, n).
    - ``log_q``, of shape (B1, B2) or (B2,), is needed if z is drawn with other probabilities q, for example if near
      documents are drawn more often than far ones. When drawing without replacement, q is the probability that z is in
      the sample, divided by B2.

    The loss works in log space. An example has no term if none of its z can explain y (-inf throughout).

    The default rule was chosen by measurement; see docs/defaults.md.

    References
    ----------
    .. [1] Guu et al., *Retrieval Augmented Language Model Pre-Training*, ICML 2020.

    Examples
    --------
    >>> import torch
    >>> loss_fn = LatentVariableLoss(n=5)
    >>> w = torch.zeros(1, 2, requires_grad=True)
    >>> loss_fn(torch.tensor([[0.5, 0.25]]).log(), w, torch.tensor([3])).item()  # -log((1/2 + 1/4) / 2)
    0.98082...
    """

    estimated_from = "log_weight"

    def __init__(self, n: int, rule: Rule = BSGD()) -> None:  # noqa: B008 (frozen)
        super().__init__(minus_log_share, n, dim=2, rule=rule, log=True)

    def forward(self, log_likelihood: Tensor, log_weight: Tensor, index: Tensor, log_q: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        log_likelihood : Tensor of shape (B1, B2)
            log p(y|z, x).
        log_weight : Tensor of shape (B1, B2)
            The weights E(x)·E(z).
        index : Tensor of shape (B1,)
            The rows.
        log_q : Tensor of shape (B1, B2) or (B2,), or None, default None
            The log-probabilities with which the z were drawn. By default, they were drawn uniformly.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return self._loss(
            lambda pool: latent_variable_inner(*pool.own, log_q=log_q),
            log_likelihood,
            log_weight,
            index=index,
            gather=False,
        )

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward


class SoftmaxLoss(Loss):
    r"""Cross entropy of a softmax over a set too large to score completely, from sampled candidates.

    .. math:: F = \frac 1 n \sum_i \log \sum_{c=1}^C e^{s_{ic} - t_i}

    Parameters
    ----------
    n : int
        The number of training examples.
    n_classes : int or None, default None
        The number of classes C. By default it is taken as B2 + 1, which scales u and shifts the value by a constant.
    rule : Rule, default ``fcco.BSGD()``
        How rows are updated; see :class:`fcco.SOX`. The default is the sampled softmax without a table.
    own_term : {"exact", "sampled"} or None, default None
        "exact" counts the target once, and the sample represents the C - 1 other classes, which is unbiased. "sampled"
        weighs the target like the candidates, as if it had been drawn uniformly. None means "exact" for calls with
        ``log_q``, and "sampled" for calls without it and for :meth:`in_batch`.

    Raises
    ------
    ValueError
        If ``n_classes`` is below 2.

    See Also
    --------
    fcco.functional.softmax_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(target_logit, sampled_logits, index, log_q=None, *, target=None, candidates=None)`` returns a
    scalar.

    - ``target_logit`` has shape (B1,), and ``sampled_logits`` has shape (B1, B2).
    - ``index`` has shape (B1,) and holds rows in [0, n).
    - ``log_q``, of shape (B1, B2) or (B2,), has the log-probabilities with which the classes were drawn. By default
      they were drawn uniformly.
    - ``target`` of shape (B1,) and ``candidates`` of shape (B1, B2) or (B2,) have the classes of the target and of the
      sample. Give both if the target may be among the candidates. Candidates that are the target are then left out;
      otherwise the target would count twice.

    :meth:`in_batch` is the loss of a two-tower model, where the candidates of an example are the targets of the others.

    ``SoftmaxLoss(n, rule=fcco.BSGD(), own_term="sampled")`` has the gradient of the usual sampled softmax, which is
    ``cross_entropy`` over the target and the sample.

    With ``log_q`` the own term is exact by default, because the target's own probability, which would be needed to
    weigh it like the others, is not known. The defaults were chosen by measurement, in short runs; see
    docs/defaults.md.

    Examples
    --------
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
            raise ValueError("n_classes must be at least 2; got 1")
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
        """Return the loss of a batch from the logits of targets and of sampled classes.

        Parameters
        ----------
        target_logit : Tensor of shape (B1,)
            The logits of the targets.
        sampled_logits : Tensor of shape (B1, B2)
            The logits of the sampled classes.
        index : Tensor of shape (B1,)
            The rows.
        log_q : Tensor of shape (B1, B2) or (B2,), or None, default None
            The log-probabilities with which the classes were drawn. By default, they were drawn uniformly.
        target : Tensor of shape (B1,) or None, default None
            The class of each target, an integer.
        candidates : Tensor of shape (B1, B2) or (B2,), or None, default None
            The sampled classes, integers. Candidates that are the target are left out.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        own_term = self.own_term or ("sampled" if log_q is None else "exact")
        if log_q is None and target is None and candidates is None:
            loss = self._by_hand(target_logit, sampled_logits, index, exact=own_term == "exact")
            if loss is not None:
                return loss
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

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward

    def _by_hand(self, target_logit: Tensor, sampled_logits: Tensor, index: Any, *, exact: bool) -> Tensor | None:
        """Return the loss of a batch, or None if the engine has to take the step."""
        outputs = target_logit, sampled_logits
        if not can_work_by_hand(self.coupled, outputs):
            return None
        estimate = partial(softmax_by_hand, n_classes=self.n_classes, exact=exact)
        return step_by_hand(self.coupled, outputs, index, Logarithm(), estimate)

    def in_batch(self, scores: Tensor, items: Tensor, index: Tensor, log_q: Tensor | None = None) -> Tensor:
        """Return the loss of a batch of a two-tower model, in which the others' targets are the candidates.

        Parameters
        ----------
        scores : Tensor of shape (B, B)
            The scores of example i (a user, a query) with the item of example j. The target of example i is its own
            item.
        items : Tensor of shape (B,)
            The item of each example, an integer. Several examples may have the same item.
        index : Tensor of shape (B,)
            The rows.
        log_q : Tensor of shape (B,) or None, default None
            The log-probabilities of the items, which are their shares of the training examples. Items that many
            examples have are often candidates, and therefore weigh less. By default, all items weigh the same.

        Returns
        -------
        Tensor
            The loss, a scalar.

        Notes
        -----
        Without ``log_q`` and without a table, the loss is ``cross_entropy(scores, arange(B))``, except that other
        examples with the same item are left out as candidates.

        With ``log_q``, the loss has the gradient of ``cross_entropy(scores - log_q, arange(B))``. Its value is larger
        by -log B - mean(log_q), because it estimates the loss over all items.

        With ``own_term="exact"`` the inner estimates are unbiased.

        References
        ----------
        .. [1] Yi et al., *Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations*, RecSys 2019.

        Examples
        --------
        >>> import torch
        >>> users, items = torch.randn(4, 8, requires_grad=True), torch.tensor([30, 10, 30, 20])
        >>> vectors, shares = torch.randn(50, 8), torch.full((50,), 1 / 50)
        >>> loss_fn = SoftmaxLoss(n=1000, n_classes=50)
        >>> loss = loss_fn.in_batch(users @ vectors[items].T, items, torch.tensor([4, 0, 8, 2]), shares[items].log())
        >>> loss.backward()
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
