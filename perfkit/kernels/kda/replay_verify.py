"""ReplaySSM verify for Kimi Delta Attention: T drafts against checkpoint and records, in one pass over the state.

A record is (g, u, k): the log decays of all channels in FP32, the correction u = β (v − S (α ⊙ k)) in FP16, the key as
the layer gave it. What a head's records and drafts are to each other is in :mod:`perfkit.kernels.kda.replay_parts`:
decayed columns of keys and queries, the records' weights on them, and, solved for once a head, the small matrix M that
turns base = S_h [K | Q] over decayed columns into corrections U and outputs O of values V,

    [U | O] = (V − base_K) M + [0 | base_Q]        M = B (I + A B)⁻¹ [I | P_q]

A flush folds the records first, as in :mod:`perfkit.kernels.kda.replay_decode`, and derives all from the new
checkpoint. As nothing is shared by heads, a program takes one at a time. Launches, cursors and marks are as in
:mod:`perfkit.kernels.gdn.replay_verify`; a tree's accepted path is gathered by a launch before them.

Source: arXiv 2510.26692; paper, Alg. 5, Eq. 9 to 11, App. D.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import replay
from perfkit.kernels.delta_replay import DeltaReplay
from perfkit.kernels.flushing import SCAN, fold_programs, how_many, ranked, verify_ranks
from perfkit.kernels.following import close_pair, follow, let_follow
from perfkit.kernels.gates import inverse_norm
from perfkit.kernels.gdn.replay_parts import corrections_times, finish, wide_product
from perfkit.kernels.kda import layout
from perfkit.kernels.kda.replay_commit import commit_launch
from perfkit.kernels.kda.replay_parts import columns, decayed_records, meetings, solution
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.paths import committed_by
from perfkit.kernels.replay import at_least_16, paired, ring_slots, tile, tiled_launch
from perfkit.kernels.replay_commit import BLOCK, value_blocks
from perfkit.kernels.ring import (
    cursor_h,
    cursor_keep,
    cursor_load,
    cursor_marked,
    cursor_origin,
    cursor_pack,
    cursor_with_mark,
    cursor_without_mark,
    wrap,
)
from perfkit.kernels.targets import apart, capability
from perfkit.method import (
    ACCEPTANCE_STEPS,
    Buffer,
    Case,
    Config,
    Launch,
)


@triton.jit
def _fold(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr,
    bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, row, piece, n_ring, row_q, row_k, row_v,
    row_gate, row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, POSITIONS: tl.constexpr, DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, CHUNKS: tl.constexpr, MEETING: tl.constexpr,
):  # fmt: skip
    """Corrections and outputs of one head of a row from its new checkpoint, into which its h records are folded."""
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    head = piece % N_HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    masks_ptr = ancestors_ptr + row.to(tl.int64) * T
    n, took, _ = committed_by(drafts_ptr + row, took_ptr + row, masks_ptr, tl.arange(0, POSITIONS), TREE)
    unit = slot * N_HEADS + head
    cursor = cursor_load(cursor_ptr + unit, 1)
    h = cursor_h(cursor) + took
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    first = wrap(origin + h, n_ring)
    j = tl.arange(0, 2 * POSITIONS)
    old = tl.arange(0, RECORDS)
    at = wrap(origin + old, n_ring)
    place = wrap(first + j, n_ring)
    k_ring = k_ring_ptr + unit * n_ring * D_K
    g_ring = g_ring_ptr + unit * n_ring * D_K
    k_base = k_ptr + row * row_k + head * D_K
    q_base = q_ptr + row * row_q + head * D_K
    gate_base = gate_ptr + row * row_gate + head * D_K
    rate = -tl.exp(tl.load(log_ptr + head))
    bias_base = bias_ptr + head * D_K
    WIDTH: tl.constexpr = D_K // CHUNKS
    c0 = tl.arange(0, WIDTH)
    c1 = (CHUNKS - 1) * WIDTH + tl.arange(0, WIDTH)
    x0 = columns(
        k_base, q_base, gate_base, bias_base, rate, masks_ptr, c0, n, stride_q, stride_k, stride_gate, TREE, SPLIT,
        DRAFTS, POSITIONS,
    )  # fmt: skip
    keys0, squares, total = decayed_records(k_ring, g_ring, at, old, h, 0, WIDTH, D_K, SPLIT)
    decay0 = tl.exp(total)
    if CHUNKS == 2:
        x1 = columns(
            k_base, q_base, gate_base, bias_base, rate, masks_ptr, c1, n, stride_q, stride_k, stride_gate, TREE,
            SPLIT, DRAFTS, POSITIONS,
        )  # fmt: skip
        keys1, more, total = decayed_records(k_ring, g_ring, at, old, h, (CHUNKS - 1) * WIDTH, WIDTH, D_K, SPLIT)
        squares += more
        decay1 = tl.exp(total)
    keys, queries, k_squares, q_squares, own = meetings(
        k_ring, g_ring, k_base, q_base, gate_base, bias_base, rate, masks_ptr, first, n_ring, n,
        stride_q, stride_k, stride_gate, D_K, T, TREE, SPLIT, DRAFTS, POSITIONS, MEETING,
    )  # fmt: skip
    m, factors = solution(
        keys, queries, k_squares, q_squares, own, beta_ptr + row * row_beta + head, n, stride_beta, D_K, T,
        POSITIONS,
    )  # fmt: skip
    norms = inverse_norm(squares)[:, None]
    x0, keys0 = x0 * factors[None, :], keys0 * norms
    if CHUNKS == 2:
        x1, keys1 = x1 * factors[None, :], keys1 * norms
    tl.store(cursor_ptr + unit, cursor_with_mark(cursor_pack(0, first)))
    v_new = v_ptr + row * row_v + head * D_V
    out = out_ptr + (row * T * N_HEADS + head) * D_V
    for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
        v = v0 + tl.arange(0, ROWS)
        live = (v < D_V)[:, None]
        s_ptr = state_ptr + unit * (D_V * D_K) + v[:, None] * D_K
        s = tl.load(s_ptr + c0[None, :], mask=live, other=0.0).to(tl.float32)
        if CHUNKS == 2:
            s1 = tl.load(s_ptr + c1[None, :], mask=live, other=0.0).to(tl.float32)
        u_tile = u_ring_ptr + ((unit * blocks + v // BLOCK) * n_ring * BLOCK + v % BLOCK)[:, None]
        u_old = tl.load(u_tile + at[None, :] * BLOCK, mask=live & (old < h)[None, :], other=0.0)
        half: tl.constexpr = u_old.dtype == tl.float16
        # Corrections are derived from the checkpoint as it is stored: they make up for its rounding.
        kept = (s * decay0[None, :] + corrections_times(u_old, keys0, half)).to(state_ptr.dtype.element_ty)
        tl.store(s_ptr + c0[None, :], kept, mask=live)
        seen = wide_product(kept.to(tl.float32), x0, SPLIT)
        if CHUNKS == 2:
            kept = (s1 * decay1[None, :] + corrections_times(u_old, keys1, half)).to(state_ptr.dtype.element_ty)
            tl.store(s_ptr + c1[None, :], kept, mask=live)
            seen += wide_product(kept.to(tl.float32), x1, SPLIT)
        finish(seen, v_new, u_tile, out + v[:, None], m, j, n, place, stride_v, v[:, None], live, N_HEADS * D_V,
               POSITIONS, BLOCK, SPLIT)  # fmt: skip


#: A function when compiled, too: in a loop over pieces, what holds for all of them would take its registers.
_fold_apart = triton.jit(noinline=True)(_fold.fn)


@triton.jit(
    do_not_specialize=["batch", "programs", "window", "n_ring"], do_not_specialize_on_alignment=["took_ptr"]
)  # fmt: skip
def _kda_replay_flush_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, row_cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
    log_ptr, bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, batch, programs, window, n_ring, row_q,
    row_k, row_v, row_gate, row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, POSITIONS: tl.constexpr, DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, CHUNKS: tl.constexpr,
    MEETING: tl.constexpr, SCAN: tl.constexpr,
    FOLLOWED: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """Rows with h + T > window: fold the h committed records; corrections and outputs from the new checkpoint."""
    let_follow(FOLLOWED)
    pid = tl.program_id(0)
    some = pid // programs * SCAN + tl.arange(0, SCAN)
    ranks = verify_ranks(slots_ptr, row_cursor_ptr, drafts_ptr, took_ptr, ancestors_ptr, some, batch, window, T,
                             TREE)  # fmt: skip
    if APART:
        for piece in tl.range(pid % programs, how_many(ranks) * N_HEADS, programs, num_stages=1):
            row = ranked(ranks, some, piece // N_HEADS + 1)
            _fold_apart(
                state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
                log_ptr, bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, row, piece, n_ring, row_q,
                row_k, row_v, row_gate, row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta, N_HEADS, D_V,
                D_K, T, TREE, SPLIT, ROWS, RECORDS, POSITIONS, DRAFTS, BLOCK, STAGES, CHUNKS, MEETING,
            )  # fmt: skip
    elif pid % programs < how_many(ranks) * N_HEADS:  # a program has one piece at most
        piece = pid % programs
        row = ranked(ranks, some, piece // N_HEADS + 1)
        _fold(
            state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
            log_ptr, bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, row, piece, n_ring, row_q,
            row_k, row_v, row_gate, row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta, N_HEADS, D_V,
            D_K, T, TREE, SPLIT, ROWS, RECORDS, POSITIONS, DRAFTS, BLOCK, STAGES, CHUNKS, MEETING,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_ring"], do_not_specialize_on_alignment=["took_ptr"])
def _kda_replay_output_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, row_cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
    log_ptr, bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, n_ring, row_q, row_k, row_v, row_gate,
    row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, POSITIONS: tl.constexpr, DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, CHUNKS: tl.constexpr,
    MEETING: tl.constexpr,
    FOLLOWS: tl.constexpr,
):  # fmt: skip
    """Rows that did not flush: corrections and outputs from the checkpoint and the committed records."""
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    follow(FOLLOWS)
    pid = tl.program_id(0)
    row = pid // N_HEADS
    head = pid % N_HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    unit = slot * N_HEADS + head
    cursor = cursor_load(cursor_ptr + unit, 1)
    if cursor_marked(cursor):  # the launch before served this row
        cursor_keep(cursor_ptr, row_cursor_ptr, slot, head, cursor_without_mark(cursor), N_HEADS, 1)
        return
    masks_ptr = ancestors_ptr + row.to(tl.int64) * T
    n, took, _ = committed_by(drafts_ptr + row, took_ptr + row, masks_ptr, tl.arange(0, POSITIONS), TREE)
    h = cursor_h(cursor) + took
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    j = tl.arange(0, 2 * POSITIONS)
    old = tl.arange(0, RECORDS)
    at = wrap(origin + old, n_ring)
    first = wrap(origin + h, n_ring)
    place = wrap(first + j, n_ring)
    k_ring = k_ring_ptr + unit * n_ring * D_K
    g_ring = g_ring_ptr + unit * n_ring * D_K
    k_base = k_ptr + row * row_k + head * D_K
    q_base = q_ptr + row * row_q + head * D_K
    gate_base = gate_ptr + row * row_gate + head * D_K
    rate = -tl.exp(tl.load(log_ptr + head))
    bias_base = bias_ptr + head * D_K
    WIDTH: tl.constexpr = D_K // CHUNKS
    c0 = tl.arange(0, WIDTH)
    c1 = (CHUNKS - 1) * WIDTH + tl.arange(0, WIDTH)
    x0 = columns(
        k_base, q_base, gate_base, bias_base, rate, masks_ptr, c0, n, stride_q, stride_k, stride_gate, TREE, SPLIT,
        DRAFTS, POSITIONS,
    )  # fmt: skip
    keys, squares, total = decayed_records(k_ring, g_ring, at, old, h, 0, WIDTH, D_K, SPLIT)
    weights = wide_product(keys, x0, SPLIT)  # [records, COLS]
    x0 = x0 * tl.exp(total)[:, None]
    if CHUNKS == 2:
        x1 = columns(
            k_base, q_base, gate_base, bias_base, rate, masks_ptr, c1, n, stride_q, stride_k, stride_gate, TREE, SPLIT,
            DRAFTS, POSITIONS,
        )  # fmt: skip
        keys, more, total = decayed_records(k_ring, g_ring, at, old, h, (CHUNKS - 1) * WIDTH, WIDTH, D_K, SPLIT)
        squares += more
        weights += wide_product(keys, x1, SPLIT)
        x1 = x1 * tl.exp(total)[:, None]
    keys, queries, k_squares, q_squares, own = meetings(
        k_ring, g_ring, k_base, q_base, gate_base, bias_base, rate, masks_ptr, first, n_ring, n,
        stride_q, stride_k, stride_gate, D_K, T, TREE, SPLIT, DRAFTS, POSITIONS, MEETING,
    )  # fmt: skip
    m, factors = solution(
        keys, queries, k_squares, q_squares, own, beta_ptr + row * row_beta + head, n, stride_beta, D_K, T, POSITIONS
    )
    weights = weights * inverse_norm(squares)[:, None] * factors[None, :]
    x0 = x0 * factors[None, :]
    if CHUNKS == 2:
        x1 = x1 * factors[None, :]
    cursor_keep(cursor_ptr, row_cursor_ptr, slot, head, cursor_pack(h, origin), N_HEADS, 1)
    v_new = v_ptr + row * row_v + head * D_V
    out = out_ptr + (row * T * N_HEADS + head) * D_V
    for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
        v = v0 + tl.arange(0, ROWS)
        live = (v < D_V)[:, None]
        s_ptr = state_ptr + unit * (D_V * D_K) + v[:, None] * D_K
        s = tl.load(s_ptr + c0[None, :], mask=live, other=0.0)
        if CHUNKS == 2:
            s1 = tl.load(s_ptr + c1[None, :], mask=live, other=0.0)
        u_tile = u_ring_ptr + ((unit * blocks + v // BLOCK) * n_ring * BLOCK + v % BLOCK)[:, None]
        u_old = tl.load(u_tile + at[None, :] * BLOCK, mask=live & (old < h)[None, :], other=0.0)
        seen = wide_product(s.to(tl.float32), x0, SPLIT) + corrections_times(u_old, weights, SPLIT)
        if CHUNKS == 2:
            seen += wide_product(s1.to(tl.float32), x1, SPLIT)
        finish(seen, v_new, u_tile, out + v[:, None], m, j, n, place, stride_v, v[:, None], live, N_HEADS * D_V,
               POSITIONS, BLOCK, SPLIT)  # fmt: skip


class ReplayVerify(DeltaReplay, replay.ReplayVerify):
    """1R a step, 1R + 1W at a flush, plus the records."""

    family = "kda"
    source = "paper, Alg. 5, Eq. 9 to 11; arXiv 2510.26692"
    layout = layout
    max_window = 64
    trees = True

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, ring and cursors, all of them read and written.

        state [slots, n_heads, d_v, d_k] in the state dtype; the records u_ring [slots, n_heads, blocks, ring, BLOCK],
        blocks of 16 rows of d_v, in FP16 (FP32 where inputs are), k_ring [slots, n_heads, ring, d_k] in the input dtype
        and not normalized, g_ring [slots, n_heads, ring, d_k] float32, the log decays; cursor [slots, n_heads] int32,
        and row_cursor [slots] int32, that of the first head. ring = window + draft_len.
        """
        shape, slots, n_ring = case.shape, layout.n_slots(case), ring_slots(case)
        keys = (slots, shape.n_v_heads, n_ring, shape.d_k)
        blocks = (slots, shape.n_v_heads, value_blocks(shape), n_ring, BLOCK)
        return {
            "state": layout.state(case),
            "u_ring": Buffer(blocks, self.rounds(case) or "float32", "record"),
            "k_ring": Buffer(keys, case.input_dtype, "record"),
            "g_ring": Buffer(keys, "float32", "record"),
            "cursor": Buffer((slots, shape.n_v_heads), "int32", "cursor"),
            "row_cursor": Buffer((slots,), "int32", "cursor"),
        }

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Return the flushing and the output launch; for a tree, the one that gathers the accepted path comes first."""
        shape, t = case.shape, tensors
        window, n_ring, units = case.window or 1, ring_slots(case), case.batch * shape.n_v_heads
        tree = case.tree is not None
        took = t["path" if tree else "accepted"][step % ACCEPTANCE_STEPS]
        if tree:
            yield commit_launch(case, t, took, n_ring)
        pointers = (*self.pointers(t), t["drafts"], took, t["ancestors"] if tree else took, t["out"])
        strides = self.strides(t, 2)
        drafts = triton.next_power_of_2(case.draft_len)
        constants = {"N_HEADS": shape.n_v_heads, "D_V": shape.d_v, "D_K": shape.d_k, "T": case.draft_len, "TREE": tree,
                     "SPLIT": case.input_dtype == "bfloat16", "POSITIONS": max(drafts, 8), "DRAFTS": drafts,
                     "BLOCK": BLOCK, "CHUNKS": 2 if shape.d_k >= 64 else 1,
                     "MEETING": min(shape.d_k, 32)}  # fmt: skip
        cc = capability(t)
        resident = config["fold_programs"] if apart(cc) else None
        grid, programs = fold_programs(case, t, resident, shape.n_v_heads)
        first = tiled_launch(
            _kda_replay_flush_kernel, grid, (*pointers, case.batch, programs, window, n_ring, *strides),
            {**constants, "RECORDS": at_least_16(window), "SCAN": SCAN, "APART": True}, config, "fold_",
        )  # fmt: skip
        # records of a row that does not flush: one whose step has a single position holds most
        second = tiled_launch(
            _kda_replay_output_kernel, units, (*pointers, n_ring, *strides),
            {**constants, "RECORDS": at_least_16(window - 1)}, config,
        )  # fmt: skip
        yield from close_pair(first, second, cc)

    def configs(self, case: Case) -> Sequence[Config]:
        """Return rows a tile, warps, stages and a limit of registers, of outputs and of the fold.

        ``fold_programs``: of the fold, that a multiprocessor holds at a time; there is a program to each piece where
        :data:`perfkit.kernels.targets.TENSOR_MEMORY` says so.
        """
        outputs = [tile(16, 2, 3), tile(16, 4, 2), tile(32, 4, 2)][case.tree is not None :]
        folds = [tile(32, 4, 2), tile(16, 4, 2)]
        if case.draft_len > 8 or (case.window or 1) > 17:
            outputs, folds = [tile(16, 4, 2), tile(32, 8, 2)], [tile(16, 4, 2), tile(32, 8, 2)]
        return paired(case, outputs, folds)


METHOD = ReplayVerify()
