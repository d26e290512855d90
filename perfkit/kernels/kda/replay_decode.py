"""ReplaySSM decode for Kimi Delta Attention: output and correction from the checkpoint and the replay buffer.

A record is (g, u, k): the log decays of all channels in FP32, the correction u = β (v − S (α ⊙ k)) in FP16, the key as
the layer gave it. A step that does not flush reads S times the decayed key and query in one pass, computes its own
correction and output without materializing a state, and appends one record. The step with h + 1 = L folds the buffer
and its own token into the checkpoint and stores no record.

With G the sums of log decays, record j and the key of this step meet as Σ_c k_jc e^{(g_{j+1} + … + g_h)_c} α_c k_c.
The exponents are formed as sums from behind record j onward, never as differences of sums, and are at most 0: nothing
overflows, and what underflows has decayed. As this happens once a head, and keys are shared by no heads, a program
takes one head. The fold is a loop over records in FP32 multiply-adds, from the latest backward, so that the sums of
decays grow by one record at a time: no padding, no rounding of either factor, and one tile in registers.

A step is one launch in which a row flushes or does not; cursors belong to heads, as in
:mod:`perfkit.kernels.mamba2.replay_decode`.

Source: arXiv 2510.26692; paper, Alg. 4, Eq. 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import replay
from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.gdn.replay_parts import saturated
from perfkit.kernels.kda import layout
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
from perfkit.kernels.replay import SMALL_BATCH_HEADS, correction_dtype, ring_slots
from perfkit.kernels.replay_commit import BLOCK, value_blocks
from perfkit.kernels.ring import cursor_h, cursor_origin, cursor_pack, wrap
from perfkit.method import Buffer, Case, Config, Launch


@triton.jit
def record_products(k_ring, g_ring, origin, n_ring, h, k_now, q, D_K: tl.constexpr, RECORDS: tl.constexpr):
    """Products of the committed records' keys, decayed to now, with k_now and q [records]; Σ g of the channels [d_k].

    Args:
        k_ring, g_ring: of one head, [ring, d_k].
        origin, n_ring, h: where the records lie.
        k_now, q: [d_k], with this step's decays.
        D_K, RECORDS: h is at most RECORDS.
    """
    c = tl.arange(0, D_K)
    j = tl.arange(0, RECORDS)
    at, after = wrap(origin + j, n_ring), wrap(origin + j + 1, n_ring)
    k = tl.load(k_ring + at[:, None] * D_K + c[None, :], mask=(j < h)[:, None], other=0.0).to(tl.float32)
    g_after = tl.load(g_ring + after[:, None] * D_K + c[None, :], mask=(j + 1 < h)[:, None], other=0.0)
    first = tl.load(g_ring + origin * D_K + c, mask=(c < D_K) & (h > 0), other=0.0)
    inverse = inverse_norm(tl.sum(k * k, axis=1))
    k = k * tl.exp(tl.cumsum(g_after, axis=0, reverse=True))
    key = tl.sum(k * k_now[None, :], axis=1) * inverse
    query = tl.sum(k * q[None, :], axis=1) * inverse
    return key, query, first + tl.sum(g_after, axis=0)


@triton.jit
def _fold(
    state_ptr, u_ring, k_ring, g_ring, v_ptr, out_ptr, k_now, g_now, x_k, x_q, decay, beta, kk, kq, kq_now, h, origin,
    n_ring, d_v,
    D_V: tl.constexpr, D_K: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Outputs, and h records and the current token folded into one head's checkpoint.

    d_v is D_V at run time: unrolled, the loop would take the registers of the rows that do not flush.
    """
    c = tl.arange(0, D_K)
    j = tl.arange(0, RECORDS)
    at = wrap(origin + j, n_ring)
    for v0 in tl.range(0, d_v, ROWS, num_stages=1):
        v = v0 + tl.arange(0, ROWS)
        live = v < D_V
        s_ptr = state_ptr + v[:, None] * D_K + c[None, :]
        s = tl.load(s_ptr, mask=live[:, None], other=0.0).to(tl.float32)
        u_at = u_ring + (v // BLOCK) * n_ring * BLOCK + v % BLOCK
        u_j = tl.load(u_at[:, None] + at[None, :] * BLOCK, mask=live[:, None] & (j < h)[None, :], other=0.0)
        u_j = u_j.to(tl.float32)
        held = tl.sum(s * x_k[None, :], axis=1) + tl.sum(u_j * kk[None, :], axis=1)
        seen = tl.sum(s * x_q[None, :], axis=1) + tl.sum(u_j * kq[None, :], axis=1)
        u = beta * (tl.load(v_ptr + v, mask=live, other=0.0).to(tl.float32) - held)
        tl.store(out_ptr + v, (seen + u * kq_now).to(out_ptr.dtype.element_ty), mask=live)
        s = s * decay[None, :] + u[:, None] * k_now[None, :]
        later = g_now
        for i in tl.range(0, h):
            here = wrap(origin + h - 1 - i, n_ring)
            k = tl.load(k_ring + here * D_K + c).to(tl.float32)
            u_i = tl.load(u_at + here * BLOCK, mask=live, other=0.0).to(tl.float32) * inverse_norm(tl.sum(k * k))
            s += u_i[:, None] * (k * tl.exp(later))[None, :]
            later += tl.load(g_ring + here * D_K + c)
        tl.store(s_ptr, s.to(state_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit(do_not_specialize=["window", "n_ring", "d_v"])
def _kda_replay_decode_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr,
    bias_ptr, slots_ptr, out_ptr, window, n_ring, d_v, row_q, row_k, row_v, row_gate, row_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
    FOLD_ROWS: tl.constexpr, RECORDS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program serves a head of one row; h + 1 = window makes it flush."""
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    pid = tl.program_id(0)
    row = pid // N_HEADS
    head = pid % N_HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    unit = slot * N_HEADS + head
    cursor = tl.load(cursor_ptr + unit)
    tl.debug_barrier()  # every warp has read the cursor before one of them writes the next one
    h = cursor_h(cursor)
    origin = cursor_origin(cursor)
    row = row.to(tl.int64)
    k_ring = k_ring_ptr + unit * n_ring * D_K
    g_ring = g_ring_ptr + unit * n_ring * D_K
    u_ring = u_ring_ptr + unit * (blocks * BLOCK) * n_ring
    state = state_ptr + unit * (D_V * D_K)
    v_now = v_ptr + row * row_v + head * D_V
    out = out_ptr + (row * N_HEADS + head) * D_V

    c = tl.arange(0, D_K)
    scale: tl.constexpr = D_K**-0.5
    k_raw = tl.load(k_ptr + row * row_k + head * D_K + c)
    k = k_raw.to(tl.float32)
    q = tl.load(q_ptr + row * row_q + head * D_K + c).to(tl.float32)
    k = k * inverse_norm(tl.sum(k * k, axis=0))
    q = q * (inverse_norm(tl.sum(q * q, axis=0)) * scale)
    kq_now = tl.sum(k * q, axis=0)
    gate = tl.load(gate_ptr + row * row_gate + head * D_K + c).to(tl.float32) + tl.load(bias_ptr + head * D_K + c)
    g = -tl.exp(tl.load(log_ptr + head)) * softplus(gate)
    beta = sigmoid(tl.load(beta_ptr + row * row_beta + head).to(tl.float32))
    alpha = tl.exp(g)
    kk, kq, total = record_products(k_ring, g_ring, origin, n_ring, h, k * alpha, q * alpha, D_K, RECORDS)
    decay = tl.exp(total + g)
    x_k, x_q = k * decay, q * decay
    if h + 1 >= window:
        tl.store(cursor_ptr + unit, cursor_pack(0, wrap(origin + h, n_ring)))
        _fold(state, u_ring, k_ring, g_ring, v_now, out, k, g, x_k, x_q, decay, beta, kk, kq, kq_now, h, origin,
              n_ring, d_v, D_V, D_K, FOLD_ROWS, RECORDS, BLOCK)  # fmt: skip
    else:
        here = wrap(origin + h, n_ring)
        tl.store(cursor_ptr + unit, cursor_pack(h + 1, origin))
        tl.store(k_ring + here * D_K + c, k_raw)
        tl.store(g_ring + here * D_K + c, g)
        j = tl.arange(0, RECORDS)
        at = wrap(origin + j, n_ring)
        wide = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
        key, query = tl.reshape(x_k, [D_K // COLS, COLS]), tl.reshape(x_q, [D_K // COLS, COLS])
        for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
            v = v0 + tl.arange(0, ROWS)
            live = v < D_V
            s = tl.load(state + v[None, :, None] * D_K + wide[:, None, :], mask=live[None, :, None], other=0.0)
            s = s.to(tl.float32)
            u_at = u_ring + (v // BLOCK) * n_ring * BLOCK + v % BLOCK
            u_j = tl.load(u_at[None, :] + at[:, None] * BLOCK, mask=(j < h)[:, None] & live[None, :], other=0.0)
            u_j = u_j.to(tl.float32)
            value = tl.load(v_now + v, mask=live, other=0.0).to(tl.float32)
            held = tl.sum(tl.sum(s * key[:, None, :], axis=0), axis=1) + tl.sum(kk[:, None] * u_j, axis=0)
            seen = tl.sum(tl.sum(s * query[:, None, :], axis=0), axis=1) + tl.sum(kq[:, None] * u_j, axis=0)
            u = beta * (value - held)
            tl.store(u_at + here * BLOCK, saturated(u, u_ring_ptr.dtype.element_ty), mask=live)
            tl.store(out + v, (seen + u * kq_now).to(out_ptr.dtype.element_ty), mask=live)


class ReplayDecode(replay.ReplayDecode):
    """1R a step, 1R + 1W at a flush, plus the records."""

    family = "kda"
    source = "paper, Alg. 4, Eq. 8; arXiv 2510.26692"
    layout = layout
    max_window = 64

    def rounds(self, case: Case) -> str | None:
        """Corrections are kept in FP16, in FP32 where inputs are."""
        return correction_dtype(case)

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
        """One launch, a program per row and head; commit and flush are inside."""
        shape, t = case.shape, tensors
        inputs, limit = ("q", "k", "v", "gate", "beta"), config["maxnreg"]
        yield Launch(
            _kda_replay_decode_kernel,
            (case.batch * shape.n_v_heads,),
            (t["state"], t["u_ring"], t["k_ring"], t["g_ring"], t["cursor"], *(t[name] for name in inputs), t["a_log"],
             t["dt_bias"], t["slots"], t["out"], case.window, ring_slots(case), shape.d_v,
             *(t[name].stride(0) for name in inputs)),
            {"N_HEADS": shape.n_v_heads, "D_V": shape.d_v, "D_K": shape.d_k, "ROWS": config["rows"],
             "COLS": columns(case), "FOLD_ROWS": config["fold_rows"],
             "RECORDS": triton.next_power_of_2(max((case.window or 1) - 1, 2)),
             "BLOCK": BLOCK, "STAGES": config["stages"]},
            {"num_warps": config["warps"], "num_stages": config["stages"]} | ({"maxnreg": limit} if limit else {}),
        )  # fmt: skip

    def replayed(self, case: Case, tensors: Mapping[str, Any], slots: Any, at: Any, live: Any) -> Any:
        """Return the rows' checkpoints advanced by records (g, u, k). Source: paper, Eq. 5 and 8."""
        return layout.replay_tokens(layout.load_state(tensors), layout.records(case, tensors, slots, at), live)

    def configs(self, case: Case) -> Sequence[Config]:
        """Return rows a tile, warps, pipeline stages, the fold's rows and a limit of registers (0: none).

        The limit is what the compiler needs without spills: left alone, it takes more and fewer programs fit.
        """
        window, d_k = case.window or 1, case.shape.d_k
        scale = max(1, d_k // 128)  # a longer state row takes more threads, not more registers
        tiled: tuple[tuple[int, ...], ...]
        tiled = ((32, 4, 2, 16, 128), (32, 4, 3, 32, 128), (16, 4, 2, 16, 128), (16, 2, 2, 16, 0))
        wide: tuple[tuple[int, ...], ...] = ((64, 4, 2, 32, 128), (128, 8, 1, 32, 0))
        if window > 33:
            tiled, wide = ((64, 8, 2, 32, 0),), wide[1:]
        elif window > 17:
            tiled, wide = ((32, 4, 2, 16, 0),), wide[1:]
        small = case.batch * case.shape.n_v_heads <= SMALL_BATCH_HEADS
        return [
            Config.of(rows=rows, warps=warps * scale, stages=stages, fold_rows=fold_rows, maxnreg=limit)
            for rows, warps, stages, fold_rows, limit in ((*wide, *tiled) if small else (*tiled, *wide))
        ]


METHOD = ReplayDecode()
