"""The loss of the area under the ROC curve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from fcco._checks import shape_of, whole_number
from fcco._step import SharedEstimate
from fcco._table import InnerTable
from fcco.core.rules import BSGD, SOAP, Rule
from fcco.functional._auc import FORMS
from fcco.functional._checks import as_mask, check_choice, check_floats, check_number, refuse_where
from fcco.functional._classes import Labels, as_labels
from fcco.functional._surrogates import SurrogateLike, resolve_surrogate
from fcco.functional._tensors import at_least_float32
from fcco.losses._base import Loss, Scale
from fcco.losses._classes import check_classes, check_n_pos, count_per_class
from fcco.losses._options import AUCOptions


@dataclass(frozen=True)
class _Margin:
    """f(u) = (m + u_2 - u_1)₊² - |u - c|², given the mean scores u of the positives and of the negatives.

    With the mean of (h - c)² over either class, this is the objective, whatever the centres c.
    """

    margin: float

    def __call__(self, u: Tensor, index: Tensor, centre: Tensor) -> Tensor:
        return F.relu(self.margin + u[:, 1] - u[:, 0]).square() - (u - centre).square().sum(1)


class AUCLoss(Loss):
    r"""Surrogate of one minus the area under the ROC curve (AUC) over the whole training set.

    .. math:: F = \frac{1}{n_+ n_-} \sum_{i \in S_+} \sum_{j \in S_-} \ell(h_j - h_i)

    With ``form="min_max"``, F is the AUC margin loss,

    .. math:: F = \mathrm{Var}_+ h + \mathrm{Var}_- h + (m + \mathbb{E}_- h - \mathbb{E}_+ h)_+^2,

    whose usual min-max form has three more variables to train. Here they are known in closed form.

    Parameters
    ----------
    n : int
        The number of training examples.
    n_pos : int or sequence of C ints
        The number of positives among them, or that of each class; see also :meth:`from_targets`.
    surrogate : str or callable, default "squared_hinge"
        The surrogate ℓ: "squared_hinge", "hinge", "logistic", "exp", "sigmoid", "ramp", or an elementwise function.
        The form "min_max" ignores it.
    margin : float, default 1.0
        The margin m of the hinges and of the form "min_max".
    form : {"pairwise", "min_max"}, default "pairwise"
        Which of the two objectives.
    rule : Rule or None, default None
        How the row is updated: SOX, SOAP or BSGD; see :class:`fcco.SOX`. By default ``fcco.BSGD()`` with "pairwise" and
        ``fcco.SOAP(gamma=0.9)`` with "min_max": with a smaller γ, SGD with momentum may diverge.

    Raises
    ------
    ValueError
        If an option is invalid, or if ``n_pos`` exceeds ``n``.

    See Also
    --------
    fcco.functional.auc_loss : The exact objective.

    Notes
    -----
    **Call.** ``loss(scores, target)`` takes two tensors of shape (B,): scores, and targets (0 and 1, or bool). It
    returns a scalar. An ``index`` may follow but is not needed, because all examples of a class share one row.

    The batch may hold any share of positives. A batch without positives or without negatives has no term.

    **Several classes.** If ``n_pos`` has a number for each class, scores have the shape (B, C), and targets the same
    shape, with -1 or NaN for missing labels, or they are classes of shape (B,). The loss is the mean over the classes
    that have both positives and negatives in the batch. A class that many batches lack therefore weighs less than in
    the exact objective.

    The form "pairwise" is linear in the mean over pairs, so the mean over the pairs of a batch is already an unbiased
    estimate of the objective and of its gradient. There is nothing for a table to improve, and a rule only smooths the
    value. The form "min_max" is not linear in the mean scores of the classes. The table tracks these two numbers, and
    their estimates are unbiased.

    References
    ----------
    .. [1] Ying, Wen and Lyu, *Stochastic Online AUC Maximization*, NeurIPS 2016.
    .. [2] Yuan et al., *Large-scale Robust Deep AUC Maximization*, ICCV 2021.

    Examples
    --------
    >>> loss_fn = AUCLoss.from_targets([1, 0, 0, 1, 0])
    >>> scores = torch.tensor([0.2, 0.4, 0.1, 0.9], requires_grad=True)
    >>> loss_fn(scores, torch.tensor([1, 0, 0, 1])).backward()
    """

    def __init__(
        self,
        n: int,
        n_pos: int | Sequence[int],
        surrogate: SurrogateLike = "squared_hinge",
        margin: float = 1.0,
        form: Literal["pairwise", "min_max"] = "pairwise",
        rule: Rule | None = None,
    ) -> None:
        check_choice(form, "form", FORMS)
        check_number(margin, "margin", at_least=0)
        pairwise = form == "pairwise"
        rule = rule or (BSGD() if pairwise else SOAP(gamma=0.9))
        if rule.decays or rule.all_rows or rule.needs_previous:
            raise ValueError(f"rule of AUCLoss must be SOX, SOAP or BSGD; got {rule}")
        n, counts = whole_number("n", n), check_n_pos(n, n_pos)
        outer = Scale() if pairwise else _Margin(margin)
        rows = 1 if isinstance(counts, int) else len(counts)
        super().__init__(outer, rows, dim=1 if pairwise else 2, rule=rule)
        self.n_examples, self.n_pos = n, counts
        self.surrogate, self.margin, self.form = resolve_surrogate(surrogate, margin), margin, form
        self._identify(n_examples=self.n_examples, n_pos=torch.tensor(self.n_pos), form=form)

    @classmethod
    def from_targets(cls, target: Any, **options: Unpack[AUCOptions]) -> AUCLoss:
        """Create the loss with n and n_pos counted in the training targets.

        Parameters
        ----------
        target : array-like of shape (n,) or (n, C)
            The labels of the training data: 0 and 1, or bool. With a column for each class, -1 and NaN stand for
            missing labels.
        **options
            Further arguments of the constructor.

        Returns
        -------
        AUCLoss
            The loss.
        """
        n, n_pos = count_per_class(target)
        return cls(n, n_pos, **options)

    def forward(self, scores: Tensor, target: Tensor, index: Any = None) -> Tensor:
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,) or (B, C)
            The scores, with a column for each class if there are several.
        target : Tensor of shape (B,) or (B, C)
            The labels: 0 and 1, or bool. With a column for each class, -1 and NaN stand for missing labels. For several
            classes, they may also be the classes, integers of shape (B,).
        index : object, default None
            It is ignored.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return self._shared_loss(self._estimate, scores, target)

    if TYPE_CHECKING:  # otherwise a call of a module takes anything
        __call__ = forward

    def _estimate(self, table: InnerTable | None, scores: Tensor, target: Tensor) -> SharedEstimate:
        """Estimate the mean over pairs, or the mean scores of positives and negatives, of every class."""
        scores, labels = self._per_class(scores, target)
        known = labels.positive.any(0) & labels.negative.any(0)
        if self.form == "pairwise":
            return SharedEstimate(self._mean_of_pairs(scores, labels), known)
        # Later batches may be in single precision, and meet the row that this one leaves.
        too_large = scores.detach().abs() > torch.finfo(torch.float32).max ** 0.5 / 8
        refuse_where("scores", scores.detach(), too_large, "so small that squares are finite in float32")
        shares = torch.stack([_shares(part, scores) for part in labels], 2)
        inner = (scores.unsqueeze(2) * shares).sum(0)
        centre = inner.detach()
        if table is not None:
            held = table.read(None, cold=0.0).to(centre)
            centre = torch.where(table.visited(None).bool().to(centre.device).unsqueeze(1), held, centre)
        # The second moments are linear, so they need no row. About centres near the means, they keep their digits.
        moments = ((scores.unsqueeze(2) - centre).square() * shares).sum((0, 2))
        weight = known.to(scores.dtype) / known.sum().clamp(min=1)
        return SharedEstimate(inner, known, sample=centre, extra=(moments * weight).sum())

    def _mean_of_pairs(self, scores: Tensor, labels: Labels) -> Tensor:
        """Return the mean of the surrogate over all pairs of a positive and a negative, of shape (C,)."""
        h, positive, negative = scores.T, labels.positive.T, labels.negative.T
        # ℓ only sees pairs of a positive and a negative. On other pairs it could overflow and cause NaN.
        pairs = positive.unsqueeze(2) & negative.unsqueeze(1)
        t = (h.unsqueeze(1) - h.unsqueeze(2)).masked_fill(~pairs, 0.0)
        count = pairs.sum((1, 2), keepdim=True).clamp(min=1)
        return (self.surrogate(t).masked_fill(~pairs, 0.0) / count).sum((1, 2))

    def _per_class(self, scores: Tensor, target: Tensor) -> tuple[Tensor, Labels]:
        """Check a batch; return scores and labels of shape (B, C)."""
        room = 1 if self.surrogate.bounded and self.form == "pairwise" else 4
        if isinstance(self.n_pos, int):
            check_floats(scores, "scores", "[B]", room=room)
            positive = as_mask(target, "target", scores, "scores", signs=False).unsqueeze(1)
            scores, labels = scores.unsqueeze(1), Labels(positive, ~positive)
        else:
            check_floats(scores, "scores", "[B, C]", room=room)
            if scores.shape[1] != self.n:
                raise ValueError(f"scores must have the shape [B, {self.n}], like n_pos; got {shape_of(scores)}")
            labels = as_labels(target, scores)
        if self.training:
            check_classes(labels, self.n_examples, self.n_pos)
        return at_least_float32(scores), labels


def _shares(members: Tensor, like: Tensor) -> Tensor:
    """Return the weight of each example in the mean over the members of each class, of shape (B, C)."""
    return members.to(like.dtype) / members.sum(0).clamp(min=1)
