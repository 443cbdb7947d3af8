"""Losses with a table in skorch: a net that knows which rows its batches are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    from skorch import NeuralNet
    from skorch.dataset import Dataset
except ModuleNotFoundError as missing:
    raise ImportError("fcco.integrations.skorch needs skorch: pip install 'fcco[ecosystem]'") from missing

__all__ = ["IndexedDataset", "TableNet"]


class IndexedDataset(Dataset):
    """A skorch dataset whose targets also say which row they are: ``y`` becomes ``{"target": y, "index": i}``.

    Parameters
    ----------
    X, y, length
        As in :class:`skorch.dataset.Dataset`.
    """

    def __getitem__(self, i: int) -> Any:
        x, y = super().__getitem__(i)
        return x, {"target": y, "index": i}


class TableNet(NeuralNet):
    """A skorch net for a loss called as ``loss(scores, target, index)``, with a table over the data it is fitted to.

    The loss is made when ``fit`` is called, as ``criterion.from_targets(y, **criterion__...)``, so that its table fits
    the data whichever part of it a cross-validation gives. In training the loss gets the rows of the batch; on
    validation data it is in ``eval()`` mode, the in-batch objective. Parameters of the loss are set as usual:
    ``criterion__rule=fcco.SOX(0.3)``.

    Parameters
    ----------
    module : Module
        A module whose output is [B] or [B, 1].
    criterion : type
        A loss with ``from_targets(y)``, such as :class:`fcco.losses.AveragePrecisionLoss`.
    sampler : callable, optional
        A function from targets [n] to a batch sampler, such as ``lambda y: PositiveNegativeSampler(y, batch=32)``. It
        replaces ``batch_size``, and needs ``train_split=None``, because a split has other rows.
    dataset : type, default IndexedDataset
        The class of the dataset, whose targets are dicts like those of :class:`IndexedDataset`.
    **others
        Parameters of :class:`skorch.NeuralNet`.

    Examples
    --------
    >>> import numpy as np
    >>> import fcco
    >>> x, y = np.random.randn(40, 3).astype(np.float32), np.arange(40) % 2
    >>> net = TableNet(torch.nn.Linear(3, 1), fcco.losses.AveragePrecisionLoss, train_split=None, verbose=0)
    >>> net.fit(x, y).predict(x).shape
    (40, 1)
    """

    def __init__(
        self,
        module: Any,
        criterion: Any,
        *,
        sampler: Callable[[Any], Any] | None = None,
        dataset: Any = IndexedDataset,
        **others: Any,
    ) -> None:
        super().__init__(module, criterion=criterion, dataset=dataset, **others)
        self.sampler = sampler

    def fit(self, X: Any, y: Any = None, **fit_params: Any) -> TableNet:  # noqa: N803 (scikit-learn's name)
        """Fit to data X with targets y.

        Parameters
        ----------
        X : array-like or Dataset
            The data, as skorch takes it.
        y : array-like of shape (n,)
            The targets, from which the loss is made.
        **fit_params
            Passed on to the module.

        Returns
        -------
        TableNet
            This net.

        Raises
        ------
        ValueError
            If there is no y, or a sampler along with a train_split.
        """
        if y is None:
            raise ValueError("fit needs y, from which it takes the size of the table and the population; got None")
        if self.sampler is not None and self.train_split is not None:
            raise ValueError(
                "sampler draws from all rows of y, and cannot be used with train_split; set train_split=None"
            )
        self.target_ = torch.as_tensor(y)
        super().fit(X, y, **fit_params)
        return self

    def initialize_criterion(self) -> TableNet:
        """Make the loss for the targets of this fit.

        Returns
        -------
        TableNet
            This net.

        Raises
        ------
        ValueError
            If ``fit`` has not been called.
        """
        if not hasattr(self, "target_"):
            raise ValueError("the loss is made from targets: call fit rather than initialize")
        self.criterion_ = self.criterion.from_targets(self.target_, **self.get_params_for("criterion"))
        return self

    def get_loss(self, y_pred: Tensor, y_true: dict[str, Tensor], X: Any = None, training: bool = False) -> Tensor:  # noqa: N803
        """Return the loss of a batch.

        Parameters
        ----------
        y_pred : Tensor of shape (B,) or (B, 1)
            What the module returned.
        y_true : dict of str to Tensor
            The targets and their rows, as :class:`IndexedDataset` has them.
        X : object, optional
            The data of the batch, which is not used.
        training : bool, default False
            Whether this is a training step, which is not used: the loss knows its mode.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        scores = y_pred.squeeze(1) if y_pred.dim() == 2 else y_pred
        return self.criterion_(scores, y_true["target"], y_true["index"])

    def get_iterator(self, dataset: Any, training: bool = False) -> Any:
        """Return the batches, which ``sampler`` draws in training if there is one.

        Parameters
        ----------
        dataset : Dataset
            The data to iterate over.
        training : bool, default False
            Whether the batches are for training.

        Returns
        -------
        iterable
            The batches.
        """
        if not training or self.sampler is None:
            return super().get_iterator(dataset, training=training)
        return self.iterator_train(dataset, batch_sampler=self.sampler(self.target_))
