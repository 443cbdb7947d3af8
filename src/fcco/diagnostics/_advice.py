"""advise: in words, whether a table helps at this batch size, and which gamma suits."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fcco.core.rules import BSGD, SOAP
from fcco.core.spaces import as_column
from fcco.diagnostics._gradients import GradientError, Sample, draw, exact_target, warn_if_few
from fcco.diagnostics._monitor import Monitor, sum_of_squared_weights
from fcco.diagnostics._probe import Evaluate, estimates, exact_rows, relative_error
from fcco.diagnostics._watch import engine_of, keeps_table
from fcco.losses.loss import Visit

# The part of a run over which a falling step size averages.
_TAIL = 0.5
# In that part a cosine lr has on average a fifth of what it began with, and so has the drift.
_LATE = 0.2
# What suits most objectives, for 2 to 160 visits of a row: docs/what_decides.md.
_USUAL = 0.7
_RATES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
# Estimates with a smaller relative error are exact, up to rounding: there is nothing to average.
_EXACT = 1e-4
# A row is not taken below this share of g, where it is to stay positive.
_LOWEST = 0.05


@dataclass(frozen=True)
class Remembered:
    """What the memory of a loss holds at present, and the gradient with it.

    Attributes
    ----------
    count : int
        How many outputs it holds.
    age : float
        How many steps ago they were made, on average; 0 if there are none.
    gradient : GradientError
        Error of the gradient of the loss as it is.
    gain : float
        Square error of the averaged gradient, as a share of the in-batch loss's.
    instead : bool
        Whether the loss has the memory instead of a table.
    """

    count: int
    age: float
    gradient: GradientError
    gain: float
    instead: bool

    def __str__(self) -> str:
        keeps = "keeps no table but remembers" if self.instead else "remembers"
        if not self.count:
            return f"The loss {keeps} outputs of recent batches, and has seen none yet: train it before you ask."
        return (
            f"The loss {keeps} {self.count} outputs of recent batches, {self.age:.3g} steps old on average. With them "
            f"the gradient has a bias of {self.gradient.bias:.0%} and a noise of {self.gradient.noise:.0%}. Averaged "
            f"over many steps, its square error is {self.gain:.0%} of that of the in-batch gradient."
        )


@dataclass(frozen=True)
class Advice:
    """What :func:`advise` found; ``str`` of it says so in words.

    Attributes
    ----------
    gamma : float
        The rate for a table: that of the loss's rule if it is a constant, else 0.7.
    gain : float
        Square error of the averaged gradient with it at the present weights, as a share of the in-batch loss's.
    gain_error : float
        Standard error of that, from the batches looked at.
    noise : float
        Relative error of the inner estimates of a batch.
    drift : float
        Relative change of g from one visit of a row to the next.
    drift_measured : bool
        False where it had to be assumed to equal the noise.
    visits : float
        Of a row in the planned run.
    in_batch : GradientError
        Error of the in-batch gradient.
    table : GradientError
        Error of the gradient with a table of that rate.
    by_gamma : dict[float, float]
        Square error of the averaged gradient at every rate looked at, as shares of the in-batch loss's.
    memory : Remembered or None
        The memory of the loss, if it has one. All other figures are those without it.
    """

    gamma: float
    gain: float
    gain_error: float
    noise: float
    drift: float
    drift_measured: bool
    visits: float
    in_batch: GradientError
    table: GradientError
    by_gamma: dict[float, float]
    memory: Remembered | None = None

    @property
    def late_drift(self) -> float:
        """The drift to be expected in the second half of the run, for a cosine lr."""
        return _LATE * self.drift

    @property
    def use_table(self) -> bool:
        """Whether a table is expected to help: whether late in the run a row averages more than it lags."""
        return _averages(self.noise, self.visits) and self.late_drift <= self.noise

    def __str__(self) -> str:
        if self.memory is None:
            sentences = [self._measured(), self._verdict(), self._snapshot()]
        elif self.memory.instead:
            sentences = [self._measured(), self._in_batch() + ".", str(self.memory)]
        else:
            sentences = [self._measured(), self._verdict(), self._snapshot(), str(self.memory)]
        return "\n".join(textwrap.fill(sentence, 100) for sentence in sentences)

    def _measured(self) -> str:
        how = "measured" if self.drift_measured else "assumed: no monitor saw a row twice"
        return (
            f"A single batch estimates g with a relative error of {self.noise:.0%}. Each row is visited "
            f"{self.visits:g} times in the run. From one visit to the next g changes by {self.drift:.0%} ({how})."
        )

    def _verdict(self) -> str:
        late = f"late in the run g changes by about {self.late_drift:.0%} between two visits"
        if self.use_table:
            when = " later in the run" if self._gradient_is() == "worse" else ""
            return (
                f"The table should help{when}: use gamma = {self.gamma:g}. {late.capitalize()}, no more than the error "
                f"of {self.noise:.0%} that a row averages."
            )
        if self.noise < _EXACT:
            reason = "The batch knows g exactly, and a table can only fall behind it."
        elif not _averages(self.noise, self.visits):
            reason = "Rows come once, and a first visit has nothing to average with."
        else:
            reason = (
                f"Even {late}, no less than the error of {self.noise:.0%} of a batch: rows are out of date when they "
                "are needed."
            )
        return f"The table does not help here: use rule=fcco.BSGD(). {reason}"

    def _gradient_is(self) -> str:
        """What the table makes of the gradient now, by the figures as they are printed."""
        share, error = (round(100 * value, 0) for value in (self.gain, self.gain_error))  # NaN at a stationary point
        return "better" if share + error < 100 else "worse" if share - error > 100 else "no different"

    def _in_batch(self) -> str:
        return (
            f"At the present weights the in-batch gradient has a bias of {self.in_batch.bias:.0%} and a noise of "
            f"{self.in_batch.noise:.0%}"
        )

    def _snapshot(self) -> str:
        now = self._in_batch()
        if not _averages(self.noise, self.visits):
            return f"{now}."
        share = f"{self.gain:.0%} (± {self.gain_error:.0%})"
        effect = {
            "better": f"the table leaves {share} of the square error.",
            "worse": f"the table raises the square error to {share}.",
            "no different": f"the square error with the table is {share} of that without: no clear difference.",
        }
        found = self._gradient_is()
        agrees = found == "no different" or (found == "better") is self.use_table
        return (
            f"{now}; with the table these are {self.table.bias:.0%} and {self.table.noise:.0%}. Averaged over many "
            f"steps, {effect[found]}"
            + ("" if agrees else " The gradient of one moment is no forecast, so the verdict does not go by it.")
        )


def _averages(noise: float, visits: float) -> bool:
    """Whether a table has anything to average: estimates with an error, and more than one of each row."""
    return noise >= _EXACT and round(visits) > 1


def row_error(gamma: float, noise: float, drift: float, visits: Tensor) -> Tensor:
    r"""Square error of a row of the table when it is read, after so many visits: averaged noise, and lag.

    .. math:: \sigma^2 \Bigl(a^2 + (1 - a^2) \frac{\gamma}{2 - \gamma}\Bigr)
        + \delta^2 \Bigl(\frac{1 - (1 - \gamma) a}{\gamma}\Bigr)^2, \qquad a = (1 - \gamma)^{m - 1}

    for a row that begins with its first estimate, of an inner value that moves by δ from each visit to the next.

    Parameters
    ----------
    gamma : float
        The rate γ.
    noise : float
        The relative error σ of an estimate.
    drift : float
        The relative change δ of g between two visits.
    visits : Tensor of shape (k,)
        Numbers of visits m, each at least 1.

    Returns
    -------
    Tensor of shape (k,)
        The square errors, relative to g².

    Examples
    --------
    >>> row_error(0.5, noise=1.0, drift=0.0, visits=torch.tensor([1.0, 2.0]))  # one estimate, the mean of two
    tensor([1.0000, 0.5000])
    >>> row_error(1.0, noise=0.0, drift=0.1, visits=torch.tensor([5.0]))  # as old as the last visit
    tensor([0.0100])
    """
    lag = (1 - (1 - gamma) ** visits) / gamma
    return noise**2 * sum_of_squared_weights(gamma, visits) + (drift * lag).square()


def measured_drift(jump: float, noise: float, gamma: float) -> float:
    """How far g moves between visits, by how far estimates lie from rows: jump² = noise² + :func:`row_error`."""
    return gamma * max(0.0, jump**2 - noise**2 * 2 / (2 - gamma)) ** 0.5


def advise(
    loss: nn.Module,
    evaluate: Evaluate,
    batches: Iterable[Sequence[int] | Tensor],
    parameters: Iterable[Tensor],
    *,
    visits: float,
    monitor: Monitor | None = None,
    population: Sequence[int] | Tensor | None = None,
    draws: int = 400,
    seed: int = 0,
) -> Advice:
    r"""Say whether a table helps at this batch size, and which gamma suits; ``print`` the result.

    At the present weights it measures σ, the noise of the inner estimates; a monitor has seen δ, the drift of g between
    two visits of a row. A table is advised where rows come more than once, and the drift late in the run will be at
    most the noise, 0.2 δ <= σ: a row then averages more than it lags. (A fifth is what a cosine lr has left, on
    average, in the second half of a run; ask in its first quarter.) The rate is the loss's own. Both are what whole
    runs showed: docs/what_decides.md has the cases, and how often the advice was right.

    Besides, it shows what a table does to the gradient now: rows with errors as a run would find them
    (:func:`row_error`) are put into a table, and the gradients of batches with it, and without, are compared with the
    exact gradient, by

    .. math:: bias^2 + noise^2 / N

    with N half of the steps of the run, since a falling step size averages noise away and leaves bias; but at most
    the number of batches looked at, since a smaller bias could not be told from chance.

    If the loss has a memory, all of this is measured without it, and the advice also says how many outputs it holds,
    how old they are, and what the gradient is with them. Where there is a memory and no table, the advice does not
    recommend a rule.

    Nothing is changed, and nothing is trained. The whole training set is evaluated as one batch.

    Parameters
    ----------
    loss : nn.Module
        A loss of fcco.
    evaluate : Evaluate
        The forward pass: ``evaluate(loss_fn, rows)`` calls ``loss_fn`` on the examples ``rows`` and returns the value.
        Inner samples must come from the rows.
    batches : Iterable[Sequence[int] | Tensor]
        Batches of rows, of the size in question, such as a sampler of :mod:`fcco.data`.
    parameters : Iterable[Tensor]
        The parameters of the model.
    visits : float
        How often a row comes in the whole run: its epochs, with a sampler of :mod:`fcco.data`.
    monitor : Monitor, optional
        Watched the loss while it was trained with such batches, until rows came twice. Without one the drift is taken
        to be as large as the noise.
    population : Sequence[int] | Tensor, optional
        The examples of the training set; ``None``: as many as the table has rows.
    draws : int, default 400
        Batches to look at, at least 4, half for errors of rows and half for gradients. ``batches`` is gone through
        several times if need be. Pass a sampler, which gives other batches in every pass: those of a list come again,
        and the chance that they have in common passes for a bias of the gradients.
    seed : int, default 0
        The seed of the errors that are put into rows.

    Returns
    -------
    Advice
        What was found.

    Raises
    ------
    ValueError
        Less than one visit, fewer than four batches, or no parameter has a gradient.

    Warns
    -----
    UserWarning
        If there are fewer than ``draws`` batches, and too few to tell a bias of 10% from chance.

    Examples
    --------
    >>> import fcco
    >>> x, rows = torch.linspace(-1, 1, 8), torch.arange(8)
    >>> w, loss_fn = torch.nn.Parameter(torch.ones(())), fcco.losses.AveragePrecisionLoss.from_targets(rows % 2)
    >>> evaluate = lambda loss_fn, rows: loss_fn(w * x[rows], rows % 2, rows)
    >>> advise(loss_fn, evaluate, [rows[:4], rows[4:]] * 4, [w], visits=20, draws=8).gamma
    0.7
    """
    if not (math.isfinite(visits) and visits >= 1):
        raise ValueError(f"visits must be a finite number, at least 1; got {visits!r}")
    drawn, distinct = draw(loss, batches, draws, least=4)
    target = exact_target(loss, evaluate, list(parameters), population)
    # Errors of rows come from other batches than those they meet.
    half = len(drawn) // 2
    seen, drawn = [estimates(loss, evaluate, rows) for rows in drawn[:half]], drawn[half:]
    errors = _Errors(exact_rows(loss, evaluate, population), seen, engine_of(loss).table.log, seed)
    drift, measured = errors.noise, monitor is not None and monitor.jump is not None
    if monitor is not None and monitor.jump is not None:
        drift = measured_drift(monitor.jump, errors.noise, monitor.gamma)
    run = _TAIL * visits * engine_of(loss).n_outer * len(seen) / sum(len(visit.rows) for visit in seen)
    steps = min(run, len(drawn))
    in_batch = held = target.sample(loss, evaluate, drawn, BSGD())
    if distinct < draws:
        warn_if_few(in_batch.error(), distinct)
    advised = _rate_of(loss)
    shares = {1.0: 1.0}
    for gamma in sorted({*_RATES, advised}) if _averages(errors.noise, visits) else ():
        sample = target.sample(loss, evaluate, drawn, SOAP(gamma), *errors.table(gamma, drift, round(visits)))
        held = sample if gamma == advised else held
        shares[gamma] = _share(sample, in_batch, steps)
    memory = None
    if engine_of(loss).memory is not None:
        memory = _remembered(loss, target.sample(loss, evaluate, drawn, memory=True), in_batch, steps)
    return Advice(
        gamma=advised,
        gain=shares.get(advised, 1.0),
        gain_error=_share_error(held, in_batch, steps),
        noise=errors.noise,
        drift=drift,
        drift_measured=measured,
        visits=visits,
        in_batch=in_batch.error(),
        table=held.error(),
        by_gamma=shares,
        memory=memory,
    )


def _remembered(loss: nn.Module, sample: Sample, in_batch: Sample, steps: float) -> Remembered:
    engine = engine_of(loss)
    assert engine.memory is not None
    ages = engine.memory.ages().double()
    age = ages.mean().item() if len(ages) else 0.0
    return Remembered(len(ages), age, sample.error(), _share(sample, in_batch, steps), not keeps_table(engine))


def _rate_of(loss: nn.Module) -> float:
    rule = engine_of(loss).rule
    return rule.rate if isinstance(rule.rate, float) and not isinstance(rule, BSGD) else _USUAL


def _share(sample: Sample, in_batch: Sample, steps: float, without: int | None = None) -> float:
    whole = in_batch.error(without).after(steps)
    return (sample.error(without).after(steps) / whole) ** 2 if whole else 1.0


def _share_error(sample: Sample, in_batch: Sample, steps: float) -> float:
    """Standard error of the share, by leaving out one part of the batches after the other."""
    parts = len(sample.sums)
    if len(sample.counts) < 3:
        return 0.0
    return jackknife_error(torch.tensor([_share(sample, in_batch, steps, without) for without in range(parts)]))


def jackknife_error(values: Tensor) -> float:
    """Standard error of a figure, by the values [k] it has with one of k parts of the sample left out."""
    return ((len(values) - 1) * values.var(correction=0)).sqrt().item()


class _Errors:
    """Errors of estimates, as they were met, to be put into rows of a table."""

    def __init__(self, g: Tensor, seen: list[Visit], log: bool, seed: int) -> None:
        rows, values = (torch.cat([visit[part] for visit in seen]) for part in (0, 1))
        known = g[rows]
        self.g, self.log, self._seed = g, log, seed
        self.noise = relative_error(values, known, log)
        # Where g is positive a row is to stay so: errors are factors then.
        self._by_factor = log or bool((known > 0).all())
        if self._by_factor:
            deviation = (values - known).nan_to_num(nan=0.0).exp() - 1 if log else values / known - 1
        else:
            deviation = values - known
        # A row has an error of its own; where none was met, that of any other.
        any_other = torch.randint(0, len(rows), (len(g),), generator=self._generator()).to(g.device)
        self._deviation = deviation[any_other].index_copy(0, rows, deviation)

    def _generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self._seed)

    def table(self, gamma: float, drift: float, visits: int) -> tuple[Tensor, Tensor]:
        """Rows as a run would find them at some moment, and which of them it would have visited."""
        before = torch.randint(0, visits, (len(self.g),), generator=self._generator())  # visits so far
        square = row_error(gamma, self.noise, drift, before.clamp(min=1).to(torch.float64)) / self.noise**2
        deviation = self._deviation * as_column(square.sqrt().to(self.g), self.g)
        if not self._by_factor:
            rows = self.g + deviation
        elif self.log:
            rows = self.g + (1 + deviation).clamp(min=_LOWEST).log()
        else:
            rows = self.g * (1 + deviation).clamp(min=_LOWEST)
        return rows.nan_to_num(nan=1.0, neginf=-math.inf), (before > 0).to(self.g.device)
