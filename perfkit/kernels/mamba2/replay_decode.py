"""ReplaySSM decode for Mamba-2: output from the checkpoint and the replay buffer; write the state once a window.

A step that does not flush computes its outputs without materializing a state (Eq. 14) and appends one record. The
step with h + 1 = L folds the buffer and its own token into the checkpoint, reads its outputs off the new state and
stores no record.

A step is one launch in which a row flushes or does not. Two launches, each compiled for its own work, took 298 µs on
an H200 where this takes 291 (Nemotron-3-Super, B = 256, L = 16): an empty flush launch costs 4 to 5 µs in all steps but
one of a window, while the branch costs the other rows little once a program is one warp. Cursors belong to heads (see
:mod:`perfkit.kernels.ring`), so one CUDA graph serves rows that flush and rows that do not, and nothing is left to
commit.

Source: paper, Alg. 1, Eq. 5, Eq. 14, App. D.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import replay, ring
from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.replay import SMALL_BATCH_HEADS, ring_slots
from perfkit.kernels.ring import cursor_h, cursor_load, cursor_origin, cursor_pack, wrap
from perfkit.method import Buffer, Case, Config, Launch


@triton.jit
def _weights(dt_ring_ptr, head, h, origin, n_ring, dt_now, a, slot, N_V: tl.constexpr, RECORDS: tl.constexpr):
    """Decay weights of the records, dt of the records, and the checkpoint's decay: w_j = γ_{j+1:h+1}, dt_j, γ_{h+1}.

    Shapes [RECORDS, heads], [RECORDS, heads], [heads] for heads = shape of ``head``. Row h of w·dt is the current
    token's; rows above it are 0. Each exponent is the sum of the g = A·dt after its record, never a difference of sums
    or a quotient of products, so that fast heads neither underflow early nor lose digits. The sums are written out as
    a masked reduction: Triton 3.6 cannot lower a scan of a tensor this small.
    """
    j = tl.arange(0, RECORDS)
    base = dt_ring_ptr + slot * n_ring * N_V + head[None, :]
    dt = tl.load(base + wrap(origin + j, n_ring)[:, None] * N_V, mask=(j < h)[:, None], other=0.0)
    dt = tl.where((j == h)[:, None], dt_now[None, :], dt)
    g = dt * a[None, :]
    later = (j[None, :] > j[:, None])[:, :, None]  # [record, record after it, 1]
    exponent = tl.sum(tl.where(later, g[None, :, :], 0.0), axis=1)
    w = tl.where((j <= h)[:, None], tl.exp(exponent), 0.0)
    return w, dt, tl.exp(tl.sum(g, axis=0))


@triton.jit
def _output_step(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    out_ptr, row, slot, first_head, h, origin, n_ring, stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs of HEADS heads of one group by Eq. 14, and the token's record appended. K·q once for all of them.

    The states stream by as tiles [HEADS, ROWS, D_K / COLS, COLS], so that a row is spread over fewer lanes and its sum
    takes fewer exchanges between them. It is one sum over the whole row again: Triton 3.7 takes twice as
    many exchanges where chunks are summed first, and spills at L = 32.
    """
    per_group: tl.constexpr = N_V // N_K
    group = first_head // per_group
    head = first_head + tl.arange(0, HEADS)
    c = tl.arange(0, D_K)
    j = tl.arange(0, RECORDS)
    at = wrap(origin + j, n_ring)
    here = wrap(origin + h, n_ring)

    q = tl.load(q_ptr + row * stride_q + group * D_K + c).to(tl.float32)
    k_now = tl.load(k_ptr + row * stride_k + group * D_K + c)
    a = tl.load(a_ptr + head)
    dt_now = softplus(tl.load(dt_ptr + row * stride_dt + head).to(tl.float32) + tl.load(bias_ptr + head))
    skip = tl.load(skip_ptr + head)
    k_base = k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K
    k = tl.load(k_base + at[:, None] * (N_K * D_K) + c[None, :], mask=(j < h)[:, None], other=0.0).to(tl.float32)
    kq = tl.sum(k * q[None, :], axis=1)
    kq_now = tl.sum(k_now.to(tl.float32) * q, axis=0)
    w, dt, decay = _weights(dt_ring_ptr, head, h, origin, n_ring, dt_now, a, slot, N_V, RECORDS)
    weight = tl.where((j < h)[:, None], w * dt * kq[:, None], 0.0)  # [RECORDS, HEADS]
    now = dt_now * kq_now + skip

    # The record: k once a group, dt and the cursor once a head, x with the tiles below.
    if first_head % per_group == 0:
        tl.store(k_base + here * (N_K * D_K) + c, k_now)
    tl.store(dt_ring_ptr + (slot * n_ring + here) * N_V + head, dt_now)
    tl.store(cursor_ptr + slot * N_V + head, tl.full([HEADS], 0, tl.int32) + cursor_pack(h + 1, origin))

    x_base = x_ring_ptr + slot * n_ring * (N_V * D_V) + (head * D_V)[:, None]
    wide = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    query = tl.reshape(q, [D_K // COLS, COLS])
    s_base = state_ptr + (slot * N_V + head)[:, None, None, None] * (D_V * D_K) + wide[None, None, :, :]
    # The token's own x comes a tile ahead. A program loads too few bytes of it at a time for an asynchronous copy, so
    # the pipeline leaves it out, and each tile would wait for memory.
    r = tl.arange(0, ROWS)
    x_new = x_ptr + row * stride_x + (head * D_V)[:, None]
    x_next = tl.load(x_new + r[None, :], mask=(r < D_V)[None, :], other=0.0)
    for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
        v = v0 + r
        live = v < D_V
        s = tl.load(s_base + (v * D_K)[None, :, None, None], mask=live[None, :, None, None], other=0.0)
        x_j = tl.load(
            x_base[None, :, :] + at[:, None, None] * (N_V * D_V) + v[None, None, :],
            mask=(j < h)[:, None, None] & live[None, None, :], other=0.0,
        )  # fmt: skip
        x_now = x_next
        x_next = tl.load(x_new + (v + ROWS)[None, :], mask=(v + ROWS < D_V)[None, :], other=0.0)
        replayed = tl.sum(weight[:, :, None] * x_j.to(tl.float32), axis=0)  # [HEADS, ROWS]
        terms = tl.reshape(s.to(tl.float32) * query[None, None, :, :], [HEADS, ROWS, D_K])
        out = decay[:, None] * tl.sum(terms, axis=2) + replayed
        out += now[:, None] * x_now.to(tl.float32)
        tl.store(x_base + here * (N_V * D_V) + v[None, :], x_now, mask=live[None, :])
        tl.store(out_ptr + (row * N_V + head)[:, None] * D_V + v[None, :], out.to(out_ptr.dtype.element_ty),
                 mask=live[None, :])  # fmt: skip


@triton.jit
def _flush_step(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    out_ptr, row, slot, first_head, h, origin, n_ring, d_v, d_k, stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, RECORDS: tl.constexpr,
):  # fmt: skip
    """Fold h records and the current token into HEADS heads' checkpoints; read the outputs off the new state.

    The fold is one matrix product a tile. SPLIT (BF16 records): k is exact in BF16, and w·dt·x is split into three
    BF16 terms, so tensor cores add it up to FP32's accuracy. Otherwise FP32 multiply-adds. The loops' bounds are kept
    from the compiler (d_v and d_k are D_V and D_K at run time): unrolled, the loops would take the registers of the
    rows that do not flush.
    """
    group = first_head // (N_V // N_K)
    j = tl.arange(0, RECORDS)
    at = wrap(origin + j, n_ring)
    k_base = k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K + at[:, None] * (N_K * D_K)
    for i in tl.range(0, HEADS, num_stages=1):
        head = first_head + i
        one = head + tl.arange(0, 1)
        a = tl.load(a_ptr + one)
        dt_now = softplus(tl.load(dt_ptr + row * stride_dt + one).to(tl.float32) + tl.load(bias_ptr + one))
        w, dt, decay = _weights(dt_ring_ptr, one, h, origin, n_ring, dt_now, a, slot, N_V, RECORDS)
        weight = tl.sum(w * dt, axis=1)  # [RECORDS]
        decay = tl.sum(decay, axis=0)
        skip = tl.load(skip_ptr + head)
        tl.store(cursor_ptr + slot * N_V + head, cursor_pack(0, wrap(origin + h, n_ring)))
        x_base = x_ring_ptr + slot * n_ring * (N_V * D_V) + head * D_V
        for v0 in tl.range(0, d_v, ROWS, num_stages=1):
            v = v0 + tl.arange(0, ROWS)
            live = v < D_V
            x_now = tl.load(x_ptr + row * stride_x + head * D_V + v, mask=live, other=0.0)
            held = live[:, None] & (j < h)[None, :]
            x = tl.load(x_base + v[:, None] + at[None, :] * (N_V * D_V), mask=held, other=0.0)
            x = tl.where((j == h)[None, :], x_now[:, None], x)
            value = x.to(tl.float32) * weight[None, :]  # [ROWS, RECORDS]
            high = value.to(tl.bfloat16)
            rest = value - high.to(tl.float32)
            middle = rest.to(tl.bfloat16)
            low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
            out = skip * x_now.to(tl.float32)
            for c0 in tl.range(0, d_k, COLS, num_stages=1):
                c = c0 + tl.arange(0, COLS)
                s_ptr = state_ptr + (slot * N_V + head) * (D_V * D_K) + v[:, None] * D_K + c[None, :]
                s = tl.load(s_ptr, mask=live[:, None], other=0.0).to(tl.float32)
                q = tl.load(q_ptr + row * stride_q + group * D_K + c).to(tl.float32)
                k_now = tl.load(k_ptr + row * stride_k + group * D_K + c)
                k = tl.load(k_base + c[None, :], mask=(j < h)[:, None], other=0.0)
                k = tl.where((j == h)[:, None], k_now[None, :], k)
                if SPLIT:
                    fold = tl.dot(high, k, tl.dot(middle, k, tl.dot(low, k)))
                else:
                    fold = tl.dot(value, k.to(tl.float32), input_precision="ieee")
                s = s * decay + fold
                tl.store(s_ptr, s.to(state_ptr.dtype.element_ty), mask=live[:, None])
                out += tl.sum(s * q[None, :], axis=1)
            tl.store(out_ptr + (row * N_V + head) * D_V + v, out.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["window", "n_ring", "d_v", "d_k"])
def _replay_decode_kernel(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    slots_ptr, out_ptr, window, n_ring, d_v, d_k, stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, FOLD_ROWS: tl.constexpr, FOLD_COLS: tl.constexpr,
    RECORDS: tl.constexpr, FOLD_RECORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program serves HEADS heads of one row; h + 1 = window makes it flush."""
    pid = tl.program_id(0)
    row = pid // (N_V // HEADS)
    first_head = pid % (N_V // HEADS) * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    cursor = cursor_load(cursor_ptr + slot * N_V + first_head, HEADS)
    h = cursor_h(cursor)
    origin = cursor_origin(cursor)
    row = row.to(tl.int64)
    if h + 1 >= window:
        _flush_step(
            state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr,
            skip_ptr, out_ptr, row, slot, first_head, h, origin, n_ring, d_v, d_k, stride_x, stride_k, stride_q,
            stride_dt, N_V, N_K, D_V, D_K, SPLIT, HEADS, FOLD_ROWS, FOLD_COLS, FOLD_RECORDS,
        )  # fmt: skip
    else:
        _output_step(
            state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr,
            skip_ptr, out_ptr, row, slot, first_head, h, origin, n_ring, stride_x, stride_k, stride_q, stride_dt,
            N_V, N_K, D_V, D_K, HEADS, ROWS, COLS, RECORDS, STAGES,
        )  # fmt: skip


class ReplayDecode(replay.ReplayDecode):
    """1R a step, 1R + 1W at a flush, plus the records."""

    family = "mamba2"
    source = "paper, Alg. 1, Eq. 14"
    layout = layout
    max_window = 128

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, ring and cursors, all of them read and written.

        state [slots, n_v_heads, d_v, d_k] in the state dtype; the records x_ring [slots, ring, n_v_heads, d_v] and
        k_ring [slots, ring, n_k_heads, d_k] in the input dtype, dt_ring [slots, ring, n_v_heads] float32 after bias and
        softplus; cursor [slots, n_v_heads] int32. ring = window + draft_len.
        """
        shape, slots, n_ring = case.shape, layout.n_slots(case), ring_slots(case)
        return {
            "state": layout.state(case),
            "x_ring": Buffer((slots, n_ring, shape.n_v_heads, shape.d_v), case.input_dtype, "record"),
            "k_ring": Buffer((slots, n_ring, shape.n_k_heads, shape.d_k), case.input_dtype, "record"),
            "dt_ring": Buffer((slots, n_ring, shape.n_v_heads), "float32", "record"),
            "cursor": Buffer((slots, shape.n_v_heads), "int32", "cursor"),
        }

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """One launch, a program per row and ``heads`` heads; commit and flush are inside."""
        shape, t = case.shape, tensors
        records = triton.next_power_of_2(max(case.window or 1, 2))
        values = dict(config.values)
        yield Launch(
            _replay_decode_kernel,
            (case.batch * shape.n_v_heads // config["heads"],),
            (t["state"], t["x_ring"], t["k_ring"], t["dt_ring"], t["cursor"], t["x"], t["k"], t["q"], t["dt"], t["a"],
             t["dt_bias"], t["d_skip"], t["slots"], t["out"], case.window, ring_slots(case), shape.d_v, shape.d_k,
             t["x"].stride(0), t["k"].stride(0), t["q"].stride(0), t["dt"].stride(0)),
            {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k,
             "SPLIT": case.input_dtype == "bfloat16", "HEADS": config["heads"], "ROWS": config["rows"],
             "COLS": columns(case), "FOLD_ROWS": config["fold_rows"],
             "FOLD_COLS": min(config["fold_cols"], shape.d_k), "RECORDS": records,
             "FOLD_RECORDS": max(records, 16),  # the matrix unit's shortest sum
             "STAGES": config["stages"]},
            {"num_warps": config["warps"], "num_stages": config["stages"]}
            | ({"maxnreg": values["maxnreg"]} if "maxnreg" in values else {}),
        )  # fmt: skip

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return Replay(checkpoint, records) of every row in float64; zeros for padded rows. Source: paper, Eq. 5."""
        slots = tensors["slots"].long().clamp(min=0)
        state = layout.load_state(tensors)
        cursor = tensors["cursor"][slots].long()  # [batch, n_v_heads]
        h, origin = ring.committed_h(cursor), ring.origin_of(cursor)
        n_ring, group = ring_slots(case), case.shape.heads_per_group
        a = tensors["a"].double()
        rows = slots.new_tensor(range(len(slots)))[:, None]
        heads = slots.new_tensor(range(case.shape.n_v_heads))[None, :]
        live = tensors["slots"].ge(0)[:, None]
        for j in range(int(h.max())):
            at = (origin + j) % n_ring
            mine = live & (h > j)
            dt = tensors["dt_ring"][slots[:, None], at, heads].double()
            x = tensors["x_ring"][slots[:, None], at, heads].double()
            k = tensors["k_ring"][slots[:, None], at, heads // group].double()
            new = state * (a * dt).exp()[..., None, None] + (dt[..., None] * x)[..., None] * k[..., None, :]
            state = new.where(mine[..., None, None], state)
        return state[rows[:, 0]]

    def configs(self, case: Case) -> Sequence[Config]:
        """Return heads a program, rows a tile, warps, pipeline stages, and the fold's tile.

        One-warp programs first: what a flush needs in registers then costs the other rows least, and a fold of half
        a state row keeps it under 220 registers, without spills, on every GPU. Where the batch is small, a program
        per head with four warps has all loads of the step in flight at once.
        """
        shape, window = case.shape, case.window or 1
        tiled: tuple[tuple[int, ...], ...] = ((2, 16, 1, 2, 16, 64), (2, 16, 2, 2, 16, 64))
        wide: tuple[tuple[int, ...], ...] = ((1, 16, 4, 1, 16, 128), (1, 32, 4, 1, 32, 128))
        if window <= 16:
            tiled += ((2, 16, 1, 2, 16, 128), (4, 16, 1, 2, 16, 64))
        elif window <= 32:
            tiled += ((2, 16, 1, 2, 16, 32),)
        else:
            tiled, wide = ((2, 16, 4, 2, 16, 64), (1, 16, 4, 1, 16, 64)), ((1, 16, 8, 1, 16, 128),)
        small = case.batch * shape.n_v_heads <= SMALL_BATCH_HEADS
        scale = max(1, shape.d_k // 128)  # a longer state row takes more threads, not more registers
        found = [
            Config.of(heads=heads, rows=rows, warps=warps * scale, stages=stages, fold_rows=fold_rows, fold_cols=cols)
            for heads, rows, warps, stages, fold_rows, cols in ((*wide, *tiled) if small else (*tiled, *wide))
            if shape.heads_per_group % heads == 0 and (rows == 16 or shape.d_v % rows == 0)
        ]
        return found or [Config.of(heads=1, rows=16, warps=4 * scale, stages=1, fold_rows=16, fold_cols=64)]


METHOD = ReplayDecode()
