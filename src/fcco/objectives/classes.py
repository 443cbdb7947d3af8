"""Several classes at once: each pair of an example and a class is a row, and is compared within its class."""

from __future__ import annotations

from fcco.core.arrays import Array, namespace, numbered, places_of, taken
from fcco.objectives.bipartite import Classed


def by_class(scores: Array, labels: Array, rows: Array, *, fixed: bool = False) -> tuple[Classed, Array]:
    """Return scores [B, C] as pairs of an example and a class, and their rows: index * C + class.

    ``labels`` are [B, C], -1 or NaN where they are missing, or classes, [B]. Pairs without a label are left out. With
    ``fixed``, where no shape may depend on values, they have the label -1, and also if no pair has a label.
    """
    xp, classes = namespace(scores), scores.shape[1]
    group = numbered(classes, rows)
    if labels.ndim == 1:
        labels = xp.where(labels[:, None] < 0, -1, (labels[:, None] == group) * 1)
    code = xp.where(labels == 1, 1, xp.where(labels == 0, 0, -1)).reshape(-1)
    rows, group = (rows[:, None] * classes + group).reshape(-1), (group + 0 * rows[:, None]).reshape(-1)
    columns = scores.reshape(-1), code, group, rows
    if not fixed and (code < 0).any() and (code >= 0).any():
        columns = tuple(taken(c, places_of(code >= 0)) for c in columns)
    return Classed(*columns[:3]), columns[3]
