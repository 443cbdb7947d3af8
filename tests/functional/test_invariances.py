"""Changes of the data that the formulas do not see, and one or two that they do."""

import pytest
import torch

from functional.objectives import CASES, value_and_gradients

OF_ANGLES = ("contrastive_loss", "robust_contrastive_loss", "supervised_contrastive_loss")
SHIFTED = [
    case
    for case in CASES
    if case.name not in ("latent_variable_loss", *OF_ANGLES, "invariant_logistic_loss", "group_dro_loss")
]


def close(first, second, tolerance=1e-10):
    torch.testing.assert_close(first, second, rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize("case", SHIFTED, ids=str)
def test_shift_of_all_scores(case):
    floats, others = case.make()
    shifted = [(x.detach() + 3.0).requires_grad_() for x in floats]
    close(value_and_gradients(case, shifted, others), value_and_gradients(case, floats, others))


@pytest.mark.parametrize("case", [case for case in CASES if case.data.__name__ == "ranking"], ids=str)
def test_shift_of_the_scores_of_one_query(case):
    (scores,), (relevance, query) = case.make()
    shifted = scores.detach() + 5.0 * (query == -7)
    close(case(shifted, relevance, query), case(scores.detach(), relevance, query))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.data.__name__ in ("ranking", "classes", "grouped")], ids=str
)
def test_relabelling_of_queries_classes_and_groups(case):
    floats, others = case.make()
    *others, label = others
    relabelled = (label * -1) // 2 + 17
    assert len(relabelled.unique()) == len(label.unique())
    close(value_and_gradients(case, floats, [*others, relabelled]), value_and_gradients(case, floats, [*others, label]))


@pytest.mark.parametrize("case", [case for case in CASES if case.data.__name__ in ("binary", "observations")], ids=str)
def test_ways_to_write_a_binary_target(case):
    floats, (target,) = case.make()
    positive = target > 0
    loss = case(*floats, positive)
    for same in (positive.int(), positive.double(), 2 * positive.int() - 1, 2 * positive.float() - 1):
        assert torch.equal(case(*floats, same), loss)


@pytest.mark.parametrize("case", [case for case in CASES if case.data.__name__ == "survival"], ids=str)
def test_only_the_order_of_times_matters(case):
    (risk,), (time, event) = case.make()
    loss = case(risk, time, event)
    for same in (time.exp(), time.long() * 10**9, torch.where(time == time.max(), torch.inf, time)):
        assert torch.equal(case(risk, same, event), loss)
    assert torch.equal(case(risk, time, event.float()), loss)


@pytest.mark.parametrize("case", [case for case in CASES if case.name == "list_mle_loss"], ids=str)
def test_only_the_order_of_relevances_matters_to_list_mle(case):
    (scores,), (relevance, query) = case.make()
    assert torch.equal(case(scores, relevance.double().exp() - 9, query), case(scores, relevance, query))


@pytest.mark.parametrize("case", [case for case in CASES if case.name == "latent_variable_loss"], ids=str)
def test_shift_of_the_weights_of_latent_variables(case):
    log_likelihood, log_weight = case.make()[0]
    loss = case(log_likelihood, log_weight)
    close(case(log_likelihood, log_weight + torch.arange(11.0).unsqueeze(1)), loss)
    close(case(log_likelihood - 2.0, log_weight), loss + 2.0)


@pytest.mark.parametrize("case", [case for case in CASES if case.name == "contrastive_loss"], ids=str)
def test_views_may_be_swapped_and_scaled(case):
    first, second = case.make()[0]
    close(case(second, first), case(first, second))
    close(case(3.0 * first, 0.1 * second), case(first, second))
    units = [torch.nn.functional.normalize(x) for x in (first, second)]
    close(case(*units, normalize=False), case(first, second))


def test_mirror_image_of_the_embeddings():
    case = next(case for case in CASES if case.name == "nca_loss")
    (z,), (labels,) = case.make()
    rotation = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=z.dtype))[0]
    close(case(z @ rotation, labels), case(z, labels))
