"""CoupledLoss: the loss of inner values that the caller estimates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fcco._checks import (
    as_index,
    check_finite,
    check_inner,
    check_rows,
    check_same_length,
    check_weight,
    missing_index,
    whole_number,
)
from fcco.core.outers import FromFunction
from fcco.core.rules import Rule
from fcco.losses.loss import ObjectiveLoss
from fcco.objectives.given import GivenInner


class CoupledLoss(ObjectiveLoss):
    r"""Loss whose gradient steps minimise a sum of functions of inner *expectations*.

    .. math:: F(w) = \frac 1 n \sum_i f_i(g_i(w)), \qquad g_i(w) = \text{mean over a set } S_i

    The loss is called with an estimate of g_i for every example i of a batch. It keeps a running estimate u_i of each
    g_i, its *row* in a table, and updates the rows of the batch. It returns a scalar: the value estimates F, and the
    gradient is mean_i <∇f_i(ū_i), ∂g_i>, where the rule says which ū that is.

    Parameters
    ----------
    outer : callable
        f, called as ``outer(u)`` or ``outer(u, index)``. It maps [B1, dim] (or [B1] if ``dim == 1``) to [B1] and is
        differentiated by autograd. It may be a module with parameters of its own. A stochastic f draws its sample
        itself or receives one with the call, as ``outer(u, index, sample)``. Rules that do not differentiate at the new
        row (SOX) evaluate f twice in each step, once for the gradient and once for the value.
    n : int
        Number of rows, that is, of examples i in the training set.
    dim : int, default 1
        Number of values that g_i has.
    rule : Rule
        How u_i is updated and where f is differentiated. See :class:`fcco.SOX` and its siblings.
    log : bool, default False
        If True, ``inner``, the table and the argument of ``outer`` are all log g. The moving average is that of g,
        computed without leaving log space. -inf stands for g = 0.
    init : float, optional
        What a row holds before its first visit, as a value of g. By default, a row starts from its first estimate. If
        ``init`` is 0, f must have a derivative at 0 (log has none).
    n_outer : int, optional
        How many of the n rows ever appear in ``index``, if not all of them do (for example, only the positives). MOAP
        scales its estimates by ``n_outer`` / B1.

    Raises
    ------
    ValueError
        The rule is not defined in this space, its rate is out of range, or ``init`` does not suit it.

    Notes
    -----
    Call a loss as ``loss_fn(inner, index, *, weight=None, sample=None)``:

    - inner: Tensor of shape (B1,) or (B1, dim), differentiable. For rules that track all rows (SCGD, NASA) its shape is
      (n,) or (n, dim).
    - index: integers in [0, n) of shape (B1,), the rows. If a row appears twice, its estimates are averaged and it is
      updated once; the gradient counts both.
    - weight: Tensor of shape (B1,). The loss is then the sum of weight * f instead of the mean of f. A mask of bool
      stands for the mean over the positions that are True. Positions of weight 0 are padding: they do not change the
      table, and may hold any legal value at which f is defined.
    - sample: what a stochastic f is evaluated on. f is then called as ``outer(u, index, sample)``.

    In ``eval()`` mode and under ``torch.no_grad()`` the value is that of f at ``inner`` itself. The table is neither
    used nor changed, and ``index`` may hold anything that f can use.

    Under a process group, the ranks' batches form one batch; see :mod:`fcco.distributed`.

    Invalid input (wrong shapes, NaN, rows out of range, an empty batch) raises an error before anything changes. For
    values that are not finite, the error is a :class:`fcco.NotFiniteError`.

    Every call in training mode is a step of the table. Keep the loss outside of functions that
    ``torch.utils.checkpoint`` runs a second time.

    ``state_dict`` contains the table and says what its rows are. It loads only where it belongs, except within
    :func:`fcco.load_anyway`. See :class:`fcco.InnerTable`. Where it does not, ``load_state_dict(state, strict=False)``
    leaves it out with a warning, and loads the rest of the model, with the weights of an outer function.

    Callables in :attr:`observers` are called after every step with a :class:`Visit`.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022.

    Examples
    --------
    f = log, and g_i is a mean over a sampled set:

    >>> import fcco
    >>> loss_fn = fcco.CoupledLoss(torch.log, n=3, rule=fcco.SOX(gamma=0.5))
    >>> inner = torch.tensor([1.0, 4.0], requires_grad=True)
    >>> loss = loss_fn(inner, torch.tensor([0, 2]))
    >>> loss.backward()
    >>> inner.grad  # (1 / u_i) / B1
    tensor([0.5000, 0.1250])
    >>> loss_fn.table.u
    tensor([1., 0., 4.])
    """

    columns = ("inner",)
    _takes_all_rows = True

    def __init__(
        self,
        outer: Callable[..., Tensor],
        n: int,
        dim: int = 1,
        *,
        rule: Rule,
        log: bool = False,
        init: float | None = None,
        n_outer: int | None = None,
    ) -> None:
        if not callable(outer):
            raise TypeError(f"outer must be callable; got {outer!r}")
        super().__init__(GivenInner(FromFunction(outer), whole_number("dim", dim), log=log), n, rule=rule)
        self.outer, self.dim, self.log = outer, dim, log
        self.init = _start(init, rule, log)
        if n_outer is not None:
            self.n_outer = whole_number("n_outer", n_outer)

    def extra_repr(self) -> str:
        """Return the outer function, the rule, the initial value, and what is kept from step to step.

        Returns
        -------
        str
            What ``repr`` shows between the brackets.
        """
        name = getattr(self.outer, "__name__", type(self.outer).__name__)
        return f"outer={name}, init={self.init}, {super().extra_repr()}"

    def forward(self, inner: Tensor, index: Any = None, *, weight: Any = None, sample: Any = None) -> Tensor:  # type: ignore[override]
        """Return the loss of a batch, which in training is a step of the table.

        Parameters
        ----------
        inner : Tensor of shape (B1,) or (B1, dim)
            Estimates of g, or of log g in log space. Rules that track all rows need estimates of all n rows.
        index : Tensor of shape (B1,)
            The rows of the batch in the training set, in [0, n). They must be given.
        weight : Tensor of shape (B1,), optional
            The weight of each f, or a mask of bool. By default, the loss is the mean of f.
        sample : object, optional
            What a stochastic f is evaluated on, as its third argument.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        if not (self.training and torch.is_grad_enabled()):
            return self._plugged_in(inner, index, weight, sample)
        return super().forward(inner, index=index, weight=weight, sample=sample)

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the inner values, and their rows; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The inner values.
        index : Tensor of shape (B1,) or None
            The rows.

        Returns
        -------
        tuple
            The inner values, and the rows.
        """
        if index is None:
            raise missing_index("the loss keeps a row for every example")
        inner = check_inner(columns[0], self.dim)
        if self.rule.all_rows and len(inner) != self.n:
            raise ValueError(
                f"{type(self.rule).__name__} tracks all rows: inner needs {self.n} rows; got {list(inner.shape)}"
            )
        check_finite(inner, self.log)
        return (inner,), index

    def _plugged_in(self, inner: Any, index: Any, weight: Any, sample: Any) -> Tensor:
        """Return the value of f at the estimates themselves."""
        if index is None:
            raise missing_index("the loss keeps a row for every example")
        inner = check_inner(inner, self.dim)
        rows = as_index(index, inner.device)
        if self.rule.all_rows and len(inner) == self.n:
            check_rows(rows, self.n)
            inner = inner.index_select(0, rows)
        check_same_length(inner, rows)
        check_finite(inner, self.log)
        u = inner.to(torch.promote_types(inner.dtype, torch.float32), copy=True)
        values = self.objective.outer.value(u, rows, sample)
        share = torch.full_like(values, 1 / len(values)) if weight is None else check_weight(weight, rows, values.dtype)
        if weight is not None and weight.dtype == torch.bool:
            share = share / share.sum().clamp(min=1)
        value = values.masked_fill(share == 0, 0.0).dot(share)
        if not self.training:
            self._watch_evaluation(value)
        return value


def _start(init: float | None, rule: Rule, log: bool) -> float | None:
    """Return what rows start from, a value of g; None stands for their first estimates."""
    if init is None:
        return rule.start
    if rule.start is not None and init != rule.start:
        raise ValueError(f"{type(rule).__name__} starts from {rule.start}, so init cannot be {init!r}")
    if not math.isfinite(init) or (log and init < 0):
        raise ValueError(
            f"init must be a finite value of g{', not negative in log space' if log else ''}; got {init!r}"
        )
    return init
