"""Every learning rate and every seed of a method, advanced together: the engine sees R problems of n rows as one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fcco import METHODS, CoupledLoss
from fcco.optim import MovingAverageSGD
from fcco_reproduce.quick._objectives import PENALTY, Batch, Objective


class RunsByRate:
    """One method at every learning rate, each with the same seeds; a run that diverges stays where it began.

    Parameters
    ----------
    objective : Objective
        What to minimise.
    method : str
        A name of ``fcco.METHODS``.
    rates : tuple of float
        Learning rates, at the start of a cosine.
    starts : Tensor
        Where the seeds of each rate begin, [S, k, d].
    steps : int
        How many there will be.
    batch : int
        B1 = B2.
    gamma : float
        Of the table, where the method has one.
    beta : float
        Of the gradient's average, where the method has one.
    seed : int
        Of all draws; the rates see the same batches.

    Examples
    --------
    >>> from fcco_reproduce.quick._objectives import make
    >>> runs = RunsByRate(make("p-norm push"), "SOX", (0.01, 0.1), torch.zeros(3, 1, 10), steps=5, batch=4)
    >>> runs.step()
    >>> runs.weights.shape, runs.diverged.any().item()
    (torch.Size([6, 1, 10]), False)
    """

    def __init__(
        self,
        objective: Objective,
        method: str,
        rates: tuple[float, ...],
        starts: Tensor,
        *,
        steps: int,
        batch: int,
        gamma: float = 0.1,
        beta: float = 0.1,
        seed: int = 0,
    ) -> None:
        self.objective, self.batch, self.seeds = objective, batch, len(starts)
        self.parameters = [starts.clone().requires_grad_() for _ in rates]
        self.count = len(rates) * self.seeds
        rule = METHODS[method].rule(gamma)
        self.loss_fn = CoupledLoss(
            objective.outer, self.count * objective.n, objective.dim, rule=rule, log=objective.log
        )
        self.loss_fn._refuses_overflow = False  # which would be the step of all runs for one
        groups = [{"params": [w], "lr": lr} for w, lr in zip(self.parameters, rates, strict=True)]
        self.optimizer = MovingAverageSGD(groups, lr=0.0, beta=METHODS[method].beta(beta), weight_decay=PENALTY)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.generator = torch.Generator().manual_seed(seed)
        self.diverged = torch.zeros(self.count, dtype=torch.bool)
        self.per_step = batch * (objective.n if rule.all_rows else batch)
        self._offsets = objective.n * torch.arange(self.count)[:, None]
        self._every = torch.arange(objective.n).expand(self.count, -1)

    @property
    def weights(self) -> Tensor:
        """w of every run, [R, k, d], the seeds of a rate together."""
        return torch.cat([w.detach() for w in self.parameters])

    def step(self) -> None:
        """One step of every run."""
        drawn = self._draw()
        rows = self._every if self.loss_fn.rule.all_rows else drawn.sampled
        estimate = self._checked(self.objective.inner(torch.cat(self.parameters), rows, drawn)).flatten(0, 1)
        self.optimizer.zero_grad()
        # The engine's mean is over all runs; each wants its own.
        (self.count * self.loss_fn(estimate, (drawn.sampled + self._offsets).flatten())).backward()
        self._hold_diverged()
        self.optimizer.step()
        self.scheduler.step()

    def _draw(self) -> Batch:
        first, second = (
            torch.rand(self.seeds, size, generator=self.generator)
            .topk(min(size, self.batch))
            .indices.repeat(len(self.parameters), 1)
            for size in self.objective.sets
        )
        return Batch((first, second)[self.objective.shared], first, second)

    def _checked(self, estimate: Tensor) -> Tensor:
        """Return the estimates, with a harmless value for runs that have diverged."""
        values = estimate.detach()
        good = (values < math.inf) if self.objective.log else values.isfinite()
        self.diverged |= ~good.all(2).all(1)
        return estimate.masked_fill(self.diverged[:, None, None], 1.0) if self.diverged.any() else estimate

    def _hold_diverged(self) -> None:
        if not self.diverged.any():
            return
        for w, out in zip(self.parameters, self.diverged.split(self.seeds), strict=True):
            state = self.optimizer.state[w]
            for tensor in (w.data, w.grad, *(state.values() if state else ())):
                if tensor is not None:
                    tensor[out] = 0.0


def optimum(objective: Objective, start: Tensor, iterations: int) -> float:
    """Return the least value that L-BFGS finds from ``start`` [k, d], in the precision of the objective."""
    w = start[None].clone().requires_grad_()
    optimizer = torch.optim.LBFGS([w], max_iter=iterations, tolerance_change=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = objective.value(w).sum()
        value.backward()
        return value

    optimizer.step(closure)
    return float(objective.value(w.detach()))
