"""What a loss remembers, and what it does not depend on."""

import copy
import io
import pickle

import pytest
import torch
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

    def test_order_of_the_batch(self, case):
        population = case.population()
        plain, shuffled = case.make(population), case.make(population)
        expected = run(case, plain, population)
        observed = run(case, shuffled, population, [rows[::-1] for rows in BATCHES])
        torch.testing.assert_close(observed, expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(state(plain), state(shuffled), rtol=1e-10, atol=1e-12)

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
        population = case.population()
        first, second = case.make(population), case.make(population)
        for rows in ([3, 3, 1, 0, 7, 7], [5, 3, 5, 5, 2, 1]):
            loss, other = case.call(first, population, rows), case.call(second, population, rows[::-1])
            torch.testing.assert_close(loss, other)
            torch.testing.assert_close(gradients(loss, population), gradients(other, population))
        torch.testing.assert_close(state(first), state(second))


class TestNoRivalOfItself:
    """An example that stands twice is not one of its own neighbours; its copy adds nothing that is not known."""

    @pytest.mark.parametrize(
        "case",
        [
            NCA,
            CONTRASTIVE,
            CONTRASTIVE.with_options(include_positive=True),
            AP.with_options(own_term="exact"),
            AP.with_options(own_term="exact", surrogate="exp"),
            COX.with_options(own_term="exact"),
            LIST_NET.with_options(own_term="exact"),
            LIST_MLE.with_options(own_term="exact"),
            NDCG.with_options(own_term="exact"),
        ],
        ids=str,
    )
    def test_repeating_all_changes_nothing(self, case):
        population = case.population()
        once, twice = case.make(population), case.make(population)
        case.call(once, population)
        case.call(twice, population, torch.arange(13).repeat(2))
        torch.testing.assert_close(twice.table.u, once.table.u, rtol=1e-10, atol=1e-12)

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
