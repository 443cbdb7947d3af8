"""Run the cases of applications, in parallel and resumed, and gather them into tables."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import applications
from applications._application import LIMIT, Application, Case, Entry, Method, Result, Table, Tuned, tune
from fcco_reproduce import Task, run_tasks
from fcco_reproduce._cache import Cache


def names() -> list[str]:
    """The applications: every module of the package without an underscore."""
    found = sorted(module.name for module in pkgutil.iter_modules(applications.__path__))
    return [name for name in found if not name.startswith("_")]


def load(name: str) -> Application:
    """The application of that name."""
    found: Application = importlib.import_module(f"applications.{name}").APPLICATION
    return found


def tune_case(name: str, case: dict[str, Any], method: str, seeds: int, version: int, quick: bool) -> Any:
    """What a method comes to in a case, for :class:`Entry`; ``version`` only tells old results from new ones."""
    application, row = load(name), Case(**case)
    tuned = next(m.tuned for m in application.methods(row) if m.name == method)
    if tuned:
        return tune(partial(application.run, row, method), application.lr(row), seeds, limit=1 if quick else LIMIT)
    only = Tuned(0.0, [application.run(row, method, 0.0, seed) for seed in range(seeds)])
    return only, only


def tasks_of(name: str, *, quick: bool = False) -> list[tuple[Case, Method, Task]]:
    """The work of an application, one task for every case and method."""
    application = load(name)
    found = []
    for case in (application.quick,) if quick else application.cases:
        for method in application.methods(case):
            if method.available:
                ran = case if method.batched else replace(case, batch=0)
                settings = {"name": name, "case": asdict(ran), "method": method.name, "quick": quick}
                settings |= {"seeds": 1 if quick else application.seeds, "version": application.version}
                found.append((case, method, Task(tune_case, settings, cost=case.passes / max(ran.batch, 1))))
    return found


def measure(
    chosen: Sequence[str], *, quick: bool = False, workers: int = 1, cache: Path | None, progress: TextIO | None = None
) -> dict[str, Table]:
    """The tables of the applications named."""
    plan = [(name, *item) for name in chosen for item in tasks_of(name, quick=quick)]
    results = run_tasks([item[3] for item in plan], workers=workers, cache=cache, progress=progress)
    return _gather(chosen, plan, results)


def measured(chosen: Sequence[str], cache: Path) -> tuple[dict[str, Table], list[str]]:
    """The tables of what is finished, and the rows of which something is missing."""
    known = Cache(cache).results
    plan = [(name, *item) for name in chosen for item in tasks_of(name)]
    unfinished = {(name, case) for name, case, _, task in plan if task.key not in known}
    plan = [item for item in plan if item[:2] not in unfinished]
    places: dict[str, list[int]] = {}
    for name, case in unfinished:
        places.setdefault(f"{load(name).title}: {case.where}", []).append(case.batch)
    missing = [f"{place} (batch {', '.join(map(str, sorted(sizes)))})" for place, sizes in sorted(places.items())]
    return _gather(chosen, plan, [known[item[3].key] for item in plan]), missing


def _gather(chosen: Sequence[str], plan: list[tuple[str, Case, Method, Task]], results: list[Any]) -> dict[str, Table]:
    tables: dict[str, Table] = {name: {} for name in chosen}
    for (name, case, method, _), runs in zip(plan, results, strict=True):
        entry = Entry(method, *(Tuned(lr, [Result(*result) for result in some]) for lr, some in runs))
        tables[name].setdefault(case, {})[method.name] = entry
    return tables


def absent(chosen: Sequence[str]) -> dict[str, set[str]]:
    """Methods that were left out, by the package that they need."""
    methods = {m for name in chosen for case in load(name).cases for m in load(name).methods(case)}
    needs = {method.needs for method in methods if not method.available}
    return {need: {method.name for method in methods if method.needs == need} for need in sorted(needs)}
