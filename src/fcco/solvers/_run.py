"""A run: all that changes while a problem is solved, one step, and what is recorded of it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fcco._checks import check_finite, check_inner, shape_of
from fcco._coupled import CoupledLoss
from fcco._rules import is_per_row
from fcco.distributed import configure
from fcco.optim import MovingAverageSGD
from fcco.solvers._plan import Plan
from fcco.solvers._problem import Problem
from fcco.solvers._sampling import draw_rows
from fcco.solvers._solution import History, Solution, State

_COUNTERS = ("step", "stage", "stage_step", "stage_steps", "inner_evaluations", "outer_evaluations", "seconds")
_MEASURED = ("objective", "average_objective", "gradient_norm", "tracking_error")


@contextmanager
def noted(where: str) -> Iterator[None]:
    """Say where in the run an error was raised."""
    try:
        yield
    except Exception as error:
        error.add_note(where)
        raise


class Run:
    """A problem on its way to being solved by a plan, between two steps.

    ``is_whole`` says so: it is False only while a step changes what belongs together, or if that failed.
    """

    def __init__(self, problem: Problem, plan: Plan, generator: torch.Generator) -> None:
        self.problem, self.plan, self.generator = problem, plan, generator
        self.weights = problem.start.detach().clone().requires_grad_()
        self.average = problem.start.detach().clone()
        # The table counts visits if one of the stages asks for them.
        gammas = sorted((stage.gamma for stage in plan.stages), key=is_per_row)
        loss_fn = CoupledLoss(problem.outer, problem.n, problem.dim, plan.rule(gammas[-1]), problem.log)
        self.loss_fn = configure(loss_fn, alone=True)  # a solver runs in one process
        self.loss_fn.to(problem.start.device)
        self.optimizer = MovingAverageSGD(
            [self.weights],
            lr=0.0,
            beta=1.0,
            weight_decay=plan.convexifier,
            projection=self._nearest if plan.is_composite else None,
        )
        self._all_rows = torch.arange(problem.n if self.loss_fn.rule.all_rows else 0, device=problem.start.device)
        self.step = self.stage = self.stage_step = self.stage_steps = 0
        self.inner_evaluations = self.outer_evaluations = 0
        self.seconds = 0.0
        self.is_whole = True
        columns = ("step", "stage", "inner_evaluations", "seconds", *_MEASURED)
        self.history: History = {column: [] for column in columns}
        self._enter_stage(0)
        if plan.estimate_all:
            with noted(f"in the first estimate of all rows of {problem.name}"):
                self._estimate_all()

    @property
    def finished(self) -> bool:
        """Whether all stages are."""
        return self.stage == len(self.plan.stages)

    def advance(self) -> None:
        """Take a step. If the problem or a schedule raises, nothing has changed."""
        begun = time.perf_counter()
        drawn_before = self.generator.get_state()
        self.is_whole = False
        try:
            rates = self._rates()
            rows, evaluated, inner = self._draw()
            loss = self.loss_fn(inner, rows)
        except Exception:
            # The engine refuses before it changes anything.
            self.generator.set_state(drawn_before)
            self.is_whole = True
            raise
        self._move(loss, *rates)
        self.step += 1
        self.stage_step += 1
        self.inner_evaluations += evaluated * self.plan.inner_batch
        self.outer_evaluations += len(rows)
        if self.stage_step == self.stage_steps:
            self._leave_stage()
        self.is_whole = True
        self.seconds += time.perf_counter() - begun

    def _rates(self) -> tuple[float, float]:
        lr, beta = self.plan.stages[self.stage].rates(self.stage_step)
        # What is passed on is w with the u and v that were estimated at it: the step that would leave it is not taken.
        passed_on = self.plan.pass_on == "random" and self.stage_step == self.stage_steps - 1
        return 0.0 if passed_on else lr, beta

    def _draw(self) -> tuple[Tensor, int, Tensor]:
        """The rows of the outer batch, how many are evaluated, and the estimates of these."""
        rows = draw_rows(self.problem.n, self.plan.outer_batch, self.generator).to(self.weights.device)
        evaluated = self._all_rows if self.loss_fn.rule.all_rows else rows
        inner = self.problem.inner(self.weights, evaluated, self.generator, self.plan.inner_batch)
        if isinstance(inner, Tensor) and not inner.requires_grad:
            raise ValueError("inner must depend on w, differentiably: its value has no gradient")
        return rows, len(evaluated), inner

    def _move(self, loss: Tensor, lr: float, beta: float) -> None:
        # The mean of the iterates up to this one; the stage's first replaces what the last stage left.
        self.average.lerp_(self.weights.detach(), 1 / (self.stage_step + 1))
        self.optimizer.param_groups[0].update(lr=lr, beta=beta)
        self.weights.grad = None
        loss.backward()
        self.optimizer.step()

    @torch.no_grad()
    def _estimate_all(self) -> None:
        rows = torch.arange(self.problem.n, device=self.weights.device)
        inner = self.problem.inner(self.weights, rows, self.generator, self.plan.inner_batch)
        inner = check_inner(inner, self.problem.dim)
        if len(inner) != len(rows):
            raise ValueError(f"inner {shape_of(inner)} and rows {shape_of(rows)} differ in length")
        check_finite(inner, self.problem.log)
        table = self.loss_fn.table
        table.promote(inner.dtype)
        table.write(rows, inner.to(table.u.dtype))
        table.step.zero_()  # which counts the steps of the run
        self.inner_evaluations += len(rows) * self.plan.inner_batch

    def _nearest(self, w: Tensor) -> Tensor:
        return self.plan.nearest(w, self.optimizer.param_groups[0]["lr"])

    def _enter_stage(self, stage: int) -> None:
        self.stage, self.stage_step = stage, 0
        if self.finished:
            return
        self._set_rule()
        self.stage_steps = self.plan.stages[stage].steps
        if self.plan.pass_on == "random" and self.stage_steps:
            # To stop at a random step is to pass on a random iterate, without the steps that come after it.
            device = self.generator.device
            self.stage_steps = 1 + int(torch.randint(self.stage_steps, (), generator=self.generator, device=device))
        if self.stage_steps == 0:
            self._enter_stage(stage + 1)

    def _leave_stage(self) -> None:
        if self.plan.pass_on == "average":
            with torch.no_grad():
                self.weights.copy_(self.average)
        self._enter_stage(self.stage + 1)

    def _set_rule(self) -> None:
        gamma, begun = self.plan.stages[self.stage].gamma, self.step - self.stage_step
        if callable(gamma) and not is_per_row(gamma):
            # The engine counts the steps of all stages.
            self.loss_fn.rule = self.plan.rule(lambda step: gamma(step - begun))
        else:
            self.loss_fn.rule = self.plan.rule(gamma)

    def record(self) -> None:
        """Add a row to the history."""
        spent = {"step": self.step, "stage": self.stage, "inner_evaluations": self.inner_evaluations}
        row: dict[str, float] = {**spent, "seconds": self.seconds, **dict.fromkeys(_MEASURED, math.nan)}
        w = self.weights.detach()
        if self.problem.is_exact:
            row["objective"], row["gradient_norm"] = self._objective(w), self._gradient_norm(w)
            row["average_objective"] = self._objective(self.average)
        if self.problem.exact_inner is not None:
            row["tracking_error"] = self._tracking_error(self.problem.exact_inner(w).detach())
        for column, value in row.items():
            self.history[column].append(value)

    @torch.no_grad()
    def _objective(self, w: Tensor) -> float:
        value = self.problem.value(w) + self.plan.penalty(w)
        return float(value if self.plan.regulariser is None else value + self.plan.regulariser(w))

    def _gradient_norm(self, w: Tensor) -> float:
        at = w.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self.problem.value(at) + self.plan.penalty(at), at)
        return float((w - self.plan.nearest(w - gradient, 1.0)).norm() if self.plan.is_composite else gradient.norm())

    def _tracking_error(self, exact: Tensor) -> float:
        table, start = self.loss_fn.table, self.loss_fn.rule.start
        values = table.read(None, cold=table.space.value(0.0 if start is None else start))
        exact = exact.reshape(values.shape)
        errors = values.exp() - exact.exp() if table.log else values - exact
        squares = errors.square().reshape(table.n, -1).sum(1)
        return float(squares[table.visited(None).bool()].mean() if start is None else squares.mean())

    def state(self) -> State:
        """What a callback is shown."""
        return State(
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
        """What the caller is given."""
        return Solution(
            weights=self.weights.detach().clone(),
            average=self.average.clone(),
            history=self.history,
            steps=self.step,
            inner_evaluations=self.inner_evaluations,
            outer_evaluations=self.outer_evaluations,
            seconds=self.seconds,
            stopped_early=not self.finished,
            method=self.plan.method,
            stages=self.plan.stages,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a run needs to go on, as tensors, numbers, lists and dicts of them."""
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
        """Go on where the saved run was."""
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
