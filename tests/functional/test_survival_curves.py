"""Survival curves from log-hazards, and their scores: scikit-survival's golden values, strata, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import fcco.functional as F

GOLDEN = json.loads((Path(__file__).parent / "golden" / "brier.json").read_text())
TRAIN, TEST = (
    [torch.tensor(GOLDEN[part][key], dtype=torch.float64) for key in ("risk", "time", "event")]
    for part in ("train", "test")
)
TIMES, SURVIVAL = torch.tensor(GOLDEN["times"]), torch.tensor(GOLDEN["survival"], dtype=torch.float64)


def test_curves_are_those_of_scikit_survival():
    survival = F.survival_function(TEST[0], F.baseline_hazard(*TRAIN), TIMES)
    torch.testing.assert_close(survival, SURVIVAL, rtol=1e-9, atol=0)


def test_scores_are_those_of_scikit_survival():
    train = {"train_time": TRAIN[1], "train_event": TRAIN[2]}
    scores = F.brier_score(SURVIVAL, *TEST[1:], TIMES, **train)
    np.testing.assert_allclose(scores, GOLDEN["brier_score"], rtol=1e-12)
    integrated = F.integrated_brier_score(SURVIVAL, *TEST[1:], TIMES, **train)
    assert integrated.item() == pytest.approx(GOLDEN["integrated_brier_score"], rel=1e-12)
    assert F.concordance_index(*TEST).item() == pytest.approx(GOLDEN["concordance_index"], rel=1e-12)


def test_strata_are_as_if_by_themselves():
    strata, entry = torch.arange(60) % 3 - 5, TRAIN[1] - 1 - torch.arange(60) % 4
    baseline = F.baseline_hazard(*TRAIN, strata, entry)
    assert baseline.strata.unique().tolist() == [-5, -4, -3]
    survival = F.survival_function(TRAIN[0], baseline, TIMES, strata)
    for k in (-5, -4, -3):
        own = [part[strata == k] for part in TRAIN]
        alone = F.baseline_hazard(*own, entry=entry[strata == k])
        torch.testing.assert_close(baseline.hazard[baseline.strata == k], alone.hazard)
        torch.testing.assert_close(survival[strata == k], F.survival_function(own[0], alone, TIMES))


def test_a_late_entry_is_at_risk_after_it():
    """Of those who enter at 1, 2 and 0, the event at 2 sees the first and the last."""
    time, event = torch.tensor([3.0, 4.0, 2.0]), torch.tensor([0, 0, 1])
    baseline = F.baseline_hazard(torch.zeros(3), time, event, entry=torch.tensor([1.0, 2.0, 0.0]))
    assert baseline.times.tolist() == [2.0]
    assert baseline.hazard.tolist() == [0.5]


@pytest.mark.parametrize("score", [F.brier_score, F.integrated_brier_score])
def test_times_without_follow_up_are_refused(score):
    """Curves of 1/2 score 1/4 as long as anybody is watched; then those who are censored would count for nothing."""
    time, event = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1, 0, 1, 0])
    train = {"train_time": time[:3], "train_event": torch.tensor([1, 1, 0])}
    half, before = torch.full((4, 3), 0.5), torch.tensor([1.5, 2.5, 3.9])
    torch.testing.assert_close(score(half, time, event, before).mean().item(), 0.25)
    for last in (4.0, 5.0):
        with pytest.raises(ValueError, match=rf"in \[0, 4.0\), below the last of time; got {last} at position 2"):
            score(half, time, event, torch.tensor([1.5, 2.5, last]))
    with pytest.raises(ValueError, match=r"in \[0, 3.0\), below the last of time and of train_time; got 3.0"):
        score(half, time, event, torch.tensor([1.5, 3.0, 3.5]), **train)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.baseline_hazard(TRAIN[0], TRAIN[1], 0 * TRAIN[2]), "event must have at least one event"),
        (lambda: F.baseline_hazard(*TRAIN, entry=TRAIN[1]), "entry must be below the example's time; got"),
        (lambda: F.survival_function(TEST[0], F.baseline_hazard(*TRAIN), strata=TEST[1].long()), "must not be given"),
        (
            lambda: F.survival_function(TEST[0], F.baseline_hazard(*TRAIN, torch.arange(60) % 2)),
            "strata must be given: the baseline has strata",
        ),
        (
            lambda: F.survival_function(
                TRAIN[0][:1], F.baseline_hazard(*TRAIN, TRAIN[1].long()), strata=torch.tensor([99])
            ),
            "strata must be one of those of the baseline; got 99 at position 0",
        ),
        (lambda: F.brier_score(2 * SURVIVAL, *TEST[1:], TIMES), r"survival must be in \[0, 1\]; got"),
        (lambda: F.brier_score(SURVIVAL, *TEST[1:], TIMES[1:]), "times must have the shape"),
        (lambda: F.brier_score(SURVIVAL, *TEST[1:], TIMES, train_time=TRAIN[1]), "must be given together"),
        (
            lambda: F.brier_score(SURVIVAL[:, :2], *TEST[1:], torch.tensor([3.0, -1.0])),
            r"times must be in \[0, 9.0\), below the last of time; got -1.0 at position 1",
        ),
        (lambda: F.integrated_brier_score(SURVIVAL, *TEST[1:], TIMES.flip(0)), "times must be at least two, which"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
