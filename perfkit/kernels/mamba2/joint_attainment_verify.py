"""Joint attainment for Mamba-2: no cache of inputs; two rows a request, one of which backtracks while the other drafts.

A request has two states. The *backtracking* row lags a step behind: it holds the state before the last step's tokens.
The *draft* row holds the state after all of them. A step takes two launches. A gather, once the acceptance is known,
copies one of the two into both rows: the backtracking row's, or, where the last step's tokens were all accepted, the
draft row's, which then is the committed state. The joint launch runs both rows: each processes the accepted tokens
again from the last step's inputs (none where all were accepted), and the draft row continues into this step's T
positions and writes their outputs. The chain is at most (T − 1) + T = 2T − 1 updates long, also at a = T.

The layer hands the last step's inputs to the kernel once more, as it does where it processes those tokens again.

Source: paper, App. A.1 (Snakes and Ladders, joint attainment).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.mamba2.reference import PAST, packed_inputs
from perfkit.kernels.mamba2.snapshot_verify import input_strides
from perfkit.method import ACCEPTANCE_STEPS, Buffer, Case, Config, Launch, Method, Number, Point, Step
from perfkit.roofline.flops import conventional_flops
from perfkit.roofline.state_traffic import state_traffic
from perfkit.shape import Shape
from perfkit.tree import MAX_NODES

#: The two rows of a request, dimension 1 of the state.
BACK, DRAFT, ROWS_EACH = 0, 1, 2


# A row of ``accepted`` is aligned at some steps and not at others: one kernel has to serve all.
@triton.jit(do_not_specialize_on_alignment=["accepted_ptr"])
def _joint_gather_kernel(
    state_ptr, last_t_ptr, pending_ptr, slots_ptr, accepted_ptr, N_STATE: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """A program copies TILE elements of a request's state into both rows; the first says how many tokens are left."""
    tiles: tl.constexpr = (N_STATE + TILE - 1) // TILE
    pid = tl.program_id(0)
    row = pid // tiles
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    accepted = tl.load(accepted_ptr + row)
    ended = (accepted > 0) & (accepted == tl.load(last_t_ptr + slot))
    back = state_ptr + slot * (2 * N_STATE)
    at = pid % tiles * TILE + tl.arange(0, TILE)
    values = tl.load(back + ended.to(tl.int32) * N_STATE + at, mask=at < N_STATE, other=0.0)
    tl.store(back + at, values, mask=at < N_STATE)
    tl.store(back + N_STATE + at, values, mask=at < N_STATE)
    tl.store(pending_ptr + slot, tl.where(ended, 0, accepted), mask=pid % tiles == 0)


@triton.jit(do_not_specialize=["n_positions"])
def _joint_verify_kernel(
    state_ptr, last_t_ptr, pending_ptr, past_x_ptr, past_k_ptr, past_dt_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr,
    bias_ptr, skip_ptr, slots_ptr, drafts_ptr, out_ptr, n_positions,
    x_row, x_token, k_row, k_token, q_row, q_token, dt_row, dt_token,
    past_x_row, past_x_token, past_k_row, past_k_token, past_dt_row, past_dt_token,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, MAX: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """A program takes ROWS rows of one head's state in one of the two rows, as [D_K / COLS, ROWS, COLS].

    Neighbours are the same tile of the two rows, which read the same past tokens.
    """
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    drafts = pid % 2  # BACK or DRAFT
    tile = pid // 2 % tiles
    head = pid // (2 * tiles) % N_V
    row = pid // (2 * tiles * N_V)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    n_past = tl.load(pending_ptr + slot)
    n_all = tl.load(drafts_ptr + row)
    n = tl.where(drafts == 1, n_all, 0)
    group = head // (N_V // N_K)
    v = tile * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    live = v < D_V
    row = row.to(tl.int64)
    a, bias, skip = tl.load(a_ptr + head), tl.load(bias_ptr + head), tl.load(skip_ptr + head)

    x_at = x_ptr + row * x_row + head * D_V + v
    k_at = k_ptr + row * k_row + group * D_K + c
    q_at = q_ptr + row * q_row + group * D_K + c
    dt_at = dt_ptr + row * dt_row + head
    out_at = out_ptr + (row * n_positions * N_V + head) * D_V + v
    past_x = past_x_ptr + row * past_x_row + head * D_V + v
    past_k = past_k_ptr + row * past_k_row + group * D_K + c
    past_dt = past_dt_ptr + row * past_dt_row + head
    # The first token of either loop is under way before the state, and the next one's while a loop computes.
    j = tl.arange(0, MAX)
    dts = tl.load(past_dt + j * past_dt_token, mask=j < n_past, other=0.0)
    some = n_past > 0
    dt_again = tl.load(past_dt + (n_past - 1) * past_dt_token, mask=some, other=0.0)
    k_again = tl.load(past_k + (n_past - 1) * past_k_token, mask=some, other=0.0)
    x_again = tl.load(past_x + (n_past - 1) * past_x_token, mask=live & some, other=0.0)
    some = n > 0
    dt, x = tl.load(dt_at, mask=some, other=0.0), tl.load(x_at, mask=live & some, other=0.0)
    k, q = tl.load(k_at, mask=some, other=0.0), tl.load(q_at, mask=some, other=0.0)
    # 64 bits to the slot; what lies within one of its rows fits into 32.
    s_at = state_ptr + ((slot * 2 + drafts) * N_V + head) * (D_V * D_K) + (v[None, :, None] * D_K + c[:, None, :])
    s = tl.load(s_at, mask=live[None, :, None], other=0.0).to(tl.float32)

    # The accepted tokens, the last one first: what decays a token is then the sum of the g after it, and an element
    # costs one multiply-add a token.
    s *= tl.exp(a * tl.sum(tl.where(j < n_past, softplus(dts.to(tl.float32) + bias), 0.0), axis=0))
    later = a * 0.0
    for i in tl.range(0, n_past):
        before = n_past - 2 - i
        more = before >= 0
        dt_next = tl.load(past_dt + before * past_dt_token, mask=more, other=0.0)
        k_next = tl.load(past_k + before * past_k_token, mask=more, other=0.0)
        x_next = tl.load(past_x + before * past_x_token, mask=live & more, other=0.0)
        step = softplus(dt_again.to(tl.float32) + bias)
        s += (tl.exp(later) * step * x_again.to(tl.float32))[None, :, None] * k_again.to(tl.float32)[:, None, :]
        later += a * step
        dt_again, k_again, x_again = dt_next, k_next, x_next

    for t in tl.range(0, n):
        more = t + 1 < n
        k_next = tl.load(k_at + (t + 1) * k_token, mask=more, other=0.0)
        q_next = tl.load(q_at + (t + 1) * q_token, mask=more, other=0.0)
        x_next = tl.load(x_at + (t + 1) * x_token, mask=live & more, other=0.0)
        dt_next = tl.load(dt_at + (t + 1) * dt_token, mask=more, other=0.0)
        step = softplus(dt.to(tl.float32) + bias)
        value = x.to(tl.float32)
        s = s * tl.exp(a * step) + (step * value)[None, :, None] * k.to(tl.float32)[:, None, :]
        out = tl.sum(tl.sum(s * q.to(tl.float32)[:, None, :], axis=0), axis=1) + skip * value
        tl.store(out_at + t * (N_V * D_V), out.to(out_ptr.dtype.element_ty), mask=live)
        k, q, x, dt = k_next, q_next, x_next, dt_next
    tl.store(s_at, s.to(state_ptr.dtype.element_ty), mask=live[None, :, None])
    tl.store(last_t_ptr + slot, n_all, mask=pid % (2 * tiles * N_V) == 0)


class JointAttainmentVerify(Method):
    """3R + 4W of a request's state at every step, whatever was accepted."""

    key = "joint_attainment"
    family = "mamba2"
    phase = "verify"
    source = "paper, App. A.1 (Snakes and Ladders, joint attainment)"

    def supports(self, case: Case) -> str | None:
        """Return None, or why not: drafts must be a chain."""
        if case.tree is not None:
            return "draft trees: the draft row holds the state after one path"
        return layout.unsupported_verify(case)

    def buffers(self, case: Case) -> dict[str, Buffer]:
        """Return the states, two counts, and the inputs of the step before.

        Read and written: state [slots, 2, n_v_heads, d_v, d_k] in the state dtype, backtracking and draft row; last_t
        [slots] int32, positions of the last step; pending [slots] int32, accepted tokens that the joint launch has to
        process, scratch between the launches of a step. Read: past_x, past_k and past_dt of :func:`packed_inputs`, by
        row of the batch (past_q is not read).
        """
        shape, slots = case.shape, layout.n_slots(case)
        extents = (slots, ROWS_EACH, shape.n_v_heads, shape.d_v, shape.d_k)
        return {
            "state": Buffer(extents, case.state_dtype, "state"),
            "last_t": Buffer((slots,), "int32", "cursor"),
            "pending": Buffer((slots,), "int32", "scratch"),
            **packed_inputs(case, (case.batch, case.draft_len), PAST),
        }

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Two launches: gather, then both rows of every request."""
        shape, t, tile, rows = case.shape, tensors, config["gather_tile"], config["rows"]
        past_strides = [t[PAST + name].stride(axis) for name in ("x", "k", "dt") for axis in (0, 1)]
        elements = shape.state_elements
        yield Launch(
            _joint_gather_kernel,
            (case.batch * -(-elements // tile),),
            (t["state"], t["last_t"], t["pending"], t["slots"], t["accepted"][step % ACCEPTANCE_STEPS]),
            {"N_STATE": elements, "TILE": tile},
            {"num_warps": config["gather_warps"], "num_stages": 1},
        )
        yield Launch(
            _joint_verify_kernel,
            (case.batch * ROWS_EACH * shape.n_v_heads * -(-shape.d_v // rows),),
            (t["state"], t["last_t"], t["pending"], t["past_x"], t["past_k"], t["past_dt"], t["x"], t["k"], t["q"],
             t["dt"], t["a"], t["dt_bias"], t["d_skip"], t["slots"], t["drafts"], t["out"], case.draft_len,
             *input_strides(t), *past_strides),
            {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k, "MAX": MAX_NODES,
             "ROWS": rows, "COLS": columns(case)},
            {"num_warps": config["warps"], "num_stages": 1},
        )  # fmt: skip

    def start(self, case: Case, tensors: Mapping[str, Any], state: Any, origin: Any = 0) -> None:
        """Store the rows' states in both of their rows; no step came before."""
        for half in (BACK, DRAFT):
            layout.store_state(tensors, state, tensors["state"][:, half])
        slots = tensors["slots"].long()
        tensors["last_t"][slots[slots >= 0]] = 0

    def committed(self, case: Case, tensors: Mapping[str, Any], step: int = 0) -> Any:
        """Return the draft row where all was accepted, else the backtracking row and the accepted tokens; float64."""
        from torch.nn.functional import softplus as log1p_exp

        slots = tensors["slots"].long()
        on = layout.accepted_nodes(tensors, step, case.draft_len)
        dt = log1p_exp(tensors[f"{PAST}dt"].double() + tensors["dt_bias"].double(), threshold=700.0)
        past = {"x": tensors[f"{PAST}x"], "k": tensors[f"{PAST}k"], "dt": dt}
        back = layout.load_state(tensors, tensors["state"][:, BACK])
        replayed = layout.replay_tokens(tensors, back, past, on & (slots >= 0)[:, None])
        accepted = on.sum(1)
        ended = (accepted > 0) & (accepted == tensors["last_t"][slots.clamp(min=0)])
        end = layout.load_state(tensors, tensors["state"][:, DRAFT])
        return end.where(ended[:, None, None, None], replayed)

    def step(self, shape: Shape, point: Point, h: Number, flush: Number) -> Step:
        """Count the state read three times and written four times, inputs and outputs, and the accepted tokens again.

        ``h`` tokens were accepted; x, k and dt of them are read again, unless they were all of the last step's. The
        launches read slot, acceptance and last T; slot, T and what is pending; and write what is pending and T.
        """
        io, state, n = layout.verify_bytes(shape, point), shape.state_elements * point.state_bytes, point.draft_len
        past = _past_tokens(point, h)
        token = (shape.n_v_heads * (shape.d_v + 1) + shape.n_k_heads * shape.d_k) * point.input_bytes
        return Step(
            bytes_read=point.batch * (3 * state + io.read + io.row + 3 * 4 + past * token) + io.shared,
            bytes_write=point.batch * (4 * state + io.write + 2 * 4),
            flops=_flops(shape, point, past),
            launches=2,
            serial=n + past,
            shared_read=io.shared,
        )

    def paper(self, shape: Shape, point: Point) -> Step:
        """Count the state alone, at the longest chain. Source: paper, App. A.1."""
        traffic, n = state_traffic(self.key), point.draft_len
        reads, writes = traffic.counts(n)
        state = point.batch * shape.state_elements * point.state_bytes
        flops = _flops(shape, point, n - 1)
        return Step(reads * state, writes * state, flops, traffic.launches, traffic.chain(n))

    def configs(self, case: Case) -> Sequence[Config]:
        """Return tile height and warps of the joint launch with the gather's tile: one varies, the other is default.

        Small tiles give the memory system the most independent requests.
        """
        scale = max(1, case.shape.d_k // 128)  # a longer state row takes more threads, not more registers
        joints = [pair for pair in ((16, 1), (8, 1), (32, 4), (16, 4))
                  if pair[0] <= 16 or case.shape.d_v % pair[0] == 0]  # fmt: skip
        gathers = ((4096, 4), (2048, 2), (8192, 8), (1024, 4))
        pairs = [*((gathers[0], joint) for joint in joints), *((gather, joints[0]) for gather in gathers[1:])]
        return [
            Config.of(gather_tile=tile, gather_warps=warps, rows=joint[0], warps=joint[1] * scale)
            for (tile, warps), joint in pairs
        ]


def _past_tokens(point: Point, accepted: Number) -> Number:
    """Return the tokens that both rows process again: none where the last step's were all accepted."""
    last = point.draft_len if point.last_draft_len is None else point.last_draft_len
    return np.where(np.equal(accepted, last), 0, accepted)


def _flops(shape: Shape, point: Point, past: Number) -> Number:
    """Return the FLOPs of a step: the past tokens folded into both rows after one decay, and T conventional steps."""
    again = (2 * past + np.greater(past, 0)) * shape.d_v * shape.d_k
    return point.batch * shape.n_v_heads * (2 * again + point.draft_len * conventional_flops(shape.d_v, shape.d_k))


METHOD = JointAttainmentVerify()
