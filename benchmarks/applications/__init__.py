"""Applications end to end, against the strongest alternative: what ``make bench-applications`` measures.

    FCCO_DATA=... PYTHONPATH=benchmarks python -m applications [--only survival,push] [--quick | --finished | --earlier]

writes BENCHMARKS.md. Finished work is kept in build/applications/cache.jsonl, and not done again; ``--finished`` runs
nothing and writes the page of what is there, naming the rows that are not, and ``--earlier`` also takes results that an
earlier version of the code left there.

**To add an application**, write a module ``applications/name.py`` (no underscore in front: it is found by itself) with
a constant ``APPLICATION``, an :class:`Application`. What it takes:

- ``cases``: rows of the table, each a :class:`Case`: data, batch, passes, model.
- ``methods(case)``: columns, each a :class:`Method`. One is "ours", a loss of the library with its defaults. At least
  one is "in-batch", the same objective with the batch taken for the population, as people use it. "field" is what else
  they would take. "exact" is the minimum of the objective, "full" what all data at every step reach. A method without
  an lr has ``tuned=False``, one that does not depend on the batch ``batched=False``; ``needs`` names a package.
- ``run(case, method, lr, seed)``: train the method of that name once and return a :class:`Result`: the exact objective
  on all training data, the metric on validation and on test data, and the seconds of training. All methods of a seed
  draw the same batches (``harness.tasks.shuffled``, ``sampled``). :func:`harness.training.train` is the loop: one step
  a batch, cosine lr; it raises :class:`DivergedError`, for which ``run`` returns ``DIVERGED``.
  :func:`harness.exact.minimise` is L-BFGS on all data.
- ``lr(case)``: the centre of the grid of learning rates. The framework tunes the lr (:func:`tune`), for the objective
  and for the metric apart, on one grid for all methods.
- ``goal(table)``: what would be a win, and whether it came out, as a sentence; :func:`ratio` and :func:`duel` compare
  the entries of a case.
- ``quick``: a case that takes a second or two, on data that need no download; the tests run it.

Results are cached by case, method, seeds, and a digest of the code that ``run`` leads to.

A run should take about a second: there are some thirty for every method and case.
Subsample where that is honest, and say so in ``text``. ``survival.py`` is the one to read first.
"""

from applications._application import DIVERGED, Application, Case, Entry, Kind, Method, Result, Table, Tuned, tune
from applications._page import duel, floor, ratio

__all__ = [
    "DIVERGED",
    "Application",
    "Case",
    "Entry",
    "Kind",
    "Method",
    "Result",
    "Table",
    "Tuned",
    "duel",
    "floor",
    "ratio",
    "tune",
]
