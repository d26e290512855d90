"""Ending a process with everything that it started, wherever that went. Linux only, as Triton is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def descendants(pid: int, proc: Path = PROC) -> list[int]:
    """Return the processes below ``pid``, parents first: children of children too, in whatever session they are."""
    children: dict[int, list[int]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name, in brackets, may hold anything; after it come the state and the parent.
            parent = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(0), [])
        found += below
        todo += below
    return found


def kill(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to processes; those that are gone are left alone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def kill_orphan(pid: int, word: str, proc: Path = PROC) -> None:
    """Kill a process that lost its parent, if it still is the one whose command line has ``word`` in it."""
    with contextlib.suppress(OSError):
        if word in (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0"):
            kill([pid])


def kill_tree(process: subprocess.Popen[bytes], timeout_s: float = 10.0) -> None:
    """End a process that leads a session, all that it started, and what those started; wait until it is gone."""
    tree: list[int] = []
    if process.poll() is None:
        # One that is stopped starts no other, which would be nobody's child once this one is gone.
        new = [process.pid]
        while new:
            kill(new, signal.SIGSTOP)
            tree += new
            new = [pid for pid in descendants(process.pid) if pid not in tree]
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    kill(tree[1:])
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=timeout_s)
