"""Conventional decode for Kimi Delta Attention: load the state, correct and update it, read, store it; one launch.

The control that everything else is measured against. Both sums over the state are of the one that was loaded, so that
they wait for nothing but each other: with u = β (v − S (α ⊙ k)), S_new q = S (α ⊙ q) + u (k·q). Decays are computed
once a channel and program, in a plain vector, and only then spread over the tile.

Source: arXiv 2510.26692; paper, App. C.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import baselines
from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.kda import layout
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
from perfkit.method import Case, Config, Launch


@triton.jit(do_not_specialize=["n_rows"])
def _kda_conventional_decode_kernel(
    state_ptr, q_ptr, k_ptr, v_ptr, gate_ptr, beta_ptr, a_log_ptr, bias_ptr, slots_ptr, out_ptr,
    n_rows, stride_q, stride_k, stride_v, stride_gate, stride_beta,
    N_HEADS: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, ROWS: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    """A program takes ROWS rows of one head's state, as [D_K / COLS, ROWS, COLS]."""
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    row = pid // (N_HEADS * tiles)
    head = pid // tiles % N_HEADS
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    r = pid % tiles * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_K // COLS)[:, None] * COLS + tl.arange(0, COLS)[None, :]  # [chunks, COLS]
    live = r < D_V
    row = row.to(tl.int64)

    s_ptr = state_ptr + (slot * N_HEADS + head) * (D_V * D_K) + r[None, :, None] * D_K + c[:, None, :]
    s = tl.load(s_ptr, mask=live[None, :, None], other=0.0).to(tl.float32)
    k = tl.load(k_ptr + row * stride_k + head * D_K + c).to(tl.float32)
    q = tl.load(q_ptr + row * stride_q + head * D_K + c).to(tl.float32)
    v = tl.load(v_ptr + row * stride_v + head * D_V + r, mask=live, other=0.0).to(tl.float32)
    beta = sigmoid(tl.load(beta_ptr + row * stride_beta + head).to(tl.float32))
    channel = tl.arange(0, D_K)
    gate = tl.load(gate_ptr + row * stride_gate + head * D_K + channel).to(tl.float32)
    gate += tl.load(bias_ptr + head * D_K + channel)
    alpha = tl.exp(-tl.exp(tl.load(a_log_ptr + head)) * softplus(gate))
    alpha = tl.reshape(alpha, [D_K // COLS, COLS])
    # Norms and scale multiply sums, not vectors.
    k_norm, q_norm = inverse_norm(tl.sum(k * k)), inverse_norm(tl.sum(q * q)) * D_K**-0.5

    s = s * alpha[:, None, :]
    held = tl.sum(tl.sum(s * k[:, None, :], axis=0), axis=1) * k_norm
    found = tl.sum(tl.sum(s * q[:, None, :], axis=0), axis=1) * q_norm
    u = beta * (v - held)
    out = found + u * (tl.sum(k * q) * (k_norm * q_norm))
    s = tl.fma((u * k_norm)[None, :, None], k[:, None, :], s)
    tl.store(s_ptr, s.to(state_ptr.dtype.element_ty), mask=live[None, :, None])
    tl.store(out_ptr + (row * N_HEADS + head) * D_V + r, out.to(out_ptr.dtype.element_ty), mask=live)


class ConventionalDecode(baselines.Conventional):
    """1R + 1W of the state at every step."""

    family = "kda"
    source = "paper, §2.1, App. C.1"
    layout = layout

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """One launch: a program per row, head and tile of ``rows`` rows of the state."""
        shape, t = case.shape, tensors
        yield Launch(
            _kda_conventional_decode_kernel,
            (case.batch * shape.n_v_heads * -(-shape.d_v // config["rows"]),),
            (t["state"], t["q"], t["k"], t["v"], t["gate"], t["beta"], t["a_log"], t["dt_bias"], t["slots"], t["out"],
             case.batch, *(t[name].stride(0) for name in ("q", "k", "v", "gate", "beta"))),
            {"N_HEADS": shape.n_v_heads, "D_V": shape.d_v, "D_K": shape.d_k,
             "ROWS": config["rows"], "COLS": columns(case)},
            {"num_warps": config["warps"], "num_stages": 1},
        )  # fmt: skip

    def configs(self, case: Case) -> Sequence[Config]:
        """Return tile heights and warps: small tiles give the memory system the most independent requests."""
        choices = ((16, 1), (8, 1), (32, 4), (32, 2), (64, 4), (4, 1), (64, 8))
        return [Config.of(rows=rows, warps=warps) for rows, warps in choices if rows <= 2 * case.shape.d_v]


METHOD = ConventionalDecode()
