"""What the methods of all families share: the state's buffer, what kernels support, replayed records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perfkit.method import ACCEPTANCE_STEPS, Buffer, Case, Number, Point
from perfkit.shape import DTYPE_BYTES
from perfkit.tree import MAX_NODES

STATE_DTYPES = ("float32", "float16", "bfloat16")


def unsupported(case: Case) -> str | None:
    """Return None, or the reason why no kernel can run the case."""
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


@dataclass(frozen=True, slots=True)
class VerifyBytes:
    """Bytes of a verify step's inputs and outputs, per row; ``shared`` once a step for all rows.

    Attributes:
        read: the inputs of T positions.
        keep: those that a cache of inputs has to hold, gates in FP32.
        row: slot id, T and acceptance of the row; of a tree the accepted path in place of that, and its masks.
        write: outputs.
        shared: the layer's parameters.
    """

    read: Number
    keep: Number
    row: Number
    write: Number
    shared: Number


def row_bytes(point: Point) -> Number:
    """Count slot id, T and acceptance of a row, and the masks of its tree."""
    return 4 * 3 + (4 * point.draft_len if point.tree else 0)


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


def accepted_nodes(tensors: Mapping[str, Any], step: int, n_nodes: int) -> Any:
    """Return [batch, n_nodes] bool: which of the last step's positions its acceptance, read at ``step``, committed."""
    which = step % ACCEPTANCE_STEPS
    if "path" in tensors:
        path = tensors["path"][which].long()
        return (path[:, None] >> path.new_tensor(range(n_nodes))) % 2 == 1
    accepted = tensors["accepted"][which].long()
    return accepted[:, None] > accepted.new_tensor(range(n_nodes))


def columns(case: Case) -> int:
    """Return how many elements of a state row make 128 bytes, a whole row at most: COLS of the kernels.

    Held as [rows, d_k / COLS, COLS], a tile of rows lies in the lanes of a warp so that a quarter of it owns a row and
    all of the row's chunks: their sum needs no exchange, and one along d_k three exchanges a row where the layout of a
    plain tile, which gives a row to a whole warp, takes five. With chunks as the first axis the compiler spreads them
    over lanes, and a sum takes many times the exchanges. Conventional, snapshot and recovery kernels do hold
    [d_k / COLS, rows, COLS]: on an H200 at B = 256 the other order was slower for conventional ones (Qwen3.5-122B by
    1 %, Kimi-Linear by 3 %), which wait for memory and not for exchanges.
    """
    return min(case.shape.d_k, 128 // int(DTYPE_BYTES[case.state_dtype]))


def head_records(values: Any, slots: Any, at: Any) -> Any:
    """Return records [batch, tokens, n_v_heads, width] of a ring in which the records of a head lie together.

    Args:
        values: [slots, n_v_heads, ring, width].
        slots: [batch] int64.
        at: [batch, tokens] int64, places in the ring.
    """
    return values[slots].transpose(1, 2)[at.new_tensor(range(len(slots)))[:, None], at]


def blocked_records(values: Any, slots: Any, at: Any, d_v: int) -> Any:
    """Return records [batch, tokens, n_v_heads, d_v] of a ring whose rows of d_v lie in blocks.

    Args:
        values: [slots, n_v_heads, blocks, ring, block].
        slots: [batch] int64.
        at: [batch, tokens] int64, places in the ring.
        d_v: rows of a head; the last block may hold more.
    """
    rows = slots.new_tensor(range(len(slots)))
    return head_records(values[slots].transpose(2, 3).flatten(3)[..., :d_v], rows, at)


def correction_records(values: Any, slots: Any, at: Any, d_v: int) -> Any:
    """Return corrections [batch, tokens, n_v_heads, d_v] of a ring as decode has it, head by head, or in blocks."""
    blocked = values.dim() == 5
    return blocked_records(values, slots, at, d_v) if blocked else head_records(values, slots, at)
