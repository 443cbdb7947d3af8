"""Asking a loss questions without changing it, and the one notion of a relative error."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fcco._rules import BSGD, Rule
from fcco._space import Rate
from fcco._table import InnerTable
from fcco.diagnostics._watch import Visit, Watch, engine_of, table_of
from fcco.distributed._comm import Layout

Evaluate = Callable[[nn.Module, Tensor], Tensor]
ExactInner = Callable[[Tensor], Tensor]


class _ReadOnlyTable(InnerTable):
    def write(self, rows: Tensor | None, values: Tensor, rate: Rate = 0.0, where: Tensor | None = None) -> None:
        pass

    def write_arrays(self, rows: Any, values: Any) -> None:
        pass


def twin(
    loss: nn.Module, rule: Rule | None = None, rows: Tensor | None = None, known: Tensor | None = None
) -> nn.Module:
    """A loss in training mode that shares everything with ``loss``, and that no call changes.

    Args:
        loss: stays as it is.
        rule: of the twin, if it is to be another.
        rows: [n] or [n, dim], what its table holds, if that is to be another.
        known: [n] of bool, which of them count as visited; ``None``: all.
    """
    engine = engine_of(loss)
    table = _copy(table_of(engine))
    table.__class__ = _ReadOnlyTable
    if rows is not None:
        table.u = rows
        table.visits = torch.ones(table.n, dtype=torch.bool, device=rows.device) if known is None else known
        table.decays = False
    shadow = _replace(engine, "table", table)
    # A hook is for steps of the table, and these are none.
    shadow._forward_hooks, shadow._forward_pre_hooks = type(shadow._forward_hooks)(), type(shadow._forward_pre_hooks)()
    shadow.__dict__.pop("track_arrays", None)
    shadow.layout = Layout(alone=True)
    shadow.rule = engine.rule if rule is None else rule
    if rule is not None:
        shadow.init = rule.start
    whole = shadow if engine is loss else _swap(loss, engine, shadow)
    for module in (whole, shadow):
        module.training = True
    return whole


def _copy(module: Any) -> Any:
    """The same module under another identity: what is set on one is not set on the other."""
    double = copy.copy(module)
    for name in ("_buffers", "_modules", "_parameters"):
        double.__dict__[name] = dict(module.__dict__[name])
    return double


def _replace(module: nn.Module, name: str, child: nn.Module) -> Any:
    double = _copy(module)
    double._modules[name] = child
    return double


def _swap(module: nn.Module, old: nn.Module, new: nn.Module) -> Any:
    """``module`` with ``old``, somewhere inside it, replaced by ``new``."""
    double = _copy(module)
    for name, child in module.named_children():
        if any(part is old for part in child.modules()):
            double._modules[name] = new if child is old else _swap(child, old, new)
    return double


@contextmanager
def recorded(loss: nn.Module) -> Iterator[list[Visit]]:
    """The steps that the table of a loss takes meanwhile."""
    visits: list[Visit] = []
    watch = Watch(engine_of(loss), visits.append)
    try:
        yield visits
    finally:
        watch.close()


def estimates(loss: nn.Module, evaluate: Evaluate, rows: Tensor) -> Visit:
    """The inner estimates that a batch gives, padding left out; the loss is not changed.

    Raises:
        ValueError: ``evaluate`` takes no step of the table, or several.
    """
    probe = twin(loss, BSGD())
    with torch.enable_grad(), recorded(probe) as visits:
        evaluate(probe, rows)
    if len(visits) != 1:
        raise ValueError(f"evaluate must call the loss it is given once, and called it {len(visits)} times")
    visit = visits[0]
    kept = visit.where.nonzero().squeeze(1)
    return Visit(*(part.index_select(0, kept) for part in visit))


def exact_inner(loss: nn.Module, evaluate: Evaluate, population: Sequence[int] | Tensor | None = None) -> ExactInner:
    """A function of rows that gives the exact g of them (log g in log space) at the present weights.

    The estimates of a loss become exact when the batch is the whole training set, so that is what it evaluates, every
    time it is called. Where ``evaluate`` draws inner samples of its own they do not, and where the training set is too
    large for one batch they cannot: then write such a function yourself.

    Args:
        loss: any loss of fcco.
        evaluate: the forward pass: ``evaluate(loss_fn, rows)`` calls ``loss_fn`` on the examples ``rows``.
        population: the examples of the training set; ``None``: as many as the table has rows.

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
    r"""How far inner values lie from others, as a share of these.

    .. math:: \sqrt{\text{mean}_k \frac{\sum_i (a_{ik} - b_{ik})^2}{\sum_i b_{ik}^2}}, \qquad \text{in log space} \qquad
        \sqrt{\text{mean}_{ik} \Bigl( 2 \frac{a_{ik} - b_{ik}}{a_{ik} + b_{ik}} \Bigr)^2}

    In log space rows may differ by orders of magnitude, and each counts by itself; the error is then at most 2.

    Args:
        values: a, [m] or [m, dim]; log a in log space.
        reference: b, alike.
        log: whether they are logarithms.

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
