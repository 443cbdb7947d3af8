"""The paper's Table 1: how many iterations and inner samples each method needs, up to constants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fcco.theory._checks import batches, positive, within_floats

REGIMES = {
    "NC": "nonconvex: E|grad F(w)| <= eps",
    "C": "convex: E[F(w) - F*] <= eps",
    "SC": "strongly convex or PL: E|w - w*|^2 <= eps",
}
"""What is assumed of F, and what accuracy eps means then, by the name that :func:`complexities` gives to it."""


@dataclass(frozen=True)
class Complexity:
    """One entry of the table.

    Attributes
    ----------
    method : str
        Name of the method.
    regime : str
        A key of ``REGIMES``, which says what is brought below epsilon.
    formula : str or None
        Number of iterations up to constants, or None if the paper gives none.
    outer_batch : int
        B1 of the entry.
    inner_batch : float
        B2 of the entry.
    samples_per_step : float
        Number of inner samples that an iteration draws.
    iterations : float or None
        The value of ``formula``, or None if there is no formula, or if it needs a mu that is not given.
    speedup : {"yes", "partial", "N/A"}
        Whether larger batches reduce the number of iterations.
    note : str
        Further assumptions.
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
        """The total number of inner samples, which is the oracle complexity."""
        return None if self.iterations is None else self.iterations * self.samples_per_step


@dataclass(frozen=True)
class _Sizes:
    """The sizes, the accuracy and the modulus that the formulas are evaluated for."""

    n: int
    b1: int
    b2: int
    eps: float
    mu: float | None

    @property
    def rounds(self) -> float:
        return max(self.n / (self.b1 * self.b2), 1 / min(self.b1, self.b2))


@dataclass(frozen=True)
class _TableEntry:
    """An entry of the table as a formula, before it is evaluated."""

    method: str
    regime: str
    formula: str | None = None
    iterations: Callable[[_Sizes, float], float] | None = None
    speedup: str = "N/A"
    note: str = ""

    def at(self, s: _Sizes) -> Complexity:
        outer, inner, per_step = _batches_of(self.method, self.regime, s)
        mu = s.mu if self.regime == "SC" else 1.0
        iterations = None if self.iterations is None or mu is None else self.iterations(s, mu)
        return Complexity(
            self.method, self.regime, self.formula, outer, inner, per_step, iterations, self.speedup, self.note
        )


def _batches_of(method: str, regime: str, s: _Sizes) -> tuple[int, float, float]:
    """Return B1, B2 and the samples of a step. Several methods are analysed for only one choice of batch sizes."""
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
    _TableEntry("BSGD", "NC", "eps^-4", lambda s, mu: s.eps**-4, note="inner batch eps^-2"),
    _TableEntry("BSGD", "C", "eps^-2", lambda s, mu: s.eps**-2, note="inner batch eps^-1"),
    _TableEntry(
        "BSGD",
        "SC",
        "mu^-2 eps^-1",
        lambda s, mu: mu**-2 / s.eps,
        note="inner batch eps^-1; every stochastic function strongly convex",
    ),
    _TableEntry("SOAP", "NC", "n eps^-5", lambda s, mu: s.n * s.eps**-5),
    _TableEntry("MOAP", "NC", "n/B1 eps^-4", lambda s, mu: s.n / s.b1 * s.eps**-4, "partial"),
    *(_TableEntry(method, "NC", note=_ALL_ROWS) for method in ("SCGD", "NASA")),
    _TableEntry("SOX", "NC", f"{_ROUNDS} eps^-4", lambda s, mu: s.rounds * s.eps**-4, "yes"),
    _TableEntry("SOX-boost", "C", f"{_ROUNDS} eps^-3", lambda s, mu: s.rounds * s.eps**-3, "yes"),
    _TableEntry("SOX-boost", "SC", f"{_ROUNDS} mu^-3 eps^-1", lambda s, mu: s.rounds * mu**-3 / s.eps, "yes"),
    _TableEntry(
        "SOX (beta=1)",
        "C",
        "n/B1 eps^-2",
        lambda s, mu: s.n / s.b1 * s.eps**-2,
        "partial",
        "bounded set, f convex and increasing, g convex; for the weak primal-dual gap",
    ),
    _TableEntry(
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
    r"""Return Table 1 of the paper: iterations and inner samples of every method, up to constants.

    The entries of SOX are those of the theorems, :math:`\max\{\frac{n}{B_1 B_2}, \frac{1}{\min(B_1, B_2)}\}` times a
    power of epsilon. The paper's table leaves out the second part, which is the larger one if B2 > n. A method that has
    no entry for a regime has no known guarantee there.

    Parameters
    ----------
    n : int
        Number of rows of the problem.
    outer_batch : int
        B1.
    inner_batch : int
        B2.
    epsilon : float
        The accuracy to reach. ``REGIMES`` says of which quantity.
    mu : float, optional
        Modulus of strong convexity. Without it, the entries of that regime have formulas but no numbers.

    Returns
    -------
    tuple of Complexity
        The entries of the table.

    Raises
    ------
    TypeError
        If n or a batch size is not an integer, or if another value is not a number.
    ValueError
        If a value is outside its range, or if B1 > n.

    References
    ----------
    Wang and Yang, *Finite-Sum Coupled Compositional Stochastic Optimization*, ICML 2022, Table 1.

    Examples
    --------
    >>> table = complexities(n=100, outer_batch=10, inner_batch=5, epsilon=0.1)
    >>> [(entry.method, round(entry.samples)) for entry in table if entry.regime == "NC" and entry.samples]
    [('BSGD', 1000000), ('SOAP', 10000000), ('MOAP', 1000000), ('SOX', 1000000)]
    """
    n, outer_batch, inner_batch = batches(n, outer_batch, inner_batch)
    mu = None if mu is None else positive("mu", mu)
    sizes = _Sizes(n, outer_batch, inner_batch, positive("epsilon", epsilon), mu)
    return tuple(entry.at(sizes) for entry in _TABLE)
