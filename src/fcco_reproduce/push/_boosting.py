"""BS-PnP, the boosting algorithm of p-norm push, without its matrix of pairs."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq

from fcco.compiled._rules import Array


def boost(outer: Array, inner: Array, *, p: float = 4.0, rounds: int = 10) -> Array:
    r"""Return the weights of a linear ranker after ``rounds`` of coordinate descent, with the features as weak rankers.

    The algorithm keeps a weight for every pair, of an outer row i and an inner row k,

    .. math:: D_{ik} \propto e^{-\lambda^\top (x_k - x_i)} = e^{\lambda^\top x_i} e^{-\lambda^\top x_k},

    which is a product: n + m numbers say what n x m did, and a round costs O((n + m) d). A round takes the feature with
    the largest :math:`\sum_i (\sum_k D_{ik})^{p-1} \sum_k D_{ik} (x_{kj} - x_{ij})`, minus the slope of the objective,
    and goes along it to the minimum. The slope has its sign: a feature that ranks the wrong way round is never taken.

    Parameters
    ----------
    outer : Array
        Rows to push down, [n, d].
    inner : Array
        Rows to lift above them, [m, d].
    p : float
        Of the objective.
    rounds : int
        At most; fewer where no feature helps any more.

    Raises
    ------
    ValueError
        If the feature to take has no outer row above an inner one, so that its weight would grow for ever.

    Examples
    --------
    >>> outer, inner = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.5, 1.0]])
    >>> boost(outer, inner, rounds=1).round(3)  # the mean of outer under e^(4 a x) meets that of inner under e^(-a x)
    array([0.254, 0.   ])

    References
    ----------
    Rudin, *The P-Norm Push*, JMLR 2009, figure 1.
    """
    outer, inner = outer.astype(np.float64), inner.astype(np.float64)
    weights = np.zeros(outer.shape[1])
    for _ in range(rounds):
        # Sums over k of D_ik are, up to a factor, the shares of i; to the power p - 1, times D once more, shares^p.
        high, low = p * (outer @ weights), -(inner @ weights)
        lift = _shares(low) @ inner - _shares(high) @ outer
        best = int(np.argmax(lift))
        if lift[best] <= 0.0:
            break
        weights[best] += _line_minimum(high, low, outer[:, best], inner[:, best], p, best)
    return weights


def _shares(logits: Array) -> Array:
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


def _line_minimum(high: Array, low: Array, outer: Array, inner: Array, p: float, feature: int) -> float:
    """Return where the slope along a feature, which grows from below 0, is 0."""

    def slope(step: float) -> float:
        return float(_shares(high + p * step * outer) @ outer - _shares(low - step * inner) @ inner)

    if outer.max() <= inner.min():
        raise ValueError(f"feature {feature} separates the two sets: its weight would grow for ever")
    end = 1.0
    while slope(end) <= 0.0:
        end *= 2.0
    return float(brentq(slope, 0.0, end, xtol=1e-12))
