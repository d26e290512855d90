"""Count the bytes that kernels touch, in Triton's interpreter.

``with touched(tensors) as record:`` hooks every load, store and atomic of the launches inside, masked lanes left out,
and counts each byte of each buffer once a launch: a batch's states are many times the cache, so a launch finds nothing
there that the launch before it used. That must equal what a method declares, to the byte: a forgotten cursor or a tile
loaded twice by two programs shows (the first) or does not (the second), exactly as DRAM traffic with a perfect cache
would. On the way it finds two kinds of bugs that results need not show: accesses outside every buffer (they are
suppressed, so that they corrupt nothing) and bytes that one program of a launch writes while another uses them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import DeviceError, InputError

Ints = NDArray[np.int64]

READ, WRITE, ATOMIC = 1, 2, 4
#: Stray accesses kept for the message; all are counted.
_KEPT_STRAYS = 16


@dataclass(frozen=True, slots=True)
class Stray:
    """Lanes of one access that lie outside every buffer: the nearest buffer and the distance from its first byte."""

    kind: str  # "read", "write" or "atomic"
    lanes: int
    element_bytes: int
    nearest: str
    offset: int  # of the first such lane, in bytes from the start of ``nearest``; negative before it
    program: tuple[int, int, int]

    def __str__(self) -> str:
        return (
            f"{self.kind} of {self.lanes} x {self.element_bytes} bytes at {self.nearest}[{self.offset:+d} bytes] "
            f"by program {self.program}"
        )


@dataclass(frozen=True, slots=True)
class _Event:
    """The contiguous runs of one access by one program."""

    starts: Ints
    ends: Ints
    kind: int
    launch: int
    program: int


class Touched:
    """What the launches inside ``touched`` accessed; may be read at any time.

    Attributes:
        owner: for each tensor's name the buffer that its bytes are counted under: views of one storage belong to the
            tensor that spans most of it.
        outside: the first stray accesses.
        outside_lanes: number of lanes outside every buffer, each time counted.
        launches: kernel launches seen.
    """

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.owner, ranges = _ranges(tensors)
        self._names = [name for name, _, _ in ranges]
        self._starts = np.array([start for _, start, _ in ranges], dtype=np.int64)
        self._ends = np.array([end for _, _, end in ranges], dtype=np.int64)
        self._events: list[_Event] = []
        self.outside: list[Stray] = []
        self.outside_lanes = 0
        self.launches = 0

    @property
    def read(self) -> dict[str, int]:
        """Bytes read of each buffer, every address once a launch; atomics read too."""
        return self._bytes(READ)

    @property
    def written(self) -> dict[str, int]:
        """Bytes written of each buffer, every address once a launch; atomics write too."""
        return self._bytes(WRITE)

    @property
    def bytes_read(self) -> int:
        """Bytes read in all."""
        return sum(self.read.values())

    @property
    def bytes_written(self) -> int:
        """Bytes written in all."""
        return sum(self.written.values())

    @property
    def races(self) -> dict[str, int]:
        """Bytes that, within one launch, a program writes and another reads or writes, where there are any.

        Programs of a launch run in any order, so such a byte's value is undefined on a GPU although the interpreter,
        which runs them one after the other, always sees the same one. Atomics are meant for this and not counted.
        """
        found: dict[str, int] = {}
        for launch in range(self.launches + 1):
            events = [e for e in self._events if e.launch == launch and not e.kind & ATOMIC]
            if len({e.program for e in events}) < 2 or not any(e.kind & WRITE for e in events):
                continue
            starts, sizes = _conflicts(events)
            for name, count in self._per_buffer(starts, sizes).items():
                if count:
                    found[name] = found.get(name, 0) + count
        return found

    def guard(self, addresses: Ints, mask: NDArray[np.bool_], size: int, kind: int, program: tuple[int, ...],
              linear: int) -> NDArray[np.bool_]:  # fmt: skip
        """Record one access and return the lanes of ``mask`` that lie inside a buffer.

        Args:
            addresses: of each lane's first byte.
            mask: the lanes that access memory.
            size: bytes per lane.
            kind: READ, WRITE or both, with ATOMIC.
            program: the program's index in the grid.
            linear: the same as one number.
        """
        live = addresses[mask]
        if not live.size:
            return mask
        low, high = int(live.min()), int(live.max())
        index = int(np.searchsorted(self._starts, low, side="right")) - 1
        if index < 0 or high + size > self._ends[index]:  # not all inside one buffer
            at = np.searchsorted(self._starts, live, side="right") - 1
            inside = (at >= 0) & (live + size <= self._ends[at])
            if not inside.all():
                self._stray(live[~inside], size, kind, program)
                mask = mask.copy()
                mask[mask] = inside
                live = live[inside]
                if not live.size:
                    return mask
        breaks = np.flatnonzero(np.diff(live) != size) + 1
        first = np.concatenate(([0], breaks))
        last = np.concatenate((breaks, [live.size])) - 1
        self._events.append(_Event(live[first], live[last] + size, kind, self.launches, linear))
        return mask

    def _stray(self, live: Ints, size: int, kind: int, program: tuple[int, ...]) -> None:
        self.outside_lanes += live.size
        if len(self.outside) >= _KEPT_STRAYS:
            return
        distance = np.minimum(np.abs(self._starts - live[0]), np.abs(self._ends - live[0]))
        nearest = int(distance.argmin()) if distance.size else -1
        what = "atomic" if kind & ATOMIC else "write" if kind & WRITE else "read"
        name, base = (self._names[nearest], int(self._starts[nearest])) if nearest >= 0 else ("(no buffer)", 0)
        x, y, z = program
        self.outside.append(Stray(what, int(live.size), size, name, int(live[0]) - base, (x, y, z)))

    def _bytes(self, kind: int) -> dict[str, int]:
        totals = dict.fromkeys(self._names, 0)
        by_launch: dict[int, list[_Event]] = {}
        for event in self._events:
            if event.kind & kind:
                by_launch.setdefault(event.launch, []).append(event)
        for events in by_launch.values():
            starts = np.concatenate([e.starts for e in events])
            ends = np.concatenate([e.ends for e in events])
            order = np.argsort(starts, kind="stable")
            starts, ends = starts[order], ends[order]
            reached = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(ends)[:-1]))
            counts = self._per_buffer(starts, np.maximum(ends - np.maximum(starts, reached), 0))
            totals = {name: totals[name] + count for name, count in counts.items()}
        return totals

    def _per_buffer(self, starts: Ints, sizes: Ints) -> dict[str, int]:
        at = np.searchsorted(self._starts, starts, side="right") - 1
        totals = np.zeros(len(self._names), dtype=np.int64)
        np.add.at(totals, at, sizes)
        return {name: int(total) for name, total in zip(self._names, totals, strict=True)}


def _conflicts(events: list[_Event]) -> tuple[Ints, Ints]:
    """Return starts and sizes of the pieces of memory that one program writes and another touches."""
    starts = np.concatenate([e.starts for e in events])
    ends = np.concatenate([e.ends for e in events])
    lengths = [e.starts.size for e in events]
    program = np.repeat([e.program for e in events], lengths)
    writes = np.repeat([bool(e.kind & WRITE) for e in events], lengths)
    # Cut all runs at all their ends; then each run covers pieces first..last, and pieces are compared.
    cuts = np.unique(np.concatenate((starts, ends)))
    first, last = np.searchsorted(cuts, starts), np.searchsorted(cuts, ends)
    count = last - first
    piece = np.repeat(first - np.cumsum(count) + count, count) + np.arange(count.sum())
    low = np.full(cuts.size, np.iinfo(np.int64).max)
    high = np.full(cuts.size, -1)
    written = np.zeros(cuts.size, dtype=bool)
    np.minimum.at(low, piece, np.repeat(program, count))
    np.maximum.at(high, piece, np.repeat(program, count))
    written[piece[np.repeat(writes, count)]] = True
    hit = np.flatnonzero(written & (low < high))
    return cuts[hit], cuts[hit + 1] - cuts[hit]


def _ranges(tensors: Mapping[str, Any]) -> tuple[dict[str, str], list[tuple[str, int, int]]]:
    """Return each tensor's owner and the owners' sorted byte ranges [start, end)."""
    by_storage: dict[int, list[tuple[str, int, int]]] = {}
    for name, tensor in tensors.items():
        if getattr(tensor, "device", None) is None or tensor.device.type != "cpu":
            raise InputError("must be a CPU tensor to be interpreted", field=f"tensors[{name}]", value=type(tensor))
        if not tensor.numel():
            continue
        if any(stride < 0 for stride in tensor.stride()):
            raise InputError("has a negative stride", field=f"tensors[{name}]")
        start = tensor.data_ptr()
        extent = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        entry = (name, start, start + extent * tensor.element_size())
        by_storage.setdefault(tensor.untyped_storage().data_ptr(), []).append(entry)
    owner, ranges = {}, []
    for views in by_storage.values():
        head = max(views, key=lambda view: view[2] - view[1])[0]
        owner.update({name: head for name, _, _ in views})
        ranges.append((head, min(view[1] for view in views), max(view[2] for view in views)))
    ranges.sort(key=lambda item: item[1])
    return owner, ranges


@contextmanager
def touched(tensors: Mapping[str, Any]) -> Iterator[Touched]:
    """Count what the launches inside touch of ``tensors``.

    Args:
        tensors: CPU tensors by name, any shapes, strides and dtypes; views may be given beside their storage's owner.

    Raises:
        DeviceError: this process does not interpret kernels.
        InputError: a tensor is not on the CPU.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise DeviceError("counting bytes needs an interpreting process: set TRITON_INTERPRET=1 before it starts")
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    record = Touched(tensors)
    hooked = ("create_masked_load", "create_masked_store", "create_atomic_rmw", "create_atomic_cas", "set_grid_dim")
    saved = {name: InterpreterBuilder.__dict__[name] for name in hooked}

    def lanes(builder: Any, pointers: Any, mask: Any, kind: int) -> Any:
        size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        addresses = pointers.data.astype(np.int64)
        live = np.broadcast_to(np.asarray(mask, dtype=bool), addresses.shape)
        x, y, z = builder.grid_idx
        columns, rows, _ = builder.grid_dim
        linear = x + columns * (y + rows * z)
        return record.guard(addresses, live, size, kind, builder.grid_idx, linear)

    def masked(data: Any) -> Any:
        import triton.language as tl

        return TensorHandle(data, tl.int1)

    def load(self: Any, ptrs: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        live = lanes(self, ptrs, mask.data, READ)
        return saved["create_masked_load"](self, ptrs, masked(live), *rest, **options)

    def store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        live = lanes(self, ptrs, mask.data, WRITE)
        return saved["create_masked_store"](self, ptrs, value, masked(live), *rest, **options)

    def rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        live = lanes(self, ptr, mask.data, READ | WRITE | ATOMIC)
        return saved["create_atomic_rmw"](self, op, ptr, value, masked(live), *rest, **options)

    def cas(self: Any, ptr: Any, compare: Any, value: Any, *rest: Any, **options: Any) -> Any:
        live = lanes(self, ptr, True, READ | WRITE | ATOMIC)
        if not live.all():  # a compare-and-swap has no mask to drop lanes with
            raise IndexError(f"compare-and-swap outside every buffer: {record.outside[-1]}")
        return saved["create_atomic_cas"](self, ptr, compare, value, *rest, **options)

    def grid(self: Any, *extent: int) -> None:
        record.launches += 1
        saved["set_grid_dim"](self, *extent)

    try:
        for name, hook in zip(hooked, (load, store, rmw, cas, grid), strict=True):
            setattr(InterpreterBuilder, name, hook)
        yield record
    finally:
        for name, function in saved.items():
            setattr(InterpreterBuilder, name, function)
