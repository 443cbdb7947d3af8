"""CoupledLoss: the engine. From an estimate of the inner values and an outer function, the gradient of a rule."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from fcco._checks import (
    Rows,
    as_index,
    as_rows,
    check_finite,
    check_gradient,
    check_inner,
    check_one_each,
    check_rows,
    check_same_length,
    guarded,
    is_empty,
    is_plain,
    missing_index,
    reads_are_free,
    refuse_outer,
    shape_of,
    whole_number,
)
from fcco._describe import Descriptions, options_of
from fcco._eager import eager
from fcco._leave_out import leave_out_what_does_not_fit
from fcco._memory import Memory, OutputMemory, as_memory
from fcco._outer import Outer, Shares, total
from fcco._pool import EstimateFrom, Pool
from fcco._remember import GivenBatch, Made, Others, RememberingStep
from fcco._repeats import Repeats, find_repeats
from fcco._step import (
    Inputs,
    SharedEstimate,
    Step,
    Visit,
    as_shares,
    estimate_of_nothing,
    split_estimate,
    step_without_rows,
)
from fcco._table import LEAVE_OUT, InnerTable
from fcco.core.outers import takes_index
from fcco.core.rules import BSGD, SOX, Batch, Rule, is_per_row
from fcco.core.spaces import Rate, as_column, as_dtype, wider
from fcco.placement import Change, Layout, Placement, place
from fcco.placement._ranks import warn_of_equal

_MANY_BACKWARDS = 10  # in eval() mode, one after the other, before a warning


class CoupledLoss(nn.Module):
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
    rule : Rule, default ``fcco.SOX(gamma=0.1)``
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
    memory : Memory or int, default 0
        Which outputs of recent batches :meth:`pooled` adds to inner sets, and how; a number is that of outputs per
        stratum. See :class:`fcco.Memory`. Calls of the loss itself, whose inner estimate is ready-made, have no memory.

    Raises
    ------
    ValueError
        The rule is not defined in this space, its rate is out of range, or ``init`` does not suit it.

    Notes
    -----
    Call a loss as ``loss_fn(inner, index, *, weight=None, sample=None, previous=None, options=None)``:

    - inner: Tensor of shape (B1,) or (B1, dim), differentiable. For rules that track all rows (SCGD, NASA) its shape is
      (n,) or (n, dim).
    - index: integers in [0, n) of shape (B1,), the rows. If a row appears twice, its estimates are averaged and it is
      updated once; the gradient counts both.
    - weight: Tensor of shape (B1,). The loss is then the sum of weight * f instead of the mean of f. A mask of bool
      stands for the mean over the positions that are True. Positions of weight 0 are padding: they do not change the
      table, and may hold any legal value at which f is defined.
    - sample: what a stochastic f is evaluated on. f is then called as ``outer(u, index, sample)``.
    - previous: a second estimate, at the previous weights, for rules that need one (MSVR).
    - options: settings of yours that ``inner`` depends on, such as a temperature, by name. On several ranks they must
      be equal on all of them, as the rule and all arguments of the constructor must.

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

    >>> loss_fn = CoupledLoss(torch.log, n=3, rule=SOX(gamma=0.5))
    >>> inner = torch.tensor([1.0, 4.0], requires_grad=True)
    >>> loss = loss_fn(inner, torch.tensor([0, 2]))
    >>> loss.backward()
    >>> inner.grad  # (1 / u_i) / B1
    tensor([0.5000, 0.1250])
    >>> loss_fn.table.u
    tensor([1., 0., 4.])
    """

    # Attributes of the class, so that a loss that was pickled before they existed has them too.
    if_too_large = ""
    """What to do about values of f that are not finite.

    They are refused if this is given: by losses whose value is huge long before their inner values are. Others may have
    parts that are to go on by themselves.
    """
    _backwards_in_eval = 0
    _equal_batches: int | None = 0  # steps in which all ranks had the same rows; None: no more to be counted

    def __init__(
        self,
        outer: Outer,
        n: int,
        dim: int = 1,
        rule: Rule = SOX(gamma=0.1),  # noqa: B008 (frozen)
        log: bool = False,
        init: float | None = None,
        n_outer: int | None = None,
        memory: Memory | int = 0,
    ) -> None:
        super().__init__()
        if not callable(outer):
            raise TypeError(f"outer must be callable; got {outer!r}")
        if not isinstance(rule, Rule):
            raise TypeError(f"rule must be an instance of a rule such as fcco.SOX(gamma=0.1); got {rule!r}")
        if rule.log is not None and rule.log != log:
            raise ValueError(f"{type(rule).__name__} is defined for log={rule.log} only")
        if not callable(rule.rate):
            rule.check_rate(rule.rate)
        self.outer = outer
        self.rule = rule
        self.init = _resolve_init(init, rule, log)
        self.table = InnerTable(n, dim, log, visits=is_per_row(rule.rate), decays=rule.decays)
        self.table.identity = {"kind": type(self).__name__}
        self.n, self.dim, self.log = self.table.n, self.table.dim, self.table.log
        self.n_outer = self.n if n_outer is None else whole_number("n_outer", n_outer)
        self.layout = Layout()
        self.memory: OutputMemory | None = None
        self.remember(as_memory(memory))
        # On several ranks, each then waits for the others' f before it writes, which takes one message a step.
        self.outer_may_fail = True
        # Estimates of the caller's own are checked once, before they are made from remembered examples.
        self.estimates_read_recall = False
        self.observers: list[Callable[[Visit], None]] = []
        self.is_frozen = False
        self._described = Descriptions()
        self._outer_takes_index = takes_index(outer)

    def remember(self, memory: Memory | None) -> None:
        """Begin with an empty memory, or do without one.

        Parameters
        ----------
        memory : Memory or None
            Which outputs to remember; None stands for none.

        Raises
        ------
        ValueError
            If the rule needs estimates of all rows, or at two sets of weights.
        """
        if memory is not None and (False or self.rule.all_rows):
            needs = "at two sets of weights" if False else "of all rows"
            raise ValueError(f"{type(self.rule).__name__} needs estimates {needs}, which a memory cannot improve")
        self.memory = None if memory is None else OutputMemory(memory, self.dim)

    def extra_repr(self) -> str:
        """Return the outer function, the rule, the initial value, and what is kept from step to step.

        Returns
        -------
        str
            What ``repr`` shows between the brackets.
        """
        outer = getattr(self.outer, "__name__", type(self.outer).__name__)
        kept = [] if isinstance(self.rule, BSGD) else ["a table"]
        if self.memory is not None:
            each = " of each stratum" if self.memory.rings > 1 else ""
            kept.append(f"a memory of {self.memory.options.size} outputs{each}")
        return f"outer={outer}, rule={self.rule}, init={self.init}, kept: {' and '.join(kept) or 'nothing'}"

    def forward(
        self,
        inner: Tensor,
        index: Tensor | None = None,
        *,
        weight: Tensor | Shares | None = None,
        sample: Any = None,
        previous: Tensor | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Tensor:
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
        previous : Tensor, optional
            A second estimate, at the previous weights, of the shape of ``inner``, for rules that need one.
        options : mapping, optional
            Settings that ``inner`` depends on, by name. They must be equal on all ranks.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        if index is None:
            raise missing_index("the loss keeps a row for every example")
        f = self._f if sample is None else partial(self._f, sample=sample)
        placement = self.placement()
        if placement is None:
            return self._plug_in(f, inner, index, weight)
        if placement.alone:
            return self._take_step(placement, f, inner, index, weight, previous, {})
        return self._eagerly(self._take_step, placement, f, inner, index, weight, previous, self.settings(options))

    if TYPE_CHECKING:  # forward, but with an index

        def __call__(
            self,
            inner: Tensor,
            index: Tensor,
            *,
            weight: Tensor | Shares | None = None,
            sample: Any = None,
            previous: Tensor | None = None,
            options: Mapping[str, Any] | None = None,
        ) -> Tensor: ...

    def pooled(
        self,
        estimate: EstimateFrom,
        columns: Sequence[Any],
        index: Any,
        *,
        name: str = "the batch",
        gather: bool = True,
        stratum: Tensor | None = None,
        check: Callable[[Pool], None] | None = None,
        sample: Any = None,
        options: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Make an estimate of the inner values from a pool of examples, and take the step.

        Parameters
        ----------
        estimate : callable
            From a :class:`fcco.Pool` to the inner values of its own examples, [B] or [B, dim]; or an
            :class:`fcco.Estimate`, which has weights too. An error in it is raised on all ranks.
        columns : sequence of Tensor
            What ``estimate`` needs of each example of the batch, [B, ...] each.
        index : Tensor or None
            [B], the rows. None is for rules without a table (BSGD) only; the memory then knows no rows.
        name : str, default "the batch"
            The name of the first column, for error messages.
        gather : bool, default True
            Whether the examples of other ranks are rivals too. False for inner sets that are not made of the batch.
        stratum : Tensor, optional
            [B], integers: which stratum each example belongs to, if the memory has several.
        check : callable, optional
            Raises an error if the batch contradicts what is known. It is called with the pool of fresh examples, before
            any state changes.
        sample : object, optional
            As in a call of the loss.
        options : mapping, optional
            As in a call of the loss.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        placement = self.placement()
        if index is None and placement is not None and not isinstance(self.rule, BSGD):
            raise missing_index(f"{self.rule} keeps a row for every example")
        if index is None and placement is not None and self._outer_takes_index:
            raise TypeError("index must be given, because outer takes it; got None")
        if sample is not None and self.memory is not None and self.memory.options.strength == "virtual":
            raise TypeError(
                "sample cannot be given with a memory of strength 'virtual', which evaluates f at remembered examples "
                "too; use fcco.Memory(size, strength='estimate')"
            )
        batch = GivenBatch(columns, index, stratum if self.memory is not None else None, name, gather, check)
        step = partial(self._step_of_pool, placement, estimate, batch, sample)
        if placement is None or (placement.alone and not self._leaves_graph()):
            return step({})
        return self._eagerly(step, {} if placement.alone else self.settings(options))

    def shared(
        self,
        estimate: Callable[..., SharedEstimate],
        columns: Sequence[Any],
        *,
        options: Mapping[str, Any] | None = None,
    ) -> Tensor:
        """Take a step of all n rows, which every rank estimates alike from the batches of all ranks.

        Parameters
        ----------
        estimate : callable
            ``estimate(table, *columns)``, from the whole table (None where no step is taken) and the examples of all
            ranks, to a ``SharedEstimate``: the inner values of all n rows and the weight of each f.
        columns : sequence of Tensor
            What ``estimate`` needs of each example, [B, ...] each.
        options : mapping, optional
            As in a call of the loss.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        placement = self.placement()
        step = partial(self._shared_step, placement, estimate, columns)
        if placement is None or placement.alone:
            return step({})
        return self._eagerly(step, self.settings(options))

    @eager
    def settings(self, options: Mapping[str, Any] | None = None) -> dict[str, str]:
        """Return everything that makes a step, by name, in words that are the same in every process.

        Parameters
        ----------
        options : mapping, optional
            Options of the caller. Names with a leading underscore are left out.

        Returns
        -------
        dict of str to str
            The settings, which must be equal on all ranks.
        """
        rule, table = self.rule, self.table
        own = {"n": self.n, "dim": self.dim, "log": self.log, "n_outer": self.n_outer, "init": self.init}
        others = {name: value for name, value in (options or {}).items() if name[0] != "_"}
        memory = None if self.memory is None else self.memory.options
        made = {**table.identity, "rule": type(rule), **options_of(rule), "outer": self.outer, "memory": memory}
        return self._described.texts({**others, **made, **own, "gather": self.layout.gather, "table": type(table)})

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
        changed: dict[str, Any] = {"layout": Layout(alone=True), "training": True, "is_frozen": True}
        visits: list[Visit] = []
        changed["observers"] = [visits.append]
        if rule is not None:
            changed |= {"rule": rule, "init": rule.start}
        before = {name: getattr(self, name) for name in changed}
        held = self.table
        try:
            self.__dict__.update(changed)
            self.table = held if table is None else table
            yield visits
        finally:
            self.table = held
            self.__dict__.update(before)

    def notify(self, visit: Visit) -> None:
        """Tell the observers of a step.

        Parameters
        ----------
        visit : Visit
            The step, as they see it.
        """
        for observer in self.observers:
            observer(visit)

    def __getstate__(self) -> dict[str, Any]:
        # Observers of the original do not observe its copies.
        return {**self.__dict__, "observers": []}

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        leave_out_what_does_not_fit(self, state_dict, prefix)
        of_memory = [key for key in state_dict if key.startswith(f"{prefix}memory.")]
        if self.memory is None:
            for key in of_memory:
                del state_dict[key]
        elif not of_memory and any(key.startswith(f"{prefix}table.") for key in state_dict):
            # The state is from a loss without a memory. What is remembered here does not belong to its table.
            state_dict |= {f"{prefix}memory.{key}": value for key, value in self.memory.empty_state().items()}
        elif problem := self.memory.why_not_loaded(state_dict, f"{prefix}memory."):
            errors: list[str] = args[-1]
            errors.append(f"{prefix}memory: {problem}{LEAVE_OUT}")
            self.table.is_kept = True
        super()._load_from_state_dict(state_dict, prefix, *args)

    def placement(self) -> Placement | None:
        """Return the placement of the step that a call takes now, or None if it takes none.

        Returns
        -------
        Placement or None
            The way to the rows of the table. It is None in ``eval()`` mode and under ``torch.no_grad()``.
        """
        table: Any = self._modules["table"]
        return place(table, self.layout) if self.training and torch.is_grad_enabled() else None

    def _leaves_graph(self) -> bool:
        """Return whether a step is being compiled whose backward pass would read a memory that it has overwritten."""
        return self.memory is not None and self.training and is_compiling()

    @eager
    def _eagerly(self, step: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
        """Take a step that cannot be part of a compiled graph: with messages between ranks, or with a memory."""
        return step(*arguments, **options)

    def _step_of_pool(
        self,
        placement: Placement | None,
        estimate: EstimateFrom,
        batch: GivenBatch,
        sample: Any,
        settings: Mapping[str, str],
    ) -> Tensor:
        f = self._f if sample is None else partial(self._f, sample=sample)
        if placement is None:
            return self._exactly(estimate, f, batch)
        others = None
        if batch.gather:
            batch, others = batch.gathered(placement, settings)
        if batch.index is None and others is not None:
            self._watch_ranks(placement, placement.in_order(batch.columns, others.columns))
        try:
            made = self._estimate_pool(placement, estimate, f, batch, others)
        except Exception as error:
            placement.refuse(error)
        loss = self._take_step(
            placement, f, made.inner, made.rows, made.shares, None, settings, made.tracked, batch.index is not None
        )
        if self.memory is not None and not self.is_frozen and made.kept is not None:
            self.memory.remember(*made.kept)
        return made.balance(loss)

    def _exactly(self, estimate: EstimateFrom, f: Outer, batch: GivenBatch) -> Tensor:
        """Return the value of the batch by itself, where no step is taken."""
        columns, index = batch.columns, batch.index
        if index is None:
            index = torch.arange(len(columns[0]), device=columns[0].device)
        known = self.training and _is_batch(columns)
        pool = Pool(columns, None, as_index(index, columns[0].device) if known else None)
        inner, shares = split_estimate(estimate(pool))
        batch.check_pool(pool)
        check_one_each(as_index(index, inner.device), inner, "the batch")
        return self._plug_in(f, inner, index, shares)

    def _estimate_pool(
        self, placement: Placement, estimate: EstimateFrom, f: Outer, batch: GivenBatch, others: Others | None
    ) -> Made:
        """Make the estimates of a step from the batch, the other ranks' batches, and the memory."""
        columns = batch.columns
        if others is None and not placement.alone and _is_batch(columns) and len(columns[0]) == 0:
            return Made(estimate_of_nothing(columns, self.dim), batch.index, None)
        self._check_device(placement, columns)
        pool, rows = self._pool_of(batch, others)
        if self.memory is None:
            inner, shares = split_estimate(estimate(pool))
            batch.check_pool(pool)
            return Made(inner, rows, shares)
        return RememberingStep(self, placement, batch, others, pool, rows).make(estimate, f)

    def _pool_of(self, batch: GivenBatch, others: Others | None) -> tuple[Pool, Any]:
        """Return the pool of fresh examples, and the rows of this process's part of it."""
        columns, index = batch.columns, batch.index
        if not _is_batch(columns):
            return Pool(columns), index
        device, count = columns[0].device, len(columns[0])
        if index is None:  # positions serve as rows, which the table does not see
            everyone = count if others is None else count + len(others.columns[0])
            every = Rows(torch.arange(everyone, device=device), may_repeat=False)
        elif others is None:
            every = as_rows(index, self.n, device)
            check_one_each(every.values, columns[0], batch.name)
        else:
            assert others.rows is not None
            every = as_rows(torch.cat([index, others.rows]), self.n, device)
        own = every if others is None else every.values[:count]
        if index is None and others is not None and count:
            own = Rows(every.values[:count], may_repeat=False)
        return Pool(columns, None if others is None else others.columns, *every), own

    def _shared_step(
        self,
        placement: Placement | None,
        estimate: Callable[..., SharedEstimate],
        columns: Sequence[Any],
        settings: Mapping[str, str],
    ) -> Tensor:
        if placement is None:
            made = estimate(None, *columns)
            rows = torch.arange(self.n, device=made.inner.device)
            loss = self._plug_in(partial(self._f, sample=made.sample), made.inner, rows, made.weight)
            return loss if made.extra is None else loss + made.extra
        columns = placement.gather_all(columns, settings)
        self._watch_ranks(placement, columns)
        try:
            self._check_device(placement, columns)
            made = estimate(placement.full_table(), *columns)
        except Exception as error:
            placement.refuse(error)
        rows = torch.arange(self.n, device=made.inner.device)
        inner, rows, weight = placement.once(made.inner, rows, made.weight)
        sample = None if made.sample is None else placement.once(made.sample)[0]
        loss = self._take_step(placement, partial(self._f, sample=sample), inner, rows, weight, None, settings)
        if made.extra is None:
            return loss
        (extra,) = placement.once(placement.parts * made.extra.unsqueeze(0))
        return loss + extra.sum()

    def _take_step(
        self,
        placement: Placement,
        f: Outer,
        inner: Any,
        index: Any,
        weight: Any,
        previous: Any,
        settings: Mapping[str, str],
        tracked: Tensor | None = None,
        has_rows: bool = True,
    ) -> Tensor:
        """Take one step; the loss is this process's part of it, times the number of processes.

        ``tracked`` is what the rows meet, if not ``inner`` itself. Without rows, the table only counts the step.
        """
        if self.rule.all_rows:
            inner = placement.average(inner, settings)
        try:
            given = self._check(placement, inner, index, weight, previous, tracked)
        except Exception as error:
            placement.refuse(error)
        if not placement.alone:
            settings = {**settings, "dtype": str(given.inner.dtype)}
        weights = placement.begin(given.rows, given.shares, settings, all_rows=self.rule.all_rows)
        step = self._advance(placement, given, weights) if has_rows else step_without_rows(given)
        with placement.all_or_none() if self.outer_may_fail or self._may_overflow else nullcontext():
            loss = self._loss_of(f, placement, step, given.rows, weights)
        if not self.is_frozen and has_rows:
            placement.table.write(step.tracked, step.values, step.rate, step.written, step.seen)
        elif not self.is_frozen:
            placement.table.step.add_(1)
        if step.visit is not None:
            self.notify(step.visit)
        return loss

    def _check(
        self, placement: Placement, inner: Any, index: Any, weight: Any, previous: Any, tracked: Tensor | None = None
    ) -> Inputs:
        """Refuse bad input. The part of a batch that one rank has may be empty."""
        table, all_rows = placement.table, self.rule.all_rows
        if not placement.alone and is_empty(index) and isinstance(inner, Tensor) and (all_rows or len(inner) == 0):
            inner = inner if all_rows else inner.reshape(0, *table.u.shape[1:])
            nothing = inner.new_zeros(0)
            # Only a rank without rows may leave out the previous estimate.
            none = Shares(nothing, nothing.sum())
            return Inputs(inner, nothing.long(), none, previous, may_repeat=True, tracked=inner.detach())
        inner = check_inner(inner, self.dim)
        detached = inner.detach()
        self._check_values(table, detached, previous)
        rows, may_repeat = as_rows(index, self.n, inner.device)
        if not all_rows:
            check_same_length(inner, rows)
        shares = as_shares(weight, rows, inner.dtype, needed=not placement.alone)
        # Rows that one rank has once may come from another rank too.
        may_repeat = not all_rows and (may_repeat or not placement.alone)
        return Inputs(
            inner, rows, shares, previous, may_repeat, detached if tracked is None else tracked.reshape(inner.shape)
        )

    @property
    def _may_overflow(self) -> bool:
        return self.log and not self.rule.bounded

    def _loss_of(self, f: Outer, placement: Placement, step: Step, rows: Tensor, weight: Tensor | None) -> Tensor:
        """Return the value of f at the new rows, with the gradient at the rows that the rule says."""
        inner, new, at = step.inner, step.new, step.at
        if step.sampled is not None:
            inner, new, at = (part.index_select(0, step.sampled) for part in (inner, new, at))
        # A rank by itself must not refuse a step that the others take.
        may_refuse = inner.requires_grad and (placement.alone or self.outer_may_fail)
        is_steep = bool(self.if_too_large) and may_refuse
        value = None
        if step.at is not step.new:
            with torch.no_grad():
                # f may work in place, so it gets a copy of what the table will hold.
                values = f(new.clone(), rows)
                value = total(values, weight)
            if is_steep:
                self.check_value(values, value, rows, weight)
        unbounded = self._may_overflow
        is_read = is_steep and reads_are_free(inner)
        if unbounded or is_read:
            inner = guarded(inner)
        carrier = placement.table.space.carry(inner, at)
        if weight is not None:
            # No gradient flows to padding, where the derivative of f need not exist.
            carrier = torch.where(as_column(weight > 0, carrier), carrier, carrier.detach())
        values = f(carrier, rows)
        loss = total(values, weight)
        if may_refuse and not loss.requires_grad:
            raise ValueError(
                "outer must return a differentiable function of u; its values have no graph: use no detach(), no "
                "item() and no NumPy in it"
            )
        if is_steep:
            self.check_value(values, loss, rows, weight)
        if unbounded:
            remedy = "safeguard=True" if isinstance(self.rule, SOX) else "fcco.SOX"
            check_gradient(loss, inner, rows, f"{self.rule} does not bound g / u, as {remedy} does")
        elif is_read:
            largest = torch.finfo(inner.dtype).max
            check_gradient(loss, inner, rows, self.if_too_large, largest, "finite")
        if value is not None:
            loss.detach().copy_(value)
        return loss

    def check_value(self, values: Tensor, loss: Tensor, rows: Tensor, weight: Tensor | None) -> None:
        """Refuse a loss that is not finite, for which a device is not waited for.

        Parameters
        ----------
        values : Tensor of shape (B1,)
            The values of f.
        loss : Tensor
            Their mean or weighted sum.
        rows : Tensor of shape (B1,)
            The rows, for the error message.
        weight : Tensor of shape (B1,) or None
            The weights; where they are 0, a value does not matter.
        """
        if reads_are_free(loss):
            value = float(loss.detach().numpy())
            if not (value < math.inf if self.log else math.isfinite(value)):  # the logarithm of g = 0 is legal
                values = values if weight is None else values.detach().masked_fill(weight == 0, 0.0)
                refuse_outer(values, rows, self.if_too_large)
        else:
            torch._assert_async(loss.detach() < math.inf, "outer must return finite values")

    def _plug_in(self, f: Outer, inner: Any, index: Any, weight: Any) -> Tensor:
        """Return the value of f at the estimates themselves."""
        inner = check_inner(inner, self.dim)
        rows = as_index(index, inner.device)
        shares = as_shares(weight, rows, inner.dtype, needed=False)
        if self.rule.all_rows and inner.shape[0] == self.n:
            check_rows(rows, self.n)
            inner = inner.index_select(0, rows)
        check_same_length(inner, rows)
        check_finite(inner, self.log)
        dtype = torch.promote_types(inner.dtype, torch.float32)
        value = total(f(inner.to(dtype, copy=True), rows), None if shares is None else shares.weight())
        self.watch_evaluation(value, self._has_stepped)
        return value

    def watch_evaluation(self, value: Tensor, has_trained: Callable[[], bool]) -> None:
        """Warn once if a loss that has been trained goes on training in ``eval()`` mode.

        Parameters
        ----------
        value : Tensor
            The value of a call, whose backward passes are counted if the loss is in ``eval()`` mode.
        has_trained : callable
            Whether the loss has taken a step.
        """
        if self.training or not value.requires_grad or not is_plain():
            return

        def count(gradient: Tensor) -> None:
            self._backwards_in_eval += 1
            if self._backwards_in_eval == _MANY_BACKWARDS and has_trained():
                warnings.warn(
                    "the loss seems to be trained in eval() mode, in which it compares each batch with itself and uses "
                    "no table and no memory: call train() on it after validation",
                    stacklevel=2,
                )

        value.register_hook(count)

    def _has_stepped(self) -> bool:
        return not reads_are_free(self.table.step) or bool(self.table.step)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, as in any module.

        Parameters
        ----------
        mode : bool, default True
            True for training, and False for evaluation.

        Returns
        -------
        CoupledLoss
            This loss.
        """
        self._backwards_in_eval = 0
        return super().train(mode)

    def _advance(self, placement: Placement, given: Inputs, weight: Tensor | None) -> Step:
        """Work out the update of the rows. It is not written yet, since f may still fail."""
        rule, table = self.rule, placement.table
        dtype = wider(given.inner.dtype, table.dtype)
        inner, previous = as_dtype(given.inner, dtype), given.previous
        if previous is not None:
            previous = previous.detach().reshape(inner.shape).to(dtype)
        # Rules that track all rows receive an estimate of each, and f is evaluated at the sampled ones.
        tracked, sampled = (None, given.rows) if rule.all_rows else (given.rows, None)
        where = None if weight is None or rule.all_rows else weight > 0
        # From here on nothing has a graph.
        own = Change(tracked, where, as_dtype(given.tracked, dtype), previous)
        change = placement.send(own)
        if change.rows is not None and all(placement.lengths):
            self._watch_ranks(placement, [change.rows])
        seen = table.seen(change.rows)
        repeats = None
        if given.may_repeat and change.rows is not None:
            repeats = find_repeats(change.rows, change.where, dtype)
        batch = self._batch(placement, change, repeats, seen.visits)
        cold = batch.estimate if self.init is None else batch.space.value(self.init)
        old = table.read(change.rows, cold, dtype, seen)
        values, at = self._updated(old, batch)
        made = placement.give_back([values] if at is values else [values, at], own.estimate)
        visit = self._visit(placement, own, old, seen.visits) if self.observers else None
        written = repeats.present() if repeats and change.where is not None else change.where
        return Step(inner, made[0], made[-1], sampled, change.rows, seen, values, batch.rate, written, visit)

    def _watch_ranks(self, placement: Placement, columns: Sequence[Any]) -> None:
        """Warn once if every rank has the same rows from the first step on."""
        if not placement.alone and placement.rank == 0 and len(columns[0]) > 0:
            self._equal_batches = warn_of_equal(columns, placement.parts, self._equal_batches)

    def _updated(self, old: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return what the rule makes of the rows. A rule may be the caller's own."""
        made = self.rule.update(old, batch)
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError(
                f"update of {type(self.rule).__name__} must return two tensors, the new rows and the rows to "
                f"differentiate f at; got {made!r}"
            )
        values, at = made
        for part in (values,) if at is values else made:
            if not isinstance(part, Tensor) or part.shape != old.shape or part.dtype != old.dtype:
                got = f"{shape_of(part)} of {part.dtype}" if isinstance(part, Tensor) else repr(part)
                raise ValueError(
                    f"update of {type(self.rule).__name__} must return tensors of shape {shape_of(old)} of "
                    f"{old.dtype}; got {got}"
                )
        if not (values.requires_grad or at.requires_grad):
            return values, at
        return (values.detach(),) * 2 if at is values else (values.detach(), at.detach())

    def _visit(self, placement: Placement, own: Change, old: Tensor, visits: Tensor) -> Visit:
        """Return what observers see: the positions of this process's batch."""
        visits = as_column(visits.to(old.dtype), old).expand_as(old)
        before, seen = placement.give_back([old, visits], own.estimate)
        seen = (seen if seen.dim() == 1 else seen[:, 0]) > 0
        rows = torch.arange(self.n, device=seen.device) if own.rows is None else own.rows
        where = torch.ones_like(seen) if own.where is None else own.where
        return Visit(rows, own.estimate, before, seen, where)

    def _check_device(self, placement: Placement, columns: Sequence[Any]) -> None:
        """Refuse a batch that is elsewhere than what the loss keeps."""
        kept = placement.table.u if self.memory is None else self.memory.row
        if not _is_batch(columns) or columns[0].device == kept.device:
            return
        raise ValueError(
            f"the batch is on {columns[0].device}, and what the loss keeps on {kept.device}: move the loss with "
            f".to({str(columns[0].device)!r}), or the batch"
        )

    def _check_values(self, table: InnerTable, inner: Tensor, previous: Tensor | None) -> None:
        """Refuse invalid estimates."""
        if inner.device != table.device:
            raise ValueError(f"inner is on {inner.device}, the table on {table.device}: move one with .to()")
        if self.rule.all_rows and inner.shape[0] != self.n:
            raise ValueError(
                f"{type(self.rule).__name__} tracks all rows: inner needs {self.n} rows; got {shape_of(inner)}"
            )
        if previous is not None:
            verb = "takes no"
            raise ValueError(f"{type(self.rule).__name__} {verb} previous=, an estimate at the previous weights")
        check_finite(inner, self.log)
        if previous is not None:
            previous = check_inner(previous, self.dim, "previous")
            if previous.shape != inner.shape:
                raise ValueError(f"previous must have inner's shape {shape_of(inner)}; got {shape_of(previous)}")
            check_finite(previous, self.log, "previous")

    def _batch(self, placement: Placement, change: Change, repeats: Repeats | None, visits: Tensor) -> Batch:
        table, estimate, previous = placement.table, change.estimate, change.previous
        if previous is not None:
            # On a row's first visit there was no previous step to correct for.
            previous = torch.where(as_column(visits.bool(), previous), previous, estimate)
        if repeats:
            estimate = repeats.mean(estimate, table.space)
            previous = previous if previous is None else repeats.mean(previous, table.space)

        def coverage() -> Rate:
            distinct: Any = estimate.shape[0]
            if repeats:
                distinct = repeats.distinct()
            elif change.where is not None:
                distinct = change.where.to(estimate.dtype).sum()
            return self.n_outer / _at_least_one(placement.count(distinct))

        return Batch(estimate, self.rate(table, visits, estimate.dtype), coverage, table.space)

    def rate(self, table: InnerTable, visits: Tensor | None, dtype: torch.dtype | None = None) -> Rate:
        """Return gamma of this step.

        Parameters
        ----------
        table : InnerTable
            The table, which counts steps and visits.
        visits : Tensor of shape (B1,) or None
            How often each row has been visited, for a schedule by row. None stands for all rows of the table.
        dtype : torch.dtype, optional
            The dtype of rates in a tensor. By default, it is that of the table.

        Returns
        -------
        float or Tensor
            One rate. A schedule by row gives one for each row, of shape (B1,), or (B1, 1) if a row has several values.
        """
        schedule = self.rule.rate
        if not callable(schedule):
            return schedule
        dtype = dtype or table.u.dtype
        if is_per_row(schedule):
            visits = (table.visited(None) if visits is None else visits).to(dtype)
            rates = torch.as_tensor(schedule(visits), device=visits.device).detach().to(dtype).expand_as(visits)
            self.rule.check_rate(rates)
            return as_column(rates, table.u)
        if reads_are_free(table.step):
            return self.rule.check_rate(float(_single(schedule(int(table.step)))))
        rate = _single(schedule(table.step.to(dtype)))
        return self.rule.check_rate(rate.detach() if isinstance(rate, Tensor) else rate)

    def _f(self, u: Tensor, rows: Tensor, sample: Any = None) -> Tensor:
        if sample is not None:
            values = self.outer(u, rows, sample)
        else:
            values = self.outer(u, rows) if self._outer_takes_index else self.outer(u)
        if not isinstance(values, Tensor) or values.shape != rows.shape:
            got = shape_of(values) if isinstance(values, Tensor) else type(values).__name__
            raise ValueError(f"outer must map {shape_of(u)} to {shape_of(rows)}; got {got}")
        return values if values.dtype == u.dtype else values.to(u.dtype)


def _resolve_init(init: float | None, rule: Rule, log: bool) -> float | None:
    if init is None:
        return rule.start
    if rule.start is not None and init != rule.start:
        raise ValueError(f"{type(rule).__name__} starts from {rule.start}, so init cannot be {init!r}")
    if not math.isfinite(init) or (log and init < 0):
        raise ValueError(
            f"init must be a finite value of g{', not negative in log space' if log else ''}; got {init!r}"
        )
    return init


def _single(rate: Any) -> Any:
    """Return what a schedule of the step returned; refuse several rates."""
    if isinstance(rate, Tensor) and rate.numel() != 1:
        raise ValueError(
            f"a schedule of the step must return one rate; got a tensor of shape {shape_of(rate)}. A schedule with the "
            "attribute per_row = True gets the number of visits of each row, and returns a rate for each"
        )
    return rate


def _at_least_one(count: Rate) -> Rate:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)


def _is_batch(columns: Sequence[Any]) -> bool:
    """Return whether there is a column of examples, which an index must match."""
    return len(columns) > 0 and isinstance(columns[0], Tensor) and columns[0].dim() > 0
