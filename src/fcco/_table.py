"""The table: a running estimate u_i of every inner value g_i, and everything else that outlives a step."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fcco._checks import NotFiniteError, raise_if_not_finite, whole_number
from fcco.core.arrays import Views
from fcco.core.spaces import LOG, PLAIN, Rate, Space, as_column, as_dtype

# exp of this is 0 in every dtype. With -inf, which gamma = 1 would give, differences would not be numbers.
_LOG_OF_NOTHING = -1e5

ROW_BUFFERS = ("u", "visits", "log_decay_at_write")
"""The buffers that have a value for each row."""

ANOTHER_RANKS_ROWS = (
    "these are the rows of one rank of a sharded table: save fcco.distributed.full_state_dict(loss), or the rows of "
    "all ranks by torch.distributed.checkpoint"
)

STATE_VERSION = 1
"""The version of what ``state_dict`` holds, which is saved with it; newer versions are refused."""

EXTRA_STATE = "_extra_state"  # torch's name for what get_extra_state returns
_EXTRA_BYTES = 512
LEAVE_OUT = ". To load a model without the state of its loss, pass strict=False"
_ANYWAY: ContextVar[bool] = ContextVar("load_anyway", default=False)

_NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64, torch.int32: np.int32, torch.bool: np.bool_}


@contextmanager
def load_anyway() -> Iterator[None]:
    """Within this context, a state loads into any loss whose shapes fit.

    A state says which loss it was saved from, and what that loss knew of the training set. ``load_state_dict`` refuses
    to load it into a different one, where its rows would mean something else. It also refuses rows that are not finite.
    Use this context if you want this all the same, for example to start from the table of a similar loss.

    Yields
    ------
    None
        The context has no value.

    Examples
    --------
    >>> import fcco
    >>> cox, auc = fcco.losses.CoxLoss(n=5), fcco.losses.PartialAUCLoss(n=5)
    >>> with load_anyway():
    ...     auc.load_state_dict(cox.state_dict())
    <All keys matched successfully>
    """
    token = _ANYWAY.set(True)
    try:
        yield
    finally:
        _ANYWAY.reset(token)


def at_least_single(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return what moves a buffer like ``fn``, but leaves floating ones in single precision at least."""

    def move(buffer: Tensor) -> Tensor:
        moved = fn(buffer)
        narrow = buffer.is_floating_point() and torch.finfo(moved.dtype).bits < 32
        return buffer.to(moved.device) if narrow else moved

    return move


class InnerTable(nn.Module):
    """Buffers that hold u_1 ... u_n and say which rows have been visited.

    The buffers follow ``.to()``, ``state_dict``, ``deepcopy`` and pickling like those of any module. Values are at
    least float32: casting a model to half precision leaves the table as it is, since 8 bits of mantissa cannot hold a
    moving average. A table costs 4 bytes per value and 1 byte per row. If a rule needs them, ``visits`` cost 4 bytes
    instead of 1, and ``decays`` 8 bytes more.

    ``state_dict`` also says what the rows are: n, dim, log and :attr:`identity`, which is the kind of the loss and what
    it knows of the training set. ``load_state_dict`` compares what both sides know. It refuses a state that differs,
    that has rows which are not finite, or that comes from a newer version of fcco. Use :func:`fcco.load_anyway` to load
    such a state. Rates, temperatures and other settings are not compared, since they may change when training resumes.

    Parameters
    ----------
    n : int
        Number of rows.
    dim : int, default 1
        Number of values in a row.
    log : bool, default False
        Rows hold log g rather than g.
    visits : bool, default False
        Count the visits of each row rather than only mark it visited.
    decays : bool, default False
        Rows shrink by 1 - rate at every write, whichever rows are written (see :class:`fcco.MOAP`).
    dtype : torch.dtype, default torch.float32
        ``torch.float32`` or ``torch.float64``.
    device : torch.device | str, optional
        Where the buffers live.

    Raises
    ------
    ValueError
        ``n`` or ``dim`` is not positive, or ``dtype`` has less precision than float32.

    Examples
    --------
    >>> table = InnerTable(n=4)
    >>> table.write(torch.tensor([2]), torch.tensor([0.5]))
    >>> table.read(torch.tensor([1, 2]), cold=0.0)
    tensor([0.0000, 0.5000])
    """

    identity: dict[str, int | str]
    """What the rows are, by name: the kind of the loss, sizes of populations, fingerprints of times or lists."""
    u: Tensor
    visits: Tensor
    step: Tensor
    log_decay: Tensor
    log_decay_at_write: Tensor

    def __init__(
        self,
        n: int,
        dim: int = 1,
        log: bool = False,
        *,
        visits: bool = False,
        decays: bool = False,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.n = whole_number("n", n)
        self.dim = whole_number("dim", dim)
        self.log = bool(log)
        self.space: Space = LOG if log else PLAIN
        self.decays = decays
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"a table holds float32 or float64; got {dtype}")
        self.is_kept = False  # whether the next state is to be refused, with what else belongs to it
        self.identity, self.views = {}, Views()
        shape = (self.n,) if self.dim == 1 else (self.n, self.dim)
        self.register_buffer("u", _zeros(shape, dtype, device))
        self.register_buffer("visits", _zeros((self.n,), torch.int32 if visits else torch.bool, device))
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))
        if decays:
            # [1], since torch.compile loses changes to 0-d float64 buffers.
            self.register_buffer("log_decay", torch.zeros(1, dtype=torch.float64, device=device))
            self.register_buffer("log_decay_at_write", _zeros((self.n,), torch.float64, device))

    def extra_repr(self) -> str:
        """Return n, dim and log.

        Returns
        -------
        str
            What ``repr`` shows between the brackets.
        """
        return f"n={self.n}, dim={self.dim}, log={self.log}"

    @property
    def block(self) -> Self:
        """The rows that this process keeps, which is all of them."""
        return self

    def full(self) -> Self:
        """Return the whole table, which this is.

        Returns
        -------
        InnerTable
            This table.
        """
        return self

    def part(self, first: int, count: int) -> Self:
        """Return a table with a copy of some of the rows.

        Parameters
        ----------
        first : int
            The first of them.
        count : int
            The number of rows.

        Returns
        -------
        InnerTable
            A table of ``count`` rows. It has the same options and has taken as many steps.
        """
        if bool(self.step == 0) and self.u.is_cpu:  # copies of zeros would take up memory
            rows = {name: _zeros((count, *b.shape[1:]), b.dtype, b.device) for name, b in self._row_buffers().items()}
        else:
            rows = {name: buffer[first : first + count].clone() for name, buffer in self._row_buffers().items()}
        return self.with_rows(count, rows)

    def with_rows(self, n: int, rows: Mapping[str, Tensor]) -> Self:
        """Return a table like this one with ``n`` other rows, whose buffers are given.

        Parameters
        ----------
        n : int
            The number of rows.
        rows : mapping of str to Tensor
            The buffers to replace, by name, each with an entry for every row: ``u``, ``visits`` and, if the table
            decays, ``log_decay_at_write``.

        Returns
        -------
        InnerTable
            A table with these buffers, and with copies of the others.
        """
        table = copy.copy(self)
        kept = {name: None if b is None or name in rows else b.clone() for name, b in self._buffers.items()}
        table._buffers = {**kept, **rows}
        table.n = n
        return table

    def _row_buffers(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self.named_buffers() if name in ROW_BUFFERS}

    # Looking up an attribute of a module takes as long as reading a row, so what every step does uses _buffers.

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the values."""
        buffers: dict[str, Any] = self._buffers
        return buffers["u"].dtype

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        buffers: dict[str, Any] = self._buffers
        return buffers["u"].device

    def read(self, rows: Tensor | None, cold: Tensor | float, dtype: torch.dtype | None = None) -> Tensor:
        """Return the values of ``rows``, and ``cold`` where a row was never written.

        Parameters
        ----------
        rows : Tensor of shape (B1,) or None
            The rows; None stands for all of them.
        cold : Tensor or float
            What stands for rows that were never written. A tensor has one value, or row of values, for each of
            ``rows``.
        dtype : torch.dtype, optional
            The dtype of the values. By default, it is that of the table.

        Returns
        -------
        Tensor of shape (B1,) or (B1, dim)
            The values; their logarithms if the table holds log g.
        """
        buffers: dict[str, Any] = self._buffers
        values = buffers["u"] if rows is None else buffers["u"].index_select(0, rows)
        values = values if dtype is None else as_dtype(values, dtype)
        if self.decays:
            since_write = buffers["log_decay"] - self._take(buffers["log_decay_at_write"], rows)
            values = self.space.decay(values, as_column(since_write, values))
        return torch.where(as_column(self.visited(rows).bool(), values), values, cold)

    def visited(self, rows: Tensor | None) -> Tensor:
        """Return how often each of ``rows`` was written, or only whether, unless the table counts visits.

        Parameters
        ----------
        rows : Tensor of shape (B1,) or None
            The rows; None stands for all of them.

        Returns
        -------
        Tensor of shape (B1,)
            Numbers of int32 if the table counts visits, otherwise of bool.
        """
        buffers: dict[str, Any] = self._buffers
        return self._take(buffers["visits"], rows)

    def write(self, rows: Tensor | None, values: Tensor, rate: Rate = 0.0, where: Tensor | None = None) -> None:
        """Set ``rows`` to ``values``, as one step.

        A row that appears twice must have one value.

        Parameters
        ----------
        rows : Tensor | None
            [B1]; None stands for all rows.
        values : Tensor
            [B1] or [B1, dim].
        rate : Rate, default 0.0
            How much all rows decay in this step, if the table decays.
        where : Tensor, optional
            [B1] of bool. Rows that are False everywhere keep their values.
        """
        self.promote(values.dtype)
        buffers: dict[str, Any] = self._buffers
        buffers["step"].add_(1)
        if self.decays:
            self._decay(rows, values.shape[0], rate, where)
        self._put(buffers["u"], rows, values.detach(), where)
        visits = buffers["visits"]
        self._put(visits, rows, True if visits.dtype == torch.bool else self.visited(rows) + 1, where)

    def _decay(self, rows: Tensor | None, count: int, rate: Rate, where: Tensor | None) -> None:
        # A number is filled in rather than copied, since a copy would wait for the accelerator.
        rate = rate.double() if isinstance(rate, Tensor) else torch.full_like(self.log_decay, rate)
        log_decay = self.log_decay + torch.log1p(-rate).clamp(min=_LOG_OF_NOTHING)
        self._put(self.log_decay_at_write, rows, log_decay.expand(count), where)
        self.log_decay.copy_(log_decay)

    def promote(self, dtype: torch.dtype) -> None:
        """Change the dtype of the values to ``dtype`` if that is wider.

        Parameters
        ----------
        dtype : torch.dtype
            The dtype. Only ``torch.float64`` is wider than the least that a table has.
        """
        if dtype == torch.float64 and self.u.dtype != dtype:
            self.u = self.u.to(dtype)

    @staticmethod
    def _take(buffer: Tensor, rows: Tensor | None) -> Tensor:
        return buffer if rows is None else buffer.index_select(0, rows)

    @staticmethod
    def _put(buffer: Tensor, rows: Tensor | None, values: Tensor | bool, where: Tensor | None) -> None:
        if where is not None:
            kept = InnerTable._take(buffer, rows)
            values = torch.where(as_column(where, kept), values, kept)
        if rows is None:
            buffer[:] = values
        elif isinstance(values, Tensor):
            buffer.index_copy_(0, rows, values)
        else:
            buffer.index_fill_(0, rows, values)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> InnerTable:
        def keep_precision(buffer: Tensor) -> Tensor:
            moved = fn(buffer)
            if not buffer.is_floating_point():
                return moved
            narrow = torch.finfo(moved.dtype).bits < 32 or (buffer is not self.u and moved.dtype != buffer.dtype)
            return buffer.to(moved.device) if narrow else moved

        return super()._apply(keep_precision, recurse)

    def get_extra_state(self) -> Tensor:
        """Return what the rows are, as JSON in a tensor of bytes.

        Returns
        -------
        Tensor
            The bytes, as every format of checkpoints can hold a tensor.
        """
        return pack_identity(self)

    def set_extra_state(self, state: Tensor | None) -> None:
        """Do nothing: the state was compared before any buffer changed.

        Parameters
        ----------
        state : Tensor or None
            What :meth:`get_extra_state` returned.
        """

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        local = {key: value for key, value in state_dict.items() if key.startswith(prefix)}
        extra = local.setdefault(prefix + EXTRA_STATE, None)
        about = {} if extra is None or extra.is_meta else _read_extra(extra)
        problem = self._mismatch(local.get(prefix + "u"), local.get(prefix + "visits"), about)
        is_kept, self.is_kept = self.is_kept, False
        if problem:
            error_msgs.append(f"{prefix[:-1]}: {problem}{LEAVE_OUT}" if prefix else f"table: {problem}")
        if problem or is_kept:
            return
        if prefix + "u" in local:
            self.promote(local[prefix + "u"].dtype)
        super()._load_from_state_dict(local, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _mismatch(self, u: Tensor | None, visits: Tensor | None, about: dict[str, Any]) -> str | None:
        """Return why a state cannot be loaded, or None."""
        if hasattr(u, "to_local"):
            return ANOTHER_RANKS_ROWS
        if (version := about.get("version", STATE_VERSION)) > STATE_VERSION:
            return f"the saved state has version {version}, this fcco knows up to {STATE_VERSION}: update fcco"
        if u is not None and u.shape != self.u.shape:
            n, dim = u.shape[0], 1 if u.dim() == 1 else u.shape[1]
            return f"the saved table has n={n}, dim={dim}, this one has n={self.n}, dim={self.dim}"
        if u is not None and u.dtype not in (torch.float32, torch.float64):
            return f"the saved table is of {u.dtype}, and a table holds float32 or float64"
        if visits is not None and visits.dtype == torch.bool and self.visits.dtype != torch.bool:
            return "the saved table marks visits, this one counts them"
        if about.get("log", self.log) != self.log:
            return f"the saved table has log={about['log']}, this one has log={self.log}"
        if _ANYWAY.get():
            return None
        return self._belongs_to_another(about) or (None if u is None or u.is_meta else self._not_finite(u))

    def _belongs_to_another(self, about: dict[str, Any]) -> str | None:
        names = [name for name, own in self.identity.items() if about.get(name, own) != own]
        if not names:
            return None
        saved, here = (", ".join(f"{name}={known[name]}" for name in names) for known in (about, self.identity))
        return f"the saved table has {saved}, this one has {here}. If that is meant, load it within fcco.load_anyway()"

    def _not_finite(self, u: Tensor) -> str | None:
        try:
            raise_if_not_finite(u, self.log, "u")
        except NotFiniteError as error:
            return f"in the saved table, {error}. To load it all the same, do so within fcco.load_anyway()"
        return None


def pack_identity(table: Any) -> Tensor:
    """Return what the rows of a table are, as JSON in a tensor of bytes.

    It is a tensor, since some savers take nothing else. It is new and its length is a multiple of a constant, since
    others load in place.
    """
    about = {"version": STATE_VERSION, "n": table.n, "dim": table.dim, "log": table.log, **table.identity}
    content = json.dumps(about).encode()
    padded = content.ljust(-(-len(content) // _EXTRA_BYTES) * _EXTRA_BYTES)
    return torch.tensor(list(padded), dtype=torch.uint8, device="cpu")


def _read_extra(extra: Tensor) -> dict[str, Any]:
    return json.loads(bytes(extra.detach().cpu().tolist()))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str | None) -> Tensor:
    """Return zeros which, on the CPU, take up no memory before they are written to."""
    device = torch.get_default_device() if device is None else torch.device(device)
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(shape, _NUMPY_TYPES[dtype]))
