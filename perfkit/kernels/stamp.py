"""A time stamp that the GPU takes itself: what the steps of one CUDA graph took, each by itself."""

from __future__ import annotations

from typing import Any

from perfkit.kernels.lang import tl, triton


@triton.jit(do_not_specialize=["index"])
def _stamp_kernel(out_ptr, index):
    # Not pure: the compiler may neither move it nor take two for one.
    now = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    tl.store(out_ptr + index, now)


def stamp(out: Any, index: int) -> Any:
    """Enqueue a stamp: nanoseconds since some start, once everything before it in the stream has ended.

    Args:
        out: [stamps] int64, contiguous; element ``index`` is written.
        index: which stamp.

    The timer advances in ticks of tens of nanoseconds up to a microsecond, depending on the GPU.
    Source: PTX ISA, "Special Registers: %globaltimer".
    """
    return _stamp_kernel[(1,)](out, index, num_warps=1)
