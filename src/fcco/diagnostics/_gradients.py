"""How far the gradient of a batch is from the exact one: by bias, which no averaging mends, and by noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fcco._checks import whole_number
from fcco.core.rules import BSGD, SOX, Rule
from fcco.diagnostics._probe import Evaluate, all_rows, exact_rows, probing
from fcco.diagnostics._watch import engine_of, what_is_kept

# Of a sample of batches, by which the error of an error is judged.
_PARTS = 5
# The share of the exact gradient that chance may have in a mean over few batches, before a warning.
_CHANCE = 0.1


@dataclass(frozen=True)
class GradientError:
    """Errors of the gradient of one batch, as shares of the exact gradient's norm.

    Attributes
    ----------
    bias : float
        Of the mean over batches; what chance alone would give is taken off.
    noise : float
        Deviation of a batch from that mean.
    """

    bias: float
    noise: float

    def after(self, steps: float) -> float:
        """Return the error of the mean of so many batches: the root of bias² + noise² / steps.

        Parameters
        ----------
        steps : float
            The number of batches.

        Returns
        -------
        float
            The error, as a share of the exact gradient's norm.
        """
        return math.sqrt(self.bias**2 + self.noise**2 / steps)


@dataclass(frozen=True)
class GradientBias:
    """The gradient of a batch against the exact gradient, at fixed weights.

    Attributes
    ----------
    in_batch : GradientError
        f differentiated at the batch's own estimate (``fcco.BSGD()``, without a memory).
    table : GradientError
        With the table, or the memory, as it is.
    perfect : GradientError
        f differentiated at the exact g: what the best possible table would give.
    norm : float
        Of the exact gradient; 0 at a stationary point, where the shares mean nothing.
    kept : str
        What the loss knows from earlier steps: "table", "memory", or "table and memory".
    """

    in_batch: GradientError
    table: GradientError
    perfect: GradientError
    norm: float
    kept: str = "table"

    def __str__(self) -> str:
        rows = [("in-batch", self.in_batch), (self.kept, self.table), ("perfect table", self.perfect)]
        width = max(14, len(self.kept) + 1)
        lines = [f"{name:<{width}}{error.bias:>8.3f}{error.noise:>9.3f}" for name, error in rows]
        return "\n".join([f"{'gradient':<{width}}{'bias':>8}{'noise':>9}", *lines])


def gradient_bias(
    loss: nn.Module,
    evaluate: Evaluate,
    batches: Iterable[Sequence[int] | Tensor],
    parameters: Iterable[Tensor],
    *,
    exact: Callable[[], Tensor] | None = None,
    population: Sequence[int] | Tensor | None = None,
    draws: int = 200,
) -> GradientBias:
    """Compare the gradients of batches, with the table or memory and without, with the exact gradient.

    Neither the loss, nor its table or memory, nor the weights change. The exact gradient and the exact g come from one
    batch of the whole training set. (Put the model into ``eval()`` if its forward pass keeps statistics or drops
    units.)

    Parameters
    ----------
    loss : nn.Module
        A loss of fcco, with the table or memory as training has left it.
    evaluate : Evaluate
        The forward pass: ``evaluate(loss_fn, rows)`` calls ``loss_fn`` on the examples ``rows`` and returns the value.
    batches : Iterable[Sequence[int] | Tensor]
        Batches of rows, such as a sampler of :mod:`fcco.data` or ``loader.batch_sampler``.
    parameters : Iterable[Tensor]
        The parameters of the model.
    exact : Callable[[], Tensor], optional
        The exact objective, such as ``lambda: fcco.functional.cox_loss(model(x), time, event)``, for training sets that
        are too large for one batch, and where ``evaluate`` draws inner samples of its own.
    population : Sequence[int] | Tensor, optional
        The examples of the training set; ``None``: as many as the table has rows.
    draws : int, default 200
        Batches to look at, at least 2. ``batches`` is gone through several times if need be, as long as each pass gives
        other batches, as a sampler does. A list always gives the same ones, and is gone through once.

    Returns
    -------
    GradientBias
        The errors of the gradient. Printing it prints a table.

    Raises
    ------
    ValueError
        Fewer than two batches, or no parameter has a gradient.

    Warns
    -----
    UserWarning
        If there are fewer than ``draws`` batches, and too few to tell a bias of 10% from chance.

    Examples
    --------
    >>> import fcco
    >>> x, y = torch.linspace(-1, 1, 40), torch.arange(40) % 2
    >>> w = torch.ones((), requires_grad=True)
    >>> loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(y, memory=0)
    >>> evaluate = lambda loss_fn, rows: loss_fn(x[rows] * w, y[rows], rows)
    >>> print(gradient_bias(loss_fn, evaluate, [range(40), range(40)], [w]))  # batches of all data are exact
    gradient          bias    noise
    in-batch         0.000    0.000
    table            0.000    0.000
    perfect table    0.000    0.000
    """
    # Batches that come again would count as independent ones, and what chance they have in common as a bias.
    drawn, distinct = draw(loss, batches, draws)
    drawn = drawn[:distinct]
    target = exact_target(loss, evaluate, list(parameters), population, exact)
    if distinct < 2:
        raise _too_few(2, distinct)
    # Rows that are never outer ones are never read.
    g = exact_rows(loss, evaluate, population).nan_to_num(nan=1.0, neginf=-math.inf)
    in_batch = target.sample(loss, evaluate, drawn, BSGD()).error()
    if len(drawn) < draws:
        warn_if_few(in_batch, len(drawn))
    return GradientBias(
        in_batch=in_batch,
        table=target.sample(loss, evaluate, drawn, memory=True).error(),
        perfect=target.sample(loss, evaluate, drawn, SOX(gamma=1.0, safeguard=False), g).error(),
        norm=target.gradient.norm().item(),
        kept=what_is_kept(engine_of(loss)),
    )


@dataclass(frozen=True)
class Target:
    """The exact gradient, and the parameters it is that of."""

    parameters: list[Tensor]
    gradient: Tensor

    def sample(
        self,
        loss: nn.Module,
        evaluate: Evaluate,
        batches: list[Tensor],
        rule: Rule | None = None,
        rows: Tensor | None = None,
        known: Tensor | None = None,
        *,
        memory: bool = False,
    ) -> Sample:
        """Return the gradients of a loss on batches, which may have another rule and table: see :func:`probing`."""
        sums = self.gradient.new_zeros(min(_PARTS, len(batches)), len(self.gradient))
        squares, counts = sums.new_zeros(len(sums)), sums.new_zeros(len(sums))
        # The seed is kept, so that all see the same where the forward pass draws samples.
        with torch.random.fork_rng(devices=[]), probing(loss, rule, rows, known, memory=memory):
            for k, batch in enumerate(batches):
                gradient, part = _gradient(evaluate(loss, batch), self.parameters), k % len(sums)
                sums[part] += gradient
                squares[part] += gradient.square().sum()
                counts[part] += 1
        return Sample(self.gradient, sums, squares, counts)


@dataclass(frozen=True)
class Sample:
    """Gradients of batches in a few parts, as sums: there is no room for all gradients of a large model."""

    target: Tensor  # [d]
    sums: Tensor  # [parts, d]
    squares: Tensor  # [parts]
    counts: Tensor  # [parts]

    def error(self, without: int | None = None) -> GradientError:
        """The errors, of all parts but one."""
        kept = torch.arange(len(self.sums), device=self.sums.device) != (-1 if without is None else without)
        count = self.counts[kept].sum()
        mean = self.sums[kept].sum(0) / count
        variance = ((self.squares[kept].sum() - count * mean.square().sum()) / (count - 1)).clamp(min=0)
        bias = ((mean - self.target).square().sum() - variance / count).clamp(min=0)
        norm = self.target.norm().clamp(min=torch.finfo(mean.dtype).tiny)
        return GradientError((bias.sqrt() / norm).item(), (variance.sqrt() / norm).item())


def exact_target(
    loss: nn.Module,
    evaluate: Evaluate,
    parameters: list[Tensor],
    population: Sequence[int] | Tensor | None = None,
    exact: Callable[[], Tensor] | None = None,
) -> Target:
    """The gradient of the exact objective, which is the in-batch loss of all data."""
    trained = [p for p in parameters if p.requires_grad]
    if exact is None:
        everyone = all_rows(loss) if population is None else torch.as_tensor(population)
        with probing(loss, BSGD()):
            value = evaluate(loss, everyone)
    else:
        value = exact()
    return Target(trained, _gradient(value, trained))


class Drawn(NamedTuple):
    """Batches to look at, as tensors of rows."""

    batches: list[Tensor]
    distinct: int
    """How many there are before the first pass comes again, as that over a list does."""


def draw(loss: nn.Module, batches: Iterable[Sequence[int] | Tensor], draws: int, least: int = 2) -> Drawn:
    """So many batches; fewer, where they can be gone through only once."""
    device, count = engine_of(loss).table.u.device, whole_number("draws", draws, least)
    drawn: list[Tensor] = []
    distinct = None
    while len(drawn) < count:
        more = [_as_rows(rows, device) for rows in islice(batches, count - len(drawn))]
        if not more:
            break
        if distinct is None and drawn and all(map(torch.equal, more, drawn)):
            distinct = len(drawn)
        drawn += more
    if len(drawn) < least:
        raise _too_few(least, len(drawn))
    return Drawn(drawn, len(drawn) if distinct is None else distinct)


def _too_few(least: int, count: int) -> ValueError:
    return ValueError(f"batches must give at least {least} batches; got {count}")


def warn_if_few(in_batch: GradientError, count: int) -> None:
    """Warn if so few batches cannot tell a small bias of the in-batch gradient from chance."""
    chance = in_batch.noise / math.sqrt(count)
    if chance > _CHANCE:
        warnings.warn(
            f"batches has only {count} batches to look at, and a bias below about {chance:.0%} cannot be told from "
            "chance: pass more of them, or a sampler of fcco.data, which draws others in every pass",
            stacklevel=3,
        )


def _as_rows(rows: Sequence[int] | Tensor, device: torch.device) -> Tensor:
    return torch.as_tensor(rows if isinstance(rows, Tensor) else list(rows), device=device)


def _gradient(value: Tensor, parameters: list[Tensor]) -> Tensor:
    if not parameters or not value.requires_grad:
        raise ValueError("the loss does not depend on any parameter that requires a gradient")
    parts = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
    return torch.cat([part.reshape(-1).double() for part in parts])
