"""Monitor: what the table and the memory of a loss do while training goes on."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from fcco._checks import whole_number
from fcco.core.rules import is_per_row
from fcco.diagnostics._probe import ExactInner, relative_error, squared_error
from fcco.diagnostics._watch import Watch, engine_of, keeps_table, table_of
from fcco.losses.loss import Visit

# Weight of the newest batch in running means: some 200 batches count.
_RATE = 0.01


class Monitor:
    r"""Watches the table of a loss: staleness, rates, jumps of the estimates, and the error of u where g is known.

    It begins with its construction and ends with ``close()``, or with the ``with`` block it stands in. It keeps 8 bytes
    a row, changes nothing in the loss, and works in eager mode and (made before the first call) under
    ``torch.compile``. Under a process group it sees the batches of its own rank. What is in a report:

    - ``step``: steps of the table so far.
    - ``staleness_mean``, ``staleness_median``, ``staleness_max``: steps since a row was last seen, of those that were.
    - ``never_seen``: share of the rows never seen, of those that are ever outer ones.
    - ``visits``: mean number of visits a row, of those that were seen.
    - ``gamma``: of the next step (mean, where it goes by row).
    - ``effective_rate``: gamma · visits / steps, by how much a row is renewed in a step, in the mean over outer rows.
    - ``averaged``: how many estimates a row stands for, 1 / Σ weights², in the mean over rows seen (not for MOAP, whose
      rows decay between visits). After m visits

      .. math:: \sum \text{weights}^2 = a + (1 - a)\, \gamma / (2 - \gamma), \qquad a = (1 - \gamma)^{2 (m - 1)}

    - ``jump``: how far new estimates lie from the rows they meet, as a relative error, over some 200 batches. It holds
      the noise of the estimate and all that the table is behind; see :func:`fcco.diagnostics.advise`.
    - with ``exact``: ``tracking_error``, the relative error of u on a sample of rows seen, and ``estimate_error``, that
      of the last batch's estimates. The table pays where the first is the smaller. See :func:`relative_error`.
    - with a memory: ``remembered``, how many outputs it holds; ``age_mean``, ``age_median`` and ``age_max``, how many
      steps ago they were made; and ``drift``, how far those have moved whose rows came back meanwhile, as a share of
      the deviation of all outputs that are held (a recent average).

    A loss with a memory and no table (the rule is ``fcco.BSGD()``) has no figures of rows. Of those above, its report
    has ``step``, the figures of the memory, and, if calls have an index, ``never_seen``, ``visits`` and
    ``estimate_error``.

    Parameters
    ----------
    loss : nn.Module
        A loss of fcco, or a module that holds one.
    exact : ExactInner, optional
        Rows [m] to their exact g (log g in log space), [m] or [m, dim]; see :func:`exact_inner`.
    sample : int, default 256
        How many rows ``exact`` is asked for.
    seed : int, default 0
        The seed of the sample.

    Raises
    ------
    ValueError
        The module holds no table, or several, or one that is sharded over ranks.

    Examples
    --------
    >>> import fcco
    >>> loss_fn = fcco.CoupledLoss(torch.log, n=4, rule=fcco.SOX(gamma=0.5))
    >>> with Monitor(loss_fn) as monitor:
    ...     for rows in ([0, 1], [1, 2]):
    ...         loss = loss_fn(torch.ones(2, requires_grad=True), torch.tensor(rows))
    >>> report = monitor.report()
    >>> report["staleness_max"], report["never_seen"], report["jump"]  # row 0 was seen one step ago, row 3 never
    (1.0, 0.25, 0.0)
    """

    def __init__(self, loss: nn.Module, exact: ExactInner | None = None, *, sample: int = 256, seed: int = 0) -> None:
        self._engine = engine_of(loss)
        self.exact = exact
        self.history: list[dict[str, float]] = []
        self._sample = whole_number("sample", sample)
        self._generator = torch.Generator().manual_seed(whole_number("seed", seed, 0))
        self._table = table = table_of(self._engine)
        device = table.u.device
        self._last_seen = torch.zeros(table.n, dtype=torch.int32, device=device)
        self._visits = torch.zeros_like(self._last_seen)
        self._steps = torch.zeros((), dtype=torch.int32, device=device)
        # [1], since torch.compile loses changes to 0-d floats.
        self._jump, self._weight = torch.zeros(1, device=device), torch.zeros(1, device=device)
        self._last: tuple[Tensor, Tensor, Tensor] | None = None
        self._watch = Watch(self._engine, self._on_visit)
        self._moved, self._spread = 0.0, 0.0
        if self._engine.memory is not None:
            self._engine.memory.watchers.append(self._on_return)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop watching; reports can still be made."""
        self._watch.close()
        memory = self._engine.memory
        if memory is not None and self._on_return in memory.watchers:
            memory.watchers.remove(self._on_return)

    def _on_visit(self, visit: Visit) -> None:
        self._follow(visit.rows.device)
        self._steps += 1
        if not len(visit.rows):
            return
        rows, counted = visit.rows, visit.where.to(torch.int32)
        # By the largest, since a row may stand twice, here as padding and there not.
        self._last_seen.scatter_reduce_(0, rows, counted * self._steps, "amax")
        self._visits.scatter_reduce_(0, rows, (self._visits[rows] + 1) * counted, "amax")
        again = visit.where & visit.seen
        jump = squared_error(visit.estimate, visit.before, self._table.log, again).to(self._jump.dtype)
        rate = _RATE * again.any()
        self._jump += rate * (jump - self._jump)
        self._weight += rate * (1 - self._weight)
        self._last = rows, visit.estimate, visit.where

    def _on_return(self, old: Tensor, new: Tensor, held: Tensor) -> None:
        """Note how far outputs have moved that come back while they are remembered, and how far apart all are."""
        if len(old):
            moved = (new.double() - old.double()).square().sum() / len(old)
            spread = (held.double() - held.double().mean(0)).square().sum() / len(held)
            self._moved += _RATE * (moved.item() - self._moved)
            self._spread += _RATE * (spread.item() - self._spread)

    def _follow(self, device: torch.device) -> None:
        if self._steps.device != device:
            for name in ("_last_seen", "_visits", "_steps", "_jump", "_weight"):
                setattr(self, name, getattr(self, name).to(device))

    @property
    def jump(self) -> float | None:
        """Relative error of the table before an update against new estimates; None before any row came twice.

        None also with a memory and no table: no row is used then.
        """
        weight = self._weight.item() if keeps_table(self._engine) else 0.0
        return (self._jump.item() / weight) ** 0.5 if weight else None

    @property
    def gamma(self) -> float:
        """The rate of the rule at the next step; the mean over rows, where it goes by row."""
        rule, table = self._engine.rule, self._table
        if is_per_row(rule.rate):
            return float(torch.as_tensor(_at(rule.rate, table.visits.double())).mean())
        return float(_at(rule.rate, int(table.step)))

    def report(self, exact: ExactInner | None = None) -> dict[str, float]:
        """Return all figures as they are now, and append them to :attr:`history`.

        Parameters
        ----------
        exact : ExactInner, optional
            The exact g of rows. By default, it is that of the monitor, if it has one.

        Returns
        -------
        dict of str to float
            The figures by name. Those that cannot be given yet, because nothing was seen, are left out.
        """
        visits = self._visits[self._visits > 0].double()
        figures: dict[str, float] = {"step": float(self._table.step)}
        has_table = keeps_table(self._engine)
        if has_table or len(visits):
            figures["never_seen"] = max(0.0, 1 - len(visits) / self._engine.n_outer)
        if has_table:
            figures |= self._of_rows(visits)
        elif len(visits):
            figures["visits"] = visits.mean().item()
        figures |= self._of_memory()
        exact = self.exact if exact is None else exact
        if exact is not None and len(visits):
            figures |= self._errors(exact)
        self.history.append(figures)
        return figures

    def _of_rows(self, visits: Tensor) -> dict[str, float]:
        engine, gamma = self._engine, self.gamma
        figures = {"gamma": gamma}
        if len(visits):
            stale = self._steps.double() - self._last_seen[self._visits > 0].double()
            figures |= {
                "staleness_mean": stale.mean().item(),
                "staleness_median": stale.median().item(),
                "staleness_max": stale.max().item(),
                "visits": visits.mean().item(),
                "effective_rate": gamma * self._share_renewed(visits),
            }
            if not engine.rule.decays:
                figures["averaged"] = (1 / sum_of_squared_weights(gamma, visits)).mean().item()
            if self.jump is not None:
                figures["jump"] = self.jump
        return figures

    def _of_memory(self) -> dict[str, float]:
        ages = self.ages().double()
        if self._engine.memory is None:
            return {}
        figures = {"remembered": float(len(ages))}
        if len(ages):
            figures |= {
                "age_mean": ages.mean().item(),
                "age_median": ages.median().item(),
                "age_max": ages.max().item(),
            }
        if self._spread > 0:
            figures["drift"] = (self._moved / self._spread) ** 0.5
        return figures

    def _share_renewed(self, visits: Tensor) -> float:
        """How many of the outer rows a step renews, as a share; a table that decays renews all."""
        if self._engine.rule.decays:
            return 1.0
        return visits.sum().item() / (self._engine.n_outer * self._steps.item())

    def _errors(self, exact: ExactInner) -> dict[str, float]:
        table = self._table
        seen = self._visits.nonzero().squeeze(1)
        drawn = torch.randperm(len(seen), generator=self._generator)[: self._sample].to(seen.device)
        rows = seen[drawn]
        assert self._last is not None
        last_rows, estimate, where = (part[: self._sample] for part in self._last)
        last_rows, estimate = last_rows[where], estimate[where]
        with torch.no_grad():
            g = exact(torch.cat([rows, last_rows])).to(table.u.dtype).reshape(-1, *table.u.shape[1:])
        figures = {"estimate_error": relative_error(estimate, g[len(rows) :], self._table.log)}
        if keeps_table(self._engine):
            read = table.read(rows, cold=0.0)
            figures["tracking_error"] = relative_error(read, g[: len(rows)], self._table.log)
        return figures

    def to_tensorboard(self, writer: Any, step: int | None = None, prefix: str = "fcco/") -> dict[str, float]:
        """Write a report, and histograms of staleness and age, to a ``SummaryWriter``.

        Parameters
        ----------
        writer : SummaryWriter
            The writer.
        step : int, optional
            The step to write them at. By default, it is that of the table.
        prefix : str, default "fcco/"
            What the names of the figures begin with.

        Returns
        -------
        dict of str to float
            The report.
        """
        figures = self.report()
        at = int(figures["step"]) if step is None else step
        for name, value in figures.items():
            if name != "step":
                writer.add_scalar(prefix + name, value, at)
        if keeps_table(self._engine) and len(stale := self.staleness()):
            writer.add_histogram(prefix + "staleness", stale, at)
        if len(ages := self.ages()):
            writer.add_histogram(prefix + "age", ages, at)
        return figures

    def staleness(self) -> Tensor:
        """Return how many steps ago each of the rows that were seen was last seen.

        Returns
        -------
        Tensor
            Numbers of steps, on the CPU, one for each row that was seen.
        """
        return (self._steps - self._last_seen)[self._visits > 0].cpu()

    def ages(self) -> Tensor:
        """Return how many steps ago each of the remembered outputs was made.

        Returns
        -------
        Tensor
            Numbers of steps, on the CPU, one for each output. It is empty if the loss remembers none.
        """
        memory = self._engine.memory
        return torch.zeros(0, dtype=torch.int64) if memory is None else memory.ages().cpu()

    def plot(self, path: str | Path | None = None) -> Any:
        """Plot the staleness of the rows now, and errors and rates over the reports.

        With a memory and no table, the first panel has the ages of the outputs, and the last one their mean and drift.

        Parameters
        ----------
        path : str or Path, optional
            Where to save the figure. By default, it is not saved.

        Returns
        -------
        matplotlib.figure.Figure
            The figure, with three panels.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("plot() needs matplotlib: pip install matplotlib") from error
        figure = Figure(figsize=(11, 3), layout="constrained")
        panels = figure.subplots(1, 3)
        has_table = keeps_table(self._engine)
        panels[0].hist((self.staleness() if has_table else self.ages()).numpy(), bins=30)
        labels = ("steps since last seen", "rows") if has_table else ("steps since it was made", "outputs")
        panels[0].set(xlabel=labels[0], ylabel=labels[1])
        shown: list[tuple[Any, tuple[str, ...]]] = [
            (panels[1], ("tracking_error", "estimate_error", "jump")),
            (panels[2], ("gamma", "effective_rate", "never_seen") if has_table else ("age_mean", "drift")),
        ]
        for panel, names in shown:
            for name in names:
                points = [(entry["step"], entry[name]) for entry in self.history if name in entry]
                if points:
                    panel.plot(*zip(*points, strict=True), marker=".", label=name.replace("_", " "))
            panel.set(xlabel="step of the table", yscale="log" if panel is panels[1] else "linear")
            if panel.lines:
                panel.legend()
        if path is not None:
            figure.savefig(path)
        return figure


def _at(rate: Any, where: Any) -> Any:
    return rate(where) if callable(rate) else rate


def sum_of_squared_weights(gamma: float, visits: Tensor) -> Tensor:
    """Σ weights² of the estimates that a row holds after so many visits: its variance, as a share of one estimate's."""
    first = (1 - gamma) ** (2 * (visits - 1))
    return first + (1 - first) * gamma / (2 - gamma)
