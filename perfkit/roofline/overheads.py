"""What a step costs beyond bytes and FLOPs: an engine's own time, per step, per token row and per draft pass.

No engine publishes these as such, so nothing is assumed: left out, they are 0. :data:`OVERHEAD_ESTIMATES` has what
published whole steps determine, each with its interval and with what it was fitted to (:mod:`perfkit.paper.fit`; a test
refits it). Whoever passes one says so by passing it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType

from perfkit.errors import InputError

#: The times that an engine has, t0, c and m.
TIMES = ("step_us", "row_us", "pass_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """An engine's fixed times, in microseconds.

    Attributes:
        step_us: t0, of a step: scheduling, launches, sampling.
        row_us: c, of each of its B * T token rows: activations, convolution windows, sampling.
        pass_us: m, of each of the T - 1 draft passes, beyond the weights that it reads.
        source: where they come from.
        intervals: (name, lo, hi) of those that were fitted: each one's own interval of 95 %. A step's and a row's time
            make up for each other, so both at their lower ends is less likely than either.

    Raises:
        InputError: one that is negative or not finite, or lies outside its interval.
    """

    step_us: float = 0.0
    row_us: float = 0.0
    pass_us: float = 0.0
    source: str = "none: bytes and FLOPs alone"
    intervals: tuple[tuple[str, float, float], ...] = ()

    def __post_init__(self) -> None:
        for name in TIMES:
            value, (low, high) = getattr(self, name), self.interval(name) or (0.0, float("inf"))
            if not (isfinite(value) and value >= 0):
                raise InputError("must be at least 0 us", field=name, value=value)
            if not low <= value <= high:
                raise InputError("must lie in its interval", field=name, value=value, allowed=f"{low:g}..{high:g}")

    def interval(self, name: str) -> tuple[float, float] | None:
        """Return the 95 % interval of one of :data:`TIMES`; None where nothing determines it."""
        return next(((low, high) for one, low, high in self.intervals if one == name), None)


NO_OVERHEADS = Overheads()
#: The one estimate there is: a step's and a row's time of Nemotron-3 Nano 4B on one H100, and a draft pass's, which the
#: published figures hardly tell from nothing, of Qwen3.5-122B on one B300. Elsewhere they are a transfer.
OVERHEAD_ESTIMATES: Mapping[str, Overheads] = MappingProxyType(
    {
        "vllm": Overheads(
            step_us=1050.0,
            row_us=7.7,
            pass_us=120.0,
            intervals=(("step_us", 310.0, 1790.0), ("row_us", 0.17, 15.2), ("pass_us", 0.0, 420.0)),
            source="estimated from the whole-step speedups of vLLM pull request 48018 (Nemotron-3 Nano 4B, one H100; "
            "FP16 state at B = 8, 32, 128, FP32 state at B = 8), a draft pass from the throughput of vLLM pull request "
            "49887 (Qwen3.5-122B, one B300; B = 1 and 32)",
        )
    }
)
