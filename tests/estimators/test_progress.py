"""The progress of a fit: what counts as an improvement, what is refused, and what is shown."""

import math
import sys

import pytest

from fcco.estimators import _progress
from fcco.estimators._progress import Bar, Progress


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


class TestBar:
    @pytest.mark.parametrize("installed", [True, False])
    def test_is_one_line_that_ends_at_the_last_value(self, installed, monkeypatch, capsys):
        if not installed:
            monkeypatch.setitem(sys.modules, "tqdm", None)
        with Bar("Ranker", 1000, shown=1) as bar:
            for step in range(30):
                bar.show(1 / (1 + step))
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        last = printed.err.split("\r")[-1]
        assert last.startswith("Ranker: 100%" if installed else "Ranker: 30/30 [")
        assert "30/30 [" in last
        assert "objective 0.0333333]" in last

    def test_a_plain_line_covers_the_one_before(self, monkeypatch, capsys):
        monkeypatch.setitem(sys.modules, "tqdm", None)
        monkeypatch.setattr(_progress, "_REDRAWN", 0.0)
        with Bar("Ranker", 2, shown=True) as bar:
            bar.show(0.123456)
            bar.show(1)
        first, second = capsys.readouterr().err.split("\r")[1:3]
        assert "1/2 [" in first
        assert "objective 0.123456]" in first
        assert len(first) == len(second) > len(second.rstrip())

    def test_shows_nothing_unless_asked(self, capsys):
        with Bar("Ranker", 2, shown=0) as bar:
            bar.show(1.0)
        with Bar("Ranker", 2, shown=1):
            pass
        assert capsys.readouterr() == ("", "")

    def test_ends_where_a_fit_fails(self, capsys):
        progress = Progress(max_iter=3, tol=0.0, n_iter_no_change=2, verbose=1, name="Ranker")
        with pytest.raises(FloatingPointError), progress:
            progress.add(math.nan)
        assert capsys.readouterr().err.endswith("objective nan]\n")
