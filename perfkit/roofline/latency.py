"""The time of a step, from what it moves and computes: launches, then the slowest of memory, arithmetic and chain.

    time = launches x node + max(memory, ALU, ramp + serial x L2 trip)

Every constant says where it comes from. None of them is fitted: the result is a physical estimate with an honest
interval, and a later fit to measured runs may replace the constants but not the form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.roofline.roof import RAMP_US, Roofs

LIMITS = ("DRAM", "L2", "launch", "chain", "ALU")
#: Each dependent state update waits for its token's inputs, one trip to L2: 281 cycles on a GH200, 295 on a B200
#: (github.com/markdewing/AI_kernels, latency/README.md).
CHAIN_CYCLES = 290.0
#: Only where a GPU's clock is unknown.
DEFAULT_CLOCK_MHZ = 1700.0
#: Share of the datasheet's FP32 rate that a state update can issue: its five FLOPs are one product and two fused
#: multiply-adds (5/6), and addresses, conversions and loads take issue slots as well. Stated, not measured.
ALU_EFFICIENCY = 0.5
#: Bandwidth of L2 over that of memory when everything lies in L2. Stated, not measured.
L2_OVER_DRAM = 1.5
#: The working set may fill this share of L2; the rest holds inputs and the other side of a partitioned L2.
L2_USABLE = 0.75
#: Half width of the interval as a factor. Stated, not fitted: under measured roofs a kernel's own efficiency is still
#: open (conventional Mamba-2 kernels came within 4 % of this model on an H200, a plain replay kernel within 12 %).
WIDTH_CALIBRATED = 0.12
WIDTH_UNCALIBRATED = 0.35


class GpuLike(Protocol):
    """What this module reads of ``perfkit.profiles.Gpu``; None where unknown."""

    @property
    def fp32_tflops(self) -> float | None:
        """Dense FP32 rate of the CUDA cores, 10^12 per second."""

    @property
    def l2_mb(self) -> float | None:
        """L2 as CUDA reports it, MiB."""

    @property
    def boost_clock_mhz(self) -> float | None:
        """Highest clock of the SMs."""


class StepLike(Protocol):
    """What this module reads of ``perfkit.method.Step``."""

    @property
    def bytes_read(self) -> Any:
        """Bytes read."""

    @property
    def bytes_write(self) -> Any:
        """Bytes written."""

    @property
    def flops(self) -> Any:
        """Floating-point operations."""

    @property
    def launches(self) -> Any:
        """Kernel launches."""

    @property
    def serial(self) -> Any:
        """Longest chain of dependent state updates."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted times of a step; floats, or arrays of one shape.

    Attributes:
        us: microseconds.
        lo: lower end of the interval.
        hi: upper end.
        limit: the largest term: DRAM, L2, launch, chain or ALU.
    """

    us: Any
    lo: Any
    hi: Any
    limit: Any


def predict(gpu: GpuLike, roofs: Roofs, step: StepLike, *, l2: str = "cold", working_set: Any = None) -> Prediction:
    """Predict the time of a step inside a CUDA graph.

    Args:
        gpu: its FP32 rate, clock and L2 are read.
        roofs: its roofs; the interval is wider where they are not measured.
        step: numbers or arrays that broadcast.
        l2: ``cold`` (the default, as under serving: other layers ran in between) or ``warm``.
        working_set: bytes that stay in a warm L2; the larger of reads and writes when left out.

    Raises:
        InputError: ``l2`` is neither.
    """
    if l2 not in ("cold", "warm"):
        raise InputError("unknown state of L2", field="l2", value=l2, allowed=("cold", "warm"))
    memory = np.asarray(roofs.time_us(step.bytes_read, step.bytes_write))
    hot: NDArray[np.bool_] = np.zeros(memory.shape, dtype=bool)
    if l2 == "warm" and gpu.l2_mb:
        held = np.maximum(step.bytes_read, step.bytes_write) if working_set is None else np.asarray(working_set)
        hot = np.broadcast_to(held <= L2_USABLE * gpu.l2_mb * 2**20, memory.shape)
        moved = np.asarray(step.bytes_read, dtype=np.float64) + step.bytes_write
        memory = np.where(hot, RAMP_US + moved / (L2_OVER_DRAM * roofs.read_gb_s * 1e3), memory)
    alu = np.asarray(step.flops) / (ALU_EFFICIENCY * gpu.fp32_tflops * 1e6) if gpu.fp32_tflops else np.zeros(())
    chain = RAMP_US + np.asarray(step.serial) * CHAIN_CYCLES / (gpu.boost_clock_mhz or DEFAULT_CLOCK_MHZ)
    launch = np.asarray(step.launches) * roofs.graph_node_us
    launch, memory, alu, chain = np.broadcast_arrays(launch, memory, alu, chain)
    us = launch + np.maximum(np.maximum(memory, alu), chain)
    width = 1.0 + (WIDTH_CALIBRATED if roofs.calibrated else WIDTH_UNCALIBRATED)
    limit = _limits(memory, np.broadcast_to(hot, memory.shape), launch, chain, alu)
    if us.ndim == 0:
        return Prediction(float(us), float(us) / width, float(us) * width, str(limit))
    return Prediction(us, us / width, us * width, limit)


def _limits(
    memory: NDArray[Any], hot: NDArray[np.bool_], launch: NDArray[Any], chain: NDArray[Any], alu: NDArray[Any]
) -> NDArray[np.str_]:
    """Return the name of the largest term, element by element."""
    largest = np.argmax(np.stack((memory, launch, chain, alu)), axis=0)
    index = np.where(largest == 0, np.where(hot, 1, 0), largest + 1)
    return np.asarray(np.array(LIMITS)[index])
