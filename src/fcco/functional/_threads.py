"""Independent parts of an exact objective, worked out on all cores.

The number of threads is ``torch.get_num_threads()``, which the user sets by ``torch.set_num_threads``. How the work is
cut does not depend on it, every part is worked out by one thread, and results are combined in the order of the parts.
They are therefore the same to the last bit for any number of threads.

Threads of torch's own would not do. They meet at the end of every operation, where they wait for each other, and they
do not share a sort of one long list.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

Part = TypeVar("Part")
Result = TypeVar("Result")

_pools: dict[int, ThreadPoolExecutor] = {}
_starting = threading.Lock()
if hasattr(os, "register_at_fork"):  # Windows cannot fork
    os.register_at_fork(after_in_child=_pools.clear)  # a forked process has no threads but its own


def in_order(function: Callable[[Part], Result], parts: Iterable[Part], like: Tensor) -> Iterator[Result]:
    """Yield ``function(part)`` for all parts, in their order, while threads work on the next ones.

    Only twice as many results as there are threads are held at a time. Whether autograd records a graph is as in the
    calling thread.

    Parameters
    ----------
    function : callable
        Maps a part to its result.
    parts : iterable
        The parts.
    like : Tensor
        A tensor that the function works on. Where it is not on the CPU, or where a mode or a transform of torch is on,
        which other threads would not see, all parts run in the calling thread.
    """
    threads = torch.get_num_threads()
    if threads == 1 or not _may_leave(like):
        yield from map(function, parts)
        return
    pool, waiting, recording = _pool(threads), deque[Future[Result]](), torch.is_grad_enabled()

    def alike(part: Part) -> Result:
        with torch.set_grad_enabled(recording):
            return function(part)

    try:
        for part in parts:
            waiting.append(pool.submit(alike, part))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def slices(count: int, step: int) -> Iterator[slice]:
    """Cut 0 ... count - 1 into consecutive slices.

    Examples
    --------
    >>> list(slices(3, 2))
    [slice(0, 2, None), slice(2, 3, None)]
    """
    return (slice(begin, min(begin + step, count)) for begin in range(0, count, step))


def _may_leave(like: Tensor) -> bool:
    """Whether another thread would do the same with this tensor."""
    if not like.is_cpu or type(like) not in (Tensor, torch.nn.Parameter) or torch.compiler.is_compiling():
        return False
    modes = torch._C._len_torch_dispatch_stack() + torch._C._len_torch_function_stack()
    return modes == 0 and torch._C._functorch.peek_interpreter_stack() is None


def _pool(threads: int) -> ThreadPoolExecutor:
    """Return so many threads, each of which runs the operations of torch by itself."""
    with _starting:
        if threads not in _pools:
            met = threading.Barrier(threads + 1)

            def begin() -> None:
                torch.get_num_threads()  # a new thread takes the default at its first use, and would take it later
                torch.set_num_threads(1)
                met.wait()

            pool = ThreadPoolExecutor(threads, "fcco", begin)
            for _ in range(threads):
                pool.submit(int)
            met.wait()
            # The setting of a thread is also the default of threads to come, which is to stay as it was.
            torch.set_num_threads(threads)
            _pools[threads] = pool
    return _pools[threads]
