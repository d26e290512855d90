"""Streams over FP32 buffers: read, write, copy, update in place, read several places for one write, and the reverse.

They measure roofs, what a GPU's memory does and nothing else, so each moves its bytes once and computes next to
nothing. A program owns one tile; tile and warps are the launch configuration. All kernels have one signature,
``(a, b, n, TILE)``, over contiguous FP32 buffers; those that write several places take their number, PLACES, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from perfkit.kernels.lang import tl, triton
from perfkit.method import Config, Launch

ELEMENT_BYTES = 4
#: Elements of one place of a stream to several: 2 MiB, what a state of a row and layer takes (Mamba-2: 2 to 4 MiB).
PLACE = 1 << 19


@triton.jit
def _read_kernel(a_ptr, b_ptr, n, TILE: tl.constexpr):
    # The sum is stored only if it is what finite data of order one never sums to: the loads are not dead code, and
    # not a byte is written.
    pid = tl.program_id(0).to(tl.int64)
    at = pid * TILE + tl.arange(0, TILE)
    total = tl.sum(tl.load(a_ptr + at, mask=at < n, other=0.0), axis=0)
    tl.store(b_ptr + pid, total, mask=total > 1e30)


@triton.jit
def _inplace_kernel(a_ptr, b_ptr, n, TILE: tl.constexpr):
    # x = -1 * x + 0.5 comes back every second time: data stay random however often the kernel runs.
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    x = tl.load(a_ptr + at, mask=at < n)
    tl.store(a_ptr + at, 0.5 - x, mask=at < n)


@triton.jit
def _copy_kernel(a_ptr, b_ptr, n, TILE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    tl.store(b_ptr + at, tl.load(a_ptr + at, mask=at < n), mask=at < n)


@triton.jit
def _write_kernel(a_ptr, b_ptr, n, TILE: tl.constexpr):
    # A hash of the index as a number in [1, 2): constants or zeros may be written faster than data.
    at = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    mixed = at.to(tl.int32) * -1640531535
    bits = ((mixed >> 9) & 0x7FFFFF) | 0x3F800000
    tl.store(a_ptr + at, bits.to(tl.float32, bitcast=True), mask=at < n)


@triton.jit
def _spread_kernel(a_ptr, b_ptr, n, TILE: tl.constexpr, PLACES: tl.constexpr):
    # As snapshots lie: [rows, PLACES, n]; a tile of place 0 is read and then written to every place of its row. Data
    # differ from place to place and stay random: of an even number of flips the last place gets what was read.
    per_row = tl.cdiv(n, TILE)
    pid = tl.program_id(0)
    at = pid % per_row * TILE + tl.arange(0, TILE)
    row_ptr = a_ptr + (pid // per_row).to(tl.int64) * n * PLACES
    x = tl.load(row_ptr + at, mask=at < n)
    for place in tl.static_range(PLACES):
        x = 0.5 - x
        # Nothing reads them again soon; on an H200 this is up to 1 % faster.
        tl.store(row_ptr + place * n + at, x, mask=at < n, eviction_policy="evict_first")


@triton.jit
def _gather_kernel(a_ptr, b_ptr, n, TILE: tl.constexpr, PLACES: tl.constexpr):
    # [rows, PLACES, n], as above: every place of a row is read, place 0 written. What the others hold matters only if
    # it is what finite data of order one never sum to: their loads are not dead code, and place 0 stays random.
    per_row = tl.cdiv(n, TILE)
    pid = tl.program_id(0)
    at = pid % per_row * TILE + tl.arange(0, TILE)
    row_ptr = a_ptr + (pid // per_row).to(tl.int64) * n * PLACES
    x = tl.load(row_ptr + at, mask=at < n)
    others = tl.zeros([TILE], tl.float32)
    for place in tl.static_range(1, PLACES):
        others += tl.load(row_ptr + place * n + at, mask=at < n, other=0.0)
    tl.store(row_ptr + at, tl.where(others > 1e30, x, 0.5 - x), mask=at < n)


@dataclass(frozen=True, slots=True)
class Stream:
    """One kind of transfer.

    Attributes:
        kind: read, write, inplace, copy; 4r1w and 2r1w, which read 4 or 2 places and write the first of them; 1r2w,
            1r4w and 1r8w, which write what they read once to 2, 4 or 8 places.
        kernel: the Triton kernel.
        reads: times that it reads n elements, each time from another place.
        writes: times that it writes them, each time to another place.
        buffers: buffers of n elements that it touches.
    """

    kind: str
    kernel: Any
    reads: int
    writes: int
    buffers: int = 1

    @property
    def places(self) -> int:
        """How many times n elements ``a`` holds."""
        return max(self.reads, self.writes)

    def elements(self, moved: int) -> int:
        """Return n for ``moved`` bytes, reads and writes together."""
        return moved // (ELEMENT_BYTES * (self.reads + self.writes))

    def footprint(self, moved: int) -> int:
        """Return the bytes of memory that a launch over ``moved`` bytes touches."""
        return self.buffers * self.elements(moved) * ELEMENT_BYTES

    def launch(self, a: Any, b: Any, config: Config) -> Launch:
        """Return the launch over n elements.

        Args:
            a: [places * n] FP32, contiguous; source of a read or copy, else written. Of several places it is
                [n / PLACE, places, PLACE], or [places, n] for n up to PLACE; place 0 is all that 1rNw reads, and all
                that Nr1w writes.
            b: [n] FP32, contiguous, target of a copy; of a read the place of its sums, at least [programs], never
                written with data of order one; not touched by the others.
            config: ``tile`` elements a program, a power of two, and ``warps``.

        Raises:
            ValueError: several places of more than PLACE elements, and n is not a multiple of it.
        """
        n = a.numel() // self.places
        width = n if self.places == 1 else min(n, PLACE)
        if n % width:
            raise ValueError(f"{self.kind}: {n} elements are no multiple of {width}")
        several = {} if self.places == 1 else {"PLACES": self.places}
        grid = (n // width * triton.cdiv(width, config["tile"]),)
        constexprs = {"TILE": config["tile"], **several}
        return Launch(self.kernel, grid, (a, b, width), constexprs, {"num_warps": config["warps"]})


STREAMS: Mapping[str, Stream] = MappingProxyType(
    {
        "read": Stream("read", _read_kernel, 1, 0),
        "inplace": Stream("inplace", _inplace_kernel, 1, 1),
        "copy": Stream("copy", _copy_kernel, 1, 1, buffers=2),
        "write": Stream("write", _write_kernel, 0, 1),
        **{f"{n}r1w": Stream(f"{n}r1w", _gather_kernel, n, 1, buffers=n) for n in (4, 2)},
        **{f"1r{n}w": Stream(f"1r{n}w", _spread_kernel, 1, n, buffers=n) for n in (2, 4, 8)},
    }
)
#: Small tiles serve small transfers (every SM gets some), large ones keep more bytes in flight per program.
CONFIGS: Sequence[Config] = tuple(
    Config.of(tile=tile, warps=warps) for tile, warps in ((1024, 4), (2048, 1), (4096, 4), (8192, 8))
)


@triton.jit
def _empty_kernel(a_ptr):
    pass


def empty_launch(a: Any) -> Launch:
    """Return the launch of one program that does nothing: what is left is the cost of a launch."""
    return Launch(_empty_kernel, (1,), (a,), {}, {"num_warps": 1})
