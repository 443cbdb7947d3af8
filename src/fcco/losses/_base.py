"""The base class of all losses: an inner estimate from a batch, handed to the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from fcco._checks import NotFiniteError, reads_are_free, shape_of
from fcco._coupled import CoupledLoss
from fcco._describe import fingerprint
from fcco._leave_out import leave_out_what_does_not_fit
from fcco._memory import Memory, OutputMemory, as_memory
from fcco._outer import Outer
from fcco._pool import EstimateFrom, Pool
from fcco._step import SharedEstimate
from fcco._table import InnerTable, at_least_single
from fcco.core.rules import BSGD, Rule
from fcco.functional._checks import as_mask
from fcco.functional._tensors import at_least_float32
from fcco.losses._population import KnownLabels


@dataclass(frozen=True)
class Scale:
    """The outer function f(u) = factor * u; in log space, factor * log u."""

    factor: float = 1.0

    def __call__(self, u: Tensor) -> Tensor:
        return self.factor * u


def minus_share(log_u: Tensor) -> Tensor:
    """Return f = -u_1 / u_2, given log u."""
    return -(log_u[:, 0] - log_u[:, 1]).exp()


def as_values(values: Any, name: str = "targets, labels, queries and relevances") -> Tensor:
    """Convert a list, an array or a tensor of numbers to a tensor on the CPU."""
    if isinstance(values, Tensor):
        return values.detach().cpu()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"{name} must be numbers; got {array.dtype}. Encode them as numbers first, for example by "
            "numpy.unique(values, return_inverse=True)[1]"
        )
    return torch.as_tensor(array if array.flags.writeable else array.copy())  # arrays of pandas are read-only


def count_positives(target: Any, name: str = "target") -> tuple[int, int]:
    """Return the number of examples and the number of positives."""
    target = as_values(target, name)
    if target.dim() != 1:
        raise ValueError(f"{name} must have the shape [n]; got {shape_of(target)}")
    mask = as_mask(target, name, target, name, signs=False)
    return len(mask), int(mask.sum())


def count_both_classes(target: Any) -> tuple[int, int]:
    """Return the number of examples and the number of positives; raise if all are of one class."""
    n, n_pos = count_positives(target)
    if n_pos in (0, n):
        raise ValueError(f"target must have positives and negatives; got {n_pos} positives among {n} examples")
    return n, n_pos


def count_members(labels: Any, name: str) -> Tensor:
    """Return the number of examples of each class 0 ... C - 1."""
    labels = as_values(labels, name)
    if labels.dtype == torch.bool or labels.is_floating_point() or labels.dim() != 1 or (labels < 0).any():
        raise ValueError(
            f"{name} must be integers >= 0 with the shape [n]; got {shape_of(labels)} of {labels.dtype}. "
            "Encode the classes as 0, 1, ... first"
        )
    return labels.bincount()


def _in_single_precision(column: Any) -> Any:
    """Return a tensor of half precision in float32, and anything else as it is."""
    return at_least_float32(column) if isinstance(column, Tensor) and column.is_floating_point() else column


class Default(NamedTuple):
    """What was measured to be best for a loss."""

    table: Rule
    """The rule without a memory."""
    memory: Memory
    """The memory, or, if the table alone is better, what is best of a memory."""
    remembers: bool = True
    """Whether a memory is better than the table alone."""
    beside: Rule = BSGD()
    """The rule beside the memory."""


def choose(
    rule: Rule | None, memory: Memory | int | None, default: Default, **of_loss: Any
) -> tuple[Rule, Memory | None]:
    """Return the rule and the memory of a loss, given the arguments of its constructor.

    If neither is given, they are the default. A rule by itself has no memory, and a memory by itself has no table.
    ``of_loss`` are options of the memory that the loss decides.
    """
    if rule is None and memory is None and default.remembers:
        return default.beside, as_memory(default.memory, **of_loss)
    remembered = as_memory(memory or 0, default.memory, **of_loss)
    if rule is None:
        rule = default.table if remembered is None else BSGD()
    return rule, remembered


class Loss(nn.Module):
    """Base class of the losses.

    ``forward`` makes an inner estimate, and :attr:`coupled` turns it into a value with a gradient.

    In ``eval()`` mode a loss is the exact objective of the batch alone. It neither uses nor changes what it knows about
    the training set, which is the table and the sizes of populations, and ``index`` may be anything.

    Parameters
    ----------
    outer : callable
        The outer function f; see :class:`fcco.CoupledLoss`.
    n : int
        The number of rows of the table.
    rule : Rule
        How rows are updated; see :class:`fcco.SOX`.
    dim : int, default 1
        How many values g_i has.
    log : bool, default False
        Whether inner values are logarithms.
    memory : Memory or None, default None
        What is remembered of recent batches.

    Raises
    ------
    ValueError
        If the rule needs estimates that a loss does not make: of all rows, or at two sets of weights.
    """

    estimated_from: ClassVar[str] = "scores"
    """The argument to name in the error message if the inner values overflow."""
    _labels: KnownLabels | None = None
    """The labels of the training data, if the loss was made from them."""

    def __init__(
        self, outer: Outer, n: int, *, rule: Rule, dim: int = 1, log: bool = False, memory: Memory | None = None
    ) -> None:
        super().__init__()
        if isinstance(rule, Rule) and rule.all_rows:
            raise ValueError(
                f"rule {type(rule).__name__} needs estimates of all n rows, but a loss only estimates those of its "
                "batch; use fcco.CoupledLoss"
            )
        if isinstance(rule, Rule) and rule.needs_previous:
            raise ValueError(
                f"rule {type(rule).__name__} needs estimates at two sets of weights, but a loss only makes one; "
                "use fcco.CoupledLoss"
            )
        self._modules["coupled"] = CoupledLoss(outer, n, dim, rule=rule, log=log, memory=memory or 0)
        self.coupled.outer_may_fail, self.coupled.estimates_read_recall = False, True
        self.table.identity = {"kind": type(self).__name__}

    # Looking up a submodule as an attribute takes longer than many an operation of a step.

    @property
    def coupled(self) -> CoupledLoss:
        """The engine."""
        return self._modules["coupled"]  # type: ignore[return-value]

    @property
    def n(self) -> int:
        """The number of rows of the table; most losses have one for each training example."""
        return self.coupled.n

    @property
    def table(self) -> InnerTable:
        """The running estimates u."""
        return self.coupled._modules["table"]  # type: ignore[return-value]

    @property
    def memory(self) -> OutputMemory | None:
        """The outputs of recent batches; None if the loss remembers none."""
        return self.coupled._modules.get("memory")  # type: ignore[return-value]

    def _identify(self, **known: Any) -> Self:
        """Record what is known about the population: numbers, and tensors, which are identified by their values.

        A saved state contains this record and only loads into a loss with the same record.
        """
        told = {name: fingerprint(value) if isinstance(value, Tensor) else value for name, value in known.items()}
        self.table.identity |= {name: value for name, value in told.items() if value is not None}
        return self

    def _know_labels(self, labels: Tensor, name: str = "target", classes: int | None = None) -> Self:
        """Keep the labels of the training data: batches must have the same, and a saved state says which they were."""
        self._labels = KnownLabels.of(labels, name, classes)
        return self._identify(labels=torch.from_numpy(self._labels.values))

    def _agrees(self, labels: Tensor, index: Any) -> bool:
        """Return whether a batch has the labels of its rows; otherwise the engine says what is wrong with it."""
        return self._labels is None or index is None or self._labels.agree(labels, index)

    def _check_labels(self, pool: Pool) -> None:
        """Raise if a batch that a step is taken on has other labels than its rows, if reading values is free."""
        rows = pool.rows
        if rows is None or not reads_are_free(rows) or not torch.is_grad_enabled() or self._labels is None:
            return
        self._labels.check(rows, pool.joined()[-1])

    def _with_outer(self, count: int) -> Self:
        """Set how many rows are ever outer examples; 0 is treated as 1, to avoid dividing by zero."""
        self.coupled.n_outer = max(count, 1)
        return self

    def _of_population(self, size: Any) -> Any:
        """Return ``size`` in training mode, and None in ``eval()`` mode, where the batch is the whole population."""
        return size if self.training else None

    def __call__(self, *arguments: Any, **options: Any) -> Tensor:
        call = super().__call__
        if is_compiling() and self.coupled._leaves_graph():
            return self.coupled._eagerly(call, *arguments, **options)
        return call(*arguments, **options)

    def _loss(self, estimate: EstimateFrom, *columns: Any, index: Any, **options: Any) -> Tensor:
        """Return the loss of a batch whose inner values ``estimate`` makes from a pool; see ``CoupledLoss.pooled``."""
        if self.memory is not None:  # cast once, so that the gradients of own and rival sides add up in float32
            columns = tuple(_in_single_precision(column) for column in columns)
        call = partial(self.coupled.pooled, estimate, columns, index, name=self.estimated_from, options=vars(self))
        return self._naming_arguments(partial(call, **options))

    def _shared_loss(self, estimate: Callable[..., SharedEstimate], *columns: Any) -> Tensor:
        """Return the loss of a batch that estimates every row of the table."""
        return self._naming_arguments(partial(self.coupled.shared, estimate, columns, options=vars(self)))

    def _naming_arguments(self, call: Callable[[], Tensor]) -> Tensor:
        """Call the engine; if inner values or their gradient overflow, name the argument they are made from."""
        try:
            return call()
        except NotFiniteError as error:
            name, place, value = self.estimated_from, error.place[:1], error.value
            if error.name == "inner":
                message = f"{name} must give finite inner values; got {value} at position {place[0]}"
            elif error.name in ("outer", "gradient"):
                message = f"{name} is out of range: {error}"
            else:
                raise
            raise NotFiniteError(message, name, place, value) from None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Loss:
        # Sizes and totals of a population do not fit into half precision, so buffers keep at least float32.
        return super()._apply(at_least_single(fn), recurse)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        leave_out_what_does_not_fit(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
