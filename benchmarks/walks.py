"""How far a reader has to walk to follow one step: the files, calls and changes of file that it goes through.

    python benchmarks/walks.py

Only calls of functions in ``fcco`` are counted, of a step that is not the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import FrameType
from typing import Any

import torch

import fcco

N, B = 1000, 16


def walk(action: Callable[[], Any]) -> tuple[int, int, int]:
    """Files, calls, and changes of file between one call and the next."""
    path: list[str] = []

    def trace(frame: FrameType, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and "/fcco/" in name and frame.f_code.co_name[0] != "<":  # no comprehensions
            path.append(name)

    sys.setprofile(trace)
    try:
        action()
    finally:
        sys.setprofile(None)
    switches = sum(first != second for first, second in pairwise(path))
    return len(set(path)), len(path), switches


def steps() -> dict[str, Callable[[], Any]]:
    scores = torch.linspace(-1, 1, B).requires_grad_()
    rows, target = torch.arange(B), torch.arange(B) % 2
    time = torch.arange(B).float()
    own = fcco.CoupledLoss(torch.square, N, rule=fcco.SOX(gamma=0.1))
    precision = fcco.losses.AveragePrecisionLoss(N, N // 2, surrogate=lambda t: torch.relu(1 + t) ** 2, memory=0)
    by_hand = fcco.losses.AveragePrecisionLoss(N, N // 2, memory=0)
    cox = fcco.losses.CoxLoss(N, N // 2, memory=0)
    features = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).numpy()
    push = fcco.estimators.PNormPushClassifier(method="soap", max_iter=1, random_state=0)
    return {
        "CoupledLoss": lambda: own(scores, rows),
        "average precision, torch": lambda: precision(scores, target, rows),
        "average precision, CPU": lambda: by_hand(scores, target, rows),
        "Cox": lambda: cox(scores, time, target, rows),
        "a fit of p-norm push": lambda: push.fit(features, features[:, 0] > 0),
    }


def main() -> None:
    print(f"{'step':<28}{'files':>6}{'calls':>7}{'switches':>10}")
    for name, action in steps().items():
        action()
        print("{:<28}{:>6}{:>7}{:>10}".format(name, *walk(action)))


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
