"""Losses with a sum over a large set inside a logarithm: latent-variable models and softmax over many classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fcco._checks import as_index, check_one_each, reads_are_free, shape_of, whole_number
from fcco.core.rules import BSGD, Rule
from fcco.functional._checks import check_floats, check_integers, check_per_example, check_same
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.losses.loss import ObjectiveLoss
from fcco.objectives.likelihood import LatentVariable, Softmax


class LatentVariableLoss(ObjectiveLoss):
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

    def __init__(self, n: int, rule: Rule = BSGD()) -> None:  # noqa: B008 (frozen)
        super().__init__(LatentVariable(), n, rule=rule)

    def forward(  # type: ignore[override]
        self, log_likelihood: Tensor, log_weight: Tensor, index: Tensor | None = None, log_q: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        log_likelihood : Tensor of shape (B1, B2)
            log p(y|z, x).
        log_weight : Tensor of shape (B1, B2)
            The weights E(x)·E(z).
        index : Tensor of shape (B1,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.
        log_q : Tensor of shape (B1, B2) or (B2,), or None, default None
            The log-probabilities with which the z were drawn. By default, they were drawn uniformly.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return super().forward(log_likelihood, log_weight, _each_row(log_q, log_weight), index=index)

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, and their rows; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B1,) or None
            The rows.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        log_likelihood, log_weight, log_q = columns
        check_floats(log_likelihood, "log_likelihood", "[B1, B2]", zero_weight=True, room=4)
        check_floats(log_weight, "log_weight", "[B1, B2]", zero_weight=True, room=4)
        check_same(log_weight, "log_weight", log_likelihood, "log_likelihood")
        return (log_likelihood, log_weight, _checked_log_q(log_q, log_weight, "log_weight")), index


class SoftmaxLoss(ObjectiveLoss):
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

    def __init__(
        self,
        n: int,
        n_classes: int | None = None,
        rule: Rule = BSGD(),  # noqa: B008 (frozen)
        own_term: OwnTerm | None = None,
    ) -> None:
        if n_classes is not None:
            n_classes = whole_number("n_classes", n_classes, least=2)
        if own_term is not None:
            check_own_term(own_term)
        super().__init__(Softmax(n_classes, own_term), n, rule=rule)
        self.n_classes, self.own_term = n_classes, own_term
        self.knows(None, n_classes=n_classes)

    def forward(  # type: ignore[override]
        self,
        target_logit: Tensor,
        sampled_logits: Tensor,
        index: Tensor | None = None,
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
        index : Tensor of shape (B1,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.
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
        log_q, candidates = (_each_row(values, sampled_logits) for values in (log_q, candidates))
        return super().forward(target_logit, sampled_logits, log_q, target, candidates, index=index)

    def in_batch(
        self, scores: Tensor, items: Tensor, index: Tensor | None = None, log_q: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch of a two-tower model, in which the others' targets are the candidates.

        Parameters
        ----------
        scores : Tensor of shape (B, B)
            The scores of example i (a user, a query) with the item of example j. The target of example i is its own
            item.
        items : Tensor of shape (B,)
            The item of each example, an integer. Several examples may have the same item.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.
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
        if isinstance(scores, Tensor) and scores.shape == (0, 0):  # which a part of a batch may be
            return self.forward(scores.reshape(0), scores.reshape(0, 1), index)
        return super().forward(scores, items, log_q, index=index)

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, and their rows; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B1,) or None
            The rows.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        if len(columns) == 3:
            scores, items, log_q = columns
            return self._in_batch(scores, items, log_q, index), index
        target_logit, sampled_logits, log_q, target, candidates = columns
        check_floats(target_logit, "target_logit", "[B1]", room=1.01)
        check_floats(sampled_logits, "sampled_logits", "[B1, B2]", zero_weight=True, room=1.01)
        check_per_example(target_logit, "target_logit", sampled_logits, "sampled_logits")
        if target_logit.dtype != sampled_logits.dtype:
            raise TypeError(
                "target_logit and sampled_logits must have the same dtype; "
                f"got {target_logit.dtype} and {sampled_logits.dtype}"
            )
        log_q = _checked_log_q(log_q, sampled_logits, "sampled_logits")
        if (target is None) != (candidates is None):
            given = "candidates" if target is None else "target"
            raise ValueError(f"target and candidates must be given together; got only {given}")
        if target is not None:
            check_integers(target, "target", sampled_logits, "sampled_logits")
            if not isinstance(candidates, Tensor) or candidates.shape != sampled_logits.shape:
                check_integers(candidates, "candidates", sampled_logits.T, "a row of sampled_logits")
            check_integers(candidates.flatten(), "candidates", sampled_logits.flatten(), "sampled_logits")
            self._check_count(candidates[0], "candidates")
        return (target_logit, sampled_logits, log_q, target, candidates), index

    def _in_batch(self, scores: Tensor, items: Tensor, log_q: Tensor | None, index: Any) -> Sequence[Any]:
        """Return the columns of a batch of a two-tower model: the candidates are the targets of the others."""
        check_floats(scores, "scores", "[B, B]", room=4)
        if scores.shape[0] != scores.shape[1]:
            raise ValueError(f"scores must have the shape [B, B]; got {shape_of(scores)}")
        check_integers(items, "items", scores, "scores")
        self._check_count(items, "items")
        if index is not None:
            check_one_each(as_index(index, scores.device), scores, "scores")
        columns = scores.diagonal(), _off_diagonal(scores)
        others = items, _off_diagonal(items.expand(scores.shape))
        if log_q is None:
            return *columns, None, *others
        check_floats(log_q, "log_q", "[B]", room=4)
        check_per_example(log_q, "log_q", scores, "scores")
        log_q = log_q.detach().to(torch.promote_types(scores.dtype, torch.float32))
        return *columns, _off_diagonal(log_q.expand(scores.shape)), *others, log_q

    def _check_count(self, ids: Tensor, name: str) -> None:
        """Raise if there are more than ``n_classes`` distinct classes, if reading values is free."""
        if self.n_classes is None or not reads_are_free(ids):
            return
        count = len(ids.unique())
        if count > self.n_classes:
            raise ValueError(f"{name} must have at most n_classes = {self.n_classes} distinct values; got {count}")


def _each_row(values: Any, like: Any) -> Any:
    """Return values, [B1, B2], that are given once for all rows, [B2]; others as they are."""
    is_row = isinstance(values, Tensor) and isinstance(like, Tensor) and values.shape == like.shape[1:]
    return values.expand(like.shape) if is_row else values


def _checked_log_q(log_q: Tensor | None, like: Tensor, name: str) -> Tensor | None:
    """Return ``log_q`` in single precision at least; raise if its shape is not that of ``like``, named ``name``."""
    if log_q is None:
        return None
    check_floats(log_q, "log_q", "[B2]" if isinstance(log_q, Tensor) and log_q.dim() == 1 else "[B1, B2]", room=4)
    if log_q.shape != like.shape:
        raise ValueError(
            f"log_q must have the shape of {name}, {shape_of(like)}, or {shape_of(like[0])}; got {shape_of(log_q)}"
        )
    return log_q.detach().to(torch.promote_types(like.dtype, torch.float32))


def _off_diagonal(values: Tensor) -> Tensor:
    """Return a square matrix without its diagonal, [B, B - 1]."""
    size = len(values)
    return values.flatten()[1:].view(size - 1, size + 1)[:, :-1].reshape(size, size - 1)
