"""The base class of all losses: an inner estimate from a batch, handed to the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from fcco._checks import NotFiniteError, reads_are_free
from fcco._coupled import CoupledLoss
from fcco._describe import fingerprint
from fcco._leave_out import leave_out_what_does_not_fit
from fcco._memory import OutputMemory, as_memory
from fcco._outer import Outer
from fcco._pool import EstimateFrom, Pool
from fcco._step import SharedEstimate
from fcco._table import InnerTable, at_least_single
from fcco.core.rules import Rule
from fcco.functional._tensors import at_least_float32
from fcco.losses._population import KnownLabels
from fcco.losses.memory import Default as Default
from fcco.losses.population import as_values as as_values
from fcco.losses.population import count_both_classes as count_both_classes
from fcco.losses.population import count_members as count_members
from fcco.losses.population import count_positives as count_positives


@dataclass(frozen=True)
class Scale:
    """The outer function f(u) = factor * u; in log space, factor * log u."""

    factor: float = 1.0

    def __call__(self, u: Tensor) -> Tensor:
        return self.factor * u


def minus_share(log_u: Tensor) -> Tensor:
    """Return f = -u_1 / u_2, given log u."""
    return -(log_u[:, 0] - log_u[:, 1]).exp()


def _in_single_precision(column: Any) -> Any:
    """Return a tensor of half precision in float32, and anything else as it is."""
    return at_least_float32(column) if isinstance(column, Tensor) and column.is_floating_point() else column


def choose(rule: Rule | None, memory: Any, default: Default, **of_loss: Any) -> tuple[Rule, Any]:
    """Return the rule and the memory of a loss. ``of_loss`` are options of the memory that the loss decides."""
    rule, chosen = default.choose(rule, memory)
    return rule, as_memory(chosen, **of_loss)


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
        self, outer: Outer, n: int, *, rule: Rule, dim: int = 1, log: bool = False, memory: Any = None
    ) -> None:
        super().__init__()
        if isinstance(rule, Rule) and rule.all_rows:
            raise ValueError(
                f"rule {type(rule).__name__} needs estimates of all n rows, but a loss only estimates those of its "
                "batch; use fcco.CoupledLoss"
            )
        if isinstance(rule, Rule) and False:
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
