"""Fused recovery for the delta rule: one launch replays what was accepted, stores it, runs T tokens, stores the end.

1R + 2W: the state is loaded once, the checkpoint and the state after all T tokens are stored. If the last step
committed all its tokens, the end state is where this one starts and nothing is replayed; the checkpoint is stored all
the same. Else the accepted tokens run again from a cache of their inputs, and their corrections are derived again one
after the other, on a serial chain of up to 2T − 1 updates: a step is dearest where all but one were accepted.

Source: paper, App. A.1 (The Mamba in the Llama), Eq. 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels.delta import InputCache, gates_of, replay, verify
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.recovery import FusedRecovery
from perfkit.method import ACCEPTANCE_STEPS, Case, Config, Launch


# A row of ``accepted`` is aligned at some steps and not at others: one kernel has to serve all.
@triton.jit(do_not_specialize=["n_positions"], do_not_specialize_on_alignment=["accepted_ptr"])
def _delta_fused_recovery_kernel(
    state_ptr, k_cache_ptr, v_cache_ptr, g_cache_ptr, beta_cache_ptr, cursor_ptr, q_ptr, k_ptr, v_ptr, gate_ptr,
    beta_ptr, a_log_ptr, bias_ptr, slots_ptr, drafts_ptr, accepted_ptr, out_ptr, n_positions,
    q_row, q_token, k_row, k_token, v_row, v_token, gate_row, gate_token, beta_row, beta_token,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, GATES: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """A program takes one head of one row, ROWS rows of its state at a time, as [D_K / COLS, ROWS, COLS]."""
    pid = tl.program_id(0)
    row = pid // N_V
    head = pid % N_V
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    cursor = tl.load(cursor_ptr + slot * N_V + head)
    accepted = tl.load(accepted_ptr + row)
    n = tl.load(drafts_ptr + row)
    tl.debug_barrier()  # every warp has read the cursor before one of them writes the next one
    half = cursor & 1
    tl.store(cursor_ptr + slot * N_V + head, (n << 1) | (1 - half))
    ended = (accepted > 0) & (accepted == (cursor >> 1))
    n_replay = tl.where(ended, 0, accepted)
    group = head // (N_V // N_K)
    c = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    own = gates_of(head, GATES)
    rate, bias = tl.exp(tl.load(a_log_ptr + head)), tl.load(bias_ptr + own)
    row = row.to(tl.int64)

    # In 64 bits up to a half of a slot; what lies within it fits into 32.
    old = (slot * 2 + half) * n_positions
    new = (slot * 2 + 1 - half) * n_positions
    checkpoint = state_ptr + (slot * (2 * N_V) + head) * (D_V * D_K)
    # The state goes through L2 once: evicted first, it leaves the inputs there, which every tile reads again.
    for r0 in tl.range(0, D_V, ROWS, num_stages=1):
        r = r0 + tl.arange(0, ROWS)
        live = r < D_V
        mask = live[None, :, None]
        tile = r[None, :, None] * D_K + c[:, None, :]
        s = tl.load(checkpoint + ended.to(tl.int32) * (N_V * D_V * D_K) + tile, mask=mask, other=0.0,
                    eviction_policy="evict_first")  # fmt: skip
        s = replay(
            s.to(tl.float32), k_cache_ptr + (old * N_K + group) * D_K + c, v_cache_ptr + (old * N_V + head) * D_V + r,
            g_cache_ptr + old * (N_V * GATES) + own, beta_cache_ptr + old * N_V + head, n_replay, n_replay, live,
            N_V, N_K, D_V, D_K, GATES, COLS,
        )  # fmt: skip
        q_at = q_ptr + row * q_row + group * D_K + c
        k_at = k_ptr + row * k_row + group * D_K + c
        v_at = v_ptr + row * v_row + head * D_V + r
        gate_at = gate_ptr + row * gate_row + own
        beta_at = beta_ptr + row * beta_row + head
        q, k, v = tl.load(q_at), tl.load(k_at), tl.load(v_at, mask=live, other=0.0)
        gate, beta = tl.load(gate_at), tl.load(beta_at)
        tl.store(checkpoint + tile, s.to(state_ptr.dtype.element_ty), mask=mask, eviction_policy="evict_first")
        lead = r0 == 0
        s = verify(
            s, q, k, v, gate, beta, q_at, k_at, v_at, gate_at, beta_at, q_token, k_token, v_token, gate_token,
            beta_token, k_cache_ptr + (new * N_K + group) * D_K + c, v_cache_ptr + (new * N_V + head) * D_V + r,
            g_cache_ptr + new * (N_V * GATES) + own, beta_cache_ptr + new * N_V + head,
            out_ptr + (row * n_positions * N_V + head) * D_V + r, rate, bias, n, live, lead,
            lead & (head % (N_V // N_K) == 0), N_V, N_K, D_V, D_K, GATES, COLS,
        )  # fmt: skip
        tl.store(checkpoint + N_V * D_V * D_K + tile, s.to(state_ptr.dtype.element_ty), mask=mask,
                 eviction_policy="evict_first")  # fmt: skip


class DeltaFusedRecovery(InputCache, FusedRecovery):
    """1R + 2W of the state at every step, and the inputs of the accepted tokens once more."""

    #: Of 16 rows a warp takes almost twice the registers that 8 rows take, so fewer warps fit.
    warp_tiles = ((8, 1), (16, 1))

    def large_tiles(self, head: int) -> Sequence[tuple[int, int]]:
        """Return whole heads at 16 rows a warp, and tiles of 64 rows: heads of 128 rows at 8 rows a warp spill."""
        return (head, max(1, head // 16)), (64, 8)

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """One launch: a program per row and head."""
        t = tensors
        yield Launch(
            _delta_fused_recovery_kernel,
            (case.batch * case.shape.n_v_heads,),
            (t["state"], *self.caches(t), t["cursor"], *self.inputs(t), t["slots"], t["drafts"],
             t["accepted"][step % ACCEPTANCE_STEPS], t["out"], case.draft_len, *self.strides(t)),
            self.constexprs(case, config["rows"]),
            {"num_warps": config["warps"], "num_stages": 1},
        )  # fmt: skip
