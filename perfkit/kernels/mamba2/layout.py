"""What all Mamba-2 methods share: the state's buffer, the bytes of one token, what they support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.method import Buffer, Case, Number, Point
from perfkit.shape import Shape

STATE_DTYPES = ("float32", "float16", "bfloat16")


def unsupported(case: Case) -> str | None:
    """Return None, or the reason why Mamba-2 kernels cannot run the case."""
    if case.shape.d_k & (case.shape.d_k - 1):
        return f"d_k = {case.shape.d_k} is not a power of two"
    for name, dtype in (("state", case.state_dtype), ("input", case.input_dtype)):
        if dtype not in STATE_DTYPES:
            return f"{name} dtype {dtype}: only {', '.join(STATE_DTYPES)}"
    return None


def n_slots(case: Case) -> int:
    """Return how many states the cache holds: one more than the batch, so that slot ids are not row ids."""
    return int(case.option("n_slots", case.batch + 1))


def state(case: Case) -> Buffer:
    """Return the state cache [slots, n_v_heads, d_v, d_k]."""
    shape = case.shape
    return Buffer((n_slots(case), shape.n_v_heads, shape.d_v, shape.d_k), case.state_dtype, "state")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    """Bytes of one token's inputs and output: per row, and once a step for all rows (``shared``)."""

    read: Number
    write: Number
    shared: Number


def token_bytes(shape: Shape, point: Point) -> TokenBytes:
    """Count x, k, q, dt and the slot id read, out written; a, dt_bias and d_skip once a step."""
    values, keys = shape.n_v_heads * shape.d_v, shape.n_k_heads * shape.d_k
    return TokenBytes(
        read=(values + 2 * keys + shape.n_v_heads) * point.input_bytes + 4,
        write=values * point.input_bytes,
        shared=3 * 4 * shape.n_v_heads,
    )


def store_state(tensors: Mapping[str, Any], value: Any) -> None:
    """Write the live rows' states into their slots, rounded to the state dtype."""
    slots, cache = tensors["slots"].long(), tensors["state"]
    live = slots >= 0
    cache.index_copy_(0, slots[live], value[live].to(cache.dtype))


def load_state(tensors: Mapping[str, Any]) -> Any:
    """Return the rows' states in float64; zeros for padded rows."""
    slots = tensors["slots"].long()
    found = tensors["state"][slots.clamp(min=0)].double()
    return found * (slots >= 0).double()[:, None, None, None]
