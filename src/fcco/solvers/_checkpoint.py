"""Runs on disk: written whole or not at all, and only read by the run they belong to."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as brief
from typing import Any

import torch
from torch import Tensor

from fcco._outer import takes_index
from fcco._rules import Gamma, is_per_row
from fcco.projections import Regulariser
from fcco.solvers._plan import Plan, Stage
from fcco.solvers._problem import Problem

_PROBED = 8  # rows and entries that tell a problem or a set from another
_FAR = 1e6  # outside of any set that matters


def check_writable(path: Path) -> None:
    """Refuse a file that could not be written, before there is something to lose."""
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


def save(path: Path, identity: dict[str, Any], run: dict[str, Any]) -> None:
    """Write a checkpoint in place of the last one, which stays until the new one is complete."""
    part = _part(path)
    try:
        with part.open("wb") as file:
            torch.save({"identity": identity, "run": run}, file)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def load(path: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The saved run, or None where there is none yet.

    Raises:
        ValueError: the file is no checkpoint, or a damaged one, or belongs to another run.
    """
    if not path.exists():
        return None
    with path.open("rb") as file:
        try:
            saved = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # there is no saying what bytes of another format lead the unpickler to
            raise ValueError(f"{path} is not a checkpoint of fcco.solve, or is damaged") from error
    if not isinstance(saved, dict) or saved.keys() != {"identity", "run"}:
        raise ValueError(f"{path} is not a checkpoint of fcco.solve")
    for name in identity | saved["identity"]:
        theirs, ours = saved["identity"].get(name), identity.get(name)
        if not _same(theirs, ours):
            raise ValueError(f"{path} belongs to another run: its {name} is {brief(theirs)}, not {brief(ours)}")
    return saved["run"]


def identify(problem: Problem, plan: Plan, generator: torch.Generator, recorded: dict[str, Any]) -> dict[str, Any]:
    """What tells this run from others. Functions are compared by some of their values."""
    return {
        "problem": problem.name,
        "n": problem.n,
        "dim": problem.dim,
        "log": problem.log,
        "start": _digest(problem.start),
        "inner and outer function": _probe_functions(problem, generator.device),
        "method": plan.method,
        "outer_batch": plan.outer_batch,
        "inner_batch": plan.inner_batch,
        "pass_on": plan.pass_on,
        "estimate_all": plan.estimate_all,
        "safeguard": plan.safeguard,
        "mu of the convexifier": plan.convexifier,
        "regulariser": None if plan.regulariser is None else _probe_regulariser(plan.regulariser, problem.start),
        "projection": [_sketch(plan.projection(w)) for w in _points(problem.start)] if plan.projection else None,
        "number of stages": len(plan.stages),
        "steps": [stage.steps for stage in plan.stages],
        "lr": [rates[0] for stage in plan.stages for rates in _probe_rates(stage)],
        "beta": [rates[1] for stage in plan.stages for rates in _probe_rates(stage)],
        "gamma": [rate for stage in plan.stages for rate in _probe_gamma(stage.gamma, stage.steps)],
        "seed": generator.initial_seed(),
        **recorded,
    }


def _probe_functions(problem: Problem, device: torch.device) -> list[float]:
    """Some inner values and f of them, on draws of their own."""
    rows = torch.arange(min(problem.n, _PROBED), device=problem.start.device)
    with torch.no_grad():
        inner = problem.inner(problem.start, rows, torch.Generator(device).manual_seed(0), 1)
        inner = inner.reshape(-1) if problem.dim == 1 else inner
        outer = problem.outer(inner, rows) if takes_index(problem.outer) else problem.outer(inner)
    return _some(inner) + _some(outer)


def _points(start: Tensor) -> Iterator[Tensor]:
    """Points at which sets and regularisers are told apart: on all sides, near and far."""
    far = min(_FAR, torch.finfo(start.dtype).max ** 0.5)
    yield from (start + far, start - far)
    generator = torch.Generator().manual_seed(0)
    for distance in (0.1, 1.0, 10.0, far / 10):
        steps = torch.randn(start.shape, generator=generator, dtype=torch.float64)
        yield start + (distance * steps).to(start)


def _probe_regulariser(regulariser: Regulariser, start: Tensor) -> list[Any]:
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
    """Some of the values, and weighted sums of all, in which nothing cancels."""
    flat = values.detach().reshape(-1).to("cpu", torch.float64)
    weights = torch.rand(len(flat), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return [*_some(values), float(weights @ flat.clamp(min=0)), float(weights @ flat.clamp(max=0))]


def _some(values: Tensor) -> list[float]:
    return values.detach().reshape(-1)[:_PROBED].tolist()


def _digest(values: Tensor) -> str:
    data = values.detach().cpu().contiguous()
    return hashlib.sha256(f"{data.dtype}{list(data.shape)}".encode() + data.numpy().tobytes()).hexdigest()


def _same(a: Any, b: Any) -> bool:
    """Equal, where numbers may differ by what another machine's rounding makes of them."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-12) or (math.isnan(a) and math.isnan(b))
    return bool(a == b)
