"""In-batch losses as one writes them in a few lines of torch: what a step of a loss is compared with."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores, target)


def partial_auc(scores: Tensor, target: Tensor) -> Tensor:
    """A soft maximum of the squared hinge over the negatives of the batch, for every positive."""
    positive = target == 1
    excess = F.relu(1.0 + scores[~positive].unsqueeze(0) - scores[positive].unsqueeze(1)).square()
    return (excess.logsumexp(1) - math.log(excess.shape[1])).mean()


def cox(risk: Tensor, time: Tensor, event: Tensor) -> Tensor:
    """Breslow's partial likelihood without ties: risk sets by sorting."""
    order = time.argsort(descending=True)
    risk, event = risk[order], event[order]
    return (event * (risk.logcumsumexp(0) - risk)).sum() / event.sum()


def nca(embeddings: Tensor, labels: Tensor) -> Tensor:
    """The expected accuracy of a stochastic nearest neighbour in the batch."""
    logits = -torch.cdist(embeddings, embeddings).square()
    logits = logits.masked_fill(torch.eye(len(labels), dtype=torch.bool), -math.inf)
    return -(logits.softmax(1) * (labels.unsqueeze(0) == labels.unsqueeze(1))).sum(1).mean()


def nt_xent(first: Tensor, second: Tensor, temperature: float = 0.1) -> Tensor:
    """SimCLR's loss: both views of the other examples are negatives."""
    z = F.normalize(torch.cat([first, second]), dim=1)
    logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -math.inf)
    return F.cross_entropy(logits, torch.arange(len(z)).roll(len(first)))


def list_net(scores: Tensor, relevance: Tensor) -> Tensor:
    """Cross entropy of every list, a row each, with relevances as soft labels."""
    return F.cross_entropy(scores, relevance / relevance.sum(1, keepdim=True))


def list_mle(scores: Tensor, relevance: Tensor) -> Tensor:
    """The likelihood of each list's order, a row each."""
    scores = scores.gather(1, relevance.argsort(1))
    return (scores.logcumsumexp(1) - scores).mean()


def ndcg(scores: Tensor, relevance: Tensor) -> Tensor:
    """NDCG at smooth ranks, a list in each row."""
    gain = 2.0**relevance - 1
    above = torch.sigmoid(scores.unsqueeze(1) - scores.unsqueeze(2))
    rank = above.sum(2) + 0.5  # of an item against itself, the sigmoid is 1/2
    place = torch.arange(2, scores.shape[1] + 2)
    ideal = (gain.sort(1, descending=True).values / torch.log2(place)).sum(1)
    return -((gain / torch.log2(1 + rank)).sum(1) / ideal).mean()


def sampled_softmax(target_logit: Tensor, sampled_logits: Tensor) -> Tensor:
    logits = torch.cat([target_logit.unsqueeze(1), sampled_logits], 1)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))
