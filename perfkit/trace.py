"""The trace of a sweep: ``trace.json`` of a run folder, which Perfetto and chrome://tracing open.

The parent has lanes for what it does, what it waits for, and each case of a group; a worker has one for what it does
(ranges that nest, see :mod:`perfkit.ranges`) and one for the launches of one step of each case. A run that is resumed
goes on in the same file, at its own time.

Source: Trace Event Format, JSON object format, complete events (``X``) and metadata events (``M``).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfkit.errors import InputError
from perfkit.files import read_json, write_text
from perfkit.ranges import Span
from perfkit.results import clean

NAME = "trace.json"
#: Lanes of a process, as thread ids; cases of a group have one each from CASES on.
PHASES, WAITS, LAUNCHES, CASES = 1, 2, 3, 10
_LANES = {PHASES: "phases", WAITS: "waits", LAUNCHES: "launches of one step, time on the host"}
#: First word of a range -> its lane, where that is not PHASES.
_LANE_OF = {"wait": WAITS, "launch": LAUNCHES}
#: Larger than any process id of Linux: what is added to one that is in the file already.
_PID_STEP = 1 << 22


class Trace:
    """Collects the events of one process of ``sweep`` and of its workers; :meth:`save` adds them to a file."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._wall_ns = time.time_ns() - time.monotonic_ns()  # a span's time plus this is since 1970
        self._started_ns = time.time_ns()
        self._lock = threading.Lock()
        self._processes: dict[int, str] = {self._pid: "perfkit sweep"}
        self._spans: list[tuple[int, int, Span]] = []

    def parent(self, span: Span) -> None:
        """Take a range of this process."""
        self._take(self._pid, _lane(span), span)

    def worker(self, pid: int, span: Span) -> None:
        """Take a range of a worker."""
        with self._lock:
            self._processes.setdefault(pid, "worker")
        self._take(pid, _lane(span), span)

    def case(self, place: int, span: Span) -> None:
        """Take a case from its first phase to its result; ``place`` is its place in its group."""
        self._take(self._pid, CASES + place, span)

    def _take(self, pid: int, lane: int, span: Span) -> None:
        with self._lock:
            self._spans.append((pid, lane, span))

    def save(self, path: Path) -> None:
        """Write the file, atomically; what it holds of earlier processes of the run stays.

        Raises:
            InputError: it cannot be written, or is there and not such a trace.
        """
        old = _read(path) if path.exists() else {}
        epoch_ns = int(old.get("otherData", {}).get("epoch_ns", self._started_ns))
        kept: list[dict[str, Any]] = old.get("traceEvents", [])
        with self._lock:
            spans, processes = list(self._spans), dict(self._processes)
        used = {event["pid"] for event in kept}
        pids = dict(zip(processes, _fresh(processes, used), strict=True))
        events = [*kept, *self._metadata(spans, processes, pids, len(used))]
        events += [_event(span, pids[pid], lane, self._wall_ns - epoch_ns) for pid, lane, span in spans]
        started = datetime.fromtimestamp(epoch_ns / 1e9, UTC).isoformat(timespec="milliseconds")
        document = {"traceEvents": events, "displayTimeUnit": "ms",
                    "otherData": {"program": "perfkit", "started": started, "epoch_ns": epoch_ns}}  # fmt: skip
        write_text(path, json.dumps(document, allow_nan=False, separators=(",", ":")) + "\n")

    def _metadata(
        self, spans: Iterable[tuple[int, int, Span]], processes: Mapping[int, str], pids: Mapping[int, int], order: int
    ) -> list[dict[str, Any]]:
        """Return the events that name processes and lanes and put them in order."""
        when = f"{datetime.fromtimestamp(self._started_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC"
        lanes = sorted({(pid, lane) for pid, lane, _ in spans})
        events = []
        for place, (pid, name) in enumerate(processes.items(), start=order):
            name = f"{name}, {when}" if pid == self._pid else f"{name} {pid}"
            events += [_named("process_name", pids[pid], 0, name=name),
                       _named("process_sort_index", pids[pid], 0, sort_index=place)]  # fmt: skip
        for pid, lane in lanes:
            name = _LANES.get(lane, f"case {lane - CASES + 1} of a group")
            events += [_named("thread_name", pids[pid], lane, name=name),
                       _named("thread_sort_index", pids[pid], lane, sort_index=lane)]  # fmt: skip
        return events


def _lane(span: Span) -> int:
    return _LANE_OF.get(span.name.partition("/")[0], PHASES)


def _fresh(pids: Iterable[int], used: Iterable[int]) -> list[int]:
    """Return process ids that are not used yet: a resumed run may get one again."""
    taken, found = set(used), []
    for pid in pids:
        while pid in taken:
            pid += _PID_STEP
        taken.add(pid)
        found.append(pid)
    return found


def _event(span: Span, pid: int, lane: int, shift_ns: int) -> dict[str, Any]:
    category = "case" if lane >= CASES else span.name.partition("/")[0]
    return {"name": span.name, "cat": category, "ph": "X", "ts": round((span.start_ns + shift_ns) / 1e3, 3),
            "dur": round(max(0, span.end_ns - span.start_ns) / 1e3, 3), "pid": pid, "tid": lane,
            "args": clean(dict(span.args))}  # fmt: skip


def _named(name: str, pid: int, lane: int, /, **args: Any) -> dict[str, Any]:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": lane, "args": args}


def _read(path: Path) -> dict[str, Any]:
    """Return a file that :meth:`Trace.save` wrote."""
    data = read_json(path)
    events, other = data.get("traceEvents"), data.get("otherData")
    right = isinstance(events, list) and isinstance(other, dict) and isinstance(other.get("epoch_ns"), int)
    if not right or not all(isinstance(event, dict) and isinstance(event.get("pid"), int) for event in events or ()):
        raise InputError("is not a trace of this run; move it away", file=path)
    return data
