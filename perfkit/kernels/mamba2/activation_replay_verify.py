"""Activation replay for Mamba-2: replay what was committed in place, copy the state, verify in place on the copy.

Three launches, each of which loads and stores the state of the batch: the masked replay brings the checkpoint up to
what the last step committed, from the cache of that step's inputs; a copy of it becomes the working state; and the scan
runs this step's T positions in place on the working state: it stores the end state, which nothing reads, and the inputs
for the next step's replay. 3R + 3W, whatever was accepted, and 2T serial updates.

Source: paper, App. A.1 (Snakes and Ladders, activation replay; "Vanilla SD" of the STree paper).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.mamba2.masked_replay import REPLAY_TILES, InputCache, replay_launch
from perfkit.kernels.mamba2.snapshot_verify import input_strides
from perfkit.kernels.recovery import ActivationReplay
from perfkit.kernels.state_copy import copy_launch
from perfkit.method import Case, Config, Launch
from perfkit.shape import Shape


@triton.jit(do_not_specialize=["n_positions"])
def _in_place_verify_kernel(
    state_ptr, x_cache_ptr, k_cache_ptr, dt_cache_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr,
    slots_ptr, drafts_ptr, out_ptr, n_positions, x_row, x_token, k_row, k_token, q_row, q_token, dt_row, dt_token,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """A program takes ROWS rows of one head's state, as [D_K / COLS, ROWS, COLS], through its row's positions.

    The next position's inputs are under way while it computes; nothing depends on T at compile time.
    """
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    row = pid // (N_V * tiles)
    head = pid // tiles % N_V
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    n = tl.load(drafts_ptr + row)
    group = head // (N_V // N_K)
    v = pid % tiles * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    live = v < D_V
    row = row.to(tl.int64)

    x_at = x_ptr + row * x_row + head * D_V + v
    k_at = k_ptr + row * k_row + group * D_K + c
    q_at = q_ptr + row * q_row + group * D_K + c
    dt_at = dt_ptr + row * dt_row + head
    k, q, x, dt = tl.load(k_at), tl.load(q_at), tl.load(x_at, mask=live, other=0.0), tl.load(dt_at)
    a, bias, skip = tl.load(a_ptr + head), tl.load(bias_ptr + head), tl.load(skip_ptr + head)
    # 64 bits to the slot; what lies within one slot fits into 32.
    s_at = state_ptr + (slot * N_V + head) * (D_V * D_K) + (v[None, :, None] * D_K + c[:, None, :])
    s = tl.load(s_at, mask=live[None, :, None], other=0.0).to(tl.float32)

    out_at = out_ptr + (row * n_positions * N_V + head) * D_V + v
    x_cache = x_cache_ptr + (slot * n_positions * N_V + head) * D_V + v
    k_cache = k_cache_ptr + (slot * n_positions * N_K + group) * D_K + c
    dt_cache = dt_cache_ptr + slot * n_positions * N_V + head
    lead = pid % tiles == 0
    leads_group = lead & (head % (N_V // N_K) == 0)
    for t in tl.range(0, n):
        more = t + 1 < n
        k_next = tl.load(k_at + (t + 1) * k_token, mask=more, other=0.0)
        q_next = tl.load(q_at + (t + 1) * q_token, mask=more, other=0.0)
        x_next = tl.load(x_at + (t + 1) * x_token, mask=live & more, other=0.0)
        dt_next = tl.load(dt_at + (t + 1) * dt_token, mask=more, other=0.0)
        step = softplus(dt.to(tl.float32) + bias)
        value = x.to(tl.float32)
        tl.store(x_cache + t * (N_V * D_V), x, mask=live)
        tl.store(k_cache + t * (N_K * D_K), k, mask=leads_group)
        tl.store(dt_cache + t * N_V, step, mask=lead)
        s = s * tl.exp(a * step) + (step * value)[None, :, None] * k.to(tl.float32)[:, None, :]
        out = tl.sum(tl.sum(s * q.to(tl.float32)[:, None, :], axis=0), axis=1) + skip * value
        tl.store(out_at + t * (N_V * D_V), out.to(out_ptr.dtype.element_ty), mask=live)
        k, q, x, dt = k_next, q_next, x_next, dt_next
    tl.store(s_at, s.to(state_ptr.dtype.element_ty), mask=live[None, :, None])


class ActivationReplayVerify(InputCache, ActivationReplay):
    """3R + 3W of the state at every step, whatever was accepted."""

    family = "mamba2"
    layout = layout
    replay_tiles = REPLAY_TILES

    def replay_shared(self, shape: Shape) -> int:
        """The replay reads ``a``: what it keeps of a token is dt."""
        return 4 * shape.n_v_heads

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Three launches: masked replay, copy, scan in place."""
        shape, t, rows = case.shape, tensors, config["rows"]
        yield replay_launch(case, t, step, config["replay_rows"], config["replay_warps"])
        yield copy_launch(case, t, t["state"], t["working"], config["copy_tile"], config["copy_warps"])
        yield Launch(
            _in_place_verify_kernel,
            (case.batch * shape.n_v_heads * -(-shape.d_v // rows),),
            (t["working"], t["x_cache"], t["k_cache"], t["dt_cache"], t["x"], t["k"], t["q"], t["dt"], t["a"],
             t["dt_bias"], t["d_skip"], t["slots"], t["drafts"], t["out"], case.draft_len, *input_strides(t)),
            {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k, "ROWS": rows,
             "COLS": columns(case)},
            {"num_warps": config["warps"], "num_stages": 1},
        )  # fmt: skip


METHOD = ActivationReplayVerify()
