"""Floating-point operations per head; a multiplication and an addition count as two. Arrays broadcast.

The paper counts Mamba-2: App. C.1 (conventional), App. C.4 (materialized and output-only replay). Functions named
``delta`` count the delta rule, which Gated DeltaNet and Kimi Delta Attention have, by the same rules: a token's
correction u = β (v − α S k) reads the state once more, with its key (Eq. 3). :data:`FLOPS` has them by family. Gates
and norms are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


def conventional_flops(d_v: Any, d_k: Any) -> Any:
    """Return the FLOPs of one conventional step: decay, outer product, sum, readout. Source: paper, App. C.1."""
    return 5 * d_v * d_k - d_v


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


def recovery_flops(d_v: Any, d_k: Any, n: Any) -> Any:
    """Return the FLOPs of running n kept tokens again: one decay, then a multiplication and an addition a token."""
    return (2 * n + (n > 0)) * d_v * d_k


def record_term_factor(d_v: Any, d_k: Any) -> Any:
    """Return how much smaller output-only makes the term that grows with the buffer: 42.7 at 64 x 128."""
    return d_v * d_k / (d_v + d_k)


def delta_conventional_flops(d_v: Any, d_k: Any) -> Any:
    """Return the FLOPs of one conventional step of the delta rule: 7 d_v d_k + d_v.

    Beside Mamba-2's: S k with 2 d_v d_k − d_v, and u of it with 3 d_v.
    """
    return conventional_flops(d_v, d_k) + 2 * d_v * d_k - d_v + 3 * d_v


def delta_materialized_decode_flops(d_v: Any, d_k: Any, h: Any) -> Any:
    """Return the FLOPs of a replay decode step that rebuilds the state (Alg. 4), leading term: 2(h+4) d_v d_k."""
    return materialized_decode_flops(d_v, d_k, h) + 2 * d_v * d_k


def delta_output_only_decode_flops(d_v: Any, d_k: Any, h: Any) -> Any:
    """Return the FLOPs of a replay decode step that computes only u and the output: S k and S q over h records."""
    return output_only_decode_flops(d_v, d_k, h) + 2 * d_v * d_k + 2 * h * (d_v + d_k)


def delta_materialized_verify_flops(d_v: Any, d_k: Any, h: Any, draft_len: Any) -> Any:
    """Return the FLOPs of replaying h records and running T conventional steps: (2h+4+7T) d_v d_k."""
    return materialized_verify_flops(d_v, d_k, h, draft_len) + 2 * draft_len * d_v * d_k


def delta_output_only_verify_flops(d_v: Any, d_k: Any, h: Any, draft_len: Any) -> Any:
    """Return the FLOPs of output-only verification of T tokens against h records, corrections included.

    Beside Mamba-2's: the checkpoint times T keys, and each key's products with h records and the drafts before it.
    Source: paper, Eq. 10 and 11.
    """
    pairs = draft_len * h + draft_len * (draft_len - 1) / 2
    return output_only_verify_flops(d_v, d_k, h, draft_len) + 2 * draft_len * d_v * d_k + 2 * pairs * (d_v + d_k)


def delta_recovery_flops(d_v: Any, d_k: Any, n: Any) -> Any:
    """Return the FLOPs of running n kept tokens again: a conventional step each, without its readout S q.

    Decays cannot be gathered into one, since each token's correction needs the state before it.
    """
    return n * (delta_conventional_flops(d_v, d_k) - (2 * d_v * d_k - d_v))


@dataclass(frozen=True, slots=True)
class Flops:
    """A recurrence's counts, as functions of d_v and d_k, of replay of h records too, of verify of T positions too.

    ``recovery`` is of n tokens that a recovery scheme runs again from their inputs.
    """

    conventional: Callable[[Any, Any], Any]
    materialized_decode: Callable[[Any, Any, Any], Any]
    output_only_decode: Callable[[Any, Any, Any], Any]
    materialized_verify: Callable[[Any, Any, Any, Any], Any]
    output_only_verify: Callable[[Any, Any, Any, Any], Any]
    recovery: Callable[[Any, Any, Any], Any]


_OUTER = Flops(
    conventional_flops,
    materialized_decode_flops,
    output_only_decode_flops,
    materialized_verify_flops,
    output_only_verify_flops,
    recovery_flops,
)
_DELTA = Flops(
    delta_conventional_flops,
    delta_materialized_decode_flops,
    delta_output_only_decode_flops,
    delta_materialized_verify_flops,
    delta_output_only_verify_flops,
    delta_recovery_flops,
)
FLOPS: Mapping[str, Flops] = MappingProxyType({"mamba2": _OUTER, "gdn": _DELTA, "kda": _DELTA})
