"""ReplaySSM verify for Kimi Delta Attention: T drafts against checkpoint and records, in one pass over the state.

With G_h the sums of log decays of the h committed records and G_s those of the drafts up to s, a step needs the
checkpoint times the columns X_s ⊙ e^{G_h + G_s} of its keys and queries. Pivoted at h, records meet these columns as
P_c = (K_c ⊙ e^{G_h − G_j})ᵀ (X ⊙ e^{G_s}); drafts meet each other as Σ_c k_jc e^{(g_{j+1} + … + g_s)_c} x_sc, which is
no product of two matrices and is summed draft by draft. No exponent is above 0. With base = S_h [K | Q] over decayed
columns the rest is Gated DeltaNet's (:mod:`perfkit.kernels.gdn.replay_parts`): corrections U and outputs O of values V

    [U | O] = (V − base_K) M + [0 | base_Q]        M = B (I + A B)⁻¹ [I | P_q]

with A and P_q the drafts' products with later keys and with queries, and M solved for once a head, by substitution. A
flush folds the records first, as in :mod:`perfkit.kernels.kda.replay_decode`, and derives all from the new checkpoint.

Launches, cursors and marks are as in :mod:`perfkit.kernels.gdn.replay_verify`: one launch serves the rows that flush,
the next serves the others. Trees are not served: the drafts' decays are sums along one chain here.

Source: arXiv 2510.26692; paper, Alg. 5, Eq. 9 to 11, App. D.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import replay
from perfkit.kernels.delta_replay import DeltaReplay
from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.gdn.replay_parts import saturated
from perfkit.kernels.kda import layout
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.replay import at_least_16, ring_slots
from perfkit.kernels.replay_commit import BLOCK, value_blocks
from perfkit.kernels.ring import (
    cursor_h,
    cursor_load,
    cursor_marked,
    cursor_origin,
    cursor_pack,
    cursor_with_mark,
    cursor_without_mark,
    wrap,
)
from perfkit.method import (
    ACCEPTANCE_STEPS,
    Buffer,
    Case,
    Config,
    Launch,
)


@triton.jit
def _product(a, b, SPLIT: tl.constexpr):
    """a·b of two FP32 factors; SPLIT: on tensor cores, in two BF16 terms each, without the product of small ones."""
    if SPLIT:
        found = tl.dot(a, b, input_precision="bf16x3")
    else:
        found = tl.dot(a, b, input_precision="ieee")
    return found


@triton.jit
def _prepare(
    k_ring, g_ring, k_base, q_base, gate_base, beta_base, log_ptr, bias_ptr, first, n_ring, n, stride_q, stride_k,
    stride_gate, stride_beta,
    D_K: tl.constexpr, T: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """What both launches compute of the drafts before they stream a state; the drafts' g and k are kept.

    Returns columns x [d_k, COLS] with the drafts' decays, keys first and then queries, and M [COLS, COLS].
    """
    COLS: tl.constexpr = 2 * POSITIONS
    c = tl.arange(0, D_K)
    j = tl.arange(0, COLS)
    scale: tl.constexpr = D_K**-0.5
    rate = -tl.exp(tl.load(log_ptr))
    bias = tl.load(bias_ptr + c)
    k = tl.load(k_base + j[:, None] * stride_k + c[None, :], mask=(j < n)[:, None], other=0.0).to(tl.float32)
    k = k * inverse_norm(tl.sum(k * k, axis=1))[:, None]
    beta = sigmoid(tl.load(beta_base + j * stride_beta, mask=j < n, other=0.0).to(tl.float32))
    x = tl.zeros([D_K, COLS], tl.float32)
    later = tl.zeros([COLS, D_K], tl.float32)  # of draft j: sums of g after j
    total = tl.zeros([D_K], tl.float32)
    m = tl.where(((j[:, None] == j[None, :]) & (j < POSITIONS)[None, :]), 1.0, 0.0)  # [I | P_q]
    depends = tl.zeros([COLS, COLS], tl.float32)  # [s, j]: A_js β_s
    for s in tl.range(0, n):
        raw = tl.load(gate_base + s * stride_gate + c).to(tl.float32)
        g = rate * softplus(raw + bias)
        k_raw = tl.load(k_base + s * stride_k + c)
        query = tl.load(q_base + s * stride_q + c).to(tl.float32)
        key = k_raw.to(tl.float32)
        key = key * inverse_norm(tl.sum(key * key, axis=0))
        query = query * (inverse_norm(tl.sum(query * query, axis=0)) * scale)
        here = wrap(first + s, n_ring)
        tl.store(k_ring + here * D_K + c, k_raw)
        tl.store(g_ring + here * D_K + c, g)
        total += g
        later = tl.where((j < s)[:, None], later + g[None, :], later)
        met = tl.where((j <= s)[:, None], k * tl.exp(later), 0.0)
        with_key = tl.where(j < s, tl.sum(met * key[None, :], axis=1), 0.0)
        with_query = tl.sum(met * query[None, :], axis=1)
        depends = tl.where((j == s)[:, None], (with_key[None, :] * beta[:, None]), depends)
        m = tl.where((j == POSITIONS + s)[None, :], with_query[:, None], m)
        decay = tl.exp(total)
        x = tl.where((j == s)[None, :], (key * decay)[:, None], x)
        x = tl.where((j == POSITIONS + s)[None, :], (query * decay)[:, None], x)
    for t in tl.range(0, T):  # backward: row p of the solution needs the rows after it
        row = T - 1 - t
        of_row = tl.sum(tl.where((j == row)[None, :], depends, 0.0), axis=1)  # [s]
        found = tl.sum(of_row[:, None] * m, axis=0)
        m = tl.where((j == row)[:, None], m - found[None, :], m)
    return x, m * beta[:, None]


@triton.jit
def _decayed(k_ring, g_ring, origin, at, after, old, h, c, D_K: tl.constexpr):
    """Channels c of the committed records' keys, decayed to h [records, c], their squares' sums, and e^{G_h} [c]."""
    k = tl.load(k_ring + at[:, None] * D_K + c[None, :], mask=(old < h)[:, None], other=0.0).to(tl.float32)
    g = tl.load(g_ring + after[:, None] * D_K + c[None, :], mask=(old + 1 < h)[:, None], other=0.0)
    first = tl.load(g_ring + origin * D_K + c, mask=(c < D_K) & (h > 0), other=0.0)
    decayed = k * tl.exp(tl.cumsum(g, axis=0, reverse=True))
    return decayed, tl.sum(k * k, axis=1), tl.exp(first + tl.sum(g, axis=0))


@triton.jit
def _finish(base, v_new, u_tile, out_tile, m, j, n, place, stride_v, v, live,
            N_HEADS: tl.constexpr, D_V: tl.constexpr, POSITIONS: tl.constexpr, BLOCK: tl.constexpr,
            SPLIT: tl.constexpr):  # fmt: skip
    """Corrections and outputs of a tile from S_h times the decayed columns; the corrections go into the ring."""
    key = (j < POSITIONS)[None, :]
    value = tl.load(v_new + j[None, :] * stride_v + v, mask=live & (j < n)[None, :], other=0.0).to(tl.float32)
    found = _product(tl.where(key, value - base, 0.0), m, SPLIT) + tl.where(key, 0.0, base)
    tl.store(u_tile + place[None, :] * BLOCK, saturated(found, u_tile.dtype.element_ty),
             mask=live & (j < n)[None, :])  # fmt: skip
    s = j - POSITIONS
    tl.store(out_tile + s[None, :] * (N_HEADS * D_V) + v, found.to(out_tile.dtype.element_ty),
             mask=live & ((s >= 0) & (s < n))[None, :])  # fmt: skip


@triton.jit(do_not_specialize=["window", "n_ring", "d_v"], do_not_specialize_on_alignment=["took_ptr"])
def _kda_replay_flush_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr,
    bias_ptr, slots_ptr, drafts_ptr, took_ptr, out_ptr, window, n_ring, d_v, row_q, row_k, row_v, row_gate, row_beta,
    stride_q, stride_k, stride_v, stride_gate, stride_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, POSITIONS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Rows with h + T > window: fold the h committed records; corrections and outputs from the new checkpoint."""
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    row = pid // N_HEADS
    head = pid % N_HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    n = tl.load(drafts_ptr + row)
    unit = slot * N_HEADS + head
    cursor = cursor_load(cursor_ptr + unit, 1)
    h = cursor_h(cursor) + tl.load(took_ptr + row)
    if h + n <= window:
        return
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    first = wrap(origin + h, n_ring)
    c = tl.arange(0, D_K)
    j = tl.arange(0, 2 * POSITIONS)
    place = wrap(first + j, n_ring)
    k_ring = k_ring_ptr + unit * n_ring * D_K
    g_ring = g_ring_ptr + unit * n_ring * D_K
    x, m = _prepare(
        k_ring, g_ring, k_ptr + row * row_k + head * D_K, q_ptr + row * row_q + head * D_K,
        gate_ptr + row * row_gate + head * D_K, beta_ptr + row * row_beta + head, log_ptr + head,
        bias_ptr + head * D_K, first, n_ring, n, stride_q, stride_k, stride_gate, stride_beta, D_K, T, POSITIONS,
    )  # fmt: skip
    tl.store(cursor_ptr + unit, cursor_with_mark(cursor_pack(0, first)))
    total = tl.zeros([D_K], tl.float32)
    for i in tl.range(0, h):
        total += tl.load(g_ring + wrap(origin + i, n_ring) * D_K + c)
    decay = tl.exp(total)
    for v0 in tl.range(0, d_v, ROWS, num_stages=1):
        v = v0 + tl.arange(0, ROWS)
        live = (v < D_V)[:, None]
        s_ptr = state_ptr + unit * (D_V * D_K) + v[:, None] * D_K + c[None, :]
        s = tl.load(s_ptr, mask=live, other=0.0).to(tl.float32) * decay[None, :]
        u_at = u_ring_ptr + (unit * blocks + v // BLOCK) * n_ring * BLOCK + v % BLOCK
        later = tl.zeros([D_K], tl.float32)
        for i in tl.range(0, h):
            here = wrap(origin + h - 1 - i, n_ring)
            k = tl.load(k_ring + here * D_K + c).to(tl.float32)
            u = tl.load(u_at + here * BLOCK, mask=v < D_V, other=0.0).to(tl.float32) * inverse_norm(tl.sum(k * k))
            s += u[:, None] * (k * tl.exp(later))[None, :]
            later += tl.load(g_ring + here * D_K + c)
        # Corrections are derived from the checkpoint as it is stored: they make up for its rounding.
        kept = s.to(state_ptr.dtype.element_ty)
        tl.store(s_ptr, kept, mask=live)
        base = _product(kept.to(tl.float32), x, SPLIT)
        _finish(base, v_ptr + row * row_v + head * D_V, u_at[:, None], out_ptr + (row * T * N_HEADS + head) * D_V, m,
                j, n, place, stride_v, v[:, None], live, N_HEADS, D_V, POSITIONS, BLOCK, SPLIT)  # fmt: skip


@triton.jit(do_not_specialize=["n_ring"], do_not_specialize_on_alignment=["took_ptr"])
def _kda_replay_output_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr,
    bias_ptr, slots_ptr, drafts_ptr, took_ptr, out_ptr, n_ring, row_q, row_k, row_v, row_gate, row_beta,
    stride_q, stride_k, stride_v, stride_gate, stride_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, RECORDS: tl.constexpr, POSITIONS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Rows that did not flush: corrections and outputs from the checkpoint and the committed records."""
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    row = pid // N_HEADS
    head = pid % N_HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    unit = slot * N_HEADS + head
    cursor = cursor_load(cursor_ptr + unit, 1)
    if cursor_marked(cursor):  # the launch before served this row
        tl.store(cursor_ptr + unit, cursor_without_mark(cursor))
        return
    n = tl.load(drafts_ptr + row)
    h = cursor_h(cursor) + tl.load(took_ptr + row)
    row = row.to(tl.int64)
    origin = cursor_origin(cursor)
    first = wrap(origin + h, n_ring)
    j = tl.arange(0, 2 * POSITIONS)
    place = wrap(first + j, n_ring)
    k_ring = k_ring_ptr + unit * n_ring * D_K
    g_ring = g_ring_ptr + unit * n_ring * D_K
    x, m = _prepare(
        k_ring, g_ring, k_ptr + row * row_k + head * D_K, q_ptr + row * row_q + head * D_K,
        gate_ptr + row * row_gate + head * D_K, beta_ptr + row * row_beta + head, log_ptr + head,
        bias_ptr + head * D_K, first, n_ring, n, stride_q, stride_k, stride_gate, stride_beta, D_K, T, POSITIONS,
    )  # fmt: skip
    tl.store(cursor_ptr + unit, cursor_pack(h, origin))

    old = tl.arange(0, RECORDS)
    at, after = wrap(origin + old, n_ring), wrap(origin + old + 1, n_ring)
    # Half a state row at a time takes half the registers.
    WIDTH: tl.constexpr = D_K // CHUNKS
    c0 = tl.arange(0, WIDTH)
    c1 = (CHUNKS - 1) * WIDTH + tl.arange(0, WIDTH)
    if CHUNKS == 2:
        x0, x1 = tl.split(tl.permute(tl.reshape(x, [2, WIDTH, 2 * POSITIONS]), [1, 2, 0]))
    else:
        x0 = x
    k0, squares, decay0 = _decayed(k_ring, g_ring, origin, at, after, old, h, c0, D_K)
    products = _product(k0, x0, SPLIT)  # [records, COLS]
    x0 = x0 * decay0[:, None]
    if CHUNKS == 2:
        k1, more, decay1 = _decayed(k_ring, g_ring, origin, at, after, old, h, c1, D_K)
        products += _product(k1, x1, SPLIT)
        squares += more
        x1 = x1 * decay1[:, None]
    products = products * inverse_norm(squares)[:, None]
    for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
        v = v0 + tl.arange(0, ROWS)
        live = (v < D_V)[:, None]
        s_ptr = state_ptr + unit * (D_V * D_K) + v[:, None] * D_K
        s = tl.load(s_ptr + c0[None, :], mask=live, other=0.0)
        u_at = u_ring_ptr + (unit * blocks + v // BLOCK) * n_ring * BLOCK + v % BLOCK
        u_old = tl.load(u_at[:, None] + at[None, :] * BLOCK, mask=live & (old < h)[None, :], other=0.0)
        base = _product(s.to(tl.float32), x0, SPLIT) + _product(u_old.to(tl.float32), products, SPLIT)
        if CHUNKS == 2:
            s = tl.load(s_ptr + c1[None, :], mask=live, other=0.0)
            base += _product(s.to(tl.float32), x1, SPLIT)
        _finish(base, v_ptr + row * row_v + head * D_V, u_at[:, None], out_ptr + (row * T * N_HEADS + head) * D_V, m,
                j, n, place, stride_v, v[:, None], live, N_HEADS, D_V, POSITIONS, BLOCK, SPLIT)  # fmt: skip


class ReplayVerify(DeltaReplay, replay.ReplayVerify):
    """1R a step, 1R + 1W at a flush, plus the records."""

    family = "kda"
    source = "paper, Alg. 5, Eq. 9 to 11; arXiv 2510.26692"
    layout = layout
    max_window = 64

    def supports(self, case: Case) -> str | None:
        """Return None, or why not."""
        if case.tree is not None:
            return "a tree: decays of drafts are sums along one chain here"
        return super().supports(case)

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, ring and cursors, all of them read and written.

        state [slots, n_heads, d_v, d_k] in the state dtype; the records u_ring [slots, n_heads, blocks, ring, BLOCK],
        blocks of 16 rows of d_v, in FP16 (FP32 where inputs are), k_ring [slots, n_heads, ring, d_k] in the input dtype
        and not normalized, g_ring [slots, n_heads, ring, d_k] float32, the log decays; cursor [slots, n_heads] int32.
        ring = window + draft_len.
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
        }

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Return the flushing and the output launch, programs per row and head."""
        shape, t = case.shape, tensors
        window, n_ring = case.window or 1, ring_slots(case)
        pointers = (*self.pointers(t), t["drafts"], t["accepted"][step % ACCEPTANCE_STEPS],
                    t["out"])  # fmt: skip
        strides = self.strides(t, 2)
        constants = {"N_HEADS": shape.n_v_heads, "D_V": shape.d_v, "D_K": shape.d_k, "T": case.draft_len,
                     "SPLIT": case.input_dtype == "bfloat16",
                     "POSITIONS": max(triton.next_power_of_2(case.draft_len), 8), "BLOCK": BLOCK}  # fmt: skip
        grid = (case.batch * shape.n_v_heads,)
        yield Launch(
            _kda_replay_flush_kernel,
            grid,
            (*pointers, window, n_ring, shape.d_v, *strides),
            {**constants, "ROWS": config["fold_rows"]},
            {"num_warps": config["fold_warps"], "num_stages": 1},
        )
        yield Launch(
            _kda_replay_output_kernel,
            grid,
            (*pointers, n_ring, *strides),
            # records of a row that does not flush: one whose step has a single position holds most
            {
                **constants,
                "ROWS": config["rows"],
                "RECORDS": at_least_16(window - 1),
                "STAGES": config["stages"],
                "CHUNKS": 2 if shape.d_k >= 64 else 1,
            },
            {"num_warps": config["warps"], "num_stages": config["stages"]},
        )

    def configs(self, case: Case) -> Sequence[Config]:
        """Return rows a tile, warps and stages of outputs, and rows and warps of the fold."""
        scale = max(1, case.shape.d_k // 128)  # a longer state row takes more threads, not more registers
        choices: tuple[tuple[int, ...], ...] = ((32, 4, 2, 32, 4), (16, 4, 2, 16, 4), (32, 8, 2, 32, 8))
        if case.draft_len > 8 or (case.window or 1) > 17:
            choices = (choices[2], choices[1], (16, 8, 2, 16, 8))
        return [
            Config.of(rows=rows, warps=warps * scale, stages=stages, fold_rows=fold_rows, fold_warps=fold_warps * scale)
            for rows, warps, stages, fold_rows, fold_warps in choices
        ]


METHOD = ReplayVerify()
