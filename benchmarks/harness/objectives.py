"""Every objective of the library as a task: a small model on real data, by a loss of the library and exactly."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fcco
import fcco.functional as exact
from fcco import losses
from harness import data
from harness.tasks import Task, Variant, sampled, shuffled

RULES = ("SOX .1", "SOX .3", "SOX .5", "SOAP .1", "SOAP .5", "SOAP .7", "SOAP .9", "SOAP cos .5")
ALONE = tuple(map(Variant, ("in-batch", *RULES)))
SAMPLED = ("SOAP .1", "SOAP .5", "SOAP .7", "SOAP .9", "SOAP cos .5")
WITH_OWN_TERM = tuple(
    map(
        Variant,
        ("in-batch", "BSGD exact", *(f"{rule} exact" for rule in RULES[:-1]), *(f"{rule} sampled" for rule in SAMPLED)),
    )
)


def cox(name: str) -> Task:
    x, time, event = data.survival(name)
    n = len(x)
    return Task(
        start=torch.zeros(x.shape[1]),
        batches=partial(shuffled, n),
        loss=lambda variant, steps: losses.CoxLoss(n, rule=variant.rule(steps), **variant.own_term),  # type: ignore
        step=lambda loss, w, rows, _: loss(x[rows] @ w, time[rows], event[rows], rows),
        exact=lambda w: exact.cox_loss(x.double() @ w, time, event),
    )


def baseline_cox(name: str) -> Task:
    """By rows that events share; variants with an own term are those of rows for each example."""
    x, time, event = data.survival(name)

    def build(variant: Variant, steps: int) -> Any:
        if variant.name == "in-batch" or variant.name.endswith("sampled"):
            return losses.CoxLoss(len(x), rule=variant.rule(steps))
        return losses.BaselineCoxLoss.from_targets(time, event, rule=variant.rule(steps))

    return replace(cox(name), loss=build)


def _bipartite(
    name: str, outer: str, loss: Any, objective: Callable[..., Tensor], *, has_own_term: bool = False
) -> Task:
    x, y = data.binary(name)

    def build(variant: Variant, steps: int) -> Any:
        return loss.from_targets(y, rule=variant.rule(steps), **(variant.own_term if has_own_term else {}))

    make = lambda size, seed: fcco.data.PositiveNegativeSampler(y, batch=size, outer=outer, drop_last=True, seed=seed)  # type: ignore # noqa: E731
    return Task(
        start=torch.zeros(x.shape[1]),
        batches=partial(sampled, make),
        loss=build,
        step=lambda loss, w, rows, _: loss(x[rows] @ w, y[rows], rows),
        exact=lambda w: objective(x.double() @ w, y),
        penalty=1e-3,
    )


def average_precision(name: str) -> Task:
    loss = losses.AveragePrecisionLoss
    return _bipartite(name, "positive", loss, exact.average_precision_loss, has_own_term=True)


def p_norm_push(name: str) -> Task:
    return _bipartite(name, "negative", losses.PNormPushLoss, exact.p_norm_push_loss)


def partial_auc(name: str) -> Task:
    return _bipartite(name, "positive", losses.PartialAUCLoss, exact.partial_auc_loss)


def nca(name: str) -> Task:
    return _nca(name, log_likelihood=False)


def nca_log(name: str) -> Task:
    return _nca(name, log_likelihood=True)


def _nca(name: str, *, log_likelihood: bool) -> Task:
    x, y = data.classes(name)
    n, d, rows_of_a = len(x), x.shape[1], 8 if name == "digits" else 16
    start = torch.randn(d, rows_of_a, generator=torch.Generator().manual_seed(0)) / math.sqrt(d)
    return Task(
        start=start,
        batches=partial(shuffled, n),
        loss=lambda variant, steps: losses.NCALoss(n, rule=variant.rule(steps), log_likelihood=log_likelihood),
        step=lambda loss, w, rows, _: loss(x[rows] @ w, y[rows], rows),
        exact=lambda w: exact.nca_loss(x.double() @ w, y, log_likelihood=log_likelihood),
        penalty=1e-4,
    )


def _listwise(
    loss: Any, objective: Callable[..., Tensor], name: str, items: int | None, *, every_item: bool = False
) -> Task:
    x, y, query = data.ranking(name)
    relevance = None if every_item else y
    per_query = items or 16

    def make(size: int, seed: int) -> Any:
        return fcco.data.QuerySampler(query, relevance, queries=max(size // per_query, 1), items=items, seed=seed)

    def build(variant: Variant, steps: int) -> Any:
        if variant.name == "in-batch":  # the batch's part of a list is taken for the whole
            return loss(len(x), rule=fcco.BSGD())
        return loss.from_targets(y, query, rule=variant.rule(steps), **variant.own_term)

    return Task(
        start=torch.zeros(x.shape[1]),
        batches=partial(sampled, make),
        loss=build,
        step=lambda loss, w, rows, _: loss(x[rows] @ w, y[rows], query[rows], rows),
        exact=lambda w: objective(x.double() @ w, y, query),
        penalty=1e-3,
    )


def _items(name: str) -> tuple[str, int | None]:
    data_name, part = name.split(", ")
    return data_name, None if part == "whole lists" else int(part.split()[0])


def list_net(name: str) -> Task:
    return _listwise(losses.ListNetLoss, exact.list_net_loss, *_items(name))


def list_mle(name: str) -> Task:
    return _listwise(losses.ListMLELoss, exact.list_mle_loss, *_items(name), every_item=True)


def ndcg(name: str) -> Task:
    return _listwise(losses.NDCGLoss, exact.ndcg_loss, *_items(name))


def softmax(name: str) -> Task:
    """As many sampled words as examples in the batch, drawn for each example apart."""
    x, y = data.bigrams()
    n, n_words = len(x), 1000

    def step(loss: Callable[..., Tensor], w: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        others = torch.randint(n_words - 1, (len(rows), len(rows)), generator=generator)
        target = y[rows]
        others = others + (others >= target.unsqueeze(1))
        logits = (w[torch.cat([target.unsqueeze(1), others], 1)] * x[rows].unsqueeze(1)).sum(2)
        return loss(logits[:, 0], logits[:, 1:], rows)

    def objective(w: Tensor) -> Tensor:
        logits = x.double() @ w.T
        return exact.softmax_loss(logits.gather(1, y.unsqueeze(1)).squeeze(1), logits)

    return Task(
        start=torch.zeros(n_words, x.shape[1]),
        batches=partial(shuffled, n),
        loss=lambda variant, steps: losses.SoftmaxLoss(n, n_words, variant.rule(steps), **variant.own_term),  # type: ignore
        step=step,
        exact=objective,
        penalty=1e-4,
    )


def contrastive(name: str) -> Task:
    """Two views of every image, each with noise of its own that is drawn once; or its upper and its lower half."""
    x = data.classes("digits")[0][::2]
    n, d = x.shape
    mode: Literal["two_views", "cross_modal"] = "two_views"
    x = x - x.mean(0)
    generator = torch.Generator().manual_seed(0)
    if name == "digit halves":  # each half is a modality, with a map of its own
        mode = "cross_modal"
        first, second = x[:, : d // 2], x[:, d // 2 :]
    else:
        first, second = (x + 0.1 * torch.randn(n, d, generator=generator) for _ in range(2))
    options: dict[str, Any] = {"mode": mode, "include_positive": name == "digits, positive included"}

    def build(variant: Variant, steps: int) -> Any:
        if variant.name == "in-batch":  # InfoNCE: the positive is a candidate like those of the batch
            return losses.ContrastiveLoss(n, mode=mode, include_positive=True, own_term="sampled", rule=fcco.BSGD())
        own_term: dict[str, Any] = {**variant.own_term} if options["include_positive"] else {}
        return losses.ContrastiveLoss(n, rule=variant.rule(steps), **options, **own_term)

    def embed(w: Tensor, rows: Any = slice(None)) -> tuple[Tensor, Tensor]:
        return first[rows].to(w) @ w[: first.shape[1]], second[rows].to(w) @ w[-second.shape[1] :]

    return Task(
        start=torch.randn(d, 16, generator=generator) / math.sqrt(d),
        batches=partial(shuffled, n),
        loss=build,
        step=lambda loss, w, rows, _: loss(*embed(w, rows), rows),
        exact=lambda w: exact.contrastive_loss(*embed(w), **options),
        penalty=1e-4,
    )


def latent_variable(name: str) -> Task:
    """Retrieve an example z from a memory, and predict its label, or with probability .1 any.

    The log weight is E(x)·E(z), with a linear E; as many z as examples in the batch are drawn for the whole batch.
    """
    (x, y), (z, label), n_labels = data.retrieval(name)
    n, d = x.shape
    copied, other = math.log(0.9 + 0.1 / n_labels), math.log(0.1 / n_labels)

    def score(w: Tensor, rows: Any, retrieved: Any) -> tuple[Tensor, Tensor]:
        log_weight = (x[rows].to(w) @ w) @ (z[retrieved].to(w) @ w).T
        same = y[rows].unsqueeze(1) == label[retrieved]
        return torch.where(same, log_weight.new_tensor(copied), other), log_weight

    def step(loss: Callable[..., Tensor], w: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        return loss(*score(w, rows, torch.randint(len(z), (len(rows),), generator=generator)), rows)

    return Task(
        start=torch.randn(d, 16, generator=torch.Generator().manual_seed(0)) / math.sqrt(d),
        batches=partial(shuffled, n),
        loss=lambda variant, steps: losses.LatentVariableLoss(n, variant.rule(steps)),
        step=step,
        exact=lambda w: exact.latent_variable_loss(*score(w, slice(None), slice(None))),
        penalty=1e-4,
    )


class _Network(nn.Module):
    """From d inputs by 16 hidden units to one output; its weights are one vector."""

    def __init__(self, w: Tensor) -> None:
        super().__init__()
        self.w = w if isinstance(w, nn.Parameter) else nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        first, bias, last, offset = self.w.split([x.shape[-1] * 16, 16, 16, 1])
        return torch.tanh(x @ first.view(-1, 16) + bias) @ last + offset


def maml(name: str) -> Task:
    """Five examples of a task to adapt to and five to be judged by, from either half of what it has; α = .1."""
    x, y = data.few_shot(name)
    n, examples, d = x.shape
    half = examples // 2
    generator = torch.Generator().manual_seed(0)
    start = torch.cat([torch.randn(d * 16, generator=generator) / math.sqrt(d), torch.zeros(16)])
    start = torch.cat([start, torch.randn(16, generator=generator) / 4, torch.zeros(1)])

    def step(loss: Callable[..., Tensor], w: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        drawn = torch.rand(2, len(rows), half, generator=generator).argsort(2)[..., :5]
        support, query = ((x[rows[:, None], k], y[rows[:, None], k]) for k in (drawn[0], drawn[1] + half))
        return loss(_Network(w), support, query, rows)

    def objective(w: Tensor) -> Tensor:
        support, query = ((x[:, part].to(w), y[:, part].to(w)) for part in (slice(half), slice(half, None)))
        return exact.maml_loss(_Network(w), support, query, lr=0.1)

    return Task(
        start=start,
        batches=partial(shuffled, n),
        loss=lambda variant, steps: losses.MAMLLoss(n, len(start), 0.1, rule=variant.rule(steps)),
        step=step,
        exact=objective,
        penalty=1e-4,
    )


def group_dro(name: str) -> Task:
    """Logistic regression; the name ends with the temperature."""
    data_name, temperature = name.split(", τ ")
    x, y, group = data.groups(data_name)
    tau = {"temperature": float(temperature)}

    def losses_at(w: Tensor, rows: Any = slice(None)) -> Tensor:
        return F.binary_cross_entropy_with_logits(x[rows].to(w) @ w, y[rows].to(w), reduction="none")

    return Task(
        start=torch.zeros(x.shape[1]),
        batches=partial(shuffled, len(x)),
        loss=lambda variant, steps: losses.GroupDROLoss.from_targets(group, rule=variant.rule(steps), **tau),
        step=lambda loss, w, rows, _: loss(losses_at(w, rows), group[rows]),
        exact=lambda w: exact.group_dro_loss(losses_at(w), group, **tau),
        penalty=1e-3,
    )


def invariant_logistic(name: str) -> Task:
    """Two perturbed observations (noise of deviation 1) a visit. A linear score's mean over the noise is known."""
    x, y = data.binary(name)
    n, d = x.shape

    def step(loss: Callable[..., Tensor], w: Tensor, rows: Tensor, generator: torch.Generator) -> Tensor:
        observed = x[rows].unsqueeze(1) + torch.randn(len(rows), 2, d, generator=generator)
        return loss(observed @ w, y[rows], rows)

    return Task(
        start=torch.zeros(d),
        batches=partial(shuffled, n),
        loss=lambda variant, steps: losses.InvariantLogisticLoss(n, variant.rule(steps)),
        step=step,
        exact=lambda w: exact.invariant_logistic_loss((x.double() @ w).unsqueeze(1), y),
        penalty=1e-3,
    )


@dataclass(frozen=True)
class Objective:
    """An objective, the variants to compare (columns), and data, batch size and passes to compare them at (rows)."""

    build: Callable[[str], Task]
    variants: tuple[Variant, ...]
    rows: tuple[tuple[str, int, int], ...]
    needs: str = ""
    fallback: tuple[tuple[str, int, int], ...] = ()
    """Rows on data that ship with scikit-learn, where the file that ``rows`` need is not to be had."""

    @property
    def available(self) -> tuple[tuple[str, int, int], ...]:
        return self.rows if not self.needs or data.has(self.needs) else self.fallback


def _at(name: str, *sizes: tuple[int, int]) -> tuple[tuple[str, int, int], ...]:
    return tuple((name, size, passes) for size, passes in sizes)


SHARED = ("in-batch", "SOAP .7 sampled", "SOX .1", *(f"SOAP {rate}" for rate in (".03", ".1", ".3", "power .5")))
SURVIVAL = (
    _at("whas500", (8, 40), (16, 10), (16, 40), (32, 40)) + _at("veteran", (8, 40)) + _at("flchain", (16, 2), (64, 5))
)
LISTWISE = (*WITH_OWN_TERM, Variant("BSGD sampled"))  # as in-batch, but what is known of the lists is used
CONTRASTIVE = (Variant("in-batch"), Variant("BSGD"), *ALONE[1:])
BREAST = _at("breast cancer", (8, 10), (16, 20), (64, 40))
ITEMS = _at("lambdarank, 8 items", (16, 5), (64, 10), (64, 20)) + _at("lambdarank, whole lists", (64, 10))
PATIENTS = _at("diabetes, 8 items", (16, 10), (64, 40))
PAIRS = _at("digit pairs", (8, 20), (16, 40))
DIGITS = _at("digits, τ 1", (8, 5), (64, 20)) + _at("digits, τ 0.1", (16, 20))

OBJECTIVES = {
    "cox": Objective(
        cox,
        WITH_OWN_TERM,
        SURVIVAL,
        "survival/sksurv/flchain.arff",
        _at("diabetes", (8, 10), (16, 40), (64, 40)),
    ),
    "baseline_cox": Objective(
        baseline_cox,
        tuple(map(Variant, SHARED)),
        SURVIVAL,
        "survival/sksurv/flchain.arff",
        _at("diabetes", (8, 10), (16, 40), (64, 40)),
    ),
    "average_precision": Objective(
        average_precision,
        WITH_OWN_TERM,
        BREAST + _at("covtype", (8, 10), (16, 5), (32, 40), (64, 40)),
        "covtype/covtype.data.gz",
        BREAST,
    ),
    "p_norm_push": Objective(
        p_norm_push,
        ALONE,
        BREAST + _at("ijcnn1", (16, 2), (64, 2), (64, 5)),
        "ijcnn1/ijcnn1.tr.bz2",
        BREAST,
    ),
    "nca": Objective(
        nca,
        ALONE,
        _at("digits", (16, 10), (32, 10), (64, 10), (64, 20)) + _at("usps", (64, 2), (64, 10)),
        "usps/zip.train.gz",
        _at("digits", (16, 10), (32, 10), (64, 10), (64, 20)),
    ),
    "nca_log": Objective(
        nca_log,
        tuple(map(Variant, ("in-batch", "SOAP .5", "SOAP .7", "SOAP .9", "SOAP power .1"))),
        _at("digits", (16, 10), (32, 10), (64, 20)) + _at("usps", (64, 2)),
        "usps/zip.train.gz",
        _at("digits", (16, 10), (32, 10), (64, 20)),
    ),
    "list_net": Objective(list_net, LISTWISE, ITEMS, "ltr/lightgbm-lambdarank/rank.train.gz", PATIENTS),
    "list_mle": Objective(list_mle, LISTWISE, ITEMS, "ltr/lightgbm-lambdarank/rank.train.gz", PATIENTS),
    "ndcg": Objective(
        ndcg,
        (*LISTWISE, Variant("SOAP power .25 bounded")),
        ITEMS,
        "ltr/lightgbm-lambdarank/rank.train.gz",
        PATIENTS,
    ),
    "softmax": Objective(softmax, WITH_OWN_TERM, _at("bigrams", (8, 2), (16, 5), (64, 10), (64, 20))),
    "contrastive": Objective(
        contrastive,
        CONTRASTIVE,
        _at("digits", (16, 10), (32, 20), (64, 10), (64, 40)) + _at("digit halves", (16, 10), (64, 10), (64, 40)),
    ),
    "contrastive_with_positive": Objective(
        contrastive, WITH_OWN_TERM, _at("digits, positive included", (16, 10), (64, 10), (64, 40))
    ),
    "partial_auc": Objective(
        partial_auc,
        ALONE,
        BREAST + _at("covtype", (16, 5), (32, 10), (64, 40)),
        "covtype/covtype.data.gz",
        BREAST,
    ),
    "invariant_logistic": Objective(
        invariant_logistic,
        (*ALONE, Variant("SOAP mean .03")),
        _at("breast cancer", (8, 5), (16, 20), (64, 40)),
    ),
    "latent_variable": Objective(
        latent_variable,
        ALONE,
        _at("digits", (8, 10), (16, 20), (64, 20)) + _at("bigrams", (8, 2), (16, 10), (64, 40)),
    ),
    "maml": Objective(
        maml,
        ALONE,
        PAIRS + _at("covtype", (8, 10), (16, 40), (64, 40)),
        "covtype/covtype.data.gz",
        PAIRS,
    ),
    "group_dro": Objective(
        group_dro,
        ALONE,
        DIGITS + _at("covtype, τ 1", (16, 5)) + _at("covtype, τ 0.1", (8, 2), (64, 20)),
        "covtype/covtype.data.gz",
        DIGITS,
    ),
}
