"""Fused recovery for Mamba-2: one launch replays what was accepted, stores it, runs T tokens, stores the end state.

1R + 2W: the state is loaded once, the checkpoint and the state after all T tokens are stored. If the last step
committed all its tokens, the end state is where this one starts and nothing is replayed; the checkpoint is stored all
the same. Else the accepted tokens run again from a cache of their inputs, on a serial chain of up to 2T − 1 updates: a
step is dearest where all but one were accepted.

Source: paper, App. A.1 (The Mamba in the Llama).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
from perfkit.kernels.mamba2 import layout
from perfkit.kernels.mamba2.masked_replay import InputCache
from perfkit.kernels.mamba2.snapshot_verify import input_strides
from perfkit.kernels.recovery import FusedRecovery
from perfkit.method import ACCEPTANCE_STEPS, Case, Config, Launch
from perfkit.tree import MAX_NODES


@triton.jit
def _replay(
    s, x_at, k_at, dt_at, live, a, n,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, MAX: tl.constexpr,
):  # fmt: skip
    """Advance a state [chunks, ROWS, COLS] by the first n cached tokens: S = γ_{1:n} S + Σ_j γ_{j+1:n} dt_j x_j k_jᵀ.

    The last token comes first, so that what decays a token is the sum of the g after it, and an element costs one
    multiply-add a token. The next token's inputs are under way meanwhile. n = 0 leaves the state as it is.
    """
    j = tl.arange(0, MAX)
    dts = tl.load(dt_at + j * N_V, mask=j < n, other=0.0)
    k = tl.load(k_at + (n - 1) * (N_K * D_K), mask=n > 0, other=0.0)
    x = tl.load(x_at + (n - 1) * (N_V * D_V), mask=live & (n > 0), other=0.0)
    dt = tl.load(dt_at + (n - 1) * N_V, mask=n > 0, other=0.0)
    s *= tl.exp(tl.sum(dts * a, axis=0))
    later = dt * 0.0
    for i in tl.range(0, n):
        before = n - 2 - i
        more = before >= 0
        k_next = tl.load(k_at + before * (N_K * D_K), mask=more, other=0.0)
        x_next = tl.load(x_at + before * (N_V * D_V), mask=live & more, other=0.0)
        dt_next = tl.load(dt_at + before * N_V, mask=more, other=0.0)
        s += (tl.exp(later) * dt * x.to(tl.float32))[None, :, None] * k.to(tl.float32)[:, None, :]
        later += a * dt
        k, x, dt = k_next, x_next, dt_next
    return s


# A row of ``accepted`` is aligned at some steps and not at others: one kernel has to serve all.
@triton.jit(do_not_specialize=["n_positions"], do_not_specialize_on_alignment=["accepted_ptr"])
def _fused_recovery_verify_kernel(
    state_ptr, x_cache_ptr, k_cache_ptr, dt_cache_ptr, cursor_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr,
    skip_ptr, slots_ptr, drafts_ptr, accepted_ptr, out_ptr, n_positions,
    x_row, x_token, k_row, k_token, q_row, q_token, dt_row, dt_token,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, MAX: tl.constexpr,
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
    a, bias, skip = tl.load(a_ptr + head), tl.load(bias_ptr + head), tl.load(skip_ptr + head)
    row = row.to(tl.int64)

    # In 64 bits up to a half of a slot; what lies within it fits into 32.
    old = (slot * 2 + half) * n_positions
    new = (slot * 2 + 1 - half) * n_positions
    checkpoint = state_ptr + (slot * (2 * N_V) + head) * (D_V * D_K)
    # The state goes through L2 once: evicted first, it leaves the inputs there, which every tile reads again.
    for v0 in tl.range(0, D_V, ROWS, num_stages=1):
        v = v0 + tl.arange(0, ROWS)
        live = v < D_V
        tile = v[None, :, None] * D_K + c[:, None, :]
        s = tl.load(checkpoint + ended.to(tl.int32) * (N_V * D_V * D_K) + tile, mask=live[None, :, None], other=0.0,
                    eviction_policy="evict_first")  # fmt: skip
        s = _replay(
            s.to(tl.float32), x_cache_ptr + (old * N_V + head) * D_V + v, k_cache_ptr + (old * N_K + group) * D_K + c,
            dt_cache_ptr + old * N_V + head, live, a, n_replay, N_V, N_K, D_V, D_K, MAX,
        )  # fmt: skip
        x_at = x_ptr + row * x_row + head * D_V + v
        k_at = k_ptr + row * k_row + group * D_K + c
        q_at = q_ptr + row * q_row + group * D_K + c
        dt_at = dt_ptr + row * dt_row + head
        k, q, x, dt = tl.load(k_at), tl.load(q_at), tl.load(x_at, mask=live, other=0.0), tl.load(dt_at)
        tl.store(checkpoint + tile, s.to(state_ptr.dtype.element_ty), mask=live[None, :, None],
                 eviction_policy="evict_first")  # fmt: skip
        lead = v0 == 0
        shared = lead & (head % (N_V // N_K) == 0)  # k is stored once a group
        for t in tl.range(0, n):
            more = t + 1 < n
            k_next = tl.load(k_at + (t + 1) * k_token, mask=more, other=0.0)
            q_next = tl.load(q_at + (t + 1) * q_token, mask=more, other=0.0)
            x_next = tl.load(x_at + (t + 1) * x_token, mask=live & more, other=0.0)
            dt_next = tl.load(dt_at + (t + 1) * dt_token, mask=more, other=0.0)
            step = softplus(dt.to(tl.float32) + bias)
            tl.store(x_cache_ptr + ((new + t) * N_V + head) * D_V + v, x, mask=live)
            tl.store(k_cache_ptr + ((new + t) * N_K + group) * D_K + c, k, mask=shared)
            tl.store(dt_cache_ptr + (new + t) * N_V + head, step, mask=lead)
            value = x.to(tl.float32)
            # As one multiply-add of the decayed state, so that no register holds the outer product.
            s = tl.fma((step * value)[None, :, None], k.to(tl.float32)[:, None, :], s * tl.exp(a * step))
            out = tl.sum(tl.sum(s * q.to(tl.float32)[:, None, :], axis=0), axis=1) + skip * value
            tl.store(out_ptr + ((row * n_positions + t) * N_V + head) * D_V + v, out.to(out_ptr.dtype.element_ty),
                     mask=live)  # fmt: skip
            k, q, x, dt = k_next, q_next, x_next, dt_next
        tl.store(checkpoint + N_V * D_V * D_K + tile, s.to(state_ptr.dtype.element_ty), mask=live[None, :, None],
                 eviction_policy="evict_first")  # fmt: skip


class FusedRecoveryVerify(InputCache, FusedRecovery):
    """1R + 2W of the state at every step, and the inputs of the accepted tokens once more."""

    family = "mamba2"
    layout = layout

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """One launch: a program per row and head."""
        shape, t = case.shape, tensors
        yield Launch(
            _fused_recovery_verify_kernel,
            (case.batch * shape.n_v_heads,),
            (t["state"], t["x_cache"], t["k_cache"], t["dt_cache"], t["cursor"], t["x"], t["k"], t["q"], t["dt"],
             t["a"], t["dt_bias"], t["d_skip"], t["slots"], t["drafts"], t["accepted"][step % ACCEPTANCE_STEPS],
             t["out"], case.draft_len, *input_strides(t)),
            {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k,
             "MAX": MAX_NODES, "ROWS": config["rows"], "COLS": columns(case)},
            {"num_warps": config["warps"], "num_stages": 1},
        )  # fmt: skip


METHOD = FusedRecoveryVerify()
