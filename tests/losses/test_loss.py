"""The shell: what every loss does, whatever its objective."""

import copy
import io
import pickle
import warnings

import numpy as np
import pytest
import torch

import fcco
from fcco.core.outers import FromFunction
from fcco.core.step import take_step
from fcco.losses.loss import ObjectiveLoss, attach
from fcco.objectives.contrastive import Contrastive
from fcco.objectives.given import GivenInner
from fcco.objectives.survival import Cox
from fcco.placement._messages import Layout
from losses import shells
from losses.threads import Ranks

every = pytest.mark.parametrize(("name", "memory"), shells.CASES)


def saved_and_loaded(loss, name, memory):
    file, fresh = io.BytesIO(), shells.make(name, memory)
    torch.save(loss.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    return fresh


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_run_goes_on_from_its_state_bit_for_bit(name, memory, dtype):
    loss = shells.make(name, memory)
    weight, _ = shells.train(loss, name, shells.weights(dtype=dtype))
    copies = [saved_and_loaded(loss, name, memory), copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))]
    _, wanted = shells.train(loss, name, weight, seed=2)
    for other in copies:
        np.testing.assert_array_equal(shells.train(other, name, weight, seed=2)[1], wanted)


@every
def test_numpy_and_torch_take_the_same_steps(name, memory, monkeypatch):
    _, wanted = shells.train(shells.make(name, memory), name, shells.weights(), steps=10)
    monkeypatch.setattr(ObjectiveLoss, "_takes_arrays", lambda self, columns: False)
    _, seen = shells.train(shells.make(name, memory), name, shells.weights(), steps=10)
    np.testing.assert_allclose(seen, wanted, rtol=1e-10, atol=1e-12)


@every
def test_only_training_changes_the_state(name, memory):
    loss = shells.make(name, memory)
    weight, _ = shells.train(loss, name, shells.weights(), steps=3)
    before = {key: value.clone() for key, value in loss.state_dict().items()}
    shells.train(loss.eval(), name, weight, steps=2)
    with loss.train().frozen() as visits:
        shells.train(loss, name, weight, steps=2)
    with torch.no_grad():
        loss(*shells.columns(name, torch.randn(6, 2).double(), torch.arange(6)), index=torch.arange(6))
    bad = torch.randn(6, 2).double()
    bad[4] = float("nan")
    with pytest.raises(ValueError, match="must be finite; got nan at position"):
        loss(*shells.columns(name, bad, torch.arange(6)), index=torch.arange(6))
    with pytest.raises(IndexError, match=r"index must be in \[0, 100\); got 100 at position 2"):
        loss(*shells.columns(name, bad[:3], torch.arange(3)), index=torch.tensor([0, 1, 100]))
    assert len(visits) == 2
    for key, value in loss.state_dict().items():
        assert torch.equal(value, before[key]), key


@every
def test_a_first_step_that_is_not_taken_leaves_no_trace(name, memory, monkeypatch):
    loss, rows = shells.make(name, memory), torch.arange(8)
    before, given = list(loss.state_dict()), shells.columns(name, torch.randn(8, 5).requires_grad_(), rows)
    with loss.frozen():
        loss(*given, index=rows)
    with monkeypatch.context() as patch:
        patch.setattr(loss, "_check_finite", lambda *step: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            loss(*given, index=rows)
    assert list(loss.state_dict()) == before
    shells.train(loss, name, shells.weights(), steps=1)  # with outputs of another shape


@every
@pytest.mark.parametrize("rows", [torch.arange(shells.N), torch.arange(31)], ids=len)
def test_a_batch_in_eval_mode_is_the_whole_population(name, memory, rows):
    outputs = torch.randn(len(rows), 2).double().requires_grad_()
    loss = shells.make(name, memory)
    given = shells.columns(name, outputs, rows)
    functional = {
        "ap": fcco.functional.average_precision_loss,
        "ap exact": lambda *x: fcco.functional.average_precision_loss(*x, surrogate="exp"),
        "cox": fcco.functional.cox_loss,
        "push": lambda *x: fcco.functional.p_norm_push_loss(*x, p=2),
    }.get(name, fcco.functional.nca_loss)
    wanted = functional(*given)
    value = loss.eval()(*given)
    torch.testing.assert_close(value, wanted)
    gradients = [torch.autograd.grad(v, outputs, retain_graph=True)[0] for v in (value, wanted)]
    assert gradients[1].abs().max() > 0
    torch.testing.assert_close(*gradients)


@every
def test_precisions_may_change(name, memory):
    loss = shells.make(name, memory)
    weight, _ = shells.train(loss, name, shells.weights(), steps=3)
    shells.train(loss, name, weight.float(), steps=3)
    shells.train(loss.half(), name, weight, steps=3)
    assert loss.table.u.dtype == torch.float64


@every
def test_second_derivatives_are_refused(name, memory):
    outputs = torch.randn(8, 2).double().requires_grad_()
    value = shells.make(name, memory)(*shells.columns(name, outputs, torch.arange(8)), index=torch.arange(8))
    with pytest.raises(RuntimeError, match="no second derivatives"):
        torch.autograd.grad(value, outputs, create_graph=True)


@pytest.mark.parametrize(("library", "dtype"), [("numpy", torch.float32), ("torch", torch.float64)])
@pytest.mark.parametrize("rule", [fcco.SOX(0.5), fcco.MOAP(0.5), fcco.BSGD()], ids=str)
@pytest.mark.parametrize(("name", "memory"), [*shells.CASES, ("given", 0), ("contrastive", 0), ("contrastive", 12)])
def test_what_is_extreme_is_refused_or_does_no_harm(name, memory, rule, library, dtype, monkeypatch):
    """Refused before it is remembered, at its place; or values and gradients stay finite, those of later steps too."""
    if library == "torch":
        monkeypatch.setattr(ObjectiveLoss, "_takes_arrays", lambda self, columns: False)
    largest = torch.finfo(dtype).max
    for extreme in (largest, -largest, -0.4 * largest, 1.5 * largest**0.5, largest**0.5, 0.4 * largest**0.5, 60.0):
        loss, generator = shells.make(name, memory, rule), torch.Generator().manual_seed(0)
        for step in range(5):
            rows, outputs = torch.arange(8) + 8 * step, torch.randn(8, 2, generator=generator).to(dtype)
            if step == 2:
                outputs[4] = extreme
            before = {key: value.clone() for key, value in loss.state_dict().items()}
            given, refused = shells.columns(name, outputs.requires_grad_(), rows), ""
            try:
                value = loss(*given, index=rows)
            except ValueError as error:
                refused = str(error)
            if refused:
                assert "finite; got" in refused
                assert "at position 4" in refused
                assert step == 2
                assert all(torch.equal(value, before[key]) for key, value in loss.state_dict().items())
                continue
            value.backward()
            assert value.isfinite()
            assert outputs.grad.isfinite().all()
            assert not any(value.isnan().any() for value in loss.state_dict().values())


def test_a_row_that_overflows_is_refused_whatever_f_makes_of_it():
    loss = ObjectiveLoss(GivenInner(FromFunction(lambda u: u.clamp(max=1.0))), 12, rule=fcco.MOAP(0.5))
    inner = torch.tensor([1.0, 1e38, 2.0]).requires_grad_()
    with pytest.raises(
        fcco.NotFiniteError, match=r"the table is finite; got 1e\+38 at position 1, in row 4: start from"
    ):
        loss(inner, index=torch.tensor([3, 4, 5]))
    assert not loss.table.visits.any()


@pytest.mark.parametrize("extreme", [-torch.inf, 1e30, -1e30])
def test_extreme_outputs_keep_value_and_gradient(extreme):
    outputs = torch.tensor([0.0, extreme], requires_grad=True)
    value = attach(2.5, [outputs], [np.array([1.0, 0.0])])
    value.backward()
    assert value.item() == 2.5
    assert outputs.grad.tolist() == [1.0, 0.0]


def test_bad_arguments_say_what_is_wrong():
    objective = shells.OBJECTIVES["cox"]()
    for error, message, arguments in (
        (TypeError, "objective must be an Objective; got str", ("cox", 5, fcco.BSGD())),
        (TypeError, "rule must be an instance of a rule", (objective, 5, fcco.SOX)),
        (ValueError, "rule SCGD needs estimates of all n rows", (objective, 5, fcco.SCGD(0.1))),
        (ValueError, "n must be at least 1; got 0", (objective, 0, fcco.BSGD())),
    ):
        with pytest.raises(error, match=message):
            ObjectiveLoss(*arguments[:2], rule=arguments[2])
    loss = shells.make("ap", 4)
    scores, target = torch.zeros(3, requires_grad=True), torch.tensor([0, 1, 0])
    with pytest.raises(TypeError, match="index must be given, because SOAP"):
        loss(scores, target)
    with pytest.raises(TypeError, match="takes 2 columns, score, label; got 1"):
        loss(scores, index=torch.arange(3))
    loss(scores, target, index=torch.arange(3))
    with pytest.raises(RuntimeError, match="memory: the saved memory has size=4"):
        shells.make("ap", 8).load_state_dict(loss.state_dict())


def test_a_memory_without_rows():
    loss = shells.make("ap", 8, fcco.BSGD())
    for _ in range(4):
        outputs = torch.randn(6, 2).double().requires_grad_()
        loss(*shells.columns("ap", outputs, torch.arange(6) * 2)).backward()
        assert outputs.grad.isfinite().all()
    assert (loss.memory.born >= 0).sum() == 16
    assert not loss.table.visits.any()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_memory_holds_the_newest_outputs_of_each_ring(library, monkeypatch):
    if library == "torch":
        monkeypatch.setattr(ObjectiveLoss, "_takes_arrays", lambda self, columns: False)
    size, generator, steps = 5, torch.Generator().manual_seed(0), []

    def recorded(*arguments):
        steps.append((arguments[4], take_step(*arguments)))
        return steps[-1][1]

    monkeypatch.setattr("fcco.losses.loss.take_step", recorded)
    loss, rings, cursors = shells.make("ap", size), [[None] * 5, [None] * 5], [0, 0]
    for step in range(12):
        rows = torch.randint(30, (4 if step % 3 else 17,), generator=generator)
        outputs = torch.randn(len(rows), 2, generator=generator).double().requires_grad_()
        score, label = shells.columns("ap", outputs, rows)
        loss(score, label, index=rows)
        recalled, made = steps[-1]
        assert float(recalled.rate) == 1 / (step + 1)
        rings = [[None if held and held[1] in rows else held for held in ring] for ring in rings]
        for k, row in enumerate(rows.tolist()):
            if row not in rows[k + 1 :]:
                ring = int(label[k])
                rings[ring][cursors[ring]] = step, row, float(score[k].detach())
                cursors[ring] = (cursors[ring] + 1) % size
        memory, places = loss.memory, [*rings[0], *rings[1], None]
        held = zip(memory.born.tolist(), memory.row.tolist(), memory.column0.tolist(), strict=True)
        assert [place if place[0] >= 0 else None for place in held] == places
        anchors = [k for k, place in enumerate(places) if place and place[1] % 4 == 0]
        assert (memory.share * (memory.born >= 0)).nonzero()[:, 0].tolist() == anchors
        fresh = dict(zip(made.rows.tolist(), np.asarray(made.kept), strict=True))
        old = dict(zip(np.asarray(recalled.anchors).tolist(), np.asarray(made.refreshed), strict=True))
        for k in anchors:
            np.testing.assert_array_equal(memory.at[k], fresh[places[k][1]] if places[k][0] == step else old[k])
        np.testing.assert_array_equal(memory.mean, made.mean)
    loss.memory.step.fill_(150)
    loss(score, label, index=rows)
    assert float(steps[-1][0].rate) == 0.01


@every
def test_steps_in_fixed_shapes_write_no_padding(name, memory, monkeypatch):
    monkeypatch.setattr(ObjectiveLoss, "_takes_arrays", lambda self, columns: False)
    made = []
    for is_fixed in (False, True):
        monkeypatch.setattr("fcco.losses.loss.can_read", lambda values, is_fixed=is_fixed: not is_fixed)
        monkeypatch.setattr("fcco.losses.table.can_read", lambda values, is_fixed=is_fixed: not is_fixed)
        loss = shells.make(name, memory)
        _, seen = shells.train(loss, name, shells.weights())
        made.append((seen, loss.table.u, loss.table.visits))
    for one, other in zip(*made, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("name", "memory"), [("ap exact", 12), ("nca", 12), ("cox", 0), ("push", 0)])
def test_two_ranks_take_the_steps_of_one(name, memory, monkeypatch):
    def everyone(rows, step):
        return torch.cat([rows[0::2], rows[1::2]])

    def watched():
        loss, rows = shells.make(name, memory), []
        loss.observers.append(lambda visit: rows.extend(visit.rows.tolist()))
        return loss, rows

    def train(group):
        loss, told = watched()
        loss.layout = Layout(group=group)
        options = {"part": lambda rows, step: rows[group.rank :: 2], "average": lambda g: ranks.sum(group.rank, g) / 2}
        return *shells.train(loss, name, shells.weights(), **options), loss.table.u, told

    alone, rows_of_all = watched()
    _, wanted = shells.train(alone, name, shells.weights(), part=everyone)
    ranks = Ranks(monkeypatch)
    made = ranks.run(train)
    for _, seen, rows, _ in made:
        np.testing.assert_allclose(seen, wanted, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(rows, alone.table.u, rtol=1e-9, atol=1e-12)
    assert sorted(made[0][-1] + made[1][-1]) == sorted(rows_of_all)  # each observes its own


@pytest.mark.parametrize(
    "bad",
    [
        {"label": None},
        {"label": torch.ones(3)},
        {"score": torch.ones(4, dtype=torch.int64)},
        {"score": torch.tensor([0.0, 1.0, torch.nan, 0.0]).double()},
        {"score": torch.zeros(4)},
        {"index": torch.tensor([0, 1, 2, 100])},
        {"index": torch.arange(4.0)},
        {"index": None},
        {"weight": torch.ones(4)},
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", [fcco.SOAP(0.5), fcco.BSGD()], ids=str)
def test_an_error_on_one_rank_is_one_on_all(rule, bad, monkeypatch):
    outputs = torch.randn(8, dtype=torch.float64)

    def call(group):
        loss, rows = shells.make("ap", 4, rule), torch.arange(4) + 4 * group.rank
        loss.layout = Layout(group=group)
        good = {"score": outputs[rows].clone().requires_grad_(), "label": rows % 2, "index": rows, "weight": None}
        said = []
        for given in (good | bad if group.rank == 1 else good, good):
            score, label, *others = given.values()
            try:
                said.append(loss(score, label, **dict(zip(("index", "weight"), others, strict=True))).item())
            except Exception as error:
                said.append(str(error))
        return *said, int(loss.table.step)

    (told, value, steps), (said, other, _) = Ranks(monkeypatch).run(call)
    assert "rank 1 has " in told  # refused its batch, or what differs
    assert isinstance(said, str)
    assert value == other
    assert steps == 1


@pytest.mark.parametrize("kind", ["f", "estimate", "gradient"])
def test_an_error_of_a_function_on_one_rank_is_one_on_all(kind, monkeypatch):
    class Failing(GivenInner):
        def inner(self, anchors, candidates, pairs, w):
            assert kind != "estimate" or anchors.inner.max() < 9
            inner, back = super().inner(anchors, candidates, pairs, w)
            return inner, (lambda *x: ((torch.inf * inner,), ())) if kind == "gradient" and inner.max() > 9 else back

    def f(u, index, sample):
        assert kind != "f" or sample.max() < 9
        return u.square() * sample

    def call(group):
        loss, rows = ObjectiveLoss(Failing(FromFunction(f)), 4, rule=fcco.SOAP(0.5)), torch.arange(2) + 2 * group.rank
        loss.layout, said = Layout(group=group), []
        for factor in (10.0 if group.rank == 1 else 1.0, 1.0):
            try:
                inner = factor * torch.ones(2).requires_grad_()
                said.append(loss(inner, index=rows, sample=inner.detach()).item())
            except Exception as error:
                said.append(type(error))
        return *said, int(loss.table.step), loss.table.u.tolist()

    told, said = Ranks(monkeypatch).run(call)
    assert told == (RuntimeError, 1.0, 1, [1.0] * 4)
    assert said == (fcco.NotFiniteError if kind == "gradient" else AssertionError, *told[1:])


def test_ranks_that_know_no_rows_have_different_ones(monkeypatch):
    outputs, label = torch.randn(6).double(), torch.tensor([0, 1, 0, 1, 1, 0])

    def call(group=None):
        loss = shells.make("ap", 4, fcco.BSGD())
        loss.layout = Layout(group=group)
        mine = slice(0, 6) if group is None else slice(3 * group.rank, 3 * group.rank + 3)
        return [loss(outputs[mine].clone().requires_grad_(), label[mine]).item() for _ in range(2)]

    ranks, wanted = Ranks(monkeypatch), call()
    assert ranks.run(call) == [pytest.approx(wanted)] * 2


@pytest.mark.parametrize("has_rows", [False, True])
def test_equal_batches_of_all_ranks_are_warned_of_once(has_rows, monkeypatch):
    def call(equal):
        def train(group):
            loss = shells.make("ap", 0, fcco.BSGD())
            loss.layout = Layout(group=group)
            shift = 0 if equal else group.rank
            for step in range(5):
                rows = (torch.arange(4) + step + shift) if has_rows else None
                loss(torch.arange(4.0).requires_grad_() + shift, torch.arange(4) % 2, index=rows)

        return train

    ranks = Ranks(monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ranks.run(call(equal=False))
        assert not caught
        ranks.run(call(equal=True))
    assert [str(warning.message)[:34] for warning in caught] == ["all 2 ranks had the same rows in e"]


def test_batches_are_not_equal_since_classes_share_rows(monkeypatch):
    def train(group):
        loss = fcco.losses.AUCLoss(9, 4, form="min_max")
        loss.layout = Layout(group=group)
        for _ in range(4):
            loss(torch.arange(4.0).requires_grad_() * (1 + group.rank), torch.arange(4) % 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ranks(monkeypatch).run(train)


@pytest.mark.parametrize(("name", "memory"), [*shells.CASES, ("contrastive", 0), ("contrastive", 12)])
def test_ranks_that_do_not_gather_are_each_by_themselves_but_for_the_table(name, memory, monkeypatch):
    """Both have the same batches, but for the rows: each takes the steps of one process, and the table has both."""

    def train(group=None):
        loss, values, generator = shells.make(name, memory), [], torch.Generator().manual_seed(0)
        loss.layout = Layout(gather=False, group=group)
        for step in range(4):
            rows = torch.randint(50, (8 + step,), generator=generator)
            outputs = torch.randn(len(rows), 2, generator=generator).double().requires_grad_()
            value = loss(*shells.columns(name, outputs, rows), index=rows + 50 * (group.rank if group else 0))
            values.append((value.detach(), *torch.autograd.grad(value, outputs)))
        return values, loss

    ranks, (wanted, alone) = Ranks(monkeypatch), train()
    for rank, (values, loss) in enumerate(ranks.run(train)):
        torch.testing.assert_close(values, wanted, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(loss.table.u, alone.table.u[:50].repeat(2, *[1] * (alone.table.dim > 1)))
        if memory:
            here = alone.memory.born >= 0
            torch.testing.assert_close(loss.memory.row[here], alone.memory.row[here] + 50 * rank)
            for key, buffer in alone.memory.named_buffers():
                if key != "row":
                    torch.testing.assert_close(loss.memory.get_buffer(key), (1 + (key == "mean")) * buffer)


@every
def test_a_rank_that_does_not_gather_may_have_no_examples(name, memory, monkeypatch):
    """The other takes the steps of one process."""

    def train(group=None):
        loss, values, generator = shells.make(name, memory), [], torch.Generator().manual_seed(0)
        loss.layout = Layout(gather=False, group=group)
        for step in range(3):
            rows = torch.randint(50, (8 + step,), generator=generator)
            outputs = torch.randn(len(rows), 2, generator=generator).double().requires_grad_()
            mine = slice(0) if group is not None and group.rank == 1 else slice(None)
            value = loss(*shells.columns(name, outputs[mine], rows[mine]), index=rows[mine])
            values.append((value.detach(), *torch.autograd.grad(value, outputs)))
        return values, loss.table.u

    ranks, (wanted, table) = Ranks(monkeypatch), train()
    (values, first), (others, second) = ranks.run(train)
    for (value, gradient), (_, none), (of_one, whole) in zip(values, others, wanted, strict=True):
        torch.testing.assert_close(value, of_one)
        torch.testing.assert_close(gradient, 2 * whole)  # as they are averaged
        assert not none.any()
    torch.testing.assert_close(first, table)
    assert torch.equal(first, second)


def test_ranks_that_do_not_gather_may_have_unequal_parts_or_none(monkeypatch):
    risk, time, event = torch.randn(9).double(), torch.arange(9.0).double(), torch.arange(9) % 3 < 2
    for parts in ([slice(0, 3), slice(3, 9)], [slice(0, 9), slice(9, 9)]):

        def call(group, parts=parts):
            loss, rows = ObjectiveLoss(Cox(), 9, rule=fcco.BSGD()), torch.arange(9)[parts[group.rank]]
            loss.layout = Layout(gather=False, group=group)
            leaf = risk[rows].clone().requires_grad_()
            value = loss(leaf, time[rows], event[rows], index=rows)
            return value.detach(), torch.autograd.grad(value, leaf)[0] / 2, loss.table.u

        leaf = risk.clone().requires_grad_()
        losses = [event[p].sum() * fcco.functional.cox_loss(leaf[p], time[p], event[p]) for p in parts if p.start < 9]
        wanted = sum(losses) / event.sum()
        (value, *first), (other, *second) = Ranks(monkeypatch).run(call)
        assert value == other
        torch.testing.assert_close(torch.cat([first[0], second[0]]), torch.autograd.grad(wanted, leaf)[0])
        assert torch.equal(first[1], second[1])
        assert torch.equal(first[1] != 0, event)


def test_two_ranks_add_up_an_f_with_a_sample(monkeypatch):
    rows, parts = torch.tensor([4, 0, 2, 3, 1]), [slice(0, 2), slice(2, 5)]
    inner, sample = torch.rand(2, 5).double() + 1

    def call(group=None):
        part, f = slice(None) if group is None else parts[group.rank], Scaled()
        loss, leaf = ObjectiveLoss(GivenInner(FromFunction(f)), 5, rule=fcco.SOAP(0.5)), inner[part].clone()
        loss.layout = Layout(group=group)
        value = loss(leaf.requires_grad_(), index=rows[part], sample=sample[part])
        value.backward()
        return value.item(), leaf.grad, f.factor.grad

    ranks, (value, gradient, of_scale) = Ranks(monkeypatch), call()
    values, gradients, of_scales = zip(*ranks.run(call), strict=True)
    assert values == pytest.approx((value, value))
    torch.testing.assert_close(torch.cat(gradients) / 2, gradient)
    torch.testing.assert_close(sum(of_scales) / 2, of_scale)


class Scaled(torch.nn.Module):
    """An f with a parameter of its own, which may take a sample."""

    def __init__(self):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(0.7).double())

    def forward(self, u, index, sample=None):
        return self.factor * u.square() * (1.0 if sample is None else sample)


def test_a_learnt_temperature_is_a_parameter_of_the_loss():
    views = [torch.randn(8, 3).double().requires_grad_() for _ in range(2)]
    tau = torch.nn.Parameter(torch.tensor(0.4).double())
    one = ObjectiveLoss(Contrastive(temperature=tau), 8, rule=fcco.SOAP(0.6))
    other = fcco.losses.ContrastiveLoss(8, temperature=tau, rule=fcco.SOAP(0.6)).double()
    assert dict(one.named_parameters()) == {"temperature": tau}
    for _ in range(2):
        values = one(*views, index=torch.arange(8)), other(*views, torch.arange(8))
        for part, wanted in zip(*(torch.autograd.grad(v, [*views, tau]) for v in values), strict=True):
            assert wanted.abs().max() > 0
            torch.testing.assert_close(part, wanted)
    exchanged = torch.tensor(0.9).double().requires_grad_()
    value = torch.func.functional_call(one.eval(), {"temperature": exchanged}, tuple(views))
    assert torch.autograd.grad(value, exchanged)[0].abs() > 0
    torch.testing.assert_close(value, other.eval()(*views, temperature=exchanged))
    assert one.objective.temperature is tau


def test_weights_are_for_given_inner_values_only():
    loss, outputs = shells.make("ap"), torch.randn(4, 2).double()
    with pytest.raises(TypeError, match="weight is not defined where examples are compared"):
        loss(*shells.columns("ap", outputs, torch.arange(4)), index=torch.arange(4), weight=torch.ones(4))
