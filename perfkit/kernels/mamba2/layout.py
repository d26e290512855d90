"""What all Mamba-2 methods share: the state's buffer, the bytes of one token, what they support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.method import ACCEPTANCE_STEPS, Buffer, Case, Number, Point
from perfkit.shape import Shape
from perfkit.tree import MAX_NODES

STATE_DTYPES = ("float32", "float16", "bfloat16")


def unsupported(case: Case) -> str | None:
    """Return None, or the reason why Mamba-2 kernels cannot run the case."""
    if case.shape.d_k & (case.shape.d_k - 1):
        return f"d_k = {case.shape.d_k} is not a power of two"
    for name, dtype in (("state", case.state_dtype), ("input", case.input_dtype)):
        if dtype not in STATE_DTYPES:
            return f"{name} dtype {dtype}: only {', '.join(STATE_DTYPES)}"
    return None


def unsupported_verify(case: Case) -> str | None:
    """Return None, or the reason why no verify kernel can run the case."""
    if not 2 <= case.draft_len <= MAX_NODES:
        return f"draft length T = {case.draft_len}: 2 to {MAX_NODES}"
    return unsupported(case)


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


@dataclass(frozen=True, slots=True)
class VerifyBytes:
    """Bytes of a verify step's inputs and outputs, per row; ``shared`` once a step for all rows.

    Attributes:
        read: x, k, q and dt of T positions.
        keep: those of x, k and dt alone: what a cache of the inputs takes, dt in FP32.
        row: slot id, T and acceptance of the row; of a tree its masks and the accepted path too.
        write: outputs.
        shared: a, dt_bias and d_skip.
    """

    read: Number
    keep: Number
    row: Number
    write: Number
    shared: Number


def verify_bytes(shape: Shape, point: Point) -> VerifyBytes:
    """Count a verify step's inputs and outputs, each address once."""
    values, keys = shape.n_v_heads * shape.d_v, shape.n_k_heads * shape.d_k
    n = point.draft_len
    return VerifyBytes(
        read=n * (values + 2 * keys + shape.n_v_heads) * point.input_bytes,
        keep=n * ((values + keys) * point.input_bytes + 4 * shape.n_v_heads),
        row=4 * 3 + (4 * n if point.tree else 0),
        write=n * values * point.input_bytes,
        shared=3 * 4 * shape.n_v_heads,
    )


def store_state(tensors: Mapping[str, Any], value: Any, into: Any = None) -> None:
    """Write the live rows' states into their slots of the cache ``into`` (``state`` if None), rounded to its dtype."""
    slots, cache = tensors["slots"].long(), tensors["state"] if into is None else into
    live = slots >= 0
    cache.index_copy_(0, slots[live], value[live].to(cache.dtype))


def load_state(tensors: Mapping[str, Any], states: Any = None) -> Any:
    """Return the rows' states of the cache ``states`` (``state`` if None), in float64; zeros for padded rows."""
    slots = tensors["slots"].long()
    found = (tensors["state"] if states is None else states)[slots.clamp(min=0)].double()
    return found.where((slots >= 0)[:, None, None, None], 0.0)


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


def accepted_nodes(tensors: Mapping[str, Any], step: int, n_nodes: int) -> Any:
    """Return [batch, n_nodes] bool: which of the last step's positions its acceptance, read at ``step``, committed."""
    which = step % ACCEPTANCE_STEPS
    if "path" in tensors:
        path = tensors["path"][which].long()
        return (path[:, None] >> path.new_tensor(range(n_nodes))) % 2 == 1
    accepted = tensors["accepted"][which].long()
    return accepted[:, None] > accepted.new_tensor(range(n_nodes))
