"""The solver: everything that changes while a problem is solved, one step of it, and what is recorded of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fcco._checks import NotFiniteError, check_finite, check_inner, raise_if_not_finite, shape_of
from fcco.core.rules import is_per_row
from fcco.distributed import configure
from fcco.losses.coupled import CoupledLoss
from fcco.optim import MovingAverageSGD
from fcco.solvers._algorithm import Algorithm
from fcco.solvers._problem import Problem
from fcco.solvers._solution import History, Solution, SolverState

_COUNTERS = ("step", "stage", "stage_step", "stage_steps", "inner_evaluations", "outer_evaluations", "seconds")
_MEASURED = ("objective", "average_objective", "gradient_norm", "tracking_error")


def draw_rows(n: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw ``size`` different rows out of n, so that every set of rows is equally likely, in O(size) time.

    Examples
    --------
    >>> draw_rows(10**12, 3, torch.Generator().manual_seed(0)).unique().shape
    torch.Size([3])
    """
    device = generator.device
    if 2 * size > n:
        return torch.randperm(n, generator=generator, device=device)[:size]
    # These are the first `size` different rows of a sequence of draws. On average at most half of the draws repeat.
    rows: dict[int, None] = {}
    while len(rows) < size:
        draws = torch.randint(n, (size - len(rows),), generator=generator, device=device)
        rows.update(dict.fromkeys(draws.tolist()))
    return torch.tensor(list(rows), device=device)


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Add to an error a note that says where it was raised."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


class Solver:
    """The state of an algorithm on a problem.

    Parameters
    ----------
    problem : Problem
        What to solve.
    algorithm : Algorithm
        How to solve it.
    generator : torch.Generator
        Source of all random draws.

    Attributes
    ----------
    is_consistent : bool
        Whether the state is that between two steps, so that it can be saved. It is False while a step changes parts
        of the state that belong together, and stays False if that fails.
    """

    def __init__(self, problem: Problem, algorithm: Algorithm, generator: torch.Generator) -> None:
        self.problem, self.algorithm, self.generator = problem, algorithm, generator
        self.weights = problem.start.detach().clone().requires_grad_()
        self.average = problem.start.detach().clone()
        # The table counts visits if the gamma of any stage needs them.
        gammas = sorted((stage.gamma for stage in algorithm.stages), key=is_per_row)
        loss_fn = CoupledLoss(problem.outer, problem.n, problem.dim, rule=algorithm.rule(gammas[-1]), log=problem.log)
        self.loss_fn = configure(loss_fn, alone=True)  # a solver runs in a single process
        self.loss_fn.to(problem.start.device)
        self.optimizer = MovingAverageSGD(
            [self.weights],
            lr=0.0,
            beta=1.0,
            weight_decay=algorithm.convexifier,
            projection=self._nearest if algorithm.is_composite else None,
        )
        self._all_rows = torch.arange(problem.n if self.loss_fn.rule.all_rows else 0, device=problem.start.device)
        self.step = self.stage = self.stage_step = self.stage_steps = 0
        self.inner_evaluations = self.outer_evaluations = 0
        self.seconds = 0.0
        self.is_consistent = True
        columns = ("step", "stage", "inner_evaluations", "seconds", *_MEASURED)
        self.history: History = {column: [] for column in columns}
        self._enter_stage(0)
        if algorithm.estimate_all:
            with noted(f"in the first estimate of all rows of {problem.name}"):
                self._estimate_all()

    @property
    def finished(self) -> bool:
        """Whether all stages are finished."""
        return self.stage == len(self.algorithm.stages)

    def advance(self) -> None:
        """Take a step. If ``inner``, ``outer`` or a schedule raises an error, the state is unchanged."""
        begun = time.perf_counter()
        drawn_before = self.generator.get_state()
        self.is_consistent = False
        try:
            rates = self._rates()
            rows, evaluated, inner = self._draw()
            loss = self.loss_fn(inner, rows)
        except Exception as error:
            # The engine checks its input before it changes anything.
            self.generator.set_state(drawn_before)
            self.is_consistent = True
            if isinstance(error, NotFiniteError) and self.step:
                self.raise_if_diverged()
                error.add_note("if the run diverges, a smaller lr helps")
            raise
        if not loss.requires_grad:
            raise ValueError("outer must return a differentiable function of u; got a value without a gradient")
        self._move(loss, *rates)
        self.step += 1
        self.stage_step += 1
        self.inner_evaluations += evaluated
        self.outer_evaluations += len(rows)
        if self.stage_step == self.stage_steps:
            self._leave_stage()
        self.is_consistent = True
        self.seconds += time.perf_counter() - begun

    def _rates(self) -> tuple[float, float]:
        lr, beta = self.algorithm.stages[self.stage].rates(self.stage_step)
        if lr > (largest := torch.finfo(self.weights.dtype).max):
            raise ValueError(f"lr must be at most {largest:.3g}, the largest {self.weights.dtype}; got {lr:g}")
        # The w that is passed on must be the one at which u and v were estimated, so the last step does not move it.
        passed_on = self.algorithm.pass_on == "random" and self.stage_step == self.stage_steps - 1
        return 0.0 if passed_on else lr, beta

    def _draw(self) -> tuple[Tensor, int, Tensor]:
        """Return the rows of the outer batch, the number of inner samples evaluated, and the inner estimates."""
        rule, size = self.loss_fn.rule, self.algorithm.inner_batch
        rows = draw_rows(self.problem.n, self.algorithm.outer_batch, self.generator).to(self.weights.device)
        evaluated = self._all_rows if rule.all_rows else rows
        inner = self.problem.inner(self.weights, evaluated, self.generator, size)
        if isinstance(inner, Tensor) and not inner.requires_grad:
            raise ValueError("inner must return a differentiable function of w; got a value without a gradient")
        return rows, len(evaluated) * size, inner

    def _move(self, loss: Tensor, lr: float, beta: float) -> None:
        # The average covers the iterates of this stage up to the present one. The first one replaces the old average.
        self.average.lerp_(self.weights.detach(), 1 / (self.stage_step + 1))
        self.optimizer.param_groups[0].update(lr=lr, beta=beta)
        self.weights.grad = None
        loss.backward()
        self.optimizer.step()

    def raise_if_diverged(self) -> None:
        """Refuse weights that are not finite, and say which step led to them."""
        try:
            raise_if_not_finite(self.weights, log=False, name="weights")
        except NotFiniteError as error:
            gradient, last = self.weights.grad, self.step - 1
            reason = f"step {last} diverged, which a smaller lr prevents"
            if gradient is not None and not gradient.isfinite().all():
                reason += f", or the gradient of outer or inner is not finite: that of step {last} is not"
            raise NotFiniteError(f"{error} after step {last}: {reason}", error.name, error.place, error.value) from None

    @torch.no_grad()
    def _estimate_all(self) -> None:
        rows = torch.arange(self.problem.n, device=self.weights.device)
        inner = self.problem.inner(self.weights, rows, self.generator, self.algorithm.inner_batch)
        inner = check_inner(inner, self.problem.dim)
        if len(inner) != len(rows):
            raise ValueError(
                f"inner must return one value for each of {len(rows)} rows; got the shape {shape_of(inner)}"
            )
        check_finite(inner, self.problem.log)
        table = self.loss_fn.table
        table.promote(inner.dtype)
        table.write(rows, inner.to(table.u.dtype))
        table.step.zero_()  # it counts the steps of the run
        self.inner_evaluations += len(rows) * self.algorithm.inner_batch

    def _nearest(self, w: Tensor) -> Tensor:
        return self.algorithm.nearest(w, self.optimizer.param_groups[0]["lr"])

    def _enter_stage(self, stage: int) -> None:
        self.stage, self.stage_step = stage, 0
        if self.finished:
            return
        self._set_rule()
        self.stage_steps = self.algorithm.stages[stage].steps
        if self.algorithm.pass_on == "random" and self.stage_steps:
            # Stopping at a random step passes on a random iterate, and saves the steps after it.
            device = self.generator.device
            self.stage_steps = 1 + int(torch.randint(self.stage_steps, (), generator=self.generator, device=device))
        if self.stage_steps == 0:
            self._enter_stage(stage + 1)

    def _leave_stage(self) -> None:
        if self.algorithm.pass_on == "average":
            with torch.no_grad():
                self.weights.copy_(self.average)
        self._enter_stage(self.stage + 1)

    def _set_rule(self) -> None:
        gamma, begun = self.algorithm.stages[self.stage].gamma, self.step - self.stage_step
        if callable(gamma) and not is_per_row(gamma):
            # The engine counts the steps of all stages, but a schedule starts at 0 in each stage.
            self.loss_fn.rule = self.algorithm.rule(lambda step: gamma(step - begun))
        else:
            self.loss_fn.rule = self.algorithm.rule(gamma)

    def record(self) -> None:
        """Add a row to the history."""
        spent = {"step": self.step, "stage": self.stage, "inner_evaluations": self.inner_evaluations}
        row: dict[str, float] = {**spent, "seconds": self.seconds, **dict.fromkeys(_MEASURED, math.nan)}
        w = self.weights.detach()
        if self.problem.is_exact:
            row["objective"], row["gradient_norm"] = self._objective(w), self._gradient_norm(w)
            row["average_objective"] = self._objective(self.average)
        if self.problem.exact_inner is not None:
            row["tracking_error"] = self._tracking_error(self.problem._exact_values(w).detach())
        for column, value in row.items():
            self.history[column].append(value)

    @torch.no_grad()
    def _objective(self, w: Tensor) -> float:
        value = self.problem.value(w) + self.algorithm.penalty(w)
        return float(value if self.algorithm.regulariser is None else value + self.algorithm.regulariser(w))

    def _gradient_norm(self, w: Tensor) -> float:
        at = w.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.problem.value(at) + self.algorithm.penalty(at), at)
        if self.algorithm.is_composite:
            gradient = w - self.algorithm.nearest(w - gradient, 1.0)
        return float(gradient.norm())

    def _tracking_error(self, exact: Tensor) -> float:
        table, start = self.loss_fn.table, self.loss_fn.rule.start
        values = table.read(None, cold=table.space.value(0.0 if start is None else start))
        exact = exact.reshape(values.shape)
        errors = values.exp() - exact.exp() if table.log else values - exact
        squares = errors.square().reshape(table.n, -1).sum(1)
        return float(squares[table.visited(None).bool()].mean() if start is None else squares.mean())

    def state(self) -> SolverState:
        """Return what a callback receives."""
        return SolverState(
            self.step,
            self.stage,
            self.weights.detach(),
            self.average,
            self.loss_fn.table,
            self.inner_evaluations,
            self.seconds,
            self.history,
        )

    def solution(self) -> Solution:
        """Return what the caller of ``solve`` receives."""
        return Solution(
            weights=self.weights.detach().clone(),
            average=self.average.clone(),
            history=self.history,
            steps=self.step,
            inner_evaluations=self.inner_evaluations,
            outer_evaluations=self.outer_evaluations,
            seconds=self.seconds,
            stopped_early=not self.finished,
            method=self.algorithm.method,
            stages=self.algorithm.stages,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue, as tensors, numbers, lists and dicts of them."""
        return {
            "counters": {name: getattr(self, name) for name in _COUNTERS},
            "weights": self.weights.detach(),
            "average": self.average,
            "table": self.loss_fn.table.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "history": self.history,
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Continue from a saved state."""
        for name, value in saved["counters"].items():
            setattr(self, name, value)
        with torch.no_grad():
            self.weights.copy_(saved["weights"])
            self.average.copy_(saved["average"])
        self.loss_fn.table.load_state_dict(saved["table"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.generator.set_state(saved["generator"])
        self.history = saved["history"]
        if not self.finished:
            self._set_rule()
