"""Gathers the records of a tree's accepted path behind the committed ones: Kimi Delta Attention's.

As in :mod:`perfkit.kernels.replay_commit`, but a record's decays and key are a head's own. It is a launch of its own
because both launches of a step read the records that it moves.

Source: paper, App. D.1, for a chain; the gather is what a tree adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.kernels.lang import tl, triton
from perfkit.kernels.replay_commit import BLOCK, value_blocks
from perfkit.kernels.ring import cursor_h, cursor_origin, wrap
from perfkit.method import Case, Launch


@triton.jit(do_not_specialize=["n_ring"], do_not_specialize_on_alignment=["path_ptr"])
def _kda_replay_commit_kernel(
    u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, slots_ptr, path_ptr, n_ring,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
):  # fmt: skip
    """A program moves u, g and k of one head of one row; SPAN is the power of two that holds the head's u."""
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    row = pid // N_HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    path = tl.load(path_ptr + row)
    unit = slot * N_HEADS + pid % N_HEADS
    cursor = tl.load(cursor_ptr + unit)
    if path < 2:  # nothing, or the root alone, which is where it belongs
        return
    start = cursor_origin(cursor) + cursor_h(cursor)
    v = tl.arange(0, SPAN)
    live = v < D_V
    c = tl.arange(0, D_K)
    u_base = u_ring_ptr + (unit * blocks + v // BLOCK) * n_ring * BLOCK + v % BLOCK
    k_base = k_ring_ptr + unit * n_ring * D_K + c
    g_base = g_ring_ptr + unit * n_ring * D_K + c
    to = 1
    for node in tl.static_range(1, T):
        if ((path >> node) & 1) == 1:
            source = wrap(wrap(start, n_ring) + node, n_ring)
            target = wrap(wrap(start, n_ring) + to, n_ring)
            tl.store(u_base + target * BLOCK, tl.load(u_base + source * BLOCK, mask=live), mask=live)
            tl.store(k_base + target * D_K, tl.load(k_base + source * D_K))
            tl.store(g_base + target * D_K, tl.load(g_base + source * D_K))
            to += 1


def commit_launch(case: Case, tensors: Mapping[str, Any], path: Any, n_ring: int) -> Launch:
    """Return the launch that moves the records of each row's ``path`` [batch] int32 to where they are committed."""
    shape = case.shape
    names = ("u_ring", "k_ring", "g_ring", "cursor", "slots")
    return Launch(
        _kda_replay_commit_kernel,
        (case.batch * shape.n_v_heads,),
        (*(tensors[name] for name in names), path, n_ring),
        {"N_HEADS": shape.n_v_heads, "D_V": shape.d_v, "D_K": shape.d_k, "T": case.draft_len, "BLOCK": BLOCK,
         "SPAN": triton.next_power_of_2(value_blocks(shape) * BLOCK)},
        {"num_warps": 1, "num_stages": 1},
    )  # fmt: skip
