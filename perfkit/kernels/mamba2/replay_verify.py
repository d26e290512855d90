"""ReplaySSM verify for Mamba-2: T drafts against checkpoint and buffer; rollback is a cursor that does not move.

A step appends the records of its T positions behind the h committed ones and computes all outputs without a state
(Eq. 6). Rejected records lie beyond h and are overwritten by the next step. A row with h + T > L first folds its h
committed records into the checkpoint: they stay committed whatever the verifier returns, so this needs no acceptance.

A step is one launch, in which a row flushes or does not. What the step before committed is added to the cursors at
the start of the next one, by the programs that own them (:mod:`perfkit.kernels.ring`), so that a chain needs no commit
launch, and a row that sits out keeps its acceptance. A tree's accepted path is gathered to the front by a launch of
its own (:mod:`perfkit.kernels.mamba2.replay_commit`).

Source: paper, Alg. 2, Eq. 6, App. D; the masks of a tree are the ancestors of its nodes instead of all nodes before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from perfkit.kernels import ring
from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.mamba2.replay_commit import commit_bytes, commit_launch
from perfkit.kernels.ring import cursor_h, cursor_origin, cursor_pack, wrap
from perfkit.method import (
    ACCEPTANCE_STEPS,
    Buffer,
    Case,
    Config,
    Launch,
    Method,
    Number,
    Point,
    Step,
    constant_acceptance,
)
from perfkit.roofline.cursor import period
from perfkit.roofline.flops import output_only_verify_flops
from perfkit.roofline.traffic import layer_record_bytes, record_bytes, state_bytes
from perfkit.shape import Shape


@triton.jit
def _product(a, b, SPLIT: tl.constexpr):
    """a·b of an FP32 a and a b in the input dtype; SPLIT: a in two BF16 terms, so that tensor cores err by 2⁻¹⁷."""
    if SPLIT:
        high = a.to(tl.bfloat16)
        low = (a - high.to(tl.float32)).to(tl.bfloat16)
        found = tl.dot(high, b, tl.dot(low, b))
    else:
        found = tl.dot(a, b.to(tl.float32), input_precision="ieee")
    return found


@triton.jit
def _product_right(a, b, acc, SPLIT: tl.constexpr):
    """acc + a·b of an a in the input dtype and an FP32 b."""
    if SPLIT:
        high = b.to(tl.bfloat16)
        low = (b - high.to(tl.float32)).to(tl.bfloat16)
        found = tl.dot(a, high, tl.dot(a, low, acc))
    else:
        found = acc + tl.dot(a.to(tl.float32), b, input_precision="ieee")
    return found


@triton.jit
def _product_exact(a, b, SPLIT: tl.constexpr):
    """a·b of an FP32 a and a b of zeros and ones, to FP32's accuracy: three BF16 terms hold an FP32 number."""
    if SPLIT:
        high = a.to(tl.bfloat16)
        rest = a - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        ones = b.to(tl.bfloat16)
        found = tl.dot(high, ones, tl.dot(middle, ones, tl.dot(low, ones)))
    else:
        found = tl.dot(a, b.to(tl.float32), input_precision="ieee")
    return found


@triton.jit
def _fold_product(a, b, SPLIT: tl.constexpr):
    """a·b of an FP32 a and a b in the input dtype, to FP32's accuracy."""
    if SPLIT:
        high = a.to(tl.bfloat16)
        rest = a - high.to(tl.float32)
        middle = rest.to(tl.bfloat16)
        low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
        found = tl.dot(high, b, tl.dot(middle, b, tl.dot(low, b)))
    else:
        found = tl.dot(a, b.to(tl.float32), input_precision="ieee")
    return found


@triton.jit
def _output_tiles(
    s_base, x_head, x_new, out_head, weight, decay, q, at, j, base, n, first, n_ring, stride_x, stride_out,
    N_V: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr,
    RECORDS: tl.constexpr, POSITIONS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Outputs of one head's positions from the checkpoint: S Q D + X M, tile by tile; the drafts' x into the ring."""
    c = tl.arange(0, D_K)
    p = tl.arange(0, POSITIONS)
    for v0 in tl.range(0, D_V, ROWS, num_stages=STAGES):
        v = v0 + tl.arange(0, ROWS)
        live = v < D_V
        s = tl.load(s_base + v[:, None] * D_K + c[None, :], mask=live[:, None], other=0.0).to(tl.float32)
        x = _records(x_head, x_new, v, live, at, j, base, n, first, n_ring, stride_x, N_V, D_V)
        out = _product(s, q, SPLIT) * decay[None, :]
        out = _product_right(x, weight, out, SPLIT)
        tl.store(out_head + p[None, :] * stride_out + v[:, None], out.to(out_head.dtype.element_ty),
                 mask=live[:, None] & (p < n)[None, :])  # fmt: skip


@triton.jit
def _records(x_head, x_new, v, live, at, j, base, n, first, n_ring, stride_x, N_V: tl.constexpr, D_V: tl.constexpr):
    """x of a tile [rows, records]: committed ones from the ring, drafts from the inputs, and those into the ring."""
    draft = (j >= base) & (j < base + n)
    old = tl.load(x_head + at[None, :] * (N_V * D_V) + v[:, None], mask=live[:, None] & (j < base)[None, :], other=0.0)
    new = tl.load(x_new + (j - base)[None, :] * stride_x + v[:, None], mask=live[:, None] & draft[None, :], other=0.0)
    place = wrap(first + (j - base), n_ring)
    tl.store(x_head + place[None, :] * (N_V * D_V) + v[:, None], new, mask=live[:, None] & draft[None, :])
    return tl.where(draft[None, :], new, old)


@triton.jit
def _flush_tiles(
    s_base, x_head, x_new, k_base, q_base, out_head, weight, decay, fold, fold_decay, at, old_at, j, old_j, h, n,
    first, n_ring, d_v, d_k, stride_x, stride_q, stride_out,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Fold the h committed records into one head's checkpoint; outputs from the new checkpoint and the drafts alone."""
    p = tl.arange(0, POSITIONS)
    for v0 in tl.range(0, d_v, ROWS, num_stages=1):
        v = v0 + tl.arange(0, ROWS)
        live = v < D_V
        old = tl.load(x_head + old_at[None, :] * (N_V * D_V) + v[:, None],
                      mask=live[:, None] & (old_j < h)[None, :], other=0.0)  # fmt: skip
        value = old.to(tl.float32) * fold[None, :]
        out = tl.zeros([ROWS, POSITIONS], tl.float32)
        for c0 in tl.range(0, d_k, COLS, num_stages=1):
            c = c0 + tl.arange(0, COLS)
            s_ptr = s_base + v[:, None] * D_K + c[None, :]
            s = tl.load(s_ptr, mask=live[:, None], other=0.0).to(tl.float32)
            k = tl.load(k_base + old_at[:, None] * (N_K * D_K) + c[None, :], mask=(old_j < h)[:, None], other=0.0)
            q = tl.load(q_base + p[None, :] * stride_q + c[:, None], mask=(p < n)[None, :], other=0.0)
            s = s * fold_decay + _fold_product(value, k, SPLIT)
            tl.store(s_ptr, s.to(s_base.dtype.element_ty), mask=live[:, None])
            out += _product(s, q, SPLIT)
        x = _records(x_head, x_new, v, live, at, j, 0, n, first, n_ring, stride_x, N_V, D_V)
        out = _product_right(x, weight, out * decay[None, :], SPLIT)
        tl.store(out_head + p[None, :] * stride_out + v[:, None], out.to(out_head.dtype.element_ty),
                 mask=live[:, None] & (p < n)[None, :])  # fmt: skip


@triton.jit(do_not_specialize=["window", "n_ring", "d_v", "d_k"])
def _replay_verify_kernel(
    state_ptr, x_ring_ptr, k_ring_ptr, dt_ring_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    slots_ptr, drafts_ptr, took_ptr, ancestors_ptr, out_ptr, window, n_ring, d_v, d_k, row_x, row_k, row_q, row_dt,
    stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, T: tl.constexpr, TREE: tl.constexpr,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, FOLD_ROWS: tl.constexpr, FOLD_COLS: tl.constexpr,
    RECORDS: tl.constexpr, FOLD_RECORDS: tl.constexpr, POSITIONS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A program serves HEADS heads of one row; h + T > window makes it flush."""
    per_group: tl.constexpr = N_V // N_K
    pid = tl.program_id(0)
    row = pid // (N_V // HEADS)
    first_head = pid % (N_V // HEADS) * HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    n = tl.load(drafts_ptr + row)
    took = tl.load(took_ptr + row)
    # The heads of a row agree; a program reads the cursors that it owns and will write.
    cursor = tl.load(cursor_ptr + slot * N_V + first_head)
    for i in tl.static_range(1, HEADS):
        cursor = tl.maximum(cursor, tl.load(cursor_ptr + slot * N_V + first_head + i))
    tl.debug_barrier()  # every warp has read the cursor before one of them writes the next one
    row = row.to(tl.int64)
    group = first_head // per_group
    j = tl.arange(0, RECORDS)
    p = tl.arange(0, POSITIONS)
    c = tl.arange(0, D_K)

    depth = n
    if TREE:
        nodes = tl.arange(0, POSITIONS)
        took = tl.sum((took >> nodes) & 1, axis=0)
        mask_p = tl.load(ancestors_ptr + row * T + p, mask=p < n, other=0)  # ancestors of the nodes
        depth = tl.max(tl.sum((mask_p[None, :] >> nodes[:, None]) & 1, axis=0), axis=0)
    h = cursor_h(cursor) + took
    origin = cursor_origin(cursor)
    flush = h + depth > window
    base = tl.where(flush, 0, h)  # committed records among those that the outputs need
    first = wrap(origin + h, n_ring)  # where the first draft goes
    at = wrap(origin + j, n_ring)
    draft = (j >= base) & (j < base + n)
    # on_path[l, s]: record l is before position s on its path, or s itself; later[j, l]: l comes after j where on one.
    if TREE:
        mask_j = tl.load(ancestors_ptr + row * T + (j - base), mask=draft, other=0)
        is_ancestor = ((mask_p[None, :] >> tl.maximum(j - base, 0)[:, None]) & 1) == 1
        on_path = ((j < base)[:, None] | (draft[:, None] & is_ancestor)) & (p < n)[None, :]
        below = ((mask_j[:, None] >> tl.maximum(j - base, 0)[None, :]) & 1) == 1
        later = tl.where((j >= base)[:, None], (j >= base)[None, :] & (below == 0), j[None, :] > j[:, None])
    else:
        on_path = (j[:, None] <= base + p[None, :]) & (p < n)[None, :]
        later = j[None, :] > j[:, None]

    # Once for all heads of the program: k of all records against q of all positions.
    q_base = q_ptr + row * row_q + group * D_K
    q = tl.load(q_base + p[None, :] * stride_q + c[:, None], mask=(p < n)[None, :], other=0.0)
    k_base = k_ring_ptr + slot * n_ring * (N_K * D_K) + group * D_K
    k_old = tl.load(k_base + at[:, None] * (N_K * D_K) + c[None, :], mask=(j < base)[:, None], other=0.0)
    k_new = tl.load(k_ptr + row * row_k + (j - base)[:, None] * stride_k + group * D_K + c[None, :],
                    mask=draft[:, None], other=0.0)  # fmt: skip
    place = wrap(first + (j - base), n_ring)
    if first_head % per_group == 0:
        tl.store(k_base + place[:, None] * (N_K * D_K) + c[None, :], k_new, mask=draft[:, None])
    k = tl.where(draft[:, None], k_new, k_old)
    if SPLIT:
        kq = tl.dot(k, q)
    else:
        kq = tl.dot(k.to(tl.float32), q.to(tl.float32), input_precision="ieee")

    for i in tl.range(0, HEADS, num_stages=1):
        head = first_head + i
        a = tl.load(a_ptr + head)
        raw = tl.load(dt_ptr + row * row_dt + (j - base) * stride_dt + head, mask=draft, other=0.0).to(tl.float32)
        dt_base = dt_ring_ptr + slot * n_ring * N_V + head
        dt_new = softplus(raw + tl.load(bias_ptr + head))
        dt_old = tl.load(dt_base + at * N_V, mask=j < base, other=0.0)
        tl.store(dt_base + place * N_V, dt_new, mask=draft)
        dt = tl.where(draft, dt_new, dt_old)
        g = dt * a
        # Each exponent is a sum of the g between a record and a position on its path, never a difference of sums.
        exponent = _product_exact(tl.where(later, g[None, :], 0.0), on_path, SPLIT)
        weight = tl.where(on_path, tl.exp(exponent) * dt[:, None] * kq, 0.0)
        weight += tl.where(j[:, None] == base + p[None, :], tl.load(skip_ptr + head), 0.0)
        decay = tl.exp(tl.sum(tl.where(on_path, g[:, None], 0.0), axis=0))
        s_base = state_ptr + (slot * N_V + head) * (D_V * D_K)
        x_head = x_ring_ptr + slot * n_ring * (N_V * D_V) + head * D_V
        x_new = x_ptr + row * row_x + head * D_V
        out_head = out_ptr + row * (T * N_V * D_V) + head * D_V
        if flush:
            old_j = tl.arange(0, FOLD_RECORDS)
            old_at = wrap(origin + old_j, n_ring)
            old_dt = tl.load(dt_base + old_at * N_V, mask=old_j < h, other=0.0)
            old_g = old_dt * a
            fold = old_dt * tl.exp(tl.sum(tl.where(old_j[:, None] > old_j[None, :], old_g[:, None], 0.0), axis=0))
            _flush_tiles(
                s_base, x_head, x_new, k_base, q_base, out_head, weight, decay, fold,
                tl.exp(tl.sum(old_g, axis=0)), at, old_at, j, old_j, h, n, first, n_ring, d_v, d_k, stride_x, stride_q,
                N_V * D_V, N_V, N_K, D_V, D_K, SPLIT, FOLD_ROWS, FOLD_COLS, POSITIONS,
            )  # fmt: skip
        else:
            _output_tiles(
                s_base, x_head, x_new, out_head, weight, decay, q, at, j, base, n, first, n_ring, stride_x, N_V * D_V,
                N_V, D_V, D_K, SPLIT, ROWS, RECORDS, POSITIONS, STAGES,
            )  # fmt: skip
        tl.store(cursor_ptr + slot * N_V + head, cursor_pack(base, tl.where(flush, first, origin)))


#: Longest window: the records of a program's heads are held on chip at once.
MAX_WINDOW = 128


class ReplayVerify(Method):
    """1R a step, 1R + 1W at a flush, plus the records."""

    key = "replay"
    family = "mamba2"
    phase = "verify"
    source = "paper, Alg. 2, Eq. 6"
    windowed = True
    trees = True

    def supports(self, case: Case) -> str | None:
        """Return None, or why not."""
        if case.window is None or not case.depth <= case.window <= MAX_WINDOW:
            return f"window {case.window}: {case.depth} to {MAX_WINDOW}"
        return layout.unsupported_verify(case)

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
        """One launch, a program per row and ``heads`` heads; a tree's accepted path is gathered by one before it."""
        shape, t = case.shape, tensors
        window = case.window or 1
        records = triton.next_power_of_2(max(window - case.depth + case.draft_len, 16))
        values = dict(config.values)
        tree = case.tree is not None
        took = t["path" if tree else "accepted"][step % ACCEPTANCE_STEPS]
        if tree:
            yield commit_launch(case, t, took, ring_slots(case))
        yield Launch(
            _replay_verify_kernel,
            (case.batch * shape.n_v_heads // config["heads"],),
            (t["state"], t["x_ring"], t["k_ring"], t["dt_ring"], t["cursor"], t["x"], t["k"], t["q"], t["dt"], t["a"],
             t["dt_bias"], t["d_skip"], t["slots"], t["drafts"], took, t["ancestors"] if tree else took, t["out"],
             window, ring_slots(case), shape.d_v, shape.d_k, *(t[name].stride(0) for name in ("x", "k", "q", "dt")),
             *(t[name].stride(1) for name in ("x", "k", "q", "dt"))),
            {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k, "T": case.draft_len,
             "TREE": tree, "SPLIT": case.input_dtype == "bfloat16", "HEADS": config["heads"], "ROWS": config["rows"],
             "FOLD_ROWS": config["fold_rows"], "FOLD_COLS": min(config["fold_cols"], shape.d_k), "RECORDS": records,
             "FOLD_RECORDS": max(triton.next_power_of_2(window), 16),
             "POSITIONS": max(triton.next_power_of_2(case.draft_len), 8), "STAGES": config["stages"]},
            {"num_warps": config["warps"], "num_stages": config["stages"]}
            | ({"maxnreg": values["maxnreg"]} if "maxnreg" in values else {}),
        )  # fmt: skip

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Store the checkpoint and empty the ring."""
        layout.store_state(tensors, state)
        slots = tensors["slots"].long()
        live = slots >= 0
        starts = slots.new_zeros(slots.shape) + origin
        tensors["cursor"][slots[live]] = (ring.pack(0) + (starts << 15)).to(tensors["cursor"].dtype)[live, None]

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return Replay(checkpoint, committed records) of every row in float64; zeros for padded rows.

        The h records of the cursor, then the accepted ones of the T behind them. Source: paper, Eq. 5.
        """
        slots = tensors["slots"].long().clamp(min=0)
        cursor = tensors["cursor"][slots][:, 0].long()  # the heads of a row agree
        h, origin = ring.committed_h(cursor), ring.origin_of(cursor)
        n_ring, nodes = ring_slots(case), case.draft_len
        j = cursor.new_tensor(range((case.window or 1) + nodes))[None, :]
        at = (origin[:, None] + j) % n_ring
        accepted = layout.accepted_nodes(tensors, step, nodes)
        pending = (j - h[:, None]).clamp(0, nodes - 1)
        is_draft = (j >= h[:, None]) & (j < h[:, None] + nodes)
        live = (j < h[:, None]) | (is_draft & accepted.gather(1, pending))
        live &= tensors["slots"].ge(0)[:, None]
        cached = {name: tensors[f"{name}_ring"][slots[:, None], at] for name in ("dt", "x", "k")}
        return layout.replay_tokens(tensors, layout.load_state(tensors), cached, live)

    def period(self, case: Case) -> int:
        """A cycle of constant acceptance: h starts at a and is back there after the step that flushes."""
        a = constant_acceptance(case)
        return super().period(case) if a is None else int(period(case.window, case.depth, a))

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count checkpoint, h records read, T written, cursors, inputs and outputs; a tree's gathered path."""
        io = layout.verify_bytes(shape, point)
        cursor = 4 * shape.n_v_heads
        record = layer_record_bytes(shape, point.input_bytes)
        flush = np.asarray(flush, dtype=bool)
        moved = commit_bytes(shape, point)
        elements = shape.state_elements
        write = io.write + cursor + point.draft_len * record + moved + flush * elements * point.state_bytes
        outputs = output_only_verify_flops(shape.d_v, shape.d_k, np.where(flush, 0, h), point.draft_len)
        fold = flush * (2 * np.asarray(h) + 1) * shape.d_v * shape.d_k
        return Step(
            bytes_read=point.batch * (elements * point.read_bytes + io.read + io.row + cursor + h * record) + io.shared,
            bytes_write=point.batch * write,
            flops=point.batch * shape.n_v_heads * (outputs + fold),
            launches=2 if point.tree else 1,
            serial=0,
            shared_read=io.shared,
        )

    def paper(self, shape: Shape, point: Point) -> Step:
        """Count checkpoint and records of a step over a cycle of L / a steps. Source: paper, App. C.5, Eq. 15."""
        heads, a, window = point.batch * shape.n_v_heads, point.accepted, point.window
        size, record = state_bytes(shape, point.state_bytes), record_bytes(shape)
        read = size + record * (window - a) / 2
        write = size * a / window + record * point.draft_len * (1 - a / window)
        flops = output_only_verify_flops(shape.d_v, shape.d_k, (window - a) / 2, point.draft_len)
        return Step(heads * read, heads * write, heads * flops, launches=2 if point.tree else 1, serial=0)

    def configs(self, case: Case) -> Sequence[Config]:
        """Return heads a program, rows a tile, warps, pipeline stages, and the fold's tile."""
        choices = ((2, 16, 1, 2, 16, 64), (4, 16, 1, 2, 16, 64), (2, 16, 1, 3, 16, 64), (1, 16, 1, 2, 16, 64),
                   (2, 32, 2, 2, 32, 64), (2, 64, 4, 2, 64, 64))  # fmt: skip
        return [Config.of(heads=heads, rows=rows, warps=warps, stages=stages, fold_rows=fold_rows, fold_cols=cols)
                for heads, rows, warps, stages, fold_rows, cols in choices
                if case.shape.heads_per_group % heads == 0]  # fmt: skip


def ring_slots(case: Case) -> int:
    """Return the physical length of the ring: L committed records and T drafts."""
    return (case.window or 1) + case.draft_len


METHOD = ReplayVerify()
