"""Retrieval: a masked word is guessed from a document, and every step scores 5% of the documents.

    python examples/applications/latent_variable.py [--figure latent_variable.png] [--quick]

The documents are stretches of the help texts that ship with Python. The likelihood has a sum over all of them. Random
documents seldom tell anything of the word; those that have it do, and an inverted index knows them. Both kinds are
drawn, and each of them stands for its kind: the logarithm of how many it stands for is added to its weight.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import fcco
from fcco.functional import latent_variable_loss

LENGTH, WINDOW, BATCH = 100, 8, 64


def load(limit: int | None, n: int) -> tuple[Tensor, ...]:
    """Counts of words in documents [Z, words], those around masked words [n, words], the words, their documents."""
    spoken = re.findall(r"[a-z_]+", " ".join(topics[key] for key in sorted(topics)).lower())[:limit]
    number = {word: i for i, (word, _) in enumerate(Counter(spoken).most_common(1000))}
    words = np.array([number[word] for word in spoken if word in number])
    words = words[: len(words) // LENGTH * LENGTH]
    counts = np.stack([np.bincount(document, minlength=len(number)) for document in words.reshape(-1, LENGTH)])
    places = np.random.default_rng(0).permutation(np.flatnonzero(words >= 100))[:n]
    around = np.concatenate([np.arange(-WINDOW, 0), np.arange(1, WINDOW + 1)])
    near = words[np.clip(places[:, None] + around, 0, len(words) - 1)]
    contexts = np.stack([np.bincount(context, minlength=len(number)) for context in near])
    rarity = np.log(len(counts) / (1 + (counts > 0).sum(0)))
    features = (torch.tensor(np.log1p(part) * rarity, dtype=torch.float32) for part in (counts, contexts))
    return torch.tensor(counts), *features, torch.tensor(words[places]), torch.tensor(places // LENGTH)


def draw(has_word: Tensor, k: int, strata: bool, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Documents [B1, k] and the logarithms of how many each stands for; ``has_word`` is [B1, Z]."""
    keys = torch.rand(has_word.shape, generator=generator)
    chosen, factors = [], []
    for kind, size in ((has_word, k // 2), (~has_word, k - k // 2)) if strata else ((torch.ones_like(has_word), k),):
        key, rows = keys.where(kind, -1.0).topk(size, 1)
        chosen.append(rows)
        factors.append(torch.where(key >= 0, kind.sum(1, keepdim=True) / (key >= 0).sum(1, keepdim=True), 0.0))
    return torch.cat(chosen, 1), torch.cat(factors, 1).log()


def train(data: tuple[Tensor, ...], share: float, strata: bool, passes: int, lr: float) -> list[float]:
    """The exact objective after each pass."""
    counts, z, x, word, home = data
    likelihood = (counts + 20 * counts.sum(0) / counts.sum()).log() - math.log(LENGTH + 20)
    torch.manual_seed(0)
    embed_query, embed_document = (nn.Linear(z.shape[1], 32, bias=False) for _ in range(2))
    loss_fn = fcco.losses.LatentVariableLoss(len(x))
    parameters = [*embed_query.parameters(), *embed_document.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=lr)
    generator = torch.Generator().manual_seed(0)
    everything = torch.arange(len(z)).expand(len(x), -1)

    def score(rows: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
        weight = (embed_query(x[rows]) @ embed_document(z).T).gather(1, chosen)
        return likelihood[chosen, word[rows, None]], weight.masked_fill(home[rows, None] == chosen, -math.inf)

    curve = []
    for _ in range(passes):
        for rows in torch.randperm(len(x), generator=generator)[: len(x) // BATCH * BATCH].view(-1, BATCH):
            chosen, log_factor = draw(counts[:, word[rows]].T > 0, round(share * len(z)), strata, generator)
            log_likelihood, weight = score(rows, chosen)
            optimizer.zero_grad()
            loss_fn(log_likelihood, weight + log_factor, rows).backward()
            optimizer.step()
        with torch.no_grad():
            curve.append(float(latent_variable_loss(*score(torch.arange(len(x)), everything))))
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description="Latent-variable likelihood from a few documents a step.")
    parser.add_argument("--figure", type=Path, default=Path("latent_variable.png"))
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    data = load(10_000, 300) if given.quick else load(None, 2000)
    passes, rates = (2, (0.004,)) if given.quick else (10, (0.001, 0.004))
    print(f"{len(data[0])} documents, {len(data[2])} masked words, batches of {BATCH}")
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    ax = figure.subplots()
    methods = {"all documents": (1.0, False), "5%, at random": (0.05, False), "5%, half with the word": (0.05, True)}
    for name, (share, strata) in methods.items():
        curve = min((train(data, share, strata, passes, lr) for lr in rates), key=lambda curve: curve[-1])
        print(f"{name:<23} negative log-likelihood over all documents {curve[-1]:.4f}")
        ax.plot(range(1, passes + 1), curve, label=name, marker="o")
    ax.set(xlabel="passes", ylabel="negative log-likelihood", title="masked words by retrieved documents")
    ax.legend()
    figure.savefig(given.figure)
    print(f"figure: {given.figure}")


if __name__ == "__main__":
    main()
