"""Average precision for a network: cross entropy first, then a blend of both."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fcco import distributed
from fcco._checks import as_rows, check_one_each, missing_index, whole_number
from fcco._eager import eager
from fcco._leave_out import leave_out_what_does_not_fit
from fcco._pool import Pool
from fcco.core.rules import SOAP, Rule
from fcco.functional._checks import as_mask, check_floats, check_number
from fcco.functional._inner import OwnTerm
from fcco.functional._surrogates import SurrogateLike
from fcco.functional._tensors import mean
from fcco.losses._base import count_both_classes
from fcco.losses._bipartite import AveragePrecisionLoss
from fcco.losses._classes import known_labels
from fcco.losses._options import PretrainedOptions

_DECAY = 0.99  # of the moments of the logits, a step
_PATIENT_PASSES = 10  # without a word on validation, before a warning
_LEAST_DEVIATION = 1e-6  # of logits that the temperature follows; if all are equal, it stays as it is


class PretrainedAveragePrecisionLoss(nn.Module):
    r"""Cross entropy first, and after a switch a blend of cross entropy and average precision.

    .. math:: F = (1 - \lambda) \, \text{cross entropy} + \lambda \, \text{AveragePrecisionLoss}, \qquad
        \tau = c \cdot \text{deviation of the training logits}

    The gradient of average precision hardly reaches positives far down the list, so a network is trained by cross
    entropy until they have risen. From the switch on, λ = ``blend``. The table of running estimates begins empty at the
    switch. The temperature τ follows the scale of the logits: it is set at the switch, and again after every n examples
    or when :meth:`end_epoch` is called.

    Parameters
    ----------
    n : int
        The number of training examples.
    n_pos : int
        The number of positives among them; see also :meth:`from_targets`.
    switch : int or None, default None
        The number of steps of cross entropy alone. With None, the switch comes when the validation metric that
        :meth:`end_epoch` is told has not improved for ``patience`` epochs.
    patience : int, default 3
        See ``switch``.
    blend : float, default 0.2
        λ, in [0, 1]: how much average precision weighs after the switch.
    temperature : float, default 0.0625
        c: the temperature in units of the standard deviation of the training logits.
    surrogate : str or callable, default "ramp"
        See :class:`AveragePrecisionLoss`.
    rule : Rule, default ``fcco.SOAP(gamma=0.7)``
        See :class:`AveragePrecisionLoss`.
    own_term : {"exact", "sampled"}, default "sampled"
        See :class:`AveragePrecisionLoss`.

    Attributes
    ----------
    precision : AveragePrecisionLoss
        The part that begins at the switch.
    switched : bool
        Whether the switch has come.

    Raises
    ------
    ValueError
        If an option is out of range.

    Notes
    -----
    **Call.** ``loss(logits, target, index)`` takes three tensors of shape (B,): raw logits (no sigmoid), targets (0 and
    1, or bool), and rows in [0, n). It returns a scalar.

    Batches may be random or stratified. Average precision is that of the training set in either case. Cross entropy is
    that of the batch: stratified batches make it balanced.

    A network that already fits its training data gains nothing from average precision. docs/top_of_list.md compares
    this loss with cross entropy and focal loss on many data sets. Read it before you use this loss, and keep the loss
    that is better on your validation data.

    The switch and the temperature depend on values that are counted and read in Python, so ``torch.compile`` leaves
    this loss out of its graphs. If there is to be one graph (``fullgraph=True``), compile the model alone.

    On several ranks, the temperature is set from the logits of all ranks. All of them must call the loss equally often,
    and :meth:`end_epoch` with the same metric.

    Examples
    --------
    >>> loss_fn = PretrainedAveragePrecisionLoss.from_targets([1, 0, 0, 1, 0], switch=1)
    >>> logits = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> for _ in range(2):
    ...     loss = loss_fn(logits, torch.tensor([1, 0, 0, 1]), index=torch.tensor([0, 1, 2, 3]))
    >>> loss_fn.switched, 0 < loss_fn.precision.temperature < 1
    (True, True)
    """

    moments: Tensor
    """Weight, sum and sum of squares of recent logits, of the negatives and of the positives, of shape (2, 3)."""

    def __init__(
        self,
        n: int,
        n_pos: int,
        switch: int | None = None,
        *,
        patience: int = 3,
        blend: float = 0.2,
        temperature: float = 0.0625,
        surrogate: SurrogateLike = "ramp",
        rule: Rule = SOAP(gamma=0.7),  # noqa: B008 (frozen)
        own_term: OwnTerm = "sampled",
    ) -> None:
        super().__init__()
        self.precision = AveragePrecisionLoss(n, n_pos, surrogate=surrogate, rule=rule, own_term=own_term)
        self.switch = None if switch is None else whole_number("switch", switch, 0)
        self.patience = whole_number("patience", patience)
        check_number(blend, "blend", at_least=0.0)
        if blend > 1.0:
            raise ValueError(f"blend must be in [0, 1]; got {blend!r}")
        check_number(temperature, "temperature", above=0.0)
        self.blend, self.temperature = float(blend), float(temperature)
        self.switched = False
        self._reminded = False
        self._progress = {"steps": 0.0, "seen": 0.0, "best": -math.inf, "stalled": 0.0}
        self.register_buffer("moments", torch.zeros(2, 3, dtype=torch.float64))

    @classmethod
    def from_targets(
        cls, target: Any, switch: int | None = None, **options: Unpack[PretrainedOptions]
    ) -> PretrainedAveragePrecisionLoss:
        """Create the loss with n and n_pos counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,)
            The labels of the training data: 0 and 1, or bool.
        switch : int or None, default None
            The number of steps of cross entropy alone; None switches when validation stalls.
        **options
            Further arguments of the constructor.

        Returns
        -------
        PretrainedAveragePrecisionLoss
            The loss.
        """
        n, n_pos = count_both_classes(target)
        loss = cls(n, n_pos, switch, **options)
        loss.precision._know_labels(*known_labels(target))
        return loss

    @eager
    def forward(self, logits: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        logits : Tensor of shape (B,)
            The raw logits, without a sigmoid.
        target : Tensor of shape (B,)
            The labels: 0 and 1, or bool.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        check_floats(logits, "logits", "[B]")
        if logits.device != self.moments.device:
            raise ValueError(f"logits are on {logits.device}, the loss on {self.moments.device}: move one with .to()")
        positive = as_mask(target, "target", logits, "logits", signs=False)
        latest, learning = logits.detach(), self.training and torch.is_grad_enabled()
        moments = self._moments_of(latest, positive)
        if learning and index is None:
            raise missing_index("the loss keeps a row for every example")
        if learning and not self.switched:
            # Otherwise, a wrong index or dataset would not be noticed before the switch.
            rows = as_rows(index, self.precision.n, logits.device).values
            check_one_each(rows, logits, "logits")
            self.precision._check_labels(Pool([positive], rows=rows))
        steps, temperature = self._progress["steps"], self.precision.temperature
        due = learning and not self.switched and self.switch is not None and steps >= self.switch
        if due:
            self._set_temperature(self.moments if steps else moments)
        loss = mean(F.binary_cross_entropy_with_logits(logits, positive.to(logits.dtype), reduction="none"))
        if self.switched or due:
            try:
                loss = (1 - self.blend) * loss + self.blend * self.precision(logits, target, index)
            except Exception:
                self.precision.temperature = temperature  # a batch that is refused changes nothing
                raise
        if learning:
            self.switched |= due
            self._watch(latest, moments)
        elif not self.switched:  # otherwise the engine does so
            self.precision.coupled.watch_evaluation(loss, lambda: self._progress["steps"] > 0)
        return loss

    if TYPE_CHECKING:  # forward, but with an index, which the defaults need in training; it may be None

        def __call__(self, logits: Tensor, target: Tensor, index: Tensor | None) -> Tensor: ...

    def end_epoch(self, metric: float | Tensor | None = None) -> bool:
        """Set the temperature anew, and switch if validation has stalled.

        Parameters
        ----------
        metric : float, Tensor of one number or None, default None
            A validation metric, the larger the better. Needed if ``switch`` is None.

        Returns
        -------
        bool
            Whether the switch came just now.
        """
        if self.switched:
            self._set_temperature(self.moments)
            return False
        if self.switch is not None:
            return False
        if isinstance(metric, Tensor) and metric.numel() == 1:
            metric = metric.item()
        check_number(metric, "metric")
        if metric != metric:
            raise ValueError(
                "metric must be a number; got nan. average_precision is nan for a validation set without positives"
            )
        state, latest = self._progress, float(metric or 0.0)
        improved = latest > state["best"]
        state["best"] = max(state["best"], latest)
        state["stalled"] = 0.0 if improved else state["stalled"] + 1
        if state["stalled"] >= self.patience:
            self.switched = True
            self._set_temperature(self.moments)
        return self.switched

    def _moments_of(self, logits: Tensor, positive: Tensor) -> Tensor:
        """Return the weight, sum and sum of squares of the logits of a batch, of each class."""
        values = logits.to(self.moments)
        powers = torch.stack([torch.ones_like(values), values, values.square()], 1)
        return torch.stack([(powers * side[:, None]).sum(0) for side in (~positive, positive)])

    def _watch(self, logits: Tensor, moments: Tensor) -> None:
        """Note the scale of the logits, and set the temperature after every n examples."""
        self.moments.mul_(_DECAY).add_(moments)
        self._progress["steps"] += 1
        if not self.switched:
            self._remind(len(logits))
            return
        self._progress["seen"] += len(self._of_all_ranks(logits))
        if self._progress["seen"] >= self.precision.n:
            self._set_temperature(self.moments)

    def _remind(self, batch: int) -> None:
        """Warn once if nobody says how validation goes, since average precision then never begins."""
        waits = self.switch is None and self._progress["best"] == -math.inf
        if waits and not self._reminded and self._progress["steps"] * batch > _PATIENT_PASSES * self.precision.n:
            self._reminded = True
            warnings.warn(
                f"after {_PATIENT_PASSES} passes the loss is still cross entropy: pass switch=, the number of steps of "
                "cross entropy, or call end_epoch(metric) after each epoch",
                stacklevel=4,
            )

    def _of_all_ranks(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks that take steps together."""
        layout = self.precision.coupled.layout
        return rows if layout.alone else distributed.gather(rows, group=layout.group)[0]

    def _set_temperature(self, moments: Tensor) -> None:
        """Set the temperature to c times the deviation of the training logits, as far as they are known."""
        self._progress["seen"] = 0.0
        mass, total, square = self._of_all_ranks(moments[None]).sum(0).cpu().double().unbind(1)
        share = torch.tensor([self.precision.n - self.precision.n_pos, self.precision.n_pos], dtype=torch.float64)
        share = share * (mass > 0)
        if not bool(share.any()):
            return
        each = share / share.sum() / mass.clamp(min=1e-300)
        variance = float(each @ square - (each @ total).square())
        if _LEAST_DEVIATION**2 < variance < math.inf:
            self.precision.temperature = self.temperature * math.sqrt(variance)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Squares of logits do not fit into half precision, so the moments keep theirs.
        moments, self.moments = self.moments, self.moments.float()
        super()._apply(fn, recurse)
        device = self.moments.device
        self.moments = moments.to(device, torch.float32 if device.type == "mps" else moments.dtype)
        return self

    def extra_repr(self) -> str:
        """Return the settings, and how far training has come.

        Returns
        -------
        str
            What ``repr`` shows between the brackets.
        """
        phase = "cross entropy and average precision" if self.switched else "cross entropy"
        return f"switch={self.switch}, blend={self.blend:g}, temperature={self.temperature:g}, now: {phase}"

    def get_extra_state(self) -> Tensor:
        """Return the counters, as a tensor, so that every format of checkpoints can hold them.

        Returns
        -------
        Tensor
            The counters, in float64.
        """
        return torch.tensor([float(self.switched), *self._progress.values()], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Continue from saved counters.

        Parameters
        ----------
        state : Tensor
            What :meth:`get_extra_state` returned.
        """
        switched, *counters = state.tolist()
        self.switched = bool(switched)
        self._progress = dict(zip(self._progress, counters, strict=True))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        leave_out_what_does_not_fit(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
