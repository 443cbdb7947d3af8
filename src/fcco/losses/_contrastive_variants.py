"""Contrastive losses with a temperature for every anchor, and with several positives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from fcco._checks import as_index, is_empty
from fcco._eager import eager
from fcco._pool import Estimate, Pool
from fcco._repeats import find_repeats
from fcco.core.rules import BSGD, Rule
from fcco.core.spaces import PLAIN
from fcco.functional._checks import check_choice, check_number
from fcco.functional._inner_similarity import contrast
from fcco.losses._base import Loss


class _Anchors(NamedTuple):
    """What f is evaluated on, and where it was differentiated."""

    tau: Tensor
    at: list[Tensor]


class _Robust:
    """The outer function f = mean over both anchors of τ (log u + ρ)."""

    def __init__(self, rho: float) -> None:
        self.rho = rho

    def __call__(self, log_u: Tensor, index: Tensor, anchors: _Anchors) -> Tensor:
        anchors.at.append(log_u.detach().clone())
        return (anchors.tau.to(log_u.dtype) * (log_u + self.rho)).mean(1)


class RobustContrastiveLoss(Loss):
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
    ``torch.compile`` leaves this loss out of its graphs.

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

    tau: Tensor
    estimated_from = "first"

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
        super().__init__(_Robust(float(rho)), n, dim=2, rule=rule, log=True)
        self.rho, self.lr, self.bounds = float(rho), float(lr), (float(bounds[0]), float(bounds[1]))
        self.mode, self.include_positive = mode, include_positive
        self.register_buffer("tau", torch.full((self.n, 2), float(temperature)))

    @eager
    def forward(self, first: Tensor, second: Tensor, index: Tensor) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        first : Tensor of shape (B, d)
            The embeddings of the first view or modality, which the loss normalises.
        second : Tensor of shape (B, d)
            Those of the second one.
        index : Tensor of shape (B,)
            The rows of the batch in the training set, in [0, n).

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        if not self.training:
            mean = _Anchors(self.tau.mean(0, keepdim=True), [])
            return self._loss(lambda pool: self._contrast(pool, mean.tau)[0], first, second, index=index, sample=mean)
        # One of several ranks may have no rows.
        rows = self.tau.new_zeros(0, dtype=torch.int64) if is_empty(index) else as_index(index, self.tau.device)
        anchors = _Anchors(self.tau[rows.clamp(0, self.n - 1)], [])  # the engine refuses other rows
        slopes: list[tuple[Tensor, Tensor, Tensor]] = []

        def estimate(pool: Pool) -> Estimate:
            made, slope = self._contrast(pool, anchors.tau)
            slopes.append((made.inner.detach(), made.share, slope))
            return made

        loss = self._loss(estimate, first, second, index=index, sample=anchors)
        placement = self.coupled.placement()
        if placement is not None and not self.coupled.is_frozen:
            with torch.no_grad():
                none = (self.tau.new_zeros(0, 2), self.tau.new_zeros(0))
                columns = [rows, *(self._slopes_of(anchors, *slopes[-1]) if len(rows) else none)]
                self._learn(*(columns if placement.alone else placement.gather_all(columns, {})))
        return loss

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward

    def _contrast(self, pool: Pool, tau: Tensor) -> tuple[Estimate, Any]:
        """Estimate the inner values of the own examples of a pool, and how they change with τ."""
        (first, second), n = pool.own, self._of_population(self.n)
        options = (self.mode, self.include_positive, n)
        return contrast(first, second, tau, *options, "exact", pool.rows, pool.rivals, with_slopes=self.training)

    def _slopes_of(self, anchors: _Anchors, inner: Tensor, share: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        """Return the derivatives of τ (log u + ρ), of shape (B, 2), and which of the examples have a term.

        They are those of the rule, which differentiates f at the u that f was last evaluated at.
        """
        at = anchors.at[-1]
        derivative = at + self.rho - (inner - at).exp() * slope
        return derivative.to(self.tau.dtype), (share > 0).to(self.tau.dtype)

    def _learn(self, rows: Tensor, slope: Tensor, where: Tensor) -> None:
        """Take a step of the temperatures of some rows; a row that stands twice takes the mean of its steps."""
        repeats = find_repeats(rows, where > 0, slope.dtype)
        new = (self.tau[rows] - self.lr * repeats.mean(slope, PLAIN)).clamp(*self.bounds)
        self.tau.index_copy_(0, rows, torch.where(repeats.present().unsqueeze(1), new, self.tau[rows]))
