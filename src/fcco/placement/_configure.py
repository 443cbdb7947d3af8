"""Saying how losses are to run on several ranks, and taking their state out of them."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import Tensor, nn

from fcco.placement._messages import Layout, current_group, gather_batch
from fcco.placement._sharded_table import ShardedTable

Module = TypeVar("Module", bound=nn.Module)


def configure(
    module: Module,
    *,
    sharded: bool = False,
    gather: bool = True,
    offload: bool = False,
    group: Any = None,
    alone: bool = False,
) -> Module:
    """Say how a loss, or every loss within a module, runs where there are several ranks.

    Not calling it is the same as calling it without options: every rank has the whole table, and inner sets span the
    ranks, so that k ranks with batches of B take the step of one process with a batch of k·B. Call it on all ranks,
    after the process group is there, and before ``DistributedDataParallel`` wraps a module that contains the loss.
    Without a process group ``sharded`` has no effect, now or later.

    Args:
        module: a loss, :class:`fcco.CoupledLoss`, or a module that contains some.
        sharded: every rank has n/k rows of the table, and is sent what others sample of them. Whatever the table holds
            is kept.
        gather: inner sets are made of the batches of all ranks. False: of the own batch alone, as in a process by
            itself; the table is one for all ranks in either case.
        offload: the table stays on the CPU when the loss is moved to an accelerator.
        group: the process group; None: the default one. Gradients are taken to be averaged over it.
        alone: the loss takes its steps by itself, as if there were no group: for training on one rank only, or another
            model on each.

    Returns:
        The module.

    Raises:
        ValueError: a rule that tracks all rows (SCGD, NASA) is to be sharded, or a loss that is alone.

    >>> import fcco
    >>> loss_fn = configure(fcco.losses.CoxLoss(n=1000), sharded=True)  # one process: the table as it is
    >>> len(loss_fn.table.u)
    1000
    """
    from fcco._coupled import CoupledLoss  # which needs this package

    if sharded and alone:
        raise ValueError("a table that is sharded over ranks cannot be alone")
    coupled = [part for part in module.modules() if isinstance(part, CoupledLoss)]
    for loss in coupled:
        if sharded and loss.rule.all_rows:
            raise ValueError(f"{type(loss.rule).__name__} updates all rows at every step: its table cannot be sharded")
    for loss in coupled:
        loss.layout = Layout(gather, group, alone)
        table = loss.table.full()
        table.offload = False
        if offload:
            table.cpu().offload = True
        ranks = current_group(loss.layout)
        loss.table = table
        if ranks is not None and sharded:
            loss.table = ShardedTable(table, ranks)  # type: ignore[assignment]
    return module


def gather(*tensors: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """The rows of all ranks, one rank's after the other's, with gradient; for inner estimates of one's own.

    Ranks may have different numbers of rows, also none. Backwards, a rank's rows receive what they contribute to the
    losses of all ranks. Without a process group it returns what it is given.

    Args:
        tensors: [B, ...] each, of the same dtypes and shapes but for B on all ranks.
        group: the process group; None: the default one.

    Raises:
        ValueError: on all ranks, where the tensors of one differ in length, or from those of another in dtype or shape.

    >>> import torch
    >>> (scores,) = gather(torch.ones(2))
    """
    ranks = current_group(Layout(group=group))
    return tensors if ranks is None else tuple(gather_batch(ranks, tensors)[0])


def full_state_dict(module: nn.Module) -> dict[str, Any]:
    """``state_dict`` with the tables of sharded losses whole, as a copy on the CPU; all ranks call it together.

    Parameters that ``fully_shard`` has divided are whole in it too. It is the ``state_dict`` of the same module in one
    process: ``torch.save`` it on one rank, and load it with ``torch.load(..., weights_only=True)`` and
    ``load_state_dict`` under any number of ranks, sharded or not.

    >>> import fcco
    >>> list(full_state_dict(fcco.InnerTable(n=3)))
    ['u', 'visits', 'step', '_extra_state']
    """
    tables: dict[str, Any] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        if isinstance(part, ShardedTable):
            tables |= part.full().state_dict(prefix=f"{path}." if path else "")
    return {name: _whole(value) for name, value in {**module.state_dict(), **tables}.items()}


def _whole(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    every = getattr(value, "full_tensor", None)  # of parameters that fully_shard has divided
    return (value if every is None else every()).detach().to("cpu", copy=True)


def snapshot(module: nn.Module) -> dict[str, Any]:
    """``state_dict`` as a copy, which further steps do not change: what ``async_save`` is to be given.

    >>> import fcco, torch
    >>> table = fcco.InnerTable(n=3)
    >>> saved = snapshot(table)
    >>> table.write(torch.tensor([0]), torch.tensor([7.0]))
    >>> saved["u"]
    tensor([0., 0., 0.])
    """
    state = module.state_dict()
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
