"""Large batches in the memory of small ones: the outputs of all rows, with the graph of one chunk at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sized
from typing import Any, NamedTuple, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from fcco._checks import whole_number
from fcco._eager import eager
from fcco.losses.loss import ObjectiveLoss

_WARNED: WeakSet[nn.Module] = WeakSet()


@eager
def forward_in_chunks(module: nn.Module | Callable[..., Any], /, *args: Any, chunk_size: int, **kwargs: Any) -> Any:
    """Return ``module(*args, **kwargs)``, holding the activations of one chunk of rows at a time.

    The forward pass keeps the outputs and nothing else; the backward pass computes each chunk again. The gradient is
    that of the whole batch, for every loss, whereas accumulated gradients of micro-batches are wrong for a loss that
    compares examples. It costs one more forward pass: make chunks as large as memory allows.

    All tensors in ``args`` and ``kwargs`` have a row for each example, or no dimension at all, and so do all tensors in
    the output. They may be nested. Anything else is passed to every chunk. The module may draw random numbers from
    torch, but not from NumPy or from generators of its own. Layers that look at the whole batch, as BatchNorm does, see
    one chunk; there is a warning.

    Parameters
    ----------
    module : nn.Module
        The module, or one of its methods. With ``DistributedDataParallel`` the gradient is reduced once.
    *args, **kwargs
        What the module is called with.
    chunk_size : int
        The largest number of rows of a chunk. Rows are divided evenly.

    Returns
    -------
    Tensor, or what the module returns
        The outputs of all rows.

    Raises
    ------
    ValueError
        If inputs have different numbers of rows, if an output does not have a row for each example, or if the module
        contains a loss of fcco, whose state a second forward pass would change again.
    RuntimeError
        In the backward pass, if weights or ``train()`` modes have changed since.

    Examples
    --------
    >>> model, x = nn.Linear(3, 2), torch.randn(100, 3)
    >>> forward_in_chunks(model, x, chunk_size=8).square().mean().backward()
    """
    size = whole_number("chunk_size", chunk_size)
    owner = getattr(module, "__self__", module)
    if not isinstance(owner, nn.Module):
        raise TypeError(
            f"module must be an nn.Module or a method of one; got {type(module).__name__}. What other functions change "
            "cannot be seen: write a module whose forward calls it"
        )
    for name, part in owner.named_modules():
        if isinstance(part, ObjectiveLoss):
            raise ValueError(
                f"module must not contain a loss of fcco; found {name!r}. Pass the network "
                "alone, and call the loss with its outputs"
            )
    if isinstance(module, DistributedDataParallel):  # one forward pass for DDP, which then reduces once
        whole, module.module = module.module, ChunkedModule(module.module, size)
        try:
            return module(*args, **kwargs)
        finally:
            module.module = whole
    leaves, spec = pytree.tree_flatten((args, kwargs))
    n = _count_rows(leaves)
    _check_others((*args, *kwargs.values()), n)
    pieces = max(-(-n // size), 1)
    counts = [n * (piece + 1) // pieces - n * piece // pieces for piece in range(pieces)]
    # split, whose gradient is put together once: that of a slice has the size of the whole input
    columns = [leaf.split(counts) if _has_rows(leaf) else [leaf] * pieces for leaf in leaves]
    parts = [list(part) for part in zip(*columns, strict=True)]

    def run(part: list[Any]) -> Any:
        args, kwargs = pytree.tree_unflatten(part, spec)
        return module(*args, **kwargs)

    outputs = [run(parts[0])] if pieces == 1 else _Recomputed(owner, run).all_of(parts)
    return _join(outputs, counts)


def _count_rows(leaves: list[Any]) -> int:
    if other := [leaf.layout for leaf in leaves if isinstance(leaf, Tensor) and leaf.layout != torch.strided]:
        raise ValueError(f"inputs must be dense tensors, whose rows can be divided; got one of the layout {other[0]}")
    counts = {len(leaf) for leaf in leaves if _has_rows(leaf)}
    if len(counts) != 1:
        raise ValueError(
            f"inputs must be tensors with one number of rows; got {sorted(counts) or 'none'}. Keep tensors that all "
            "examples share in a buffer of the module"
        )
    return counts.pop()


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def _check_others(values: tuple[Any, ...], n: int) -> None:
    """Raise if something other than a tensor may have an entry for each example: every chunk would get all of them."""
    for value in values:
        other = isinstance(value, Sized) and not isinstance(value, (str, Tensor)) and len(value) == n > 1
        if other and not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value)):
            raise ValueError(
                f"only tensors are divided; got {type(value).__name__} with {n} entries, as many as there are "
                "examples. Pass a tensor, or keep what all examples share in the module"
            )


class _Buffer(NamedTuple):
    """Where a buffer is, and a copy of its value."""

    place: dict[str, Tensor | None]
    name: str
    value: Tensor

    def has_changed(self) -> bool:
        now, then = self.place[self.name], self.value
        if now is None or now.shape != then.shape:
            return True
        return not ((now == then) | ((now != now) & (then != then))).all()  # a NaN is what it was

    def copied_again(self) -> _Buffer:
        current = self.place[self.name]
        return self if current is None else self._replace(value=current.clone())


class _Recomputed:
    """The chunks of one call: each is run, forgotten, and run again in the same state when its gradient is due."""

    def __init__(self, owner: nn.Module, run: Callable[[list[Any]], Any]) -> None:
        self.owner, self.run = owner, run
        self.parameters, self.modules = list(owner.parameters()), list(owner.modules())
        self.start = self.settings()
        # checkpoint keeps the random states of the devices of its arguments.
        self.devices = [torch.empty(0, device=device) for device in {part.device for part in self.parameters}]

    def settings(self) -> tuple[list[int], list[bool]]:
        """Return what must not change between the forward and the backward pass."""
        return [part._version for part in self.parameters], [part.training for part in self.modules]

    def has_other_weights(self) -> bool:
        """Return whether tensors that functional_call put in the place of parameters are gone."""
        if all(isinstance(part, nn.Parameter) for part in self.parameters):
            return False
        then, now = (
            {part.untyped_storage()._cdata for part in of} for of in (self.parameters, self.owner.parameters())
        )
        return not now <= then

    def all_of(self, parts: list[list[Any]]) -> list[Any]:
        """Return the outputs of all chunks."""
        everything = [
            _Buffer(part._buffers, name, value.clone())
            for part in self.modules
            for name, value in part.named_buffers(recurse=False)
        ]
        outputs, before = [], everything
        for part in parts:
            past: list[_Buffer] = []  # what the chunk changes, such as the statistics of BatchNorm, before it does
            outputs.append(checkpoint(self.call, past, self.devices, *part, use_reentrant=False))
            past += [buffer for buffer in before if buffer.has_changed()] if before is everything else before
            before = [buffer.copied_again() for buffer in past]
        changing = {(id(buffer.place), buffer.name) for buffer in before}
        if any(buffer.has_changed() and (id(buffer.place), buffer.name) not in changing for buffer in everything):
            raise RuntimeError("a buffer of the module changes in some chunks only, so that they cannot be repeated")
        # BatchNorm without running statistics changes no buffer, and has the batch's in eval() too.
        by_batch = {id(part) for part in self.modules if isinstance(part, _BatchNorm) and part.running_mean is None}
        by_batch |= {id(part) for part in self.modules if any(part._buffers is at for at, *_ in before)}
        if by_batch and self.owner not in _WARNED:
            _WARNED.add(self.owner)
            kinds = {type(part).__name__ for part in self.modules if id(part) in by_batch}
            warnings.warn(
                f"{', '.join(sorted(kinds))} changes its buffers at every call or normalises by the batch, and sees "
                "chunks, not the whole batch. Where outputs depend on the batch, as those of BatchNorm do, use "
                "GroupNorm, or eval() on layers with running statistics",
                stacklevel=4,
            )
        return outputs

    def call(self, past: list[_Buffer], devices: list[Tensor], *part: Any) -> Any:
        """Return the outputs of a chunk; ``past`` is empty in the forward pass."""
        if self.settings() != self.start or self.has_other_weights():
            raise RuntimeError(
                "weights or train() modes have changed since forward_in_chunks: call backward() before "
                "optimizer.step(), train() and eval(), and inside of functional_call. forward() must not change "
                "weights; call a module with lazy ones once before"
            )
        now = [(buffer, buffer.place[buffer.name]) for buffer in past]
        # A cast that chunks share would add up their gradients in half precision.
        torch.clear_autocast_cache()
        try:
            for buffer, _ in now:
                buffer.place[buffer.name] = buffer.value.clone()
            return self.run(list(part))
        finally:
            torch.clear_autocast_cache()
            for buffer, current in now:
                buffer.place[buffer.name] = current


def _join(outputs: list[Any], counts: list[int]) -> Any:
    flat = [pytree.tree_flatten(output) for output in outputs]
    for (leaves, spec), count in zip(flat, counts, strict=True):
        if spec != flat[0][1]:
            raise ValueError("the module must return the same structure for every chunk; got two")
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.shape[:1] != (count,):
                raise ValueError(
                    f"the module must return a row for each of the {count} examples of a chunk; got a tensor of the "
                    f"shape {list(leaf.shape)}. Compute a loss from the outputs, outside of the module"
                )
    return pytree.tree_unflatten(
        [_join_leaves(leaves) for leaves in zip(*(leaves for leaves, _ in flat), strict=True)], flat[0][1]
    )


def _join_leaves(leaves: tuple[Any, ...]) -> Any:
    first = leaves[0]
    if isinstance(first, Tensor):
        return torch.cat(leaves) if len(leaves) > 1 else first
    if len(leaves) > 1 and not (
        isinstance(first, (str, int, float, type(None))) and all(leaf == first for leaf in leaves)
    ):
        raise ValueError(
            f"outputs of the type {type(first).__name__} cannot be joined. Return tensors, or dictionaries, lists and "
            "tuples of tensors; numbers and strings must be the same for every chunk"
        )
    return first


# What ChunkedModule has in common with the module: not copies, but the same dictionaries.
_SHARED = (
    "_parameters",
    "_buffers",
    "_non_persistent_buffers_set",
    "_modules",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class ChunkedModule(nn.Module):
    """A module whose forward pass is :func:`forward_in_chunks`.

    Parameters, buffers, submodules and the keys of ``state_dict`` are those of the module itself, so it can take the
    place of the module before or after training. Wrap it in ``DistributedDataParallel`` or ``fully_shard``.

    Parameters
    ----------
    module : nn.Module
        The module. Attributes and methods that are not found here are looked up there.
    chunk_size : int
        The largest number of rows of a chunk.

    Examples
    --------
    >>> model = ChunkedModule(nn.Linear(3, 2), chunk_size=8)
    >>> model(torch.randn(100, 3)).shape, list(model.state_dict())
    (torch.Size([100, 2]), ['weight', 'bias'])
    """

    def __init__(self, module: nn.Module, chunk_size: int) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise TypeError(f"module must be an nn.Module; got {type(module).__name__}")
        self.chunk_size = whole_number("chunk_size", chunk_size)
        self.training, self._version = module.training, module._version
        self.__dict__["wrapped"] = module  # beside the submodules, which are its own
        self.__dict__.update({name: getattr(module, name) for name in _SHARED})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the outputs of all rows.

        Parameters
        ----------
        *args, **kwargs
            What the module is called with.

        Returns
        -------
        Tensor, or what the module returns
            The outputs.
        """
        return forward_in_chunks(self.wrapped, *args, chunk_size=self.chunk_size, **kwargs)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the module.

        Parameters
        ----------
        mode : bool, default True
            True for training, and False for evaluation.

        Returns
        -------
        ChunkedModule
            This module.
        """
        self.wrapped.train(mode)
        self.training = mode
        return self

    def _apply(self, *args: Any, **kwargs: Any) -> Self:
        self.wrapped._apply(*args, **kwargs)
        return self

    def _save_to_state_dict(self, *args: Any) -> None:
        self.wrapped._save_to_state_dict(*args)

    def _load_from_state_dict(self, *args: Any) -> None:
        self.wrapped._load_from_state_dict(*args)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "wrapped":  # while it is copied or unpickled
                raise
            return getattr(self.wrapped, name)
