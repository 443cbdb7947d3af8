"""Every objective as its formula reads, with loops over all pairs, in NumPy."""

import math

import numpy as np


def ramp(t):
    """Beyond ±4 the terms of the formula cancel but for rounding."""
    if abs(t) >= 4:
        return float(t > 0)
    return (max(t + 4, 0.0) ** 2 - 2 * max(t, 0.0) ** 2 + max(t - 4, 0.0) ** 2) / 32


SURROGATES = {
    "ramp": lambda t, margin: ramp(t),
    "squared_hinge": lambda t, margin: max(margin + t, 0.0) ** 2,
    "hinge": lambda t, margin: max(margin + t, 0.0),
    "logistic": lambda t, margin: np.logaddexp(0.0, t),
    "exp": lambda t, margin: math.exp(t),
    "exponential": lambda t, margin: math.exp(t),
    "sigmoid": lambda t, margin: math.exp(-np.logaddexp(0.0, -t)),
}
BOUNDED = ("ramp", "sigmoid")


def surrogate_of(name, margin, temperature=1.0):
    function = SURROGATES[name]
    return lambda t: function(t / temperature, margin)


def log_sum_exp(values):
    return np.logaddexp.reduce(np.asarray(values, dtype=float))


def where(condition):
    return np.flatnonzero(condition)


def average_precision_loss(scores, target, *, margin=1.0, surrogate="ramp", temperature=1.0, weight=None):
    ell, positives = surrogate_of(surrogate, margin, temperature), where(target > 0)
    weight = np.ones(len(scores)) if weight is None else weight
    own_value = 1.0 if surrogate in BOUNDED else ell(0.0)
    ratios = []
    for i in positives:
        terms = weight * [own_value if j == i else ell(scores[j] - scores[i]) for j in range(len(scores))]
        ratios.append(sum(terms[positives]) / sum(terms) if weight[i] > 0 else 0.0)
    return -np.average(ratios, weights=weight[positives])


def p_norm_push_loss(scores, target, *, p=4.0, surrogate="exp", margin=1.0):
    ell = surrogate_of(surrogate, margin)
    positives, negatives = where(target > 0), where(target <= 0)
    return np.mean([np.mean([ell(scores[i] - scores[j]) for j in positives]) ** p for i in negatives])


def partial_auc_loss(scores, target, *, surrogate="squared_hinge", margin=1.0, temperature=1.0):
    ell = surrogate_of(surrogate, margin)
    positives, negatives = where(target > 0), where(target <= 0)
    terms = []
    for i in positives:
        logits = [ell(scores[j] - scores[i]) / temperature for j in negatives]
        terms.append(temperature * (log_sum_exp(logits) - math.log(len(negatives))))
    return np.mean(terms)


def auc_loss(scores, target, *, surrogate="squared_hinge", margin=1.0, form="pairwise"):
    positives, negatives = scores[target > 0], scores[target <= 0]
    if form == "min_max":  # the minimum over a and b is at the means, the maximum over alpha where its slope is 0
        alpha = max(margin + negatives.mean() - positives.mean(), 0.0)
        gap = 2 * alpha * (margin + negatives.mean() - positives.mean()) - alpha**2
        return np.mean((positives - positives.mean()) ** 2) + np.mean((negatives - negatives.mean()) ** 2) + gap
    ell = surrogate_of(surrogate, margin)
    return np.mean([ell(b - a) for a in positives for b in negatives])


def cvar_partial_auc_loss(scores, target, *, max_fpr=0.1, top_k=None, surrogate="squared_hinge", margin=1.0):
    """For every positive by itself, the mean of the k largest losses; the last of them counts in part."""
    ell = surrogate_of(surrogate, margin)
    positives, negatives = scores[target > 0], scores[target <= 0]
    k = max_fpr * len(negatives) if top_k is None else min(top_k, len(negatives))
    weight = np.clip(k - np.arange(len(negatives)), 0.0, 1.0)
    return np.mean([weight @ sorted((ell(b - a) for b in negatives), reverse=True) / k for a in positives])


def two_way_partial_auc_loss(
    scores, target, *, surrogate="squared_hinge", margin=1.0, temperature=1.0, positive_temperature=1.0
):
    ell = surrogate_of(surrogate, margin)
    positives, negatives = scores[target > 0], scores[target <= 0]
    inner = [log_sum_exp([ell(b - a) / temperature for b in negatives]) - math.log(len(negatives)) for a in positives]
    outer = [temperature / positive_temperature * log_g for log_g in inner]
    return positive_temperature * (log_sum_exp(outer) - math.log(len(positives)))


def nca_loss(embeddings, labels, *, log_likelihood=False):
    log_share, n = [], len(labels)
    for i in range(n):
        closeness = {j: -np.sum((embeddings[i] - embeddings[j]) ** 2) for j in range(n) if j != i}
        same = [c for j, c in closeness.items() if labels[j] == labels[i]]
        if same:
            log_share.append(log_sum_exp(same) - log_sum_exp(list(closeness.values())))
    return -np.mean(log_share) if log_likelihood else -np.exp(log_share).sum() / n


def list_net_loss(scores, relevance, query, *, target="proportional"):
    losses = []
    for q in np.unique(query):
        h, y = scores[query == q], relevance[query == q].astype(float)
        weight = np.exp(y - y.max()) if target == "softmax" else y
        if weight.sum() > 0:
            share = weight / weight.sum()
            losses.append(sum(p * log_sum_exp(h - own) for p, own in zip(share, h, strict=True)))
    return np.mean(losses)


def list_mle_loss(scores, relevance, query):
    terms = []
    for i in range(len(scores)):
        below = (query == query[i]) & (relevance <= relevance[i])
        terms.append(log_sum_exp(scores[below] - scores[i]))
    return np.mean(terms)


def ndcg_loss(scores, relevance, query, *, surrogate="ramp", margin=1.0, temperature=1.0, k=None, sharpness=2.0):
    ell, values = surrogate_of(surrogate, margin, temperature), []
    for q in np.unique(query):
        h, gain = scores[query == q], 2.0 ** relevance[query == q] - 1
        ideal = sum(g / math.log2(2 + place) for place, g in enumerate(sorted(gain, reverse=True)[:k]))
        if ideal == 0:
            continue
        value = 0.0
        for i in range(len(h)):
            rank = 1 + sum(ell(h[j] - h[i]) for j in range(len(h)) if j != i)
            inside = 1.0 if k is None else math.exp(-np.logaddexp(0.0, -sharpness * (k + 0.5 - rank)))
            value += inside * gain[i] / math.log2(1 + rank)
        values.append(value / ideal)
    return -np.mean(values)


def cox_loss(risk, time, event, strata=None, entry=None, *, ties="breslow"):
    strata = np.zeros(len(time)) if strata is None else strata
    entry = np.full(len(time), -np.inf) if entry is None else entry
    terms = []
    for t, k in {(t, k) for t, k, seen in zip(time, strata, event, strict=True) if seen}:
        dying = (time == t) & (event > 0) & (strata == k)
        tied, others = risk[dying], risk[(entry < t) & (time >= t) & (strata == k) & ~dying]
        for left, own in enumerate(tied):
            stays = 1 - left / len(tied) if ties == "efron" else 1.0
            terms.append(log_sum_exp(np.concatenate([others, tied + math.log(stays)]) - own))
    return np.mean(terms)


def latent_variable_loss(log_likelihood, log_weight):
    pairs = zip(log_likelihood, log_weight, strict=True)
    return np.mean([-log_sum_exp(p + w) + log_sum_exp(w) for p, w in pairs])


def softmax_loss(target_logit, logits):
    return np.mean([log_sum_exp(row - own) for own, row in zip(target_logit, logits, strict=True)])


def contrastive_loss(first, second, *, temperature=0.1, mode="two_views", include_positive=False, normalize=True):
    if normalize:
        first, second = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (first, second))
    n, terms = len(first), []
    for anchors, others in ((first, second), (second, first)):
        for i in range(n):
            rivals = [others[j] for j in range(n) if j != i or include_positive]
            if mode == "two_views":
                rivals += [anchors[j] for j in range(n) if j != i]
            logits = [(anchors[i] @ b - anchors[i] @ others[i]) / temperature for b in rivals]
            terms.append(log_sum_exp(logits) - math.log(len(rivals)))
    return np.mean(terms)


def robust_contrastive_loss(first, second, *, temperature=0.1, rho=1.0):
    return temperature * (contrastive_loss(first, second, temperature=temperature) + rho)


def supervised_contrastive_loss(embeddings, labels, *, temperature=0.1):
    unit, terms = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True), []
    for i in range(len(labels)):
        logits = {j: unit[i] @ unit[j] / temperature for j in range(len(labels)) if j != i}
        positives = [logit for j, logit in logits.items() if labels[j] == labels[i]]
        if positives:
            terms.append(log_sum_exp(list(logits.values())) - log_sum_exp(positives))
    return np.mean(terms)


def invariant_logistic_loss(scores, target):
    signs = np.where(target > 0, 1.0, -1.0)
    return np.mean([np.logaddexp(0.0, -b * np.mean(row)) for b, row in zip(signs, scores, strict=True)])


def group_dro_loss(losses, group, *, temperature=1.0):
    means = np.array([losses[group == k].mean() for k in np.unique(group)])
    return temperature * (log_sum_exp(means / temperature) - math.log(len(means)))
