"""SOX-boost, projected SOX and SOX for strongly convex problems in plain NumPy, like ``tests/reference.py``.

``draws`` are as there; SOX-boost has a list of them for each stage. Row i starts at its first estimate.
"""

import numpy as np

from reference import FIRST_ESTIMATE, start


def batch_gradient(problem, w, u, visited, gamma, outer_batch, inner_batches):
    """Lines 2 to 6 of Algorithm 1. They update u of the batch, and take the gradient at the u before the update."""
    gradient = np.zeros_like(w)
    for i in outer_batch:
        g_i = problem.g(w, i, inner_batches[i])
        u_old = start(FIRST_ESTIMATE, u, visited, i, g_i)
        u[i] = (1 - gamma) * u_old + gamma * g_i
        gradient += problem.grad_g(w, i, inner_batches[i]) @ problem.grad_f(i, u_old)
    return gradient / len(outer_batch)


def sox_boost(problem, w, stages, draws, pass_on="last", mu=0.0):
    """Algorithm 2 on F + mu/2 |w|^2; ``stages`` are (eta, beta, gamma), and a stage is as long as its draws.

    A stage that passes a random iterate on ends with its draws, and with the u and v estimated at its last iterate.
    """
    u, v, visited = np.zeros((problem.n, problem.dim)), np.zeros_like(w), set()
    for (eta, beta, gamma), stage_draws in zip(stages, draws, strict=True):
        iterates = []
        for outer_batch, inner_batches in stage_draws:
            iterates.append(w)
            gradient = batch_gradient(problem, w, u, visited, gamma, outer_batch, inner_batches) + mu * w
            v = (1 - beta) * v + beta * gradient
            w = w - eta * v
        if pass_on == "average":
            w = np.mean(iterates, axis=0)
        if pass_on == "random":
            w = iterates[-1]
    return w, u


def projected(problem, w, eta, gamma, draws, project):
    """Projected SOX with the eta of the proof: w = argmin over Omega of <G, w> + eta/2 |w - w_t|^2.

    It also returns the mean of w^0 ... w^{T-1}.
    """
    u, visited, iterates = np.zeros((problem.n, problem.dim)), set(), []
    for outer_batch, inner_batches in draws:
        iterates.append(w)
        gradient = batch_gradient(problem, w, u, visited, gamma, outer_batch, inner_batches)
        w = project(w - gradient / eta)
    return w, u, np.mean(iterates, axis=0)


def strongly_convex(problem, w, mu, draws, project):
    """SOX with R = mu/2 |w|^2, where <G, w> + R(w) + eta/2 |w - w_t|^2 is least at (eta w_t - G) / (eta + mu)."""
    u, visited, iterates = np.zeros((problem.n, problem.dim)), set(), []
    for t, (outer_batch, inner_batches) in enumerate(draws):
        iterates.append(w)
        eta, tau = mu * (t + 1), len(outer_batch) / problem.n * (t + 1)
        gradient = batch_gradient(problem, w, u, visited, 1 / (1 + tau), outer_batch, inner_batches)
        w = project((eta * w - gradient) / (eta + mu))
    return w, u, np.mean(iterates, axis=0)
