"""Gathers the records of a tree's accepted path behind the committed ones, before the next step reads them.

The nodes of a path in ascending order are its tokens in order, and token i is a node p_i ≥ i: moved one after the
other, no record is overwritten before it was read. A chain needs none of this, its tokens are where they belong.
This is a launch of its own because keys are shared: what one program moves, its siblings would still be reading.

Source: paper, App. D.1, for a chain; the gather is what a tree adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from perfkit.kernels.lang import tl, triton
from perfkit.kernels.ring import cursor_h, cursor_origin, wrap
from perfkit.method import Case, Launch, Number, Point
from perfkit.roofline.traffic import layer_record_bytes
from perfkit.shape import Shape

#: Rows of d_v that lie together in the ring of x.
BLOCK = 16
#: Elements of x that a program moves for each record, at least a head's.
SPAN = 1024


@triton.jit(do_not_specialize=["n_ring"], do_not_specialize_on_alignment=["path_ptr"])
def _replay_commit_kernel(
    x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, slots_ptr, path_ptr, n_ring,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, SPAN_X: tl.constexpr,
):  # fmt: skip
    """A program moves x, dt and, where its heads start a group, k of HEADS heads of one row."""
    per_group: tl.constexpr = N_V // N_K
    pid = tl.program_id(0)
    row = pid // (N_V // HEADS)
    first_head = pid % (N_V // HEADS) * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    path = tl.load(path_ptr + row)
    cursor = tl.load(cursor_ptr + slot * N_V + first_head)
    if path < 2:  # nothing, or the root alone, which is where it belongs
        return
    start = cursor_origin(cursor) + cursor_h(cursor)
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    e = tl.arange(0, SPAN_X)  # heads, blocks of rows, rows in a block
    live = (e < HEADS * blocks * BLOCK) & (e % (blocks * BLOCK) < D_V)
    heads = first_head + tl.arange(0, HEADS)
    c = tl.arange(0, D_K)
    x_base = (
        x_ring_ptr + (slot * N_V + first_head) * (blocks * BLOCK) * n_ring + e // BLOCK * n_ring * BLOCK + e % BLOCK
    )
    dt_base = dt_ring_ptr + slot * n_ring * N_V + heads
    k_base = k_ring_ptr + slot * n_ring * (N_K * D_K) + first_head // per_group * D_K + c
    mine = first_head % per_group == 0
    to = 1
    for node in tl.static_range(1, T):
        if ((path >> node) & 1) == 1:
            source = wrap(wrap(start, n_ring) + node, n_ring)
            target = wrap(wrap(start, n_ring) + to, n_ring)
            tl.store(x_base + target * BLOCK, tl.load(x_base + source * BLOCK, mask=live), mask=live)
            tl.store(dt_base + target * N_V, tl.load(dt_base + source * N_V))
            if mine:
                tl.store(k_base + target * (N_K * D_K), tl.load(k_base + source * (N_K * D_K)))
            to += 1


def commit_launch(case: Case, tensors: Mapping[str, Any], path: Any, n_ring: int) -> Launch:
    """Return the launch that moves the records of each row's ``path`` [batch] int32 to where they are committed."""
    shape, t = case.shape, tensors
    heads = program_heads(shape)
    return Launch(
        _replay_commit_kernel,
        (case.batch * shape.n_v_heads // heads,),
        (t["x_ring"], t["k_ring"], t["dt_ring"], t["cursor"], t["slots"], path, n_ring),
        {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k, "T": case.draft_len,
         "HEADS": heads, "BLOCK": BLOCK, "SPAN_X": triton.next_power_of_2(heads * value_blocks(shape) * BLOCK)},
        {"num_warps": 1, "num_stages": 1},
    )  # fmt: skip


def value_blocks(shape: Shape) -> int:
    """Return how many blocks the rows of a head make."""
    return -(-shape.d_v // BLOCK)


def program_heads(shape: Shape) -> int:
    """Return how many heads of a group a program moves."""
    heads = 1
    while shape.heads_per_group % (2 * heads) == 0 and 2 * heads * shape.d_v <= SPAN:
        heads *= 2
    return heads


def commit_bytes(shape: Shape, point: Point) -> tuple[Number, Number]:
    """Return what the launch reads and writes a row: slot, path, cursors; all records of the path but the root's."""
    if not point.tree:
        return 0, 0
    moved: Number = np.maximum(np.asarray(point.accepted) - 1, 0) * layer_record_bytes(shape, point.input_bytes)
    return moved + 8 + 4 * shape.n_v_heads // program_heads(shape), moved
