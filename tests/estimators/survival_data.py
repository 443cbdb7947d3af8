"""Survival data for the tests: made up, and with golden values."""

import json
from pathlib import Path

import numpy as np

_FOLDER = Path(__file__).parent / "golden"
GOLDEN, WEIGHTED, STRATIFIED = (
    json.loads((_FOLDER / f"{name}survival.json").read_text()) for name in ("", "weighted_", "stratified_")
)
TIES = ("breslow", "efron")


def make_data(n=300, d=3, *, tied=True, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    life, watched = rng.exponential(np.exp(-x @ np.linspace(1.0, -0.5, d))), rng.exponential(2.0, size=n)
    time = np.minimum(life, watched)
    return x, np.ceil(time * 10) if tied else time, life <= watched


def columns(time, event):
    return np.column_stack([time, event])


def golden(name):
    case = GOLDEN[name]
    return np.array(case["x"]), columns(case["time"], case["event"]), case
