"""The skorch net: the loss gets the rows of the data it is fitted to, and refuses what it cannot use."""

import numpy as np
import pytest
import torch

import fcco
from fcco.data import PositiveNegativeSampler

skorch = pytest.importorskip("skorch")

from fcco.integrations.skorch import TableNet  # noqa: E402

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = (np.arange(40) % 4 == 0).astype(np.int64)


def make(**options):
    options = {"train_split": None, "verbose": 0, "max_epochs": 2, **options}
    return TableNet(torch.nn.Linear(3, 1), fcco.losses.AveragePrecisionLoss, **options)


def test_the_table_has_the_rows_of_the_fit():
    net = make(batch_size=10).fit(X, Y)
    table = net.criterion_.table
    assert net.criterion_.n_pos == Y.sum()
    assert table.n == 40
    assert set(table.visits.nonzero().flatten().tolist()) == set(np.flatnonzero(Y))
    assert make().fit(X[:20], Y[:20]).criterion_.n == 20


def test_a_sampler_draws_the_batches():
    steps = len(PositiveNegativeSampler(Y, batch=8))
    net = make(sampler=lambda y: PositiveNegativeSampler(y, batch=8)).fit(X, Y)
    assert net.criterion_.table.step == 2 * steps


def test_a_sampler_is_for_training_only():
    """Predictions are of all rows, in their order."""
    net = make(sampler=lambda y: PositiveNegativeSampler(y, batch=8)).fit(X, Y)
    with torch.no_grad():
        np.testing.assert_allclose(net.predict(X), net.module_(torch.from_numpy(X)).numpy(), rtol=1e-6)


def test_validation_rows_are_never_written():
    net = make(train_split=skorch.dataset.ValidSplit(4, stratified=True), batch_size=10).fit(X, Y)
    assert net.criterion_.n == 40
    assert net.criterion_.table.visits.sum() <= Y.sum() * 3 / 4 + 1
    assert len(net.history[:, "valid_loss"]) == 2


def test_parameters_of_the_loss_are_those_of_the_net():
    net = make(criterion__rule=fcco.SOX(0.3))
    assert net.get_params()["criterion__rule"] == fcco.SOX(0.3)
    assert net.fit(X, Y).criterion_.rule == fcco.SOX(0.3)
    assert net.set_params(criterion__rule=fcco.BSGD()).fit(X, Y).criterion_.rule == fcco.BSGD()


def test_refusals():
    with pytest.raises(ValueError, match="fit needs y"):
        make().fit(X)
    with pytest.raises(ValueError, match="set train_split=None"):
        make(sampler=PositiveNegativeSampler, train_split=skorch.dataset.ValidSplit(4)).fit(X, Y)
    with pytest.raises(ValueError, match="call fit rather than initialize"):
        make().initialize()
