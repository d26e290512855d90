"""Conventional decode for Mamba-2: load the state, update it, read the output, store it; one launch.

The control that everything else is measured against.  Source: paper, §2.1 and App. C.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfkit.kernels import baselines
from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.mamba2 import layout
from perfkit.method import Case, Config, Launch


@triton.jit(do_not_specialize=["n_rows"])
def _conventional_decode_kernel(
    state_ptr, x_ptr, k_ptr, q_ptr, dt_ptr, a_ptr, bias_ptr, skip_ptr, slots_ptr, out_ptr,
    n_rows, stride_x, stride_k, stride_q, stride_dt,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    tiles: tl.constexpr = (D_V + ROWS - 1) // ROWS
    pid = tl.program_id(0)
    row = pid // (N_V * tiles)
    head = pid // tiles % N_V
    slot = tl.load(slots_ptr + row).to(tl.int64)
    if slot < 0:
        return
    group = head // (N_V // N_K)
    v = pid % tiles * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, D_K)
    live = v < D_V
    row = row.to(tl.int64)

    s_ptr = state_ptr + (slot * N_V + head) * (D_V * D_K) + v[:, None] * D_K + c[None, :]
    s = tl.load(s_ptr, mask=live[:, None], other=0.0).to(tl.float32)
    k = tl.load(k_ptr + row * stride_k + group * D_K + c).to(tl.float32)
    q = tl.load(q_ptr + row * stride_q + group * D_K + c).to(tl.float32)
    x = tl.load(x_ptr + row * stride_x + head * D_V + v, mask=live, other=0.0).to(tl.float32)
    dt = softplus(tl.load(dt_ptr + row * stride_dt + head).to(tl.float32) + tl.load(bias_ptr + head))
    s = s * tl.exp(tl.load(a_ptr + head) * dt) + (dt * x)[:, None] * k[None, :]
    tl.store(s_ptr, s.to(state_ptr.dtype.element_ty), mask=live[:, None])
    out = tl.sum(s * q[None, :], axis=1) + tl.load(skip_ptr + head) * x
    tl.store(out_ptr + (row * N_V + head) * D_V + v, out.to(out_ptr.dtype.element_ty), mask=live)


class ConventionalDecode(baselines.Conventional):
    """1R + 1W of the state at every step."""

    family = "mamba2"
    source = "paper, §2.1, App. C.1"
    layout = layout

    def launches(self, case: Case, config: Config, tensors: Mapping[str, Any], step: int = 0) -> Iterable[Launch]:
        """One launch: a program per row, head and tile of ``rows`` rows of the state."""
        shape = case.shape
        tiles = -(-shape.d_v // config["rows"])
        t = tensors
        yield Launch(
            _conventional_decode_kernel,
            (case.batch * shape.n_v_heads * tiles,),
            (t["state"], t["x"], t["k"], t["q"], t["dt"], t["a"], t["dt_bias"], t["d_skip"], t["slots"], t["out"],
             case.batch, t["x"].stride(0), t["k"].stride(0), t["q"].stride(0), t["dt"].stride(0)),
            {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k,
             "ROWS": config["rows"]},
            {"num_warps": config["warps"], "num_stages": 1},
        )  # fmt: skip

    def configs(self, case: Case) -> Sequence[Config]:
        """Return tile heights and warps: small tiles give the memory system the most independent requests."""
        choices = ((16, 1), (8, 1), (16, 2), (32, 1), (32, 2), (32, 4), (64, 4), (4, 1), (64, 8))
        return [Config.of(rows=rows, warps=warps) for rows, warps in choices if rows <= 2 * case.shape.d_v]


METHOD = ConventionalDecode()
