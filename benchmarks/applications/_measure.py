"""Run the cases of applications in parallel, resume interrupted work, and collect the results in tables."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import applications
from applications._application import Application, Case, Entry, Method, Result, Table, Tuned, tune
from fcco_reproduce import Job, run_jobs
from fcco_reproduce._cache import Cache
from harness.cache import by_settings, earlier_results, make_job, sources


def names() -> list[str]:
    """Return the names of the applications: all modules of the package that do not start with an underscore."""
    found = sorted(module.name for module in pkgutil.iter_modules(applications.__path__))
    return [name for name in found if not name.startswith("_")]


def load(name: str) -> Application:
    """Return the application of that name."""
    found: Application = importlib.import_module(f"applications.{name}").APPLICATION
    return found


QUICK = {"reach": 1, "around": 1}


def tune_case(name: str, case: dict[str, Any], method: str, seeds: int, quick: bool, sources: str) -> Any:
    """Return the results of a method in a case, for :class:`Entry`.

    ``sources`` only distinguishes the results of different code.
    """
    application, row = load(name), Case(**case)
    tuned = next(m.tuned for m in application.methods(row) if m.name == method)
    if tuned:
        return tune(partial(application.run, row, method), application.lr(row), seeds, **(QUICK if quick else {}))
    only = Tuned(0.0, [application.run(row, method, 0.0, seed) for seed in range(seeds)])
    return only, only


def jobs_of(name: str, *, quick: bool = False) -> list[tuple[Case, Method, Job]]:
    """Return the jobs of an application, one for every case and method."""
    application = load(name)
    found = []
    for case in (application.quick,) if quick else application.cases:
        for method in application.methods(case):
            if method.available:
                ran = case if method.batched else replace(case, batch=0)
                settings = {"name": name, "case": asdict(ran), "method": method.name, "quick": quick}
                settings |= {"seeds": 1 if quick else application.seeds, "sources": sources(application.run)}
                found.append((case, method, make_job(tune_case, settings, cost=case.passes / max(ran.batch, 1))))
    return found


def measure(
    chosen: Sequence[str], *, quick: bool = False, workers: int = 1, cache: Path | None, progress: TextIO | None = None
) -> dict[str, Table]:
    """Return the tables of the chosen applications."""
    plan = [(name, *item) for name in chosen for item in jobs_of(name, quick=quick)]
    results = run_jobs([item[3] for item in plan], workers=workers, cache=cache, progress=progress)
    return _gather(chosen, plan, results)


def measured(chosen: Sequence[str], cache: Path, *, earlier: bool = False) -> tuple[dict[str, Table], list[str]]:
    """Return the tables of the finished rows, and the names of the rows that are not finished.

    With ``earlier``, results that other code computed with the same settings count too, such as those of an earlier
    search for the learning rate.
    """
    plan = [(name, *item) for name in chosen for item in jobs_of(name)]
    known, old = Cache(cache).results, _without_code(earlier_results(cache)) if earlier else {}
    results = [known.get(job.key, old.get(_settings(job.settings))) for *_, job in plan]
    unfinished = {item[:2] for item, result in zip(plan, results, strict=True) if result is None}
    places: dict[str, list[int]] = {}
    for name, case in unfinished:
        places.setdefault(f"{load(name).title}: {case.where}", []).append(case.batch)
    missing = [f"{place} (batch {', '.join(map(str, sorted(sizes)))})" for place, sizes in sorted(places.items())]
    done = [(item, result) for item, result in zip(plan, results, strict=True) if item[:2] not in unfinished]
    return _gather(chosen, [item for item, _ in done], [result for _, result in done]), missing


def _settings(settings: dict[str, Any]) -> str:
    """Return settings without their digest of the code, or without the version in earlier files."""
    return by_settings({key: value for key, value in settings.items() if key not in ("sources", "version")})


def _without_code(results: dict[str, Any]) -> dict[str, Any]:
    return {_settings(json.loads(settings)): result for settings, result in results.items()}


def _gather(chosen: Sequence[str], plan: list[tuple[str, Case, Method, Job]], results: list[Any]) -> dict[str, Table]:
    tables: dict[str, Table] = {name: {} for name in chosen}
    for (name, case, method, _), runs in zip(plan, results, strict=True):
        # The pairs of an earlier search do not say whether the learning rate lies at the end of the grid.
        entry = Entry(method, *(Tuned(lr, [Result(*result) for result in some], *end) for lr, some, *end in runs))
        tables[name].setdefault(case, {})[method.name] = entry
    return tables


def absent(chosen: Sequence[str]) -> dict[str, set[str]]:
    """Return the methods that were left out, by the package that they need."""
    methods = {m for name in chosen for case in load(name).cases for m in load(name).methods(case)}
    needs = {method.needs for method in methods if not method.available}
    return {need: {method.name for method in methods if method.needs == need} for need in sorted(needs)}
