"""Inner estimates from own examples and rivals, which are public: parts of the estimate of both together."""

import pytest
import torch

import fcco
from fcco import functional
from fcco._pool import Estimate
from fcco.functional._surrogates import resolve_surrogate

OWN, RIVALS = 4, 5
GENERATOR = torch.Generator().manual_seed(0)
SCORES = torch.randn(OWN + RIVALS, dtype=torch.float64, generator=GENERATOR)
EMBEDDINGS = torch.randn(OWN + RIVALS, 3, dtype=torch.float64, generator=GENERATOR)
OTHERS = torch.randn(OWN + RIVALS, 3, dtype=torch.float64, generator=GENERATOR)
LABELS = torch.tensor([1, 0, 0, 1, 1, 0, 1, 0, 0])
TIMES = torch.tensor([3.0, 1.0, 2.0, 2.0, 5.0, 4.0, 1.0, 7.0, 6.0])
QUERIES = torch.tensor([0, 0, 1, 1, 0, 1, 1, 0, 0])
ROWS = torch.tensor([3, 1, 4, 0, 5, 9, 2, 6, 3])

CASES = {
    "average_precision": ((SCORES, LABELS), {"n": 30, "n_pos": 10, "own_term": "exact", "rows": ROWS}),
    "average_precision-sampled": (
        (SCORES, LABELS),
        {"n": 30, "n_pos": 10, "own_term": "sampled", "rows": ROWS, "temperature": 0.3},
    ),
    "average_precision-hinge": ((SCORES, LABELS), {"n": 30, "n_pos": 10, "surrogate": "squared_hinge"}),
    "average_precision-exp": ((SCORES, LABELS), {"n": 30, "n_pos": 10, "surrogate": "exp", "own_term": "sampled"}),
    "p_norm_push": ((SCORES, LABELS), {"surrogate": "logistic"}),
    "p_norm_push-exp": ((SCORES, LABELS), {}),
    "partial_auc": ((SCORES, LABELS), {"temperature": 0.5}),
    "nca": ((EMBEDDINGS, LABELS), {"n": 30, "rows": ROWS}),
    "nca-classes": ((EMBEDDINGS, LABELS), {"class_sizes": torch.tensor([20, 10]), "rows": ROWS}),
    "contrastive": ((EMBEDDINGS, OTHERS), {"temperature": 0.2, "mode": "two_views", "include_positive": True, "n": 30}),
    "cox": ((SCORES, TIMES, LABELS), {"n": 30, "n_events": 10, "own_term": "exact", "rows": ROWS}),
    "list_net": ((SCORES, LABELS.double(), QUERIES), {"own_term": "sampled", "lists": "known"}),
    "list_mle": ((SCORES, LABELS.double(), QUERIES), {"own_term": "exact", "rows": ROWS, "lists": "known"}),
    "ndcg": ((SCORES, LABELS.double(), QUERIES), {"own_term": "bounded", "rows": ROWS, "lists": "known"}),
    "ndcg-sharp": ((SCORES, LABELS.double(), QUERIES), {"temperature": 0.3, "lists": "known"}),
}


def known_lists():
    ones = torch.ones_like(QUERIES)
    return functional.Lists(20 * ones, 8 * ones, torch.rand(len(QUERIES)), QUERIES, LABELS.double())


@pytest.mark.parametrize("name", CASES)
def test_rivals_count_as_if_they_were_of_the_batch(name):
    columns, options = CASES[name]
    options = {**options, **({"lists": known_lists()} if options.get("lists") else {})}
    estimate = getattr(functional, f"{name.partition('-')[0]}_inner")
    together = estimate(*columns, **options)
    own, rivals = [column[:OWN] for column in columns], [column[OWN:] for column in columns]
    apart = estimate(*own, rivals=rivals, **options)
    assert isinstance(apart, Estimate)
    assert len(apart.inner) == OWN
    torch.testing.assert_close(apart.inner, together.inner[:OWN], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(apart.share, together.share[:OWN], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_no_rivals_are_none(name):
    columns, options = CASES[name]
    options = {**options, **({"lists": known_lists()} if options.get("lists") else {})}
    estimate = getattr(functional, f"{name.partition('-')[0]}_inner")
    nobody = [column[:0] for column in columns]
    torch.testing.assert_close(estimate(*columns, rivals=nobody, **options), estimate(*columns, **options))


@pytest.mark.parametrize("temperature", [1.0, 0.3, torch.tensor(0.3, dtype=torch.float64)], ids=str)
@pytest.mark.parametrize("own_term", ["exact", "sampled"])
@pytest.mark.parametrize("surrogate", ["ramp", "sigmoid", "squared_hinge", "hinge", "logistic", "exp"])
def test_own_terms_of_average_precision(surrogate, own_term, temperature):
    """Row 3, a positive, is there twice: its copies are no rivals of it, and count like itself if it is sampled."""
    n, n_pos, labels = 30, 10, torch.tensor([1, 0, 0, 1, 1, 0, 1, 0, 1])
    scores = torch.cat([SCORES[:-1], SCORES[:1]])
    options = {"n": n, "n_pos": n_pos, "own_term": own_term, "surrogate": surrogate, "temperature": temperature}
    estimate = functional.average_precision_inner(scores, labels, rows=ROWS, **options)
    ell = resolve_surrogate(surrogate)
    own_value = 1.0 if surrogate in ("ramp", "sigmoid") else ell.at_zero(scores)
    positives, negatives = (labels == 1).nonzero().flatten().tolist(), (labels == 0).nonzero().flatten().tolist()
    for i in positives:
        others = [j for j in positives if ROWS[j] != ROWS[i]]
        sums = [ell((scores[some] - scores[i]) / temperature).sum() for some in (others, negatives)]
        copies = len(positives) - len(others)
        if own_term == "exact":
            among_positives = own_value + (n_pos - 1) / len(others) * sums[0]
        else:
            among_positives = n_pos / len(positives) * (copies * own_value + sums[0])
        g = torch.stack([among_positives, among_positives + (n - n_pos) / len(negatives) * sums[1]]) / n
        found = estimate.inner[i].exp() if surrogate == "exp" else estimate.inner[i]
        torch.testing.assert_close(found, g, rtol=1e-12, atol=1e-15)


def test_gradients_reach_rivals():
    rivals = SCORES[OWN:].clone().requires_grad_()
    functional.cox_inner(SCORES[:OWN], TIMES[:OWN], LABELS[:OWN], rivals=(rivals, TIMES[OWN:], LABELS[OWN:])).inner[
        0
    ].backward()
    assert rivals.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("rivals", "message"),
    [
        ((SCORES,), "rivals must have the 2 columns of the batch; got 1"),
        ((EMBEDDINGS, LABELS), r"rivals\[0\] must have the shape \[R\]; got \[9, 3\]"),
        ((SCORES, [0, 1]), r"rivals\[1\] must have the shape \[R\]; got list"),
    ],
)
def test_refuses_rivals_of_another_kind(rivals, message):
    with pytest.raises(ValueError, match=message):
        functional.p_norm_push_inner(SCORES, LABELS, rivals=rivals)


def test_weights_are_the_shares_of_their_total():
    estimate = functional.cox_inner(SCORES, TIMES, LABELS)
    torch.testing.assert_close(estimate.weight, LABELS.double() / LABELS.sum())
    nothing = functional.cox_inner(SCORES, TIMES, torch.zeros_like(LABELS))
    assert nothing.weight.tolist() == [0.0] * len(LABELS)


def test_irrelevant_items_of_list_mle_need_no_relevant_one():
    """They are compared with irrelevant items only, of which the batch has all."""
    zeros = torch.zeros(3, dtype=torch.int64)
    lists = functional.Lists(zeros + 5, zeros + 2, torch.ones(3), zeros, torch.zeros(3))
    estimate = functional.list_mle_inner(torch.zeros(3), torch.zeros(3), zeros, lists=lists, own_term="exact")
    torch.testing.assert_close(estimate.inner.exp(), torch.full((3,), 3.0))
    assert (estimate.share > 0).all()


def test_a_loss_of_ones_own_is_that_of_the_library():
    own = fcco.CoupledLoss(lambda u: u.exp().square(), 10, rule=fcco.SOAP(0.3), log=True)
    library = fcco.losses.PNormPushLoss(10, p=2, rule=fcco.SOAP(0.3))
    for rows in ([3, 1, 4, 0], [5, 9, 3, 1]):
        scores = torch.randn(4, generator=GENERATOR).requires_grad_()
        same = scores.detach().clone().requires_grad_()
        estimate = functional.p_norm_push_inner(scores, LABELS[:4])
        first = own(estimate.inner, rows, weight=estimate.weight)
        second = library(same, LABELS[:4], rows)
        first.backward()
        second.backward()
        torch.testing.assert_close(first, second)
        torch.testing.assert_close(scores.grad, same.grad)
    torch.testing.assert_close(own.table.u, library.table.u)
