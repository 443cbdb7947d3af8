"""Configuring how losses run on several ranks, and saving their state."""

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
    group: Any = None,
    alone: bool = False,
) -> Module:
    """Configure how a loss, or every loss within a module, runs on several ranks.

    A loss that is not configured behaves as with the default options: every rank keeps the whole table, and inner sets
    span the ranks, so that k ranks with batches of B take the step of one process with a batch of k·B. Call this
    function on all ranks, after the process group is initialised, and before ``DistributedDataParallel`` wraps a module
    that contains the loss. Without a process group ``sharded`` has no effect.

    Parameters
    ----------
    module : Module
        A loss, a :class:`fcco.CoupledLoss`, or a module that contains some.
    sharded : bool, default False
        Whether every rank keeps only n/k rows of the table, and receives what the others sample of them. The present
        values are kept.
    gather : bool, default True
        Whether inner sets are made of the batches of all ranks, or of the rank's own batch alone. In either case all
        ranks share one table.
    group : Any, optional
        The process group. By default, it is the default group. Gradients must be averaged over it.
    alone : bool, default False
        Whether the loss takes its steps by itself, as if there were no group. This is for training on one rank only,
        or a different model on each.

    Returns
    -------
    Module
        The module.

    Raises
    ------
    ValueError
        The table of a rule that tracks all rows (SCGD, NASA), or of a loss that is alone, is to be sharded.

    Examples
    --------
    >>> import fcco
    >>> loss_fn = configure(fcco.losses.CoxLoss(n=1000), sharded=True)  # one process: the table as it is
    >>> len(loss_fn.table.u)
    1000
    """
    from fcco.losses.loss import ObjectiveLoss  # which needs this package

    if sharded and alone:
        raise ValueError("a table that is sharded over ranks cannot be alone")
    losses = [part for part in module.modules() if isinstance(part, ObjectiveLoss)]
    for loss in losses:
        if sharded and loss.rule.all_rows:
            raise ValueError(f"{type(loss.rule).__name__} updates all rows at every step: its table cannot be sharded")
    for loss in losses:
        loss.layout = Layout(gather, group, alone)
        loss.table = table = loss.table.full()
        ranks = current_group(loss.layout)
        if ranks is not None and sharded:
            loss.table = ShardedTable(table, ranks)
    return module


def gather(*tensors: Tensor, group: Any = None) -> tuple[Tensor, ...]:
    """Return the rows of all ranks, in the order of the ranks, with gradient: for inner estimates of your own.

    Ranks may have different numbers of rows, or none. In backward, a rank's rows receive what they contribute to the
    losses of all ranks. Without a process group, the tensors are returned as they are.

    Parameters
    ----------
    *tensors : Tensor of shape (B, ...)
        The rows of this rank. Dtypes and shapes, except for B, are the same on all ranks.
    group : Any, optional
        The process group. By default, it is the default group.

    Returns
    -------
    tuple of Tensor
        The rows of all ranks, one tensor for each of ``tensors``.

    Raises
    ------
    ValueError
        On all ranks, if the tensors of one rank differ in length, or differ from those of another in dtype or shape.

    Examples
    --------
    >>> import torch
    >>> (scores,) = gather(torch.ones(2))
    """
    ranks = current_group(Layout(group=group))
    return tensors if ranks is None else tuple(gather_batch(ranks, tensors)[0])


def full_state_dict(module: nn.Module) -> dict[str, Any]:
    """Return a copy of ``state_dict`` on the CPU, with sharded tables whole.

    All ranks must call it together.

    Parameters that ``fully_shard`` has divided are whole as well. The result is the ``state_dict`` of the same module
    in one process: call ``torch.save`` on one rank, and load it with ``torch.load(..., weights_only=True)`` and
    ``load_state_dict`` on any number of ranks, sharded or not.

    Parameters
    ----------
    module : torch.nn.Module
        A loss, or a module that contains some.

    Returns
    -------
    dict of str to Any
        The state, which shares no tensor with the module.

    Examples
    --------
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
    """Return a copy of ``state_dict`` that further steps do not change, to be passed to ``async_save``.

    Parameters
    ----------
    module : torch.nn.Module
        A loss, or a module that contains some.

    Returns
    -------
    dict of str to Any
        The state, with copies of the tensors, on the device where they are.

    Examples
    --------
    >>> import fcco, torch
    >>> table = fcco.InnerTable(n=3)
    >>> saved = snapshot(table)
    >>> table.write(torch.tensor([0]), torch.tensor([7.0]))
    >>> saved["u"]
    tensor([0., 0., 0.])
    """
    state = module.state_dict()
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}
