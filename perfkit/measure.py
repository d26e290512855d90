"""Times of callables: interleaved rounds on one device, throttled samples dropped, a statistical stop for each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from perfkit.errors import DeviceError
from perfkit.ranges import mark
from perfkit.stats import Interval, Stopping, median_interval

#: Rest between the parts of a long run, in units of the part before.
REST = 2.0
#: Seconds of rest after a round with a throttled sample, at first and at most: each such round doubles it, one without
#: halves it. A GPU at its power cap has to draw less for a while before a sample counts again.
COOL_S = (0.05, 1.0)


class Clock(Protocol):
    """Times one run of a callable on a device."""

    def time_us(self, run: Callable[[], object]) -> float:
        """Return the microseconds that the device took."""
        ...


class CudaClock:
    """CUDA events around a run. Both events are in the stream before the host waits."""

    def __init__(self) -> None:
        import torch

        make: Any = torch.cuda.Event
        self._start, self._end = make(enable_timing=True), make(enable_timing=True)

    def time_us(self, run: Callable[[], object]) -> float:
        """Return the microseconds between two events around ``run``."""
        self._start.record()
        run()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e3


def gpu_properties() -> Any:
    """Return torch's properties of this process's GPU.

    Raises:
        DeviceError: torch sees none.
    """
    import torch

    if not torch.cuda.is_available():
        raise DeviceError("torch sees no CUDA device: check the driver, CUDA_VISIBLE_DEVICES and the torch build")
    return torch.cuda.get_device_properties(0)


def capture(work: Callable[[], object]) -> Any:
    """Return a CUDA graph of the kernels that ``work`` launches; each must have been launched once before."""
    import torch

    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


@dataclass(frozen=True, slots=True)
class Subject:
    """One thing to time.

    Attributes:
        name: unique among the subjects of a group.
        run: enqueues the work, such as a graph's replay.
        prepare: runs before each sample, outside the timed region: restores the state that ``run`` changes.
        units: steps times layers in one run; times are per unit.
        parts: what ``run`` does, in pieces that are timed one after the other, with a rest between them; () for one
            piece. A long run at full power would meet the GPU's power cap, and none of it would count.
        label: what ranges call it; "" for its name.
    """

    name: str
    run: Callable[[], object]
    prepare: Callable[[], object]
    units: int
    parts: tuple[Callable[[], object], ...] = ()
    label: str = ""

    @property
    def range(self) -> str:
        """What ranges call it."""
        return self.label or self.name

    def time_us(self, clock: Clock) -> float:
        """Return the microseconds that one run takes, rests not counted."""
        total = last = 0.0
        for index, part in enumerate(self.parts or (self.run,)):
            if index:
                with mark("wait/rest"):
                    time.sleep(REST * last * 1e-6)
            last = clock.time_us(part)
            total += last
        return total


@dataclass(slots=True)
class Series:
    """The samples of one subject, in microseconds per unit; ``known``: the driver said of each if it throttled."""

    times: list[float] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    throttled: list[float] = field(default_factory=list)
    clocks: list[int] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)
    stop_reason: str | None = None
    known: bool = True

    def interval(self, seed: int = 0) -> Interval:
        """Return the median with its bootstrap interval."""
        return median_interval(self.times, seed=seed)

    @property
    def clock_mhz(self) -> float | None:
        """Median SM clock right after the samples."""
        return statistics.median(self.clocks) if self.clocks else None


def interleave(
    subjects: Sequence[Subject],
    stopping: Stopping,
    clock: Clock,
    monitor: Any = None,
    *,
    seed: int = 0,
    warmup: int = 2,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Series]:
    """Time subjects in rounds, each subject once a round, the order reversed every other round.

    Drift of clocks and temperature so falls on all of them alike. All go on until the last one stops, so that every
    round has a sample of each and ratios can be paired; a subject that never converges stops at the rule's limits.
    A round with a throttled sample is followed by a rest (:data:`COOL_S`).

    Args:
        subjects: what to time.
        stopping: when a subject has enough samples.
        clock: how a run is timed.
        monitor: a :class:`perfkit.device.Monitor`, or None: then nothing is known about throttling.
        seed: of the bootstrap.
        warmup: untimed runs of each subject first.
        progress: told (subject, samples done, samples at most) before each run of it, warm-up included: whoever
            listens knows which subject hangs or faults. Each run has ended before the next subject's begins.

    Returns:
        A series per subject. A series may be empty if every sample was throttled.
    """
    series = {subject.name: Series() for subject in subjects}

    def tell(subject: Subject) -> None:
        if progress is not None:
            done = len(series[subject.name].times)
            progress(subject.name, min(done, stopping.max_samples), stopping.max_samples)

    with mark("warm-up"):
        for subject in subjects:
            tell(subject)
            with mark(f"warm-up/{subject.range}"):
                for _ in range(warmup):
                    subject.prepare()
                    subject.time_us(clock)  # not only enqueued: a fault is of the subject that ran
    with mark("timing"):
        started, index, cool_s = time.monotonic(), 0, 0.0
        while any(one.stop_reason is None for one in series.values()):
            for subject in subjects if index % 2 == 0 else reversed(subjects):
                tell(subject)
                with mark(f"sample/{subject.range}"):
                    _sample(subject, series[subject.name], index, clock, monitor)
            cool_s = _cooling(cool_s, any(index not in one.rounds[-1:] for one in series.values()))
            index += 1
            elapsed = time.monotonic() - started
            for one in series.values():
                reason = stopping.decide(one.times, elapsed, seed=seed).reason
                if reason is None and len(one.times) + len(one.throttled) >= 2 * stopping.max_samples:
                    reason = "max_samples"  # throttled all the time: it will not get better
                one.stop_reason = one.stop_reason or reason
            if elapsed > stopping.max_seconds or index >= 2 * stopping.max_samples:
                break
            if cool_s and any(one.stop_reason is None for one in series.values()):
                with mark("wait/cool"):
                    time.sleep(cool_s)
    for one in series.values():
        one.stop_reason = one.stop_reason or "max_time"
    return series


def _cooling(last_s: float, throttled: bool) -> float:
    """Return the seconds to rest after a round, given the rest before it and whether a sample of it was throttled."""
    first_s, most_s = COOL_S
    if throttled:
        return min(most_s, max(first_s, 2 * last_s))
    return last_s / 2 if last_s > first_s else 0.0


def _sample(subject: Subject, series: Series, index: int, clock: Clock, monitor: Any) -> None:
    subject.prepare()
    before = monitor.snapshot() if monitor is not None else None
    value = subject.time_us(clock) / subject.units
    if monitor is not None:
        verdict = monitor.judge(before, monitor.snapshot())
        series.known &= verdict.known
        if verdict.sm_clock_mhz is not None:
            series.clocks.append(verdict.sm_clock_mhz)
        if verdict.throttled:
            series.throttled.append(value)
            series.reasons.update(verdict.reasons)
            return
    else:
        series.known = False
    series.times.append(value)
    series.rounds.append(index)
