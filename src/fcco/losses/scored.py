"""What losses of scores and labels share: the columns of a call, and their checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from fcco.core.surrogates import Surrogate
from fcco.functional._checks import as_mask, check_floats
from fcco.losses.classes import Classes
from fcco.losses.loss import ObjectiveLoss


class ScoredLoss(ObjectiveLoss):
    """A loss of scores and labels, of one class or of several."""

    columns = ("scores", "target")
    classes: Classes | None = None
    takes_missing = True
    """Whether labels may be missing that were not counted in training targets."""
    surrogate: Surrogate

    def forward(self, scores: Tensor, target: Tensor, index: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """Return the loss of a batch.

        Parameters
        ----------
        scores : Tensor of shape (B,) or (B, C)
            The scores, with a column for each class if there are several.
        target : Tensor of shape (B,) or (B, C)
            The labels: 0 and 1, or bool. With a column for each class, -1 and NaN stand for missing labels. For several
            classes, they may also be the classes, integers of shape (B,).
        index : Tensor of shape (B,) or None, default None
            The rows of the batch in the training set, in [0, n). They are needed in training, unless the rule is
            ``fcco.BSGD()``.

        Returns
        -------
        Tensor
            The loss, a scalar.
        """
        return super().forward(scores, target, index=index)

    def _where(self, place: int, whose: str, row: int) -> str:
        if self.classes is None:
            return super()._where(place, whose, row)
        example, label = divmod(row, self.classes.count)
        return f"in row {example} and class {label}{whose}"

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
        scores, target = columns
        room = 1 if self.surrogate.bounded else 4  # the slope of a squared hinge is twice the difference of two scores
        if self.classes is not None:
            options: dict[str, Any] = {"training": self.training, "takes_missing": self.takes_missing, "room": room}
            return self.classes.given(scores, target, index, **options)
        check_floats(scores, "scores", "[B]", room=room)
        return (scores, as_mask(target, "target", scores, "scores", signs=False)), index
