"""What the contract tests run over: every rule, in every space it is defined in."""

import math

import torch

import fcco
from fcco import schedules

RULES = [
    fcco.SOX(gamma=0.3),
    fcco.SOX(gamma=0.3, safeguard=False),
    fcco.SOX(gamma=schedules.Cosine(final=0.2, steps=5)),
    fcco.SOX(gamma=schedules.RunningMean()),
    fcco.SOAP(gamma=0.3),
    fcco.SOAP(gamma=schedules.RunningMean(floor=0.4)),
    fcco.MOAP(gamma=0.3),
    fcco.MOAP(gamma=schedules.Cosine(final=0.2, steps=5)),
    fcco.BSGD(),
    fcco.SCGD(gamma=0.3),
    fcco.NASA(gamma=0.3),
]

CASES = [(rule, log, dim) for rule in RULES for log in (False, True) for dim in (1, 2) if rule.log in (None, log)]


def case_id(case):
    rule, log, dim = case
    return f"{rule}-{'log' if log else 'plain'}-dim{dim}"


def log_1d(u):
    return u.log()


def log_1d_of_log(log_u):
    return log_u


def ratio(u):
    return -u[:, 0] / u[:, 1]


def ratio_of_log(log_u):
    return -(log_u[:, 0] - log_u[:, 1]).exp()


OUTER = {(False, 1): log_1d, (True, 1): log_1d_of_log, (False, 2): ratio, (True, 2): ratio_of_log}


def make_loss(case, n=10, **options):
    rule, log, dim = case
    return fcco.CoupledLoss(OUTER[log, dim], n, dim, rule=rule, log=log, **options)


def make_batch(case, n=10, batch=4, seed=0, dtype=torch.float64, rows=None):
    """Arguments of one call: positive estimates for distinct rows (or the given ones)."""
    rule, log, dim = case
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(n, generator=generator)[:batch] if rows is None else torch.as_tensor(rows)
    count = n if rule.all_rows else len(index)
    shape = (count,) if dim == 1 else (count, dim)
    inner = 0.5 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return (inner.log() if log else inner).to(dtype).requires_grad_(), index


def run(loss_fn, case, steps=6, first=0, **options):
    """Values and gradients of some steps."""
    history = []
    for seed in range(first, first + steps):
        inner, index = make_batch(case, n=loss_fn.n, seed=seed, **options)
        loss = loss_fn(inner, index)
        loss.backward()
        history += [loss.detach(), inner.grad]
    return history


def state(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(first, second):
    """Bit for bit, counting two NaN as equal."""
    return all(torch.equal(first[k].nan_to_num(math.pi), second[k].nan_to_num(math.pi)) for k in first)
