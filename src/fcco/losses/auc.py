"""The loss of the area under the ROC curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from fcco._checks import whole_number
from fcco.core.arrays import cast
from fcco.core.rules import BSGD, SOAP, Rule
from fcco.core.step import Step
from fcco.core.surrogates import as_surrogate
from fcco.functional._auc import FORMS
from fcco.functional._checks import check_choice, check_number, refuse_where
from fcco.functional._surrogates import SurrogateLike
from fcco.losses.classes import Classes, count_per_class
from fcco.losses.scored import ScoredLoss
from fcco.objectives.bipartite import AUC, AUCMargin


class AUCLoss(ScoredLoss):
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

    _has_index = False

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
        n, ell, pairwise = whole_number("n", n), as_surrogate(surrogate, margin), form == "pairwise"
        rule = rule or (BSGD() if pairwise else SOAP(gamma=0.9))
        if rule.decays or rule.all_rows:
            raise ValueError(f"rule of AUCLoss must be SOX, SOAP or BSGD; got {rule}")
        counts = Classes.of_counts(n, n_pos)
        classes = counts if isinstance(counts, Classes) else None
        count = None if classes is None else classes.count
        objective = AUC(ell, classes=count) if pairwise else AUCMargin(margin, classes=count)
        super().__init__(objective, count or 1, rule=rule)
        self.n_examples, self.n_pos = n, counts if classes is None else classes.n_pos
        self.surrogate, self.margin, self.form, self.classes = objective.surrogate, margin, form, classes
        self.knows(None, n_examples=n, n_pos=torch.tensor(self.n_pos), form=form)

    @classmethod
    def from_targets(cls, target: Any, **options: Any) -> AUCLoss:
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
        n, counts, _ = count_per_class(target)
        n_pos: Any = counts
        return cls(n, n_pos, **options)

    def forward(self, scores: Tensor, target: Tensor, index: Any = None) -> Tensor:  # type: ignore[override]
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
        rows: Any = ()  # given by the classes
        return super().forward(scores, target, rows)

    def given(self, columns: Sequence[Any], index: Any) -> tuple[Sequence[Any], Any]:
        """Return the columns of the objective, and their rows, one for each class; raise if they are not legal.

        Parameters
        ----------
        columns : sequence
            The columns of the call.
        index : object
            It is ignored.

        Returns
        -------
        tuple
            The columns, and the rows.
        """
        (scores, *others), _ = super().given(columns, None)
        if self.form == "min_max":  # later batches may be in single precision, and meet the row that this one leaves
            too_large = scores.detach().abs() > torch.finfo(torch.float32).max ** 0.5 / 8
            refuse_where("scores", scores.detach(), too_large, "so small that squares are finite in float32")
        rows = torch.zeros(len(scores), dtype=torch.int64, device=scores.device) if len(others) == 1 else others[1]
        return (scores, *others), rows

    def completed(self, step: Step, rule: Rule | None) -> tuple[Step, Callable[[], None] | None]:
        """Return a step whose rows are as precise as its outputs; moments are summed in double precision.

        Parameters
        ----------
        step : Step
            The step.
        rule : Rule or None
            The rule of the step.

        Returns
        -------
        tuple
            The step, and None.
        """
        return step._replace(new=cast(step.new, step.gradients[0])), None
