"""One start of Nsight Compute, watched: its events as they come, reasons to end it early, and an end in any case."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfkit.errors import DeviceError, PerfkitError
from perfkit.nsight.command import Job
from perfkit.nsight.processes import descendants, kill, kill_orphan, kill_tree

Event = Mapping[str, Any]
TICK_S = 0.1


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds.

    Attributes:
        start_s: until the target is ready: ``ncu``, torch and CUDA start.
        case_s: one case.
        report_s: writing the report, once the target is done or was ended.
        stop_at: ``time.monotonic()`` at which all must end; None for never.
    """

    start_s: float = 180.0
    case_s: float = 300.0
    report_s: float = 60.0
    stop_at: float | None = None


@dataclass(slots=True)
class Watched:
    """What came of one start.

    Attributes:
        events: of the target, in order.
        hung: the case that took too long; None if none did.
        text: what ``ncu`` said.
        output: what it and the target printed beside that.
        code: exit code of ``ncu``; None if it had to be ended.
    """

    events: list[Event] = field(default_factory=list)
    hung: str | None = None
    text: str = ""
    output: str = ""
    code: int | None = None

    @property
    def ready(self) -> Event | None:
        """The event of a target that got ready, None if it never did."""
        return next((event for event in self.events if event.get("event") == "ready"), None)

    @property
    def in_flight(self) -> str | None:
        """The case that began last and has no end; None if there is none."""
        case: str | None = None
        for event in self.events:
            if event.get("event") == "begin":
                case = str(event.get("case_id"))
            elif event.get("event") in ("done", "failed"):
                case = None
        return case


class OutOfTime(Exception):
    """``Patience.stop_at`` is over."""


def watch(
    argv: Sequence[str],
    env: Mapping[str, str],
    job: Job,
    patience: Patience,
    fatal: Callable[[str], PerfkitError | None],
    tell: Callable[[Event], None],
) -> Watched:
    """Run one job to its end, whatever that is; nothing that it started is left behind.

    A case that takes too long costs the target its life first: ``ncu`` then still reports the cases before it.

    Args:
        argv: the command line.
        env: its environment.
        job: its files.
        patience: timeouts.
        fatal: reads what ``ncu`` has said; an error that it returns ends the job and is raised.
        tell: told every event.

    Raises:
        DeviceError: ``ncu`` does not start, or its target does not get ready in time.
        OutOfTime: see there.
        PerfkitError: what ``fatal`` found.
    """
    found = Watched()
    for path in (job.events, job.log):
        path.write_text("")
    with job.output.open("wb") as output:
        try:
            process = subprocess.Popen(list(argv), env=dict(env), stdin=subprocess.DEVNULL, stdout=output,
                                       stderr=subprocess.STDOUT, start_new_session=True)  # fmt: skip
        except OSError as error:
            raise DeviceError(f"{argv[0]}: {error.strerror or error}") from error
        try:
            _follow(process, job, patience, fatal, tell, found)
        finally:
            kill_tree(process)
            if found.ready is not None:  # an ncu that fell leaves its target to nobody
                kill_orphan(_target(found.ready), str(job.plan.resolve()))
    found.text, found.output = _read(job.log), _read(job.output)
    reason = fatal(found.text + found.output)
    if reason is not None:
        raise reason
    return found


def _follow(
    process: subprocess.Popen[bytes],
    job: Job,
    patience: Patience,
    fatal: Callable[[str], PerfkitError | None],
    tell: Callable[[Event], None],
    found: Watched,
) -> None:
    """Wait for the process, but not forever."""
    events = _Events(job.events)
    last, ended = time.monotonic(), False
    while True:
        over = process.poll() is not None
        for event in events.new():
            found.events.append(event)
            last = time.monotonic()
            tell(event)
        if over:
            found.code = process.returncode
            return
        reason = fatal(_read(job.log))
        if reason is not None:
            raise reason
        moment = time.monotonic()
        if patience.stop_at is not None and moment >= patience.stop_at:
            raise OutOfTime
        waited = moment - last
        if found.ready is None:
            if waited > patience.start_s:
                raise DeviceError(f"ncu did not get its target ready within {patience.start_s:g} s; see {job.log}")
        elif found.in_flight is None or ended:
            if waited > patience.report_s:  # it hangs at writing, or the target's end did not move it
                return
        elif waited > patience.case_s:
            found.hung, ended, last = found.in_flight, True, moment
            target = _target(found.ready)
            kill([target] if target in descendants(process.pid) else [])
        time.sleep(TICK_S)


def _target(ready: Event) -> int:
    return int(ready.get("pid") or 0)


class _Events:
    """Lines of a file that another process appends to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def new(self) -> list[Event]:
        """Return the whole lines that came since the last call; what is no JSON object is left out."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        found: list[Event] = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    found.append(event)
        return found


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
