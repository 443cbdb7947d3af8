"""What the contract tests run over: every objective, with every option that changes its formula."""

from dataclasses import dataclass, field

import numpy as np
import torch

import fcco.functional
from functional import naive

NAMES = ("ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp")
PAIRWISE = {
    "nca_loss",
    "contrastive_loss",
    "robust_contrastive_loss",
    "supervised_contrastive_loss",
    "partial_auc_loss",
    "auc_loss",
    "cvar_partial_auc_loss",
    "two_way_partial_auc_loss",
    "average_precision_loss",
    "p_norm_push_loss",
    "ndcg_loss",
}


def binary(rng, n):
    target = np.arange(n) % 3 == 0
    return [rng.normal(size=n)], [rng.permutation(target).astype(int)]


def ranking(rng, n):
    query = rng.choice([-7, 3, 10**12], size=n)
    return [rng.normal(size=n)], [rng.integers(0, 4, size=n), query]


def survival(rng, n):
    return [rng.normal(size=n)], [rng.integers(1, 4, size=n).astype(float), rng.permutation(np.arange(n) % 3 > 0)]


def strata(rng, n):
    floats, others = survival(rng, n)
    return floats, [*others, rng.choice([-2, 5], size=n)]


def truncated(rng, n):
    floats, (time, event, stratum) = strata(rng, n)
    return floats, [time, event, stratum, time - rng.integers(1, 4, size=n)]


def classes(rng, n):
    return [rng.normal(size=(n, 3))], [rng.choice([-2, 5, 40], size=n)]


def latent(rng, n):
    return [-rng.exponential(size=(n, 5)), rng.normal(size=(n, 5))], []


def logits(rng, n):
    scores = rng.normal(size=(n, 4))
    return [scores[:, 1].copy(), scores], []


def views(rng, n):
    return [rng.normal(size=(n, 3)), rng.normal(size=(n, 3))], []


def observations(rng, n):
    return [rng.normal(size=(n, 4))], [rng.choice([-1, 1], size=n)]


def grouped(rng, n):
    return [rng.exponential(size=n)], [rng.choice([4, -1, 9], size=n)]


@dataclass(frozen=True)
class Case:
    """An objective with options; ``data`` gives its differentiable arguments and the others, in that order."""

    name: str
    data: object
    options: dict = field(default_factory=dict)

    def __str__(self):
        kind = [self.data.__name__] if self.data in (strata, truncated) else []
        return "-".join([self.name, *kind, *(f"{key}={value}" for key, value in self.options.items())])

    @property
    def chunked(self):
        return self.name in PAIRWISE

    def make(self, n=11, seed=0, dtype=torch.float64, scale=1.0):
        """(differentiable tensors, others)."""
        floats, others = self.data(np.random.default_rng(seed), n)
        floats = [torch.tensor(scale * x).to(dtype).requires_grad_() for x in floats]
        return floats, [torch.as_tensor(x) for x in others]

    def __call__(self, *arguments, **options):
        return getattr(fcco.functional, self.name)(*arguments, **{**self.options, **options})

    def naive(self, *arguments):
        arrays = [x.detach().double().numpy() if x.is_floating_point() else x.numpy() for x in arguments]
        return getattr(naive, self.name)(*arrays, **self.options)


BIPARTITE = [
    Case(name, binary, {"surrogate": surrogate, **options})
    for name, options in (
        ("average_precision_loss", {"margin": 0.6}),
        ("average_precision_loss", {"margin": 0.6, "temperature": 0.3}),
        ("p_norm_push_loss", {"margin": 0.6, "p": 2.5}),
        ("partial_auc_loss", {"margin": 0.6, "temperature": 0.5}),
    )
    for surrogate in NAMES
]
NDCG = [
    Case("ndcg_loss", ranking, {"surrogate": surrogate, "margin": 0.6, **options})
    for surrogate in NAMES
    for options in ({"k": None}, {"k": 2}, {"temperature": 0.3})
]
CONTRASTIVE = [
    Case("contrastive_loss", views, {"mode": mode, "include_positive": positive, "temperature": 0.5})
    for mode in ("two_views", "cross_modal")
    for positive in (False, True)
]
AUC = [
    Case("auc_loss", binary, {"surrogate": "squared_hinge", "margin": 0.6}),
    Case("auc_loss", binary, {"surrogate": "sigmoid"}),
    Case("auc_loss", binary, {"surrogate": "exp"}),
    Case("auc_loss", binary, {"form": "min_max", "margin": 0.6}),
    Case("cvar_partial_auc_loss", binary, {"surrogate": "ramp", "max_fpr": 0.3}),
    Case("cvar_partial_auc_loss", binary, {"surrogate": "exp", "top_k": 3}),
    Case("two_way_partial_auc_loss", binary, {"temperature": 0.5, "positive_temperature": 0.8}),
]
CASES = [
    *BIPARTITE,
    *AUC,
    *NDCG,
    *CONTRASTIVE,
    Case("robust_contrastive_loss", views, {"temperature": 0.5, "rho": 0.3}),
    Case("supervised_contrastive_loss", classes, {"temperature": 0.5}),
    Case("nca_loss", classes),
    Case("nca_loss", classes, {"log_likelihood": True}),
    Case("list_net_loss", ranking),
    Case("list_net_loss", ranking, {"target": "softmax"}),
    Case("list_mle_loss", ranking),
    Case("cox_loss", strata, {"ties": "efron"}),
    Case("cox_loss", truncated),
    Case("cox_loss", truncated, {"ties": "efron"}),
    Case("cox_loss", survival),
    Case("cox_loss", survival, {"ties": "efron"}),
    Case("latent_variable_loss", latent),
    Case("softmax_loss", logits),
    Case("invariant_logistic_loss", observations),
    Case("group_dro_loss", grouped, {"temperature": 0.3}),
]
DEFAULTS = [Case(case.name, case.data) for case in {case.name: case for case in CASES}.values()]


def value_and_gradients(case, floats, others, **options):
    loss = case(*floats, *others, **options)
    return loss, torch.autograd.grad(loss, floats)
