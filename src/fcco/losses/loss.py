"""The shell of every loss: check, gather, step, commit; then value and gradient are attached to the outputs.

It is the only place that has state, and the only one that raises.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from fcco._checks import (
    NotFiniteError,
    as_index,
    assert_before_writes,
    check_one_each,
    check_rows,
    check_weight,
    is_plain,
    missing_index,
    reads_are_free,
    record_requirements,
    require,
)
from fcco._describe import Descriptions, fingerprint, options_of
from fcco._eager import eager
from fcco._leave_out import leave_out_what_does_not_fit
from fcco._table import InnerTable
from fcco.core.arrays import at_least, can_read, namespace
from fcco.core.objective import Objective
from fcco.core.outers import FromFunction, Outer
from fcco.core.rules import BSGD, SOX, Rule, is_per_row
from fcco.core.spaces import as_dtype, wider
from fcco.core.step import ALONE, Batch, Ranks, Step, as_batch, take_step, take_step_of_all
from fcco.functional._checks import check_floats
from fcco.losses.memory import Memory, OutputMemory, as_memory
from fcco.losses.population import Population
from fcco.losses.table import FirstRows, ShardedRows, TableRows
from fcco.placement._messages import Layout, current_group
from fcco.placement._ranks import GroupRanks, warn_of_equal
from fcco.placement._sharded_table import ShardedTable

_FLOATS = (torch.float32, torch.float64)
_OF_PROCESS = ("objective", "population", "layout", "training", "is_frozen", "observers")
_STEEPEST = 2.0**64  # of gradients, where the rule bounds none
_MANY_BACKWARDS = 10  # in eval() mode, one after the other, before a warning


class Visit(NamedTuple):
    """One step of the table as an observer sees it, with an entry for each position of the batch."""

    rows: Tensor
    """[B1]."""
    estimate: Tensor
    """[B1] or [B1, dim], of g (log g in log space)."""
    before: Tensor
    """What the rows held; the estimate where a row was not visited before."""
    seen: Tensor
    """[B1] of bool: whether the row was visited before."""
    where: Tensor
    """[B1] of bool: False for padding."""


class ObjectiveLoss(nn.Module):
    r"""The loss of an objective, of the library's or of your own.

    .. math:: F = \frac 1 n \sum_i f(g_i), \qquad g_i = \sum_j w_{ij}\, \ell_{ij}

    In training a call is a step: the rows of the batch are updated, and its outputs are remembered. In ``eval()`` mode
    and under ``torch.no_grad()`` the value is the objective of the batch alone, and nothing changes.

    Parameters
    ----------
    objective : Objective
        Who is an anchor, what a candidate stands for, and f.
    n : int
        The number of training examples.
    rule : Rule
        How rows are updated; see :class:`fcco.SOX`. ``fcco.BSGD()`` has no table.
    memory : Memory or int, default 0
        Which outputs of recent batches to compare with; a number is that of outputs of each stratum, and 0 stands for
        none. See :class:`fcco.Memory`.

    Raises
    ------
    ValueError
        If the rule needs estimates of all rows.
    """

    columns: tuple[str, ...] | None = None
    """The names of the columns in error messages; by default, those of the objective."""
    _has_index = True  # whether the rows of the table are those of examples
    _takes_all_rows = False
    _refuses_overflow = True  # off where a batch consists of independent runs, of which some may diverge
    _backwards_in_eval = 0
    _equal_batches: int | None = 0

    def __init__(self, objective: Objective, n: int, *, rule: Rule, memory: Memory | int | None = 0) -> None:
        super().__init__()
        if not isinstance(objective, Objective):
            raise TypeError(f"objective must be an Objective; got {type(objective).__name__}")
        if not isinstance(rule, Rule):
            raise TypeError(f"rule must be an instance of a rule such as fcco.SOX(gamma=0.1); got {rule!r}")
        if rule.log is not None and rule.log != objective.log:
            raise ValueError(f"{type(rule).__name__} is defined for log={rule.log} only")
        if not callable(rule.rate):
            rule.check_rate(rule.rate)
        if rule.all_rows and not self._takes_all_rows:
            raise ValueError(
                f"rule {type(rule).__name__} needs estimates of all n rows, but a loss only estimates those of its "
                "batch; use fcco.CoupledLoss"
            )
        objective = objective.of_population(n)
        if not isinstance(objective.outer, Outer):
            objective = copy.copy(objective)
            objective.outer = FromFunction(objective.outer)
        self.objective, self.rule, self.init = objective, rule, rule.start
        self._objectives: dict[Any, Objective] = {}
        for name, value in {**vars(objective), **vars(objective.outer), "outer": objective.outer}.items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(getattr(value, "function", None), nn.Module):
                self.add_module("outer" if name == "outer" else f"{name}_function", value.function)
        self.table: Any = InnerTable(n, objective.dim, objective.log, visits=is_per_row(rule.rate), decays=rule.decays)
        self.table.identity = {"kind": type(self).__name__}
        options = as_memory(memory or 0)
        self.memory = None if options is None else OutputMemory(options, objective)
        self.population: Population | None = None
        self.n_outer, self.layout, self.is_frozen = self.n, Layout(), False
        self.observers: list[Callable[[Visit], None]] = []
        self._described = Descriptions()

    @property
    def n(self) -> int:
        """The number of rows of the table."""
        return self.table.n

    def extra_repr(self) -> str:
        """Return the rule, and what is kept from step to step.

        Returns
        -------
        str
            What ``repr`` shows between the brackets.
        """
        kept = [] if isinstance(self.rule, BSGD) else ["a table"]
        if self.memory is not None:
            each = " of each stratum" if self.memory.rings > 1 else ""
            kept.append(f"a memory of {self.memory.size} outputs{each}")
        return f"rule={self.rule}, kept: {' and '.join(kept) or 'nothing'}"

    def knows(self, population: Population | None, n_outer: int | None = None, **known: Any) -> Self:
        """Record what is known about the training data.

        A saved state contains this record and only loads into a loss with the same record.

        Parameters
        ----------
        population : Population or None
            What batches are checked against.
        n_outer : int or None, default None
            How many rows are ever anchors, if not all of them are. MOAP scales its estimates by it.
        **known
            Numbers, and tensors, which are identified by their values.

        Returns
        -------
        ObjectiveLoss
            This loss.
        """
        self.population = population
        if population is not None and population.labels is not None:
            known["labels"] = torch.from_numpy(population.labels.values)
        told = {name: fingerprint(value) if isinstance(value, Tensor) else value for name, value in known.items()}
        self.table.identity |= {name: value for name, value in told.items() if value is not None}
        self.n_outer = self.n_outer if n_outer is None else max(n_outer, 1)
        return self

    def forward(self, *columns: Any, index: Any = None, weight: Any = None, sample: Any = None) -> Tensor:
        """Return the loss of a batch, which in training is a step.

        Parameters
        ----------
        *columns : Tensor of shape (B, ...)
            The columns of the objective.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). A loss without a table does not need them.
        weight : Tensor of shape (B,) or None, default None
            The weight of each f, of which the loss is then the sum, or a mask of bool. For objectives whose anchors are
            not compared with each other.
        sample : object or None, default None
            What f is evaluated on, as its third argument.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        takes_step = self.training and torch.is_grad_enabled()
        if takes_step and is_compiling() and not self._can_be_traced():
            return self._untraced(columns, index, weight, sample)
        return self._call(columns, index, weight, sample)

    def _can_be_traced(self) -> bool:
        """Return whether a step can be part of a graph: nothing is to be made first, and no message to be sent."""
        memory = self.memory
        has_room = memory is None or (memory.n_columns > 0 and not memory.watchers)
        return current_group(self.layout) is None and has_room

    @eager
    def _untraced(self, columns: Sequence[Any], *others: Any) -> Tensor:
        return self._call(columns, *others)

    def _dtype(self, columns: Sequence[Any]) -> torch.dtype:
        return wider(columns[0].dtype, self.table.block.dtype)

    def _call(self, columns: Sequence[Any], index: Any, weight: Any, sample: Any) -> Tensor:
        takes_step = self.training and torch.is_grad_enabled()
        group = current_group(self.layout) if takes_step else None
        if takes_step and is_compiling():
            record_requirements()
        with nullcontext() if is_compiling() else np.errstate(all="ignore"):
            if not takes_step:
                columns, _ = self.given(columns, None)
                made = self._of_batch(columns, weight, sample)
            elif group is None:
                columns, rows, ordered = self._rows(columns, index)
                made = self._take(Call(columns, rows, ordered, index is not None, weight, sample))
            else:
                columns, made = self._take_together(columns, index, weight, sample, GroupRanks(group))
        loss = attach(made.value, columns[: self.objective.outputs], made.gradients, made.extra)
        if not self.training:
            self._watch_evaluation(loss)
        return loss

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective and their rows; raise if a call is not what the loss takes.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B,) or None
            The rows of a step, if they are given, and None where no step is taken.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        names = self._names
        least = len(names) - len(self.objective.Columns._field_defaults)
        if not least <= len(columns) <= len(names):
            raise TypeError(f"the loss takes {least} columns, {', '.join(names[:least])}; got {len(columns)}")
        for k, (name, column) in enumerate(zip(names, columns, strict=False)):
            if k < self.objective.outputs:
                check_floats(column, name, "[B, d]" if isinstance(column, Tensor) and column.dim() > 1 else "[B]")
            elif not isinstance(column, Tensor) or column.shape[:1] != columns[0].shape[:1]:
                got = list(column.shape) if isinstance(column, Tensor) else type(column).__name__
                raise ValueError(f"{name} must be a tensor of the shape [{len(columns[0])}, ...]; got {got}")
        return columns, index

    @property
    def _names(self) -> Sequence[str]:
        return self.columns or self.objective.Columns._fields

    def check_known(self, batch: Batch) -> None:
        """Raise if a batch contradicts what the loss knows about the training data.

        Parameters
        ----------
        batch : Batch
            The examples of all ranks, and their rows.
        """
        known = self.population
        if known is not None:
            known.check(batch.rows, batch.x[known.column], repeats=batch.repeats)

    def at_step(
        self, objective: Objective, batch: Batch, *, is_step: bool
    ) -> tuple[Objective, Callable[[], None] | None]:
        """Return the objective of this step, and what is to be done if the step succeeds.

        Parameters
        ----------
        objective : Objective
            The objective, in the library of the batch.
        batch : Batch
            The examples of all ranks.
        is_step : bool
            Whether a step is taken; otherwise the batch is evaluated by itself.

        Returns
        -------
        tuple
            The objective with what changes from step to step, such as a temperature, and a function or None.
        """
        return objective, None

    def completed(self, step: Step, rule: Rule | None) -> tuple[Step, Callable[[], None] | None]:
        """Return a step with a function of the mean over the anchors, and what is to be done if the step succeeds.

        Parameters
        ----------
        step : Step
            The step with the mean itself.
        rule : Rule or None
            The rule of the step. None: the batch is the whole population.

        Returns
        -------
        tuple
            The step, and a function or None.
        """
        return step, None

    def _rows(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Tensor, Any]:
        """Check a batch, before anything has changed; return its rows, and in ascending order, if that is known."""
        if index is None and self._has_index and not isinstance(self.rule, BSGD):
            raise missing_index(f"{self.rule} keeps a row for every example")
        columns, index = self.given(columns, index)
        first, table = columns[0], self.table.block
        if table.device != first.device:
            raise ValueError(
                f"the batch is on {first.device}, and what the loss keeps on {table.device}: move the loss with "
                f".to({str(first.device)!r}), or the batch"
            )
        if index is None:
            return columns, torch.arange(len(first), device=first.device), None
        rows = as_index(index, first.device)
        if not self.rule.all_rows:
            check_one_each(rows, first, self._names[0])
        return columns, rows, check_rows(rows, self.n)

    def _take(self, call: Call) -> Made:
        """Gather a batch, take its step, and commit what becomes of the rows and of the memory."""
        objective, batch = self._gathered(call)
        numpy, memory, ranks = isinstance(batch.rows, np.ndarray), self.memory, call.ranks or ALONE
        with nullcontext() if numpy else _plain_torch(call.rows.device):
            objective, then = self.at_step(objective, batch, is_step=True)
            view: Any = self._view(ranks, numpy=numpy) if call.has_rows else FirstRows()
            rings: Any = None
            recalled: Any = None
            if memory is not None:
                rings = memory.prepared(batch.x, numpy=numpy)
                recalled = memory.recall(rings, objective, batch, knows_rows=call.has_rows)
            if self.rule.all_rows:
                step = take_step_of_all(objective, self.rule, view, batch, self.n, ranks)
            else:
                step = take_step(objective, self.rule, view, batch, recalled, ranks)
            step, last = self.completed(step, self.rule)
        self._check_finite(step, batch, call.ranks)
        if not self.is_frozen:
            view.write(step) if call.has_rows else self.table.block.step.add_(1)
            if memory is not None:
                fresh = (batch, step) if batch.apart is None else _of_process(batch, step, batch.apart)
                memory.remember(rings, objective, *fresh, recalled, knows_rows=call.has_rows)
            for write in (then, last):
                if write is not None:
                    write()
        for observer in self.observers if call.has_rows else ():
            observer(_visit(step, view, slice(None) if self.rule.all_rows else batch.mine))
        return Made.of(step, call.weight)

    def _gathered(self, call: Call) -> tuple[Objective, Batch]:
        """Return the objective and the batch as arrays of one library, which are not in conflict with what is known."""
        columns, ranks, count = call.columns, call.ranks, self.objective.outputs
        dtype = self._dtype(columns)
        given: list[Any] = [*[as_dtype(c.detach(), dtype) for c in columns[:count]], *columns[count:]]
        rows: Any = call.rows
        ordered, fixed = call.ordered, False
        if numpy := ranks is None and self._takes_arrays(given):
            given = [None if c is None else (c.detach() if c.requires_grad else c).numpy() for c in given]
            rows = rows.numpy()
        else:
            ordered = None if ordered is None else torch.from_numpy(ordered)
            fixed = ranks is None and not can_read(rows)
        objective = self._objective_like(given[0])
        is_apart = ranks is not None and objective.has_pool and not self.layout.gather
        with nullcontext() if numpy else _plain_torch(call.rows.device):
            x = objective.Columns(*given)
            batch = as_batch(objective, x, rows, ordered=ordered, mine=call.mine, fixed=fixed, is_apart=is_apart)
            batch = self._weighed(batch, call.weight, call.sample, dtype, numpy=numpy)
            if call.has_rows and (numpy or can_read(rows)):
                self.check_known(batch)
            if ranks is not None:
                ranks.know_anchors(batch.every if objective.has_pool else None)
        return objective, batch

    def _view(self, ranks: Ranks, *, numpy: bool = False) -> TableRows:
        """Return the rows of the table, as a step reads and writes them."""
        table = self.table  # which a module takes long to look up
        if isinstance(table, ShardedTable):
            return ShardedRows(table, self.rule, self.init, self.n_outer, ranks)
        return TableRows(table, self.rule, self.init, self.n_outer, numpy=numpy)

    def _weighed(self, batch: Batch, weight: Any, sample: Any, dtype: torch.dtype, *, numpy: bool = False) -> Batch:
        """Return a batch with what the caller says of each f."""
        if weight is not None:
            share = self._share(batch.rows if self.rule.all_rows else batch.x[0], weight, dtype)
            batch = batch._replace(share=share.numpy() if numpy else share)
        return batch if sample is None else batch._replace(sample=sample)

    def _share(self, like: Any, weight: Any, dtype: torch.dtype) -> Tensor:
        """Return how much each f counts, checked."""
        if self.objective.has_pool:
            raise TypeError("weight is not defined where examples are compared with each other")
        return check_weight(weight, torch.empty(len(like)), dtype)

    def _take_together(
        self, columns: Sequence[Any], index: Any, weight: Any, sample: Any, ranks: GroupRanks
    ) -> tuple[Sequence[Any], Made]:
        """Take a step with other processes: an error on one of them is one on all."""
        has_rows = index is not None
        try:
            if self.rule.all_rows and _is_empty(index):  # which one part of a batch may be
                columns, rows = self.given(columns, torch.tensor([0]))[0], index.long()
            elif _is_empty(columns[0]):  # the columns are those of one example more
                more = [
                    None if c is None else torch.cat([c, c.new_full((1, *c.shape[1:]), c.requires_grad)])
                    for c in columns
                ]
                row, rows = torch.tensor([0]) if has_rows else None, torch.tensor([]).long()
                columns = [None if c is None else c[:0] for c in self.given(more, row)[0]]
            else:
                columns, rows, _ = self._rows(columns, index)
            if weight is not None:
                self._share(rows if self.rule.all_rows else columns[0], weight, torch.float64)
            error, shared = None, [c.detach() for c in columns if c is not None] if self.objective.has_pool else []
        except Exception as caught:
            rows, error, shared = torch.zeros(0), caught, []
        is_sum = weight is not None and getattr(weight, "dtype", None) != torch.bool
        settings = {
            **self._settings(),
            "gather": str(self.layout.gather),
            "index": "given" if has_rows else "None",
            "weight": "numbers" if is_sum else "None",
            "dtype": str(getattr(columns[0], "dtype", None)),  # as what is exchanged has it
        }
        (*shared, rows), mine = ranks.gather([*shared, rows], settings, error)
        if ranks.group.rank == 0 and all(ranks.examples):
            self._equal_batches = warn_of_equal(
                [rows] if has_rows and self._has_index else shared, ranks.group.size, self._equal_batches
            )
        if not has_rows:
            rows = torch.arange(len(rows), device=rows.device)
        ranks.is_careful = sample is not None or not type(self.objective).__module__.startswith("fcco.")
        try:
            made = self._take(Call(shared or columns, rows, None, has_rows, weight, sample, ranks, mine))
        except Exception as caught:
            ranks.agree(caught)
            raise
        gradients = [gradient[mine] for gradient in made.gradients] if shared else made.gradients
        size = ranks.group.size  # as gradients are averaged over processes
        extra = None if made.extra is None else made.extra * size
        return columns, Made([gradient * size for gradient in gradients], made.value, extra)

    def _of_batch(self, columns: Sequence[Tensor], weight: Any, sample: Any) -> Made:
        """Return what a step would with the objective of a batch by itself."""
        objective = self.objective.alone().with_parameters(self._parameters)
        dtype = torch.promote_types(columns[0].dtype, torch.float32)
        given: list[Any] = [c.detach().to(dtype) if k < objective.outputs else c for k, c in enumerate(columns)]
        with _plain_torch(given[0].device):
            rows = torch.arange(len(given[0]), device=given[0].device)
            batch = as_batch(objective, objective.Columns(*given), rows, fixed=not can_read(rows))
            objective, _ = self.at_step(objective, batch, is_step=False)
            step = take_step(objective, BSGD(), FirstRows(), self._weighed(batch, weight, sample, dtype))
            step, _ = self.completed(step, None)
        self._check_finite(step, batch, None)
        return Made.of(step, weight)

    def _takes_arrays(self, columns: Sequence[Tensor]) -> bool:
        """Return whether NumPy can take the step: values are free to read, and no function is the caller's own."""
        objective, first = self.objective, columns[0]
        if not (objective.arrays and objective.outer.arrays and type(self.rule).__module__ == Rule.__module__):
            return False
        return (
            first.dtype in _FLOATS
            and reads_are_free(first)
            and all(c is None or (c.is_cpu and not c.is_neg()) for c in columns)
        )

    def _objective_like(self, x: Any) -> Objective:
        """Return the objective with its arrays in the library, the dtype and the place of the outputs."""
        if self._parameters or is_compiling():  # functional_call may have exchanged them; a graph has what it makes
            return self.objective.like(x).with_parameters(self._parameters)
        key = (type(x), x.dtype, getattr(x, "device", None))
        if key not in self._objectives:
            self._objectives[key] = self.objective.like(x)
        return self._objectives[key]

    def _settings(self) -> dict[str, str]:
        """Return everything that makes a step, by name, in words that are the same in every process."""
        memory = None if self.memory is None else self.memory.options
        made = {name: value for name, value in vars(self).items() if name[0] != "_" and name not in _OF_PROCESS}
        made |= {name: part for name, part in self._modules.items() if name not in ("table", "memory")}
        made |= {"rule": type(self.rule), **options_of(self.rule), "memory": memory, "n": self.n}
        return self._described.texts({**self.table.identity, **vars(self.objective), **made})

    def _check_finite(self, step: Step, batch: Batch, ranks: GroupRanks | None) -> None:
        """Raise if what a step would return or keep is not finite, in all processes together."""
        if ranks is not None and (batch.apart is not None or not self.objective.has_pool):
            ranks.is_careful = True  # as each has what others do not see
        self._check_values(step, batch, ranks)
        if ranks is not None:
            ranks.agree()
            ranks.is_careful = False
        if is_compiling():
            assert_before_writes(list(self.buffers()))

    def _check_values(self, step: Step, batch: Batch, ranks: GroupRanks | None) -> None:
        """Raise if what a step would return or keep is not finite; -inf is legal where it is a logarithm."""
        if not self._refuses_overflow:
            return
        own, log = self.objective.has_pool or self.rule.all_rows, self.objective.log
        kept = [step.new if own else step.new[batch.mine], step.refreshed]
        gradients: Sequence[Any] = step.gradients
        if self._is_steep:
            gradients = [namespace(g).where(abs(g) <= _STEEPEST, g, math.inf) for g in gradients]
        total = at_least(step.value, 0) if log else step.value
        for gradient in gradients:
            total = total + gradient.sum()
        for rows in kept:
            if rows is not None:
                total = total + (at_least(rows, 0) if log else rows).sum()
        if isinstance(total, Tensor) and not reads_are_free(total):
            require(total.isfinite(), "the loss, its gradient and what it keeps must be finite")
        elif not math.isfinite(total):
            for k, gradient in enumerate(gradients):
                self._refuse(k, "gradient", ~torch.as_tensor(gradient).isfinite(), batch, ranks)
            for what, rows in zip(("table", "memory"), kept, strict=True):
                if rows is not None:
                    legal = torch.as_tensor(rows)
                    self._refuse(0, what, ~(legal < math.inf if log else legal.isfinite()), batch, ranks)
            self._refuse(0, "loss", ~torch.as_tensor(step.value).isfinite(), batch, ranks)

    @property
    def _is_steep(self) -> bool:
        return self.objective.log and not self.rule.bounded

    def _refuse(self, column: int, what: str, illegal: Tensor, batch: Batch, ranks: GroupRanks | None) -> None:
        """Raise if something is illegal: name the largest output of those to blame."""
        if not illegal.any():
            return
        outputs = torch.as_tensor(batch.x[column])
        sizes = outputs.reshape(len(outputs), -1).nan_to_num(math.nan, math.inf, 0.0).abs().amax(1)
        blamed = ~(sizes <= torch.finfo(sizes.dtype).max ** 0.5)
        if what == "gradient":
            blamed |= illegal.reshape(len(illegal), -1).any(1)
        elif what == "table":
            of_anchors = illegal.reshape(len(illegal), -1).any(1)
            blamed[slice(None) if batch.every is None else torch.as_tensor(batch.every)] |= of_anchors
        place = int(sizes.masked_fill(~blamed, -1.0).argmax() if blamed.any() else sizes.argmax())
        found, row, whose = float(sizes[place]), int(batch.rows[place]), ""
        if ranks is not None and self.objective.has_pool:
            rank = int(torch.tensor(ranks.examples).cumsum(0).gt(place).int().argmax())
            place, whose = place - sum(ranks.examples[:rank]), f" of rank {rank}"
        name, legal = self._names[column], "finite"
        advice = "start from small outputs, standardise the features, or take smaller steps"
        if what == "gradient" and self._is_steep:
            remedy = "safeguard=True" if isinstance(self.rule, SOX) else "fcco.SOX"
            legal, advice = "at most 2^64", f"{self.rule} does not bound g / u, as {remedy} does"
        where = self._where(place, whose, row)
        raise NotFiniteError(
            f"{name} must be such that the {what} is {legal}; got {found:g} {where}: {advice}", name, (place,), found
        )

    def _where(self, place: int, whose: str, row: int) -> str:
        """Return where a value is, in words, given its place in the columns of the objective and its row."""
        return f"at position {place}{whose}, in row {row}"

    def _watch_evaluation(self, loss: Tensor) -> None:
        """Warn once if a loss that has been trained goes on training in ``eval()`` mode."""
        if not loss.requires_grad or not is_plain():
            return

        def count(gradient: Tensor) -> None:
            self._backwards_in_eval += 1
            if self._backwards_in_eval == _MANY_BACKWARDS and bool(self.table.step):
                warnings.warn(
                    "the loss seems to be trained in eval() mode, in which it compares each batch with itself and uses "
                    "no table and no memory: call train() on it after validation",
                    stacklevel=2,
                )

        loss.register_hook(count)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, as in any module.

        Parameters
        ----------
        mode : bool, default True
            True for training, and False for evaluation.

        Returns
        -------
        ObjectiveLoss
            This loss.
        """
        self._backwards_in_eval = 0
        return super().train(mode)

    @contextmanager
    def frozen(self, rule: Rule | None = None, table: InnerTable | None = None) -> Iterator[list[Visit]]:
        """Within this context, steps are worked out in training mode, by this process alone, and nothing is kept.

        Parameters
        ----------
        rule : Rule, optional
            Another rule to work them out with. Rows then start as that rule has them.
        table : InnerTable, optional
            Another table to read from.

        Yields
        ------
        list of Visit
            The steps that were worked out.
        """
        visits: list[Visit] = []
        changed: dict[str, Any] = {"layout": Layout(alone=True), "training": True, "is_frozen": True}
        changed |= {"observers": [visits.append]} | ({} if rule is None else {"rule": rule, "init": rule.start})
        before, held = {name: getattr(self, name) for name in changed}, self.table
        try:
            self.__dict__.update(changed)
            self.table = held if table is None else table
            yield visits
        finally:
            self.table = held
            self.__dict__.update(before)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "observers": []}  # those of the original do not observe its copies

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        leave_out_what_does_not_fit(self, state_dict, prefix)
        errors: list[str] = args[-1]
        of_memory = [key for key in state_dict if key.startswith(f"{prefix}memory.")]
        if self.memory is None:
            for key in of_memory:
                del state_dict[key]
        elif problem := self.memory.why_not_loaded(state_dict, f"{prefix}memory."):
            errors.append(f"{prefix}memory: {problem}")
            self.table.is_kept = True
        elif not of_memory and any(key.startswith(f"{prefix}table.") for key in state_dict):
            state_dict[f"{prefix}memory.row"] = self.memory.row  # of a memory without outputs, which empties this one
        super()._load_from_state_dict(state_dict, prefix, *args)


@contextmanager
def _plain_torch(device: torch.device) -> Iterator[None]:
    """Within this context, torch keeps no graph, and the precision of what it is given."""
    autocast = torch.autocast(dtype=torch.bfloat16, device_type=device.type.replace("meta", "cpu"), enabled=False)
    with torch.no_grad(), autocast:
        yield


def _is_empty(values: Any) -> bool:
    return isinstance(values, Tensor) and len(values) == 0


def _of_process(batch: Batch, step: Step, mine: slice) -> tuple[Batch, Step]:
    """Return what a process that is apart remembers of the batch of all: its own examples."""
    x = type(batch.x)(*(None if column is None else column[mine] for column in batch.x))
    pool = batch.pool._replace(kind=batch.pool.kind[mine], weight=batch.pool.weight[mine])
    batch = batch._replace(x=x, rows=batch.rows[mine], pool=pool, every=batch.anchors - mine.start)
    return batch, step._replace(kept=step.kept[batch.mine], share=step.share[batch.mine])


def _visit(step: Step, view: TableRows, mine: slice) -> Visit:
    """Return a step as observers see it: the anchors of this process."""
    written = view.seen >= 0 if step.written is None else step.written
    parts: Any = (step.rows, step.kept, step.before, view.seen > 0, written)
    return Visit(*(torch.as_tensor(part)[mine] for part in parts))


class Call(NamedTuple):
    """A call that has been checked."""

    columns: Sequence[Tensor]
    """Of all processes, if the objective has a pool."""
    rows: Tensor
    ordered: Any
    """The rows in ascending order, if that is known."""
    has_rows: bool
    """Whether the caller gave them."""
    weight: Any
    sample: Any
    ranks: GroupRanks | None = None
    mine: slice | None = None


class Made(NamedTuple):
    """What a call returns: gradients in the outputs, the value, and a scalar with a graph to parameters, or None."""

    gradients: Sequence[Any]
    value: Any
    extra: Any

    @classmethod
    def of(cls, step: Step, weight: Any) -> Made:
        """Return that of a step. With weights that are numbers it is the sum of f, not a mean."""
        if weight is None or weight.dtype == torch.bool:
            return cls(step.gradients, step.value, step.extra)
        total = step.share.sum()
        extra = None if step.extra is None else step.extra * total
        return cls([gradient * total for gradient in step.gradients], step.value * total, extra)


def attach(value: Any, outputs: Sequence[Tensor], gradients: Sequence[Any], extra: Tensor | None = None) -> Tensor:
    """Return a scalar with a value, and gradients in the outputs: a dot product, whose value is replaced."""
    loss: Any = None
    is_eager = is_plain()
    for output, gradient in zip(outputs, gradients, strict=True):
        part = gradient if isinstance(gradient, Tensor) else torch.from_numpy(gradient)
        output = as_dtype(output, part.dtype)
        if not is_eager and is_compiling():  # its backward pass may work all out again but a cumulative sum
            part = part[None].cumsum(0)[0]
        term = torch.dot(output, part) if output.dim() == 1 else torch.dot(output.reshape(-1), part.reshape(-1))
        loss = term if loss is None else loss + term
    loss.detach().copy_(value) if isinstance(value, Tensor) else loss.detach().fill_(float(value))
    if is_eager and loss.requires_grad:
        loss.grad_fn.register_prehook(_refuse_second_derivatives)
    return loss if extra is None else loss + (extra - extra.detach())


def _refuse_second_derivatives(grads: Sequence[Tensor]) -> None:
    if torch.is_grad_enabled():  # only in a backward pass with create_graph=True
        raise RuntimeError(
            "this loss has no second derivatives, since its gradient is worked out without a graph; use "
            "fcco.CoupledLoss with your own inner estimate"
        )
