"""A rule of one's own: how a row of the table meets a new estimate, in a few lines.

    python examples/own_rule.py [--evaluations 30000]

The rule below, ``Trimmed``, is SOAP with a limit on how far an estimate may lie from its row, as a fraction of the row:
one wild estimate then cannot undo what many have built up. It is compared with SOAP and SOX on a problem whose
minimum is known: all get the same number of inner samples, and each its best step size of the same grid. Estimates are
not wild on this problem, and the limit gains nothing; with a width of 1 the two rules end alike.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor

import fcco
from fcco.solvers import compare
from fcco.solvers.problems import p_norm_push


@dataclass(frozen=True)
class Trimmed(fcco.Rule):
    """u = (1 - gamma) u + gamma g, where g is first brought to within u ± width |u|."""

    gamma: float = 0.5
    width: float = 1.0

    # The fixed part of a rule: what it needs of the table and of the caller is said by class variables of fcco.Rule,
    # whose defaults (rows start at their first estimate, only rows of the batch change) are right here. It is written
    # for plain arithmetic, so it declares that it has no form in log space.
    log = False

    @property
    def rate(self) -> float:
        """Gamma."""
        return self.gamma

    def update(self, old: Tensor, batch: fcco.Batch) -> tuple[Tensor, Tensor]:
        """Return the new rows, and the rows at which f is differentiated."""
        # batch.estimate has a row for each distinct row of the batch: repeats are averaged already. batch.rate is gamma
        # of this step, a number, or a column if a schedule has a rate for each row. Neither may be changed in place.
        # A row at 0 takes the estimate as it is, since no multiple of 0 would let it move.
        limit = torch.where(old == 0, torch.inf, self.width * old.abs())
        estimate = torch.maximum(torch.minimum(batch.estimate, old + limit), old - limit)
        new = batch.space.mix(old, estimate, batch.rate)
        return new, new


def main() -> None:
    parser = argparse.ArgumentParser(description="A rule of one's own against SOAP and SOX on p-norm push.")
    parser.add_argument("--evaluations", type=int, default=30_000, help="inner samples of each run")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found = compare(
        p_norm_push(),
        {
            "Trimmed": Trimmed(0.5, width=0.3),
            "SOAP": fcco.SOAP(0.5),
            "SOX": fcco.SOX(0.5),
        },
        evaluations=options.evaluations,
        lr=[0.01, 0.03, 0.1, 0.3, 1.0],
        beta=0.1,
        seeds=options.seeds,
        outer_batch=8,
        inner_batch=8,
    )
    print(found)


if __name__ == "__main__":
    main()
