"""``solve``: the methods of the paper on a problem."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from fcco._checks import whole_number
from fcco._extras import progress_bar
from fcco.core.rules import Gamma, Rule
from fcco.optim import Projection
from fcco.projections import Regulariser
from fcco.solvers._algorithm import make_algorithm
from fcco.solvers._checkpoint import Checkpoint, CheckpointFile, check_writable, deferred_interrupts, identify
from fcco.solvers._chosen import SolveOptions
from fcco.solvers._problem import Problem
from fcco.solvers._settings import Accuracy, SOXBoost, StepSize
from fcco.solvers._solution import Solution, SolverState
from fcco.solvers._solver import Solver, noted

Callback = Callable[[SolverState], bool | None]


def solve(
    problem: Problem,
    method: str | Rule | SOXBoost = "sox",
    *,
    outer_batch: int = 1,
    inner_batch: int = 1,
    steps: int | None = None,
    lr: StepSize | None = None,
    beta: StepSize | None = None,
    gamma: Gamma | None = None,
    accuracy: Accuracy | None = None,
    projection: Projection | None = None,
    regulariser: Regulariser | None = None,
    estimate_all: bool = False,
    safeguard: bool = True,
    record: int | Iterable[int] | None = None,
    callback: Callback | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None,
    random_state: int | torch.Generator = 0,
) -> Solution:
    r"""Solve a problem with one of the paper's algorithms, as written, or with any update rule.

    A step draws ``outer_batch`` different rows, and ``inner_batch`` samples of the inner set of each. The method's
    rule updates u. Then

    .. math:: v = (1 - \beta) v + \beta G, \qquad
        w^+ = \arg\min_{w \in \Omega} \langle v, w \rangle + R(w) + \tfrac{1}{2 \mathrm{lr}} \|w - w_t\|^2

    Without a set :math:`\Omega` and a regulariser R, the new w is w - lr v.

    Parameters
    ----------
    problem : Problem
        What to solve.
    method : str, Rule or SOXBoost, default "sox"
        The algorithm: a name from the table in the notes, in upper or lower case; a rule such as ``fcco.SOAP(0.1)`` or
        one of your own; or a :class:`solvers.SOXBoost` with its stages.
    outer_batch : int, default 1
        B1, the number of rows in a step. They are drawn without replacement.
    inner_batch : int, default 1
        B2, the number of inner samples for each row.
    steps : int, optional
        Number of steps.
    lr : float or callable, optional
        Step size: a number, or a function of the step. The first step is 0.
    beta : float or callable, optional
        Rate of the gradient's moving average, given in the same way. Methods without momentum ignore it. With a rule
        the default is 1, which is no momentum.
    gamma : float or callable, optional
        Rate of the table's moving average, given in the same way. See :mod:`fcco.schedules`. BSGD ignores it, and a
        rule has a rate of its own.
    accuracy : solvers.Accuracy, optional
        The accuracy to reach. The theorem of the method then chooses those of ``steps``, ``lr``, ``beta`` and
        ``gamma`` that are not given. This needs ``problem.constants``. What is given replaces the theorem's value and
        does not change the others: with fewer ``steps`` than the theorem's, the rates are still those of the long run,
        and its guarantee does not hold. A warning says if w cannot reach a minimiser in these steps.
    projection : callable, optional
        Maps w to the nearest point of a closed convex set :math:`\Omega`. See :mod:`fcco.projections`.
    regulariser : projections.Regulariser, optional
        R, which enters by its proximal step. With a projection P as well, the step is P(prox(w)). This is the minimum
        above for the squared norm with any set, and for the elastic net with boxes and with balls around 0.
    estimate_all : bool, default False
        Estimate every row of u before the first step, which takes ``n * inner_batch`` samples. This counts as the
        row's first visit, also for a :class:`fcco.schedules.RunningMean`.
    safeguard : bool, default True
        In log space, floor the row at which SOX differentiates f. See :class:`fcco.SOX`. With False, SOX follows the
        paper exactly. Without ``log`` it always does.
    record : int or iterable of int, optional
        When to add a row to the history: after every so many steps and at the end, or after the listed steps. By
        default only the start and the end are recorded. F is computed exactly for it, if the problem can.
    callback : callable, optional
        Called with a :class:`solvers.SolverState` after every step. The run ends if it returns True.
    progress : bool, default False
        Show a progress bar on stderr. This needs tqdm.
    checkpoint : str, os.PathLike or solvers.Checkpoint, optional
        A file to save the state to when the run ends, and to continue from if it exists. The result is that of an
        uninterrupted run, bit for bit. The state is also saved if Ctrl-C ends the run, which waits for the current
        step to finish, or if the callback or the problem raises an error. With a :class:`solvers.Checkpoint` it can
        be saved more often.
    random_state : int or torch.Generator, default 0
        A seed, or the generator to draw from.

    Returns
    -------
    Solution
        The weights, their average, and the history of the run.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If a value is out of range, if the method needs something that is neither given nor known, if the start is
        outside the set, if a theorem does not cover the problem, the projection, the regulariser or the safeguard, if
        the run diverges, or if the checkpoint is damaged or belongs to another run.
    OSError
        If the checkpoint cannot be written.
    ImportError
        If ``progress=True`` and tqdm is not installed.

    Notes
    -----
    =================== ===============================================================================================
    method              algorithm
    =================== ===============================================================================================
    ``scgd``, ``nasa``  update all n rows of u in every step, which costs ``n * inner_batch`` samples
    ``soap``, ``moap``  update the sampled rows of u; MOAP decays the other rows
    ``bsgd``            has no u
    ``sox``             Algorithm 1. Theorem 3 chooses all four rates from ``Accuracy(epsilon)``, where epsilon is the
                        norm of the gradient
    ``sox-boost``       Algorithm 2: SOX in stages, which carry over w, u and v. Theorem 4 chooses the stages from
                        ``Accuracy(epsilon, mu=...)``, where epsilon is the excess of F. If F is only convex,
                        ``Accuracy(epsilon, radius=...)`` minimises the corollary's F + mu/2 \|w\|^2 with
                        mu = 2 epsilon / radius^2, and the excess of F is then at most 2 epsilon
    ``projected``       SOX without momentum over a convex set. Theorem 5, which is about the average of the iterates,
                        chooses from ``Accuracy(epsilon, diameter=...)``. Its epsilon is a *weak* primal-dual gap,
                        max E[L(w_T, .) - L(., pi_T)], which does not bound the excess of F (see the notes)
    ``strongly-convex`` SOX without momentum on F + R. Theorem 7, which is about the average of the iterates, chooses
                        lr = 1 / (mu (t + 1)) and gamma = 1 / (1 + B1/n (t + 1)), and ``steps`` from
                        ``Accuracy(epsilon, diameter=..., c_r=...)``, where epsilon is the excess of F + R
    =================== ===============================================================================================

    SCGD, SOAP, BSGD, ``projected`` and ``strongly-convex`` have no momentum.

    v starts at 0. A row u_i starts at the first estimate of g_i, when row i is first drawn; for MOAP it starts at 0.
    The theorems assume an estimate of every row at the start, as ``estimate_all=True`` makes it. Theorem 4 is proved
    for stages that pass on a random iterate; by default, as in Algorithm 2, they pass on the last one
    (:class:`solvers.SOXBoost`).

    Theorems are numbered as in the extended version of the paper. There, Theorem 5 corrects Theorem 3 of the
    proceedings, which promised the strong primal-dual gap and thereby the excess of F: in its proof the maximiser over
    the dual variables depends on the draws. An argument that you give (``steps``, ``lr``, ``beta`` or ``gamma``)
    replaces what the theorem chooses, and the theorem's guarantee is then lost.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, extended version.

    Examples
    --------
    >>> noise = torch.tensor([-1.0, 1.0])
    >>> problem = Problem(
    ...     n=4,
    ...     inner=lambda w, rows, generator, inner_batch: w[0]
    ...     + noise[torch.randint(2, (len(rows), inner_batch), generator=generator)].mean(1),
    ...     outer=lambda u, index: (u - index) ** 2 / 2,
    ...     start=torch.zeros(1),
    ...     exact_inner=lambda w: w.expand(4),
    ... )
    >>> solution = solve(problem, "sox", outer_batch=2, steps=400, lr=0.02, beta=0.1, gamma=0.1, record=100)
    >>> abs(solution.weights - 1.5) < 0.2  # the mean of 0, 1, 2, 3
    tensor([True])
    >>> solution.history["inner_evaluations"]
    [0, 200, 400, 600, 800]
    """
    options = SolveOptions(
        outer_batch=outer_batch,
        inner_batch=inner_batch,
        steps=steps,
        lr=lr,
        beta=beta,
        gamma=gamma,
        accuracy=accuracy,
        projection=projection,
        regulariser=regulariser,
        estimate_all=estimate_all,
        safeguard=safeguard,
    )
    algorithm = make_algorithm(problem, method, options)
    record_steps = _RecordSteps.of(record)
    generator = random_state if isinstance(random_state, torch.Generator) else _seeded(random_state)
    file = saved = None
    if checkpoint is not None:
        checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        check_writable(Path(checkpoint.path))
        file = CheckpointFile(checkpoint, identify(problem, algorithm, generator, record_steps.identity()))
        saved = file.load()
    solver = Solver(problem, algorithm, generator)
    if saved is not None:
        solver.load_state_dict(saved)
    return _run(solver, record_steps, callback, progress, file)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(whole_number("random_state", seed, least=0))


@dataclass(frozen=True)
class _RecordSteps:
    """The steps after which the history grows: every so many, or those listed."""

    every: int | None
    listed: frozenset[int] | None

    @classmethod
    def of(cls, record: int | Iterable[int] | None) -> _RecordSteps:
        if record is None:
            return cls(None, None)
        if isinstance(record, Iterable):
            return cls(None, frozenset(whole_number("each step of record", step, least=0) for step in record))
        return cls(whole_number("record", record), None)

    def include(self, step: int, at_end: bool) -> bool:
        if self.listed is not None:
            return step in self.listed
        return at_end or step == 0 or (self.every is not None and step % self.every == 0)

    def identity(self) -> int | list[int] | None:
        return self.every if self.listed is None else sorted(self.listed)


def _run(
    solver: Solver,
    record_steps: _RecordSteps,
    callback: Callback | None,
    progress: bool,
    file: CheckpointFile | None,
) -> Solution:
    bar = progress_bar(progress, solver.algorithm.steps, solver.step, solver.algorithm.method)
    with bar as update_bar, deferred_interrupts(file is not None) as raise_if_interrupted:
        if solver.step == 0 and not solver.history["step"] and record_steps.include(0, at_end=solver.finished):
            solver.record()
        while not solver.finished:
            with _saving_on_error(file, solver):
                raise_if_interrupted()
                _advance(solver)
            update_bar(1)
            if record_steps.include(solver.step, at_end=solver.finished):
                solver.record()
            if file is not None and file.is_due(solver.step):
                file.save(solver)
            with _saving_on_error(file, solver):
                if callback is not None and callback(solver.state()):
                    break
        # A run that continues does not have the early end in its history, so the end is recorded after the save.
        if file is not None:
            file.save(solver)
    is_recorded = solver.history["step"][-1:] == [solver.step]
    if not solver.finished and not is_recorded and record_steps.include(solver.step, at_end=True):
        solver.record()
    with noted(
        f"after step {solver.step - 1} of {solver.algorithm.method} on {solver.problem.name}: a smaller lr helps"
    ):
        solver.raise_if_diverged()
    return solver.solution()


def _saving_on_error(file: CheckpointFile | None, solver: Solver) -> AbstractContextManager[None]:
    return nullcontext() if file is None else file.saving_on_error(solver)


def _advance(solver: Solver) -> None:
    with noted(f"in step {solver.step} of {solver.algorithm.method} on {solver.problem.name} (the first step is 0)"):
        solver.advance()
