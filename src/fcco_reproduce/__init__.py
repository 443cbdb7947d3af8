"""Experiments: what the theorems promise and what the paper reports, measured.

A study is a list of :class:`Experiment`, each made of a small file of settings (:mod:`fcco_reproduce._config`); an
experiment is a list of :class:`Job` and what to make of their results.
:func:`run_jobs` does the work, in parallel, and goes on where it was interrupted.
"""

from fcco_reproduce._runner import Job, run_jobs
from fcco_reproduce._study import Experiment, Finding, Scale, Study, run_study

__all__ = ["Experiment", "Finding", "Job", "Scale", "Study", "run_jobs", "run_study"]
