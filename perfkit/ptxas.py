"""What ``ptxas -v`` says of a kernel: registers, spills, stack, shared memory.

Spills are read here and nowhere else: what cuobjdump calls LOCAL reads 0 for kernels that spill kilobytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfkit.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Resources:
    """What one thread and one block of a kernel need; bytes are per thread but for shared memory."""

    registers: int
    spill_stores: int
    spill_loads: int
    stack_bytes: int
    static_shared_bytes: int


_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


def parse(log: str) -> Resources:
    """Parse the log of one kernel with all the functions that it calls (the largest of each counts).

    Raises:
        DeviceError: the log has no resource lines; a silent 0 would read as "no spills".
    """
    frames = [tuple(map(int, match)) for match in _FRAME.findall(log)]
    registers = [int(value) for value in _REGISTERS.findall(log)]
    if not frames or not registers:
        raise DeviceError(f"ptxas -v printed no resources: {log.strip()[:200]!r}")
    stack, stores, loads = (max(column) for column in zip(*frames, strict=True))
    shared = max((int(value) for value in _SHARED.findall(log)), default=0)
    return Resources(max(registers), stores, loads, stack, shared)
