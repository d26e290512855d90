"""ReplaySSM decode for Gated DeltaNet: output and correction from the checkpoint and the replay buffer.

A record is (g, u, k): log decay in FP32, the correction u = β (v − α S k) in FP16, the key as the layer gave it. A step
that does not flush reads S k and S q in one pass, computes its own correction and output without materializing a state,
and appends one record. The step with h + 1 = L folds the buffer and its own token into the checkpoint and stores no
record.

A step is one launch in which a row flushes or does not; cursors belong to heads, as in
:mod:`perfkit.kernels.mamba2.replay_decode`.

Source: paper, Alg. 4, Eq. 3, Eq. 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import replay
from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.gdn import layout
from perfkit.kernels.gdn.replay_parts import saturated
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.products import product_exact
from perfkit.kernels.replay import SMALL_BATCH_HEADS, correction_dtype, ring_slots
from perfkit.kernels.replay_commit import BLOCK, value_blocks
from perfkit.kernels.ring import cursor_h, cursor_origin, cursor_pack, wrap
from perfkit.method import Buffer, Case, Config, Launch


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
def _output_step(
    state_ptr, u_ring_ptr, k_ring, g_ring, cursor_ptr, k_ptr, q_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr, bias_ptr,
    out_ptr, row, slot, first_head, h, origin, n_ring,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Corrections and outputs of HEADS heads of one group, and the token's record. Products of keys once for all."""
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    head = first_head + tl.arange(0, HEADS)
    c = tl.arange(0, D_K)
    j = tl.arange(0, RECORDS)
    at = wrap(origin + j, n_ring)
    here = wrap(origin + h, n_ring)
    scale: tl.constexpr = D_K**-0.5

    k_raw = tl.load(k_ptr + c)
    k_now = k_raw.to(tl.float32)
    q = tl.load(q_ptr + c).to(tl.float32)
    k_now = k_now * inverse_norm(tl.sum(k_now * k_now, axis=0))
    q = q * (inverse_norm(tl.sum(q * q, axis=0)) * scale)
    k = tl.load(k_ring + at[:, None] * (N_K * D_K) + c[None, :], mask=(j < h)[:, None], other=0.0).to(tl.float32)
    inverse = inverse_norm(tl.sum(k * k, axis=1))
    kk = tl.sum(k * k_now[None, :], axis=1) * inverse
    kq = tl.sum(k * q[None, :], axis=1) * inverse
    kq_now = tl.sum(k_now * q, axis=0)
    g, beta = _gates(gate_ptr, beta_ptr, log_ptr, bias_ptr, head)
    alpha = tl.exp(g)
    weight, decay = _record_weights(g_ring, at, j, h, head, N_V)
    key_weight, query_weight = weight * kk[:, None], weight * kq[:, None]  # [records, heads]

    # The record: k once a group, g and the cursor once a head, u with the tiles below.
    if first_head % (N_V // N_K) == 0:
        tl.store(k_ring + here * (N_K * D_K) + c, k_raw)
    tl.store(g_ring + here * N_V + head, g)
    tl.store(cursor_ptr + head, tl.full([HEADS], 0, tl.int32) + cursor_pack(h + 1, origin))

    s_base = state_ptr + (slot * N_V + head)[:, None, None] * (D_V * D_K) + c[None, None, :]
    u_base = u_ring_ptr + (slot * N_V + head)[:, None] * (blocks * BLOCK) * n_ring
    for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
        v = v0 + tl.arange(0, ROWS)
        live = v < D_V
        s = tl.load(s_base + (v * D_K)[None, :, None], mask=live[None, :, None], other=0.0).to(tl.float32)
        tile = u_base + ((v // BLOCK) * n_ring * BLOCK + v % BLOCK)[None, :]  # [HEADS, ROWS]
        u_j = tl.load(tile[None, :, :] + at[:, None, None] * BLOCK,
                      mask=(j < h)[:, None, None] & live[None, None, :], other=0.0).to(tl.float32)  # fmt: skip
        value = tl.load(v_ptr + (head * D_V)[:, None] + v[None, :], mask=live[None, :], other=0.0).to(tl.float32)
        held = decay[:, None] * tl.sum(s * k_now[None, None, :], axis=2) + tl.sum(key_weight[:, :, None] * u_j, axis=0)
        seen = decay[:, None] * tl.sum(s * q[None, None, :], axis=2) + tl.sum(query_weight[:, :, None] * u_j, axis=0)
        u = beta[:, None] * (value - alpha[:, None] * held)
        out = alpha[:, None] * seen + u * kq_now
        tl.store(tile + here * BLOCK, saturated(u, u_ring_ptr.dtype.element_ty), mask=live[None, :])
        tl.store(out_ptr + (head * D_V)[:, None] + v[None, :], out.to(out_ptr.dtype.element_ty), mask=live[None, :])


@triton.jit
def _flush_step(
    state_ptr, u_ring_ptr, k_ring, g_ring, cursor_ptr, k_ptr, q_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr, bias_ptr,
    out_ptr, row, slot, first_head, h, origin, n_ring, d_v, d_k,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, RECORDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fold h records and the current token into HEADS heads' checkpoints.

    A tile is read twice, the second time from L1: its correction needs whole rows of the state, and halves of rows are
    all that fits beside a fold. The loops' bounds are kept from the compiler (d_v and d_k are D_V and D_K at run time):
    unrolled, the loops would take the registers of the rows that do not flush.
    """
    blocks: tl.constexpr = (D_V + BLOCK - 1) // BLOCK
    c = tl.arange(0, D_K)
    j = tl.arange(0, RECORDS)
    at = wrap(origin + j, n_ring)
    scale: tl.constexpr = D_K**-0.5
    k_now = tl.load(k_ptr + c).to(tl.float32)
    k_norm = inverse_norm(tl.sum(k_now * k_now, axis=0))
    q = tl.load(q_ptr + c).to(tl.float32)
    q_norm = inverse_norm(tl.sum(q * q, axis=0)) * scale
    kq_now = tl.sum(k_now * q, axis=0) * (k_norm * q_norm)
    k_at = k_ring + at[:, None] * (N_K * D_K)
    k = tl.load(k_at + c[None, :], mask=(j < h)[:, None], other=0.0).to(tl.float32)
    inverse = inverse_norm(tl.sum(k * k, axis=1))
    kk = tl.sum(k * k_now[None, :], axis=1) * (inverse * k_norm)
    kq = tl.sum(k * q[None, :], axis=1) * (inverse * q_norm)
    for i in tl.range(0, HEADS, num_stages=1):
        head = first_head + i
        one = head + tl.arange(0, 1)
        g, beta = _gates(gate_ptr, beta_ptr, log_ptr, bias_ptr, head)
        alpha = tl.exp(g)
        weights, decays = _record_weights(g_ring, at, j, h, one, N_V)
        weight = tl.sum(weights, axis=1)
        decay = tl.sum(decays, axis=0)
        tl.store(cursor_ptr + head, cursor_pack(0, wrap(origin + h, n_ring)))
        u_base = u_ring_ptr + (slot * N_V + head) * (blocks * BLOCK) * n_ring
        for v0 in tl.range(0, d_v, ROWS, num_stages=1):
            v = v0 + tl.arange(0, ROWS)
            live = v < D_V
            u_at = u_base + ((v // BLOCK)[:, None] * n_ring + at[None, :]) * BLOCK + (v % BLOCK)[:, None]
            u_j = tl.load(u_at, mask=live[:, None] & (j < h)[None, :], other=0.0).to(tl.float32)
            held = tl.sum(u_j * (weight * kk)[None, :], axis=1)
            seen = tl.sum(u_j * (weight * kq)[None, :], axis=1)
            s_row = state_ptr + (slot * N_V + head) * (D_V * D_K) + v[:, None] * D_K
            for c0 in tl.range(0, d_k, COLS, num_stages=1):
                part = c0 + tl.arange(0, COLS)
                s = tl.load(s_row + part[None, :], mask=live[:, None], other=0.0).to(tl.float32)
                held += tl.sum(s * (tl.load(k_ptr + part).to(tl.float32) * (k_norm * decay))[None, :], axis=1)
                seen += tl.sum(s * (tl.load(q_ptr + part).to(tl.float32) * (q_norm * decay))[None, :], axis=1)
            value = tl.load(v_ptr + head * D_V + v, mask=live, other=0.0).to(tl.float32)
            u = beta * (value - alpha * held)
            tl.store(out_ptr + head * D_V + v, (alpha * seen + u * kq_now).to(out_ptr.dtype.element_ty), mask=live)
            folded = u_j * (weight * inverse * alpha)[None, :]
            u = u * k_norm
            for c0 in tl.range(0, d_k, COLS, num_stages=1):
                part = c0 + tl.arange(0, COLS)
                s_ptr = s_row + part[None, :]
                s = tl.load(s_ptr, mask=live[:, None], other=0.0).to(tl.float32)
                k_part = tl.load(k_at + part[None, :], mask=(j < h)[:, None], other=0.0)
                s = s * (decay * alpha) + product_exact(folded, k_part, SPLIT)
                s += u[:, None] * tl.load(k_ptr + part).to(tl.float32)[None, :]
                tl.store(s_ptr, s.to(state_ptr.dtype.element_ty), mask=live[:, None])


@triton.jit(do_not_specialize=["window", "n_ring", "d_v", "d_k"])
def _gdn_replay_decode_kernel(
    state_ptr, u_ring_ptr, k_ring_ptr, g_ring_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, log_ptr,
    bias_ptr, slots_ptr, out_ptr, window, n_ring, d_v, d_k, row_q, row_k, row_v, row_gate, row_beta,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, FOLD_ROWS: tl.constexpr, FOLD_COLS: tl.constexpr, RECORDS: tl.constexpr,
    FOLD_RECORDS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program serves HEADS heads of one row; h + 1 = window makes it flush."""
    pid = tl.program_id(0)
    row = pid // (N_V // HEADS)
    first_head = pid % (N_V // HEADS) * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    cursors = cursor_ptr + slot * N_V
    # The heads of a row agree; a program reads the cursors that it owns and will write.
    cursor = tl.load(cursors + first_head)
    for i in tl.static_range(1, HEADS):
        cursor = tl.maximum(cursor, tl.load(cursors + first_head + i))
    tl.debug_barrier()  # every warp has read the cursor before one of them writes the next one
    h = cursor_h(cursor)
    origin = cursor_origin(cursor)
    row = row.to(tl.int64)
    group = first_head // (N_V // N_K)
    k_ring = k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K
    g_ring = g_ring_ptr + slot * n_ring * N_V
    k_now = k_ptr + row * row_k + group * D_K
    q_now = q_ptr + row * row_q + group * D_K
    v_now = v_ptr + row * row_v
    gate = gate_ptr + row * row_gate
    beta = beta_ptr + row * row_beta
    out = out_ptr + row * (N_V * D_V)
    if h + 1 >= window:
        _flush_step(
            state_ptr, u_ring_ptr, k_ring, g_ring, cursors, k_now, q_now, v_now, gate, beta, log_ptr, bias_ptr, out,
            row, slot, first_head, h, origin, n_ring, d_v, d_k, N_V, N_K, D_V, D_K, SPLIT, HEADS, FOLD_ROWS, FOLD_COLS,
            FOLD_RECORDS,
            BLOCK,
        )  # fmt: skip
    else:
        _output_step(
            state_ptr, u_ring_ptr, k_ring, g_ring, cursors, k_now, q_now, v_now, gate, beta, log_ptr, bias_ptr, out,
            row, slot, first_head, h, origin, n_ring, N_V, N_K, D_V, D_K, HEADS, ROWS, RECORDS, BLOCK, STAGES,
        )  # fmt: skip


class ReplayDecode(replay.ReplayDecode):
    """1R a step, 1R + 1W at a flush, plus the records."""

    family = "gdn"
    source = "paper, Alg. 4, Eq. 8"
    layout = layout
    max_window = 128

    def rounds(self, case: Case) -> str | None:
        """Corrections are kept in FP16, in FP32 where inputs are."""
        return correction_dtype(case)

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, ring and cursors, all of them read and written.

        state [slots, n_v_heads, d_v, d_k] in the state dtype; the records u_ring [slots, n_v_heads, blocks, ring,
        BLOCK], blocks of 16 rows of d_v, in FP16 (FP32 where inputs are), k_ring [slots, ring, n_k_heads, d_k] in the
        input dtype and not normalized, g_ring [slots, ring, n_v_heads] float32, the log decay; cursor [slots,
        n_v_heads] int32. ring = window + draft_len.
        """
        shape, slots, n_ring = case.shape, layout.n_slots(case), ring_slots(case)
        blocks = (slots, shape.n_v_heads, value_blocks(shape), n_ring, BLOCK)
        return {
            "state": layout.state(case),
            "u_ring": Buffer(blocks, self.rounds(case) or "float32", "record"),
            "k_ring": Buffer((slots, n_ring, shape.n_k_heads, shape.d_k), case.input_dtype, "record"),
            "g_ring": Buffer((slots, n_ring, shape.n_v_heads), "float32", "record"),
            "cursor": Buffer((slots, shape.n_v_heads), "int32", "cursor"),
        }

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """One launch, a program per row and ``heads`` heads; commit and flush are inside."""
        shape, t = case.shape, tensors
        records = triton.next_power_of_2(max(case.window or 1, 2))
        inputs = ("q", "k", "v", "gate", "beta")
        yield Launch(
            _gdn_replay_decode_kernel,
            (case.batch * shape.n_v_heads // config["heads"],),
            (t["state"], t["u_ring"], t["k_ring"], t["g_ring"], t["cursor"], *(t[name] for name in inputs), t["a_log"],
             t["dt_bias"], t["slots"], t["out"], case.window, ring_slots(case), shape.d_v, shape.d_k,
             *(t[name].stride(0) for name in inputs)),
            {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k,
             "SPLIT": case.input_dtype == "bfloat16", "HEADS": config["heads"], "ROWS": config["rows"],
             "FOLD_ROWS": config["fold_rows"], "FOLD_COLS": min(config["fold_cols"], shape.d_k), "RECORDS": records,
             "FOLD_RECORDS": max(records, 16),  # the matrix unit's shortest sum
             "BLOCK": BLOCK, "STAGES": config["stages"]},
            {"num_warps": config["warps"], "num_stages": config["stages"]},
        )  # fmt: skip

    def replayed(self, case: Case, tensors: Mapping[str, Any], slots: Any, at: Any, live: Any) -> Any:
        """Return the rows' checkpoints advanced by records (g, u, k). Source: paper, Eq. 5 and 8."""
        return layout.replay_tokens(layout.load_state(tensors), layout.records(case, tensors, slots, at), live)

    def configs(self, case: Case) -> Sequence[Config]:
        """Return heads a program, rows a tile, warps, pipeline stages, and the fold's tile.

        One-warp programs of two heads first, as for Mamba-2; where the batch is small, a program per head with four
        warps has all loads of the step in flight at once.
        """
        shape, window = case.shape, case.window or 1
        tiled: tuple[tuple[int, ...], ...] = ((2, 16, 1, 2, 16, 64), (1, 16, 1, 2, 16, 64))
        wide: tuple[tuple[int, ...], ...] = ((1, 16, 4, 1, 16, 128),)
        if window > 32:
            tiled, wide = ((1, 16, 4, 2, 16, 64),), ((1, 16, 8, 1, 16, 128),)
        elif window > 16:
            tiled = tiled[1:]
        small = case.batch * shape.n_v_heads <= SMALL_BATCH_HEADS
        scale = max(1, shape.d_k // 128)  # a longer state row takes more threads, not more registers
        found = [
            Config.of(heads=heads, rows=rows, warps=warps * scale, stages=stages, fold_rows=fold_rows, fold_cols=cols)
            for heads, rows, warps, stages, fold_rows, cols in ((*wide, *tiled) if small else (*tiled, *wide))
            if shape.heads_per_group % heads == 0
        ]
        return found


METHOD = ReplayDecode()
