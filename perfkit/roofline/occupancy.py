"""How many warps of a kernel an SM holds, and what a kernel that was timed on one GPU reaches on another.

An SM holds as many programs as registers, shared memory, warps and blocks allow. What a kernel takes beyond its bytes
at the roof is not the memory's: instructions, dependent steps and waiting in the SMs. On another GPU that part goes
with the number of SMs and their clock, not with bandwidth, and grows where an SM holds fewer of its warps.

Source: NVIDIA CUDA C++ Programming Guide (occupancy, limits per compute capability); the rule is that of
:mod:`perfkit.roofline.implementations`, which published times of others' kernels on a B300 bear out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

#: Registers are given to a warp in units of so many, and to so many warps at once; shared memory to a program in units
#: of so many bytes, of which CUDA takes some itself.
REGISTER_UNIT = 256
WARP_UNIT = 4
SHARED_UNIT = 128
SHARED_RESERVED = 1024
THREADS = 32


@dataclass(frozen=True, slots=True)
class Resources:
    """What one program of a compiled kernel takes.

    Attributes:
        registers: per thread.
        shared_bytes: per program.
        warps: per program.
    """

    registers: int
    shared_bytes: int
    warps: int


class Sms(Protocol):
    """What this module reads of ``perfkit.profiles.Gpu``."""

    @property
    def sm_count(self) -> int:
        """SMs."""

    @property
    def boost_clock_mhz(self) -> float | None:
        """Their highest clock; None where unknown."""

    @property
    def regs_per_sm(self) -> int:
        """Registers of an SM."""

    @property
    def smem_per_sm_kb(self) -> int:
        """Shared memory of an SM, KiB."""

    @property
    def max_warps_per_sm(self) -> int:
        """Warps that an SM holds at most."""

    @property
    def max_blocks_per_sm(self) -> int:
        """Programs that an SM holds at most."""


def resident_warps(kernel: Resources, gpu: Sms) -> int:
    """Return the warps of a kernel that an SM holds; 0 if not even one program fits.

    Super's replay decode, 254 registers, 17 KiB and one warp a program: 8 of an H200's 64.
    """
    warp = -(-kernel.registers * THREADS // REGISTER_UNIT) * REGISTER_UNIT
    program = -(-(kernel.shared_bytes + SHARED_RESERVED) // SHARED_UNIT) * SHARED_UNIT
    programs = min(
        gpu.regs_per_sm // max(warp, 1) // WARP_UNIT * WARP_UNIT // kernel.warps, gpu.smem_per_sm_kb * 1024 // program,
        gpu.max_warps_per_sm // kernel.warps, gpu.max_blocks_per_sm,
    )  # fmt: skip
    return programs * kernel.warps


def carried_efficiency(
    efficiency: float, here: Sms, there: Sms, faster_memory: float, kernel: Resources | None = None
) -> float:
    """Return the share of the roof that a kernel reaches on another GPU.

    Args:
        efficiency: the share that it reaches where it was timed.
        here: the GPU that it was timed on.
        there: the other one.
        faster_memory: what its bytes take here over what they take there.
        kernel: what its programs take; without it, as many warps are taken to fit.
    """
    clocks = (here.boost_clock_mhz, there.boost_clock_mhz)
    clock = clocks[0] / clocks[1] if clocks[0] and clocks[1] else 1.0
    excess = (1.0 / efficiency - 1.0) * here.sm_count / there.sm_count * clock
    if kernel is not None:
        held = (resident_warps(kernel, here), resident_warps(kernel, there))
        excess *= held[0] / held[1] if 0 < held[1] < held[0] else 1.0
    return 1.0 / (1.0 + excess * faster_memory)
