"""The comparison with the memories of other libraries: its batches, its tables, and that it runs and continues."""

import math

import pytest
import torch

import memory_rivals
from harness.excess import Excess, Row
from harness.tables import read_csv
from memory_rivals import METHODS, as_table, batches, measure, problem, ratios, rows_of, save

TINY = Row("average_precision", "breast cancer", 32, 2)


@pytest.mark.parametrize("objective", METHODS)
def test_it_runs_and_does_nothing_twice(objective, tmp_path, monkeypatch):
    cache = tmp_path / "cache.jsonl"
    (row,) = rows_of(objective, quick=True)
    ours = [name for name, method in METHODS[objective].items() if method.needs == "fcco"]
    entries = measure(row, cache, quick=True)
    assert all(0 <= entries[name].excess < math.inf for name in ours)
    monkeypatch.setattr(memory_rivals, "train", None)
    assert repr(measure(row, cache, quick=True)) == repr(entries)  # repr, because the error of one seed is NaN
    assert f"| {row} |" in as_table(objective, {row: entries})


def test_balanced_and_random_batches_are_equally_many():
    methods = METHODS["average_precision"]
    target = problem("average_precision", "breast cancer").targets[0]
    plans = {name: torch.stack(list(batches(TINY, method, 0))) for name, method in methods.items()}
    assert {tuple(plan.shape) for plan in plans.values()} == {(569 // 32 * 2, 32)}
    assert (target[plans["in-batch, balanced"]].sum(1) == 16).all()
    assert target[plans["in-batch, random"]].sum(1).unique().numel() > 1


def test_larger_batches_see_as_many_examples():
    row = Row("cox", "diabetes", 8, 3)
    plans = [torch.stack(list(batches(row, METHODS["cox"][name], 0))) for name in ("in-batch", "4 times the batch")]
    assert [tuple(plan.shape) for plan in plans] == [(55 * 3, 8), (13 * 3, 32)]


def test_a_library_that_is_missing_is_named():
    first, *others = METHODS["nca"]
    entries = {first: Excess(0.5, 0.1, 1.0), **dict.fromkeys(others), "NCALoss": Excess(0.25, 0.1, 1.0)}
    assert ratios(entries) == {first: 1.0, "NCALoss": 0.5}
    lines = as_table("nca", {Row("nca", "digits", 16, 2): entries}).splitlines()
    assert lines[4].count("not installed") == len(METHODS["nca"]) - 2
    assert lines[4].endswith("| .500 |")


def test_a_row_that_is_measured_again_replaces_the_old_one(tmp_path):
    path, row = tmp_path / "results.csv", Row("nca", "digits", 16, 2)
    for excess in (0.5, 0.25):
        save({row: {"in-batch": Excess(excess, 0.1, 1.0), "PML in-batch": None}}, path)
    save({row._replace(batch=64): {"in-batch": Excess(1.0, 0.1, 1.0)}}, path)
    assert [(line["batch"], line["excess"]) for line in read_csv(path)] == [("16", "0.25"), ("64", "1")]
