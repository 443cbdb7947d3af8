"""What a table or a memory does while training: how well it tracks, how old it is, how biased gradients are.

- :class:`Monitor` watches a loss and reports, as a dict, to TensorBoard or as a figure.
- :func:`gradient_bias` compares the gradient of a batch, with and without the table or memory, with the exact one.
- :func:`advise` says in words whether the table helps at this batch size, and which gamma suits.

What needs more than the table takes a function ``evaluate(loss_fn, rows)``, which is the forward pass of the training
loop: it calls ``loss_fn`` on the examples ``rows`` of the training set.
"""

from fcco.diagnostics._advice import Advice, Remembered, advise, row_error
from fcco.diagnostics._gradients import GradientBias, GradientError, gradient_bias
from fcco.diagnostics._monitor import Monitor
from fcco.diagnostics._probe import exact_inner, relative_error

__all__ = [
    "Advice",
    "GradientBias",
    "GradientError",
    "Monitor",
    "Remembered",
    "advise",
    "exact_inner",
    "gradient_bias",
    "relative_error",
    "row_error",
]
