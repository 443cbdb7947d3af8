"""Small problems whose inner and outer functions are known in closed form, in NumPy and in torch."""

import numpy as np
import torch


class ExponentialProblem:
    """g_ik(w) = mean over S_i of exp(a_ijk . w), which is positive, so that every outer function is defined.

    The outer function is log u for dim 1 (a log-partition function), and -u_1 / (u_1 + u_2) for dim 2 (the share of
    a sum, as in average precision and NCA), weighted by 1 + i / n so that f differs by row.
    """

    def __init__(self, n=12, set_size=6, d=4, dim=1, seed=0):
        rng = np.random.default_rng(seed)
        self.n, self.set_size, self.d, self.dim = n, set_size, d, dim
        self.a = rng.normal(size=(n, set_size, dim, d)) / np.sqrt(d)
        self.w0 = rng.normal(size=d) / np.sqrt(d)
        self.weight = 1 + np.arange(n) / n

    def g(self, w, i, batch):
        return np.exp(self.a[i, batch] @ w).mean(0)

    def grad_g(self, w, i, batch):
        a = self.a[i, batch]
        return np.einsum("jk,jkd->dk", np.exp(a @ w), a) / len(batch)

    def grad_f(self, i, u):
        if self.dim == 1:
            return self.weight[i] / u
        return self.weight[i] * np.array([-u[1], u[0]]) / u.sum() ** 2

    def outer(self, u, index):
        weight = torch.as_tensor(self.weight)[index].to(u.dtype)
        return weight * (u.log() if self.dim == 1 else -u[:, 0] / u.sum(1))

    def log_outer(self, log_u, index):
        weight = torch.as_tensor(self.weight)[index].to(log_u.dtype)
        return weight * (log_u if self.dim == 1 else -(log_u[:, 0] - log_u[:, 1]).sigmoid())

    def torch_inner(self, w, rows, batches, log):
        """[B1, dim]: g or log g on each row's inner batch, differentiable in w."""
        a = torch.as_tensor(self.a[rows[:, None], batches])
        logits = a @ w
        return logits.logsumexp(1) - np.log(batches.shape[1]) if log else logits.exp().mean(1)

    def draws(self, steps, outer_batch, inner_batch, seed=0):
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            rows = rng.choice(self.n, outer_batch, replace=False)
            batches = np.stack([rng.choice(self.set_size, inner_batch, replace=False) for _ in range(self.n)])
            yield rows, batches


class LeastSquaresProblem:
    """f_i(u) = (u - b_i)^2 / 2 of a noisy linear g_i: F is a least-squares problem with a known optimum.

    The noise lies in the slopes, so that the mini-batch gradient is biased: it solves a ridge regression instead.
    """

    def __init__(self, n=20, set_size=40, d=3, noise=1.0, seed=0):
        rng = np.random.default_rng(seed)
        self.n, self.set_size, self.d, self.dim = n, set_size, d, 1
        slope = rng.normal(size=(n, 1, d))
        noise = noise * rng.normal(size=(n, set_size, d))
        self.a = torch.as_tensor(slope + noise - noise.mean(1, keepdims=True))
        self.b = torch.as_tensor(rng.normal(size=n) + slope[:, 0].sum(1))
        self.mean_a = self.a.mean(1)
        self.optimum = torch.linalg.lstsq(self.mean_a, self.b).solution

    def objective(self, w):
        return ((self.mean_a @ w - self.b) ** 2).mean() / 2

    def outer(self, u, index):
        return (u - self.b[index]) ** 2 / 2

    def inner(self, w, rows, inner_batch, generator):
        batch = torch.randint(self.set_size, (len(rows), inner_batch), generator=generator)
        return (self.a[rows[:, None], batch] @ w).mean(1)
