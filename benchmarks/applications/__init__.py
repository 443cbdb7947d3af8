"""Compare every application with the strongest alternatives, from data to metric: ``make bench-applications``.

    FCCO_DATA=... PYTHONPATH=benchmarks python -m applications [--only survival,push] [--quick | --finished | --earlier]

writes BENCHMARKS.md. Finished results are kept in build/applications/cache.jsonl and are not computed again.
``--finished`` runs nothing: it writes the page from the cache and names the rows that are missing. ``--earlier`` does
the same, but also accepts results of an earlier version of the code.

**To add an application**, write a module ``applications/name.py`` with a constant ``APPLICATION``, an
:class:`Application`. The module is found automatically if its name does not start with an underscore. An application
has these parts:

- ``cases``: the rows of the table, each a :class:`Case` with data, batch, passes and model.
- ``methods(case)``: the columns, each a :class:`Method`. One is "ours", a loss of the library with its defaults. At
  least one is "in-batch": the same objective with the batch treated as the population, as it is commonly used. "field"
  is any other method that people would use. "exact" is the minimum of the objective, and "full" uses all data at every
  step. A method without an lr has ``tuned=False``, and one that does not depend on the batch has ``batched=False``.
  ``needs`` names a package.
- ``run(case, method, lr, seed)``: trains the method of that name once and returns a :class:`Result`. It has the exact
  objective on all training data, the metric on validation and test data, and the seconds of training. All methods of a
  seed draw the same batches (``harness.tasks.shuffled``, ``sampled``). :func:`harness.training.train` is the loop, with
  one step per batch and a cosine lr. It raises :class:`DivergedError`, for which ``run`` returns ``DIVERGED``.
  :func:`harness.exact.minimise` is L-BFGS on all data.
- ``lr(case)``: the centre of the grid of learning rates. :func:`tune` searches the lr separately for the objective and
  for the metric, on one grid for all methods.
- ``goal(table)``: returns sentences that state a goal and whether it was reached. :func:`ratio` and :func:`duel`
  compare the entries of a case.
- ``quick``: a case that takes a second or two, on data that need no download. The tests run it.

Results are cached by case, method, seeds, and a digest of the code that ``run`` leads to.

A run should take about a second, because every method and case needs about thirty runs. Use a subsample if that does
not distort the comparison, and say so in ``text``. Read ``survival.py`` first.
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
