"""ReplaySSM decode for Mamba-2: output from the checkpoint and the replay buffer; write the state once a window.

A step that does not flush computes its outputs without materializing a state (Eq. 14) and appends one record. The
step with h + 1 = L folds the buffer and its own token into the checkpoint, reads its outputs off the new state and
stores no record.

Two shapes of a step, the tuner chooses by batch: two launches, a flush launch whose programs look for rows that flush
and then an output launch that skips those rows, each compiled for its own work; or, where a launch costs more than
registers do, one launch with a branch. Cursors belong to heads (see :mod:`perfkit.kernels.ring`), so either way one
CUDA graph serves rows that flush and rows that do not, and no launch is needed to commit.

Source: paper, Alg. 1, Eq. 5, Eq. 14, App. D.2.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from perfkit.kernels import ring
from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.ring import cursor_flushed, cursor_h, cursor_origin, cursor_pack, wrap
from perfkit.method import Buffer, Case, Config, Launch, Method, Number, Point, Step
from perfkit.roofline.flops import materialized_decode_flops, output_only_decode_flops
from perfkit.roofline.traffic import layer_record_bytes, replay_decode_counts
from perfkit.shape import Shape


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
    HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs of HEADS heads of one group by Eq. 14, and the token's record appended. K·q once for all of them."""
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
    tl.store(cursor_ptr + slot * N_V + head, tl.full([HEADS], 0, tl.int32) + cursor_pack(h + 1, origin, 0))

    x_base = x_ring_ptr + slot * n_ring * (N_V * D_V) + (head * D_V)[:, None]
    s_base = state_ptr + (slot * N_V + head)[:, None, None] * (D_V * D_K) + c[None, None, :]
    for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
        v = v0 + tl.arange(0, ROWS)
        live = v < D_V
        s = tl.load(s_base + (v * D_K)[None, :, None], mask=live[None, :, None], other=0.0)
        x_j = tl.load(
            x_base[None, :, :] + at[:, None, None] * (N_V * D_V) + v[None, None, :],
            mask=(j < h)[:, None, None] & live[None, None, :], other=0.0,
        )  # fmt: skip
        x_now = tl.load(x_ptr + row * stride_x + (head * D_V)[:, None] + v[None, :], mask=live[None, :], other=0.0)
        replayed = tl.sum(weight[:, :, None] * x_j.to(tl.float32), axis=0)  # [HEADS, ROWS]
        out = decay[:, None] * tl.sum(s.to(tl.float32) * q[None, None, :], axis=2) + replayed
        out += now[:, None] * x_now.to(tl.float32)
        tl.store(x_base + here * (N_V * D_V) + v[None, :], x_now, mask=live[None, :])
        tl.store(out_ptr + (row * N_V + head)[:, None] * D_V + v[None, :], out.to(out_ptr.dtype.element_ty),
                 mask=live[None, :])  # fmt: skip


@triton.jit
def _flush_step(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    out_ptr, row, slot, first_head, h, origin, n_ring, stride_x, stride_k, stride_q, stride_dt, FLUSHED: tl.constexpr,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Fold h records and the current token into HEADS heads' checkpoints; read the outputs off the new state.

    The fold is one matrix product a tile. SPLIT (BF16 records): k is exact in BF16, and w·dt·x is split into three
    BF16 terms, so tensor cores add it up to FP32's accuracy. Otherwise FP32 multiply-adds.
    """
    group = first_head // (N_V // N_K)
    c = tl.arange(0, D_K)
    j = tl.arange(0, RECORDS)
    at = wrap(origin + j, n_ring)

    q = tl.load(q_ptr + row * stride_q + group * D_K + c).to(tl.float32)
    k_now = tl.load(k_ptr + row * stride_k + group * D_K + c)
    k = tl.load(
        k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K + at[:, None] * (N_K * D_K) + c[None, :],
        mask=(j < h)[:, None], other=0.0,
    )  # fmt: skip
    k = tl.where((j == h)[:, None], k_now[None, :], k)
    for i in tl.static_range(HEADS):
        head = first_head + i
        one = head + tl.arange(0, 1)
        a = tl.load(a_ptr + one)
        dt_now = softplus(tl.load(dt_ptr + row * stride_dt + one).to(tl.float32) + tl.load(bias_ptr + one))
        w, dt, decay = _weights(dt_ring_ptr, one, h, origin, n_ring, dt_now, a, slot, N_V, RECORDS)
        weight = tl.sum(w * dt, axis=1)  # [RECORDS]
        decay = tl.sum(decay, axis=0)
        skip = tl.load(skip_ptr + head)
        tl.store(cursor_ptr + slot * N_V + head, cursor_pack(0, wrap(origin + h, n_ring), FLUSHED))
        x_base = x_ring_ptr + slot * n_ring * (N_V * D_V) + head * D_V
        s_base = state_ptr + (slot * N_V + head) * (D_V * D_K) + c[None, :]
        for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
            v = v0 + tl.arange(0, ROWS)
            live = v < D_V
            s = tl.load(s_base + v[:, None] * D_K, mask=live[:, None], other=0.0).to(tl.float32)
            x_now = tl.load(x_ptr + row * stride_x + head * D_V + v, mask=live, other=0.0)
            x = tl.load(x_base + v[:, None] + at[None, :] * (N_V * D_V), mask=live[:, None] & (j < h)[None, :], other=0.0)
            x = tl.where((j == h)[None, :], x_now[:, None], x)
            value = x.to(tl.float32) * weight[None, :]  # [ROWS, RECORDS]
            if SPLIT:
                high = value.to(tl.bfloat16)
                rest = value - high.to(tl.float32)
                middle = rest.to(tl.bfloat16)
                low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
                fold = tl.dot(high, k, tl.dot(middle, k, tl.dot(low, k)))
            else:
                fold = tl.dot(value, k.to(tl.float32), input_precision="ieee")
            s = s * decay + fold
            tl.store(s_base + v[:, None] * D_K, s.to(state_ptr.dtype.element_ty), mask=live[:, None])
            out = tl.sum(s * q[None, :], axis=1) + skip * x_now.to(tl.float32)
            tl.store(out_ptr + (row * N_V + head) * D_V + v, out.to(out_ptr.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["n_ring"])
def _replay_output_kernel(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    slots_ptr, out_ptr, n_ring, stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The rows that do not flush; runs after the flush launch and clears the marks that it left."""
    pid = tl.program_id(0)
    row = pid // (N_V // HEADS)
    first_head = pid % (N_V // HEADS) * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    cursor = tl.load(cursor_ptr + slot * N_V + first_head)
    h = cursor_h(cursor)
    origin = cursor_origin(cursor)
    if cursor_flushed(cursor) != 0:
        head = first_head + tl.arange(0, HEADS)
        tl.store(cursor_ptr + slot * N_V + head, tl.full([HEADS], 0, tl.int32) + cursor_pack(h, origin, 0))
        return
    _output_step(
        state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr,
        skip_ptr, out_ptr, row.to(tl.int64), slot, first_head, h, origin, n_ring, stride_x, stride_k, stride_q,
        stride_dt, N_V, N_K, D_V, D_K, HEADS, ROWS, RECORDS, STAGES,
    )  # fmt: skip


@triton.jit(do_not_specialize=["n_rows", "window", "n_ring"])
def _replay_flush_kernel(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    slots_ptr, out_ptr, n_rows, window, n_ring, stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, STAGES: tl.constexpr,
    LANES: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    """The rows that flush. A program serves HEADS heads of every LANES-th row, so a launch that finds none is short:
    it looks at SCAN rows at once."""
    pid = tl.program_id(0)
    first_head = pid // LANES * HEADS
    lane = pid % LANES
    i = tl.arange(0, SCAN)
    for block in range(0, tl.cdiv(n_rows, LANES * SCAN)):
        rows = (block * SCAN + i) * LANES + lane
        slots = tl.load(slots_ptr + rows, mask=rows < n_rows, other=-1).to(tl.int64)
        cursors = tl.load(cursor_ptr + slots * N_V + first_head, mask=slots >= 0, other=0)
        due = (slots >= 0) & (cursor_h(cursors) + 1 >= window)
        rank = tl.sum((due[None, :] & (i[None, :] < i[:, None])).to(tl.int32), axis=1)
        for item in range(0, tl.sum(due.to(tl.int32), axis=0)):
            this = due & (rank == item)
            row = tl.sum(tl.where(this, rows, 0), axis=0)
            slot = tl.sum(tl.where(this, slots, 0), axis=0)
            cursor = tl.sum(tl.where(this, cursors, 0), axis=0)
            _flush_step(
                state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr,
                bias_ptr, skip_ptr, out_ptr, row.to(tl.int64), slot, first_head, cursor_h(cursor),
                cursor_origin(cursor), n_ring, stride_x, stride_k, stride_q, stride_dt, 1,
                N_V, N_K, D_V, D_K, SPLIT, HEADS, ROWS, RECORDS, STAGES,
            )  # fmt: skip


@triton.jit(do_not_specialize=["window", "n_ring"])
def _replay_step_kernel(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    slots_ptr, out_ptr, window, n_ring, stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, RECORDS: tl.constexpr, FOLD_RECORDS: tl.constexpr,
):  # fmt: skip
    """One launch for all rows, with the flush as a branch: for batches whose time is launches, not bytes."""
    pid = tl.program_id(0)
    row = pid // (N_V // HEADS)
    first_head = pid % (N_V // HEADS) * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    cursor = tl.load(cursor_ptr + slot * N_V + first_head)
    h = cursor_h(cursor)
    origin = cursor_origin(cursor)
    row = row.to(tl.int64)
    if h + 1 >= window:
        _flush_step(
            state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr,
            skip_ptr, out_ptr, row, slot, first_head, h, origin, n_ring, stride_x, stride_k, stride_q, stride_dt, 0,
            N_V, N_K, D_V, D_K, SPLIT, HEADS, ROWS, FOLD_RECORDS, 1,
        )  # fmt: skip
    else:
        _output_step(
            state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr,
            skip_ptr, out_ptr, row, slot, first_head, h, origin, n_ring, stride_x, stride_k, stride_q, stride_dt,
            N_V, N_K, D_V, D_K, HEADS, ROWS, RECORDS, 1,
        )  # fmt: skip


#: Longest window: the records of a program's heads are held on chip at once.
MAX_WINDOW = 128


class ReplayDecode(Method):
    """1R a step, 1R + 1W at a flush, plus the records."""

    key = "replay"
    family = "mamba2"
    phase = "decode"
    source = "paper, Alg. 1, Eq. 14"
    windowed = True

    def supports(self, case: Case) -> str | None:
        """Return None, or why not."""
        if case.window is None or not 1 <= case.window <= MAX_WINDOW:
            return f"window {case.window}: 1 to {MAX_WINDOW}"
        return layout.unsupported(case)

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return checkpoint, ring and cursors, all of them read and written.

        state [slots, n_v_heads, d_v, d_k] in the state dtype; the records x_ring [slots, ring, n_v_heads, d_v] and
        k_ring [slots, ring, n_k_heads, d_k] in the input dtype, dt_ring [slots, ring, n_v_heads] float32 after bias and
        softplus; cursor [slots, n_v_heads] int32. ring = window + draft_len.
        """
        shape, slots, n_ring = case.shape, layout.n_slots(case), self.ring_slots(case)
        return {
            "state": layout.state(case),
            "x_ring": Buffer((slots, n_ring, shape.n_v_heads, shape.d_v), case.input_dtype, "record"),
            "k_ring": Buffer((slots, n_ring, shape.n_k_heads, shape.d_k), case.input_dtype, "record"),
            "dt_ring": Buffer((slots, n_ring, shape.n_v_heads), "float32", "record"),
            "cursor": Buffer((slots, shape.n_v_heads), "int32", "cursor"),
        }

    @staticmethod
    def ring_slots(case: Case) -> int:
        """Return the physical length of the ring."""
        return (case.window or 1) + case.draft_len

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """One launch with a branch (``branch=1``), or a flush launch and an output launch."""
        shape, t = case.shape, tensors
        window = case.window or 1
        buffers = (t["state"], t["x_ring"], t["k_ring"], t["dt_ring"], t["cursor"], t["x"], t["k"], t["q"], t["dt"],
                   t["a"], t["dt_bias"], t["d_skip"], t["slots"], t["out"])  # fmt: skip
        strides = (t["x"].stride(0), t["k"].stride(0), t["q"].stride(0), t["dt"].stride(0))
        n_ring = self.ring_slots(case)
        records = triton.next_power_of_2(max(window, 2))
        fold_records = max(records, 16)  # the matrix unit's shortest sum
        dims = {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k}
        split = case.input_dtype == "bfloat16"
        if config["branch"]:
            yield Launch(
                _replay_step_kernel,
                (case.batch * shape.n_v_heads // config["heads"],),
                (*buffers, window, n_ring, *strides),
                {**dims, "SPLIT": split, "HEADS": config["heads"], "ROWS": config["rows"], "RECORDS": records,
                 "FOLD_RECORDS": fold_records},
                {"num_warps": config["warps"], "num_stages": 1},
            )  # fmt: skip
            return
        lanes = min(config["lanes"], triton.next_power_of_2(case.batch))
        yield Launch(
            _replay_flush_kernel,
            (shape.n_v_heads // config["flush_heads"] * lanes,),
            (*buffers, case.batch, window, n_ring, *strides),
            {**dims, "SPLIT": split, "HEADS": config["flush_heads"], "ROWS": config["flush_rows"],
             "RECORDS": fold_records, "STAGES": config["flush_stages"], "LANES": lanes, "SCAN": 16},
            {"num_warps": config["flush_warps"], "num_stages": config["flush_stages"]},
        )  # fmt: skip
        yield Launch(
            _replay_output_kernel,
            (case.batch * shape.n_v_heads // config["heads"],),
            (*buffers, n_ring, *strides),
            {**dims, "HEADS": config["heads"], "ROWS": config["rows"], "RECORDS": records, "STAGES": config["stages"]},
            {"num_warps": config["warps"], "num_stages": config["stages"]},
        )

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Store the checkpoint and empty the ring."""
        layout.store_state(tensors, state)
        slots = tensors["slots"].long()
        live = slots >= 0
        starts = slots.new_zeros(slots.shape) + origin
        tensors["cursor"][slots[live]] = (ring.pack(0) + (starts << 15)).to(tensors["cursor"].dtype)[live, None]

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return Replay(checkpoint, records) of every row in float64; zeros for padded rows. Source: paper, Eq. 5."""
        slots = tensors["slots"].long().clamp(min=0)
        state = layout.load_state(tensors)
        cursor = tensors["cursor"][slots].long()  # [batch, n_v_heads]
        h, origin = ring.committed_h(cursor), ring.origin_of(cursor)
        n_ring, group = self.ring_slots(case), case.shape.heads_per_group
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

    def period(self, case: Case) -> int:
        """L steps bring h back; the ring's origin need not come back, since no time depends on it."""
        return case.window or 1

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count checkpoint, records, cursors, and the token's inputs and output."""
        token = layout.token_bytes(shape, point)
        elements = shape.state_elements
        cursor = 4 * shape.n_v_heads
        record = layer_record_bytes(shape, point.input_bytes)
        flush = np.asarray(flush, dtype=bool)
        output = output_only_decode_flops(shape.d_v, shape.d_k, h)
        fold = materialized_decode_flops(shape.d_v, shape.d_k, h)
        write = token.write + cursor + np.where(flush, elements * point.state_bytes, record)
        return Step(
            bytes_read=point.batch * (elements * point.read_bytes + token.read + cursor + h * record) + token.shared,
            bytes_write=point.batch * write,
            flops=point.batch * shape.n_v_heads * np.where(flush, fold, output),
            launches=np.where(np.asarray(point.batch) * shape.n_v_heads > BRANCH_PROGRAMS, 2, 1),
            shared_read=token.shared,
        )

    def paper(self, shape: Shape, point: Point) -> Step:
        """Count checkpoint and records of a step, amortized over a window. Source: paper, Eq. 13."""
        heads = point.batch * shape.n_v_heads
        counts = replay_decode_counts(shape, point.window, point.state_bytes)
        h = (point.window - 1) / 2
        flops = heads * output_only_decode_flops(shape.d_v, shape.d_k, h)
        return Step(heads * counts.bytes_read, heads * counts.bytes_write, flops)

    def configs(self, case: Case) -> Sequence[Config]:
        """Return tiles and warps of both launches, and of the branch where the batch is small."""
        group = case.shape.heads_per_group
        out = ((4, 16, 4, 3), (1, 16, 1, 2), (2, 16, 2, 2), (1, 16, 1, 1), (2, 32, 4, 2))
        fold = ((32, 4, 1), (16, 4, 1), (16, 2, 1), (64, 4, 1))
        branch = [
            Config.of(branch=1, heads=heads, rows=rows, warps=warps)
            for heads, rows, warps in ((1, 16, 4), (1, 32, 4), (1, 16, 2))
        ]
        two = [
            Config.of(branch=0, heads=heads, rows=rows, warps=warps, stages=stages, flush_heads=1, flush_rows=f_rows,
                      flush_warps=f_warps, flush_stages=f_stages, lanes=16)
            for heads, rows, warps, stages in out
            for f_rows, f_warps, f_stages in fold
            if group % heads == 0
        ]  # fmt: skip
        if case.batch * case.shape.n_v_heads <= BRANCH_PROGRAMS:
            return branch + two[:2]
        return two


#: Up to this many rows times heads, one launch with a branch is the default.
BRANCH_PROGRAMS = 512

METHOD = ReplayDecode()
