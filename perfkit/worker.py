"""One process that runs cases in one mode: ``python -m perfkit.worker --mode interpret|compile|cuda|fake|roofs``.

The parent writes one JSON request per line on stdin; the worker answers with one JSON event per line on its original
stdout. File descriptor 1 is duplicated first and then points at stderr, so that nothing a kernel or a library prints
can corrupt the stream. The worker ends at ``{"op": "quit"}``, and at once when its stdin closes: its parent is gone.

Requests::

    {"op": "group", "group_id": …, "cases": [Case.to_dict(), …], "settings": {…}}
    {"op": "compile", "cases": […], "targets": [80, 90, …]}
    {"op": "quit"}

Events::

    {"event": "ready", "info": {…}}                                  once
    {"event": "phase", "case_id", "phase", "done", "total"}          the case in flight
    {"event": "span", "name", "start_ns", "end_ns", "args"}          a range that ended, if settings ask for a trace
    {"event": "result", "case_id", "status", "reason", "row", "samples"}   exactly one per case
    {"event": "done", "group_id", "fatal"}                           fatal: this process must not be used again
    {"event": "error", "reason"}                                     a request that is not one
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import MappingProxyType
from typing import IO, Any

from perfkit.errors import poisoned
from perfkit.ranges import Span, listening, mark

Emit = Callable[[dict[str, Any]], None]
HANDLERS = MappingProxyType(
    {
        "cuda": "perfkit.bench",
        "interpret": "perfkit.check",
        "compile": "perfkit.compile",
        "fake": "perfkit.fake",
        "roofs": "perfkit.roofs.handler",
    }
)


class _Lost(BaseException):
    """The process cannot run anything more; not an Exception, so that no handler swallows it."""


class _Run:
    """The events of one request: which case is in flight, and which cases have their result."""

    def __init__(self, emit: Emit, case_ids: list[str]) -> None:
        self._emit = emit
        self.current = case_ids[0] if case_ids else None
        self.finished: set[str] = set()
        self.fatal = False

    def __call__(self, event: dict[str, Any]) -> None:
        kind, case_id = event.get("event"), event.get("case_id")
        if kind == "done":  # sent once, by the worker, after the handler returned
            self.fatal |= bool(event.get("fatal"))
            return
        if kind == "phase" and case_id is not None:
            self.current = case_id
        if kind == "result":
            if case_id in self.finished:
                return
            self.finished.add(str(case_id))
            self.fatal |= bool(event.get("fatal")) or poisoned(str(event.get("reason")))
        self._emit(event)
        if self.fatal:  # what would follow on this context is not to be believed
            raise _Lost


def describe(error: BaseException) -> tuple[str, str]:
    """Return the status and the one-line reason for an exception of a handler."""
    name = type(error).__name__
    text = " ".join(str(error).split())
    if len(text) > 300:
        text = text[:297] + "..."
    lowered = text.lower()
    memory = isinstance(error, MemoryError) or name == "OutOfMemoryError" or "out of memory" in lowered
    reason = f"{name}: {text}" if text else name
    return ("oom" if memory else "error"), reason


def finite(value: Any) -> Any:
    """Return JSON data without NaN and infinities (they become null), numpy scalars as Python numbers."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if hasattr(value, "tolist") and not isinstance(value, (str, bytes)):
        return finite(value.tolist())
    return value


def handle(request: Any, run_group: Callable[[dict[str, Any], Emit], None], emit: Emit) -> None:
    """Run one request; whatever goes wrong inside becomes an event."""
    if not isinstance(request, dict) or request.get("op") not in ("group", "compile"):
        emit({"event": "error", "reason": "not a request: needs op = group, compile or quit"})
        return
    cases = request.get("cases")
    try:
        if not isinstance(cases, list):
            raise TypeError("cases must be a list")
        from perfkit.method import Case

        case_ids = [Case.from_dict(item).id for item in cases]
    except Exception as error:
        emit({"event": "error", "reason": f"bad request: {describe(error)[1]}"})
        return
    run = _Run(emit, case_ids)
    settings = request.get("settings")
    traced = isinstance(settings, dict) and bool(settings.get("trace"))

    def tell(span: Span) -> None:  # not through the run: what has ended is true even of a lost process
        emit({"event": "span", "name": span.name, "start_ns": span.start_ns, "end_ns": span.end_ns,
              "args": dict(span.args)})  # fmt: skip

    try:
        with listening(tell) if traced else nullcontext(), mark(f"group/{request.get('group_id')}"):
            run_group(request, run)
    except _Lost:
        pass
    except Exception as error:
        import traceback

        traceback.print_exc(file=sys.stderr)
        status, reason = describe(error)
        run.fatal |= poisoned(reason)
        if run.current is not None and run.current not in run.finished:
            emit({"event": "result", "case_id": run.current, "status": status, "reason": reason, "row": {},
                  "samples": {}})  # fmt: skip
    emit({"event": "done", "group_id": request.get("group_id"), "fatal": run.fatal})


def facts(mode: str) -> dict[str, Any]:
    """Return what the parent records about this process: versions, and the device where there is one."""
    from perfkit.results import version

    return {"mode": mode, "pid": os.getpid(), **{package: version(package) for package in ("torch", "triton")}}


def _read_requests(stream: IO[str], requests: queue.Queue[str]) -> None:
    for line in stream:
        requests.put(line)
    os._exit(0)  # the parent is gone: whatever runs, nobody waits for it


def serve(mode: str, out: IO[str], requests: queue.Queue[str], load: Callable[[], Any]) -> None:
    """Answer requests until one says quit."""

    def emit(event: dict[str, Any]) -> None:
        out.write(json.dumps(finite(event), allow_nan=False, default=str) + "\n")
        out.flush()

    started = time.monotonic()
    module = load()
    info = facts(mode)
    if hasattr(module, "info"):
        info |= module.info()
    emit({"event": "ready", "info": info | {"start_s": round(time.monotonic() - started, 3)}})
    while True:
        line = requests.get()
        try:
            request = json.loads(line)
        except ValueError as error:
            emit({"event": "error", "reason": f"not JSON: {error}"})
            continue
        if isinstance(request, dict) and request.get("op") == "quit":
            return
        handle(request, module.run_group, emit)


def main(argv: list[str] | None = None) -> int:
    """Run the worker."""
    parser = argparse.ArgumentParser(prog="python -m perfkit.worker", description="run cases for a parent process")
    parser.add_argument("--mode", required=True, choices=sorted(HANDLERS))
    mode = parser.parse_args(argv).mode
    run(mode, lambda: importlib.import_module(HANDLERS[mode]))
    return 0


def run(mode: str, load: Callable[[], Any]) -> None:
    """Take over the standard streams and serve until told to quit; ``load`` returns the module with ``run_group``."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_requests, args=(sys.stdin, requests), daemon=True).start()
    serve(mode, out, requests, load)


if __name__ == "__main__":
    raise SystemExit(main())
