"""Clocks and throttle reasons around each sample: a throttled sample is dropped and counted."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from perfkit.device.facts import REASON_FUNCTIONS, SM_CLOCK
from perfkit.device.nvml import first, gpu_by_uuid, read, session
from perfkit.device.reasons import throttling
from perfkit.errors import DeviceError


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The GPU at one moment: the mask of clock reasons and the SM clock; None where the driver does not say."""

    reasons: int | None
    sm_clock_mhz: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the GPU throttled at the start or the end of a sample, and why. ``known`` is False if it cannot tell."""

    throttled: bool
    reasons: tuple[str, ...]
    sm_clock_mhz: int | None
    known: bool = True


class Monitor:
    """Two calls to the driver a snapshot, some tens of microseconds, outside the timed region.

    Without a driver or nvidia-ml-py it works and knows nothing, which :attr:`Verdict.known` says. Use::

        with Monitor(uuid) as monitor:
            before = monitor.snapshot()
            ...  # one sample
            verdict = monitor.judge(before, monitor.snapshot())

    Args:
        uuid: of the physical GPU.
        nvml: another module, for tests.
    """

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        self._uuid = uuid
        self._module = nvml
        self._stack = contextlib.ExitStack()
        self._nvml: Any = None
        self._handle: Any = None
        self._function: str | None = None

    def __enter__(self) -> Monitor:
        try:
            nvml = self._stack.enter_context(session(self._module))
        except DeviceError:
            return self
        handle = gpu_by_uuid(nvml, self._uuid)
        if handle is not None:
            self._nvml, self._handle = nvml, handle
            self._function = next((name for name in REASON_FUNCTIONS if first(nvml, (name,), handle) is not None), None)
        return self

    def __exit__(self, *exc: object) -> None:
        self._nvml = self._handle = None
        self._stack.close()

    def snapshot(self) -> Snapshot:
        """Read the GPU now."""
        if self._nvml is None:
            return Snapshot(None, None)
        reasons = read(self._nvml, self._function, self._handle) if self._function else None
        return Snapshot(reasons, read(self._nvml, "nvmlDeviceGetClockInfo", self._handle, SM_CLOCK))

    def power_w(self) -> float | None:
        """Return the power that the driver reads now, in watts; on newer GPUs a mean over the last second."""
        if self._nvml is None:
            return None
        milliwatts = read(self._nvml, "nvmlDeviceGetPowerUsage", self._handle)
        return None if milliwatts is None else milliwatts / 1000

    @staticmethod
    def judge(before: Snapshot, after: Snapshot) -> Verdict:
        """Say whether a sample between two snapshots is spoiled.

        The clock is the one after the sample: before it the GPU may have been idle.
        """
        mask = (before.reasons or 0) | (after.reasons or 0)
        words = throttling(mask)
        known = before.reasons is not None and after.reasons is not None
        return Verdict(bool(words), words, after.sm_clock_mhz, known)
