"""What recovery schemes of both delta rules share: what a token leaves for its replay, replay and verify of a tile.

The delta rule of Gated DeltaNet and of Kimi Delta Attention corrects what the decayed state returns for a key. A
correction needs the state before its token, so kept tokens run one after the other, corrections and all: their decays
cannot be gathered, nor can outer products be added up in any order, as Mamba-2's can.

A tile of ROWS rows of one head's state is [D_K / COLS, ROWS, COLS]. GATES says how many decays a head has: 1 in Gated
DeltaNet, D_K in Kimi Delta Attention.

Source: paper, Eq. 2 and 3; arXiv 2510.26692.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.kernels.gates import inverse_norm, sigmoid, softplus
from perfkit.kernels.gdn.reference import normalized
from perfkit.kernels.lang import tl, triton
from perfkit.kernels.layout import columns
from perfkit.kernels.recovery import Kept
from perfkit.method import Case

#: Inputs of a token, in the order in which kernels take them.
INPUTS = ("q", "k", "v", "gate", "beta")
#: What a token leaves for its replay, in that order too.
KEPT = ("k", "v", "g", "beta")


@triton.jit
def gates_of(head, GATES: tl.constexpr):
    """Where a head's decays are among those of all heads."""
    if GATES > 1:
        at = head * GATES + tl.arange(0, GATES)
    else:
        at = head
    return at


@triton.jit
def decayed(s, g, GATES: tl.constexpr, COLS: tl.constexpr):
    """A tile times exp(g). A plain vector's exponentials are computed once a channel, and only then spread."""
    if GATES > 1:
        s = s * tl.reshape(tl.exp(g), [GATES // COLS, COLS])[:, None, :]
    else:
        s = s * tl.exp(g)
    return s


@triton.jit
def read(s, x):
    """S x of a tile [chunks, ROWS, COLS] and a vector [chunks, COLS]."""
    return tl.sum(tl.sum(s * x[:, None, :], axis=0), axis=1)


@triton.jit
def replay(
    s, k_at, v_at, g_at, beta_at, n, accepted, live,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, GATES: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Advance a tile by the first ``accepted`` of n kept tokens; nothing of the others is loaded.

    The tokens that do not count leave the state as it is, bit for bit: it decays by exp(0) = 1, and −1 · 0 = −0, which
    they add, changes no number, not even a negative zero. The next token's inputs are under way meanwhile.
    """
    on = accepted > 0
    k, v = tl.load(k_at, mask=on, other=0.0), tl.load(v_at, mask=live & on, other=0.0)
    g, beta = tl.load(g_at, mask=on, other=0.0), tl.load(beta_at, mask=on, other=0.0)
    for t in tl.range(0, n):
        on = t < accepted
        more = t + 1 < accepted
        k_next = tl.load(k_at + (t + 1) * (N_K * D_K), mask=more, other=0.0)
        v_next = tl.load(v_at + (t + 1) * (N_V * D_V), mask=live & more, other=0.0)
        g_next = tl.load(g_at + (t + 1) * (N_V * GATES), mask=more, other=0.0)
        beta_next = tl.load(beta_at + (t + 1) * N_V, mask=more, other=0.0)
        key = k.to(tl.float32)
        norm = inverse_norm(tl.sum(key * key))
        s = decayed(s, g, GATES, COLS)
        u = beta * (v.to(tl.float32) - read(s, key) * norm)
        s = tl.fma(tl.where(on, u * norm, -1.0)[None, :, None], key[:, None, :], s)
        k, v, g, beta = k_next, v_next, g_next, beta_next
    return s


@triton.jit
def verify(
    s, q, k, v, gate, beta, q_at, k_at, v_at, gate_at, beta_at, q_token, k_token, v_token, gate_token, beta_token,
    k_cache, v_cache, g_cache, beta_cache, out_at, rate, bias, n, live, lead, leads_group,
    N_V: tl.constexpr, N_K: tl.constexpr, D_V: tl.constexpr, D_K: tl.constexpr, GATES: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Take a tile through n positions: outputs, and what a replay of theirs needs; return the state after all of them.

    The first position's inputs come loaded, and the next one's are under way while one is computed. ``rate`` is
    exp(a_log). The cache's v is every tile's to store, gates are ``lead``'s alone, and k is ``leads_group``'s.
    """
    for t in tl.range(0, n):
        more = t + 1 < n
        q_next = tl.load(q_at + (t + 1) * q_token, mask=more, other=0.0)
        k_next = tl.load(k_at + (t + 1) * k_token, mask=more, other=0.0)
        v_next = tl.load(v_at + (t + 1) * v_token, mask=live & more, other=0.0)
        gate_next = tl.load(gate_at + (t + 1) * gate_token, mask=more, other=0.0)
        beta_next = tl.load(beta_at + (t + 1) * beta_token, mask=more, other=0.0)
        g = -rate * softplus(gate.to(tl.float32) + bias)
        strength = sigmoid(beta.to(tl.float32))
        tl.store(k_cache + t * (N_K * D_K), k, mask=leads_group)
        tl.store(v_cache + t * (N_V * D_V), v, mask=live)
        tl.store(g_cache + t * (N_V * GATES), g, mask=lead)
        tl.store(beta_cache + t * N_V, strength, mask=lead)
        key, query = k.to(tl.float32), q.to(tl.float32)
        # Norms and scale multiply sums, not vectors; both sums are of the state before the correction.
        k_norm, q_norm = inverse_norm(tl.sum(key * key)), inverse_norm(tl.sum(query * query)) * D_K**-0.5
        s = decayed(s, g, GATES, COLS)
        u = strength * (v.to(tl.float32) - read(s, key) * k_norm)
        out = read(s, query) * q_norm + u * (tl.sum(key * query) * (k_norm * q_norm))
        s = tl.fma((u * k_norm)[None, :, None], key[:, None, :], s)
        tl.store(out_at + t * (N_V * D_V), out.to(out_at.dtype.element_ty), mask=live)
        q, k, v, gate, beta = q_next, k_next, v_next, gate_next, beta_next
    return s


class InputCache:
    """What recovery schemes of the delta rule keep of a token: its inputs, from which corrections are derived again."""

    #: Whether each channel has a decay of its own.
    channelwise: bool

    def gates(self, case: Case) -> int:
        """Return how many decays a head has."""
        return case.shape.d_k if self.channelwise else 1

    def kept(self, case: Case) -> Kept:
        """Return k [n_k_heads, d_k] and v [n_v_heads, d_v] as the layer gave them, and the gates in float32.

        g, the log decay, is [n_v_heads], or [n_v_heads, d_k] where each channel has its own; beta is [n_v_heads], after
        its sigmoid.
        """
        shape = case.shape
        return {
            "k": ((shape.n_k_heads, shape.d_k), case.input_dtype),
            "v": ((shape.n_v_heads, shape.d_v), case.input_dtype),
            "g": ((shape.n_v_heads, shape.d_k) if self.channelwise else (shape.n_v_heads,), "float32"),
            "beta": ((shape.n_v_heads,), "float32"),
        }

    def rerun(self, tensors: Mapping[str, Any], state: Any, cached: Mapping[str, Any], live: Any) -> Any:
        """Return states advanced by cached tokens, sequentially, in float64. Source: paper, Eq. 2 and 3."""
        group = state.shape[1] // cached["k"].shape[2]
        for token in range(live.shape[1]):
            v, beta = cached["v"][:, token].double(), cached["beta"][:, token].double()
            decay = cached["g"][:, token].double().exp()
            k = normalized(cached["k"][:, token].double()).repeat_interleave(group, dim=1)
            new = state * (decay[..., None, :] if self.channelwise else decay[..., None, None])
            u = beta[..., None] * (v - (new * k[..., None, :]).sum(-1))
            new = new + u[..., None] * k[..., None, :]
            state = new.where(live[:, token, None, None, None], state)
        return state

    def constexprs(self, case: Case, rows: int) -> dict[str, int]:
        """Return what kernels are specialized for: the layer's shape, and tiles of ``rows`` rows."""
        shape = case.shape
        return {"N_V": shape.n_v_heads, "N_K": shape.n_k_heads, "D_V": shape.d_v, "D_K": shape.d_k,
                "GATES": self.gates(case), "ROWS": rows, "COLS": columns(case)}  # fmt: skip

    def caches(self, tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the caches in the order in which kernels take them."""
        return tuple(tensors[f"{name}_cache"] for name in KEPT)

    def inputs(self, tensors: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return a step's inputs and the layer's parameters in the order in which kernels take them."""
        return tuple(tensors[name] for name in (*INPUTS, "a_log", "dt_bias"))

    def strides(self, tensors: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the inputs' strides from row to row and from token to token, in elements."""
        return tuple(tensors[name].stride(axis) for name in INPUTS for axis in (0, 1))
