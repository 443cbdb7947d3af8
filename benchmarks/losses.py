"""What a loss costs, forward and backward, as a ratio to a plain loss in torch on the same outputs.

    OPENBLAS_NUM_THREADS=1 python benchmarks/losses.py [--quick] [--only NAME ...]

The first table compares average precision and p-norm push with binary cross entropy, on scores alone and with a small
model. The second one compares every other loss with the in-batch loss for the same objective, as one writes it in a few
lines of torch (``harness/plain_losses.py``). There, *memory=0* is the loss without a memory, with its default rule of
the table, and *default* is the loss as its constructor makes it. Other libraries' losses run beside ours where they are
installed: LibAUC, pytorch-metric-learning, torchsurv, allRank.

Every figure is a ratio within this run, on one thread: of the lower deciles over single calls, in runs that alternate
between the two sides.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fcco import losses
from harness import plain_losses as plain
from harness.timing import Step, compare_calls

N, SIZES = 100_000, (64, 256, 1024)
LIST, SHOWN = 40, 16  # items of a query, and how many of them a batch has
RELEVANCE = torch.tensor([2.0, 1.0, 1.0, *[0.0] * 5]).repeat(N // 8)
QUERY = torch.arange(N) // LIST
LossStep = Callable[..., Tensor]


def libauc_average_precision() -> LossStep:
    from libauc.losses import APLoss

    loss = APLoss(data_len=N)
    return lambda scores, target, index: loss(scores.unsqueeze(1), target.unsqueeze(1), index)


def metric_learning_nca() -> LossStep:
    from pytorch_metric_learning.losses import NCALoss

    return NCALoss()


def metric_learning_nt_xent() -> LossStep:
    from pytorch_metric_learning.losses import NTXentLoss

    loss = NTXentLoss(temperature=0.1)

    def step(first: Tensor, second: Tensor) -> Tensor:
        return loss(torch.cat([first, second]), torch.arange(len(first)).repeat(2))

    return step


def torchsurv_cox() -> LossStep:
    from torchsurv.loss.cox import neg_partial_log_likelihood

    return lambda risk, time, event: neg_partial_log_likelihood(risk, event.bool(), time, ties_method="breslow")


def allrank(name: str) -> Callable[[], LossStep]:
    def load() -> LossStep:
        theirs: Any = import_module("allrank.models.losses")
        return getattr(theirs, name)

    return load


def installed(load: Callable[[], LossStep] | None) -> LossStep | None:
    """Return another library's loss, or None where it cannot be imported."""
    with suppress(ImportError):
        return None if load is None else load()
    return None


class Batch(NamedTuple):
    """Outputs of a model, which are differentiable, what else all losses take, and what is new in every call of ours.

    The last of what is new are rows.
    """

    outputs: list[Tensor]
    others: list[Tensor]
    new: Sequence[tuple[Tensor, ...]]

    def step(self, loss: LossStep, *, ours: bool = True) -> Step:
        """Return a step of a loss: ours, or one that takes no rows."""
        batches = itertools.cycle(self.new if ours else [()])

        def step() -> None:
            for part in self.outputs:
                part.grad = None
            loss(*self.outputs, *self.others, *next(batches)).backward()

        return step


def rows_of(size: int) -> Sequence[tuple[Tensor, ...]]:
    return [(rows,) for rows in torch.randperm(N)[: N // size * size].view(-1, size)]


def scored(size: int) -> Batch:
    """Scores of a batch that is half positive."""
    return Batch([(0.1 * torch.randn(size)).requires_grad_()], [(torch.arange(size) % 2).float()], rows_of(size))


def timed(size: int) -> Batch:
    """Log-hazards of a batch in which half of the examples have events."""
    batch = scored(size)
    return batch._replace(others=[torch.rand(size), *batch.others])


def embedded(size: int) -> Batch:
    """Embeddings in ten classes."""
    return Batch([torch.randn(size, 16).mul_(0.1).requires_grad_()], [torch.randint(10, (size,))], rows_of(size))


def two_views(size: int) -> Batch:
    return Batch([torch.randn(size, 16).requires_grad_() for _ in range(2)], [], rows_of(size))


def sampled(size: int) -> Batch:
    """Logits of targets, and of 64 sampled classes."""
    return Batch([torch.randn(size).requires_grad_(), torch.randn(size, 64).requires_grad_()], [], rows_of(size))


def listed(size: int) -> Batch:
    """Scores of the first items of some lists."""
    lists = torch.randperm(N // LIST)
    lists = lists[: len(lists) // (size // SHOWN) * (size // SHOWN)].view(-1, size // SHOWN, 1)
    rows = (lists * LIST + torch.arange(SHOWN)).flatten(1)
    return Batch([torch.randn(size).requires_grad_()], [RELEVANCE[rows[0]]], [(QUERY[part], part) for part in rows])


def in_rows(loss: LossStep) -> LossStep:
    """Return a loss of lists, a row each, as one of all items in a row."""
    return lambda scores, relevance: loss(scores.view(-1, SHOWN), relevance.view(-1, SHOWN))


class Case(NamedTuple):
    """One of our losses, the plain loss beside it, and another library's."""

    make: Callable[..., LossStep]
    plain: LossStep
    batch: Callable[[int], Batch]
    theirs: Callable[[], LossStep] | None = None
    name_of_theirs: str = ""


def listwise(kind: Any, plain_loss: LossStep, name: str) -> Case:
    def make(**options: Any) -> LossStep:
        return kind.from_targets(RELEVANCE, QUERY, **options)

    def theirs() -> LossStep:
        return in_rows(allrank(name)())

    return Case(make, in_rows(plain_loss), listed, theirs, "allRank")


def without_memory(loss: Any) -> Callable[..., LossStep]:
    """Make a loss that has no memory at all."""
    return lambda **options: loss(N)


CASES = {
    "Cox": Case(lambda **o: losses.CoxLoss(N, N // 2, **o), plain.cox, timed, torchsurv_cox, "torchsurv"),
    "NCA": Case(lambda **o: losses.NCALoss(N, **o), plain.nca, embedded, metric_learning_nca, "metric-learning"),
    "contrastive": Case(
        lambda **o: losses.ContrastiveLoss(N, **o), plain.nt_xent, two_views, metric_learning_nt_xent, "metric-learning"
    ),
    "ListNet": listwise(losses.ListNetLoss, plain.list_net, "listNet"),
    "ListMLE": listwise(losses.ListMLELoss, plain.list_mle, "listMLE"),
    "NDCG": listwise(losses.NDCGLoss, plain.ndcg, "approxNDCGLoss"),
    "partial AUC": Case(lambda **o: losses.PartialAUCLoss(N, **o), plain.partial_auc, scored),
    "softmax": Case(without_memory(losses.SoftmaxLoss), plain.sampled_softmax, sampled),
}


def over_cross_entropy(size: int, loss: LossStep, calls: int) -> str:
    """Compare a loss with binary cross entropy, on scores alone and with a model; return the columns of a table."""
    batch = scored(size)
    loss_of_rows = batch.step(loss)
    ours, bce, ratio = compare_calls(loss_of_rows, batch.step(plain.cross_entropy, ours=False), calls)
    x, (target,) = torch.randn(size, 32), batch.others
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def step_of_model(loss: LossStep, *index: Tensor) -> Step:
        def step() -> None:
            model.zero_grad()
            loss(model(x).squeeze(1), target, *index).backward()

        return step

    with_index, without = step_of_model(loss, *batch.new[0]), step_of_model(plain.cross_entropy)
    _, _, with_model = compare_calls(with_index, without, calls)
    return f"{ours * 1e6:>9.0f} µs{bce * 1e6:>7.0f} µs{ratio:>8.1f}{with_model:>20.1f}"


def bipartite_losses() -> dict[str, LossStep | None]:
    def average_precision(surrogate: str) -> LossStep:
        return losses.AveragePrecisionLoss(N, N // 10, surrogate=surrogate, memory=0)

    return {
        "average precision, ramp": average_precision("ramp"),
        "average precision, squared hinge": average_precision("squared_hinge"),
        "p-norm push": losses.PNormPushLoss(N, memory=0),
        "LibAUC's average precision": installed(libauc_average_precision),
    }


def over_plain(size: int, case: Case, calls: int) -> str:
    """Compare a loss with the plain one, without its memory and by default; return the columns of a table."""
    batch = case.batch(size)
    beside = batch.step(case.plain, ours=False)
    ours, seconds, ratio = compare_calls(batch.step(case.make(memory=0)), beside, calls)
    default = compare_calls(batch.step(case.make()), beside, calls).ratio
    columns = f"{ours * 1e6:>9.0f} µs{seconds * 1e6:>7.0f} µs{ratio:>10.1f}{default:>10.1f}"
    theirs = installed(case.theirs)
    if theirs is not None:
        other = compare_calls(batch.step(theirs, ours=False), beside, calls).ratio
        return f"{columns}{other:>8.1f} {case.name_of_theirs}"
    return columns + (f"{'':>4}{case.name_of_theirs} not installed" if case.name_of_theirs else "")


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of the losses over plain losses in torch, in one run.")
    parser.add_argument("--quick", action="store_true", help="few repeats, to see that it runs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="losses whose names contain one of these")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = SIZES[:1] if given.quick else SIZES

    def wanted(name: str) -> bool:
        return given.only is None or any(part.lower() in name.lower() for part in given.only)

    def calls(size: int) -> int:
        return 10 if given.quick else 300 if size < 1024 else 60

    print(f"{'forward + backward':<34}{'batch':>6}{'loss':>12}{'BCE':>10}{'ratio':>8}{'with MLP 32-64-1':>20}")
    for name, loss in bipartite_losses().items():
        if loss is None:
            print(f"{name:<34}{'not installed':>20}")
        elif wanted(name):
            for size in sizes:
                print(f"{name:<34}{size:>6}{over_cross_entropy(size, loss, calls(size))}", flush=True)
    print(f"\n{'':<14}{'batch':>6}{'memory=0':>12}{'plain':>10}{'ratio':>10}{'default':>10}{'other library':>15}")
    for name, case in CASES.items():
        for size in sizes if wanted(name) else ():
            print(f"{name:<14}{size:>6}{over_plain(size, case, calls(size))}", flush=True)


if __name__ == "__main__":
    main()
