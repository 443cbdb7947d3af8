"""``solve``: the methods of the paper on a problem."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fcco._checks import whole_number
from fcco._rules import Gamma
from fcco.optim import Projection
from fcco.projections import Regulariser
from fcco.solvers import _checkpoint
from fcco.solvers._interrupts import deferred
from fcco.solvers._plan import Given, Schedule, Stage, make_plan
from fcco.solvers._problem import Problem
from fcco.solvers._progress import progress_bar
from fcco.solvers._run import Run, noted
from fcco.solvers._solution import Solution, State
from fcco.theory import Parameters

Callback = Callable[[State], bool | None]


def solve(
    problem: Problem,
    method: str = "sox",
    *,
    outer_batch: int = 1,
    inner_batch: int = 1,
    steps: int | None = None,
    lr: Schedule | None = None,
    beta: Schedule | None = None,
    gamma: Gamma | None = None,
    stages: Iterable[Stage | Parameters] | None = None,
    pass_on: str = "last",
    epsilon: float | None = None,
    gap: float | None = None,
    mu: float | None = None,
    radius: float | None = None,
    diameter: float | None = None,
    projection: Projection | None = None,
    regulariser: Regulariser | None = None,
    estimate_all: bool = False,
    safeguard: bool = True,
    record_every: int | None = None,
    record_at: Iterable[int] | None = None,
    callback: Callback | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: int | None = None,
    random_state: int | torch.Generator = 0,
) -> Solution:
    r"""Solve a problem by one of the paper's algorithms, as written.

    A step draws ``outer_batch`` different rows and ``inner_batch`` samples of the inner set of each, lets the method's
    rule update u, and then

    .. math:: v = (1 - \beta) v + \beta G, \qquad
        w^+ = \arg\min_{w \in \Omega} \langle v, w \rangle + R(w) + \tfrac{1}{2 \mathrm{lr}} \|w - w_t\|^2

    which is w - lr v where there is neither a set Omega nor a regulariser R. v starts at 0 and u_i at the first
    estimate of g_i, when row i is first drawn (MOAP: at 0); the theorems have an estimate of every row at the start, as
    ``estimate_all`` has.

    =================== ===============================================================================================
    method              what it is
    =================== ===============================================================================================
    ``scgd``, ``nasa``  all n rows of u at every step, which costs ``n * inner_batch`` samples
    ``soap``, ``moap``  the sampled rows of u; MOAP decays the others
    ``bsgd``            no u
    ``sox``             Algorithm 1. Theorem 1 chooses all four rates from ``epsilon``, the norm of the gradient
    ``sox-boost``       Algorithm 2: SOX in stages, w, u and v carried over. Theorem 2 chooses the stages from
                        ``epsilon``, the excess of F, and ``mu``. With ``radius`` instead, F is only convex, and the
                        corollary's F + mu/2 |w|^2 is minimised, mu = 2 epsilon / radius^2: F is then up to 2 epsilon
    ``projected``       SOX without momentum over a convex set. Theorem 3, about the average of the iterates, chooses
                        from ``epsilon`` and ``diameter``
    ``strongly-convex`` SOX without momentum on F + R. Theorem 4, about the average of the iterates, chooses
                        lr = 1 / (mu (t + 1)) and gamma = 1 / (1 + B1/n (t + 1)), and leaves ``steps`` to you
    =================== ===============================================================================================

    SCGD, SOAP, BSGD, ``projected`` and ``strongly-convex`` have no momentum and ignore ``beta``; BSGD ignores
    ``gamma`` as well.

    Args:
        problem: what to solve.
        method: a name of the table, in upper or lower case.
        outer_batch: B1, rows a step, drawn without replacement.
        inner_batch: B2, inner samples a row.
        steps: how many.
        lr: step size, a number or a function of the step (0 at the first).
        beta: rate of the gradient's moving average, likewise.
        gamma: rate of the table's moving average, likewise; see :mod:`fcco.schedules`.
        stages: for ``sox-boost``, in place of ``epsilon`` and ``mu``: their step sizes and lengths.
        pass_on: for ``sox-boost``, which w a stage hands to the next (and the last one to you). ``"last"`` is what
            Algorithm 2 says. ``"random"``, one of the T_k iterates, drawn uniformly, with the u and v estimated at it,
            is what its proof speaks of; the stage ends there, with a step of lr 0. ``"average"`` is the mean of the
            stage's iterates with the last u and v: for convex F it is no worse than the random one in F, but the
            proof's bounds on the errors of u and v do not cover it.
        epsilon: accuracy, from which the theorem of the method chooses what is not given; needs ``problem.constants``.
        gap: F(start) - min F or more, for Theorems 1 and 2; computed where the problem knows its optimum.
        mu: for Theorem 2, such that |grad F|^2 >= 2 mu (F - min F).
        radius: for the corollary, a bound on the norm of a minimiser.
        diameter: for Theorem 3, that of the set.
        projection: maps w to the nearest point of a closed convex set Omega; see :mod:`fcco.projections`.
        regulariser: R, by its proximal step; see :class:`fcco.projections.Regulariser`. With a projection as well, the
            step is P(prox(w)). That is the minimum above for the squared norm with any set, and for the elastic net
            with boxes and balls around 0.
        estimate_all: estimate every row of u before the first step, for ``n * inner_batch`` samples. It is the row's
            first estimate, and the first of a :class:`fcco.schedules.RunningMean`.
        safeguard: in log space, floor the row that SOX differentiates at; see :class:`fcco.SOX`. False is the paper's
            letter, as problems without ``log`` always have it.
        record_every: add to the history every so many steps, and at the end; by default at the start and the end only.
            F is computed exactly for it, where the problem can.
        record_at: the steps to add to the history instead, in any order.
        callback: called after every step with a :class:`State`; the run ends where it returns True.
        progress: show a progress bar (tqdm's, where it is installed) on stderr.
        checkpoint: a file to save the run to when it ends, and to go on from if it exists. The result is that of an
            uninterrupted run, bit for bit. It is saved as well when Ctrl-C ends the run, which waits for the present
            step to end, or when the callback or the problem raises.
        checkpoint_every: save every so many steps as well.
        random_state: a seed, or the generator to draw from.

    Raises:
        TypeError: an argument of the wrong type.
        OSError: the checkpoint cannot be written.
        ValueError: a value out of range, something that the method needs and that is neither given nor known, a start
            outside the set, a theorem that does not cover the projection or the regulariser, or a checkpoint that is
            none or belongs to another run.

    >>> noise = torch.tensor([-1.0, 1.0])
    >>> problem = Problem(
    ...     n=4,
    ...     inner=lambda w, rows, generator, inner_batch: w[0]
    ...     + noise[torch.randint(2, (len(rows), inner_batch), generator=generator)].mean(1),
    ...     outer=lambda u, index: (u - index) ** 2 / 2,
    ...     start=torch.zeros(1),
    ...     exact_inner=lambda w: w.expand(4),
    ... )
    >>> solution = solve(problem, "sox", outer_batch=2, steps=400, lr=0.02, beta=0.1, gamma=0.1, record_every=100)
    >>> abs(solution.weights - 1.5) < 0.2  # the mean of 0, 1, 2, 3
    tensor([True])
    >>> solution.history["inner_evaluations"]
    [0, 200, 400, 600, 800]

    Reference: Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022.
    """
    given = Given(
        outer_batch=outer_batch,
        inner_batch=inner_batch,
        steps=steps,
        lr=lr,
        beta=beta,
        gamma=gamma,
        stages=stages,
        pass_on=pass_on,
        epsilon=epsilon,
        gap=gap,
        mu=mu,
        radius=radius,
        diameter=diameter,
        projection=projection,
        regulariser=regulariser,
        estimate_all=estimate_all,
        safeguard=safeguard,
    )
    plan = make_plan(problem, method, given)
    recorder = _Recorder.of(record_every, record_at)
    saved_every = None if checkpoint_every is None else whole_number("checkpoint_every", checkpoint_every)
    if saved_every is not None and checkpoint is None:
        raise ValueError(f"checkpoint_every={checkpoint_every!r} needs checkpoint=, a file to save to")
    generator = random_state if isinstance(random_state, torch.Generator) else _seeded(random_state)
    if checkpoint is None:
        run = Run(problem, plan, generator)
        return _loop(run, recorder, callback, progress, None)
    path = Path(checkpoint)
    _checkpoint.check_writable(path)
    identity = _checkpoint.identify(problem, plan, generator, recorder.identity())
    keeper = _Keeper(path, identity, saved_every)
    saved = _checkpoint.load(path, identity)
    run = Run(problem, plan, generator)
    if saved is not None:
        run.load_state_dict(saved)
    return _loop(run, recorder, callback, progress, keeper)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(whole_number("random_state", seed, least=0))


@dataclass(frozen=True)
class _Recorder:
    """Says when the history grows."""

    every: int | None
    at: frozenset[int] | None

    @classmethod
    def of(cls, every: int | None, at: Iterable[int] | None) -> _Recorder:
        if every is not None and at is not None:
            raise ValueError("record_every= and record_at= are two ways to say the same: give one")
        if at is not None:
            if not isinstance(at, Iterable):
                raise TypeError(f"record_at must be the steps to record at, such as [10, 100], got {at!r}")
            return cls(None, frozenset(whole_number("record_at", step, least=0) for step in at))
        return cls(None if every is None else whole_number("record_every", every), None)

    def due(self, step: int, at_end: bool) -> bool:
        if self.at is not None:
            return step in self.at
        return at_end or step == 0 or (self.every is not None and step % self.every == 0)

    def identity(self) -> dict[str, Any]:
        return {"record_every": self.every, "record_at": None if self.at is None else sorted(self.at)}


@dataclass(frozen=True)
class _Keeper:
    """Says when a run is saved, and saves it."""

    path: Path
    identity: dict[str, Any]
    every: int | None

    def due(self, step: int) -> bool:
        return self.every is not None and step % self.every == 0

    def save(self, run: Run) -> None:
        _checkpoint.save(self.path, self.identity, run.state_dict())

    @contextmanager
    def rescuing(self, run: Run) -> Iterator[None]:
        """Save the run if what is done within raises, and leaves it whole."""
        try:
            yield
        except BaseException:
            if run.is_whole:
                self.save(run)
            raise


def _loop(run: Run, recorder: _Recorder, callback: Callback | None, progress: bool, keeper: _Keeper | None) -> Solution:
    bar = progress_bar(progress, run.plan.steps, run.step, run.plan.method)
    if run.step == 0 and not run.history["step"] and recorder.due(0, at_end=run.finished):
        run.record()
    with deferred(keeper is not None) as check_interrupt:
        try:
            while not run.finished:
                with _rescuing(keeper, run):
                    check_interrupt()
                    _advance(run)
                bar.update(1)
                if recorder.due(run.step, at_end=run.finished):
                    run.record()
                if keeper is not None and keeper.due(run.step):
                    keeper.save(run)
                with _rescuing(keeper, run):
                    if callback is not None and callback(run.state()):
                        break
        finally:
            bar.close()
        # The end of a run that was stopped is not in the history of one that goes on: it is recorded after the save.
        if keeper is not None:
            keeper.save(run)
    if not run.finished and recorder.due(run.step, at_end=True) and run.history["step"][-1:] != [run.step]:
        run.record()
    return run.solution()


def _rescuing(keeper: _Keeper | None, run: Run) -> AbstractContextManager[None]:
    return nullcontext() if keeper is None else keeper.rescuing(run)


def _advance(run: Run) -> None:
    with noted(f"in step {run.step} of {run.plan.method} on {run.problem.name} (the first is 0)"):
        run.advance()
