"""SoftmaxLoss where the candidates may be the target: sampled with ids, and the batch of two towers."""

import copy
from itertools import combinations, product

import pytest
import torch
import torch.nn.functional as F

import fcco
from fcco import losses
from losses.cases import same, state

N, C = 7, 5
ITEMS = torch.tensor([0, 1, 2, 3, 4, 0, 3])
Q = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15], dtype=torch.float64)
ROWS = torch.arange(N)


def logits(seed=0):
    """Of all examples with all classes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, C, dtype=torch.float64, generator=generator).requires_grad_()


def target_of(scores):
    return scores[ROWS, ITEMS]


def exact(scores):
    """[N, 1]: the sum over all classes, of the target's 1 among them."""
    return (scores - target_of(scores).unsqueeze(1)).exp().sum(1, keepdim=True).detach()


def estimate(loss_fn, call):
    """[N, 1]: the rows that one call writes, and which."""
    fresh = copy.deepcopy(loss_fn).double()
    call(fresh)
    return fresh.table.u.exp().unsqueeze(1), fresh.table.visits.unsqueeze(1)


def sampled(scores, drawn, log_q=None):
    ids = {"target": ITEMS, "candidates": torch.tensor(drawn)}
    return lambda loss_fn: loss_fn(target_of(scores), scores[:, drawn], ROWS, log_q, **ids)


def batch_of(scores, rows, log_q=None):
    rows = torch.as_tensor(rows)
    log_q = None if log_q is None else log_q[ITEMS[rows]]
    return lambda loss_fn: loss_fn.in_batch(scores[rows][:, ITEMS[rows]], ITEMS[rows], rows, log_q)


class TestUnbiased:
    LOSS = losses.SoftmaxLoss(N, C, own_term="exact")

    @pytest.mark.parametrize("size", [1, 2, 3])
    @pytest.mark.parametrize("replacement", [True, False])
    def test_uniform_draws_among_all_classes(self, size, replacement):
        """Over the samples in which an example has a term, those with a class other than its target."""
        scores, total, count = logits(), 0.0, 0
        for drawn in product(range(C), repeat=size) if replacement else combinations(range(C), size):
            rows, seen = estimate(self.LOSS, sampled(scores, list(drawn)))
            total, count = total + torch.where(seen, rows, 0.0), count + seen
        torch.testing.assert_close(total / count, exact(scores), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_draws_of_known_probability_among_all_classes(self, size):
        """A draw of the target is a draw of nothing; left out altogether it would bias the others by 1 / (1 - q)."""
        scores, mean = logits(), 0.0
        for drawn in map(list, product(range(C), repeat=size)):
            rows, _ = estimate(self.LOSS, sampled(scores, drawn, Q[drawn].log()))
            mean = mean + Q[drawn].prod() * rows
        torch.testing.assert_close(mean, exact(scores), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("size", [2, 3, 5, 7])
    def test_batches_of_two_towers(self, size):
        """Two items have two examples each. A candidate is one of the N - 1 others, and its item as likely."""
        scores, total, count = logits(), 0.0, 0
        log_q = (ITEMS.bincount().double() / (N - 1)).log()
        for rows in combinations(range(N), size):
            found, seen = estimate(self.LOSS, batch_of(scores, rows, log_q))
            total, count = total + torch.where(seen, found, 0.0), count + seen
        torch.testing.assert_close(total / count, exact(scores), rtol=1e-12, atol=0)

    @pytest.mark.parametrize("size", [2, 3, 5])
    def test_batches_of_two_towers_whose_items_are_all_different(self, size):
        scores, total, count = logits(), 0.0, 0
        for rows in combinations(range(C), size):
            found, seen = estimate(self.LOSS, batch_of(scores, rows))
            total, count = total + torch.where(seen, found, 0.0), count + seen
        torch.testing.assert_close((total / count)[:C], exact(scores)[:C], rtol=1e-12, atol=0)


class TestExact:
    """The batch is the training set, the candidates are all classes."""

    def objective(self, scores, rows=ROWS):
        return F.cross_entropy(scores[rows], ITEMS[rows])

    def check(self, loss, wanted, scores):
        torch.testing.assert_close(loss, wanted)
        torch.testing.assert_close(torch.autograd.grad(loss, scores), torch.autograd.grad(wanted, scores))

    @pytest.mark.parametrize("own_term", ["exact", "sampled"])
    @pytest.mark.parametrize("rule", [fcco.BSGD(), fcco.SOAP(1.0), fcco.SOX(0.3)], ids=str)
    def test_all_classes(self, own_term, rule):
        scores, loss_fn = logits(), losses.SoftmaxLoss(N, C, rule, own_term)
        self.check(sampled(scores, list(range(C)))(loss_fn), self.objective(scores), scores)

    @pytest.mark.parametrize("rule", [fcco.BSGD(), fcco.SOAP(1.0), fcco.SOX(0.3)], ids=str)
    def test_two_towers(self, rule):
        scores, log_q = logits(), (ITEMS.bincount().double() / (N - 1)).log()
        loss_fn = losses.SoftmaxLoss(N, C, rule, own_term="exact")
        self.check(batch_of(scores, ROWS, log_q)(loss_fn), self.objective(scores), scores)

    @pytest.mark.parametrize("own_term", ["exact", "sampled"])
    def test_two_towers_whose_items_are_all_different(self, own_term):
        scores, loss_fn = logits(), losses.SoftmaxLoss(N, C, own_term=own_term)
        self.check(batch_of(scores, ROWS[:C])(loss_fn), self.objective(scores, ROWS[:C]), scores)


class TestCrossEntropy:
    """Without a table, the losses that people have."""

    def check_gradients(self, loss, wanted, scores):
        torch.testing.assert_close(*(torch.autograd.grad(x, scores)[0] for x in (loss, wanted)), rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("n_classes", [None, 50])
    def test_two_towers(self, n_classes):
        scores, rows = torch.randn(C, C, dtype=torch.float64, requires_grad=True), torch.arange(C)
        loss = losses.SoftmaxLoss(N, n_classes).in_batch(scores, ITEMS[:C], rows)
        wanted = F.cross_entropy(scores, rows)
        self.check_gradients(loss, wanted, scores)
        if n_classes is None:
            torch.testing.assert_close(loss, wanted)

    def test_two_towers_with_log_q(self):
        """The value is that of all items: B candidates stand for them, each for 1 / (B q)."""
        scores, rows = torch.randn(C, C, dtype=torch.float64, requires_grad=True), torch.arange(C)
        loss = losses.SoftmaxLoss(N).in_batch(scores, ITEMS[:C], rows, Q.log())
        wanted = F.cross_entropy(scores - Q.log(), rows)
        self.check_gradients(loss, wanted, scores)
        torch.testing.assert_close(loss, wanted - torch.tensor(C).double().log() - Q.log().mean())

    @pytest.mark.parametrize("log_q", [None, Q.log()], ids=["uniform", "log_q"])
    def test_an_item_that_stands_twice_is_no_rival_of_itself(self, log_q):
        scores = torch.randn(N, N, dtype=torch.float64, requires_grad=True)
        log_q = None if log_q is None else log_q[ITEMS]
        loss = losses.SoftmaxLoss(N).in_batch(scores, ITEMS, ROWS, log_q)
        twice = ITEMS.eq(ITEMS.unsqueeze(1)) & ~torch.eye(N, dtype=torch.bool)
        corrected = (scores if log_q is None else scores - log_q).masked_fill(twice, -torch.inf)
        self.check_gradients(loss, F.cross_entropy(corrected, ROWS), scores)

    def test_a_candidate_that_is_the_target_counts_once(self):
        scores, drawn = logits(), [0, 0, 1, 2]
        loss = sampled(scores, drawn)(losses.SoftmaxLoss(N))
        candidates = scores[:, drawn].masked_fill(ITEMS.unsqueeze(1) == torch.tensor(drawn), -torch.inf)
        both = torch.cat([target_of(scores).unsqueeze(1), candidates], 1)
        wanted = F.cross_entropy(both, torch.zeros(N, dtype=torch.int64))
        torch.testing.assert_close(loss, wanted)
        self.check_gradients(loss, wanted, scores)


@pytest.mark.parametrize("log_q", [None, Q[:4].log(), Q[:4].log().expand(N, 4)], ids=["uniform", "one row", "each"])
@pytest.mark.parametrize("own_term", ["exact", "sampled"])
def test_candidates_that_are_none_of_the_targets_change_nothing(log_q, own_term):
    scores, other = logits(), torch.arange(4) + 100
    loss_fn = losses.SoftmaxLoss(N, C, own_term=own_term)
    arguments = target_of(scores), scores[:, :4], ROWS, log_q
    for candidates in (other, other.expand(N, 4)):
        torch.testing.assert_close(loss_fn(*arguments, target=ITEMS, candidates=candidates), loss_fn(*arguments))


@pytest.mark.parametrize("rule", [fcco.SOX(0.3), fcco.MOAP(0.3), fcco.BSGD()], ids=str)
@pytest.mark.parametrize(
    "call",
    [
        lambda loss_fn, s: loss_fn.in_batch(s[:1, :1], torch.tensor([3]), torch.tensor([5])),
        lambda loss_fn, s: loss_fn.in_batch(s[:1, :1], torch.tensor([3]), torch.tensor([5]), torch.tensor([-1.0])),
        lambda loss_fn, s: loss_fn.in_batch(s[:2, :2], torch.tensor([3, 3]), torch.tensor([5, 6])),
        lambda loss_fn, s: loss_fn(
            s[:2, 0],
            s[:2, 1:3],
            torch.tensor([5, 6]),
            target=torch.tensor([3, 4]),
            candidates=torch.tensor([[3, 3], [4, 4]]),
        ),
    ],
)
def test_nothing_but_the_target_is_no_term(call, rule):
    scores, loss_fn = torch.randn(3, 3, requires_grad=True), losses.SoftmaxLoss(N, C, rule)
    loss = call(loss_fn, scores)
    loss.backward()
    assert loss.item() == 0.0
    assert not scores.grad.any()
    assert not loss_fn.table.visits.any()


def test_a_draw_of_the_target_with_log_q_is_an_estimate_like_any_other():
    """Of 0 for all other classes: g is 1."""
    loss_fn = losses.SoftmaxLoss(N, C, fcco.SOX(0.3))
    ids = {"target": torch.tensor([3]), "candidates": torch.tensor([3, 3])}
    loss = loss_fn(torch.zeros(1), torch.zeros(1, 2), torch.tensor([5]), Q[[3, 3]].log().float(), **ids)
    assert loss.item() == pytest.approx(0.0, abs=1e-6)
    assert loss_fn.table.visits.nonzero().tolist() == [[5]]


def test_compiled_and_in_half_precision():
    scores = torch.randn(N, N, dtype=torch.bfloat16, requires_grad=True)
    loss_fn = losses.SoftmaxLoss(N, C, fcco.SOX(0.3))
    compiled = torch.compile(copy.deepcopy(loss_fn).in_batch, backend="eager", fullgraph=True)
    found = [call(scores, ITEMS, ROWS, Q.log().float()[ITEMS]) for call in (loss_fn.in_batch, compiled)]
    assert {x.dtype for x in found} == {torch.float32}
    torch.testing.assert_close(*found)


S, T = torch.tensor([[-1.0, 0.5, 2.0], [0.3, -0.7, 1.1], [0.0, 1.4, -0.2]]), torch.tensor([1, 2, 3])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda f: f(S[0], S, T, target=T), ValueError, "target and candidates must be given together; got only t"),
        (lambda f: f(S[0], S, T, candidates=T), ValueError, "target and candidates must be given together; got only c"),
        (lambda f: f(S[0], S, T, target=T.float(), candidates=T), TypeError, "target must have an integer dtype"),
        (lambda f: f(S[0], S, T, target=T, candidates=T.float()), TypeError, "candidates must have an integer dtype"),
        (lambda f: f(S[0], S, T, target=T[:2], candidates=T), ValueError, r"target must have the shape \[3\]"),
        (lambda f: f(S[0], S, T, target=T, candidates=T[:2]), ValueError, r"candidates must have the shape \[3\]"),
        (lambda f: f(S[0], S, T, target=T, candidates=S.long()[:2]), ValueError, r"candidates must have the shape"),
        (
            lambda f: f(S[0], S, T, target=T, candidates=T),
            ValueError,
            "candidates must have at most n_classes = 2 distinct values; got 3",
        ),
        (lambda f: f.in_batch(S, T, T), ValueError, "items must have at most n_classes = 2 distinct values; got 3"),
        (lambda f: f.in_batch(S[:2], T[:2], T[:2]), ValueError, r"scores must have the shape \[B, B\]; got \[2, 3\]"),
        (lambda f: f.in_batch(S[0], T, T), ValueError, r"scores must have the shape \[B, B\]; got \[3\]"),
        (lambda f: f.in_batch(S, T[:2], T), ValueError, r"items must have the shape \[3\], like scores"),
        (lambda f: f.in_batch(S, S[0], T), TypeError, "items must have an integer dtype"),
        (lambda f: f.in_batch(S, T // 2, T[:2]), ValueError, r"index must have the shape \[3\], like scores"),
        (lambda f: f.in_batch(S, T // 2, T, S), ValueError, r"log_q must have the shape \[B\]; got \[3, 3\]"),
        (lambda f: f.in_batch(S, T // 2, T, S[0, :2]), ValueError, r"log_q must have the shape \[3\]"),
        (lambda f: f.in_batch(S, T // 2, T, S[0].log()), ValueError, "log_q must be finite; got nan at position 0"),
        (lambda f: f.in_batch(S, T // 2, T + 9), IndexError, r"index must be in \[0, 7\); got 10 at position 0"),
    ],
)
def test_refuses(call, error, message):
    loss_fn = losses.SoftmaxLoss(N, 2)
    before = state(loss_fn)
    with pytest.raises(error, match=message):
        call(loss_fn)
    assert same(before, state(loss_fn))
