"""The mean of the inner estimate over all batches of a tiny population, by enumeration."""

import copy
from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations, product
from math import comb

import pytest
import torch

import fcco
from fcco import losses
from fcco.functional._surrogates import resolve_surrogate
from losses.cases import (
    AP,
    AUC,
    CONTRASTIVE,
    COX,
    CVAR,
    LATENT,
    LIST_MLE,
    LIST_NET,
    NCA,
    NDCG,
    PARTIAL_AUC,
    PUSH,
    SOFTMAX,
    STRATIFIED_COX,
    TWO_WAY,
    gradients,
)

N = 9
EXACT = {"own_term": "exact"}


def plain(table):
    return (table.u.exp() if table.log else table.u).double().reshape(table.n, -1)


def exact_rows(case, population, loss_fn):
    """The exact g of every row that has a term, and which those are."""
    loss_fn = copy.deepcopy(loss_fn).double()
    case.call(loss_fn, population)
    return plain(loss_fn.table), loss_fn.table.visits > 0


def mean_estimates(case, population, loss_fn, batches):
    """The mean of a row's first estimate over the batches in which it has a term, and how many those are."""
    total, count = 0.0, 0
    for rows in batches:
        fresh = copy.deepcopy(loss_fn).double()
        case.call(fresh, population, rows)
        seen = fresh.table.visits.unsqueeze(1) > 0
        total, count = total + torch.where(seen, plain(fresh.table), 0.0), count + seen
        assert not fresh.table.visits[[i for i in range(N) if i not in rows]].any()
    return total / count.clamp(min=1), count.squeeze(1)


def check_unbiased(case, batches, known=True, n=N):
    population = case.population(n=n)
    loss_fn = case.make(population) if known else case.loss(n, **case.options)
    wanted, has_term = exact_rows(case, population, loss_fn)
    mean, count = mean_estimates(case, population, loss_fn, batches)
    covered = count > 0
    assert covered.any()
    assert not (covered & ~has_term).any()
    torch.testing.assert_close(mean[covered], wanted[covered], rtol=1e-12, atol=1e-13)
    return covered, has_term


def subsets(size, n=N):
    return [list(rows) for rows in combinations(range(n), size)]


def strata(case, keys, counts, n=N):
    """All batches with the given number of rows of each stratum; ``keys`` says which stratum a row is in."""
    _, others = case.population(n=n)
    stratum = keys(*others).tolist()
    parts = [combinations([i for i in range(n) if stratum[i] == key], count) for key, count in counts.items()]
    return [list(chain.from_iterable(rows)) for rows in product(*parts)]


AVERAGE_PRECISION = [
    AP.with_options(**EXACT, **options)
    for options in (
        {"surrogate": "ramp"},
        {"surrogate": "ramp", "temperature": 0.3},
        {"surrogate": "sigmoid"},
        {"surrogate": "squared_hinge"},
        {"surrogate": "exp"},
        {"surrogate": "exp", "temperature": 0.5},
    )
]


class TestBipartite:
    """3 positives, 6 negatives."""

    @pytest.mark.parametrize(
        "case", [*AVERAGE_PRECISION, PUSH, PUSH.with_options(surrogate="hinge"), PARTIAL_AUC, TWO_WAY], ids=str
    )
    @pytest.mark.parametrize("counts", [(2, 1), (2, 2), (2, 5), (3, 2), (3, 6)], ids=str)
    def test_any_balance(self, case, counts):
        covered, has_term = check_unbiased(case, strata(case, lambda y: y, {1: counts[0], 0: counts[1]}))
        assert torch.equal(covered, has_term)

    @pytest.mark.parametrize("counts", [(1, 2), (2, 5), (3, 6)], ids=str)
    def test_ranks_among_negatives(self, counts):
        covered, has_term = check_unbiased(CVAR, strata(CVAR, lambda y: y, {1: counts[0], 0: counts[1]}))
        assert torch.equal(covered, has_term)

    @pytest.mark.parametrize("case", [*AVERAGE_PRECISION, PUSH, PARTIAL_AUC, CVAR], ids=str)
    def test_batches_of_all_balances(self, case):
        """Drawn from all rows: batches in which a row has no term do not count, and the others are not bent by it."""
        covered, has_term = check_unbiased(case, subsets(4))
        assert torch.equal(covered, has_term)


class TestGradientsOfAUC:
    """With rows that are right, the mean gradient over all batches is that of the objective, on all levels of it."""

    @pytest.mark.parametrize(
        "case",
        [
            AUC,
            AUC.with_options(surrogate="sigmoid"),
            AUC.with_options(form="min_max"),
            CVAR,
            TWO_WAY,
            TWO_WAY.with_options(temperature=0.5, positive_temperature=0.8, surrogate="logistic"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("counts", [(1, 2), (2, 3)], ids=str)
    def test_any_balance(self, case, counts):
        population = case.population(n=N)
        loss_fn = case.make(population, fcco.SOX(1e-6)).double()
        case.call(loss_fn, population)
        batches = strata(case, lambda y: y, {1: counts[0], 0: counts[1]})
        made = [gradients(case.call(copy.deepcopy(loss_fn), population, rows), population)[0] for rows in batches]
        (wanted,) = gradients(case.objective(population), population)
        torch.testing.assert_close(torch.stack(made).mean(0), wanted, rtol=1e-9, atol=1e-12)

    def test_value_of_pairs(self):
        """f is linear, so that a batch needs no row."""
        population = AUC.population(n=N)
        batches = strata(AUC, lambda y: y, {1: 2, 0: 2})
        mean = sum(AUC.call(AUC.make(population), population, rows) for rows in batches) / len(batches)
        torch.testing.assert_close(mean, AUC.objective(population))

    def test_class_means(self):
        case = AUC.with_options(form="min_max")
        population = case.population(n=N)
        (scores,), (target,) = population
        wanted = torch.stack([scores[target == 1].mean(), scores[target == 0].mean()]).detach().unsqueeze(0)
        rows = []
        for batch in strata(case, lambda y: y, {1: 1, 0: 4}):
            loss_fn = case.make(population).double()
            case.call(loss_fn, population, batch)
            rows.append(loss_fn.table.u[:, :2])  # the others are the means of the squares
        torch.testing.assert_close(torch.stack(rows).mean(0), wanted, rtol=1e-12, atol=1e-13)


class TestNeighbours:
    """Classes of 3, 3, 2 and 1."""

    @pytest.mark.parametrize("counts", [(2, 2, 2, 1), (3, 2, 1, 1), (2, 1, 1, 1), (3, 3, 2, 1)], ids=str)
    def test_any_balance_of_all_classes(self, counts):
        check_unbiased(NCA, strata(NCA, lambda y: y, dict(enumerate(counts))))

    def test_labels_that_skip_a_number(self):
        """A batch cannot have a class that nobody has: it has all classes, and may hold any share of each."""

        def skipping(rng, n):
            floats, [labels] = NCA.data(rng, n)
            return floats, [2 * labels]

        case = replace(NCA, data=skipping)
        check_unbiased(case, strata(case, lambda y: y, {0: 3, 2: 2, 4: 1, 6: 1}))

    @pytest.mark.parametrize("size", [2, 4, 8])
    def test_at_random(self, size):
        covered, has_term = check_unbiased(NCA, subsets(size), known=False)
        assert torch.equal(covered, has_term)

    def test_a_class_without_members_changes_nothing(self):
        """A batch has all classes if it has all that anybody is of: each is then weighed by its size."""
        labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
        z, rows = torch.randn(N, 2, dtype=torch.float64), torch.tensor([0, 1, 4, 5, 7])
        tables = []
        for numbers in (labels, torch.tensor([0, 2, 5])[labels]):
            loss_fn = losses.NCALoss.from_targets(numbers)
            loss_fn(z[rows].requires_grad_(), numbers[rows], rows)
            tables.append(loss_fn.table.u[rows])
        torch.testing.assert_close(*tables, rtol=1e-12, atol=1e-13)

    def test_mates_over_represented_and_others_at_random(self):
        """Two of the own class, and two of all others: what the own class has is weighed apart."""
        population = NCA.population(n=N)
        labels, loss_fn = population[1][0], NCA.make(population)
        wanted, _ = exact_rows(NCA, population, loss_fn)
        mates, strangers = ((labels == 0).nonzero().flatten().tolist(), (labels != 0).nonzero().flatten().tolist())
        batches = [[*a, *b] for a in combinations(mates, 2) for b in combinations(strangers, 2)]
        mean, _ = mean_estimates(NCA, population, loss_fn, batches)
        torch.testing.assert_close(mean[mates], wanted[mates], rtol=1e-12, atol=1e-13)

    def test_class_sampler(self):
        """Over the epochs of a sampler that leaves classes out and has mates together: both sums within 3%.

        Without the class sizes the mates, a quarter of a batch and a seventh of the data, count 2 times too much.
        """
        sizes = [12, 8, 8, 6, 6, 4, 4, 4]
        labels = torch.arange(8).repeat_interleave(torch.tensor(sizes))
        embeddings = 0.5 * torch.randn(52, 2, dtype=torch.float64) + 0.1 * labels.unsqueeze(1)
        sampler = fcco.data.ClassSampler(labels, classes=4, per_class=4)
        error = {}
        for known in (True, False):
            loss_fn = NCA.loss.from_targets(labels) if known else NCA.loss(52)
            wanted, _ = exact_rows(NCA, ([embeddings.requires_grad_()], [labels]), loss_fn)
            sums, count = torch.zeros(52, 2, dtype=torch.float64), torch.zeros(52)
            for _ in range(40):
                for rows in sampler:
                    fresh = copy.deepcopy(loss_fn).double()
                    fresh(embeddings[rows], labels[rows], torch.tensor(rows))
                    sums += torch.where(fresh.table.visits.unsqueeze(1), plain(fresh.table), 0.0)
                    count += fresh.table.visits
            error[known] = (sums / count.unsqueeze(1)).sum(0) / wanted.sum(0) - 1
        assert error[True].abs().max() < 0.03
        assert error[False][0] > 0.5


class TestSurvival:
    """6 events, 3 censored."""

    @pytest.mark.parametrize("counts", [(2, 1), (2, 3), (4, 1), (6, 3)], ids=str)
    def test_any_balance(self, counts):
        case = COX.with_options(**EXACT)
        batches = strata(case, lambda _, event: event, {True: counts[0], False: counts[1]})
        covered, has_term = check_unbiased(case, batches)
        assert torch.equal(covered, has_term)

    @pytest.mark.parametrize("size", [2, 5])
    @pytest.mark.parametrize("case", [COX, STRATIFIED_COX], ids=str)
    def test_at_random(self, case, size):
        covered, has_term = check_unbiased(case.with_options(**EXACT), subsets(size), known=False)
        assert torch.equal(covered, has_term)

    def test_any_balance_in_strata(self):
        """Batches need not hold any share of a stratum: sizes are those of all."""
        case = STRATIFIED_COX.with_options(**EXACT)
        check_unbiased(case, strata(case, lambda _, event, stratum: event, {True: 2, False: 1}))

    def test_batches_of_all_balances(self):
        check_unbiased(COX.with_options(**EXACT), subsets(4))


LISTWISE = [
    case.with_options(**EXACT)
    for case in (
        LIST_NET,
        LIST_NET.with_options(target="softmax"),
        LIST_MLE,
        NDCG,
        NDCG.with_options(temperature=0.3),
        NDCG.with_options(surrogate="squared_hinge"),
        NDCG.with_options(surrogate="exp"),
        NDCG.with_options(surrogate="sigmoid"),
    )
]


def stratum_of_item(relevance, query):
    """Irrelevant and relevant items of the third query are 0 and 1, of the fourth 2 and 3, all else is 4."""
    return torch.where(query == 3, 0, torch.where(query == 9, 2, 4)) + ((relevance > 0) & (query != 40) & (query != -7))


class TestLists:
    @pytest.mark.parametrize("case", LISTWISE, ids=str)
    @pytest.mark.parametrize("counts", [(1, 2, 1, 2), (1, 3, 2, 2), (1, 2, 2, 3)], ids=str)
    def test_any_balance_of_relevant_and_irrelevant(self, case, counts):
        check_unbiased(case, strata(case, stratum_of_item, {**dict(enumerate(counts)), 4: 0}, n=13), n=13)

    @pytest.mark.parametrize("case", LISTWISE, ids=str)
    def test_batches_of_all_balances(self, case):
        """Any 6 of the 8 items of two queries (a third has one item)."""
        check_unbiased(case, subsets(6))


class TestOthers:
    @pytest.mark.parametrize("include_positive", [False, True])
    @pytest.mark.parametrize("mode", ["two_views", "cross_modal"])
    @pytest.mark.parametrize("size", [2, 3, 6])
    def test_contrastive(self, include_positive, mode, size):
        case = CONTRASTIVE.with_options(include_positive=include_positive, mode=mode, temperature=0.5)
        covered, _ = check_unbiased(case, subsets(size))
        assert covered.all()

    @pytest.mark.parametrize("size", [1, 2, 4])
    def test_sampled_candidates(self, size):
        (target, candidates), _ = SOFTMAX.population(n=N)
        loss_fn = fcco.losses.SoftmaxLoss(N, n_classes=5, own_term="exact").double()
        estimates = []
        for columns in combinations(range(4), size):
            fresh = copy.deepcopy(loss_fn)
            fresh(target, candidates[:, columns], torch.arange(N))
            estimates.append(plain(fresh.table))
        wanted = 1 + (candidates - target.unsqueeze(1)).exp().sum(1, keepdim=True)
        torch.testing.assert_close(torch.stack(estimates).mean(0), wanted, rtol=1e-12, atol=0)

    def test_candidates_drawn_with_known_probabilities(self):
        """The mean over all pairs of draws, each weighed by how likely it is."""
        (target, candidates), _ = SOFTMAX.population(n=N)
        q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
        mean = 0.0
        for columns in map(list, product(range(4), repeat=2)):
            fresh = fcco.losses.SoftmaxLoss(N, n_classes=5, own_term="exact").double()
            fresh(target, candidates[:, columns], torch.arange(N), q[columns].log())
            mean = mean + q[columns].prod() * plain(fresh.table)
        wanted = 1 + (candidates - target.unsqueeze(1)).exp().sum(1, keepdim=True)
        torch.testing.assert_close(mean, wanted, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("size", [1, 3])
    def test_latent_variable(self, size):
        population = LATENT.population(n=N)
        wanted, _ = exact_rows(LATENT, population, LATENT.make(population))
        estimates = []
        for columns in combinations(range(5), size):
            fresh = LATENT.make(population).double()
            LATENT.call(fresh, ([x[:, columns] for x in population[0]], []))
            estimates.append(plain(fresh.table))
        torch.testing.assert_close(torch.stack(estimates).mean(0), wanted, rtol=1e-12, atol=0)

    @pytest.mark.parametrize("shape", [(5,), (N, 5)], ids=str)
    def test_latent_variables_of_unequal_probabilities(self, shape):
        """All pairs, drawn with replacement by q: their mean is the sum over all five z."""
        population = LATENT.population(n=N)
        wanted, _ = exact_rows(LATENT, population, LATENT.make(population))
        log_q = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
        mean = torch.zeros_like(wanted)
        for columns in product(range(5), repeat=2):
            fresh, chosen = LATENT.make(population).double(), list(columns)
            fresh(*(x[:, chosen] for x in population[0]), torch.arange(N), log_q[..., chosen])
            probability = log_q[..., chosen].sum(-1).exp().expand(N)
            mean = mean + probability.unsqueeze(1) * plain(fresh.table)
        torch.testing.assert_close(mean, 5 * wanted, rtol=1e-12, atol=0)


class TestSampledOwnTerm:
    """With b of N terms at hand, all weighing N / b, the bias is (N - b) / b times own term less mean of the others.

    It is 0 at the full batch, and small against g = N * mean where b is large.
    """

    @pytest.mark.parametrize("size", [2, 4, 8, 9])
    def test_bias_of_cox(self, size):
        case = COX.with_options(own_term="sampled")
        population = case.population(n=N)
        loss_fn = case.loss(N, own_term="sampled")
        exact, has_term = exact_rows(case, population, loss_fn)
        mean, _ = mean_estimates(case, population, loss_fn, subsets(size))
        bias = (N - size) / size * (1 - (exact - 1) / (N - 1))
        torch.testing.assert_close(mean[has_term], (exact + bias)[has_term], rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("counts", [(1, 1), (2, 3), (3, 6)])
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"temperature": 0.3},
            {"surrogate": "sigmoid"},
            {"surrogate": "squared_hinge"},
            {"surrogate": "exp", "temperature": 0.5},
        ],
        ids=str,
    )
    def test_bias_of_average_precision(self, counts, options):
        """Of the positives alone, 3 of them, with own terms of 1: negatives have no own term."""
        case = AP.with_options(own_term="sampled", **options)
        population = case.population(n=N)
        loss_fn = case.make(population)
        exact, has_term = exact_rows(case, population, loss_fn)
        mean, _ = mean_estimates(case, population, loss_fn, strata(case, lambda y: y, {1: counts[0], 0: counts[1]}))
        bias = (3 - counts[0]) / counts[0] * (1 - (exact[:, :1] - 1) / 2) * torch.tensor([1.0, 0.0])
        torch.testing.assert_close(mean[has_term], (exact + bias)[has_term], rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("size", [1, 3, 4])
    def test_bias_of_softmax(self, size):
        (target, candidates), _ = SOFTMAX.population(n=N)
        estimates = []
        for columns in combinations(range(4), size):
            fresh = fcco.losses.SoftmaxLoss(N, n_classes=5, own_term="sampled").double()
            fresh(target, candidates[:, columns], torch.arange(N))
            estimates.append(plain(fresh.table))
        others = (candidates - target.unsqueeze(1)).exp().mean(1, keepdim=True)
        wanted = 1 + 4 * others + (5 - (size + 1)) / (size + 1) * (1 - others)
        torch.testing.assert_close(torch.stack(estimates).mean(0), wanted, rtol=1e-12, atol=0)

    def bias_of_relevant(self, case, counts):
        """Scores [3] of the relevant items of a query of 4, and what their mean estimates [3, 1] exceed g by."""
        population = case.population(n=13)
        loss_fn = case.make(population)
        batches = strata(case, stratum_of_item, {0: counts[0], 1: counts[1]}, n=13)
        (scores,), (relevance, query) = population
        relevant = ((query == 3) & (relevance > 0)).nonzero().flatten()
        exact, _ = exact_rows(case, population, loss_fn)
        mean, _ = mean_estimates(case, population, loss_fn, batches)
        return scores[relevant].detach(), (mean - exact)[relevant]

    @pytest.mark.parametrize("counts", [(1, 1), (1, 2), (1, 3)])
    def test_bias_of_list_net(self, counts):
        """Strata are biased by their own members alone: of the 3 relevant items of a query of 4, in this case."""
        scores, bias = self.bias_of_relevant(LIST_NET.with_options(own_term="sampled"), counts)
        others = ((scores - scores.unsqueeze(1)).exp().sum(1, keepdim=True) - 1) / 2
        torch.testing.assert_close(bias, (3 - counts[1]) / counts[1] * (1 - others), rtol=1e-12, atol=1e-13)

    @pytest.mark.parametrize("counts", [(1, 1), (1, 2), (1, 3)])
    @pytest.mark.parametrize(("surrogate", "temperature"), [("ramp", 1.0), ("ramp", 0.3), ("squared_hinge", 1.0)])
    def test_bias_of_ndcg_with_a_bounded_own_term(self, counts, surrogate, temperature):
        """The own item stands for 2 less the share that the batch has, or for all 3 relevant ones where it is alone."""
        case = NDCG.with_options(own_term="bounded", surrogate=surrogate, temperature=temperature)
        scores, bias = self.bias_of_relevant(case, counts)
        ell = resolve_surrogate(surrogate)
        pairs = ell((scores - scores.unsqueeze(1)) / temperature)
        others = (pairs.sum(1, keepdim=True) - ell.at_zero(scores)) / 2
        own = 3 if counts[1] == 1 else 2 - counts[1] / 3
        torch.testing.assert_close(bias, (own - 1) * (1 - others), rtol=1e-12, atol=1e-13)


class TestGroups:
    """The gradient of group DRO, whose soft maximum is known from the table: Σ p_k ∇g_k on the average."""

    GROUP = torch.tensor([0, 0, 0, 0, 0, 1, 1, 1, 2])
    KNOWN = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)

    def mean_gradient(self, loss_fn, batches):
        values = torch.ones(N, dtype=torch.float64, requires_grad=True)
        loss_fn = loss_fn.double()
        loss_fn.table.write(None, self.KNOWN)
        for rows in batches:
            copy.deepcopy(loss_fn)(values[rows], self.GROUP[rows]).backward()
        return values.grad / len(batches)

    def wanted(self):
        share = (self.KNOWN / 0.7).softmax(0)
        return (share / self.GROUP.bincount())[self.GROUP]

    @pytest.mark.parametrize("size", [1, 2, 4, 8, 9])
    def test_batches_at_random(self, size):
        """Where all groups at hand are scaled alike, the rarest group's gradient is up to 3 times too small."""
        loss_fn = losses.GroupDROLoss.from_targets(self.GROUP, temperature=0.7, rule=fcco.SOX(0.1))
        torch.testing.assert_close(self.mean_gradient(loss_fn, subsets(size)), self.wanted(), rtol=1e-12, atol=0)

    def test_batches_with_two_groups_each(self):
        """All pairs of groups come equally often, and of each pair all members."""
        batches = [[i, j] for i in range(5) for j in (5, 6, 7)]
        batches += [[i, 8] for i in range(5) for _ in range(3)] + [[j, 8] for j in (5, 6, 7) for _ in range(5)]
        loss_fn = losses.GroupDROLoss(3, temperature=0.7, rule=fcco.SOX(0.1))
        torch.testing.assert_close(self.mean_gradient(loss_fn, batches), self.wanted(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("sizes", [[10**9, 1000], [10**8, 1], [5, 3]])
def test_presence_of_a_rare_group_keeps_its_digits(sizes):
    """P(absent) is the chance of drawing the whole batch among the others."""
    loss_fn = losses.GroupDROLoss(2, group_sizes=sizes)
    drawn, total = 4, sum(sizes)
    presence = loss_fn._presence(torch.tensor([True, True]), torch.zeros(drawn, dtype=torch.float64))
    expected = [1 - Fraction(comb(total - size, drawn), comb(total, drawn)) for size in sizes]
    assert presence.tolist() == pytest.approx([float(share) for share in expected], rel=1e-12)
