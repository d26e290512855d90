"""Reads of a working set that stays in L2: what L2 gives to the SMs, and nothing else.

A launch reads the working set many times over, so that its own start and drain do not count, and launches over the
same buffer find it in L2. L1 is bypassed. Each program walks round and round in a part of the set that is its own
(:func:`apart`): a line that several SMs read at about the same time is fetched once for all of them on the way from L2,
and rates come out beyond what SMs get that read their own states. By the counters of an H200, SMs whose walks overlap
in 4 MiB are given 14.7 TB/s where L2 hands out 6.7.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from perfkit.kernels.lang import tl, triton
from perfkit.method import Config, Launch

ELEMENT_BYTES = 4


@triton.jit
def _l2_read_kernel(a_ptr, b_ptr, tiles, reads, TILE: tl.constexpr):
    # The sum is stored only if it is what finite data of order one never sum to: the loads are not dead code.
    pid = tl.program_id(0)
    at = tl.arange(0, TILE)
    total = tl.zeros([TILE], tl.float32)
    start = pid * tiles // tl.num_programs(0)
    end = tl.maximum((pid + 1) * tiles // tl.num_programs(0), start + 1)
    tile = start
    for _ in range(reads):
        total += tl.load(a_ptr + tile * TILE + at, cache_modifier=".cg")
        tile += 1
        tile = tl.where(tile == end, start, tile)
    tl.store(b_ptr + pid, tl.sum(total, axis=0), mask=tl.max(total, axis=0) > 1e30)


#: ``programs`` an SM, so many that all of them run at once: a second wave would leave SMs without work at the end.
CONFIGS: Sequence[Config] = tuple(
    Config.of(tile=tile, warps=warps, programs=programs)
    for tile, warps, programs in (
        (512, 4, 2), (1024, 4, 4), (1024, 4, 8), (2048, 4, 4), (2048, 4, 8), (4096, 8, 4), (8192, 16, 2),
    )
)  # fmt: skip


def whole_tiles(held: int) -> int:
    """Return the bytes of a working set of at most ``held`` bytes that every configuration reads as whole tiles."""
    largest = max(config["tile"] for config in CONFIGS) * ELEMENT_BYTES
    return held // largest * largest


def apart(held: int, sms: int, configs: Sequence[Config]) -> list[Config]:
    """Return the configurations in which each program has a tile of the working set, or more, to itself.

    Where none has, the one whose programs read the least at a time.

    Args:
        held: bytes of the working set.
        sms: SMs of the GPU.
        configs: of CONFIGS.
    """
    at_once = {config: sms * config["programs"] * config["tile"] * ELEMENT_BYTES for config in configs}
    return [config for config in configs if at_once[config] <= held] or [min(configs, key=at_once.__getitem__)]


def reads_of(held: int, moved: int, sms: int, config: Config) -> int:
    """Return how many tiles each program reads in a launch that moves about ``moved`` bytes.

    All programs together then read as many bytes as a whole number of passes over the working set: :func:`passes_of`.

    Args:
        held: bytes of the working set, of :func:`whole_tiles`.
        moved: bytes.
        sms: SMs of the GPU.
        config: one of CONFIGS.
    """
    tiles, programs = held // (config["tile"] * ELEMENT_BYTES), sms * config["programs"]
    step = tiles // math.gcd(tiles, programs)
    return step * max(1, round(moved / (programs * config["tile"] * ELEMENT_BYTES * step)))


def passes_of(held: int, reads: int, sms: int, config: Config) -> int:
    """Return how many times the bytes of the working set a launch reads whose programs read ``reads`` tiles each."""
    return sms * config["programs"] * reads * config["tile"] * ELEMENT_BYTES // held


def launch(a: Any, b: Any, reads: int, sms: int, config: Config) -> Launch:
    """Return the launch that reads the working set again and again, each program its own part of it.

    Args:
        a: [n] FP32, contiguous, n a multiple of the tile; the working set, only read.
        b: [programs] FP32, never written with data of order one.
        reads: tiles that each program reads.
        sms: SMs of the GPU.
        config: ``tile`` elements, ``warps``, and ``programs`` an SM.

    Raises:
        ValueError: n is not a multiple of the tile.
    """
    tiles, rest = divmod(a.numel(), config["tile"])
    if rest or not tiles:
        raise ValueError(f"{a.numel()} elements are not a whole number of tiles of {config['tile']}")
    grid, args = (sms * config["programs"],), (a, b, tiles, reads)
    return Launch(_l2_read_kernel, grid, args, {"TILE": config["tile"]}, {"num_warps": config["warps"]})
