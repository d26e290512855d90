"""ReplaySSM verify for Gated DeltaNet: T drafts against checkpoint and cached corrections, in one pass over the state.

A record is (g, u, k): log decay in FP32, the correction u = β (v − α S k) in FP16, and the key as the layer gave it. A
step reads S [K_d | Q_d] of its drafts' keys and queries in one pass; the corrections of the drafts follow from a
unit-triangular system that is solved once per head (:mod:`perfkit.kernels.gdn.replay_parts`), so that corrections and
outputs of a tile are one product with a small matrix. Rejected records lie beyond h and are overwritten.

Flush, launches, cursors and trees are as in :mod:`perfkit.kernels.mamba2.replay_verify`: one launch serves the rows
that flush and marks them, the next serves the others; a tree's accepted path is gathered by a launch before them.

Source: paper, Alg. 5, Eq. 9 to 11, App. D.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import replay
from perfkit.kernels.delta_replay import DeltaReplay
from perfkit.kernels.flushing import SCAN, fold_programs, how_many, ranked, verify_ranks
from perfkit.kernels.following import close_pair, follow, let_follow
from perfkit.kernels.gates import inverse_norm
from perfkit.kernels.gdn import layout
from perfkit.kernels.gdn.replay_parts import (
    columns,
    corrections_times,
    finish,
    folds,
    raw_products,
    solve,
)
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.paths import committed_by
from perfkit.kernels.products import load_rows, of_head, product, product_exact, store_rows
from perfkit.kernels.replay import SMALL_BATCH_HEADS, at_least_16, paired_heads, ring_slots, tiled_launch
from perfkit.kernels.replay_commit import BLOCK, commit_launch, value_blocks
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
def _prepare(
    k_ring, g_ring, k_base, q_base, gate, beta, log_ptr, bias_ptr, ancestors_ptr, at, place, old_j, j, h, n, stride_q,
    stride_k, stride_gate, stride_beta, keep,
    N_V: tl.constexpr, N_K: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """What both launches compute of a program's heads before they stream the states; the drafts' g and k are kept.

    Returns the columns [d_k, COLS] and their inverse norms, M [heads, drafts, COLS], the columns' decays [heads, COLS],
    the committed records' weights [heads, records] and the checkpoint's decay [heads].
    """
    x, inverse = columns(k_base, q_base, j, n, stride_k, stride_q, D_K, POSITIONS)
    k = load_rows(k_base, j * stride_k, j < n, D_K)
    if keep:
        store_rows(k_ring, place * (N_K * D_K), k, j < n, D_K)
    raw, k_inverse = raw_products(k, x, SPLIT)
    m, decays = solve(
        gate, beta, bias_ptr, log_ptr, g_ring, raw * k_inverse[:, None] * inverse[None, :], ancestors_ptr, place, j, j,
        n, stride_gate, stride_beta, N_V, HEADS, 2 * POSITIONS, POSITIONS, T, TREE, SPLIT,
    )  # fmt: skip
    old_weights, fold_decays = folds(g_ring, at, old_j, h, N_V, HEADS, SPLIT)
    return x, inverse, m, decays, old_weights, fold_decays


@triton.jit
def _fold(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr,
    bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, row, piece, n_ring, row_q, row_k, row_v,
    row_gate, row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, CHUNKS: tl.constexpr,
):  # fmt: skip
    """Corrections and outputs of HEADS heads of a row from their new checkpoints, their h records folded in."""
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    pieces: tl.constexpr = N_V // HEADS
    first_head = piece % pieces * HEADS
    p = tl.arange(0, POSITIONS)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    masks_ptr = ancestors_ptr + row.to(tl.int64) * T
    n, took, _ = committed_by(drafts_ptr + row, took_ptr + row, masks_ptr, p, TREE)
    cursor = cursor_load(cursor_ptr + slot * N_V + first_head, HEADS)
    h = cursor_h(cursor) + took
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    first = wrap(origin + h, n_ring)
    group = first_head // (N_V // N_K)
    COLS: tl.constexpr = 2 * POSITIONS
    j = tl.arange(0, COLS)
    old_j = tl.arange(0, RECORDS)
    place = wrap(first + j, n_ring)
    at = wrap(origin + old_j, n_ring)
    i_head = tl.arange(0, HEADS)
    k_ring = k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K
    g_ring = g_ring_ptr + slot * n_ring * N_V + first_head
    u_ring = u_ring_ptr + (slot * N_V + first_head) * (blocks * BLOCK) * n_ring
    v_new = v_ptr + row * row_v + first_head * D_V
    q_base = q_ptr + row * row_q + group * D_K
    k_base = k_ptr + row * row_k + group * D_K
    _x, inverse, m, decays, old_weights, fold_decays = _prepare(
        k_ring, g_ring, k_base, q_base, gate_ptr + row * row_gate + first_head,
        beta_ptr + row * row_beta + first_head,
        log_ptr + first_head, bias_ptr + first_head, masks_ptr, at, place, old_j, j, h, n, stride_q, stride_k,
        stride_gate, stride_beta, first_head % (N_V // N_K) == 0, N_V, N_K, D_K, T, TREE, SPLIT, HEADS, POSITIONS,
    )  # fmt: skip
    tl.store(cursor_ptr + slot * N_V + first_head + i_head,
             tl.full([HEADS], 0, tl.int32) + cursor_with_mark(cursor_pack(0, first)))  # fmt: skip

    # Half a state row at a time takes half the registers.
    WIDTH: tl.constexpr = D_K // CHUNKS
    held = (old_j < h)[:, None]
    c = tl.arange(0, D_K)
    c0 = tl.arange(0, WIDTH)
    c1 = (CHUNKS - 1) * WIDTH + tl.arange(0, WIDTH)
    k = tl.load(k_ring + at[:, None] * (N_K * D_K) + c[None, :], mask=held, other=0.0).to(tl.float32)
    k_inverse = inverse_norm(tl.sum(k * k, axis=1))
    k0 = tl.load(k_ring + at[:, None] * (N_K * D_K) + c0[None, :], mask=held, other=0.0)
    k1 = tl.load(k_ring + at[:, None] * (N_K * D_K) + c1[None, :], mask=held, other=0.0)
    start = tl.where(j < POSITIONS, k_base + j * stride_k, q_base + (j - POSITIONS) * stride_q)
    there = (j % POSITIONS < n)[None, :]
    x0 = tl.load(start[None, :] + c0[:, None], mask=there, other=0.0)
    x1 = tl.load(start[None, :] + c1[:, None], mask=there, other=0.0)
    s_base = state_ptr + (slot * N_V + first_head) * (D_V * D_K)
    out_base = out_ptr + row * (T * N_V * D_V) + first_head * D_V
    r = tl.arange(0, ROWS)
    for i in tl.range(0, HEADS * tiles, num_stages=STAGES):
        head = i // tiles
        v = i % tiles * ROWS + r
        live = (v < D_V)[:, None]
        rows_at = (head * D_V + v)[:, None]
        s_ptr = s_base + head * (D_V * D_K) + v[:, None] * D_K
        s = tl.load(s_ptr + c0[None, :], mask=live, other=0.0).to(tl.float32)
        if CHUNKS == 2:
            s1 = tl.load(s_ptr + c1[None, :], mask=live, other=0.0).to(tl.float32)
        u_tile = u_ring + ((head * blocks + v // BLOCK)[:, None] * n_ring) * BLOCK + (v % BLOCK)[:, None]
        u_old = tl.load(u_tile + at[None, :] * BLOCK, mask=live & (old_j < h)[None, :], other=0.0)
        mine = i_head == head
        value = u_old.to(tl.float32) * (of_head(old_weights, mine) * k_inverse)[None, :]
        fold_decay = of_head(fold_decays, mine)
        # Corrections are derived from the checkpoint as it is stored: they make up for its rounding.
        kept = (s * fold_decay + product_exact(value, k0, SPLIT)).to(state_ptr.dtype.element_ty)
        tl.store(s_ptr + c0[None, :], kept, mask=live)
        base = product(kept.to(tl.float32), x0, SPLIT)
        if CHUNKS == 2:
            kept = (s1 * fold_decay + product_exact(value, k1, SPLIT)).to(state_ptr.dtype.element_ty)
            tl.store(s_ptr + c1[None, :], kept, mask=live)
            base += product(kept.to(tl.float32), x1, SPLIT)
        seen = base * (inverse * of_head(decays, mine))[None, :]
        finish(seen, v_new, u_tile, out_base + rows_at, of_head(m, mine), j, n, place, stride_v, rows_at, live,
               N_V * D_V, POSITIONS, BLOCK, SPLIT)  # fmt: skip


#: A function when compiled, too: in a loop over pieces, what holds for all of them would take its registers.
_fold_apart = triton.jit(noinline=True)(_fold.fn)


@triton.jit(
    do_not_specialize=["batch", "programs", "window", "n_ring"], do_not_specialize_on_alignment=["took_ptr"]
)  # fmt: skip
def _gdn_replay_flush_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, row_cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
    log_ptr, bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, batch, programs, window, n_ring, row_q,
    row_k, row_v, row_gate, row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr, CHUNKS: tl.constexpr, SCAN: tl.constexpr,
    APART: tl.constexpr, FOLLOWED: tl.constexpr,
):  # fmt: skip
    """Rows with h + T > window: fold the h committed records; corrections and outputs from the new checkpoint."""
    pieces: tl.constexpr = N_V // HEADS
    let_follow(FOLLOWED)
    pid = tl.program_id(0)
    some = pid // programs * SCAN + tl.arange(0, SCAN)
    ranks = verify_ranks(slots_ptr, row_cursor_ptr, drafts_ptr, took_ptr, ancestors_ptr, some, batch, window, T,
                         TREE)  # fmt: skip
    if APART or ROWS < 64:
        for piece in tl.range(pid % programs, how_many(ranks) * pieces, programs, num_stages=1):
            row = ranked(ranks, some, piece // pieces + 1)
            _fold_apart(
                state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
                log_ptr, bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, row, piece, n_ring, row_q,
                row_k, row_v, row_gate, row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta, N_V, N_K,
                D_V, D_K, T, TREE, SPLIT, HEADS, ROWS, RECORDS, POSITIONS, BLOCK, STAGES, CHUNKS,
            )  # fmt: skip
    elif pid % programs < how_many(ranks) * pieces:  # a program has one piece at most
        piece = pid % programs
        row = ranked(ranks, some, piece // pieces + 1)
        _fold(
            state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
            log_ptr, bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, row, piece, n_ring, row_q,
            row_k, row_v, row_gate, row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta, N_V, N_K,
            D_V, D_K, T, TREE, SPLIT, HEADS, ROWS, RECORDS, POSITIONS, BLOCK, STAGES, CHUNKS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_ring"], do_not_specialize_on_alignment=["took_ptr"])
def _gdn_replay_output_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, row_cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
    log_ptr, bias_ptr, slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, n_ring, row_q, row_k, row_v, row_gate,
    row_beta, stride_q, stride_k, stride_v, stride_gate, stride_beta,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, POSITIONS: tl.constexpr,
    BLOCK: tl.constexpr, STAGES: tl.constexpr,
    FOLLOWS: tl.constexpr,
):  # fmt: skip
    """Rows that did not flush: corrections and outputs from the checkpoint and the committed records."""
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    follow(FOLLOWS)
    pid = tl.program_id(0)
    row = pid // (N_V // HEADS)
    first_head = pid % (N_V // HEADS) * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    cursor = cursor_load(cursor_ptr + slot * N_V + first_head, HEADS)
    if cursor_marked(cursor):  # the launch before served this row
        cursor_keep(cursor_ptr, row_cursor_ptr, slot, first_head, cursor_without_mark(cursor), N_V, HEADS)
        return
    s_base = state_ptr + (slot * N_V + first_head) * (D_V * D_K)
    p = tl.arange(0, POSITIONS)
    masks_ptr = ancestors_ptr + row.to(tl.int64) * T
    n, took, _ = committed_by(drafts_ptr + row, took_ptr + row, masks_ptr, p, TREE)
    h = cursor_h(cursor) + took
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    first = wrap(origin + h, n_ring)
    group = first_head // (N_V // N_K)
    COLS: tl.constexpr = 2 * POSITIONS
    j = tl.arange(0, COLS)
    old_j = tl.arange(0, RECORDS)
    place = wrap(first + j, n_ring)
    at = wrap(origin + old_j, n_ring)
    i_head = tl.arange(0, HEADS)
    k_ring = k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K
    g_ring = g_ring_ptr + slot * n_ring * N_V + first_head
    u_ring = u_ring_ptr + (slot * N_V + first_head) * (blocks * BLOCK) * n_ring
    v_new = v_ptr + row * row_v + first_head * D_V
    q_base = q_ptr + row * row_q + group * D_K
    k_base = k_ptr + row * row_k + group * D_K
    x, inverse, m, decays, old_weights, fold_decays = _prepare(
        k_ring, g_ring, k_base, q_base, gate_ptr + row * row_gate + first_head, beta_ptr + row * row_beta + first_head,
        log_ptr + first_head, bias_ptr + first_head, masks_ptr, at, place, old_j, j, h, n, stride_q, stride_k,
        stride_gate, stride_beta, first_head % (N_V // N_K) == 0, N_V, N_K, D_K, T, TREE, SPLIT, HEADS, POSITIONS,
    )  # fmt: skip
    cursor_keep(cursor_ptr, row_cursor_ptr, slot, first_head, cursor_pack(h, origin), N_V, HEADS)

    c = tl.arange(0, D_K)
    k = load_rows(k_ring, at * (N_K * D_K), old_j < h, D_K)
    raw, k_inverse = raw_products(k, x, SPLIT)
    kx = raw * k_inverse[:, None] * inverse[None, :]  # [records, COLS]
    out_base = out_ptr + row * (T * N_V * D_V) + first_head * D_V
    for i in tl.range(0, HEADS * tiles, num_stages=STAGES):
        head = i // tiles
        v = i % tiles * ROWS + tl.arange(0, ROWS)
        live = (v < D_V)[:, None]
        rows_at = (head * D_V + v)[:, None]
        s = tl.load(s_base + head * (D_V * D_K) + v[:, None] * D_K + c[None, :], mask=live, other=0.0)
        u_tile = u_ring + ((head * blocks + v // BLOCK)[:, None] * n_ring) * BLOCK + (v % BLOCK)[:, None]
        u_old = tl.load(u_tile + at[None, :] * BLOCK, mask=live & (old_j < h)[None, :], other=0.0)
        mine = i_head == head
        base = product(s.to(tl.float32), x, SPLIT) * (inverse * of_head(fold_decays, mine))[None, :]
        base += corrections_times(u_old, kx * of_head(old_weights, mine)[:, None], SPLIT)
        seen = base * of_head(decays, mine)[None, :]
        finish(seen, v_new, u_tile, out_base + rows_at, of_head(m, mine), j, n, place, stride_v, rows_at, live,
               N_V * D_V, POSITIONS, BLOCK, SPLIT)  # fmt: skip


class ReplayVerify(DeltaReplay, replay.ReplayVerify):
    """1R a step, 1R + 1W at a flush, plus the records."""

    family = "gdn"
    source = "paper, Alg. 5, Eq. 10 and 11"
    layout = layout
    max_window = 64
    trees = True

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, ring and cursors, all of them read and written.

        state [slots, n_v_heads, d_v, d_k] in the state dtype; the records u_ring [slots, n_v_heads, blocks, ring,
        BLOCK], blocks of 16 rows of d_v, in FP16 (FP32 where inputs are), k_ring [slots, ring, n_k_heads, d_k] in the
        input dtype and not normalized, g_ring [slots, ring, n_v_heads] float32, the log decay; cursor [slots,
        n_v_heads] int32, and row_cursor [slots] int32, that of the first head. ring = window + draft_len.
        """
        shape, slots, n_ring = case.shape, layout.n_slots(case), ring_slots(case)
        blocks = (slots, shape.n_v_heads, value_blocks(shape), n_ring, BLOCK)
        return {
            "state": layout.state(case),
            "u_ring": Buffer(blocks, self.rounds(case) or "float32", "record"),
            "k_ring": Buffer((slots, n_ring, shape.n_k_heads, shape.d_k), case.input_dtype, "record"),
            "g_ring": Buffer((slots, n_ring, shape.n_v_heads), "float32", "record"),
            "cursor": Buffer((slots, shape.n_v_heads), "int32", "cursor"),
            "row_cursor": Buffer((slots,), "int32", "cursor"),
        }

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Return the flushing and the output launch; for a tree, the one that gathers the accepted path comes first."""
        shape, t = case.shape, tensors
        window, nodes, n_ring = case.window or 1, case.draft_len, ring_slots(case)
        tree = case.tree is not None
        took = t["path" if tree else "accepted"][step % ACCEPTANCE_STEPS]
        if tree:
            yield commit_launch(case, {**t, "x_ring": t["u_ring"], "dt_ring": t["g_ring"]}, took, n_ring)
        pointers = (*self.pointers(t), t["drafts"], took, t["ancestors"] if tree else took,
                    t["out"])  # fmt: skip
        strides = self.strides(t, 2)
        constants = {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k, "T": nodes,
                     "TREE": tree, "SPLIT": case.input_dtype == "bfloat16",
                     "POSITIONS": max(triton.next_power_of_2(nodes), 8), "BLOCK": BLOCK}  # fmt: skip
        heads, fold_heads = config["heads"], config["fold_heads"]
        cc = capability(t)
        # Products of 64 rows take memory that only a kernel has on compute capability 10.0, and in a loop they spill:
        # there APART, which is told for the GPU that is compiled for, leaves a program to each piece.
        resident = config["fold_programs"] if config["fold_rows"] < 64 or apart(cc) else None
        grid, programs = fold_programs(case, t, resident, shape.n_v_heads // fold_heads)
        first = tiled_launch(
            _gdn_replay_flush_kernel, grid, (*pointers, case.batch, programs, window, n_ring, *strides),
            {**constants, "RECORDS": at_least_16(window), "CHUNKS": 2 if shape.d_k >= 64 else 1, "HEADS": fold_heads,
             "SCAN": SCAN, "APART": True}, config, "fold_",
        )  # fmt: skip
        # records of a row that does not flush: one whose step has a single position holds most
        second = tiled_launch(
            _gdn_replay_output_kernel, case.batch * shape.n_v_heads // heads, (*pointers, n_ring, *strides),
            {**constants, "RECORDS": at_least_16(window - 1), "HEADS": heads}, config,
        )  # fmt: skip
        yield from close_pair(first, second, cc)

    def configs(self, case: Case) -> Sequence[Config]:
        """Return heads a program, rows a tile, warps, stages and a limit of registers, of outputs and of the fold.

        ``fold_programs``: of the fold, that a multiprocessor holds at a time.
        Heads of a program share the products of keys; one head alone needs so few registers that ten programs fit
        where eight did. A solution for T above 8, and the records of a long window, take the registers of four warps.
        """
        shape, window = case.shape, case.window or 1
        one, two = (1, 64, 4, 2, 0), (2, 64, 4, 2, 0)
        outputs: list[tuple[int, ...]] = [(4, 16, 1, 3, 0), (2, 16, 1, 3, 0)]
        if case.tree is None:  # a tree's masks take what is left of the registers
            outputs.append((1, 16, 1, 3, 168))
        if case.draft_len > 8:
            outputs = [one] if window > 16 else [two, one]
        elif window > 32:
            outputs = [two, (2, 32, 2, 3, 0), (2, 32, 4, 2, 0)]
        # What spills nothing on any GPU; what is faster does on some. Triton 3.6.0 miscompiles the launch of outputs in
        # this tile. The fold in it ran on an H200 (T = 4, L = 64, B = 256) without a wrong access, and agreed with the
        # others at L = 16 and 32.
        fold: list[tuple[int, ...]] = [(1, 128, 8, 2, 0)]
        if window <= 32 and (case.draft_len <= 8 or window <= 16):
            fold = [one, *fold]
        if window <= 16 and case.draft_len <= 8 and case.tree is None:
            fold = [(2, 16, 1, 3, 0), *fold]
        if case.batch * shape.n_v_heads <= SMALL_BATCH_HEADS:
            outputs, fold = [one, *outputs], sorted(fold, key=lambda tile: tile != one)
        return paired_heads(shape, outputs, fold)


METHOD = ReplayVerify()
