"""The parent's end of a worker process: start it, talk to it, know how it died."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from perfkit.errors import DeviceError

_STDERR_LINES = 40


class Ended(Exception):
    """The worker's stdout closed: it is dead or dying."""


def worker_argv(mode: str) -> list[str]:
    """Return the command line of a worker in ``mode``."""
    return [sys.executable, "-m", "perfkit.worker", "--mode", mode]


def worker_env(mode: str, visible: str | None = None) -> dict[str, str]:
    """Return a worker's environment: what must be set before triton or CUDA is initialized in it."""
    env = dict(os.environ)
    # The package of this process, even when it is not installed and the run is started from another folder.
    root = str(Path(__file__).resolve().parents[1])
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    env.pop("TRITON_INTERPRET", None)
    if mode == "interpret":
        env["TRITON_INTERPRET"] = "1"
    if mode == "cuda" and visible:
        env["CUDA_VISIBLE_DEVICES"] = visible
    if mode != "cuda":
        env["CUDA_VISIBLE_DEVICES"] = ""
        env.setdefault("OMP_NUM_THREADS", "1")
    return env


class Child:
    """A worker process in a session of its own, so that Ctrl-C in a terminal reaches only the parent."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], log: Path | None = None) -> None:
        self._events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._log = log
        self._process = subprocess.Popen(
            list(argv), env=dict(env), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace", start_new_session=True,
        )  # fmt: skip
        assert self._process.stdout is not None and self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_events, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self._read_stderr, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self.info: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the worker still runs."""
        return self._process.poll() is None

    def _read_events(self, stream: IO[str]) -> None:
        for line in stream:
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if isinstance(event, dict):
                self._events.put(event)
            else:
                self._stderr.append(f"not an event: {line.strip()}")
        self._events.put(None)

    def _read_stderr(self, stream: IO[str]) -> None:
        for line in stream:
            self._stderr.append(line.rstrip())
            if self._log is not None:
                with contextlib.suppress(OSError), self._log.open("a", encoding="utf-8") as file:
                    file.write(line)

    def wait_ready(self, timeout_s: float) -> dict[str, Any]:
        """Wait for the ready event and return its info.

        Raises:
            DeviceError: the worker ended first, or took longer than ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                event = self.next_event(min(1.0, max(0.0, deadline - time.monotonic())))
            except Ended:
                raise DeviceError(f"the worker ended before it was ready: {self.death()}") from None
            if event is not None and event.get("event") == "ready":
                info = event.get("info")
                self.info = info if isinstance(info, dict) else {}
                return self.info
            if time.monotonic() >= deadline:
                self.kill()
                raise DeviceError(f"the worker was not ready after {timeout_s:g} s{self._tail()}")

    def send(self, request: Mapping[str, Any]) -> None:
        """Write one request.

        Raises:
            Ended: the worker no longer reads.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request, allow_nan=False) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise Ended from error

    def next_event(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next event, or None after ``timeout_s`` without one.

        Raises:
            Ended: there will be none.
        """
        try:
            event = self._events.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            return None
        if event is None:
            self._events.put(None)
            raise Ended
        return event

    def death(self) -> str:
        """Return how the worker ended, in one line: signal or exit code, and its last words."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"its output closed{self._tail()}"
        self._readers[1].join(timeout=1)
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"{signal.Signals(-code).name}{self._tail()}"
        return f"exit code {code}{self._tail()}"

    def _tail(self) -> str:
        lines = [line.strip() for line in self._stderr if line.strip()]
        text = " | ".join(lines[-3:])
        return f": {text[-400:]}" if text else ""

    def kill(self) -> None:
        """End the worker and its own children now, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        self._close()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ask the worker to quit; kill it if it does not."""
        with contextlib.suppress(Ended):
            self.send({"op": "quit"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=timeout_s)
        self.kill()

    def _close(self) -> None:
        if self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.close()
