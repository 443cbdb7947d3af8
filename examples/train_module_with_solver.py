"""SOX-boost, projected SOX and strongly convex SOX on a whole ``nn.Module``.

    python examples/train_module_with_solver.py [--steps 1000]

The task is invariant logistic regression: the score of an observation is the mean of the network's output over random
perturbations of it, and the loss is the logistic loss of that mean. ``Problem.from_module`` makes w of the parameters
of the network. ``solve`` runs the paper's algorithms on it, with stages, a ball that w must stay in, or a regulariser.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

import fcco
from fcco.projections import SquaredL2, project_ball
from fcco.solvers import ModuleProblem, Problem, SOXBoost, Stage

Model = Callable[[Tensor], Tensor]


def make_problem() -> ModuleProblem:
    torch.manual_seed(0)
    x = torch.randn(400, 6)
    y = torch.where(x[:, 0] * x[:, 1] > 0, 1.0, -1.0)
    net = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1), nn.Flatten(0))
    moves = 0.3 * torch.randn(64, 6)  # the perturbations: a finite set, so that F can be computed

    def inner(model: Model, rows: Tensor, generator: torch.Generator, inner_batch: int) -> Tensor:
        drawn = moves[torch.randint(64, (len(rows), inner_batch), generator=generator)]
        scores: Tensor = model((x[rows, None] + drawn).flatten(0, 1))
        return scores.view(len(rows), inner_batch).mean(1)

    def exact_inner(model: Model) -> Tensor:
        scores: Tensor = model((x[:, None] + moves).flatten(0, 1))
        return scores.view(400, 64).mean(1)

    return Problem.from_module(
        net, n=400, inner=inner, exact_inner=exact_inner, outer=lambda u, index: softplus(-y[index] * u)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="The paper's algorithms on a whole module.")
    parser.add_argument("--steps", type=int, default=1000)
    steps = parser.parse_args().steps
    problem = make_problem()
    solve = partial(fcco.solve, problem, outer_batch=16, inner_batch=4)
    third = max(steps // 3, 1)
    solutions = {
        "SOX-boost": solve(SOXBoost([Stage(1.0 / 2**k, 0.5 / 2**k, 0.8 / 2**k, third) for k in range(3)])),
        "projected": solve("projected", projection=partial(project_ball, radius=8.0), lr=0.5, gamma=0.5, steps=steps),
        "strongly convex": solve("strongly-convex", regulariser=SquaredL2(1e-3), lr=0.5, gamma=0.5, steps=steps),
    }
    print(f"{'at the start':<16}{problem.value(problem.start).item():.4f}")
    for name, solution in solutions.items():
        print(f"{name:<16}{problem.value(solution.weights).item():.4f}")
    best = min(solutions.values(), key=lambda solution: problem.value(solution.weights).item())
    problem.assign(best.weights)  # the network itself now has these weights


if __name__ == "__main__":
    main()
