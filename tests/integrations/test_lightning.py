"""The Lightning callback: what it logs, saves and refuses, and that samplers are told the epoch."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.data import Indexed, PositiveNegativeSampler

pl = pytest.importorskip("lightning.pytorch")

from fcco.integrations.lightning import TableCallback  # noqa: E402

# Lightning's own: a deprecated call of torch, and advice on loaders.
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec", "ignore:.*does not have many workers")

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (torch.arange(40) % 4 == 0).long()


class Model(pl.LightningModule):
    def __init__(self, loss_fn, inside):
        super().__init__()
        self.linear = torch.nn.Linear(3, 1)
        if inside:
            self.loss_fn = loss_fn
        else:
            self.__dict__["loss_fn"] = loss_fn  # as a list or a global would hold it

    def training_step(self, batch, batch_idx):
        x, y, index = batch
        return self.loss_fn(self.linear(x).squeeze(1), y, index)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(callback, model, epochs=2, resume=None):
    torch.manual_seed(0)
    sampler = PositiveNegativeSampler(Y, batch=8)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        callbacks=[callback],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(model, DataLoader(Indexed(TensorDataset(X, Y)), batch_sampler=sampler), ckpt_path=resume)
    return trainer, sampler


def make(inside):
    torch.manual_seed(1)
    loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(Y)
    return loss_fn, Model(loss_fn, inside), TableCallback({} if inside else {"ap": loss_fn}, every=1)


@pytest.mark.parametrize("inside", [True, False])
def test_logs_and_sets_epochs(inside):
    _, model, callback = make(inside)
    trainer, sampler = fit(callback, model, epochs=4)
    name = "loss_fn" if inside else "ap"
    assert trainer.logged_metrics[f"fcco/{name}/never_seen"] == 0
    assert len(callback.monitors[name].history) == 4 * 3
    assert sampler.epoch == 3


@pytest.mark.parametrize("inside", [True, False])
def test_resumes_with_the_table(inside, tmp_path):
    """Two epochs, and two more from the checkpoint, end with the table of four."""
    whole, model, callback = make(inside)
    fit(callback, model, epochs=4)
    _, model, callback = make(inside)
    fit(callback, model, epochs=2)[0].save_checkpoint(tmp_path / "half.ckpt")
    resumed, model, callback = make(inside)
    fit(callback, model, epochs=4, resume=tmp_path / "half.ckpt")
    assert torch.equal(resumed.table.u, whole.table.u)
    assert resumed.table.step == whole.table.step == 4 * 3


def test_refuses_a_module_without_a_table():
    with pytest.raises(ValueError, match="Model holds no loss with a table"):
        fit(TableCallback(), Model(torch.nn.BCELoss(), inside=True))


def test_refuses_a_loss_that_the_module_saves():
    loss_fn, model, _ = make(inside=True)
    with pytest.raises(ValueError, match="'ap' is a part of the module"):
        fit(TableCallback({"ap": loss_fn}), model)


def test_watches_nothing_when_told_so():
    _, model, _ = make(inside=True)
    callback = TableCallback(every=0)
    fit(callback, model)
    assert callback.monitors == {}
