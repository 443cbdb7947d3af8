"""Does an installation work? Needs only what it tests: run it with the Python of an environment that has fcco.

It is run outside of the repository, so that what it imports is what was installed.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import torch

import fcco

CORE, SKLEARN, REPRODUCE = (), ("sklearn", "numba"), ("sklearn", "numba", "matplotlib", "tqdm")


def has(packages: tuple[str, ...]) -> bool:
    return all(find_spec(package) is not None for package in packages)


def train() -> None:
    """Maximise average precision with the README's kind of loop, stop, save, load, and go on bit for bit."""
    torch.manual_seed(0)
    x = torch.randn(400, 5)
    y = x[:, 0] + 0.3 * torch.randn(400) > 1
    ended = []
    for resume in (False, True):
        torch.manual_seed(1)
        model = torch.nn.Linear(5, 1)
        loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(y)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        draws = torch.Generator().manual_seed(2)
        for step in range(60):
            if resume and step == 30:
                state = loss_fn.state_dict()
                loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(y)
                loss_fn.load_state_dict(state)
            rows = torch.randperm(400, generator=draws)[:64]
            optimizer.zero_grad()
            loss_fn(model(x[rows])[:, 0], y[rows], rows).backward()
            optimizer.step()
        ended.append(model.weight.detach())
    assert torch.equal(*ended), "a resumed run differs"
    reached, best = (fcco.functional.average_precision(scores, y) for scores in (x @ ended[0][0], x[:, 0]))
    assert reached > 0.95 * best, (reached, best)


def solve() -> None:
    from fcco.solvers import Accuracy, problems

    problem = problems.pseudo_huber("strongly_convex", n=16)
    solution = fcco.solve(problem, "sox", steps=300, lr=0.1, beta=0.5, gamma=0.5, accuracy=Accuracy(0.1))
    assert problem.value(solution.weights) < problem.value(problem.start)


def estimators() -> None:
    if not has(SKLEARN):
        code = "from fcco.estimators import PNormPushClassifier"
        refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert "fcco[sklearn]" in refused.stderr, refused.stderr
        return
    from sklearn.datasets import load_breast_cancer

    from fcco.estimators import AveragePrecisionClassifier

    data, label = load_breast_cancer(return_X_y=True)
    assert AveragePrecisionClassifier(pos_label=1).fit(data, label).score(data, label) > 0.98


def commands() -> None:
    for words in (["--version"], ["doctor"], ["plan", "--n", "100", "--b1", "8", "--b2", "8", "--epsilon", "0.1"]):
        subprocess.run([sys.executable, "-m", "fcco", *words], check=True, stdout=subprocess.DEVNULL)
    if has(REPRODUCE):
        subprocess.run([sys.executable, "-m", "fcco", "reproduce", "quick", "--quick"], check=True, capture_output=True)


def integrations() -> None:
    if has(("lightning",)):
        import fcco.integrations.lightning
    if has(("skorch", "sklearn")):
        import fcco.integrations.skorch  # noqa: F401


def main() -> None:
    where = Path(fcco.__file__).resolve()
    assert "site-packages" in where.parts, f"fcco was not installed but is at {where}"
    for part in (train, solve, estimators, commands, integrations):
        part()
        print(f"{part.__name__}: ok", flush=True)


if __name__ == "__main__":
    main()
