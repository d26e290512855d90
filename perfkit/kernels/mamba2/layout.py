"""What all Mamba-2 methods share: the bytes of one token, replayed records; and what all families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perfkit.kernels.layout import (
    STATE_DTYPES,
    TokenBytes,
    VerifyBytes,
    accepted_nodes,
    load_state,
    n_slots,
    row_bytes,
    state,
    store_state,
    unsupported,
    unsupported_verify,
)
from perfkit.method import Point
from perfkit.shape import Shape

__all__ = [
    "STATE_DTYPES",
    "TokenBytes",
    "VerifyBytes",
    "accepted_nodes",
    "load_state",
    "n_slots",
    "replay_tokens",
    "state",
    "store_state",
    "token_bytes",
    "unsupported",
    "unsupported_verify",
    "verify_bytes",
]


def token_bytes(shape: Shape, point: Point) -> TokenBytes:
    """Count x, k, q, dt and the slot id read, out written; a, dt_bias and d_skip once a step."""
    values, keys = shape.n_v_heads * shape.d_v, shape.n_k_heads * shape.d_k
    return TokenBytes(
        read=(values + 2 * keys + shape.n_v_heads) * point.input_bytes + 4,
        write=values * point.input_bytes,
        shared=3 * 4 * shape.n_v_heads,
    )


def verify_bytes(shape: Shape, point: Point) -> VerifyBytes:
    """Count a verify step's inputs and outputs, each address once; kept are x, k and dt."""
    values, keys = shape.n_v_heads * shape.d_v, shape.n_k_heads * shape.d_k
    n = point.draft_len
    return VerifyBytes(
        read=n * (values + 2 * keys + shape.n_v_heads) * point.input_bytes,
        keep=n * ((values + keys) * point.input_bytes + 4 * shape.n_v_heads),
        row=row_bytes(point),
        write=n * values * point.input_bytes,
        shared=3 * 4 * shape.n_v_heads,
    )


def replay_tokens(tensors: Mapping[str, Any], state: Any, cached: Mapping[str, Any], live: Any) -> Any:
    """Return states advanced by cached tokens, sequentially, in float64; for checks.

    Args:
        tensors: with ``a`` [n_v_heads].
        state: [batch, n_v_heads, d_v, d_k] float64.
        cached: dt [batch, tokens, n_v_heads] after bias and softplus, x [batch, tokens, n_v_heads, d_v] and k
            [batch, tokens, n_k_heads, d_k], as they are stored.
        live: [batch, tokens] bool, which of them to apply.

    Source: paper, Eq. 5.
    """
    a, group = tensors["a"].double(), state.shape[1] // cached["k"].shape[2]
    for token in range(live.shape[1]):
        dt, x = cached["dt"][:, token].double(), cached["x"][:, token].double()
        k = cached["k"][:, token].double().repeat_interleave(group, dim=1)
        new = state * (a * dt).exp()[..., None, None] + (dt[..., None] * x)[..., None] * k[..., None, :]
        state = new.where(live[:, token, None, None, None], state)
    return state
