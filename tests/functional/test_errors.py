"""Input that cannot be meant raises, and the message says what and where."""

import math
import re

import pytest
import torch

import fcco.functional as F
from functional.objectives import CASES, DEFAULTS

H = torch.tensor([0.5, 1.0, -1.0])
Y = torch.tensor([1, 0, 1])
Q = torch.tensor([4, 4, 4])
T = torch.tensor([1.0, 2.0, 3.0])
Z = torch.eye(3)

WRONG = [
    # shapes, dtypes
    (F.average_precision_loss, (H[:2], Y), {}, ValueError, "target must have the shape [2], like scores; got [3]"),
    (F.p_norm_push_loss, (H.unsqueeze(1), Y), {}, ValueError, "scores must have the shape [n]; got [3, 1]"),
    (
        F.average_precision_loss,
        (H.unsqueeze(1), Y),
        {},
        ValueError,
        "scores and target must have the same shape; got [3, 1] and [3]: pass scores.squeeze(1)",
    ),
    (F.roc_auc, (Z, Y > 0), {}, TypeError, "target must hold the numbers of classes, as integers, since scores has 3"),
    (F.roc_auc, (Z, Y + 2), {}, ValueError, "labels must be in [0, 3), or -1 if missing; got 3"),
    (F.auc_loss, (H.unsqueeze(1), Y[:2]), {}, ValueError, "target must have the shape of scores, [3, 1], or hold 3"),
    (F.average_precision_loss, (H.long(), Y), {}, TypeError, "scores must have a floating dtype; got torch.int64"),
    (F.average_precision_loss, (H.tolist(), Y), {}, TypeError, "scores must be a tensor; got list"),
    (F.average_precision_loss, (H, Y.tolist()), {}, TypeError, "target must be a tensor; got list"),
    (F.average_precision_loss, (H, Y * 1j), {}, TypeError, "target must have a real dtype"),
    (F.nca_loss, (Z, Y.float()), {}, TypeError, "labels must have an integer dtype; got torch.float32"),
    (F.nca_loss, (H, Y), {}, ValueError, "embeddings must have the shape [n, d]; got [3]"),
    (F.list_net_loss, (H, Y, Q > 0), {}, TypeError, "query must have an integer dtype; got torch.bool"),
    (F.list_mle_loss, (H, Y, Q[:1]), {}, ValueError, "query must have the shape [3], like scores; got [1]"),
    (F.list_mle_loss, (H, Y * 1j, Q), {}, TypeError, "relevance must have a real dtype"),
    (F.cox_loss, (H, T[:2], Y), {}, ValueError, "time must have the shape [3], like risk; got [2]"),
    (F.cox_loss, (H, T > 0, Y), {}, TypeError, "time must have a real dtype; got torch.bool"),
    (F.softmax_loss, (H, torch.zeros(2, 4)), {}, ValueError, "target_logit must have the shape [2], like logits"),
    (F.softmax_loss, (H, Z.double()), {}, TypeError, "target_logit and logits must have the same dtype"),
    (F.latent_variable_loss, (Z, Z[:, :2]), {}, ValueError, "log_weight must have the shape of log_likelihood, [3, 3]"),
    (F.contrastive_loss, (Z, Z[:2]), {}, ValueError, "second must have the shape of first, [3, 3]; got [2, 3]"),
    (
        F.contrastive_loss,
        (Z, Z.double()),
        {},
        TypeError,
        "second and first must have the same dtype; got torch.float64",
    ),
    (F.invariant_logistic_loss, (H, Y), {}, ValueError, "scores must have the shape [n, m]; got [3]"),
    (F.group_dro_loss, (H, Y[:2]), {}, ValueError, "group must have the shape [3], like losses; got [2]"),
    # values
    (F.average_precision_loss, (H, Y * 2), {}, ValueError, "target must be 0, 1 or -1; got 2 at position 0"),
    (F.average_precision_loss, (H, Y * math.nan), {}, ValueError, "target must be 0, 1 or -1; got nan at position 0"),
    (
        F.average_precision_loss,
        (H, Y - 2 * (H < 0).int()),
        {},
        ValueError,
        "target must be -1 or 1, since target contains -1",
    ),
    (F.p_norm_push_loss, (H, (Y * 255).to(torch.uint8)), {}, ValueError, "target must be 0, 1 or -1; got 255 at"),
    (F.invariant_logistic_loss, (Z, Y / 2), {}, ValueError, "target must be 0, 1 or -1; got 0.5 at position 0"),
    (F.cox_loss, (H, T, -Y), {}, ValueError, "event must be 0 or 1; got -1 at position 0"),
    (F.cox_loss, (H, T - 2, Y), {}, ValueError, "time must be at least 0; got -1.0 at position 0"),
    (
        F.cox_loss,
        (H, torch.tensor([1, 2, math.nan]), Y),
        {},
        ValueError,
        "time must be at least 0; got nan at position 2",
    ),
    (F.list_net_loss, (H, -Y, Q), {}, ValueError, "relevance must be at least 0; got -1 at position 0"),
    (F.list_net_loss, (H, Y / 0, Q), {}, ValueError, "relevance must be finite; got inf at position 0"),
    (F.ndcg_loss, (H, -Y, Q), {}, ValueError, "relevance must be at least 0; got -1 at position 0"),
    (F.ndcg_loss, (H, Y * 1030, Q), {}, ValueError, "relevance must be so small that 2**relevance is finite; got 1030"),
    (
        F.latent_variable_loss,
        (Z.log() + math.inf, Z),
        {},
        ValueError,
        "log_likelihood must be finite or -inf; got inf at position (0, 0)",
    ),
    (
        F.latent_variable_loss,
        (Z, Z.log() * math.nan),
        {},
        ValueError,
        "log_weight must be finite or -inf; got nan at position (0, 0)",
    ),
    (
        F.latent_variable_loss,
        (Z, (Z * 0).log()),
        {},
        ValueError,
        "log_weight must be above -inf somewhere in each row; got only -inf at row 0",
    ),
    (
        F.latent_variable_loss,
        (Z.log(), (1 - Z).log()),
        {},
        ValueError,
        "log_likelihood + log_weight must be above -inf somewhere",
    ),
    (F.softmax_loss, (H - math.inf, Z), {}, ValueError, "target_logit must be finite; got -inf at position 0"),
    (F.softmax_loss, (H, (Z * 0).log()), {}, ValueError, "logits must be above -inf somewhere in each row"),
    (
        F.contrastive_loss,
        (Z, Z * (H < 1).unsqueeze(1)),
        {},
        ValueError,
        "the length of each vector in second must be large enough to define a direction; got 0.0 at position 1",
    ),
    # options
    (
        F.average_precision_loss,
        (H, Y),
        {"surrogate": "square"},
        ValueError,
        "surrogate must be callable or one of 'logistic', ",
    ),
    (F.average_precision_loss, (H, Y), {"surrogate": 2}, TypeError, "surrogate must be a name or a callable; got int"),
    (
        F.average_precision_loss,
        (H, Y),
        {"surrogate": "squared_hinge", "margin": -1.0},
        ValueError,
        "margin must be finite and at least 0.0; got -1.0",
    ),
    (
        F.average_precision_loss,
        (H, Y),
        {"surrogate": "hinge", "margin": 0.0},
        ValueError,
        "surrogate must be positive at 0 for average precision; got hinge, which is 0.0 there",
    ),
    (
        F.average_precision_loss,
        (H, Y),
        {"surrogate": "hinge", "margin": None},
        TypeError,
        "margin must be a number; got NoneType",
    ),
    (F.average_precision_loss, (H, Y), {"weight": T[:2]}, ValueError, "weight must have the shape [3], like scores"),
    (F.average_precision_loss, (H, Y), {"weight": [1, 1, 1]}, TypeError, "weight must be a tensor; got list"),
    (F.average_precision_loss, (H, Y), {"weight": T - 2}, ValueError, "weight must be finite and at least 0; got -1.0"),
    (F.average_precision_loss, (H, Y), {"weight": T / 0}, ValueError, "weight must be finite and at least 0; got inf"),
    (F.average_precision_loss, (H, Y), {"weight": T * math.nan}, ValueError, "weight must be finite and at least 0"),
    (F.average_precision_loss, (H, Y), {"chunk": 0}, ValueError, "chunk must be at least 1; got 0"),
    (F.average_precision_loss, (H, Y), {"chunk": 1.5}, TypeError, "chunk must be an integer; got 1.5"),
    (F.average_precision_loss, (H, Y), {"surrogate": torch.sum}, ValueError, "surrogate sum must be elementwise"),
    (F.p_norm_push_loss, (H, Y), {"p": 0.5}, ValueError, "p must be finite and at least 1; got 0.5"),
    (F.p_norm_push_loss, (H, Y), {"p": math.nan}, ValueError, "p must be finite and at least 1; got nan"),
    (F.partial_auc_loss, (H, Y), {"temperature": 0}, ValueError, "temperature must be finite and above 0; got 0"),
    (F.contrastive_loss, (Z, Z), {"temperature": -1}, ValueError, "temperature must be finite and above 0; got -1"),
    (F.contrastive_loss, (Z, Z), {"mode": "views"}, ValueError, "mode must be one of 'two_views', 'cross_modal'; got"),
    (
        F.group_dro_loss,
        (H, Y),
        {"temperature": math.inf},
        ValueError,
        "temperature must be finite and above 0; got inf",
    ),
    (F.ndcg_loss, (H, Y, Q), {"k": 0}, ValueError, "k must be at least 1; got 0"),
    (F.ndcg_loss, (H, Y, Q), {"sharpness": 0.0}, ValueError, "sharpness must be finite and above 0; got 0.0"),
    (
        F.list_net_loss,
        (H, Y, Q),
        {"target": "soft"},
        ValueError,
        "target must be one of 'proportional', 'softmax'; got",
    ),
    (F.cox_loss, (H, T, Y), {"ties": "exact"}, ValueError, "ties must be one of 'breslow', 'efron'; got 'exact'"),
]


@pytest.mark.parametrize(
    ("function", "arguments", "options", "error", "message"), WRONG, ids=[row[-1] for row in WRONG]
)
def test_culprit_is_named(function, arguments, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        function(*arguments, **options)


@pytest.mark.parametrize(("function", "arguments"), [(F.average_precision_loss, (H, Y)), (F.ndcg_loss, (H, Y, Q))])
@pytest.mark.parametrize(
    ("temperature", "error", "message"),
    [
        (0, ValueError, "temperature must be finite and above 0; got 0"),
        (-1.0, ValueError, "temperature must be finite and above 0; got -1.0"),
        (math.nan, ValueError, "temperature must be finite and above 0; got nan"),
        (math.inf, ValueError, "temperature must be finite and above 0; got inf"),
        ("a", TypeError, "temperature must be a number; got str"),
        (True, TypeError, "temperature must be a number; got bool"),
        (None, TypeError, "temperature must be a number; got NoneType"),
    ],
)
def test_temperatures(function, arguments, temperature, error, message):
    with pytest.raises(error, match=message):
        function(*arguments, temperature=temperature)


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_scores_that_are_not_finite(case, value):
    floats, others = case.make()
    for position, argument in enumerate(floats):
        broken = [x.detach().clone() for x in floats]
        broken[position].view(-1)[-1] = value
        place = ", ".join(str(size - 1) for size in argument.shape)
        with pytest.raises(ValueError, match=rf"must be finite.*; got {value} at position \(?{place}\)?$"):
            case(*broken, *others)


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_empty_data(case):
    floats, others = case.make()
    with pytest.raises(ValueError, match="must not be empty; got the shape"):
        case(*[x[:0] for x in floats], *[x[:0] for x in others])


@pytest.mark.parametrize("case", DEFAULTS, ids=str)
def test_too_short_an_argument(case):
    floats, others = case.make()
    arguments = [*floats, *others]
    for position in range(1, len(arguments)):
        short = [x[:-1] if k == position else x for k, x in enumerate(arguments)]
        with pytest.raises(ValueError, match="must have the shape"):
            case(*short)


@pytest.mark.parametrize("case", [case for case in CASES if "surrogate" in case.options], ids=str)
def test_arguments_on_two_devices(case):
    (scores,), others = case.make()
    with pytest.raises(ValueError, match=r"and scores must be on the same device; got meta and cpu\. Move one"):
        case(scores, *[x.to("meta") for x in others])


def test_unknown_surrogate_lists_the_known():
    known = "'logistic', 'exp', 'ramp', 'sigmoid', 'squared_hinge', 'hinge', 'exponential'"
    with pytest.raises(ValueError, match=f"one of {known}; got 'log'"):
        F.ndcg_loss(H, Y, Q, surrogate="log")
