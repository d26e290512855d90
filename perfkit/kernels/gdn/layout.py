"""What all Gated DeltaNet methods share: the bytes of one token, replayed records; and what all families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.kernels.gdn.reference import normalized
from perfkit.kernels.layout import (
    STATE_DTYPES,
    TokenBytes,
    VerifyBytes,
    accepted_nodes,
    correction_records,
    load_state,
    n_slots,
    row_bytes,
    state,
    store_state,
    unsupported,
    unsupported_verify,
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


def token_bytes(shape: Shape, point: Point) -> TokenBytes:
    """Count q, k, v, gate, beta and the slot id read, out written; a_log and dt_bias once a step."""
    values, keys = shape.n_v_heads * shape.d_v, shape.n_k_heads * shape.d_k
    return TokenBytes(
        read=(values + 2 * keys + 2 * shape.n_v_heads) * point.input_bytes + 4,
        write=values * point.input_bytes,
        shared=2 * 4 * shape.n_v_heads,
    )


def verify_bytes(shape: Shape, point: Point) -> VerifyBytes:
    """Count a verify step's inputs and outputs, each address once; kept are v, k, g and β, the gates in FP32."""
    values, keys = shape.n_v_heads * shape.d_v, shape.n_k_heads * shape.d_k
    n = point.draft_len
    return VerifyBytes(
        read=n * (values + 2 * keys + 2 * shape.n_v_heads) * point.input_bytes,
        keep=n * ((values + keys) * point.input_bytes + 2 * 4 * shape.n_v_heads),
        row=row_bytes(point),
        write=n * values * point.input_bytes,
        shared=2 * 4 * shape.n_v_heads,
    )


def replay_tokens(state: Any, cached: Mapping[str, Any], live: Any) -> Any:
    """Return states advanced by records, sequentially, in float64: S = exp(g) S + u kᵀ; for checks.

    Args:
        state: [batch, n_v_heads, d_v, d_k] float64.
        cached: g [batch, tokens, n_v_heads], u [batch, tokens, n_v_heads, d_v] and k [batch, tokens, n_k_heads, d_k]
            as they are stored; k as the layer gave it, not normalized.
        live: [batch, tokens] bool, which of them to apply.

    Source: paper, Eq. 5 and 8.
    """
    group = state.shape[1] // cached["k"].shape[2]
    for token in range(live.shape[1]):
        u, g = cached["u"][:, token].double(), cached["g"][:, token].double()
        k = normalized(cached["k"][:, token].double()).repeat_interleave(group, dim=1)
        new = state * g.exp()[..., None, None] + u[..., None] * k[..., None, :]
        state = new.where(live[:, token, None, None, None], state)
    return state


def records(case: Case, tensors: Mapping[str, Any], slots: Any, at: Any) -> dict[str, Any]:
    """Return g, u and k of records as :func:`replay_tokens` takes them, from the rings.

    Args:
        case: whose rings they are.
        tensors: with u_ring [slots, n_v_heads, ring, d_v] or [slots, n_v_heads, blocks, ring, block], k_ring [slots,
            ring, n_k_heads, d_k] and g_ring [slots, ring, n_v_heads].
        slots: [batch] int64.
        at: [batch, tokens] int64, places in the ring.
    """
    found = {name: tensors[f"{name}_ring"][slots[:, None], at] for name in ("g", "k")}
    return {**found, "u": correction_records(tensors["u_ring"], slots, at, case.shape.d_v)}
