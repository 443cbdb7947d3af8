"""A callback for Lightning: logs what the tables do, and saves them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fcco._checks import whole_number
from fcco.diagnostics import Monitor
from fcco.distributed import full_state_dict
from fcco.losses.loss import ObjectiveLoss

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as missing:
    raise ImportError("fcco.integrations.lightning needs Lightning: pip install 'fcco[ecosystem]'") from missing

__all__ = ["TableCallback"]


class TableCallback(Callback):
    """What a Lightning run needs around losses with a table.

    - It logs a report of every table (see :class:`fcco.diagnostics.Monitor`) every ``every`` steps, as
      ``fcco/<name>/<figure>``, to whichever loggers the trainer has.
    - A loss that is an attribute of the LightningModule is saved with it. Losses that are not, and are given here by
      name, are moved to the module's device and saved in the checkpoint as the callback's state.

    Parameters
    ----------
    losses : mapping of str to Module, optional
        Losses that are not part of the LightningModule, by name.
    every : int, default=50
        Steps between two reports. With 0 there are none.

    Raises
    ------
    ValueError
        At the start of a fit, if there is no loss with a table, or of any run, if one of ``losses`` is a part of the
        module.

    Examples
    --------
    >>> from lightning.pytorch import Trainer
    >>> trainer = Trainer(callbacks=[TableCallback(every=100)], logger=False, enable_checkpointing=False)
    """

    def __init__(self, losses: Mapping[str, nn.Module] | None = None, every: int = 50) -> None:
        self.losses = dict(losses or {})
        self.every = whole_number("every", every, least=0)
        self.monitors: dict[str, Monitor] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the losses.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module that it trains.
        stage : str
            ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.

        Raises
        ------
        ValueError
            If there is no loss with a table to fit, or if one of ``losses`` is a part of the module.
        """
        inside = {name: module for name, module in pl_module.named_modules() if isinstance(module, ObjectiveLoss)}
        for name, loss in self.losses.items():
            loss.to(pl_module.device)
            if any(part is own for part in loss.modules() for own in inside.values()):
                raise ValueError(f"the loss {name!r} is a part of the module, which saves it: leave it out of losses")
        if stage == "fit" and not inside and not self.losses:
            raise ValueError(
                f"{type(pl_module).__name__} holds no loss with a table: make it an attribute, or pass it as losses"
            )
        if stage == "fit" and self.every:
            self.monitors = {name: Monitor(loss) for name, loss in {**inside, **self.losses}.items()}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the losses to where the module is by now.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module that it trains.
        """
        for loss in self.losses.values():
            loss.to(pl_module.device)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log the reports.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module that it trains.
        outputs : Any
            What the training step returned, which is not used.
        batch : Any
            The batch, which is not used.
        batch_idx : int
            Its number, which is not used.
        """
        if not self.monitors or trainer.global_step % self.every:
            return
        for name, monitor in self.monitors.items():
            figures = monitor.report().items()
            pl_module.log_dict({f"fcco/{name}/{figure}": value for figure, value in figures if figure != "step"})

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Stop watching; ``monitors`` keep what they saw.

        Parameters
        ----------
        trainer : Trainer
            The trainer.
        pl_module : LightningModule
            The module that it trains.
        stage : str
            ``"fit"``, ``"validate"``, ``"test"`` or ``"predict"``.
        """
        for monitor in self.monitors.values():
            monitor.close()

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """Return the tables of the losses given by name, whole; Lightning calls this on all ranks.

        Returns
        -------
        dict
            The state of each loss, by its name.
        """
        return {name: full_state_dict(loss) for name, loss in self.losses.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from the tables saved.

        Parameters
        ----------
        state_dict : dict
            What :meth:`state_dict` returned.
        """
        for name, loss in self.losses.items():
            loss.load_state_dict(state_dict[name])
