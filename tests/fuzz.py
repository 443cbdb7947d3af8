"""A fuzzer: every loss and every exact objective, on finite input of any scale, in any batch, in any precision.

A call either gives a finite value with a finite gradient, or raises an error that names an argument and changes no
state. ``make fuzz`` runs it for minutes, ``make fuzz HOURS=2`` for hours; a short form is part of the suite. Losses,
options and objectives are those of the contract tests, so that a new one is covered as soon as it is listed there.
"""

import argparse
import copy
import inspect
import re
import time
import traceback
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

import cases as engine
import fcco.functional
import functional.objectives as objectives
import losses.cases as modules
from fcco import losses as L
from fcco.functional._tensors import at_least_float32

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NUMBERS = (0.0, 1.0, -1.0, 0.5, -0.1, 3.0, 1.001, 1e-4, -1e4, 1e9)
SCALES = (1.0, 0.0, 1e-3, 1e-8, 1e-38, 1e-45, 1e-300, 30.0, 1e3, 1e5, 1e8, 1e16, 1e17, 1e20, 1e30, 1e38, 1e154, 1e300)
USUAL = 1e3
N = 9


def smooth(t):
    """A surrogate of the caller's own."""
    return (1 + t.square()).log() + 0.5


SURROGATES = ("ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp", smooth)
TEMPERATURES = (0.1, 0.7, 5.0)
# Losses make no estimates of all rows; without its safeguard SOX may weigh an estimate by 1e38.
RULES = [None] + [rule for rule in engine.RULES if not (rule.all_rows or getattr(rule, "safeguard", True) is False)]


@dataclass(frozen=True)
class Values:
    """Numbers of one argument: a few, used over and over again, so that there are ties; around a common offset."""

    numbers: tuple[float, ...]
    scale: float
    offset: float

    def fill(self, shape, dtype):
        """A tensor of that shape, of finite values."""
        largest = torch.finfo(dtype).max
        with np.errstate(over="ignore"):
            numbers = np.multiply(self.numbers, self.scale) + self.offset
        flat = np.resize(np.clip(numbers, -largest, largest), shape)
        return torch.tensor(flat).to(dtype).clamp(-largest, largest).requires_grad_()

    @property
    def usual(self):
        return max(map(abs, self.numbers)) * self.scale + abs(self.offset) <= USUAL


@dataclass(frozen=True)
class Call:
    """One call: which rows, with what numbers, and how. ``strange`` targets are those of other rows."""

    rows: tuple[int, ...]
    values: tuple[Values, ...]
    dtype: torch.dtype
    mode: str
    strange: bool

    def floats(self, like):
        """The differentiable arguments, shaped as those are, and whether their sizes are usual."""
        used = self.values[: len(like)]
        return [v.fill((len(self.rows), *x.shape[1:]), self.dtype) for v, x in zip(used, like, strict=True)], all(
            v.usual for v in used
        )


@dataclass(frozen=True)
class Plan:
    """Some calls of one loss. ``stretch`` is a factor of times and relevances; ``known``, what is known of the data."""

    n: int
    seed: int
    rule: object
    surrogate: object
    temperature: object
    known: bool
    stretch: float
    calls: tuple[Call, ...]

    def options(self, function):
        """Those of the plan that the function takes."""
        options = {"rule": self.rule, "surrogate": self.surrogate, "temperature": self.temperature}
        taken = inspect.signature(function).parameters
        return {name: value for name, value in options.items() if value is not None and name in taken}

    def others(self, case, others):
        """Targets, with times and relevances stretched."""
        if self.stretch == 1.0 or case.data.__name__ not in ("ranking", "survival"):
            return others
        return [others[0].double() * self.stretch, *others[1:]]


values = st.builds(
    Values,
    numbers=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=6).map(tuple),
    scale=st.sampled_from(SCALES),
    offset=st.sampled_from([0.0, *SCALES, *(-scale for scale in SCALES)]),
)
calls = st.builds(
    Call,
    rows=st.lists(st.integers(0, N - 1), min_size=1, max_size=2 * N).map(tuple) | st.just(tuple(range(N))),
    values=st.tuples(values, values),
    dtype=st.sampled_from(DTYPES),
    mode=st.sampled_from(["train", "train", "train", "eval", "no_grad"]),
    strange=st.sampled_from([False, False, False, True]),
)
plans = st.builds(
    Plan,
    n=st.integers(1, N),
    seed=st.integers(0, 3),
    rule=st.sampled_from(RULES),
    surrogate=st.none() | st.sampled_from(SURROGATES),
    temperature=st.none() | st.sampled_from(TEMPERATURES),
    known=st.booleans(),
    stretch=st.just(1.0) | st.sampled_from(SCALES),
    calls=st.lists(calls, min_size=1, max_size=3).map(tuple),
)


class Candidates(L.SoftmaxLoss):
    """SoftmaxLoss with the classes of targets and candidates, and with their probabilities."""

    def forward(self, target_logit, sampled_logits, target, index):
        candidates = torch.arange(sampled_logits.shape[1])
        log_q = -1.0 - candidates.to(sampled_logits.dtype)
        return super().forward(target_logit, sampled_logits, index, log_q, target=target, candidates=candidates)


class TwoTowers(L.SoftmaxLoss):
    """SoftmaxLoss of a batch of two towers, in which items stand twice."""

    def forward(self, scores, second, items, index):
        return self.in_batch(at_least_float32(scores) @ at_least_float32(second).T, items, index)


class Tasks(L.MAMLLoss):
    """MAML of a linear model, differentiated in its data."""

    def __init__(self, n, rule=None):
        super().__init__(n, n_parameters=2, lr=0.1, **({} if rule is None else {"rule": rule}))

    def forward(self, support, query, index):
        support, query = at_least_float32(support), at_least_float32(query)
        model = nn.Linear(1, 1, dtype=support.dtype)
        return super().forward(model, (support, support), (query, query), index)


def items(rng, n):
    floats, _ = modules.views(rng, n)
    return floats, [rng.integers(0, 4, size=n)]


def drawn(rng, n):
    floats, _ = modules.logits(rng, n)
    return floats, [rng.integers(0, 4, size=n)]


def tasks(rng, n):
    return [rng.normal(size=(n, 3, 1)), rng.normal(size=(n, 3, 1))], []


SPECIAL = [
    *(modules.Case(Candidates, drawn, None, options={"own_term": own_term}) for own_term in ("exact", "sampled")),
    *(modules.Case(TwoTowers, items, None, options={"own_term": own_term}) for own_term in ("exact", "sampled")),
    modules.Case(Tasks, tasks, None),
    modules.AP.with_options(temperature="auto"),
]

# They refuse vectors without a direction.
OF_DIRECTIONS = (L.ContrastiveLoss, L.RobustContrastiveLoss, L.SupervisedContrastiveLoss)
REFUSALS = (ValueError, TypeError, IndexError)


def attempt(function, *arguments):
    """What the function returns, or the error by which it refuses."""
    try:
        return function(*arguments), None
    except REFUSALS as error:
        return None, error


def check_refusal(error, *functions):
    """Whether the message names one of the functions or classes, or an argument of theirs."""
    names = {name for function in functions for name in inspect.signature(function).parameters} - {"self", "options"}
    names |= {function.__name__ for function in functions}
    assert re.search(rf"\b({'|'.join(names)}|the batch)\b", str(error)), f"names no argument: {error!r}"


def state(loss_fn):
    return {name: (value.dtype, value.clone()) for name, value in loss_fn.state_dict().items()}


def check_unchanged(before, after):
    assert before.keys() == after.keys()
    for name, (dtype, value) in before.items():
        assert dtype == after[name][0], f"a refused call changed the dtype of {name}"
        assert torch.equal(value, after[name][1]), f"a refused call changed {name}"


def may_overflow(name, options):
    """Powers and exponentials whose value itself may be beyond any number."""
    if name in ("PNormPushLoss", "p_norm_push_loss", "Tasks"):
        return True
    parts_of_auc = ("AUCLoss", "CVaRPartialAUCLoss", "PartialAUCLoss", "TwoWayPartialAUCLoss")
    objectives = ("auc_loss", "cvar_partial_auc_loss", "partial_auc_loss", "two_way_partial_auc_loss")
    return name in (*parts_of_auc, *objectives) and options.get("surrogate") == "exp"


def is_finite(loss, gradients, dtype, *, overflow):
    """Whether value and gradient are; or the value is beyond the dtype of the scores, where the objective's own is."""
    if overflow and loss.item() > torch.finfo(dtype).max:
        return False
    assert loss.isfinite(), f"the value is {loss.item()}"
    for gradient in gradients:
        assert gradient.isfinite().all(), f"the value is {loss.item()}, the gradient {gradient.tolist()}"
    return True


def make_loss(case, plan, population):
    if plan.known or not case.indexed or case.loss in (L.AveragePrecisionLoss, L.CVaRPartialAUCLoss):
        return case.make(population)
    return case.loss(len(population[0][0]), **case.options)


def check_loss(case, plan):
    """Some steps of a loss."""
    case = case.with_options(**plan.options(case.loss))
    floats, others = case.population(n=plan.n, seed=plan.seed)
    population = floats, plan.others(case, others)
    loss_fn, error = attempt(make_loss, case, plan, population)
    if error is not None:
        check_refusal(error, case.loss, getattr(case.loss, "from_targets", case.loss), type(plan.rule or RULES[1]))
        return
    for call in plan.calls:
        check_call(case, plan, loss_fn, population, call)


def check_call(case, plan, loss_fn, population, call):
    rows = torch.tensor([row % plan.n for row in call.rows])
    floats, usual = call.floats(population[0])
    rest = [x[rows.flip(0) if call.strange else rows] for x in population[1]] + ([rows] if case.indexed else [])
    loss_fn.train(call.mode != "eval")
    is_half, overflow = torch.finfo(call.dtype).bits < 32, may_overflow(case.loss.__name__, case.options)
    before, twin = state(loss_fn), copy.deepcopy(loss_fn) if is_half else None
    with torch.set_grad_enabled(call.mode != "no_grad"):
        torch.manual_seed(0)
        loss, error = attempt(loss_fn, *floats, *rest)
    if error is not None:
        check_refusal(error, loss_fn.forward)
        legal = plan.stretch == 1.0 and not (call.strange or overflow or case.loss in OF_DIRECTIONS)
        assert not (usual and legal), f"refused what is usual: {error!r}"
    if error is not None or call.mode != "train":
        check_unchanged(before, state(loss_fn))
    assert not loss_fn.table.u.isnan().any(), "the table has NaN"
    if error is not None:
        return
    gradients = torch.autograd.grad(loss, floats) if call.mode != "no_grad" else []
    if not is_half:
        is_finite(loss, gradients, call.dtype, overflow=overflow)
        return
    # Half precision is that of float32, rounded: what float16 has no number for is infinite.
    wide = [x.detach().float().requires_grad_() for x in floats]
    with torch.set_grad_enabled(call.mode != "no_grad"):
        torch.manual_seed(0)
        loss = twin(*wide, *rest)
    exact = torch.autograd.grad(loss, wide) if call.mode != "no_grad" else []
    if is_finite(loss, exact, torch.float32, overflow=overflow):
        for mine, theirs in zip(gradients, exact, strict=True):
            torch.testing.assert_close(mine, theirs.to(call.dtype), rtol=1e-2, atol=1e-3)


def check_objective(case, plan):
    """An exact objective, on the data of each call."""
    function = getattr(fcco.functional, case.name)
    options = {**case.options, **plan.options(function)}
    overflow = may_overflow(case.name, options)
    for call in plan.calls:
        population, others = case.make(n=plan.n, seed=plan.seed)
        rows = torch.tensor([row % plan.n for row in call.rows])
        floats, usual = call.floats(population)
        others = [x[rows] for x in plan.others(case, others)]
        loss, error = attempt(lambda *x: function(*x, **options), *floats, *others)
        if error is not None:
            check_refusal(error, function)
            legal = plan.stretch == 1.0 and not (overflow or case.name.endswith("contrastive_loss"))
            assert not (usual and legal and call.dtype != torch.float16), f"refused what is usual: {error!r}"
        elif torch.finfo(call.dtype).bits >= 32:
            is_finite(loss, torch.autograd.grad(loss, floats), call.dtype, overflow=overflow)
        else:
            wide = function(*(x.detach().float() for x in floats), *others, **options)
            torch.testing.assert_close(loss, wide.to(call.dtype), rtol=1e-2, atol=1e-3)


def distinct(some):
    return list({str(case): case for case in some}.values())


TARGETS = [
    *((check_loss, case) for case in distinct([*modules.CASES, *modules.DEFAULTS, *SPECIAL])),
    *((check_objective, case) for case in distinct([*objectives.CASES, *objectives.DEFAULTS])),
]


def fuzz(check, case, **options):
    """Look for a plan on which the check fails; raises with the smallest one."""

    @settings(
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        phases=[Phase.reuse, Phase.generate, Phase.shrink],
        **options,
    )
    @given(plans)
    def run(plan):
        check(case, plan)

    run()


def report(case, error):
    """The smallest plan that fails, and where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    print(f"\n{case}: {type(error).__name__}: {str(error)[:300]}\n  at {place.filename}:{place.lineno}")
    for note in getattr(error, "__notes__", []):
        print(f"  {' '.join(note.split())}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--hours", type=float)
    parser.add_argument("--examples", type=int, default=100, help="plans of a case at a time")
    parser.add_argument("--only", default="", help="cases that have this in their names")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    deadline = time.monotonic() + (60 * asked.minutes if asked.hours is None else 3600 * asked.hours)
    left, failed, done = [target for target in TARGETS if asked.only in str(target[1])], [], 0
    while left and time.monotonic() < deadline:
        check, case = left.pop(0)
        try:
            fuzz(check, case, max_examples=asked.examples)
        except Exception as error:
            failed.append(str(case))
            report(case, error)
        else:
            left.append((check, case))  # to be gone on with when the others have had their turn
        done += asked.examples
    print(
        f"{done:,} plans of {len(left) + len(failed)} cases; {len(failed)} cases failed: {', '.join(failed) or 'none'}"
    )
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
