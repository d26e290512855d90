"""ReplaySSM decode for Gated DeltaNet: output and correction from the checkpoint and the replay buffer.

A record is (g, u, k): log decay in FP32, the correction u = β (v − α S k) in FP16, the key as the layer gave it. A step
that does not flush reads S k and S q in one pass, computes its own correction and output without materializing a state,
and appends one record. The step with h + 1 = L folds the buffer and its own token, as one more record, into the
checkpoint and stores none.

A step is two launches, with cursors and marks as in :mod:`perfkit.kernels.mamba2.replay_verify`: one serves the rows
that flush (:mod:`perfkit.kernels.flushing`), the next the others, and follows it closely
(:mod:`perfkit.kernels.following`). In one kernel with a branch all rows would get the fold's registers, and a third
fewer programs would run at a time. Both stream the state once, a tile of rows at a time: what a program needs beside it
is computed up front, and the values of a tile are loaded one tile ahead. The tiles' own loads are asynchronous, but two
bytes a thread are too few for that, and a loop that waits for a value waits for all of them.

Source: paper, Alg. 4, Eq. 3, Eq. 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import replay
from perfkit.kernels.delta_replay import DeltaReplay
from perfkit.kernels.flushing import SCAN, decode_ranks, fold_programs, how_many, ranked, within
from perfkit.kernels.following import close_pair, follow, let_follow
from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.gdn import layout
from perfkit.kernels.gdn.replay_parts import saturated
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
from perfkit.kernels.products import of_head, product_exact
from perfkit.kernels.replay import (
    SMALL_BATCH_HEADS,
    at_least_16,
    paired,
    ring_slots,
    tile,
    tiled_launch,
)
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
from perfkit.kernels.targets import capability
from perfkit.method import Buffer, Case, Config, Launch


@triton.jit
def tile_times(s, x):
    """Rows of a tile times x [rows], of s [rows, chunks, COLS] and x [chunks, COLS]: chunks first, within a lane."""
    return tl.sum(tl.sum(s * x[None, :, :], axis=1), axis=1)


@triton.jit
def _record_weights(g_ring, at, j, h, head, N_V: tl.constexpr):
    """γ_{j+1:h} of the committed records [records, heads], 0 beyond them, and γ_h [heads]; sums of g, not quotients."""
    g = tl.load(g_ring + at[:, None] * N_V + head[None, :], mask=(j < h)[:, None], other=0.0)
    later = (j[None, :] > j[:, None])[:, :, None]  # [record, record after it, 1]
    exponent = tl.sum(tl.where(later, g[None, :, :], 0.0), axis=1)
    return tl.where((j < h)[:, None], tl.exp(exponent), 0.0), tl.exp(tl.sum(g, axis=0))


@triton.jit
def _gates(gate_ptr, beta_ptr, log_ptr, bias_ptr, head):
    """g = log α and β of heads, from raw inputs."""
    raw = tl.load(gate_ptr + head).to(tl.float32)
    g = -tl.exp(tl.load(log_ptr + head)) * softplus(raw + tl.load(bias_ptr + head))
    return g, sigmoid(tl.load(beta_ptr + head).to(tl.float32))


@triton.jit
def _token(k_ptr, q_ptr, k, c, D_K: tl.constexpr):
    """What a group's heads share of a token and the records' keys k [records, d_k], as the layer gave them.

    Returns the inverse norms of the new key, of the query (with its scale) and of k [records], the products of k with
    the new key and with the query [records], of unit vectors, and that of the new key with the query.
    """
    scale: tl.constexpr = D_K**-0.5
    k_now = tl.load(k_ptr + c).to(tl.float32)
    q = tl.load(q_ptr + c).to(tl.float32)
    k_norm = inverse_norm(tl.sum(k_now * k_now, axis=0))
    q_norm = inverse_norm(tl.sum(q * q, axis=0)) * scale
    inverse = inverse_norm(tl.sum(k * k, axis=1))
    kk = tl.sum(k * k_now[None, :], axis=1) * (inverse * k_norm)
    kq = tl.sum(k * q[None, :], axis=1) * (inverse * q_norm)
    return k_norm, q_norm, inverse, kk, kq, tl.sum(k_now * q, axis=0) * (k_norm * q_norm)


@triton.jit
def _fold_half(s_ptr, s, decay, folded, k, live, SPLIT: tl.constexpr):
    """Store half of a tile's columns: s [rows, chunks, COLS] decayed, plus corrections [rows, records] times k."""
    new = tl.reshape(s, [s.shape[0], k.shape[1]]) * decay + product_exact(folded, k, SPLIT)
    tl.store(s_ptr, new.to(s_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit
def _fold(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr,
    bias_ptr, slots_ptr, out_ptr, row, piece, n_ring, row_q, row_k, row_v, row_gate, row_beta,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs of HEADS heads of a row, and h records and the current token folded into their checkpoints."""
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    pieces: tl.constexpr = N_V // HEADS
    first_head = piece % pieces * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    cursor = cursor_load(cursor_ptr + slot * N_V + first_head, HEADS)
    h = cursor_h(cursor)
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    group = first_head // (N_V // N_K)
    i_head = tl.arange(0, HEADS)
    head = first_head + i_head
    served = cursor_with_mark(cursor_pack(0, wrap(origin + h, n_ring)))
    tl.store(cursor_ptr + slot * N_V + head, tl.full([HEADS], 0, tl.int32) + served)

    j = within(tl.arange(0, RECORDS), h, piece)
    at = wrap(origin + j, n_ring)
    c = tl.arange(0, D_K)
    k_new = k_ptr + row * row_k + group * D_K
    q_new = q_ptr + row * row_q + group * D_K
    k_rows = tl.where(
        j < h, k_ring_ptr + (slot * n_ring + at) * (N_K * D_K) + group * D_K, k_new
    )  # record h: the token
    held_j = (j <= h)[:, None]
    k = tl.load(k_rows[:, None] + c[None, :], mask=held_j, other=0.0).to(tl.float32)
    k_norm, q_norm, inverse, kk, kq, kq_now = _token(k_new, q_new, k, c, D_K)
    g, betas = _gates(gate_ptr + row * row_gate, beta_ptr + row * row_beta, log_ptr, bias_ptr, head)
    alphas = tl.exp(g)
    weights, decays = _record_weights(g_ring_ptr + slot * n_ring * N_V, at, j, h, head, N_V)

    # Half a state row at a time: the matrix unit's factors and sums then take half the registers.
    HALF: tl.constexpr = D_K // 2
    half = tl.arange(0, HALF)
    k0 = tl.load(k_rows[:, None] + half[None, :], mask=held_j, other=0.0)
    k1 = tl.load(k_rows[:, None] + HALF + half[None, :], mask=held_j, other=0.0)
    wide = tl.arange(0, HALF // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    key0, key1 = tl.load(k_new + wide).to(tl.float32), tl.load(k_new + HALF + wide).to(tl.float32)
    query0, query1 = tl.load(q_new + wide).to(tl.float32), tl.load(q_new + HALF + wide).to(tl.float32)

    s_base = state_ptr + (slot * N_V + first_head) * (D_V * D_K)
    u_ring = u_ring_ptr + (slot * N_V + first_head) * n_ring * D_V
    v_new = v_ptr + row * row_v + first_head * D_V
    out_base = out_ptr + (row * N_V + first_head) * D_V
    r = within(tl.arange(0, ROWS), h, piece)
    coming = tl.load(v_new + r, mask=r < D_V, other=0.0)
    for i in tl.range(0, HEADS * tiles, num_stages=STAGES):
        one = i // tiles
        v = i % tiles * ROWS + r
        live = v < D_V
        value = coming.to(tl.float32)
        ahead = (i + 1) % tiles * ROWS + r
        coming = tl.load(v_new + (i + 1) // tiles * D_V + ahead,
                         mask=(ahead < D_V) & (i + 1 < HEADS * tiles), other=0.0)  # fmt: skip
        s_row = s_base + (one * D_V + v) * D_K
        s_at = s_row[:, None, None] + wide[None, :, :]
        s0 = tl.load(s_at, mask=live[:, None, None], other=0.0).to(tl.float32)
        s1 = tl.load(s_at + HALF, mask=live[:, None, None], other=0.0).to(tl.float32)
        u_j = tl.load(u_ring + (one * n_ring + at)[None, :] * D_V + v[:, None],
                      mask=live[:, None] & (j < h)[None, :], other=0.0).to(tl.float32)  # fmt: skip
        mine = i_head == one
        alpha, beta, decay = of_head(alphas, mine), of_head(betas, mine), of_head(decays, mine)
        weight = tl.sum(tl.where(mine[None, :], weights, 0.0), axis=1)
        held = (tile_times(s0, key0) + tile_times(s1, key1)) * (k_norm * decay)
        held += tl.sum(u_j * (weight * kk)[None, :], axis=1)
        seen = (tile_times(s0, query0) + tile_times(s1, query1)) * (q_norm * decay)
        seen += tl.sum(u_j * (weight * kq)[None, :], axis=1)
        u = beta * (value - alpha * held)
        tl.store(out_base + one * D_V + v, (alpha * seen + u * kq_now).to(out_ptr.dtype.element_ty), mask=live)
        folded = tl.where((j < h)[None, :], u_j * (weight * alpha)[None, :],
                          tl.where((j == h)[None, :], u[:, None], 0.0)) * inverse[None, :]  # fmt: skip
        s_ptr = s_row[:, None] + half[None, :]
        _fold_half(s_ptr, s0, decay * alpha, folded, k0, live, SPLIT)
        _fold_half(s_ptr + HALF, s1, decay * alpha, folded, k1, live, SPLIT)


@triton.jit(do_not_specialize=["batch", "programs", "window", "n_ring"])
def _gdn_replay_decode_flush_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, row_cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
    log_ptr, bias_ptr, slots_ptr, out_ptr, batch, programs, window, n_ring, row_q, row_k, row_v, row_gate, row_beta,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr,
    SCAN: tl.constexpr,
    FOLLOWED: tl.constexpr,
):  # fmt: skip
    """Rows with h + 1 = window: outputs, and h records and the current token folded into HEADS heads' checkpoints."""
    pieces: tl.constexpr = N_V // HEADS
    let_follow(FOLLOWED)
    pid = tl.program_id(0)
    some = pid // programs * SCAN + tl.arange(0, SCAN)
    ranks = decode_ranks(slots_ptr, row_cursor_ptr, some, batch, window)
    for piece in tl.range(pid % programs, how_many(ranks) * pieces, programs, num_stages=1):
        row = ranked(ranks, some, piece // pieces + 1)
        _fold(
            state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
            log_ptr, bias_ptr, slots_ptr, out_ptr, row, piece, n_ring, row_q, row_k, row_v, row_gate, row_beta,
            N_V, N_K, D_V, D_K, SPLIT, HEADS, ROWS, COLS, RECORDS, STAGES,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_ring"])
def _gdn_replay_decode_output_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, row_cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
    log_ptr, bias_ptr, slots_ptr, out_ptr, n_ring, row_q, row_k, row_v, row_gate, row_beta,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr,
    FOLLOWS: tl.constexpr,
):  # fmt: skip
    """Rows that did not flush: correction and output of one head, and the token's record."""
    follow(FOLLOWS)
    pid = tl.program_id(0)
    row = pid // N_V
    head = pid % N_V
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    unit = slot * N_V + head
    cursor = cursor_load(cursor_ptr + unit, 1)
    if cursor_marked(cursor):  # the launch before served this row
        cursor_keep(cursor_ptr, row_cursor_ptr, slot, head, cursor_without_mark(cursor), N_V, 1)
        return
    state = state_ptr + unit * (D_V * D_K)
    h = cursor_h(cursor)
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    here = wrap(origin + h, n_ring)
    group = head // (N_V // N_K)
    j = tl.arange(0, RECORDS)
    at = wrap(origin + j, n_ring)
    c = tl.arange(0, D_K)
    k_new = k_ptr + row * row_k + group * D_K
    q_new = q_ptr + row * row_q + group * D_K
    k_ring = k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K
    g_ring = g_ring_ptr + slot * n_ring * N_V + head
    k = tl.load(k_ring + at[:, None] * (N_K * D_K) + c[None, :], mask=(j < h)[:, None], other=0.0).to(tl.float32)
    k_norm, q_norm, _inverse, kk, kq, kq_now = _token(k_new, q_new, k, c, D_K)
    g, beta = _gates(gate_ptr + row * row_gate, beta_ptr + row * row_beta, log_ptr, bias_ptr, head)
    alpha = tl.exp(g)
    weights, decays = _record_weights(g_ring, at, j, h, tl.arange(0, 1), N_V)
    weight, decay = tl.sum(weights, axis=1), tl.sum(decays, axis=0)  # of the one head
    kk, kq = kk * weight, kq * weight

    # The record: k once a group, g and the cursor once a head, u with the tiles below.
    if head % (N_V // N_K) == 0:
        tl.store(k_ring + here * (N_K * D_K) + c, tl.load(k_new + c))
    tl.store(g_ring + here * N_V, g)
    cursor_keep(cursor_ptr, row_cursor_ptr, slot, head, cursor_pack(h + 1, origin), N_V, 1)

    wide = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    key = tl.load(k_new + wide).to(tl.float32) * k_norm
    query = tl.load(q_new + wide).to(tl.float32) * q_norm
    u_ring = u_ring_ptr + unit * n_ring * D_V
    v_new = v_ptr + row * row_v + head * D_V
    out = out_ptr + (row * N_V + head) * D_V
    r = tl.arange(0, ROWS)
    coming = tl.load(v_new + r, mask=r < D_V, other=0.0)
    for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
        v = v0 + r
        live = v < D_V
        value = coming.to(tl.float32)
        coming = tl.load(v_new + v + ROWS, mask=v + ROWS < D_V, other=0.0)
        s = tl.load(state + v[:, None, None] * D_K + wide[None, :, :], mask=live[:, None, None], other=0.0)
        s = s.to(tl.float32)
        u_j = tl.load(u_ring + at[:, None] * D_V + v[None, :], mask=(j < h)[:, None] & live[None, :], other=0.0)
        u_j = u_j.to(tl.float32)
        held = decay * tile_times(s, key) + tl.sum(kk[:, None] * u_j, axis=0)
        seen = decay * tile_times(s, query) + tl.sum(kq[:, None] * u_j, axis=0)
        u = beta * (value - alpha * held)
        tl.store(u_ring + here * D_V + v, saturated(u, u_ring_ptr.dtype.element_ty), mask=live)
        tl.store(out + v, (alpha * seen + u * kq_now).to(out_ptr.dtype.element_ty), mask=live)


class ReplayDecode(DeltaReplay, replay.ReplayDecode):
    """1R a step, 1R + 1W at a flush, plus the records."""

    family = "gdn"
    source = "paper, Alg. 4, Eq. 8"
    layout = layout
    max_window = 128
    apart = True

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, ring and cursors, all of them read and written.

        state [slots, n_v_heads, d_v, d_k] in the state dtype; the records u_ring [slots, n_v_heads, ring, d_v] in FP16
        (FP32 where inputs are), k_ring [slots, ring, n_k_heads, d_k] in the input dtype and not normalized, g_ring
        [slots, ring, n_v_heads] float32, the log decay; cursor [slots, n_v_heads] int32, and row_cursor [slots] int32,
        that of the first head. ring = window + draft_len.
        A step so writes the correction of a head in one piece; blocks of rows, as verify has them, are pieces of 32
        bytes, which cost more than what a flush or an output gains by reading them.
        """
        shape, slots, n_ring = case.shape, layout.n_slots(case), ring_slots(case)
        values = (slots, shape.n_v_heads, n_ring, shape.d_v)
        return {
            "state": layout.state(case),
            "u_ring": Buffer(values, self.rounds(case) or "float32", "record"),
            "k_ring": Buffer((slots, n_ring, shape.n_k_heads, shape.d_k), case.input_dtype, "record"),
            "g_ring": Buffer((slots, n_ring, shape.n_v_heads), "float32", "record"),
            "cursor": Buffer((slots, shape.n_v_heads), "int32", "cursor"),
            "row_cursor": Buffer((slots,), "int32", "cursor"),
        }

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Return the flushing launch, a program per row and ``fold_heads`` heads, and that of outputs, one per head."""
        shape, t = case.shape, tensors
        window, n_ring, units = case.window or 1, ring_slots(case), case.batch * shape.n_v_heads
        pointers = (*self.pointers(t), t["out"])
        strides = self.strides(t, 1)
        constants = {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k}
        grid, programs = fold_programs(case, t, config["fold_programs"], shape.n_v_heads // config["fold_heads"])
        first = tiled_launch(
            _gdn_replay_decode_flush_kernel, grid, (*pointers, case.batch, programs, window, n_ring, *strides),
            {**constants, "SPLIT": case.input_dtype == "bfloat16", "HEADS": config["fold_heads"],
             "COLS": min(columns(case), shape.d_k // 2), "RECORDS": at_least_16(window), "SCAN": SCAN}, config, "fold_",
        )  # fmt: skip
        second = tiled_launch(
            _gdn_replay_decode_output_kernel, units, (*pointers, n_ring, *strides),
            {**constants, "COLS": columns(case), "RECORDS": at_least_16(window - 1)}, config,
        )  # fmt: skip
        yield from close_pair(first, second, capability(t))

    def configs(self, case: Case) -> Sequence[Config]:
        """Return rows a tile, warps, stages and a limit of registers, of outputs and of the fold, and its heads.

        ``fold_programs``: of the fold, that a multiprocessor holds at a time.
        Programs of one warp with three stages keep two tiles of a warp in flight; records of longer windows need the
        registers of more warps. Where the batch is small, a program with four warps has more loads of the step in
        flight at once.
        """
        shape, window = case.shape, case.window or 1
        if window <= 16:
            outputs = [tile(16, 1, 3, 168), tile(16, 1, 2, 168), tile(8, 1, 3, 128), tile(16, 2, 3)]
            folds = [tile(16, 1, 3, heads=4), tile(16, 1, 3, heads=2), tile(16, 2, 3, heads=1)]
        elif window <= 32:
            outputs = [tile(16, 2, 3), tile(16, 1, 3), tile(16, 4, 2)]
            folds = [tile(16, 2, 3, heads=4), tile(16, 2, 3, heads=1), tile(16, 4, 2, heads=1)]
        elif window <= 64:
            outputs = [tile(16, 4, 2), tile(32, 4, 2), tile(16, 8, 2)]
            folds = [tile(16, 4, 2, heads=1), tile(16, 8, 2, heads=1)]
        else:
            outputs = [tile(16, 4, 2), tile(16, 8, 2)]
            folds = [tile(16, 8, 2, heads=1)]
        if window <= 32 and case.batch * shape.n_v_heads <= SMALL_BATCH_HEADS:
            outputs = [tile(16, 4, 2), tile(32, 4, 2), tile(64, 4, 1), outputs[0]]
            folds = [tile(16, 4, 2, heads=1), folds[0]]
        return paired(case, outputs, folds)


METHOD = ReplayDecode()
