"""What a person sees on stderr while cases run: the current case, what is done, the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

#: Without a terminal, at most one line about a case still running in this many seconds.
QUIET_S = 15.0


def duration(seconds: float) -> str:
    """Return a time as people say it: ``40 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def count(n: int, noun: str, plural: str | None = None) -> str:
    """Return ``1 case``, ``3 cases``."""
    return f"{n:,} {noun if n == 1 else plural or noun + 's'}"


class Progress:
    """Silent progress, and the interface of the others."""

    def begin(self, total: int) -> None:
        """Start, with ``total`` cases to do."""

    def phase(self, label: str, phase: str, done: int, total: int) -> None:
        """Say what the worker does now: check, tune, warmup or time; ``done`` of ``total`` within that."""

    def case_done(self, label: str, status: str, row: Mapping[str, Any], reason: str | None) -> None:
        """One case has its result."""

    def note(self, text: str) -> None:
        """Say something once."""

    def close(self) -> None:
        """End; safe to call twice."""


def result_text(status: str, row: Mapping[str, Any], reason: str | None) -> str:
    """Return a case's result for one progress line: its text if it has one, else its time."""
    if status == "ok" and row.get("text"):
        return str(row["text"])
    time_us = row.get("time_us")
    if status == "ok" and time_us is not None:
        return f"{time_us:.4g} us"
    if status == "ok":
        return "ok"
    return f"{status}: {reason}" if reason else status


class PlainProgress(Progress):
    """Lines, for logs and pipes."""

    def __init__(self) -> None:
        self._total = self._done = 0
        self._started = self._last = time.monotonic()

    def begin(self, total: int) -> None:
        """Start, with ``total`` cases to do."""
        self._total, self._done = total, 0
        self._started = self._last = time.monotonic()

    def _left(self) -> str:
        if not self._done or self._done >= self._total:
            return ""
        each = (time.monotonic() - self._started) / self._done
        return f", about {duration(each * (self._total - self._done))} left"

    def phase(self, label: str, phase: str, done: int, total: int) -> None:
        """Print a line now and then."""
        if time.monotonic() - self._last >= QUIET_S:
            self.note(f"[{self._done}/{self._total}] {label}: {phase} {done}/{total}{self._left()}")

    def case_done(self, label: str, status: str, row: Mapping[str, Any], reason: str | None) -> None:
        """Print the case's line."""
        self._done += 1
        self.note(f"[{self._done}/{self._total}] {label}: {result_text(status, row, reason)}{self._left()}")

    def note(self, text: str) -> None:
        """Print a line."""
        self._last = time.monotonic()
        print(text, file=sys.stderr, flush=True)


class BarProgress(Progress):
    """A bar with the case in flight and the time left, for terminals; cases that went wrong stay above it."""

    def __init__(self) -> None:
        self._bar: RichProgress | None = None
        self._task: Any = None

    def begin(self, total: int) -> None:
        """Show the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self.close()
        self._bar = Bar(
            BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
            TimeRemainingColumn(), TextColumn("{task.description}"), console=Console(stderr=True), transient=True,
        )  # fmt: skip
        self._bar.start()
        self._task = self._bar.add_task("starting", total=total)

    def phase(self, label: str, phase: str, done: int, total: int) -> None:
        """Show the case in flight."""
        if self._bar is not None:
            count = f" {done}/{total}" if total else ""
            self._bar.update(self._task, description=f"{label}: {phase}{count}")

    def case_done(self, label: str, status: str, row: Mapping[str, Any], reason: str | None) -> None:
        """Advance the bar."""
        if self._bar is not None:
            self._bar.advance(self._task)
            if status != "ok":
                self.note(f"{label}: {result_text(status, row, reason)}")

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def make_progress() -> Progress:
    """Return a bar on a terminal, else plain lines."""
    return BarProgress() if sys.stderr.isatty() else PlainProgress()
