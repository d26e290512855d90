"""The parent of a sweep: sends groups to a worker, survives what happens to it, records every case exactly once.

A group's ratios must come from one run, so its records are written when the whole group has ended, and a group that a
crash, a hang or a kill cut short is run again as a whole, without the cases that brought it down. The parent imports
neither torch nor triton's compiler and never initializes CUDA.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType
from typing import Any

from perfkit.cases import Group, label
from perfkit.child import Child, Ended
from perfkit.errors import DeviceError, ExitCode, PerfkitError
from perfkit.method import Case
from perfkit.progress import Progress
from perfkit.ranges import Span, mark
from perfkit.trace import Trace

Record = dict[str, Any]
_TICK_S = 0.25


class Interrupted(PerfkitError):
    """Ctrl-C or a termination signal; the run can be resumed."""

    exit_code = ExitCode.INTERRUPTED


class OutOfTime(PerfkitError):
    """``--max-time`` is over; the run can be resumed."""

    exit_code = ExitCode.MAX_TIME


@dataclass(frozen=True, slots=True)
class Limits:
    """How long things may take, in seconds."""

    case_s: float = 300.0
    start_s: float = 180.0
    stop_at: float | None = None  # time.monotonic() at which the run must end


@dataclass(slots=True)
class _Attempt:
    """What one request about a group has told so far."""

    waiting: dict[str, Case]
    current: str
    results: dict[str, Record] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    started: dict[str, str] = field(default_factory=dict)
    span_ns: dict[str, tuple[int, int]] = field(default_factory=dict)
    phases: dict[str, str] = field(default_factory=dict)
    complete: bool = False
    between: bool = False  # a case has failed and none has begun since: what comes now is still its doing


@contextmanager
def signals_as_interrupts() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into :class:`Interrupted` inside the block; only a main thread can take signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(f"interrupted by {signal.Signals(number).name}")

    saved = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in saved.items():
            signal.signal(number, handler)


def now() -> str:
    """Return the time in UTC, as records hold it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Runner:
    """Runs groups through one worker at a time.

    Args:
        spawn: starts a worker process.
        settings: sent with every group.
        limits: timeouts.
        progress: what the user sees.
        name: what a case is called there.
        trace: where ranges of workers and cases go; None without a trace.

    Attributes:
        pids: process ids of all workers so far.
        info: what the last one said of itself.
    """

    def __init__(
        self,
        spawn: Callable[[], Child],
        settings: Mapping[str, Any],
        limits: Limits,
        progress: Progress,
        name: Callable[[Case], str] = label,
        trace: Trace | None = None,
    ) -> None:
        self._name, self._trace = name, trace
        settings = {**settings, "trace": True} if trace is not None else settings
        self._spawn, self._settings, self._limits, self._progress = spawn, dict(settings), limits, progress
        self._child: Child | None = None
        self._shown: set[str] = set()
        self.pids: set[int] = set()
        self.info: dict[str, Any] = {}

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.close(kill=kind is not None)

    def close(self, kill: bool = False) -> None:
        """End the worker."""
        child, self._child = self._child, None
        if child is not None:
            with mark("wait/end of worker", pid=child.pid):
                if kill:
                    child.kill()
                else:
                    child.stop()

    def start(self) -> dict[str, Any]:
        """Return the info of a worker that is ready; starts one if none runs, and once more if that fails.

        Raises:
            DeviceError: no worker gets ready.
        """
        if self._child is not None and not self._child.alive:
            self.close(kill=True)
        for attempt in (1, 2):
            if self._child is None:
                self._child = self._spawn()
                self.pids.add(self._child.pid)
                try:
                    with mark("wait/worker", pid=self._child.pid, attempt=attempt):
                        self.info = self._child.wait_ready(self._limits.start_s)
                except DeviceError as error:
                    self.close(kill=True)
                    if attempt == 2:
                        raise DeviceError(f"{error} (tried twice)") from error
                except BaseException:
                    self.close(kill=True)
                    raise
        return self.info

    def run_group(self, group: Group) -> list[Record]:
        """Run one group to its end; return a record per case: case_id, status, reason, started, ended, row, samples.

        Raises:
            Interrupted, OutOfTime: nothing of this group is to be recorded.
            DeviceError: no worker gets ready.
        """
        failed: dict[str, Record] = {}
        while True:
            rest = [case for case in group.cases if case.id not in failed]
            if not rest:
                return [failed[case.id] for case in group.cases]
            again = {"again_without": sorted(failed)} if failed else {}
            with mark(f"group/{group.group_id}", cases=len(rest), **again):
                attempt = self._attempt(group, rest)
            self._tell(group, attempt)
            if attempt.complete:
                records = failed | attempt.results
                return [records[case.id] for case in group.cases]
            # Results that are good come again with the others; those that went wrong are final.
            lost = {key: record for key, record in attempt.results.items() if record["status"] != "ok"}
            if not lost:
                raise AssertionError("an attempt that did not complete must name a case")
            failed |= lost
            for case in rest:
                if case.id in attempt.results and case.id not in lost:
                    self._progress.note(f"{self._name(case)}: again, with what is left of its group")

    def _attempt(self, group: Group, cases: Sequence[Case]) -> _Attempt:
        attempt = _Attempt({case.id: case for case in cases}, cases[0].id)
        self.start()
        child = self._child
        assert child is not None
        last = time.monotonic()
        self._begin(attempt, attempt.current)
        try:
            child.send({"op": "group", "group_id": group.group_id, "cases": [case.to_dict() for case in cases],
                        "settings": self._settings})  # fmt: skip
            while not attempt.complete:
                event = child.next_event(_TICK_S)
                moment = time.monotonic()
                attempt.spent[attempt.current] = attempt.spent.get(attempt.current, 0.0) + moment - last
                last = moment
                if self._limits.stop_at is not None and moment >= self._limits.stop_at:
                    raise OutOfTime("the time given with --max-time is over")
                if event is not None:
                    self._take(attempt, event)
                    if event.get("event") in ("done", "error"):
                        break
                if attempt.spent.get(attempt.current, 0.0) > self._limits.case_s:
                    self._lost(attempt, "timeout", f"took longer than {self._limits.case_s:g} s")
                    break
        except Ended:
            self._lost(attempt, "crashed", child.death())
        except BaseException:
            self.close(kill=True)
            raise
        return attempt

    def _lost(self, attempt: _Attempt, status: str, reason: str) -> None:
        """End the worker, and with it the case in flight."""
        self.close(kill=True)
        if attempt.waiting and not attempt.between:
            self._end(attempt, attempt.current, status, reason)
        attempt.complete = not attempt.waiting

    @staticmethod
    def _begin(attempt: _Attempt, case_id: str) -> None:
        attempt.current, attempt.between = case_id, False
        attempt.started.setdefault(case_id, now())
        attempt.span_ns.setdefault(case_id, (time.monotonic_ns(), 0))

    def _tell(self, group: Group, attempt: _Attempt) -> None:
        """Put the cases of an attempt into the trace; a good result that comes again is not the one that is kept."""
        places = {case.id: place for place, case in enumerate(group.cases)}
        for case_id, record in attempt.results.items() if self._trace is not None else ():
            case = group.cases[places[case_id]]
            told = {"case_id": case_id, "group_id": group.group_id, "method": case.method,
                    **{name: record[name] for name in ("status", "reason")}, "phase": attempt.phases.get(case_id),
                    **{name: record["row"].get(name) for name in ("time_us", "n_samples", "launches")},
                    "kept": attempt.complete or record["status"] != "ok"}  # fmt: skip
            assert self._trace is not None
            self._trace.case(places[case_id], Span(self._name(case), *attempt.span_ns[case_id], told))

    def _take(self, attempt: _Attempt, event: Mapping[str, Any]) -> None:
        kind, case_id = event.get("event"), str(event.get("case_id"))
        if kind == "span" and self._trace is not None and self._child is not None:
            told = event.get("args")
            span = Span(str(event.get("name")), int(event["start_ns"]), int(event["end_ns"]), dict(told or {}))
            self._trace.worker(self._child.pid, span)
        elif kind == "phase" and case_id in attempt.waiting:
            self._begin(attempt, case_id)
            attempt.phases[case_id] = str(event.get("phase"))
            done, total = (int(event.get(name) or 0) for name in ("done", "total"))
            self._progress.phase(self._name(attempt.waiting[case_id]), str(event.get("phase")), done, total)
        elif kind == "result" and case_id in attempt.waiting:
            row, samples = event.get("row"), event.get("samples")
            self._end(attempt, case_id, str(event.get("status")), event.get("reason"), row, samples)
        elif kind in ("done", "error"):
            if event.get("fatal"):
                self.close(kill=True)
            attempt.complete = not attempt.waiting
            if attempt.waiting and (kind == "error" or all(r["status"] == "ok" for r in attempt.results.values())):
                reason = event.get("reason") or "the worker finished the group without a result for it"
                self._end(attempt, attempt.current, "error", str(reason))
                attempt.complete = not attempt.waiting

    def _end(
        self, attempt: _Attempt, case_id: str, status: str, reason: Any, row: Any = None, samples: Any = None
    ) -> None:
        case = attempt.waiting.pop(case_id)
        started = attempt.started.get(case_id) or now()
        began_ns = attempt.span_ns.get(case_id, (time.monotonic_ns(), 0))[0]
        attempt.span_ns[case_id] = (began_ns, time.monotonic_ns())
        record: Record = {"case_id": case_id, "status": status, "reason": str(reason) if reason else None,
                          "started": started, "ended": now(), "row": dict(row or {}),
                          "samples": dict(samples or {})}  # fmt: skip
        attempt.results[case_id] = record
        attempt.between = status != "ok"
        if attempt.current == case_id and attempt.waiting:
            attempt.current = next(iter(attempt.waiting))
        if case_id not in self._shown:
            self._shown.add(case_id)
            self._progress.case_done(self._name(case), status, record["row"], record["reason"])
