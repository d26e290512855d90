"""Copy whole states from one cache to another, slot by slot, as fast as the memory streams.

What methods need that keep a checkpoint apart from the state they work on. Rows without a slot copy nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.kernels.lang import tl, triton
from perfkit.method import Case, Launch


@triton.jit
def _state_copy_kernel(from_ptr, to_ptr, slots_ptr, N_STATE: tl.constexpr, TILE: tl.constexpr):
    tiles: tl.constexpr = (N_STATE + TILE - 1) // TILE
    pid = tl.program_id(0)
    slot = tl.load(slots_ptr + pid // tiles).to(tl.int64)
    if slot < 0:
        return
    at = pid % tiles * TILE + tl.arange(0, TILE)
    values = tl.load(from_ptr + slot * N_STATE + at, mask=at < N_STATE, other=0.0)
    tl.store(to_ptr + slot * N_STATE + at, values, mask=at < N_STATE)


#: Tile (elements a program) and warps: those of the copy stream that measures roofs, 16 to 64 bytes a thread in flight.
COPY_CONFIGS: Sequence[tuple[int, int]] = ((4096, 4), (2048, 2), (8192, 8), (2048, 1))


def copy_launch(case: Case, tensors: Mapping[str, Any], source: Any, target: Any, tile: int, warps: int) -> Launch:
    """Return the launch that copies the states of all rows that have a slot.

    Args:
        case: whose shape and batch.
        tensors: with ``slots`` [batch] int32.
        source: [slots, n_v_heads, d_v, d_k], read.
        target: the same shape and dtype, written; another buffer.
        tile: elements a program, a power of two.
        warps: of a program.
    """
    elements = case.shape.state_elements
    return Launch(
        _state_copy_kernel,
        (case.batch * -(-elements // tile),),
        (source, target, tensors["slots"]),
        {"N_STATE": elements, "TILE": tile},
        {"num_warps": warps, "num_stages": 1},
    )
