"""The laboratory: experiments that measure what the theorems promise and what the paper reports, and data sets.

A :class:`Study` is a list of :class:`Experiment`, each made from a small file of settings
(:mod:`fcco_reproduce._config`). An experiment consists of a list of :class:`Job` and functions that judge and draw
their results. :func:`run_jobs` runs jobs in parallel and resumes them after an interruption. The data sets are in
:mod:`fcco_reproduce.datasets`. The library ``fcco`` does not import this package; only its command looks it up.
"""

from fcco_reproduce._runner import Job, run_jobs
from fcco_reproduce._study import Experiment, Finding, Scale, Study, run_study

__all__ = ["Experiment", "Finding", "Job", "Scale", "Study", "run_jobs", "run_study"]
