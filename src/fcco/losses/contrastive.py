"""Contrastive losses: every example against all others, with one temperature or one for every anchor."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, is_grad_enabled, nn

from fcco._checks import as_index, missing_index, whole_number
from fcco._table import at_least_single
from fcco.core.objective import Objective
from fcco.core.rules import BSGD, Rule
from fcco.core.step import Batch, Step
from fcco.functional._checks import check_choice, check_directions, check_floats, check_number, check_same
from fcco.functional._inner import OwnTerm, check_own_term
from fcco.functional._similarity import check_temperature_of_all, refuse_temperatures
from fcco.losses.loss import ObjectiveLoss
from fcco.losses.memory import Default, Memory
from fcco.objectives.contrastive import Contrastive, RobustContrastive

# What measured best; see docs/defaults.md.
CONTRASTIVE = Default(BSGD(), Memory(256, "estimate"), remembers=False)


class ContrastiveLoss(ObjectiveLoss):
    r"""Global contrastive loss: every example against all others of the training set, not only those of its batch.

    .. math:: F = \frac{1}{2n} \sum_i \sum_{a \in \{first, second\}}
        \log \operatorname{mean}_c\, e^{(s(a_i, c) - s(first_i, second_i)) / \tau}

    Parameters
    ----------
    n : int
        The number of training examples.
    temperature : float or Parameter, default 0.1
        The temperature τ, positive. A ``torch.nn.Parameter`` of one number is one of the loss's parameters, and is
        learnt if the optimizer has them. A tensor that is a function of other parameters goes into each call, as
        ``loss(first, second, index, temperature=...)``. Both have the gradient of the objective.
    mode : {"two_views", "cross_modal"}, default "two_views"
        With "two_views", the candidates c are both views of all other examples. With "cross_modal", for image and text
        for example, they are those of the other modality. Both directions weigh the same, and the table has a column
        for each.
    include_positive : bool, default False
        Whether the positive pair is also a candidate.
    rule : Rule or None, default None
        How rows are updated; see :class:`fcco.SOX`. The default is ``fcco.BSGD()``, which has no table, and no memory.
        ``fcco.SOAP(gamma=0.7)`` is worth a try with a linear model, or with many passes.
    own_term : {"exact", "sampled"}, default "exact"
        How to weigh the positive pair, if it is included. With "exact" it is one candidate next to all n - 1 others.
        With "sampled" it is one next to those of the batch.
    memory : Memory, int or None, default None
        How many pairs of recent batches to remember, or a :class:`fcco.Memory`. They only improve the estimates of g,
        as with the mode "estimate": in the gradient, outputs flee from them, and a deep encoder collapses.

    Raises
    ------
    ValueError
        If ``temperature`` is not positive, or if ``mode`` or ``own_term`` is invalid.

    See Also
    --------
    fcco.functional.contrastive_loss : The exact objective.
    RobustContrastiveLoss : A temperature for every example.
    SupervisedContrastiveLoss : Several positives, by their labels.

    Notes
    -----
    **Call.** ``loss(first, second, index)`` takes two tensors of shape (B, d), which the loss normalises, and rows in
    [0, n) of shape (B,). It returns a scalar. The loss works in log space.

    ``ContrastiveLoss(n, include_positive=True, own_term="sampled", rule=fcco.BSGD())`` has the gradient of InfoNCE:
    with two views that of SimCLR's NT-Xent, and across modalities that of CLIP's cross entropy in both directions.

    A temperature that is learnt has no minimum above 0 if all candidates are less similar than the positive. With
    ``include_positive=True``, as in CLIP, F is bounded below; keep τ in an interval, for example as the exponential of
    a clamped parameter.

    The default rule, memory and own term were chosen by measurement; see docs/defaults.md and docs/memory.md.

    References
    ----------
    .. [1] Yuan et al., *Provable Stochastic Optimization for Global Contrastive Learning*, ICML 2022.

    Examples
    --------
    >>> import torch
    >>> loss_fn = ContrastiveLoss(n=5)
    >>> first, second = torch.eye(3).requires_grad_(), torch.eye(3)
    >>> loss_fn(first, second, index=torch.tensor([4, 0, 2])).backward()
    """

    columns = ("first", "second")
    _of_call: Tensor | None = None

    def __init__(
        self,
        n: int,
        temperature: float | nn.Parameter = 0.1,
        mode: Literal["two_views", "cross_modal"] = "two_views",
        include_positive: bool = False,
        rule: Rule | None = None,
        own_term: OwnTerm = "exact",
        memory: Memory | int | None = None,
    ) -> None:
        if isinstance(temperature, Tensor) and not isinstance(temperature, nn.Parameter):
            raise TypeError("temperature must be a number or a torch.nn.Parameter; give other tensors with each call")
        check_temperature_of_all(temperature)
        check_choice(mode, "mode", ("two_views", "cross_modal"))
        check_own_term(own_term)
        rule, memory = CONTRASTIVE.choose(rule, memory)
        term = own_term if include_positive else None
        super().__init__(Contrastive(_size(n), temperature, mode, term), n, rule=rule, memory=memory)
        self.temperature, self.mode, self.include_positive = temperature, mode, include_positive
        self.own_term: OwnTerm = own_term

    def forward(  # type: ignore[override]
        self, first: Tensor, second: Tensor, index: Tensor | None = None, *, temperature: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        first : Tensor of shape (B, d)
            The embeddings of the first view or modality, which the loss normalises.
        second : Tensor of shape (B, d)
            Those of the second one.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.
        temperature : Tensor of one number or None, default None
            The temperature τ of this call, instead of the loss's own.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        self._of_call = temperature
        try:
            return super().forward(first, second, index=index)
        finally:
            self._of_call = None

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, and their rows; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B,) or None
            The rows.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        check_views(*columns)
        tau = self.temperature if self._of_call is None else self._of_call
        check_temperature_of_all(tau)
        if isinstance(tau, Tensor):
            refuse_temperatures(tau)
        return columns, index

    def at_step(self, objective: Any, batch: Batch, *, is_step: bool) -> tuple[Objective, None]:
        """Return the objective with its temperature.

        Parameters
        ----------
        objective : Objective
            The objective.
        batch : Batch
            The examples of all ranks.
        is_step : bool
            Whether a step is taken.

        Returns
        -------
        tuple
            The objective, and None.
        """
        objective = copy.copy(objective)
        objective.temperature = self.temperature if self._of_call is None else self._of_call
        return objective, None


class RobustContrastiveLoss(ObjectiveLoss):
    r"""Global contrastive loss with a temperature for every anchor, which is learnt along with the model.

    .. math:: \min_{w, \tau} \frac{1}{2n} \sum_a \tau_a \Bigl( \log \operatorname{mean}_c\,
        e^{(s(a, c) - s(a, a^+)) / \tau_a} + \rho \Bigr)

    Anchors with many similar candidates get a high temperature, which tolerates these, and others a low one. The larger
    ρ is, the more the hardest candidates count.

    Parameters
    ----------
    n : int
        The number of training examples.
    rho : float
        The radius ρ of the KL divergence, at least 0; see :func:`fcco.functional.robust_contrastive_loss`.
    temperature : float, default 0.1
        Where all temperatures start.
    lr : float, default 0.01
        The step size of the temperatures.
    bounds : tuple of two floats, default (0.01, 1.0)
        The least and the largest temperature.
    mode : {"two_views", "cross_modal"}, default "two_views"
        As in :class:`ContrastiveLoss`.
    include_positive : bool, default False
        Whether the positive pair is also a candidate.
    rule : Rule, default ``fcco.BSGD()``
        How rows are updated; see :class:`fcco.SOX`.

    Raises
    ------
    ValueError
        If a number is out of range, or if ``mode`` is invalid.

    See Also
    --------
    fcco.functional.robust_contrastive_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(first, second, index)``, as :class:`ContrastiveLoss`; the index is needed.

    The temperatures are the buffer ``tau`` of shape (n, 2), part of ``state_dict``. Every step in training mode takes
    a step of gradient descent in those of its batch, by the rule's gradient, and projects them onto the bounds. The
    authors add a moving average of these gradients. On several ranks, all have the same temperatures.

    In ``eval()`` mode the temperatures are the means of all examples, because ``index`` may be anything.

    The defaults have not been measured.

    References
    ----------
    .. [1] Qiu et al., *Not All Semantics are Created Equal*, ICML 2023 (iSogCLR).

    Examples
    --------
    >>> loss_fn = RobustContrastiveLoss(n=5, rho=0.5)
    >>> first, second = torch.eye(3).requires_grad_(), torch.eye(3)
    >>> loss_fn(first, second, index=torch.tensor([4, 0, 2])).backward()
    >>> loss_fn.tau[:2, 0]  # 0.1 - 0.01 (log g + rho - log g), where log g = (0 - 1) / 0.1
    tensor([0.0950, 0.1000])
    """

    columns = ("first", "second")
    tau: Tensor

    def __init__(
        self,
        n: int,
        rho: float,
        temperature: float = 0.1,
        lr: float = 0.01,
        bounds: tuple[float, float] = (0.01, 1.0),
        mode: Literal["two_views", "cross_modal"] = "two_views",
        include_positive: bool = False,
        rule: Rule = BSGD(),  # noqa: B008 (frozen)
    ) -> None:
        check_number(rho, "rho", at_least=0)
        check_number(lr, "lr", at_least=0)
        check_number(bounds[0], "the first of bounds", above=0)
        check_number(bounds[1], "the second of bounds", at_least=bounds[0])
        check_number(temperature, "temperature", above=0)
        if not bounds[0] <= temperature <= bounds[1]:
            raise ValueError(f"temperature must be within bounds = {tuple(bounds)}; got {temperature}")
        check_choice(mode, "mode", ("two_views", "cross_modal"))
        objective = RobustContrastive(float(rho), _size(n), mode, "exact" if include_positive else None)
        super().__init__(objective, n, rule=rule)
        self.rho, self.lr, self.bounds = float(rho), float(lr), (float(bounds[0]), float(bounds[1]))
        self.mode, self.include_positive = mode, include_positive
        self.register_buffer("tau", torch.full((self.n, 2), float(temperature)))

    def forward(  # type: ignore[override]
        self, first: Tensor, second: Tensor, index: Tensor | None = None
    ) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        first : Tensor of shape (B, d)
            The embeddings of the first view or modality, which the loss normalises.
        second : Tensor of shape (B, d)
            Those of the second one.
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return super().forward(first, second, index=index)

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, with temperatures, and their rows; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : Tensor of shape (B,) or None
            The rows.

        Returns
        -------
        tuple
            The columns, and the index.
        """
        check_views(*columns)
        if not (self.training and is_grad_enabled()):
            return (*columns, self.tau.mean(0).expand(len(columns[0]), 2)), index
        if index is None:
            raise missing_index("every example has temperatures of its own")
        rows = as_index(index, self.tau.device)
        return (*columns, self.tau[rows.clamp(0, self.n - 1)]), rows  # other rows are refused next

    def at_step(self, objective: Any, batch: Batch, *, is_step: bool) -> tuple[Objective, None]:
        """Return the objective with the temperatures of its anchors.

        Parameters
        ----------
        objective : Objective
            The objective.
        batch : Batch
            The examples of all ranks.
        is_step : bool
            Whether a step is taken.

        Returns
        -------
        tuple
            The objective, and None.
        """
        return objective.tempered(batch.x.tau), None

    def completed(self, step: Step, rule: Rule | None) -> tuple[Step, Callable[[], None] | None]:
        """Return a step, and the step of its temperatures; a row that stands twice takes the mean of its steps.

        Parameters
        ----------
        step : Step
            The step.
        rule : Rule or None
            The rule of the step. None: the batch is the whole population.

        Returns
        -------
        tuple
            The step, and a function or None.
        """
        if rule is None:
            return step, None
        old = self.tau[step.rows]
        objective: Any = self.objective
        slope = objective.slope_in_temperature(step).to(old.dtype)
        new = (old - self.lr * slope).clamp(*self.bounds)
        new = new if step.written is None else torch.where(step.written[:, None], new, old)

        def write() -> None:
            self.tau.index_copy_(0, step.rows, new)

        return step, write

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return super()._apply(at_least_single(fn), recurse)


def check_views(first: Any, second: Any) -> None:
    """Check two views of a batch, which have directions."""
    for name, view in (("first", first), ("second", second)):
        check_floats(view, name, "[B, d]")
    check_same(second, "second", first, "first")
    for name, view in (("first", first), ("second", second)):
        check_directions(view, name)


def _size(n: int) -> Tensor:
    """Return the number of examples, all of one kind."""
    return torch.tensor([whole_number("n", n)], dtype=torch.float64)
