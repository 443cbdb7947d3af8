"""NCA by full batches: L-BFGS on the objective over all pairs of training rows."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import minimize

from fcco.functional import nca_loss
from fcco_reproduce.datasets import Split
from fcco_reproduce.nca._data import Array, loss, start
from fcco_reproduce.nca._descent import Trace


def minimise(split: Split, *, width: int, seed: int, iterations: int, decay: float) -> Trace:
    """L-BFGS on F(A) + decay/2 |A|², from the start that the seed has; test losses at the start and at every iteration.

    F is not convex: what is reached is a stationary point at best.
    """
    x, y = torch.from_numpy(split.train.x), torch.from_numpy(split.train.y)
    first = start(width, x.shape[1], seed)
    losses = [loss(split.test, first)]

    def value_and_gradient(flat: Array) -> tuple[float, Array]:
        a = torch.from_numpy(flat.reshape(first.shape).astype(np.float32)).requires_grad_()
        value = nca_loss(x @ a.T, y) + 0.5 * decay * a.square().sum()
        (gradient,) = torch.autograd.grad(value, a)
        return value.item(), gradient.double().numpy().ravel()

    def follow(flat: Array) -> None:
        losses.append(loss(split.test, flat.reshape(first.shape)))

    solution = minimize(
        value_and_gradient,
        first.ravel().astype(np.float64),
        jac=True,
        method="L-BFGS-B",
        callback=follow,
        options={"maxiter": iterations, "maxfun": 2 * iterations},
    )
    return Trace(losses, solution.x.reshape(first.shape))
