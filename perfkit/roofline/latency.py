"""The time of a step, from what it moves and computes: launches, then the slowest of memory, arithmetic and chain.

    bound = launches x node + max(body, ALU)        body = max(memory, ramp + serial x L2 trip)

The bound's constants each say where they come from, and no kernel timed so far reaches it. What a method's kernels
add to it is fitted to measured times, its form stands in :mod:`perfkit.roofline.efficiency`, and so is the interval.
Where a method was never measured, in no family, the prediction is the bound itself, and its interval starts there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from perfkit.errors import InputError
from perfkit.roofline.efficiency import Efficiency
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
#: The same of a measured rate of FP32 matrix products, which has issue slots, clock and power in it already: only the
#: mix of five FLOPs in three instructions is left.
ALU_MIX = 5 / 6
#: Bandwidth of L2 over that of memory when everything lies in L2, where it was not measured. Stated.
L2_OVER_DRAM = 1.5
#: The working set may fill this share of L2; the rest holds inputs and the other side of a partitioned L2.
L2_USABLE = 0.75
#: How far a datasheet's roof may be off, as a factor less 1. Stated, not measured.
WIDTH_UNCALIBRATED = 0.35
#: A method without a fit may take up to this factor and this much more than the bound: beyond the slowest tuned
#: kernels timed so far, STree as released (3.0 times, Mamba-2 at T = 2) and fused recovery (2.8, Kimi Delta Attention
#: at T = 8). Replay verify of Kimi Delta Attention, 3.9 times, is the one exception; tests hold the shipped rows to
#: this.
UNFITTED_FACTOR = 3.5
UNFITTED_US = 8.0


class GpuLike(Protocol):
    """What this module reads of ``perfkit.profiles.Gpu``; None where unknown."""

    @property
    def fp32_tflops(self) -> float | None:
        """Dense FP32 rate of the CUDA cores, 10^12 per second."""

    @property
    def bf16_tflops(self) -> float | None:
        """Dense BF16 rate of the tensor cores, 10^12 per second."""

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
    def tensor_flops(self) -> Any:
        """The part of them that are products on tensor cores."""

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
        lo: lower end of the 95 % interval.
        hi: upper end.
        limit: the largest term: DRAM, L2, launch, chain or ALU.
    """

    us: Any
    lo: Any
    hi: Any
    limit: Any


def predict(
    gpu: GpuLike, roofs: Roofs, step: StepLike, *, l2: str = "cold", working_set: Any = None,
    efficiency: Efficiency | None = None, d_v: Any = 0, window: Any = None, flush: Any = 0.0,
) -> Prediction:  # fmt: skip
    """Predict the time of a step inside a CUDA graph.

    Args:
        gpu: its FP32 rate, clock and L2 are read.
        roofs: its roofs; the interval is wider where they are not measured. What they hold of L2's bandwidth and of
            FP32's rate goes before the datasheet.
        step: numbers or arrays that broadcast.
        l2: ``cold`` (the default, as under serving: other layers ran in between) or ``warm``.
        working_set: bytes that stay in a warm L2; the larger of reads and writes when left out.
        efficiency: of the method's kernels, fitted on whatever GPU. Without one, ``us`` is the bound, ``lo`` the
            same (less the doubt about a datasheet's roof), and ``hi`` lies beyond every method measured so far.
        d_v: rows of a head's state, for kernels that walk down them.
        window: of the replay buffer; None for a method without one.
        flush: share of the bytes that rows move which flush; True or False where rows are in step.

    Raises:
        InputError: ``l2`` is neither.
    """
    launch, memory, alu, chain, hot = _terms(gpu, roofs, step, l2, working_set)
    body = np.maximum(memory, chain)
    doubt = 1.0 if roofs.calibrated else 1.0 + WIDTH_UNCALIBRATED
    if efficiency is None:
        us = launch + np.maximum(body, alu)
        lo, hi = us / doubt, (us * UNFITTED_FACTOR + UNFITTED_US) * doubt
    else:
        us = np.asarray(efficiency.time_us(launch, body, d_v, alu, window, flush))
        width = np.exp(np.hypot(np.log1p(efficiency.width_at(window)), math.log(doubt)))
        lo, hi = us / width, us * width
        # What a program waits for beyond its roof is a chain of dependent trips.
        chain = np.maximum(chain, efficiency.fixed_us(d_v, window))
        alu = alu * max(efficiency.arithmetic, 1.0)
    limit = _limits(*np.broadcast_arrays(memory, hot, launch, chain, alu))
    if us.ndim == 0:
        return Prediction(float(us), float(lo), float(hi), str(limit))
    return Prediction(us, lo, hi, limit)


def bound_us(gpu: GpuLike, roofs: Roofs, step: StepLike) -> tuple[Any, Any, Any]:
    """Return the parts of the bound, L2 cold: launches x node, the slower of memory and chain, and arithmetic."""
    launch, memory, alu, chain, _ = _terms(gpu, roofs, step, "cold", None)
    return launch, np.maximum(memory, chain), alu


def _terms(gpu: GpuLike, roofs: Roofs, step: StepLike, l2: str, working_set: Any) -> tuple[NDArray[Any], ...]:
    """Return launch, memory, ALU and chain in us, and whether memory is L2, all of one shape."""
    if l2 not in ("cold", "warm"):
        raise InputError("unknown state of L2", field="l2", value=l2, allowed=("cold", "warm"))
    memory = np.asarray(roofs.time_us(step.bytes_read, step.bytes_write))
    hot: NDArray[np.bool_] = np.zeros(memory.shape, dtype=bool)
    if l2 == "warm" and gpu.l2_mb:
        held = np.maximum(step.bytes_read, step.bytes_write) if working_set is None else np.asarray(working_set)
        hot = np.broadcast_to(held <= L2_USABLE * gpu.l2_mb * 2**20, memory.shape)
        moved = np.asarray(step.bytes_read, dtype=np.float64) + step.bytes_write
        rate = roofs.l2_gb_s(held) if roofs.l2 else L2_OVER_DRAM * roofs.read_gb_s
        memory = np.where(hot, RAMP_US + moved / (np.asarray(rate) * 1e3), memory)
    alu = _alu_us(gpu, roofs, step)
    chain = RAMP_US + np.asarray(step.serial) * CHAIN_CYCLES / (gpu.boost_clock_mhz or DEFAULT_CLOCK_MHZ)
    launch = np.asarray(step.launches) * roofs.graph_node_us
    return tuple(np.broadcast_arrays(launch, memory, alu, chain, hot))


def _alu_us(gpu: GpuLike, roofs: Roofs, step: StepLike) -> NDArray[Any]:
    """Return the time of the FLOPs: state updates at their rate, products on tensor cores at that of BF16.

    Products whose operands need more than BF16's precision are made of two or three; what that takes is left to a fit.
    """
    tensor = np.asarray(step.tensor_flops, dtype=np.float64)
    updates, products = fp32_tflops(gpu, roofs), roofs.rate("bf16") or gpu.bf16_tflops
    slow = (np.asarray(step.flops) - tensor) / (updates * 1e6) if updates else np.zeros(())
    fast = tensor / (products * 1e6) if products else np.zeros(())
    return np.maximum(slow, fast)


def fp32_tflops(gpu: GpuLike, roofs: Roofs) -> float | None:
    """Return the rate at which state updates can issue FP32 operations: measured, else stated, None if unknown."""
    measured = roofs.rate("fp32")
    if measured is not None:
        return ALU_MIX * measured
    return ALU_EFFICIENCY * gpu.fp32_tflops if gpu.fp32_tflops else None


def _limits(
    memory: NDArray[Any], hot: NDArray[np.bool_], launch: NDArray[Any], chain: NDArray[Any], alu: NDArray[Any]
) -> NDArray[np.str_]:
    """Return the name of the largest term, element by element."""
    largest = np.argmax(np.stack((memory, launch, chain, alu)), axis=0)
    index = np.where(largest == 0, np.where(hot, 1, 0), largest + 1)
    return np.asarray(np.array(LIMITS)[index])
