"""Checkpoints of ``solve``: files that are written atomically, and that only the same call continues from."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco._describe import describe
from fcco.core.outers import takes_index
from fcco.core.rules import Gamma, is_per_row
from fcco.projections import Regulariser
from fcco.solvers._algorithm import Algorithm, GivenRule
from fcco.solvers._problem import Problem
from fcco.solvers._settings import Stage
from fcco.solvers._solver import Solver

_PROBED = 8  # number of rows and entries by which problems and sets are compared
_FAR = 1e6  # a distance that leaves any bounded set of practical interest


@dataclass(frozen=True)
class Checkpoint:
    """The file that :func:`fcco.solve` saves its state to, and how often.

    Parameters
    ----------
    path : str or os.PathLike
        The file.
    every : int, optional
        Save after every so many steps. By default only the end is saved. An interrupt or an error also saves the
        state.

    Raises
    ------
    TypeError, ValueError
        If ``every`` is not a positive integer.

    Examples
    --------
    >>> Checkpoint("run.pt", every=100)
    Checkpoint(path='run.pt', every=100)
    """

    path: str | os.PathLike[str]
    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None:
            object.__setattr__(self, "every", whole_number("every", self.every))


class CheckpointFile:
    """A checkpoint of one particular call of ``solve``.

    Parameters
    ----------
    checkpoint : Checkpoint
        The file, and how often to save.
    identity : dict
        What tells this call from others. See :func:`identify`.
    """

    def __init__(self, checkpoint: Checkpoint, identity: dict[str, Any]) -> None:
        self.path, self.every, self.identity = Path(checkpoint.path), checkpoint.every, identity

    def is_due(self, step: int) -> bool:
        """Return whether to save after this number of steps."""
        return self.every is not None and step % self.every == 0

    def save(self, solver: Solver) -> None:
        """Replace the file. The previous file stays in place until the new one is complete."""
        part, content = _part(self.path), {"identity": self.identity, "run": solver.state_dict()}
        try:
            with part.open("wb") as file:
                torch.save({**content, "checksum": _checksum(content)}, file)
                file.flush()
                os.fsync(file.fileno())
            part.replace(self.path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def load(self) -> dict[str, Any] | None:
        """Return the saved state, or None if there is no file yet.

        Raises
        ------
        ValueError
            If the file is not a checkpoint, is damaged, or belongs to another call.
        """
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            try:
                saved = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:  # bytes of another format can make the unpickler raise any error
                raise self._unusable() from error
        # torch.load takes bits that have flipped since as they are.
        if not isinstance(saved, dict) or saved.pop("checksum", None) != _checksum(saved):
            raise self._unusable()
        for name in self.identity | saved["identity"]:
            theirs, ours = saved["identity"].get(name), self.identity.get(name)
            if not _same(theirs, ours):
                raise ValueError(
                    f"{self.path} belongs to another run: its {name} is {_difference(theirs, ours)}. "
                    "Give another file, or the same arguments"
                )
        return saved["run"]

    def _unusable(self) -> ValueError:
        return ValueError(
            f"{self.path} is not a checkpoint of fcco.solve, or is damaged: put a copy of it in its place, or remove "
            "it to start again"
        )

    @contextmanager
    def saving_on_error(self, solver: Solver) -> Iterator[None]:
        """Save the state if the block raises and leaves the state consistent."""
        try:
            yield
        except BaseException:
            if solver.is_consistent:
                self.save(solver)
            raise


def check_writable(path: Path) -> None:
    """Raise an OSError if the file cannot be written, before any work is done that could be lost."""
    part = _part(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a directory")
        part.touch()
        part.unlink()
    except OSError as error:
        raise OSError(f"the checkpoint {path} cannot be written: {error}") from error


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


@contextmanager
def deferred_interrupts(active: bool) -> Iterator[Callable[[], None]]:
    """Let Ctrl-C take effect between two steps, where the state can be saved.

    The context manager yields a function. A first Ctrl-C waits until that function is called, or until the block ends.
    A second Ctrl-C does not wait. Signals are left alone if ``active`` is False, in threads, which receive none, and in
    programs that have their own handler of Ctrl-C.
    """
    in_main_thread = active and threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None
        return
    pressed = False

    def press(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    def raise_if_pressed() -> None:
        if pressed:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, press)
    try:
        yield raise_if_pressed
    finally:
        signal.signal(signal.SIGINT, previous)
    raise_if_pressed()


def identify(problem: Problem, algorithm: Algorithm, generator: torch.Generator, record: Any) -> dict[str, Any]:
    """Return what tells a call of ``solve`` from others. Functions are compared by some of their values."""
    return {
        "problem": problem.name,
        "n": problem.n,
        "dim": problem.dim,
        "log": problem.log,
        "start": _digest(problem.start),
        "inner and outer function": _probe_functions(problem, generator.device),
        "method": algorithm.method,
        "rule": describe(algorithm.rule.rule) if isinstance(algorithm.rule, GivenRule) else None,
        "outer_batch": algorithm.outer_batch,
        "inner_batch": algorithm.inner_batch,
        "pass_on": algorithm.pass_on,
        "estimate_all": algorithm.estimate_all,
        "safeguard": algorithm.safeguard,
        "mu of the convexifier": algorithm.convexifier,
        "regulariser": _probe_regulariser(algorithm.regulariser, problem.start),
        "projection": [_sketch(algorithm.projection(w)) for w in _points(problem.start)]
        if algorithm.projection
        else None,
        "number of stages": len(algorithm.stages),
        "steps": [stage.steps for stage in algorithm.stages],
        "lr": [rates[0] for stage in algorithm.stages for rates in _probe_rates(stage)],
        "beta": [rates[1] for stage in algorithm.stages for rates in _probe_rates(stage)],
        "gamma": [rate for stage in algorithm.stages for rate in _probe_gamma(stage.gamma, stage.steps)],
        "seed": generator.initial_seed(),
        "record": record,
    }


def _probe_functions(problem: Problem, device: torch.device) -> list[float]:
    """Return some inner values and their f. They are drawn from a separate generator."""
    rows = torch.arange(min(problem.n, _PROBED), device=problem.start.device)
    with torch.no_grad():
        inner = problem.inner(problem.start, rows, torch.Generator(device).manual_seed(0), 1)
        inner = inner.reshape(-1) if problem.dim == 1 else inner
        outer = problem.outer(inner, rows) if takes_index(problem.outer) else problem.outer(inner)
    return _some(inner) + _some(outer)


def _points(start: Tensor) -> Iterator[Tensor]:
    """Yield points on all sides, near and far, at which sets and regularisers are compared."""
    far = min(_FAR, torch.finfo(start.dtype).max ** 0.5)
    yield from (start + far, start - far)
    generator = torch.Generator().manual_seed(0)
    for distance in (0.1, 1.0, 10.0, far / 10):
        steps = torch.randn(start.shape, generator=generator, dtype=torch.float64)
        yield start + (distance * steps).to(start)


def _probe_regulariser(regulariser: Regulariser | None, start: Tensor) -> list[Any] | None:
    if regulariser is None:
        return None
    values = [[float(regulariser(w)), *_sketch(regulariser.prox(w, 1.0))] for w in _points(start)]
    return [type(regulariser).__qualname__, float(regulariser.mu), *values]


def _probed_steps(steps: int) -> list[int]:
    return sorted({0, min(1, max(steps - 1, 0)), steps // 2, max(steps - 1, 0)})


def _probe_rates(stage: Stage) -> list[tuple[float, float]]:
    return [stage.rates(step) for step in _probed_steps(stage.steps)]


def _probe_gamma(gamma: Gamma, steps: int) -> list[float]:
    if not callable(gamma):
        return [float(gamma)]
    if is_per_row(gamma):
        return torch.as_tensor(gamma(torch.tensor([0.0, 1.0, 10.0]))).tolist()
    return [float(gamma(step)) for step in _probed_steps(steps)]


def _sketch(values: Tensor) -> list[float]:
    """Return some values, and weighted sums of the positive and of the negative ones, so that nothing cancels."""
    flat = values.detach().reshape(-1).to("cpu", torch.float64)
    weights = torch.rand(len(flat), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [*_some(values), float(weights @ flat.clamp(min=0)), float(weights @ flat.clamp(max=0))]


def _some(values: Tensor) -> list[float]:
    return values.detach().reshape(-1)[:_PROBED].tolist()


def _digest(values: Tensor) -> str:
    data = values.detach().cpu().contiguous()
    return hashlib.sha256(f"{data.dtype}{list(data.shape)}".encode() + data.numpy().tobytes()).hexdigest()


def _checksum(content: Any) -> str:
    """Return a digest of dicts and lists of numbers, texts and tensors."""

    def told(value: Any) -> str:
        if isinstance(value, dict):
            value = [*value.items()]
        if isinstance(value, list | tuple):
            return f"[{','.join(map(told, value))}]"
        return _digest(value) if isinstance(value, Tensor) else repr(value)

    return hashlib.sha256(told(content).encode()).hexdigest()


def _difference(theirs: Any, ours: Any) -> str:
    """Return two values that differ, or, of two lists of one length, the first entries that do."""
    if isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours) and not _same(theirs, ours):
        place = next(place for place, (a, b) in enumerate(zip(theirs, ours, strict=True)) if not _same(a, b))
        if isinstance(theirs[place], list):
            return _difference(theirs[place], ours[place])
        return f"{brief(theirs[place])} at position {place}, not {brief(ours[place])}"
    return f"{brief(theirs)}, not {brief(ours)}"


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, up to the rounding errors of another machine."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)
