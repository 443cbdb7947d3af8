"""Parts of kernels, made callable."""

import numba

from fcco.compiled import ClassSampler, ListSampler
from fcco.compiled._sampling import fill_from_classes, fill_from_lists


def from_python(part):
    """A part of a kernel, compiled so that Python can call it."""
    return numba.njit(error_model="numpy")(part.py_func)


FILLS = {ClassSampler: from_python(fill_from_classes), ListSampler: from_python(fill_from_lists)}


def fill(sampler, state, batch):
    """The rows of the next batch."""
    return batch.rows[: FILLS[type(sampler)](sampler, state.stream, batch)].copy()
