"""What a loss remembers, and what it does not depend on."""

import copy
import io
import json
import math
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.func import functional_call, grad

import fcco
from fcco import functional, losses
from losses.cases import (
    AP,
    BATCHES,
    CASES,
    CONTRASTIVE,
    COX,
    INDEXED,
    LIST_MLE,
    LIST_NET,
    NCA,
    NDCG,
    gradients,
    run,
    same,
    state,
)


def equal(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def by_row(saved):
    """A state with what is remembered in the order of its rows: the places of it have no meaning."""
    memory = "memory." if "memory.row" in saved else "coupled.memory."
    if f"{memory}row" not in saved:
        return saved
    rows, held = saved[f"{memory}row"], (saved[f"{memory}born"] >= 0).nonzero().squeeze(1)
    order = held[rows[held].argsort()]
    listed = [name for name in saved if name.startswith(memory) and saved[name].shape[:1] == rows.shape]
    return {name: value[order] if name in listed else value for name, value in saved.items()}


@pytest.mark.parametrize("case", CASES, ids=str)
class TestState:
    def test_a_checkpoint_continues_bit_for_bit(self, case):
        population = case.population()
        whole, first, second = (case.make(population) for _ in range(3))
        expected = run(case, whole, population)
        observed = run(case, first, population, BATCHES[:2])
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second.load_state_dict(torch.load(file, weights_only=True))
        observed += run(case, second, population, BATCHES[2:])
        assert equal(observed, expected)
        assert same(state(whole), state(second))

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deep", "pickle"])
    def test_copies_are_independent(self, case, copied):
        population = case.population()
        loss_fn = case.make(population)
        run(case, loss_fn, population, BATCHES[:2])
        other, before = copied(loss_fn), state(loss_fn)
        ahead = run(case, other, population, BATCHES[2:])
        assert same(before, state(loss_fn))
        assert equal(run(case, loss_fn, population, BATCHES[2:]), ahead)

    def test_casting_to_half_precision_changes_nothing(self, case):
        """Sizes, shares and sums of a population do not fit into it."""
        population = case.population()
        plain, halved = case.make(population), case.make(population).half()
        assert all(b.dtype not in (torch.float16, torch.bfloat16) for b in halved.buffers())
        assert equal(run(case, plain, population), run(case, halved, population))

    def test_order_of_the_batch(self, case):
        case = case.with_room_for_all()  # what is dropped is the oldest, and in a batch the first
        population = case.population()
        plain, shuffled = case.make(population), case.make(population)
        expected = run(case, plain, population)
        observed = run(case, shuffled, population, [rows[::-1] for rows in BATCHES])
        torch.testing.assert_close(observed, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(by_row(state(plain)), by_row(state(shuffled)), rtol=1e-10, atol=1e-12)

    def test_within_torch_func(self, case):
        floats, others = population = case.population()
        plain, stateless = case.make(population), case.make(population)
        run(case, plain, population, BATCHES[:1])
        run(case, stateless, population, BATCHES[:1])
        before, buffers = state(stateless), {name: b.clone() for name, b in stateless.named_buffers()}

        def value(floats, buffers):
            return case.call(lambda *batch: functional_call(stateless, buffers, batch), (floats, others), BATCHES[1])

        observed = grad(value)(tuple(floats), buffers)
        expected = torch.autograd.grad(case.call(plain, population, BATCHES[1]), tuple(floats))
        torch.testing.assert_close(observed, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(buffers, dict(plain.named_buffers()), rtol=1e-10, atol=1e-12)
        assert same(before, state(stateless))

    def test_has_no_parameters(self, case):
        assert not list(case.make(case.population()).parameters())


@pytest.mark.parametrize("case", INDEXED, ids=str)
class TestRepeatedRows:
    def test_are_updated_once(self, case):
        """A batch with rows that stand twice: finite, in any order, and one value a row."""
        case = case.with_room_for_all()
        population = case.population()
        first, second = case.make(population), case.make(population)
        for rows in ([3, 3, 1, 0, 7, 7], [5, 3, 5, 5, 2, 1]):
            loss, other = case.call(first, population, rows), case.call(second, population, rows[::-1])
            torch.testing.assert_close(loss, other)
            torch.testing.assert_close(gradients(loss, population), gradients(other, population))
        torch.testing.assert_close(by_row(state(first)), by_row(state(second)))


class TestNoRivalOfItself:
    """An example that stands twice is not one of its own neighbours; its copy adds nothing that is not known."""

    @pytest.mark.parametrize(
        "case",
        [
            NCA,
            CONTRASTIVE,
            CONTRASTIVE.with_options(include_positive=True),
            AP.with_options(own_term="exact"),
            AP.with_options(own_term="exact", temperature=0.3),
            AP.with_options(own_term="exact", surrogate="squared_hinge"),
            AP.with_options(own_term="exact", surrogate="exp"),
            AP.with_options(own_term="sampled"),
            AP.with_options(own_term="sampled", surrogate="sigmoid", temperature=0.3),
            COX.with_options(own_term="exact"),
            LIST_NET.with_options(own_term="exact"),
            LIST_MLE.with_options(own_term="exact"),
            NDCG.with_options(own_term="exact"),
            NDCG.with_options(own_term="bounded"),
        ],
        ids=str,
    )
    def test_repeating_all_changes_nothing(self, case):
        population = case.population()
        once, twice = case.make(population), case.make(population)
        case.call(once, population)
        case.call(twice, population, torch.arange(13).repeat(2))
        torch.testing.assert_close(twice.table.u, once.table.u, rtol=1e-10, atol=1e-12)

    def test_an_item_that_stands_three_times_beside_a_bounded_own_term(self):
        """Of 6 relevant and 2 irrelevant items the batch has A thrice, B and E, at 4 of the 6 places of relevant ones.

        A relevant item stands for 2 - 4 / 6 of them, and the others of its stratum for the rest: B by itself beside A,
        the three places of A in equal parts beside B.
        """
        loss_fn = NDCG.loss.from_targets([1.0] * 6 + [0.0] * 2, [0] * 8, surrogate="hinge", own_term="bounded")
        a, b, e = 0.3, 0.6, 0.1
        scores = torch.tensor([a, a, a, b, e], dtype=torch.float64, requires_grad=True)
        rows = torch.tensor([0, 0, 0, 1, 6])
        loss_fn(scores, (rows < 6).double(), torch.zeros(5, dtype=torch.int64), rows)
        own = 2 - 4 / 6
        rank_of_a = own + (6 - own) * (1 + b - a) + 2 * (1 + e - a)
        rank_of_b = own + 3 * (6 - own) / 3 * (1 + a - b) + 2 * (1 + e - b)
        assert loss_fn.table.u[:2].tolist() == pytest.approx([rank_of_a, rank_of_b])

    def test_neighbours(self):
        """Were the copy a neighbour, at distance 0, it would be the nearest of all."""
        z = torch.tensor([[0.0], [0.0], [3.0]], requires_grad=True)
        loss_fn = losses.NCALoss(3, rule=fcco.BSGD())
        loss_fn(z, torch.tensor([0, 0, 1]), torch.tensor([0, 0, 1]))
        assert loss_fn.table.u[0, 0] == -torch.inf


@pytest.mark.parametrize("case", [LIST_NET, LIST_MLE, NDCG], ids=str)
def test_names_of_queries_do_not_matter(case):
    (scores,), (relevance, query) = population = case.population()
    renamed = ([scores], [relevance, -5 * query % 1013])
    assert len(renamed[1][1].unique()) == len(query.unique())
    assert equal(run(case, case.make(renamed), renamed), run(case, case.make(population), population))


def test_names_of_classes_do_not_matter():
    (embeddings,), (labels,) = population = NCA.population()
    renamed = ([embeddings], [3 - labels])
    torch.testing.assert_close(
        run(NCA, NCA.make(renamed), renamed), run(NCA, NCA.make(population), population), rtol=1e-12, atol=1e-14
    )
    unnumbered = ([embeddings], [100 * labels - 7])
    first, second = losses.NCALoss(13), losses.NCALoss(13)
    assert equal(run(NCA, first, unnumbered), run(NCA, second, population))


def test_only_the_order_of_times_matters():
    (risk,), (time, event) = population = COX.population()
    stretched = ([risk], [time.exp(), event])
    assert equal(run(COX, COX.make(stretched), stretched), run(COX, COX.make(population), population))


def test_a_temperature_of_group_dro_between_worst_and_mean():
    x, group = torch.tensor([1.0, 3.0], requires_grad=True), torch.tensor([0, 1])
    cold, warm = (losses.GroupDROLoss(2, temperature=t)(x, group).item() for t in (1e-3, 1e3))
    assert cold == pytest.approx(3.0, abs=1e-2)
    assert warm == pytest.approx(2.0, abs=1e-2)


def test_group_dro_remembers_groups_that_the_batch_lacks():
    """Their rows are in the soft maximum, and the groups at hand stand for all in the gradient."""
    loss_fn = losses.GroupDROLoss(3, temperature=0.5, rule=fcco.SOX(1.0))
    before = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64, requires_grad=True)
    loss_fn(before, torch.tensor([0, 1, 2]))
    x = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    loss = loss_fn(x, torch.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(functional.group_dro_loss(before, torch.arange(3), temperature=0.5).item())
    assert x.grad.item() == pytest.approx(3 * (before / 0.5).softmax(0)[0].item())
    assert loss_fn.table.u.tolist() == [1.0, 2.0, 0.5]


def lists(relevance):
    return [relevance, [0, 0, 0, 1, 1]]


TARGETS = [1, 0, 0, 1, 0], [1, 0, 0, 0, 0]
SPLITS = [1, 0, 0, 1, 0], [0, 1, 0, 1, 0]
STRANGERS = {
    "kind": (lambda: losses.NCALoss(5), lambda: losses.ContrastiveLoss(5), "kind=NCALoss"),
    "kind again": (lambda: losses.CoxLoss(5), lambda: losses.PartialAUCLoss(5), "kind=CoxLoss"),
    "engine": (
        lambda: losses.CoxLoss(5, memory=0),
        lambda: fcco.CoupledLoss(torch.square, 5, log=True, rule=fcco.SOX(gamma=0.1)),
        "kind=CoxLoss",
    ),
    "n_pos": (lambda: losses.AveragePrecisionLoss(5, 2), lambda: losses.AveragePrecisionLoss(5, 3), "n_pos=2"),
    "positives of push": (
        *(lambda t=t: losses.PNormPushLoss.from_targets(t) for t in TARGETS),
        "n_pos=2",
    ),
    "positives of AUC": (
        *(lambda t=t: losses.PartialAUCLoss.from_targets(t) for t in TARGETS),
        "n_pos=2",
    ),
    "n_events": (lambda: losses.CoxLoss(5, 2), lambda: losses.CoxLoss(5, 3), "n_events=2"),
    "times": (*(lambda t=t: losses.BaselineCoxLoss(9, [1.0, t], [1, 1]) for t in (2.0, 3.0)), "times="),
    "events": (*(lambda e=e: losses.BaselineCoxLoss(9, [1.0, 2.0], [1, e]) for e in (1, 2)), "events="),
    "n of times": (*(lambda n=n: losses.BaselineCoxLoss(n, [1.0, 2.0], [1, 1]) for n in (9, 8)), "n_examples=9"),
    "class_sizes": (*(lambda c=c: losses.NCALoss(5, c) for c in ([2, 3], [3, 2])), "class_sizes="),
    "lists": (*(lambda t=t: losses.ListNetLoss.from_targets(*lists(t)) for t in TARGETS), "lists="),
    "group_sizes": (*(lambda g=g: losses.GroupDROLoss(2, group_sizes=g) for g in ([2, 3], [3, 2])), "group_sizes="),
    **{
        f"labels of {loss.__name__}": (*(lambda t=t, loss=loss: loss.from_targets(t) for t in SPLITS), "labels=")
        for loss in (
            losses.AveragePrecisionLoss,
            losses.PNormPushLoss,
            losses.PartialAUCLoss,
            losses.CVaRPartialAUCLoss,
            losses.NCALoss,
            losses.SupervisedContrastiveLoss,
            losses.CoxLoss,
        )
    },
    "labels of several classes": (
        *(lambda t=t: losses.PartialAUCLoss.from_targets(torch.tensor([t, TARGETS[0]]).T) for t in SPLITS),
        "labels=",
    ),
    "n_classes": (*(lambda c=c: losses.SoftmaxLoss(5, c) for c in (7, 8)), "n_classes=7"),
}


def fill(module):
    """A table that holds something."""
    for table in (part for part in module.modules() if isinstance(part, fcco.InnerTable)):
        table.u.fill_(0.5)
        table.visits.fill_(1)
    return module


def about(module):
    """What a state says of itself."""
    return json.loads(bytes(module.table.get_extra_state().tolist()))


class TestBelonging:
    """A state is loaded into the loss it belongs to, and refused by others, unless it is meant."""

    @pytest.mark.parametrize("name", STRANGERS)
    def test_strangers_are_refused(self, name):
        make, make_other, named = STRANGERS[name]
        saved, other = fill(make()).state_dict(), make_other()
        before = copy.deepcopy(other.state_dict())
        with pytest.raises(
            RuntimeError, match=r"table: the saved table has .*load it within fcco\.load_anyway"
        ) as caught:
            other.load_state_dict(saved)
        has, this = str(caught.value).split(", this one has ")
        assert named in has
        assert named.split("=")[0] in this
        assert same(other.state_dict(), before)
        make().load_state_dict(saved)

    @pytest.mark.parametrize("name", STRANGERS)
    def test_strangers_are_loaded_where_it_is_meant(self, name):
        make, make_other, _ = STRANGERS[name]
        saved, other = fill(make()).state_dict(), make_other()
        with fcco.load_anyway():
            other.load_state_dict(saved)
        assert (other.table.u == 0.5).all()
        with pytest.raises(RuntimeError, match="the saved table has"):
            make_other().load_state_dict(saved)

    @pytest.mark.parametrize("anyway", [False, True])
    def test_shapes_and_spaces_must_fit_in_any_case(self, anyway):
        loss_fn, refusal = losses.CoxLoss(5), pytest.raises(RuntimeError, match="the saved table has")
        for other in (losses.CoxLoss(6), losses.NCALoss(5), losses.InvariantLogisticLoss(5, rule=fcco.SOAP(0.5))):
            if anyway:
                with fcco.load_anyway(), refusal:
                    loss_fn.load_state_dict(other.state_dict())
            else:
                with refusal:
                    loss_fn.load_state_dict(other.state_dict())

    def test_what_one_side_does_not_know_is_not_compared(self):
        ignorant, knowing = losses.CoxLoss(5, memory=0), losses.CoxLoss(5, 2, memory=0)
        ignorant.load_state_dict(knowing.state_dict())
        knowing.load_state_dict(ignorant.state_dict())
        fcco.InnerTable(5, log=True).load_state_dict(knowing.table.state_dict())

    def test_labels_are_the_same_in_any_form(self):
        known = [
            about(losses.AveragePrecisionLoss.from_targets(target))["labels"]
            for target in (SPLITS[0], torch.tensor(SPLITS[0]).bool(), torch.tensor(SPLITS[0], dtype=torch.float64))
        ]
        assert len(set(known)) == 1

    def test_both_tables_of_a_loss_are_refused(self):
        saved, other = (losses.TwoWayPartialAUCLoss.from_targets(target) for target in SPLITS)
        before = state(other)
        with pytest.raises(RuntimeError, match=r"table: the saved table has labels="):
            other.load_state_dict(fill(saved).state_dict())
        assert same(state(other), before)

    def test_states_without_labels_are_loaded(self):
        saved = fill(losses.AveragePrecisionLoss(5, 2))
        for target in SPLITS:
            losses.AveragePrecisionLoss.from_targets(target).load_state_dict(saved.state_dict())

    def test_settings_may_change(self):
        saved = fill(losses.ContrastiveLoss(5, temperature=0.1, rule=fcco.SOAP(0.9)))
        resumed = losses.ContrastiveLoss(5, temperature=0.2, rule=fcco.SOX(0.1), own_term="sampled")
        resumed.load_state_dict(saved.state_dict())
        assert torch.equal(resumed.table.u, saved.table.u)

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
    @pytest.mark.parametrize("log", [False, True])
    def test_rows_that_are_not_finite_are_refused(self, bad, log):
        saved, loss_fn = (fcco.CoupledLoss(torch.square, 4, log=log, rule=fcco.SOX(gamma=0.1)) for _ in range(2))
        fill(saved).table.u[2] = bad
        if log and bad < 0:
            loss_fn.load_state_dict(saved.state_dict())
            assert loss_fn.table.u[2] == bad
            return
        with pytest.raises(RuntimeError, match=rf"table: in the saved table, u must be .*; got {bad} at position 2"):
            loss_fn.load_state_dict(saved.state_dict())
        assert not loss_fn.table.visits.any()
        with fcco.load_anyway():
            loss_fn.load_state_dict(saved.state_dict())
        assert loss_fn.table.visits.all()

    @pytest.mark.parametrize("cast", [nn.Module.float, nn.Module.double, nn.Module.half, lambda m: m.to("meta")])
    def test_times_are_known_again_after_a_cast(self, cast):
        times = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
        saved, loss_fn = (losses.BaselineCoxLoss(9, times, [1, 1, 1]) for _ in range(2))
        assert about(cast(saved)) == about(loss_fn)

    def test_times_are_the_same_in_any_precision(self):
        def told(times, dtype):
            return about(losses.BaselineCoxLoss(9, torch.tensor(times, dtype=dtype), [1, 1]))

        assert told([0.1, 2], torch.float32) == told([0.1, 2], torch.float64)
        assert told([1, 2], torch.int64) == told([1, 2], torch.float32) != told([0.1, 2], torch.float32)


class TestVersions:
    def test_every_state_has_one(self):
        loss_fn = losses.AveragePrecisionLoss(5, 2)
        kind = {"kind": "AveragePrecisionLoss", "n_pos": 2}
        assert about(loss_fn) == {"version": 1, "n": 5, "dim": 2, "log": False, **kind}

    def test_newer_ones_are_refused(self):
        loss_fn = losses.CoxLoss(5)
        content = json.dumps({"version": 2, "something": "else"}).encode()
        newer = {**loss_fn.state_dict(), "table._extra_state": torch.tensor(list(content), dtype=torch.uint8)}
        with (
            fcco.load_anyway(),
            pytest.raises(RuntimeError, match="has version 2, this fcco knows up to 1: update"),
        ):
            loss_fn.load_state_dict(newer)


class TestSavers:
    """The identity goes wherever tensors go."""

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_states_are_tensors_of_one_size(self, case):
        loss_fn = case.make(case.population())
        assert all(isinstance(value, torch.Tensor) for value in loss_fn.state_dict().values())
        assert loss_fn.table.get_extra_state().shape == (512,)

    def test_safetensors(self, tmp_path):
        save_file = pytest.importorskip("safetensors.torch").save_file
        load_file = pytest.importorskip("safetensors.torch").load_file
        save_file(losses.NCALoss(5).state_dict(), tmp_path / "state")
        losses.NCALoss(5).load_state_dict(load_file(tmp_path / "state"))
        with pytest.raises(RuntimeError, match="kind=NCALoss"):
            losses.ContrastiveLoss(5).load_state_dict(load_file(tmp_path / "state"))

    @pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
    def test_distributed_checkpoint(self, tmp_path):
        saved, resumed, other = fill(losses.NCALoss(5)), losses.NCALoss(5), losses.ContrastiveLoss(5)
        dcp.save(saved.state_dict(), checkpoint_id=tmp_path / "saved")
        for loss_fn in (resumed, other):
            into = loss_fn.state_dict()
            dcp.load(into, checkpoint_id=tmp_path / "saved")
            if loss_fn is resumed:
                loss_fn.load_state_dict(into)
                continue
            with pytest.raises(RuntimeError, match="kind=NCALoss"):
                loss_fn.load_state_dict(into)
        assert same(state(resumed), state(saved))

    @pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
    def test_distributed_checkpoint_from_before_versions(self, tmp_path):
        saved, resumed = fill(losses.NCALoss(5)), losses.NCALoss(5)
        older = {name: value for name, value in saved.state_dict().items() if "_extra_state" not in name}
        dcp.save(older, checkpoint_id=tmp_path / "saved")
        into, planner = resumed.state_dict(), dcp.DefaultLoadPlanner(allow_partial_load=True)
        dcp.load(into, checkpoint_id=tmp_path / "saved", planner=planner)
        resumed.load_state_dict(into)
        assert same(state(resumed), state(saved))

    @pytest.mark.parametrize("started", [False, True])
    def test_a_state_that_is_refused_changes_no_memory(self, started):
        population = NCA.population()
        saved = losses.NCALoss.from_targets(population[1][0], memory=8)
        run(NCA, saved, population)
        of_other_classes = losses.NCALoss(13, [4, 4, 3, 2], memory=8)
        of_other_size = losses.NCALoss.from_targets(population[1][0], memory=4)
        for other in (of_other_classes, of_other_size):
            if started:
                NCA.call(other, population, [0, 1])
            before = state(other)
            with pytest.raises(RuntimeError, match="Error\\(s\\) in loading state_dict"):
                other.load_state_dict(saved.state_dict())
            assert same(before, state(other))

    @pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
    def test_distributed_checkpoint_of_a_memory(self, tmp_path):
        """A new loss has no room for outputs yet, whose shape it does not know: its memory starts empty."""
        population = NCA.population()
        saved, resumed, fresh = (NCA.make(population, fcco.BSGD(), memory=8) for _ in range(3))
        run(NCA, saved, population)
        dcp.save(saved.state_dict(), checkpoint_id=tmp_path / "saved")
        into = resumed.state_dict()
        dcp.load(into, checkpoint_id=tmp_path / "saved")
        resumed.load_state_dict(into)
        assert len(resumed.memory.ages()) == 0
        for loss_fn in (resumed, fresh):
            run(NCA, loss_fn, population, BATCHES[:1])
        torch.testing.assert_close(resumed.memory.ages(), fresh.memory.ages())
        NCA.call(resumed, population, BATCHES[1]).backward()
        assert all(x.grad.isfinite().all() for x in population[0])

    def test_a_loss_within_a_model(self):
        saved, other = (nn.ModuleDict({"cox": losses.CoxLoss(5, events)}) for events in (2, 3))
        with pytest.raises(RuntimeError, match=r"cox\.table: the saved table has n_events=2"):
            other.load_state_dict(saved.state_dict())


def test_an_empty_population_is_treated_as_one_row():
    """A share of the outer rows is a number, also where there are none."""
    loss_fn = losses.PNormPushLoss(3, rule=fcco.MOAP(0.5)).knows(None, 0)
    monitor = fcco.diagnostics.Monitor(loss_fn)
    loss_fn(torch.ones(3, requires_grad=True), torch.ones(3), torch.arange(3)).backward()
    assert loss_fn.n_outer == 1
    assert monitor.report()["never_seen"] == 1.0
