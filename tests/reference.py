"""The paper's algorithms in plain NumPy, line by line like their boxes. Slow, and meant to be checked by eye.

A problem has ``g(w, i, batch)`` and ``grad_g(w, i, batch)``, the inner function and its Jacobian [d, dim] on a batch of
S_i, and ``grad_f(i, u)``, the gradient [dim] of the outer function. ``draws`` holds, for every step, the outer batch B1
and an inner batch for each of the n rows.
"""

import numpy as np

FIRST_ESTIMATE = None  # u^0_i is the first estimate of row i


def start(u0, u, visited, i, g_i):
    """u^{t-1}_i, which at a row's first visit is what the initialisation says."""
    if i in visited:
        return u[i].copy()
    visited.add(i)
    return g_i if u0 is FIRST_ESTIMATE else np.full_like(g_i, u0)


def sox(problem, w, eta, beta, gamma, draws, u0=FIRST_ESTIMATE, floor=False):
    u, v, visited = np.zeros((problem.n, problem.dim)), np.zeros_like(w), set()
    for outer_batch, inner_batches in draws:
        gradient = np.zeros_like(w)
        for i in outer_batch:
            g_i = problem.g(w, i, inner_batches[i])
            u_old = start(u0, u, visited, i, g_i)
            u[i] = (1 - gamma) * u_old + gamma * g_i
            at = np.maximum(u_old, gamma * g_i) if floor else u_old
            gradient += problem.grad_g(w, i, inner_batches[i]) @ problem.grad_f(i, at)
        v = (1 - beta) * v + beta * gradient / len(outer_batch)
        w = w - eta * v
    return w, u


def soap(problem, w, eta, gamma, draws, u0=FIRST_ESTIMATE):
    u, visited = np.zeros((problem.n, problem.dim)), set()
    for outer_batch, inner_batches in draws:
        gradient = np.zeros_like(w)
        for i in outer_batch:
            g_i = problem.g(w, i, inner_batches[i])
            u[i] = (1 - gamma) * start(u0, u, visited, i, g_i) + gamma * g_i
            gradient += problem.grad_g(w, i, inner_batches[i]) @ problem.grad_f(i, u[i])
        w = w - eta * gradient / len(outer_batch)
    return w, u


def moap(problem, w, eta, beta, gamma, draws):
    u, v = np.zeros((problem.n, problem.dim)), np.zeros_like(w)
    for outer_batch, inner_batches in draws:
        scale = problem.n / len(outer_batch)
        for i in range(problem.n):
            if i in outer_batch:
                u[i] = (1 - gamma) * u[i] + gamma * scale * problem.g(w, i, inner_batches[i])
            else:
                u[i] = (1 - gamma) * u[i]
        gradient = sum(problem.grad_g(w, i, inner_batches[i]) @ problem.grad_f(i, u[i]) for i in outer_batch)
        v = (1 - beta) * v + beta * gradient / len(outer_batch)
        w = w - eta * v
    return w, u


def bsgd(problem, w, eta, draws):
    u = np.zeros((problem.n, problem.dim))
    for outer_batch, inner_batches in draws:
        gradient = np.zeros_like(w)
        for i in outer_batch:
            u[i] = problem.g(w, i, inner_batches[i])
            gradient += problem.grad_g(w, i, inner_batches[i]) @ problem.grad_f(i, u[i])
        w = w - eta * gradient / len(outer_batch)
    return w, u


def nasa(problem, w, eta, beta, gamma, draws, u0=FIRST_ESTIMATE):
    u, v, visited = np.zeros((problem.n, problem.dim)), np.zeros_like(w), set()
    for outer_batch, inner_batches in draws:
        for i in range(problem.n):
            g_i = problem.g(w, i, inner_batches[i])
            u[i] = (1 - gamma) * start(u0, u, visited, i, g_i) + gamma * g_i
        gradient = sum(problem.grad_g(w, i, inner_batches[i]) @ problem.grad_f(i, u[i]) for i in outer_batch)
        v = (1 - beta) * v + beta * gradient / len(outer_batch)
        w = w - eta * v
    return w, u


def scgd(problem, w, eta, gamma, draws, u0=FIRST_ESTIMATE):
    return nasa(problem, w, eta, 1.0, gamma, draws, u0)


def msvr(problem, w, eta, beta, gamma, kappa, draws):
    u, v, visited, w_old = np.zeros((problem.n, problem.dim)), np.zeros_like(w), set(), w
    for outer_batch, inner_batches in draws:
        gradient = np.zeros_like(w)
        for i in outer_batch:
            first = i not in visited
            g_i = problem.g(w, i, inner_batches[i])
            change = 0.0 if first else g_i - problem.g(w_old, i, inner_batches[i])
            u_old = start(FIRST_ESTIMATE, u, visited, i, g_i)
            u[i] = (1 - gamma) * u_old + gamma * g_i + kappa * change
            gradient += problem.grad_g(w, i, inner_batches[i]) @ problem.grad_f(i, u[i])
        v = (1 - beta) * v + beta * gradient / len(outer_batch)
        w_old, w = w, w - eta * v
    return w, u
