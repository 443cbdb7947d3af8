"""Many runs of one method on one problem, advanced together: the engine sees S problems of n rows as one of S n."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from fcco import METHODS, CoupledLoss
from fcco.core.outers import takes_index
from fcco.optim import MovingAverageSGD
from fcco.projections import Regulariser
from fcco.solvers.problems import KnownProblem


class Replicas:
    """S independent runs; all that is random differs between them, and nothing else.

    Parameters
    ----------
    problem : KnownProblem
        What to solve.
    method : str
        A name of ``fcco.METHODS``.
    count : int
        S.
    outer_batch : int
        B1, of each run.
    inner_batch : int
        B2.
    seed : int
        Of all draws.
    every_row : bool
        Begin with an estimate of every row from ``inner_batch`` samples, as the theorems do; otherwise a row
        begins at its first visit, as in :func:`fcco.solve`.
    regulariser : Regulariser or None
        Taken into account by its proximal step.
    factors : Tensor or None
        [S], by which every run's lr is multiplied; None is 1 for all.

    Examples
    --------
    >>> from fcco.solvers.problems import pseudo_huber
    >>> runs = Replicas(pseudo_huber(n=8), "SOX", count=3, outer_batch=4, inner_batch=2, seed=0)
    >>> runs.step(lr=0.1, beta=0.5, gamma=0.5)
    >>> runs.weights.shape, runs.tracking_error().shape
    (torch.Size([3, 4]), torch.Size([3]))
    """

    def __init__(
        self,
        problem: KnownProblem,
        method: str,
        *,
        count: int,
        outer_batch: int,
        inner_batch: int,
        seed: int,
        every_row: bool = False,
        regulariser: Regulariser | None = None,
        factors: Tensor | None = None,
    ) -> None:
        self.problem, self.method, self.count = problem, METHODS[method], count
        self.outer_batch, self.inner_batch = outer_batch, inner_batch
        self.regulariser, self.factors = regulariser, factors
        self.generator = torch.Generator().manual_seed(seed)
        self.parameter = problem.start.repeat(count, 1).requires_grad_()
        rows = count * problem.n
        self.loss_fn = CoupledLoss(_outer(problem), rows, problem.dim, rule=self.method.rule(1.0), log=problem.log)
        self.loss_fn._refuses_overflow = False  # of one run, which would be the step of all
        self.optimizer = MovingAverageSGD(
            [self.parameter], lr=0.0, beta=1.0, projection=None if regulariser is None else self._prox
        )
        self._inner = vmap(problem.inner, in_dims=(0, 0, None, None), randomness="different")
        self._offsets = problem.n * torch.arange(count)[:, None]
        self._all_rows = torch.arange(problem.n).expand(count, -1)
        self.inner_evaluations = 0
        if every_row:
            self.loss_fn.table.promote(problem.start.dtype)
            self.loss_fn.table.write(None, self._estimate(self._all_rows))

    def step(self, *, lr: float, beta: float, gamma: float) -> None:
        """One step of every run; beta and gamma are ignored by methods without."""
        group = self.optimizer.param_groups[0]
        group["lr"], group["beta"] = lr, self.method.beta(beta)
        self.loss_fn.rule = self.method.rule(gamma)
        drawn = torch.rand(self.count, self.problem.n, generator=self.generator).topk(self.outer_batch).indices
        inner = self._estimate(self._all_rows if self.loss_fn.rule.all_rows else drawn)
        self.parameter.grad = None
        # The engine's mean is over all runs; each wants its own.
        (self.count * self.loss_fn(inner, (drawn + self._offsets).flatten())).backward()
        if self.factors is not None and self.parameter.grad is not None:
            self.parameter.grad.mul_(self.factors[:, None])
        self.optimizer.step()

    def _estimate(self, rows: Tensor) -> Tensor:
        self.inner_evaluations += rows.shape[1] * self.inner_batch
        return self._inner(self.parameter, rows, self.generator, self.inner_batch).flatten(0, 1)

    def _prox(self, w: Tensor) -> Tensor:
        assert self.regulariser is not None
        return self.regulariser.prox(w, self.optimizer.param_groups[0]["lr"])

    @property
    def weights(self) -> Tensor:
        """w of every run, [S, d]."""
        return self.parameter.detach()

    @property
    def direction(self) -> Tensor:
        """v of every run, [S, d]."""
        state = self.optimizer.state[self.parameter]
        return state["average"] if state else torch.zeros_like(self.weights)

    @property
    def table(self) -> Tensor:
        """u of every run, [S, n, dim]; a row without an estimate is 0."""
        return self.loss_fn.table.read(None, cold=0.0).reshape(self.count, self.problem.n, -1)

    def squared_gradient(self) -> Tensor:
        """|grad F(w)|^2 of every run, [S]."""
        return vmap(grad(self.problem.value))(self.weights).square().sum(dim=1)

    def objective(self) -> Tensor:
        """F(w) of every run, [S]."""
        return vmap(self.problem.value)(self.weights)

    def excess(self) -> Tensor:
        """F(w) - F* of every run, [S]."""
        assert self.problem.optimum is not None
        return self.objective() - self.problem.value(self.problem.optimum)

    def tracking_error(self, at: Tensor | None = None) -> Tensor:
        """Return Xi of every run, [S]: the mean over rows of |u_i - g_i(w)|^2, at the present w or at others [S, d]."""
        assert self.problem.exact_inner is not None
        w = self.weights if at is None else at
        exact = vmap(self.problem.exact_inner)(w).reshape(self.count, self.problem.n, -1)
        return (self.table - exact).square().sum(dim=2).mean(dim=1)


def _outer(problem: KnownProblem) -> Any:
    if not takes_index(problem.outer):
        return problem.outer
    return lambda u, index: problem.outer(u, index % problem.n)
