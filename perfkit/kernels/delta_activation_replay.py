"""Activation replay for the delta rule: replay what was committed in place, copy the state, verify on the copy.

Three launches, each of which loads and stores the state of the batch; the masked replay takes T steps whatever was
accepted, deriving corrections again one after the other. 3R + 3W and 2T serial updates.

Source: paper, App. A.1 (Snakes and Ladders, activation replay; "Vanilla SD" of the STree paper), Eq. 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfkit.kernels.delta import InputCache, gates_of, replay, verify
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.recovery import ActivationReplay
from perfkit.kernels.state_copy import copy_launch
from perfkit.method import ACCEPTANCE_STEPS, Case, Config, Launch


# A row of ``accepted`` is aligned at some steps and not at others: one kernel has to serve all.
@triton.jit(do_not_specialize=["n_positions"], do_not_specialize_on_alignment=["accepted_ptr"])
def _delta_masked_replay_kernel(
    state_ptr, k_cache_ptr, v_cache_ptr, g_cache_ptr, beta_cache_ptr, slots_ptr, accepted_ptr, n_positions,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, GATES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """A program takes ROWS rows of one head's state, as [D_K / COLS, ROWS, COLS], through T steps."""
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    row = pid // (N_V * tiles)
    head = pid // tiles % N_V
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    accepted = tl.load(accepted_ptr + row)
    group = head // (N_V // N_K)
    r = pid % tiles * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    live = r < D_V
    first = slot * n_positions
    # 64 bits to the slot; what lies within one slot fits into 32.
    s_at = state_ptr + (slot * N_V + head) * (D_V * D_K) + (r[None, :, None] * D_K + c[:, None, :])
    s = tl.load(s_at, mask=live[None, :, None], other=0.0).to(tl.float32)
    s = replay(
        s, k_cache_ptr + (first * N_K + group) * D_K + c, v_cache_ptr + (first * N_V + head) * D_V + r,
        g_cache_ptr + first * (N_V * GATES) + gates_of(head, GATES), beta_cache_ptr + first * N_V + head,
        n_positions, accepted, live, N_V, N_K, D_V, D_K, GATES, COLS,
    )  # fmt: skip
    tl.store(s_at, s.to(state_ptr.dtype.element_ty), mask=live[None, :, None])


@triton.jit(do_not_specialize=["n_positions"])
def _delta_in_place_verify_kernel(
    state_ptr, k_cache_ptr, v_cache_ptr, g_cache_ptr, beta_cache_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr,
    a_log_ptr, bias_ptr, slots_ptr, drafts_ptr, out_ptr, n_positions,
    q_row, q_token, k_row, k_token, v_row, v_token, gate_row, gate_token, beta_row, beta_token,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, GATES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """A program takes ROWS rows of one head's state, as [D_K / COLS, ROWS, COLS], through its row's positions."""
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    row = pid // (N_V * tiles)
    head = pid // tiles % N_V
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    n = tl.load(drafts_ptr + row)
    group = head // (N_V // N_K)
    r = pid % tiles * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    live = r < D_V
    row = row.to(tl.int64)
    own = gates_of(head, GATES)

    q_at = q_ptr + row * q_row + group * D_K + c
    k_at = k_ptr + row * k_row + group * D_K + c
    v_at = v_ptr + row * v_row + head * D_V + r
    gate_at = gate_ptr + row * gate_row + own
    beta_at = beta_ptr + row * beta_row + head
    q, k, v = tl.load(q_at), tl.load(k_at), tl.load(v_at, mask=live, other=0.0)
    gate, beta = tl.load(gate_at), tl.load(beta_at)
    rate, bias = tl.exp(tl.load(a_log_ptr + head)), tl.load(bias_ptr + own)
    # 64 bits to the slot; what lies within one slot fits into 32.
    s_at = state_ptr + (slot * N_V + head) * (D_V * D_K) + (r[None, :, None] * D_K + c[:, None, :])
    s = tl.load(s_at, mask=live[None, :, None], other=0.0).to(tl.float32)
    first = slot * n_positions
    lead = pid % tiles == 0
    s = verify(
        s, q, k, v, gate, beta, q_at, k_at, v_at, gate_at, beta_at, q_token, k_token, v_token, gate_token, beta_token,
        k_cache_ptr + (first * N_K + group) * D_K + c, v_cache_ptr + (first * N_V + head) * D_V + r,
        g_cache_ptr + first * (N_V * GATES) + own, beta_cache_ptr + first * N_V + head,
        out_ptr + (row * n_positions * N_V + head) * D_V + r, rate, bias, n, live, lead,
        lead & (head % (N_V // N_K) == 0), N_V, N_K, D_V, D_K, GATES, COLS,
    )  # fmt: skip
    tl.store(s_at, s.to(state_ptr.dtype.element_ty), mask=live[None, :, None])


class DeltaActivationReplay(InputCache, ActivationReplay):
    """3R + 3W of the state at every step, whatever was accepted."""

    replay_tiles = ((16, 1), (8, 1), (4, 1), (32, 4))
    scan_tiles = ((16, 1), (8, 1), (16, 2), (32, 4), (16, 4))

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """Three launches: masked replay, copy, scan in place."""
        shape, t = case.shape, tensors
        heads = case.batch * shape.n_v_heads
        yield Launch(
            _delta_masked_replay_kernel,
            (heads * -(-shape.d_v // config["replay_rows"]),),
            (t["state"], *self.caches(t), t["slots"], t["accepted"][step % ACCEPTANCE_STEPS], case.draft_len),
            self.constexprs(case, config["replay_rows"]),
            {"num_warps": config["replay_warps"], "num_stages": 1},
        )
        yield copy_launch(case, t, t["state"], t["working"], config["copy_tile"], config["copy_warps"])
        yield Launch(
            _delta_in_place_verify_kernel,
            (heads * -(-shape.d_v // config["rows"]),),
            (t["working"], *self.caches(t), *self.inputs(t), t["slots"], t["drafts"], t["out"], case.draft_len,
             *self.strides(t)),
            self.constexprs(case, config["rows"]),
            {"num_warps": config["warps"], "num_stages": 1},
        )  # fmt: skip
