"""The Lightning callback: what it logs, saves and refuses, and that samplers have the epoch of the trainer."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import fcco
from fcco.data import Indexed, PositiveNegativeSampler, ResumableLoader

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


def fit(callback, model, epochs=2, resume=None, make_loader=DataLoader, saver=None, **workers):
    torch.manual_seed(0)
    sampler = PositiveNegativeSampler(Y, batch=8)
    trainer = pl.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        callbacks=[callback, *([saver] if saver else [])],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    loader = make_loader(Indexed(TensorDataset(X, Y)), batch_sampler=sampler, **workers)
    trainer.fit(model, loader, ckpt_path=resume)
    return trainer, sampler


def make(inside, memory=0):
    torch.manual_seed(1)
    loss_fn = fcco.losses.AveragePrecisionLoss.from_targets(Y, memory=memory)
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
@pytest.mark.parametrize("memory", [0, 8])
def test_resumes_with_the_table(inside, memory, tmp_path):
    """Two epochs, and two more from the checkpoint, end with the table of four, and with what is remembered."""
    whole, model, callback = make(inside, memory)
    fit(callback, model, epochs=4)
    _, model, callback = make(inside, memory)
    fit(callback, model, epochs=2)[0].save_checkpoint(tmp_path / "half.ckpt")
    resumed, model, callback = make(inside, memory)
    fit(callback, model, epochs=4, resume=tmp_path / "half.ckpt")
    assert torch.equal(resumed.table.u, whole.table.u)
    assert resumed.table.step == whole.table.step == 4 * 3
    saved, expected = resumed.state_dict(), whole.state_dict()
    assert saved.keys() == expected.keys()
    assert all(torch.equal(saved[name], expected[name]) for name in saved)


class SaveAt(pl.Callback):
    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2}], ids=["alone", "workers"])
@pytest.mark.parametrize("step", [2, 3, 4])  # of 3 an epoch
def test_resumes_in_mid_epoch(step, workers, tmp_path):
    options = {"epochs": 3, "make_loader": ResumableLoader, **workers}
    whole, model, callback = make(inside=True)
    fit(callback, model, saver=SaveAt(step, tmp_path / "some.ckpt"), **options)
    resumed, model, callback = make(inside=True)
    fit(callback, model, resume=tmp_path / "some.ckpt", **options)
    assert torch.equal(resumed.table.u, whole.table.u)
    assert resumed.table.step == whole.table.step == 3 * 3


class Leaving(Model):
    """A module that can be made without labels."""

    def __init__(self, target=None):
        super().__init__(None if target is None else fcco.losses.AveragePrecisionLoss.from_targets(target), True)

    def predict_step(self, batch, batch_idx):
        return self.linear(batch[0])


def test_leaves_training(tmp_path):
    """A module is loaded without labels to predict, and with those of other rows to go on; neither has the old loss."""
    trained, path = Leaving(Y), tmp_path / "trained.ckpt"
    trainer, _ = fit(TableCallback(every=0), trained, epochs=1)
    trainer.save_checkpoint(path)
    assert trained.loss_fn.table.step

    with pytest.warns(UserWarning, match="in the checkpoint: .*loss_fn"):  # Lightning's own
        served = Leaving.load_from_checkpoint(path, strict=False, weights_only=True)
    predicted = torch.cat(trainer.predict(served, DataLoader(TensorDataset(X), batch_size=16)))
    assert torch.equal(predicted, trained.linear(X))

    with pytest.warns(UserWarning, match="'loss_fn' .* starts afresh: .*n=40, dim=2, this one has n=30") as told:
        tuned = Leaving.load_from_checkpoint(path, strict=False, weights_only=True, target=Y[:30])
    assert len(told) == 1
    assert torch.equal(tuned.linear.weight, trained.linear.weight)
    assert not tuned.loss_fn.table.step
    sampler = PositiveNegativeSampler(Y[:30], batch=8)
    loader = DataLoader(Indexed(TensorDataset(X[:30], Y[:30])), batch_sampler=sampler)
    fit(TableCallback(every=0), tuned, epochs=1, make_loader=lambda *_, **__: loader)
    assert tuned.loss_fn.table.step
    assert not torch.equal(tuned.linear.weight, trained.linear.weight)


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


def test_reports_every_so_many_steps_and_stops_watching_at_the_end():
    loss_fn, model, _ = make(inside=True)
    callback = TableCallback(every=4)
    fit(callback, model, epochs=3)
    (monitor,) = callback.monitors.values()
    assert [figures["step"] for figures in monitor.history] == [4, 8]
    loss_fn(torch.zeros(2, requires_grad=True), torch.tensor([1, 0]), [0, 1])
    assert int(monitor._steps) == 9  # of the run; the step after it was not seen


def test_reports_can_be_plotted_after_the_run():
    pytest.importorskip("matplotlib")
    _, model, callback = make(inside=True)
    trainer, _ = fit(callback, model)
    (monitor,) = callback.monitors.values()
    assert {line.get_label() for panel in monitor.plot().axes for line in panel.lines} >= {"gamma", "never seen"}
    assert not any(name.endswith("/step") for name in trainer.logged_metrics)


def test_watches_no_run_but_a_fit():
    _, model, callback = make(inside=True)
    callback.setup(None, model, "validate")
    assert callback.monitors == {}
