"""Asking a loss questions without changing it, and the one notion of a relative error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fcco.core.rules import BSGD, Rule
from fcco.diagnostics._watch import engine_of, table_of
from fcco.losses.loss import Visit

Evaluate = Callable[[nn.Module, Tensor], Tensor]
ExactInner = Callable[[Tensor], Tensor]


@contextmanager
def probing(
    loss: nn.Module,
    rule: Rule | None = None,
    rows: Tensor | None = None,
    known: Tensor | None = None,
    *,
    memory: bool = False,
) -> Iterator[list[Visit]]:
    """Within this context a loss is in training mode, and no call changes it.

    Parameters
    ----------
    loss : Module
        It is as before after the context.
    rule : Rule, optional
        Another rule to work its steps out with.
    rows : Tensor, optional
        [n] or [n, dim], what its table is to hold instead.
    known : Tensor, optional
        [n] of bool, which of these rows count as visited. None: all.
    memory : bool
        Whether it uses what it remembers of recent batches, if it remembers anything.

    Yields
    ------
    list of Visit
        The steps that are worked out meanwhile.
    """
    engine = engine_of(loss)
    table = table_of(engine)
    if rows is not None:
        known = torch.ones(table.n, dtype=torch.bool, device=rows.device) if known is None else known
        table = table.with_rows(table.n, {"u": rows, "visits": known})
        table.decays = False
    around = [module for module in loss.modules() if any(part is engine for part in module.modules())]
    training, remembered = [module.training for module in around], engine.memory
    try:
        engine.memory = remembered if memory else None
        for module in around:
            module.training = True
        with engine.frozen(rule, table) as visits:
            yield visits
    finally:
        engine.memory = remembered
        for module, before in zip(around, training, strict=True):
            module.training = before


def estimates(loss: nn.Module, evaluate: Evaluate, rows: Tensor) -> Visit:
    """The inner estimates that a batch gives by itself, padding left out; the loss is not changed.

    Raises
    ------
    ValueError
        ``evaluate`` takes no step with rows, or several.
    """
    with torch.enable_grad(), probing(loss, BSGD()) as visits:
        evaluate(loss, rows)
    if len(visits) != 1:
        raise ValueError(
            f"evaluate must call the loss it is given once, with an index, and called it so {len(visits)} times"
        )
    visit = visits[0]
    kept = visit.where.nonzero().squeeze(1)
    return Visit(*(part.index_select(0, kept) for part in visit))


def exact_inner(loss: nn.Module, evaluate: Evaluate, population: Sequence[int] | Tensor | None = None) -> ExactInner:
    """Return a function of rows that gives the exact g of them (log g in log space) at the present weights.

    The estimates of a loss become exact when the batch is the whole training set, so that is what it evaluates, every
    time it is called. Where ``evaluate`` draws inner samples of its own they do not, and where the training set is too
    large for one batch they cannot: then write such a function yourself.

    Parameters
    ----------
    loss : nn.Module
        Any loss of fcco.
    evaluate : Evaluate
        The forward pass: ``evaluate(loss_fn, rows)`` calls ``loss_fn`` on the examples ``rows``.
    population : Sequence[int] | Tensor, optional
        The examples of the training set; ``None``: as many as the table has rows.

    Returns
    -------
    callable
        It maps rows of shape (m,) to values of shape (m,) or (m, dim). They are NaN for rows that are never outer ones.

    Examples
    --------
    >>> import fcco
    >>> h, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0, 1, 0])
    >>> loss_fn = fcco.losses.PNormPushLoss(n=3)  # log g_i of a negative i is h_i - h_j over the positives j
    >>> g = exact_inner(loss_fn, lambda loss_fn, rows: loss_fn(h[rows], y[rows], rows))
    >>> g(torch.tensor([0, 2]))
    tensor([-1.,  1.])
    """

    def exact(rows: Tensor) -> Tensor:
        return exact_rows(loss, evaluate, population).index_select(0, rows)

    return exact


def exact_rows(loss: nn.Module, evaluate: Evaluate, population: Sequence[int] | Tensor | None = None) -> Tensor:
    """g of all rows, [n] or [n, dim]; NaN where a row is never an outer one."""
    u = table_of(engine_of(loss)).u
    everyone = all_rows(loss) if population is None else torch.as_tensor(population, device=u.device)
    visit = estimates(loss, evaluate, everyone)
    values = torch.full(u.shape, torch.nan, dtype=visit.estimate.dtype, device=u.device)
    return values.index_copy(0, visit.rows, visit.estimate)


def all_rows(loss: nn.Module) -> Tensor:
    """The training examples: as many as the table has rows, unless the loss has rows of another kind."""
    table = table_of(engine_of(loss))
    return torch.arange(getattr(loss, "n_examples", table.n), device=table.u.device)


def relative_error(values: Tensor, reference: Tensor, log: bool = False) -> float:
    r"""Return how far inner values lie from others, as a share of these.

    .. math:: \sqrt{\text{mean}_k \frac{\sum_i (a_{ik} - b_{ik})^2}{\sum_i b_{ik}^2}}, \qquad \text{in log space} \qquad
        \sqrt{\text{mean}_{ik} \Bigl( 2 \frac{a_{ik} - b_{ik}}{a_{ik} + b_{ik}} \Bigr)^2}

    In log space rows may differ by orders of magnitude, and each counts by itself; the error is then at most 2.

    Parameters
    ----------
    values : Tensor of shape (m,) or (m, dim)
        The values a, or log a in log space.
    reference : Tensor of shape (m,) or (m, dim)
        The values b, or log b in log space.
    log : bool, default False
        Whether they are logarithms.

    Returns
    -------
    float
        The error.

    Examples
    --------
    >>> relative_error(torch.tensor([1.1, 1.9]), torch.tensor([1.0, 2.0]))  # (0.1² + 0.1²) / (1 + 2²)
    0.0632...
    """
    return float(squared_error(values.double(), reference.double(), log).sqrt())


def squared_error(values: Tensor, reference: Tensor, log: bool, where: Tensor | None = None) -> Tensor:
    """The square of :func:`relative_error`, of the rows that are True; 0 if none is."""
    values, reference = values.reshape(len(values), -1), reference.reshape(len(reference), -1)
    mask = torch.ones_like(values[:, :1]) if where is None else where.to(values.dtype).unsqueeze(1)
    if log:
        # 0 / 0 is no error: both are g = 0.
        share = (2 * torch.tanh((values - reference) / 2)).nan_to_num(nan=0.0).square()
        return (share * mask).sum() / (mask.sum() * values.shape[1]).clamp(min=1)
    tiny = torch.finfo(values.dtype).tiny
    return (((values - reference).square() * mask).sum(0) / (reference.square() * mask).sum(0).clamp(min=tiny)).mean()
