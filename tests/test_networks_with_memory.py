"""Small networks trained by losses with and without a memory: the benchmark by hand, and in short form."""

import math
from pathlib import Path

import networks_with_memory as benchmark
import pytest
import torch

from harness import networks
from harness.networks import DIVERGED, Outcome
from harness.tables import read_csv, write_csv

DOCS = Path(__file__).parent.parent / "docs"


def outcomes(*objectives):
    return [Outcome(value, 0.5) for value in objectives]


def test_a_difference_counts_beyond_two_standard_errors():
    base = [1.0, 2.0, 3.0]
    assert benchmark.verdict([0.9, 1.9, 2.8], base) == "better"
    assert benchmark.verdict([1.1, 2.1, 3.2], base) == "worse"
    assert benchmark.verdict([1.1, 2.1, 3.2], base, higher=True) == "better"
    assert benchmark.verdict([0.5, 2.5, 3.0], base) == "even"
    assert benchmark.verdict([0.5, 1.5, math.inf], base) == "worse"


def test_a_grid_grows_where_its_best_rate_is_at_its_end():
    assert benchmark.grow((-7, -6, -5), {-7: outcomes(1), -6: outcomes(2), -5: outcomes(3)}) == (-8, -7, -6, -5)
    assert benchmark.grow((-7, -6, -5), {-7: outcomes(3), -6: outcomes(2), -5: outcomes(1)}) == (-7, -6, -5, -4)
    assert benchmark.grow((-7, -6, -5), {-7: outcomes(2), -6: outcomes(1), -5: [DIVERGED]}) == (-7, -6, -5)
    assert benchmark.entry_of({-7: outcomes(2), -6: outcomes(1), -5: [DIVERGED]}) == (-6, outcomes(1), False, 1)


def test_all_settings_see_the_same_batches_and_every_row():
    problem = networks.nca()
    plan = networks.batches(problem, 32, 2, seed=0)
    assert all(torch.equal(a, b) for a, b in zip(plan, networks.batches(problem, 32, 2, seed=0), strict=True))
    assert len(plan) == 2 * (networks.N_IMAGES // 32)
    assert torch.cat(plan[: len(plan) // 2]).unique().numel() == networks.N_IMAGES // 32 * 32


def test_the_published_table_can_be_shown():
    shown = benchmark.as_tables(read_csv(DOCS / "networks_with_memory.csv"))
    assert "| 16 | 5 | InfoNCE |" in shown
    assert "end of the grid" not in shown


@pytest.mark.parametrize("problem", ["contrastive", "cox", "nca"])
def test_in_short_form(problem, tmp_path):
    rows = benchmark.rows_of([problem], quick=True)
    if not rows:
        pytest.skip("the data is not in FCCO_DATA")
    entries = benchmark.measure(rows, 1, tmp_path / "cache.jsonl", quick=True, workers=1)
    lines = benchmark.as_lines(entries)
    write_csv(lines, tmp_path / "t.csv")
    assert benchmark.as_tables(read_csv(tmp_path / "t.csv")).count("\n") == 3 + len(lines)
    assert all(math.isfinite(float(line["objective"])) for line in lines)
