"""Refusing batches that contradict what a loss was told of the training data.

Only where looking is free: eagerly, on the CPU. An example that stands twice in a batch counts once.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fcco._checks import reads_are_free
from fcco._pool import Pool
from fcco.functional._inner import same
from fcco.functional._inner_listwise import Lists
from fcco.functional._tensors import narrower


class Stratum(NamedTuple):
    """A part of the training data: what a member of it is called, how many there are, and who said so."""

    noun: str
    size: int | None = None
    known: str = ""

    @property
    def one(self) -> str:
        return f"{'an' if self.noun[0] in 'aeiou' else 'a'} {self.noun}"


def check_members(pool: Pool, label: int, strata: tuple[Stratum, Stratum]) -> None:
    """Refuse a pool with an example that is both a member and not, or with more of either than the training data have.

    Args:
        pool: its last column says who is a member. Without rows, nothing is known of the training data.
        label: of members.
        strata: the members, and the others.
    """
    rows = pool.rows
    if rows is None or not reads_are_free(rows):
        return
    member = pool.joined()[-1] == label
    distinct = rows[member].unique(), rows[~member].unique()
    for found, stratum in zip(distinct, strata, strict=True):
        if stratum.size is not None and len(found) > stratum.size:
            raise ValueError(f"the batch has {_some(len(found), stratum.noun)}, and {stratum.known}")
    both = distinct[0][torch.isin(*distinct)]
    if len(both):
        raise ValueError(f"the batch has row {int(both[0])} both as {strata[0].one} and as {strata[1].one}")


def split(n: int, size: int, name: str, members: str, others: str) -> tuple[Stratum, Stratum]:
    """The strata of n examples of which ``size`` are members, as the argument ``name`` says."""
    rest = f"{name} = {size} of n = {n} leaves {n - size}"
    return Stratum(members, size, f"{name} is {size}"), Stratum(others, n - size, rest)


def outer_only(n_outer: int, members: str, others: str) -> tuple[Stratum, Stratum]:
    """The strata where only the number of outer examples is known."""
    return Stratum(members, n_outer, f"the training targets have {n_outer}"), Stratum(others)


def _some(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def check_class_sizes(rows: Tensor | None, labels: Tensor, class_sizes: Tensor | None) -> None:
    """Refuse a batch with an example of two classes, or with more members of a class than the training data have."""
    if rows is None or class_sizes is None or not reads_are_free(rows):
        return
    members, classes = torch.stack([rows, labels.long()]).unique(dim=1)
    twice = members[1:] == members[:-1]
    if bool(twice.any()):
        place = int(twice.nonzero()[0])
        raise ValueError(
            f"the batch has row {int(members[place])} both in class {int(classes[place])} and in class "
            f"{int(classes[place + 1])}"
        )
    in_batch = classes.bincount(minlength=len(class_sizes))
    excess = in_batch > class_sizes
    if bool(excess.any()):
        label = int(excess.nonzero()[0])
        raise ValueError(
            f"the batch has {_some(int(in_batch[label]), 'example')} of class {label}, and class_sizes[{label}] is "
            f"{int(class_sizes[label])}"
        )


def check_lists(
    rows: Tensor | None, relevance: Tensor, query: Tensor, lists: Lists | None, digits: torch.dtype
) -> None:
    """Refuse items whose relevance, or whose query, is another one than in the training data.

    Args:
        rows: [B], which item each is; None: nothing is known of the training data.
        relevance: [B].
        query: [B].
        lists: what is known of the items, [B] each.
        digits: of the relevances that are known.
    """
    if rows is None or lists is None or not reads_are_free(rows):
        return
    common = narrower(relevance.dtype, digits)
    differs = relevance.to(common) != lists.relevance.to(common)
    if bool(differs.any()):
        place = int(differs.nonzero()[0])
        raise ValueError(
            f"relevance[{place}] is {relevance[place].item()}, and that of row {int(rows[place])} was "
            f"{lists.relevance[place].item()} in the training data"
        )
    together = same(query, None)
    differs = together != same(lists.number, None)
    if bool(differs.any()):
        first, second = differs.nonzero()[0].tolist()
        one, other = int(query[first]), int(query[second])
        given = f"query[{first}] and query[{second}] are both {one}"
        if one != other:
            given = f"query[{first}] is {one} and query[{second}] is {other}"
        raise ValueError(
            f"{given}, and rows {int(rows[first])} and {int(rows[second])} were of "
            f"{'different queries' if one == other else 'one query'} in the training data"
        )
