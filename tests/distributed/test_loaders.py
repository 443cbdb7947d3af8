"""A plain loop, Lightning and Accelerate on two ranks: each rank has its own part of an epoch, by default."""

import contextlib
import io
import os
import runpy
import sys
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.data import Indexed, PositiveNegativeSampler, ResumableLoader

N, EPOCHS = 60, 2
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0)).double()
Y = torch.arange(N) % 4 == 0
EXAMPLE = Path(__file__).parents[2] / "examples" / "with_accelerate.py"


def make_sampler(**split):
    """15 positives in 8 batches of one process, or in 4 batches of each of two."""
    return PositiveNegativeSampler(Y, positives=2, **split)


def make_training():
    model = torch.nn.Linear(3, 1).double()
    torch.nn.init.ones_(model.weight)
    loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(Y)
    return model, loss_fn, torch.optim.SGD(model.parameters(), lr=0.5)


def train(loader, model, loss_fn, optimizer):
    """The rows of every batch."""
    drawn = []
    for features, target, index in loader:
        optimizer.zero_grad()
        loss_fn(model(features).squeeze(1), target, index).backward()
        optimizer.step()
        drawn.append(index.tolist())
    return drawn


def in_a_plain_loop():
    model, *rest = make_training()
    wrapped = DistributedDataParallel(model)
    loader = ResumableLoader(Indexed(TensorDataset(X, Y)), make_sampler())
    return [train(loader, wrapped, *rest) for _ in range(EPOCHS)], len(loader), model.weight.detach()


def by_workers():
    """The second epoch, and what was left of the first one when it was abandoned."""
    loader = ResumableLoader(Indexed(TensorDataset(X, Y)), make_sampler(), num_workers=1)
    first = iter(loader)
    next(first), next(first)
    resumed = ResumableLoader(Indexed(TensorDataset(X, Y)), make_sampler())
    resumed.load_state_dict(loader.state_dict())
    return [[index.tolist() for *_, index in each] for each in (loader, resumed)]


def by_lightning(**options):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.loss_fn, _ = make_training()
            self.drawn = [[] for _ in range(EPOCHS)]

        def training_step(self, batch, _):
            features, target, index = batch
            self.drawn[self.current_epoch].append(index.tolist())
            return self.loss_fn(self.model(features).squeeze(1), target, index)

        def configure_optimizers(self):
            return torch.optim.SGD(self.model.parameters(), lr=0.5)

    module = Module()
    loader = DataLoader(Indexed(TensorDataset(X, Y)), batch_sampler=make_sampler())
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(module, loader)
    return module.drawn, trainer.num_training_batches, module.model.weight.detach()


def by_accelerate(epoch=0, **split):
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    model, loss_fn, optimizer = make_training()
    loader = DataLoader(Indexed(TensorDataset(X, Y)), batch_sampler=make_sampler(**split))
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loader.set_epoch(epoch)
    drawn = [train(loader, wrapped, loss_fn, optimizer) for _ in range(EPOCHS)]
    return drawn, len(loader), model.weight.detach()


def message_of(error_type, function):
    with pytest.raises(error_type) as raised:
        function()
    return str(raised.value)


def warnings_of(rows_of_step, sharded=False):
    """The warnings of a loss called with some rows in each step."""
    loss_fn = fcco.distributed.configure(fcco.losses.SoftmaxLoss(N), sharded=sharded)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in rows_of_step:
            loss_fn(torch.zeros(len(rows), requires_grad=True), torch.zeros(len(rows), 2), rows)
    return [str(warning.message) for warning in caught]


def warnings_without_index(shift):
    """The warnings of losses that are called without rows."""
    time, event, group = torch.arange(1.0, 9), torch.arange(8) % 2 == 0, torch.arange(8) % 4
    losses = [
        (fcco.losses.CoxLoss(N), (time, event)),  # a memory
        (fcco.losses.AUCLoss(N, 12), (event,)),  # no state
        (fcco.losses.GroupDROLoss(4), (group,)),  # all rows
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for loss_fn, columns in losses:
            for step in range(6):
                loss_fn((time + step + shift).requires_grad_(), *columns)
    return [str(warning.message) for warning in caught]


def everything(rank, world):
    rows = torch.arange(8)
    got = {
        "equal": warnings_of([rows] * 6),
        "equal, sharded": warnings_of([torch.arange(N)] * 6, sharded=True),
        "equal by chance": warnings_of([rows[:1], rows[:1], rows[rank : rank + 1], rows[:1], rows[:1], rows[:1]]),
        "one is empty": warnings_of([rows[: 4 * rank]] * 6),
        "different": warnings_of([rows + 8 * rank] * 6),
        "without index": warnings_without_index(0),
        "without index, different": warnings_without_index(rank),
        "plain loop": in_a_plain_loop(),
        "workers": by_workers(),
    }
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    os.environ |= {name: str(value) for name, value in names.items()}
    warnings.simplefilter("ignore")
    got["lightning"] = by_lightning(use_distributed_sampler=False)
    got["lightning by default"] = message_of(TypeError, by_lightning)
    got["accelerate"] = by_accelerate()
    got["accelerate, a later epoch"] = by_accelerate(epoch=5)
    got["accelerate, divided twice"] = message_of(ValueError, lambda: by_accelerate(num_replicas=world, rank=rank))
    printed = io.StringIO()
    with (
        contextlib.redirect_stdout(printed),
        mock.patch.object(sys, "argv", ["with_accelerate.py", "--epochs", "1"]),
        mock.patch("accelerate.Accelerator.end_training"),
    ):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    got["example"] = printed.getvalue()
    return got


@pytest.fixture(scope="module")
def two():
    pytest.importorskip("lightning")
    pytest.importorskip("accelerate")
    return run_ranks(everything, 2)


def of_ranks(two, name):
    """Rows by rank, epoch and batch, and what else came of a loop."""
    drawn, lengths, weights = zip(*(got[name] for got in two), strict=True)
    assert lengths == (4, 4)
    assert all(len(epoch) == 4 for of_rank in drawn for epoch in of_rank)
    assert torch.equal(*weights)
    return drawn, weights[0]


def in_one_process(drawn):
    """The weights if each batch is that of both ranks."""
    joined = [torch.tensor(a + b) for mine, other in zip(*drawn, strict=True) for a, b in zip(mine, other, strict=True)]
    model, *rest = make_training()
    train([(X[rows], Y[rows], rows) for rows in joined], model, *rest)
    return model.weight.detach()


@pytest.mark.parametrize("name", ["plain loop", "lightning", "accelerate"])
def test_ranks_divide_an_epoch_and_train_as_one_process(two, name):
    drawn, weight = of_ranks(two, name)
    for epoch in range(EPOCHS):
        outer = [row for of_rank in drawn for batch in of_rank[epoch] for row in batch if Y[row]]
        assert sorted(outer) == torch.nonzero(Y).flatten().tolist()
    torch.testing.assert_close(weight, in_one_process(drawn), rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["plain loop", "lightning"])
def test_the_default_is_what_the_group_says(two, name):
    drawn, _ = of_ranks(two, name)
    for rank, of_rank in enumerate(drawn):
        sampler = make_sampler(num_replicas=2, rank=rank)
        assert of_rank == [list(sampler) for _ in range(EPOCHS)]


@pytest.mark.parametrize("epoch", [0, 5])
def test_accelerate_divides_the_batches_of_one_process(two, epoch):
    drawn, _ = of_ranks(two, "accelerate, a later epoch" if epoch else "accelerate")
    sampler = make_sampler()
    sampler.set_epoch(epoch)
    for each in range(EPOCHS):
        whole = list(sampler)
        assert [of_rank[each] for of_rank in drawn] == [whole[::2], whole[1::2]]


def test_workers_load_the_part_of_their_rank(two):
    for rank, got in enumerate(two):
        sampler = make_sampler(num_replicas=2, rank=rank)
        first, second = list(sampler), list(sampler)
        assert got["workers"] == [second, first[2:]]


def test_a_second_division_is_an_error(two):
    for got in two:
        assert (
            "num_replicas must not be given for a loader that Accelerate prepares; got 2"
            in got["accelerate, divided twice"]
        )
        assert "use_distributed_sampler=False" in got["lightning by default"]


def test_equal_rows_on_all_ranks_are_warned_about_once(two):
    first, second = two
    for name in ("equal", "equal, sharded"):
        (message,) = first[name]
        assert message.startswith("all 2 ranks had the same rows in each of the first 3 steps")
        assert second[name] == []
    for name in ("equal by chance", "one is empty", "different"):
        assert first[name] == second[name] == []


def test_equal_batches_without_index_are_warned_about_once(two):
    first, second = two
    assert len(first["without index"]) == 3  # losses
    assert all(message.startswith("all 2 ranks had the same rows") for message in first["without index"])
    assert second["without index"] == first["without index, different"] == second["without index, different"] == []


def test_the_example_restores_its_table_on_all_ranks(two):
    assert two[0]["example"].endswith("rows after loading equal those before: True\n")
