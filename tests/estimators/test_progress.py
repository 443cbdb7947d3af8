"""The progress of a fit: what counts as an improvement, and what is refused."""

import math

import pytest

from fcco.estimators._progress import Progress


def test_an_objective_that_is_no_number_names_parameters_that_exist():
    progress = Progress(max_iter=3, tol=0.0, n_iter_no_change=2, verbose=0, name="Ranker")
    with pytest.raises(FloatingPointError, match=r"inf after pass 1; scale .*warm_start=False"):
        progress.add(math.inf)
    assert not Progress(max_iter=3, tol=0.0, n_iter_no_change=2, verbose=0, name="Ranker").add(math.inf, log=1e4)


def test_an_improvement_is_relative():
    """At 1e-30 as at 1: by a tenth counts, by a millionth does not."""
    for size in (1e-30, 1.0):
        progress = Progress(max_iter=9, tol=1e-3, n_iter_no_change=2, verbose=0, name="Ranker")
        assert [progress.add(size * value) for value in (1.0, 0.9, 0.8, 0.8 - 1e-6, 0.8 - 2e-6)] == [False] * 4 + [True]


def test_an_improvement_is_on_the_best_so_far():
    """To fall again after a rise is none."""
    progress = Progress(max_iter=9, tol=1e-3, n_iter_no_change=2, verbose=0, name="Ranker")
    assert [progress.add(value) for value in (1.0, 3.0, 2.0)] == [False, False, True]
