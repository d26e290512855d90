"""One group on the GPU: every case tuned and checked, then all of them timed in interleaved rounds.

A case that fails (unsupported, out of memory, wrong, crashed) gets its result at once and the group runs without it.
What is timed is a CUDA graph of whole periods over enough independent copies of the buffers that L2 stays as cold as
under serving; the state is restored before every sample.
"""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from perfkit import registry
from perfkit.check import check_case, check_group
from perfkit.device import Monitor, visible_gpu
from perfkit.errors import DeviceError, first_line
from perfkit.measure import Clock, CudaClock, Series, Subject, gpu_properties, interleave
from perfkit.method import Case, Point
from perfkit.ranges import mark
from perfkit.results import version
from perfkit.session import Session
from perfkit.stats import Stopping, aa_difference, by_round, p99, ratio_interval
from perfkit.tune import Store, Tuned
from perfkit.tuning import Place, tune_session, untuned

Emit = Callable[[dict[str, Any]], None]
Row = Mapping[str, Any]

#: Bytes that a graph touches before it returns to the same buffer, in units of L2.
COLD_L2 = 7
#: Fewest steps in a timed graph: what a graph's launch adds is divided by steps times copies.
MIN_STEPS = 16
MAX_COPIES = 256
#: Samples of what is reported beside the main time (warm, non-flush).
SIDE_SAMPLES = 12


def info() -> dict[str, Any]:
    """Return the device's facts for the ready event.

    Raises:
        DeviceError: torch sees no GPU.
    """
    properties = gpu_properties()
    return {
        "gpu": properties.name,
        "sm_count": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": properties.L2_cache_size,
        "cuda": torch.version.cuda,
    }


class Cuda:
    """The GPU of this process: what a group needs of it. Tests put a slow stand-in in its place."""

    torch_device = "cuda"

    def __init__(self) -> None:
        properties = gpu_properties()
        self.name: str = properties.name
        self.l2_bytes: int = properties.L2_cache_size
        self.clock: Clock = CudaClock()

    def release(self) -> None:
        """Give memory of what is gone back to the device."""
        gc.collect()
        torch.cuda.empty_cache()

    def monitor(self) -> Any:
        """Return a context manager that watches clocks and throttling; it knows nothing where NVML is missing."""
        try:
            return Monitor(visible_gpu().uuid)
        except DeviceError:
            return Monitor("")


@dataclass(slots=True)
class _Running:
    """A case on its way through the group."""

    case: Case
    session: Session
    tuned: Tuned
    row: dict[str, Any]
    saved: list[dict[str, torch.Tensor]] = field(default_factory=list)
    subject: Subject | None = None


class Group:
    """The cases of one request."""

    def __init__(self, settings: Mapping[str, Any], emit: Emit, device: Any = None, store: Store | None = None) -> None:
        self.settings, self.emit = settings, emit
        self.seed = int(settings.get("seed") or 0)
        self.device = device or Cuda()
        self.clock, self.l2_bytes = self.device.clock, self.device.l2_bytes
        self.store = store or Store()
        self.versions = {"torch": torch.__version__, "triton": version("triton")}

    def run(self, cases: Sequence[Case]) -> None:
        """Run the cases; every one of them gets exactly one result."""
        running = []
        for case in cases:
            prepared = self._guarded(case, partial(self._prepare, case))
            if prepared is not None:
                running.append(prepared)
        ready = []
        for item in running:
            if self._guarded(item.case, partial(self._ready, item)) is not None:
                ready.append(item)
            else:
                item.session.copies.clear()  # its memory is the others'
                item.saved.clear()
        if ready:
            self._time(ready)

    def _guarded(self, case: Case, work: Callable[[], Any]) -> Any:
        """Do the work of one case; on failure emit its result and return None."""
        try:
            return work()
        except torch.cuda.OutOfMemoryError as error:
            status, reason = "oom", first_line(error) + _others_memory()
        except _Incorrect as error:
            status, reason = "incorrect", str(error)
        except Exception as error:
            status, reason = "error", f"{type(error).__name__}: {first_line(error)}"
        self.device.release()
        self._result(case, status, reason, {})
        return None

    def _prepare(self, case: Case) -> _Running | None:
        """Tune, check and allocate a case; None after it was skipped."""
        method = registry.get_method(case.shape.family, case.method, case.phase)
        reason = method.supports(case)
        if reason is not None:
            self._result(case, "skipped", reason, {})
            return None
        copies = self._copies(case)
        self._phase(case.id, "tune", 0, 1)
        session = Session(case, self.device.torch_device, seed=self.seed, copies=copies)
        with mark(f"tune/{case.method}"):
            tuned = self._tune(session, partial(self._phase, case.id, "tune"))
        session.config = tuned.config
        self._phase(case.id, "check", 0, 1)
        tell = partial(self._phase, case.id, "check")
        outcome = check_case(case, self.device.torch_device, tuned.config, seed=self.seed, progress=tell)
        if not outcome.ok:
            raise _Incorrect(f"{tuned.config}: {outcome.reason}")
        row = {
            "checked": "gpu", "rel_error": outcome.rel_error, "launch_config": str(tuned.config),
            "l2_state": "cold", "steps_per_sample": _steps(session),
        }  # fmt: skip
        return _Running(case, session, tuned, row)

    def _tune(self, session: Session, progress: Callable[[int, int], None]) -> Tuned:
        if not self.settings.get("tune", True):
            return untuned(session)
        place = Place(self.device.name, self.versions, self.clock, self.store)
        return tune_session(session, range(_steps(session)), place, progress)

    def _copies(self, case: Case) -> int:
        """Return how many copies keep L2 cold: a graph touches COLD_L2 times L2 before it comes back to a buffer."""
        method = registry.get_method(case.shape.family, case.method, case.phase)
        step = method.step(case.shape, Point.of(case), 0, False)
        touched = float(step.bytes_read)
        return max(case.n_layers, min(MAX_COPIES, math.ceil(COLD_L2 * self.l2_bytes / touched)))

    # Timing

    def _ready(self, item: _Running) -> bool:
        """Capture the graph of a case, after the tuning of all of them, so that memory is what timing will have."""
        session, steps = item.session, range(_steps(item.session))
        item.saved = session.snapshot()  # before any launch: every copy starts a period
        kernels = session.compiled()
        item.row |= {
            "registers": max((k.n_regs for k in kernels), default=None),
            "spill_bytes": max((4 * k.n_spills for k in kernels), default=None),  # Triton counts words
            "shared_bytes": max((k.metadata.shared for k in kernels), default=None),
        }
        launches = session.run(range(1))
        item.row["launches"] = launches / len(session.copies)
        session.restore(item.saved)
        with mark(f"capture/{item.case.method}"):
            item.subject = session.subject(item.case.id, steps, item.saved)
        return True

    def _time(self, items: Sequence[_Running]) -> None:
        control = next(
            (item for item in items if item.case.method == "conventional" and item.case.phase == "decode"), items[0]
        )
        subjects = [item.subject for item in items if item.subject is not None]
        assert control.subject is not None
        again = Subject("A/A", control.subject.run, control.subject.prepare, control.subject.units)
        with mark("time"), self.device.monitor() as monitor:
            series = interleave(
                [*subjects, again], Stopping.of(self.settings), self.clock, monitor, seed=self.seed,
                progress=lambda name, done, total: None if name == "A/A" else self._phase(name, "time", done, total),
            )  # fmt: skip
        for item in items:
            self._guarded(item.case, partial(self._finish, item, series, control))

    def _finish(self, item: _Running, series: Mapping[str, Series], control: _Running) -> None:
        mine, base = series[item.case.id], series[control.case.id]
        row = item.row | {
            "n_samples": len(mine.times), "n_throttled": len(mine.throttled), "stop_reason": mine.stop_reason,
            "sm_clock_mhz": mine.clock_mhz, "throttle_reasons": ", ".join(sorted(mine.reasons)) or None,
        }  # fmt: skip
        samples = {"time_us": mine.times, "round": mine.rounds, "throttled_us": mine.throttled}
        if len(mine.times) < 2:
            self._result(item.case, "throttled", f"{len(mine.throttled)} samples, all throttled", row, samples)
            return
        interval = mine.interval(self.seed)
        row |= {
            "time_us": interval.value,
            "time_us_lo": interval.lo,
            "time_us_hi": interval.hi,
            "time_p99_us": p99(mine.times),
        }
        if item.tuned.default_us is not None:
            # The default was timed while tuning; its ratio to the winner's time there carries over to this round.
            row["time_default_us"] = interval.value * item.tuned.default_us / item.tuned.time_us
        if item is control:
            if item.case.method == "conventional":  # else the control failed, and there are no speedups
                row |= {"speedup": 1.0, "speedup_lo": 1.0, "speedup_hi": 1.0}
            if len(series["A/A"].times) >= 2:
                row["aa_difference"] = aa_difference(*_paired(base, series["A/A"])).value
        elif control.case.method == "conventional" and len(base.times) >= 2:
            ratio = ratio_interval(*_paired(base, mine))
            row |= {"speedup": ratio.value, "speedup_lo": ratio.lo, "speedup_hi": ratio.hi}
        try:
            row |= self._beside(item, interval.value)
        except Exception as error:  # the case has its time; what is reported beside it stays empty
            logging.getLogger(__name__).warning("%s: no times beside the main one: %s", item.case.id, first_line(error))
        self._result(item.case, "ok", None, row, samples)

    def _beside(self, item: _Running, mean_us: float) -> dict[str, Any]:
        """Return the times of non-flush and flush steps, and the warm time of a small case."""
        found: dict[str, Any] = {}
        session, period = item.session, item.session.method.period(item.case)
        session.restore(item.saved)
        if item.session.method.windowed and period > 1 and item.case.phase == "decode":
            nonflush = self._median(session, range(period - 1), item.saved)
            found["time_nonflush_us"] = nonflush
            found["time_flush_us"] = period * mean_us - (period - 1) * nonflush
        if session.nbytes / len(session.copies) <= self.l2_bytes / 2 and len(session.copies) > item.case.n_layers:
            copies, session.copies = session.copies, session.copies[:1]
            try:
                found["time_warm_us"] = self._median(session, range(8 * _steps(session)), item.saved[:1])
            finally:
                session.copies = copies
        return found

    def _median(self, session: Session, steps: range, saved: list[dict[str, torch.Tensor]]) -> float:
        subject = session.subject("beside", steps, saved)
        rule = Stopping(min_samples=SIDE_SAMPLES, max_samples=SIDE_SAMPLES, max_seconds=20.0)
        return interleave([subject], rule, self.clock)["beside"].interval(self.seed).value

    # Events

    def _phase(self, case_id: str, phase: str, done: int, total: int) -> None:
        self.emit({"event": "phase", "case_id": case_id, "phase": phase, "done": done, "total": total})

    def _result(self, case: Case, status: str, reason: str | None, row: Row, samples: Row | None = None) -> None:
        self.emit({"event": "result", "case_id": case.id, "status": status, "reason": reason, "row": dict(row),
                   "samples": dict(samples or {})})  # fmt: skip


class _Incorrect(Exception):
    """A kernel disagrees with its oracle, or two configurations of it with each other."""


def run_group(request: Mapping[str, Any], emit: Emit) -> None:
    """Serve a worker's group request on the GPU."""
    if (request.get("settings") or {}).get("check_only"):
        check_group(request, emit, "cuda")  # small cases, each in the configuration that it names
        return
    group = Group(request.get("settings") or {}, emit)
    with torch.no_grad():
        group.run([Case.from_dict(data) for data in request["cases"]])
    group.device.release()


def _steps(session: Session) -> int:
    """Return the steps of a timed graph: whole periods, MIN_STEPS or more."""
    period = session.method.period(session.case)
    return period * math.ceil(MIN_STEPS / period)


def _paired(first: Series, second: Series) -> tuple[Any, Any]:
    rounds = max([*first.rounds, *second.rounds], default=0) + 1
    return by_round(first.rounds, first.times, rounds), by_round(second.rounds, second.times, rounds)


def _others_memory() -> str:
    """Return how much memory other processes hold, for the reason of an out-of-memory case."""
    if not torch.cuda.is_available():
        return ""
    free, total = torch.cuda.mem_get_info()
    others = total - free - torch.cuda.memory_reserved()
    return f" (other processes {others / 1e9:.0f} GB)" if others > 2e9 else ""


__all__ = ["Group", "info", "run_group"]
