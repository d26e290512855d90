"""ReplaySSM decode for Kimi Delta Attention: output and correction from the checkpoint and the replay buffer.

A record is (g, u, k): the log decays of all channels in FP32, the correction u = β (v − S (α ⊙ k)) in FP16, the key as
the layer gave it. A step that does not flush reads S times the decayed key and query in one pass, computes its own
correction and output without materializing a state, and appends one record. The step with h + 1 = L folds the buffer
and its own token into the checkpoint and stores no record.

With G the sums of log decays, record j and the key of this step meet as Σ_c k_jc e^{(g_{j+1} + … + g_h)_c} α_c k_c.
The exponents are formed as sums from behind record j onward, never as differences of sums, and are at most 0: nothing
overflows, and what underflows has decayed. They are a product of g with zeros and ones, which the matrix unit takes. As
this happens once a head, and keys are shared by no heads, a program takes one head.

The fold is one product of the corrections with the decayed keys. On tensor cores the corrections are FP16 as they are,
and the keys, of length 1 and decayed, two FP16 terms. Lifted by a power of two, the two together hold 22 bits of a key
down to where it no longer counts beside others of its channel. The current token is added in FP32.

Launches, marks and the loop over tiles are as in :mod:`perfkit.kernels.gdn.replay_decode`.

Source: arXiv 2510.26692; paper, Alg. 4, Eq. 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import replay
from perfkit.kernels.delta_replay import DeltaReplay
from perfkit.kernels.flushing import SCAN, decode_ranks, fold_programs, how_many, ranked
from perfkit.kernels.following import close_pair, follow, let_follow
from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.gdn.replay_decode import tile_times
from perfkit.kernels.gdn.replay_parts import corrections_times, saturated
from perfkit.kernels.kda import layout
from perfkit.kernels.kda.replay_parts import decayed_records
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
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
def _token(k_ptr, q_ptr, gate_ptr, bias_ptr, log_ptr, c):
    """Channels c of a head's key as it came and in FP32, of its query, and g = log α."""
    k = tl.load(k_ptr + c)
    raw = tl.load(gate_ptr + c).to(tl.float32)
    g = -tl.exp(tl.load(log_ptr)) * softplus(raw + tl.load(bias_ptr + c))
    return k, k.to(tl.float32), tl.load(q_ptr + c).to(tl.float32), g


@triton.jit(noinline=True)  # in a loop over pieces, what holds for all of them would take its registers
def _fold(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr,
    bias_ptr, slots_ptr, out_ptr, row, piece, n_ring, row_q, row_k, row_v, row_gate, row_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs of one head of a row, and h records and the current token folded into its checkpoint."""
    head = piece % N_HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    unit = slot * N_HEADS + head
    cursor = cursor_load(cursor_ptr + unit, 1)
    h = cursor_h(cursor)
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    tl.store(cursor_ptr + unit, cursor_with_mark(cursor_pack(0, wrap(origin + h, n_ring))))
    k_ring = k_ring_ptr + unit * n_ring * D_K
    g_ring = g_ring_ptr + unit * n_ring * D_K
    u_ring = u_ring_ptr + unit * n_ring * D_V
    state = state_ptr + unit * (D_V * D_K)
    v_new = v_ptr + row * row_v + head * D_V
    out = out_ptr + (row * N_HEADS + head) * D_V
    scale: tl.constexpr = D_K**-0.5
    c = tl.arange(0, D_K)
    j = tl.arange(0, RECORDS)
    at = wrap(origin + j, n_ring)
    beta = sigmoid(tl.load(beta_ptr + row * row_beta + head).to(tl.float32))
    _k_raw, k_now, q, g = _token(
        k_ptr + row * row_k + head * D_K, q_ptr + row * row_q + head * D_K, gate_ptr + row * row_gate + head * D_K,
        bias_ptr + head * D_K, log_ptr + head, c,
    )  # fmt: skip
    k_now = k_now * inverse_norm(tl.sum(k_now * k_now, axis=0))
    q = q * (inverse_norm(tl.sum(q * q, axis=0)) * scale)
    kq_now = tl.sum(k_now * q, axis=0)

    keys, squares, g_sum = decayed_records(k_ring, g_ring, at, j, h, 0, D_K, D_K, SPLIT)
    keys = keys * tl.exp(g)[None, :]  # decayed by the current token too
    inverse = inverse_norm(squares)
    kk = tl.sum(keys * k_now[None, :], axis=1) * inverse
    kq = tl.sum(keys * q[None, :], axis=1) * inverse
    keys = keys * inverse[:, None]
    chunks: tl.constexpr = D_K // COLS
    key, query = tl.reshape(k_now, [chunks, COLS]), tl.reshape(q, [chunks, COLS])
    decay = tl.reshape(tl.exp(g_sum + g), [chunks, COLS])
    wide = tl.arange(0, chunks)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    r = tl.arange(0, ROWS)
    coming = tl.load(v_new + r, mask=r < D_V, other=0.0)
    for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
        v = v0 + r
        live = v < D_V
        value = coming.to(tl.float32)
        coming = tl.load(v_new + v + ROWS, mask=v + ROWS < D_V, other=0.0)
        s = tl.load(state + v[:, None, None] * D_K + wide[None, :, :], mask=live[:, None, None], other=0.0)
        s = s.to(tl.float32) * decay[None, :, :]
        u_j = tl.load(u_ring + at[None, :] * D_V + v[:, None], mask=live[:, None] & (j < h)[None, :], other=0.0)
        u_wide = u_j.to(tl.float32)
        held = tile_times(s, key) + tl.sum(u_wide * kk[None, :], axis=1)
        seen = tile_times(s, query) + tl.sum(u_wide * kq[None, :], axis=1)
        u = beta * (value - held)
        tl.store(out + v, (seen + u * kq_now).to(out_ptr.dtype.element_ty), mask=live)
        new = tl.reshape(s, [ROWS, D_K]) + corrections_times(u_j, keys, u_j.dtype == tl.float16)
        new += u[:, None] * k_now[None, :]
        tl.store(state + v[:, None] * D_K + c[None, :], new.to(state_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit(do_not_specialize=["batch", "programs", "window", "n_ring"])
def _kda_replay_decode_flush_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, row_cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
    log_ptr, bias_ptr, slots_ptr, out_ptr, batch, programs, window, n_ring, row_q, row_k, row_v, row_gate, row_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr, SCAN: tl.constexpr,
    FOLLOWED: tl.constexpr,
):  # fmt: skip
    """Rows with h + 1 = window: outputs, and h records and the current token folded into one head's checkpoint."""
    let_follow(FOLLOWED)
    pid = tl.program_id(0)
    some = pid // programs * SCAN + tl.arange(0, SCAN)
    ranks = decode_ranks(slots_ptr, row_cursor_ptr, some, batch, window)
    for piece in tl.range(pid % programs, how_many(ranks) * N_HEADS, programs, num_stages=1):
        row = ranked(ranks, some, piece // N_HEADS + 1)
        _fold(
            state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
            log_ptr, bias_ptr, slots_ptr, out_ptr, row, piece, n_ring, row_q, row_k, row_v, row_gate, row_beta,
            N_HEADS, D_V, D_K, SPLIT, ROWS, COLS, RECORDS, STAGES,
        )  # fmt: skip


@triton.jit(do_not_specialize=["n_ring"])
def _kda_replay_decode_output_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, row_cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
    log_ptr, bias_ptr, slots_ptr, out_ptr, n_ring, row_q, row_k, row_v, row_gate, row_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr, WIDTH: tl.constexpr,
    FOLLOWS: tl.constexpr,
):  # fmt: skip
    """Rows that did not flush: correction and output of one head, and the token's record."""
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
    state = state_ptr + unit * (D_V * D_K)
    h = cursor_h(cursor)
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    here = wrap(origin + h, n_ring)
    k_ring = k_ring_ptr + unit * n_ring * D_K
    g_ring = g_ring_ptr + unit * n_ring * D_K
    u_ring = u_ring_ptr + unit * n_ring * D_V
    v_new = v_ptr + row * row_v + head * D_V
    out = out_ptr + (row * N_HEADS + head) * D_V
    k_new = k_ptr + row * row_k + head * D_K
    q_new = q_ptr + row * row_q + head * D_K
    gates = gate_ptr + row * row_gate + head * D_K
    bias = bias_ptr + head * D_K
    scale: tl.constexpr = D_K**-0.5
    c = tl.arange(0, D_K)
    j = tl.arange(0, RECORDS)
    at = wrap(origin + j, n_ring)
    beta = sigmoid(tl.load(beta_ptr + row * row_beta + head).to(tl.float32))
    k_raw, k_now, q, g = _token(k_new, q_new, gates, bias, log_ptr + head, c)
    k_norm = inverse_norm(tl.sum(k_now * k_now, axis=0))
    q_norm = inverse_norm(tl.sum(q * q, axis=0)) * scale
    kq_now = tl.sum(k_now * q, axis=0) * (k_norm * q_norm)

    # The record, but for u, which goes with the tiles below.
    cursor_keep(cursor_ptr, row_cursor_ptr, slot, head, cursor_pack(h + 1, origin), N_HEADS, 1)
    tl.store(k_ring + here * D_K + c, k_raw)
    tl.store(g_ring + here * D_K + c, g)
    g_sum = tl.sum(tl.load(g_ring + at[:, None] * D_K + c[None, :], mask=(j < h)[:, None], other=0.0), axis=0)
    decay = tl.exp(g_sum + g)
    chunks: tl.constexpr = D_K // COLS
    key = tl.reshape(k_now * (decay * k_norm), [chunks, COLS])
    query = tl.reshape(q * (decay * q_norm), [chunks, COLS])
    # Products of records, WIDTH channels at a time: all at once would take more registers than the tiles below.
    kk = tl.zeros([RECORDS], tl.float32)
    kq = tl.zeros([RECORDS], tl.float32)
    squares = tl.zeros([RECORDS], tl.float32)
    for part in tl.static_range(0, D_K // WIDTH):
        some = part * WIDTH + tl.arange(0, WIDTH)
        keys, more, _ = decayed_records(k_ring, g_ring, at, j, h, part * WIDTH, WIDTH, D_K, SPLIT)
        _k_raw, k_some, q_some, g_some = _token(k_new, q_new, gates, bias, log_ptr + head, some)
        alpha = tl.exp(g_some)
        squares += more
        kk += tl.sum(keys * (k_some * alpha)[None, :], axis=1)
        kq += tl.sum(keys * (q_some * alpha)[None, :], axis=1)
    inverse = inverse_norm(squares)
    kk, kq = kk * (inverse * k_norm), kq * (inverse * q_norm)
    wide = tl.arange(0, chunks)[:, None] * COLS + tl.arange(0, COLS)[None, :]
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
        held = tile_times(s, key) + tl.sum(kk[:, None] * u_j, axis=0)
        seen = tile_times(s, query) + tl.sum(kq[:, None] * u_j, axis=0)
        u = beta * (value - held)
        tl.store(u_ring + here * D_V + v, saturated(u, u_ring_ptr.dtype.element_ty), mask=live)
        tl.store(out + v, (seen + u * kq_now).to(out_ptr.dtype.element_ty), mask=live)


class ReplayDecode(DeltaReplay, replay.ReplayDecode):
    """1R a step, 1R + 1W at a flush, plus the records."""

    family = "kda"
    source = "paper, Alg. 4, Eq. 8; arXiv 2510.26692"
    layout = layout
    max_window = 64
    apart = True

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, ring and cursors, all of them read and written.

        state [slots, n_heads, d_v, d_k] in the state dtype; the records u_ring [slots, n_heads, ring, d_v] in FP16
        (FP32 where inputs are), k_ring [slots, n_heads, ring, d_k] in the input dtype and not normalized, g_ring
        [slots, n_heads, ring, d_k] float32, the log decays; cursor [slots, n_heads] int32, and row_cursor [slots]
        int32, that of the first head. ring = window + draft_len.
        """
        shape, slots, n_ring = case.shape, layout.n_slots(case), ring_slots(case)
        keys = (slots, shape.n_v_heads, n_ring, shape.d_k)
        values = (slots, shape.n_v_heads, n_ring, shape.d_v)
        return {
            "state": layout.state(case),
            "u_ring": Buffer(values, self.rounds(case) or "float32", "record"),
            "k_ring": Buffer(keys, case.input_dtype, "record"),
            "g_ring": Buffer(keys, "float32", "record"),
            "cursor": Buffer((slots, shape.n_v_heads), "int32", "cursor"),
            "row_cursor": Buffer((slots,), "int32", "cursor"),
        }

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Return the flushing launch and that of outputs, both a program per row and head."""
        shape, t = case.shape, tensors
        window, n_ring, units = case.window or 1, ring_slots(case), case.batch * shape.n_v_heads
        pointers = (*self.pointers(t), t["out"])
        strides = self.strides(t, 1)
        constants = {"N_HEADS": shape.n_v_heads, "D_V": shape.d_v, "D_K": shape.d_k,
                     "SPLIT": case.input_dtype == "bfloat16", "COLS": columns(case),
                     "RECORDS": at_least_16(window - 1)}  # fmt: skip
        flush, output = _kda_replay_decode_flush_kernel, _kda_replay_decode_output_kernel
        width = {"WIDTH": min(config["width"], shape.d_k)}
        grid, programs = fold_programs(case, t, config["fold_programs"], shape.n_v_heads)
        first = tiled_launch(
            flush, grid, (*pointers, case.batch, programs, window, n_ring, *strides), constants | {"SCAN": SCAN},
            config, "fold_",
        )  # fmt: skip
        second = tiled_launch(output, units, (*pointers, n_ring, *strides), constants | width, config)
        yield from close_pair(first, second, capability(t))

    def configs(self, case: Case) -> Sequence[Config]:
        """Return rows a tile, warps, stages and a limit of registers, of outputs and of the fold.

        ``fold_programs``: of the fold, that a multiprocessor holds at a time.
        Of outputs ``width`` too, the channels for which records are multiplied at a time. Tiles depend on the window
        and the batch as in :mod:`perfkit.kernels.gdn.replay_decode`.
        """
        window = case.window or 1
        if window <= 17:
            outputs = [tile(16, 1, 3, width=64), tile(8, 1, 5, width=64), tile(16, 1, 3, width=32)]
            folds = [tile(16, 2, 3), tile(16, 4, 2), tile(32, 4, 2)]
        elif window <= 33:
            outputs = [tile(16, 2, 3, width=32), tile(16, 1, 3, width=32), tile(16, 4, 2, width=64)]
            folds = [tile(16, 4, 2), tile(32, 4, 2), tile(16, 8, 2)]
        else:
            outputs = [tile(16, 4, 2, width=32), tile(32, 4, 2, width=32)]
            folds = [tile(16, 4, 2), tile(32, 4, 2)]
        if window <= 33 and case.batch * case.shape.n_v_heads <= SMALL_BATCH_HEADS:
            outputs = [tile(32, 4, 2, width=64), tile(64, 4, 1, width=64), tile(16, 4, 2, width=64), outputs[0]]
            folds = [tile(16, 4, 2), folds[0]]
        return paired(case, outputs, folds)


METHOD = ReplayDecode()
