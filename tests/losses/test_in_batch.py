"""With ``rule=fcco.BSGD()``, the losses that practitioners use: formulas written here, or torch's own."""

import pytest
import torch
import torch.nn.functional as F

import fcco
from fcco import functional, losses
from losses.cases import AP, BATCHES, COX, LATENT, LIST_MLE, LIST_NET, NCA, NDCG, PARTIAL_AUC, PUSH, gradients

BSGD = fcco.BSGD()


def check_same_gradients(case, loss_fn, in_batch, dtype=torch.float64):
    """At every step, whatever the table has come to hold; values may differ by a constant, which is returned."""
    population = case.population(dtype=dtype)
    constants = []
    for rows in BATCHES:
        loss = case.call(loss_fn, population, rows)
        wanted = in_batch(*(x[rows] for x in (*population[0], *population[1])))
        torch.testing.assert_close(gradients(loss, population), gradients(wanted, population), rtol=1e-9, atol=1e-12)
        constants.append(loss.item() - wanted.item())
    return constants


def risk_set_is_the_batch(risk, time, event):
    terms = [risk[time >= t].logsumexp(0) - h for h, t, seen in zip(risk, time, event, strict=True) if seen]
    return sum(terms) / len(terms)


def test_cox():
    constants = check_same_gradients(COX, losses.CoxLoss(13, rule=BSGD), risk_set_is_the_batch)
    assert constants == pytest.approx([torch.tensor(13 / 6).log().item()] * 5)  # the batch stands for all


def soft_labels(scores, relevance, query):
    lists = [query == q for q in query.unique() if (relevance[query == q] > 0).any()]
    return torch.stack([F.cross_entropy(scores[m], relevance[m].double() / relevance[m].sum()) for m in lists]).mean()


def test_list_net():
    constants = check_same_gradients(LIST_NET, losses.ListNetLoss(13, rule=BSGD), soft_labels)
    assert constants == pytest.approx([0.0] * 5, abs=1e-9)


def softmax_labels(scores, relevance, query):
    lists = [query == q for q in query.unique()]
    return torch.stack([F.cross_entropy(scores[m], relevance[m].double().softmax(0)) for m in lists]).mean()


def test_list_net_of_softmax_labels():
    loss_fn = losses.ListNetLoss(13, target="softmax", rule=BSGD)
    assert check_same_gradients(LIST_NET, loss_fn, softmax_labels) == pytest.approx([0.0] * 5, abs=1e-9)


@pytest.mark.parametrize(
    ("case", "in_batch"),
    [
        (LIST_MLE, functional.list_mle_loss),
        (NDCG, functional.ndcg_loss),
        (NCA, functional.nca_loss),
        (PUSH, functional.p_norm_push_loss),
        (PARTIAL_AUC, functional.partial_auc_loss),
        (LATENT, functional.latent_variable_loss),
    ],
)
def test_the_objective_of_the_batch(case, in_batch):
    assert check_same_gradients(case, case.loss(13, rule=BSGD), in_batch) == pytest.approx([0.0] * 5, abs=1e-9)


def test_average_precision_of_a_batch_as_balanced_as_the_population():
    """5 of 13 are positive, as are 5 of the batch's; then all terms weigh alike."""
    (scores,), (target,) = population = AP.population()
    rows = torch.cat([(target == 1).nonzero().flatten(), (target == 0).nonzero().flatten()])
    loss = AP.call(AP.make(population, BSGD, own_term="sampled"), population, rows)
    wanted = functional.average_precision_loss(scores, target)
    torch.testing.assert_close(gradients(loss, population), gradients(wanted, population))


@pytest.mark.parametrize("n_classes", [None, 1000])
def test_sampled_softmax(n_classes):
    """``cross_entropy`` over the target and the sample."""
    target = torch.randn(6, dtype=torch.float64, requires_grad=True)
    sampled = torch.randn(6, 10, dtype=torch.float64, requires_grad=True)
    loss_fn = losses.SoftmaxLoss(20, n_classes, rule=BSGD, own_term="sampled")
    loss = loss_fn(target, sampled, torch.arange(6))
    wanted = F.cross_entropy(torch.cat([target.unsqueeze(1), sampled], 1), torch.zeros(6, dtype=torch.int64))
    for ours, theirs in zip(
        torch.autograd.grad(loss, (target, sampled)), torch.autograd.grad(wanted, (target, sampled)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    if n_classes is None:
        torch.testing.assert_close(loss, wanted)


def clip(image, text, temperature):
    logits = F.normalize(image) @ F.normalize(text).T / temperature
    labels = torch.arange(len(image))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def nt_xent(first, second, temperature):
    z = F.normalize(torch.cat([first, second]))
    logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -torch.inf)
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(first)))


@pytest.mark.parametrize(("mode", "standard"), [("cross_modal", clip), ("two_views", nt_xent)])
def test_info_nce(mode, standard):
    """With a table of far more rows than the batch has, the gradient is that of the batch alone, up to log(size)."""
    first = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    second = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)
    loss_fn = losses.ContrastiveLoss(
        1000, temperature=0.2, mode=mode, include_positive=True, own_term="sampled", rule=BSGD
    )
    for rows in (torch.arange(6), torch.arange(6) + 3):
        loss, wanted = loss_fn(first, second, rows), standard(first, second, 0.2)
        for ours, theirs in zip(
            torch.autograd.grad(loss, (first, second)), torch.autograd.grad(wanted, (first, second)), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
        candidates = torch.tensor(6.0 if mode == "cross_modal" else 11.0, dtype=torch.float64)
        torch.testing.assert_close(loss + candidates.log(), wanted)


def test_group_dro_of_the_groups_at_hand():
    loss_fn = losses.GroupDROLoss(3, rule=BSGD)
    loss_fn(torch.tensor([9.0, 9.0, 9.0], requires_grad=True), torch.tensor([0, 1, 2]))
    x = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    loss, wanted = (f(x, torch.tensor([0, 0, 2])) for f in (loss_fn, functional.group_dro_loss))
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(torch.autograd.grad(loss, x), torch.autograd.grad(wanted, x))
