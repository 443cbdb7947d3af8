"""Steps worked out by hand are those of the estimates and of the engine: all losses without a memory."""

import math

import pytest
import torch

import fcco
from fcco import losses
from fcco.losses import _bipartite, _likelihood, _listwise, _partial_auc, _similarity, _survival

N, SIZE = 60, 14
QUERY = torch.arange(N) // 12
RULES = [fcco.BSGD(), fcco.SOX(0.3), fcco.SOAP(fcco.schedules.Power(0.5))]


def relevances(generator):
    return torch.randint(0, 3, (N,), generator=generator).float() * (torch.arange(N) % 5 > 0)


class Data:
    """A training set; ``batch`` draws the arguments of a loss."""

    def __init__(self, dtype):
        self.generator = torch.Generator().manual_seed(0)
        self.dtype = dtype
        self.relevance = relevances(self.generator)
        self.event = (torch.rand(N, generator=self.generator) < 0.4).long()
        self.time = torch.randint(1, 15, (N,), generator=self.generator).float()
        self.label = torch.randint(0, 4, (N,), generator=self.generator)

    def batch(self, kind, size):
        rows = torch.randperm(N, generator=self.generator)[:size]
        if kind == "lists":  # some lists have one stratum in the batch, and one list has a single item
            rows = torch.cat([torch.arange(5), 12 + torch.tensor([3, 1, 2, 7]), torch.tensor([24, 50, 49, 51, 53])])
            rows = rows[torch.randperm(len(rows), generator=self.generator)]
        shape = (len(rows),) if kind in ("scores", "cox", "lists") else (len(rows), 3)
        outputs = [self._outputs(shape) for _ in range(2 if kind == "views" else 1)]
        if kind == "classes":
            outputs.insert(0, self._outputs(shape[:1]))
        others = {
            "scores": [self.event],
            "cox": [self.time, self.event],
            "lists": [self.relevance, QUERY],
            "embeddings": [self.label],
            "views": [],
            "classes": [],
        }[kind]
        return outputs, [column[rows] for column in others], rows

    def _outputs(self, shape):
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.dtype).requires_grad_()


def listwise(kind, **options):
    return lambda data, rule: kind.from_targets(data.relevance, QUERY, rule=rule, **options)


CASES = {
    "cox": ("cox", lambda data, rule: losses.CoxLoss.from_targets(data.event, rule=rule)),
    "cox-unknown": ("cox", lambda data, rule: losses.CoxLoss(N, rule=rule)),
    "partial-auc": ("scores", lambda data, rule: losses.PartialAUCLoss(N, 0.7, rule=rule)),
    "partial-auc-logistic": ("scores", lambda data, rule: losses.PartialAUCLoss(N, 0.7, "logistic", rule=rule)),
    "partial-auc-exp": ("scores", lambda data, rule: losses.PartialAUCLoss(N, 0.7, "exp", rule=rule)),
    "push": ("scores", lambda data, rule: losses.PNormPushLoss(N, rule=rule)),
    "ap": ("scores", lambda data, rule: losses.AveragePrecisionLoss.from_targets(data.event, rule=rule)),
    "nca": ("embeddings", lambda data, rule: losses.NCALoss(N, rule=rule)),
    "nca-log": ("embeddings", lambda data, rule: losses.NCALoss(N, rule=rule, log_likelihood=True)),
    "views": ("views", lambda data, rule: losses.ContrastiveLoss(N, 0.5, rule=rule)),
    "views-nt-xent": (
        "views",
        lambda data, rule: losses.ContrastiveLoss(N, 0.5, include_positive=True, own_term="sampled", rule=rule),
    ),
    "cross-modal": (
        "views",
        lambda data, rule: losses.ContrastiveLoss(N, 0.5, mode="cross_modal", include_positive=True, rule=rule),
    ),
    "softmax": ("classes", lambda data, rule: losses.SoftmaxLoss(N, rule=rule)),
    "softmax-exact": ("classes", lambda data, rule: losses.SoftmaxLoss(N, 9, rule, "exact")),
    "list-net": ("lists", listwise(losses.ListNetLoss)),
    "list-net-softmax": ("lists", listwise(losses.ListNetLoss, target="softmax")),
    "list-mle": ("lists", listwise(losses.ListMLELoss)),
    "ndcg": ("lists", listwise(losses.NDCGLoss, temperature=0.3)),
    "ndcg-sampled": ("lists", listwise(losses.NDCGLoss, own_term="sampled", surrogate="squared_hinge")),
    "ndcg-top": ("lists", listwise(losses.NDCGLoss, k=2, surrogate="sigmoid")),
}
MODULES = (_bipartite, _likelihood, _listwise, _partial_auc, _similarity, _survival)


def walk(make, kind, rule, dtype, monkeypatch, *, by_hand, size=SIZE, steps=4):
    """Return values and gradients of some steps, and the table."""
    data, history, nodes = Data(dtype), [], []
    loss_fn = make(data, rule)
    with monkeypatch.context() as patch:
        for module in () if by_hand else MODULES:
            patch.setattr(module, "step_by_hand", lambda *_: None)
        for _ in range(steps):
            outputs, others, rows = data.batch(kind, size)
            loss = loss_fn(*outputs, *others, rows)
            loss.backward()
            nodes.append(type(loss.grad_fn).__name__)
            history += [loss.detach(), *(output.grad for output in outputs)]
    taken = {"DotBackward0", "AddBackward0"}.issuperset(nodes)
    return history, loss_fn.table.state_dict(), taken


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_by_hand_equals_the_engine(name, rule, monkeypatch):
    kind, make = CASES[name]
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 3e-5)):
        ours, table, taken = walk(make, kind, rule, dtype, monkeypatch, by_hand=True)
        engine, like, _ = walk(make, kind, rule, dtype, monkeypatch, by_hand=False)
        assert taken
        torch.testing.assert_close(ours, engine, rtol=tolerance, atol=tolerance)
        seen = table["visits"] > 0
        torch.testing.assert_close(table["visits"], like["visits"])
        torch.testing.assert_close(table["u"][seen], like["u"][seen], rtol=tolerance, atol=tolerance)
        assert table["step"] == like["step"]


@pytest.mark.parametrize("name", CASES)
def test_scores_of_any_scale_equal_the_engine(name, monkeypatch):
    kind, make = CASES[name]
    results = []
    for by_hand in (True, False):
        with monkeypatch.context() as patch:
            for module in () if by_hand else MODULES:
                patch.setattr(module, "step_by_hand", lambda *_: None)
            data = Data(torch.float64)
            for scale, offset in ((1e3, 0.0), (1e-3, 1e6), (30.0, -5.0)):
                outputs, others, rows = data.batch(kind, SIZE)
                outputs = [(scale * output.detach() + offset).requires_grad_() for output in outputs]
                try:
                    loss = make(data, fcco.SOAP(0.5))(*outputs, *others, rows)
                except fcco.NotFiniteError:
                    results.append(math.nan)
                    continue
                loss.backward()
                results += [loss.detach(), *(output.grad for output in outputs)]
    half = len(results) // 2
    torch.testing.assert_close(results[:half], results[half:], rtol=1e-7, atol=1e-7, equal_nan=True)


@pytest.mark.parametrize("name", CASES)
def test_what_is_unusual_is_left_to_the_engine(name):
    """Repeated rows, rows out of range, NaN, and a batch of one."""
    kind, make = CASES[name]
    data = Data(torch.float64)
    outputs, others, rows = data.batch(kind, SIZE)
    loss_fn = make(data, fcco.SOAP(0.5))
    twice = torch.cat([torch.arange(len(rows)), torch.arange(len(rows))])
    loss = loss_fn(*(output[twice] for output in outputs), *(column[twice] for column in others), rows[twice])
    assert loss.isfinite()
    with pytest.raises(IndexError, match="index must be in"):
        loss_fn(*outputs, *others, rows + N)
    outputs[0].detach()[0] = math.nan
    with pytest.raises(ValueError, match="finite"):
        loss_fn(*outputs, *others, rows)
    assert loss_fn.table.step == 1


@pytest.mark.parametrize("name", CASES)
def test_observers_see_the_same_and_frozen_steps_keep_nothing(name, monkeypatch):
    kind, make = CASES[name]
    seen = []
    for by_hand in (True, False):
        with monkeypatch.context() as patch:
            for module in () if by_hand else MODULES:
                patch.setattr(module, "step_by_hand", lambda *_: None)
            data = Data(torch.float64)
            loss_fn = make(data, fcco.SOAP(0.5))
            outputs, others, rows = data.batch(kind, SIZE)
            loss_fn.coupled.observers.append(seen.append)
            loss_fn(*outputs, *others, rows)
            before = loss_fn.table.u.clone()
            with loss_fn.coupled.frozen():
                loss_fn(*outputs, *others, rows)
            torch.testing.assert_close(loss_fn.table.u, before)
    ours, engine = ({int(row): estimate for row, estimate in _visited(visit)} for visit in seen)
    torch.testing.assert_close(ours, engine)


def _visited(visit):
    return zip(visit.rows[visit.where], visit.estimate[visit.where], strict=True)
