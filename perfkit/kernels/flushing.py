"""Rows that flush, dealt out to programs that stay: the launch that serves them costs little where there are none.

A fold takes all the registers that a program may have, so few of its programs run at a time. One program a row and
head would pass over the rows that do not flush in dozens of rounds, each of which waits twice for memory: 4 to 29 µs of
every step at B = 256. So as many programs run as fit, a block of SCAN rows has its share of them, and each takes every
so many-th of the block's pieces of work, a *piece* being some heads of one row that flushes.

Which rows flush is read off a cursor of each row. Nothing in this launch writes it, or one program would see what
another has done to a row: the launch of outputs keeps it with the cursor of the row's first head.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from perfkit.kernels.lang import tl, triton
from perfkit.kernels.ring import cursor_h
from perfkit.kernels.targets import device_of
from perfkit.method import Case

#: Rows of a block.
SCAN = 64
#: Programs of a fold that a multiprocessor holds, by their warps: 255 registers leave room for eight warps, and what
#: three tiles of one warp take of shared memory for seven.
FOLD_PROGRAMS = MappingProxyType({1: 7, 2: 4, 4: 2, 8: 1})
#: What stands for the multiprocessors of a machine without a GPU: little enough that a program takes several pieces.
_INTERPRETED = 1


def fold_programs(case: Case, tensors: Mapping[str, Any], resident: int | None, pieces: int) -> tuple[int, int]:
    """Return the programs of the launch that serves flushing rows, and those of each block of rows.

    Args:
        case: whose rows they are.
        tensors: its buffers, on the device that is to run it.
        resident: programs that a multiprocessor holds at a time; one more would begin when all others are done. None
            for a program to each piece.
        pieces: of a row.
    """
    blocks = triton.cdiv(case.batch, SCAN)
    programs = min(case.batch, SCAN) * pieces
    if resident is not None:
        there = _multiprocessors(device_of(tensors)) * resident
        programs = min(programs, max(1, there // blocks))
    return blocks * programs, programs


@cache
def _multiprocessors(device: str) -> int:
    if not device.startswith("cuda"):
        return _INTERPRETED
    import torch

    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@triton.jit
def decode_ranks(slots_ptr, row_cursor_ptr, row, batch, window):
    """Which of the rows [SCAN] that fold their records with this token each is, from 1; 0: h + 1 < window."""
    slot = tl.load(slots_ptr + row, mask=row < batch, other=-1).to(tl.int64)
    cursor = tl.load(row_cursor_ptr + slot, mask=slot >= 0, other=0)
    return _ranks((slot >= 0) & (cursor_h(cursor) + 1 >= window))


@triton.jit
def verify_ranks(
    slots_ptr, row_cursor_ptr, drafts_ptr, took_ptr, ancestors_ptr, row, batch, window,
    T: tl.constexpr, TREE: tl.constexpr,
):  # fmt: skip
    """Which of the rows [SCAN] that fold their records with this step each is, from 1; 0: it has room for the step."""
    slot = tl.load(slots_ptr + row, mask=row < batch, other=-1).to(tl.int64)
    live = slot >= 0
    cursor = tl.load(row_cursor_ptr + slot, mask=live, other=0)
    took = tl.load(took_ptr + row, mask=live, other=0)
    n = tl.load(drafts_ptr + row, mask=live, other=0)
    depth = n
    if TREE:
        took = _bits(took)
        depth = tl.zeros_like(n)
        for node in tl.static_range(T):
            mask = tl.load(ancestors_ptr + row.to(tl.int64) * T + node, mask=live & (node < n), other=0)
            depth = tl.maximum(depth, _bits(mask))
    return _ranks(live & (cursor_h(cursor) + took + depth > window))


@triton.jit
def _bits(x):
    """How many bits of a bitmask of 31 at most are set."""
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return (x + (x >> 8) + (x >> 16) + (x >> 24)) & 0x3F


@triton.jit
def _ranks(flushes):
    return tl.where(flushes, tl.cumsum(flushes.to(tl.int32), axis=0), 0)


@triton.jit
def ranked(ranks, row, rank):
    """The row of a rank."""
    return tl.sum(tl.where(ranks == rank, row, 0), axis=0)


@triton.jit
def how_many(ranks):
    """Rows that flush."""
    return tl.max(ranks, axis=0)


@triton.jit
def within(x, h, piece):
    """x, but by a number, a multiple of 128, that the compiler does not know to be 0.

    What it derives of x it so derives once a piece: kept from one piece to the next, that would take the registers of
    the fold.
    """
    return x + tl.multiple_of((h + piece) >> 30, 128)
