"""What all Kimi Delta Attention methods share: the bytes of one token, replayed records; and what all families do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.kernels import layout as shared
from perfkit.kernels.gdn.reference import normalized
from perfkit.kernels.layout import (
    STATE_DTYPES,
    TokenBytes,
    VerifyBytes,
    accepted_nodes,
    correction_records,
    head_records,
    load_state,
    n_slots,
    row_bytes,
    state,
    store_state,
)
from perfkit.method import Case, Point
from perfkit.shape import Shape

__all__ = [
    "STATE_DTYPES",
    "TokenBytes",
    "VerifyBytes",
    "accepted_nodes",
    "load_state",
    "n_slots",
    "records",
    "replay_tokens",
    "state",
    "store_state",
    "token_bytes",
    "unsupported",
    "unsupported_verify",
    "verify_bytes",
]


def _heads(case: Case) -> str | None:
    shape = case.shape
    if shape.n_k_heads != shape.n_v_heads:
        return f"{shape.n_v_heads} value heads and {shape.n_k_heads} key heads: KDA has as many of both"
    return None


def unsupported(case: Case) -> str | None:
    """Return None, or the reason why no kernel can run the case."""
    return _heads(case) or shared.unsupported(case)


def unsupported_verify(case: Case) -> str | None:
    """Return None, or the reason why no verify kernel can run the case."""
    return _heads(case) or shared.unsupported_verify(case)


def _token_elements(shape: Shape) -> int:
    """Count elements of v, q, k, gate and beta of a token."""
    return shape.n_v_heads * (shape.d_v + shape.d_k + 1) + 2 * shape.n_k_heads * shape.d_k


def token_bytes(shape: Shape, point: Point) -> TokenBytes:
    """Count q, k, v, gate, beta and the slot id read, out written; a_log and dt_bias once a step."""
    return TokenBytes(
        read=_token_elements(shape) * point.input_bytes + 4,
        write=shape.n_v_heads * shape.d_v * point.input_bytes,
        shared=4 * shape.n_v_heads * (1 + shape.d_k),
    )


def verify_bytes(shape: Shape, point: Point) -> VerifyBytes:
    """Count a verify step's inputs and outputs, each address once; kept are v, k, g and β, the gates in FP32."""
    values, keys = shape.n_v_heads * shape.d_v, shape.n_k_heads * shape.d_k
    n = point.draft_len
    return VerifyBytes(
        read=n * _token_elements(shape) * point.input_bytes,
        keep=n * ((values + keys) * point.input_bytes + 4 * shape.n_v_heads * (shape.d_k + 1)),
        row=row_bytes(point),
        write=n * values * point.input_bytes,
        shared=4 * shape.n_v_heads * (1 + shape.d_k),
    )


def replay_tokens(state: Any, cached: Mapping[str, Any], live: Any) -> Any:
    """Return states advanced by records, sequentially, in float64: S = S diag(exp(g)) + u kᵀ; for checks.

    Args:
        state: [batch, n_heads, d_v, d_k] float64.
        cached: g [batch, tokens, n_heads, d_k], u [batch, tokens, n_heads, d_v] and k [batch, tokens, n_heads, d_k] as
            they are stored; k as the layer gave it, not normalized.
        live: [batch, tokens] bool, which of them to apply.
    """
    for token in range(live.shape[1]):
        u, g = cached["u"][:, token].double(), cached["g"][:, token].double()
        k = normalized(cached["k"][:, token].double())
        new = state * g.exp()[..., None, :] + u[..., None] * k[..., None, :]
        state = new.where(live[:, token, None, None, None], state)
    return state


def records(case: Case, tensors: Mapping[str, Any], slots: Any, at: Any) -> dict[str, Any]:
    """Return g, u and k of records as :func:`replay_tokens` takes them, from rings [slots, n_heads, …].

    Args:
        case: whose rings they are.
        tensors: with u_ring [slots, n_heads, ring, d_v] or [slots, n_heads, blocks, ring, block], k_ring and g_ring
            [slots, n_heads, ring, d_k].
        slots: [batch] int64.
        at: [batch, tokens] int64, positions in the ring.
    """
    found = {name: head_records(tensors[f"{name}_ring"], slots, at) for name in ("g", "k")}
    return {**found, "u": correction_records(tensors["u_ring"], slots, at, case.shape.d_v)}
