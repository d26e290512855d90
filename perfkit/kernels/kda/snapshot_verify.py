"""Snapshots for Kimi Delta Attention: the state after each of T tokens is stored; a step starts from the accepted one.

One launch and no recovery: 1R + T·W, whatever is accepted. This is what vLLM does, and the control that speedups of
verify methods are measured against.

Nothing depends on T at compile time: a program loads its tile of the state once, keeps it in registers and loops over
the positions that its row has, with the next position's inputs under way while it computes. In a tree, a node that
does not follow its parent reads the parent's snapshot again, which the same program has stored; a chain never does.

Source: arXiv 2510.26692; paper, App. A.1 (vLLM).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import baselines
from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.kda import layout
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
from perfkit.kernels.paths import last_node
from perfkit.method import ACCEPTANCE_STEPS, Case, Config, Launch
from perfkit.tree import MAX_NODES

#: Inputs of a token, in the order in which kernels take them.
INPUTS = ("q", "k", "v", "gate", "beta")


# A row of ``accepted`` is aligned at some steps and not at others: one kernel has to serve all.
@triton.jit(do_not_specialize=["n_positions"], do_not_specialize_on_alignment=["accepted_ptr"])
def _kda_snapshot_verify_kernel(
    state_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, a_log_ptr, bias_ptr, slots_ptr, drafts_ptr, accepted_ptr,
    ancestors_ptr, out_ptr, n_positions, q_row, q_token, k_row, k_token, v_row, v_token, gate_row, gate_token,
    beta_row, beta_token,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, TREE: tl.constexpr,
    MAX: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """A program takes ROWS rows of one head's state, as [D_K / COLS, ROWS, COLS], through its row's positions.

    TREE: ``accepted_ptr`` holds the bitmask of the accepted path, and ``ancestors_ptr`` is read.
    """
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    row = pid // (N_HEADS * tiles)
    head = pid // tiles % N_HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    accepted = tl.load(accepted_ptr + row)
    n = tl.load(drafts_ptr + row)
    r = pid % tiles * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    live = r < D_V
    row = row.to(tl.int64)

    q_at = q_ptr + row * q_row + head * D_K + c
    k_at = k_ptr + row * k_row + head * D_K + c
    v_at = v_ptr + row * v_row + head * D_V + r
    channel = tl.arange(0, D_K)
    gate_at = gate_ptr + row * gate_row + head * D_K + channel
    beta_at = beta_ptr + row * beta_row + head
    nodes_at = ancestors_ptr + row * n_positions
    q, k, v = tl.load(q_at), tl.load(k_at), tl.load(v_at, mask=live, other=0.0)
    gate, beta = tl.load(gate_at), tl.load(beta_at)
    nodes = tl.load(nodes_at) if TREE else 0
    a, bias = tl.exp(tl.load(a_log_ptr + head)), tl.load(bias_ptr + head * D_K + channel)

    first = tl.maximum(last_node(accepted, MAX) if TREE else accepted - 1, 0)
    # 64 bits to the slot; what lies within one slot fits into 32.
    s_base = state_ptr + (slot * n_positions * N_HEADS + head) * (D_V * D_K)
    tile = r[None, :, None] * D_K + c[:, None, :]
    out_at = out_ptr + (row * n_positions * N_HEADS + head) * D_V + r
    mask = live[None, :, None]
    s = tl.load(s_base + first * (N_HEADS * D_V * D_K) + tile, mask=mask, other=0.0).to(tl.float32)
    for t in tl.range(0, n):
        more = t + 1 < n
        q_next = tl.load(q_at + (t + 1) * q_token, mask=more, other=0.0)
        k_next = tl.load(k_at + (t + 1) * k_token, mask=more, other=0.0)
        v_next = tl.load(v_at + (t + 1) * v_token, mask=live & more, other=0.0)
        gate_next = tl.load(gate_at + (t + 1) * gate_token, mask=more, other=0.0)
        beta_next = tl.load(beta_at + (t + 1) * beta_token, mask=more, other=0.0)
        if TREE:
            nodes_next = tl.load(nodes_at + t + 1, mask=more, other=0)
            parent = last_node(nodes & ~(1 << t), MAX)
            if parent != t - 1:
                tl.debug_barrier()  # the snapshot was stored by this program
                s = tl.load(s_base + parent * (N_HEADS * D_V * D_K) + tile, mask=mask, other=0.0).to(tl.float32)
        key, query = k.to(tl.float32), q.to(tl.float32)
        # Norms and scale multiply sums, not vectors; both sums are of the state before the correction.
        k_norm, q_norm = inverse_norm(tl.sum(key * key)), inverse_norm(tl.sum(query * query)) * D_K**-0.5
        # A plain vector's gates are computed once a channel, and only then spread over the tile.
        alpha = tl.reshape(tl.exp(-a * softplus(gate.to(tl.float32) + bias)), [D_K // COLS, COLS])
        s = s * alpha[:, None, :]
        held = tl.sum(tl.sum(s * key[:, None, :], axis=0), axis=1) * k_norm
        found = tl.sum(tl.sum(s * query[:, None, :], axis=0), axis=1) * q_norm
        u = sigmoid(beta.to(tl.float32)) * (v.to(tl.float32) - held)
        s = tl.fma((u * k_norm)[None, :, None], key[:, None, :], s)
        # Nothing reads a snapshot soon: evicted first, it leaves the cache to what is read.
        tl.store(s_base + t * (N_HEADS * D_V * D_K) + tile, s.to(state_ptr.dtype.element_ty), mask=mask,
                 eviction_policy="evict_first")  # fmt: skip
        out = found + u * (tl.sum(key * query) * (k_norm * q_norm))
        tl.store(out_at + t * (N_HEADS * D_V), out.to(out_ptr.dtype.element_ty), mask=live)
        q, k, v, gate, beta = q_next, k_next, v_next, gate_next, beta_next
        if TREE:
            nodes = nodes_next


class SnapshotVerify(baselines.Snapshot):
    """1R + T·W of the state at every step."""

    family = "kda"
    source = "paper, App. A.1 (vLLM)"
    layout = layout

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """One launch: a program per row, head and tile of ``rows`` rows of the state."""
        shape, t = case.shape, tensors
        tree = case.tree is not None
        yield Launch(
            _kda_snapshot_verify_kernel,
            (case.batch * shape.n_v_heads * -(-shape.d_v // config["rows"]),),
            (t["state"], *(t[name] for name in INPUTS), t["a_log"], t["dt_bias"], t["slots"], t["drafts"],
             t["path" if tree else "accepted"][step % ACCEPTANCE_STEPS], t["ancestors" if tree else "drafts"],
             t["out"], case.draft_len, *input_strides(t)),
            {"N_HEADS": shape.n_v_heads, "D_V": shape.d_v, "D_K": shape.d_k, "TREE": tree,
             "MAX": MAX_NODES, "ROWS": config["rows"], "COLS": columns(case)},
            {"num_warps": config["warps"], "num_stages": 1},
        )  # fmt: skip

    def configs(self, case: Case) -> Sequence[Config]:
        """Return tile heights and warps: small tiles give the memory system the most independent requests."""
        scale = max(1, case.shape.d_k // 128)  # a longer state row takes more threads, not more registers
        choices: tuple[tuple[int, int], ...] = ((16, 1), (8, 1), (16, 2), (16, 4), (4, 1))
        if case.tree is not None:  # the others spill a few registers on compute capability 10
            choices = ((16, 1), (8, 1), (16, 4), (4, 1))
        fit = [(rows, warps) for rows, warps in choices if rows <= 16 or case.shape.d_v % rows == 0]
        return [Config.of(rows=rows, warps=warps * scale) for rows, warps in fit]


def input_strides(tensors: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the strides of :data:`INPUTS` from row to row and from token to token, in elements."""
    return tuple(tensors[name].stride(axis) for name in INPUTS for axis in (0, 1))


METHOD = SnapshotVerify()
