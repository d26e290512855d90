"""Floating-point operations per head; a multiplication and an addition count as two. Arrays broadcast.

Source: paper, App. C.1 (conventional, Mamba-2), Eq. 3 (delta rule), App. C.4 (materialized and output-only replay).
"""

from __future__ import annotations

from typing import Any


def conventional_flops(d_v: Any, d_k: Any) -> Any:
    """Return the FLOPs of one conventional step: decay, outer product, sum, readout. Source: paper, App. C.1."""
    return 5 * d_v * d_k - d_v


def delta_conventional_flops(d_v: Any, d_k: Any) -> Any:
    """Return the FLOPs of one conventional step of a delta rule: 7 d_v d_k + d_v.

    Beside Mamba-2's, S k with 2 d_v d_k − d_v, and u = β (v − α (S k)) with 3 d_v. Gates and norms are left out.
    Source: paper, Eq. 3, counted by the rule of App. C.1.
    """
    return conventional_flops(d_v, d_k) + 2 * d_v * d_k - d_v + 3 * d_v


def conventional_intensity(d_v: Any, d_k: Any, state_bytes: Any = 4) -> Any:
    """Return FLOPs per byte of one conventional step: 0.624 at d_k = 128 and FP32. Source: paper, Eq. 12."""
    return conventional_flops(d_v, d_k) / (2 * state_bytes * d_v * d_k)


def materialized_decode_flops(d_v: Any, d_k: Any, h: Any) -> Any:
    """Return the FLOPs of a replay decode step that rebuilds the state, leading term: 2(h+3) d_v d_k."""
    return 2 * (h + 3) * d_v * d_k


def output_only_decode_flops(d_v: Any, d_k: Any, h: Any) -> Any:
    """Return the FLOPs of a replay decode step that computes the output only. Source: paper, Eq. 14."""
    return 2 * d_v * d_k + 2 * (h + 1) * (d_v + d_k)


def materialized_verify_flops(d_v: Any, d_k: Any, h: Any, draft_len: Any) -> Any:
    """Return the FLOPs of replaying h records and running T conventional steps: (2h+4+5T) d_v d_k."""
    return (2 * h + 4 + 5 * draft_len) * d_v * d_k


def output_only_verify_flops(d_v: Any, d_k: Any, h: Any, draft_len: Any) -> Any:
    """Return the FLOPs of output-only verification of T tokens against h records. Source: paper, Eq. 6, App. C.4."""
    return 2 * draft_len * d_v * d_k + 2 * draft_len * (h + draft_len) * (d_v + d_k)


def record_term_factor(d_v: Any, d_k: Any) -> Any:
    """Return how much smaller output-only makes the term that grows with the buffer: 42.7 at 64 x 128."""
    return d_v * d_k / (d_v + d_k)
