"""Both libraries of arrays, and comparisons that nothing passes by being zero or not a number."""

import numpy as np
import torch

LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor}
SURROGATES = {
    "ramp": lambda t: 0.5 + (t / 4).clamp(-1, 1) * (1 - (t / 4).clamp(-1, 1).abs() / 2),
    "hinge": lambda t: (t + 0.7).relu(),
    "squared_hinge": lambda t: (t + 0.7).relu() ** 2,
    "sigmoid": torch.sigmoid,
    "logistic": lambda t: torch.logaddexp(t, torch.zeros_like(t)),
    "exp": torch.exp,
}  # with a margin of 0.7


def convert(to, x):
    """Return arrays in the form of a library, in tuples too."""
    if isinstance(x, tuple):
        parts = [convert(to, part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    return to(x) if isinstance(x, np.ndarray | torch.Tensor) else x


def assert_close(got, expected, rtol=1e-12, atol=0.0, may_vanish=False):
    """Compare arrays by the largest number of what is expected; what is -inf must be so in both."""
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    finite = expected > -np.inf
    assert np.isfinite(expected[finite]).all()
    assert np.array_equal(got > -np.inf, finite)
    size = np.abs(expected[finite]).max(initial=0.0)
    assert may_vanish or size > 0
    assert np.abs(got[finite] - expected[finite]).max(initial=0.0) <= rtol * size + atol
