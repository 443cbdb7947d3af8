"""How many iterations and inner samples each method needs, up to constants: the paper's Table 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fcco.theory._checks import batches, positive, within_floats

REGIMES = {
    "NC": "nonconvex: E|grad F(w)| <= eps",
    "C": "convex: E[F(w) - F*] <= eps",
    "SC": "strongly convex or PL: E|w - w*|^2 <= eps",
}


@dataclass(frozen=True)
class Complexity:
    """One entry of the table.

    Args:
        method: its name.
        regime: a key of ``REGIMES``, which says what is brought below epsilon.
        formula: the number of iterations up to constants, None where the paper has none.
        outer_batch: B1 the entry is for.
        inner_batch: B2 the entry is for.
        samples_per_step: inner samples an iteration draws.
        iterations: ``formula`` evaluated, None where it is None or needs a mu that is not given.
        speedup: whether larger batches reduce the iterations: "yes", "partial" or "N/A".
        note: under what further assumptions.
    """

    method: str
    regime: str
    formula: str | None
    outer_batch: int
    inner_batch: float
    samples_per_step: float
    iterations: float | None
    speedup: str
    note: str = ""

    @property
    def samples(self) -> float | None:
        """Inner samples in all, the oracle complexity."""
        return None if self.iterations is None else self.iterations * self.samples_per_step


@dataclass(frozen=True)
class _Setting:
    n: int
    b1: int
    b2: int
    eps: float
    mu: float | None

    @property
    def rounds(self) -> float:
        return max(self.n / (self.b1 * self.b2), 1 / min(self.b1, self.b2))


@dataclass(frozen=True)
class _Entry:
    method: str
    regime: str
    formula: str | None = None
    iterations: Callable[[_Setting, float], float] | None = None
    speedup: str = "N/A"
    note: str = ""

    def at(self, s: _Setting) -> Complexity:
        outer, inner, per_step = _batches_of(self.method, self.regime, s)
        mu = s.mu if self.regime == "SC" else 1.0
        iterations = None if self.iterations is None or mu is None else self.iterations(s, mu)
        return Complexity(
            self.method, self.regime, self.formula, outer, inner, per_step, iterations, self.speedup, self.note
        )


def _batches_of(method: str, regime: str, s: _Setting) -> tuple[int, float, float]:
    """B1, B2 and the samples a step draws: several methods are analysed for one choice only."""
    if method == "BSGD":
        inner = s.eps ** (-2 if regime == "NC" else -1)
        return 1, inner, inner
    if method == "SOAP":
        return 1, 1, 1
    if method == "MOAP":
        return s.b1, 1, s.b1
    rows = s.n if method in ("SCGD", "NASA") else s.b1
    return s.b1, s.b2, rows * s.b2


_ALL_ROWS = "by reformulation as SCO: every step samples all n rows; the paper gives no count of iterations"
_ROUNDS = "max(n/(B1 B2), 1/min(B1, B2))"
_TABLE = (
    _Entry("BSGD", "NC", "eps^-4", lambda s, mu: s.eps**-4, note="inner batch eps^-2"),
    _Entry("BSGD", "C", "eps^-2", lambda s, mu: s.eps**-2, note="inner batch eps^-1"),
    _Entry(
        "BSGD",
        "SC",
        "mu^-2 eps^-1",
        lambda s, mu: mu**-2 / s.eps,
        note="inner batch eps^-1; every stochastic function strongly convex",
    ),
    _Entry("SOAP", "NC", "n eps^-5", lambda s, mu: s.n * s.eps**-5),
    _Entry("MOAP", "NC", "n/B1 eps^-4", lambda s, mu: s.n / s.b1 * s.eps**-4, "partial"),
    *(_Entry(method, "NC", note=_ALL_ROWS) for method in ("SCGD", "NASA")),
    _Entry("SOX", "NC", f"{_ROUNDS} eps^-4", lambda s, mu: s.rounds * s.eps**-4, "yes"),
    _Entry("SOX-boost", "C", f"{_ROUNDS} eps^-3", lambda s, mu: s.rounds * s.eps**-3, "yes"),
    _Entry("SOX-boost", "SC", f"{_ROUNDS} mu^-3 eps^-1", lambda s, mu: s.rounds * mu**-3 / s.eps, "yes"),
    _Entry(
        "SOX (beta=1)",
        "C",
        "n/B1 eps^-2",
        lambda s, mu: s.n / s.b1 * s.eps**-2,
        "partial",
        "bounded set, f convex and increasing, g convex; for the weak primal-dual gap",
    ),
    _Entry(
        "SOX (beta=1)",
        "SC",
        "n/B1 mu^-2 eps^-1",
        lambda s, mu: s.n / s.b1 * mu**-2 / s.eps,
        "partial",
        "strongly convex only; up to logarithms",
    ),
)


@within_floats
def complexities(
    *, n: int, outer_batch: int, inner_batch: int, epsilon: float, mu: float | None = None
) -> tuple[Complexity, ...]:
    r"""Table 1 of the paper: iterations and inner samples of every method, up to constants.

    SOX's entries are those of the theorems, :math:`\max\{\frac{n}{B_1 B_2}, \frac{1}{\min(B_1, B_2)}\}` times a power
    of epsilon; the table of the paper leaves out the second part, which is the larger one if B2 > n. A method that a
    regime is missing from has no known guarantee there.

    Args:
        n: how many rows.
        outer_batch: B1.
        inner_batch: B2.
        epsilon: what the regime's measure (``REGIMES``) is brought below.
        mu: modulus of strong convexity; without it that regime has formulas only.

    Raises:
        TypeError: n or a batch size is not an integer.
        ValueError: a value outside its range, or B1 > n.

    >>> table = complexities(n=100, outer_batch=10, inner_batch=5, epsilon=0.1)
    >>> [(entry.method, round(entry.samples)) for entry in table if entry.regime == "NC" and entry.samples]
    [('BSGD', 1000000), ('SOAP', 10000000), ('MOAP', 1000000), ('SOX', 1000000)]

    Reference: Table 1 of Wang and Yang, ICML 2022.
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    mu = None if mu is None else positive("mu", mu)
    setting = _Setting(n, outer_batch, inner_batch, positive("epsilon", epsilon), mu)
    return tuple(entry.at(setting) for entry in _TABLE)
