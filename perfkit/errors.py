"""Messages and exit codes: what a command says and how it ends.

Every error that a user can cause is an :class:`InputError` with one line that names the file, the field, the value
and what is allowed; the command line prints that line and exits with the code of the class, without a traceback.
"""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of every command, in the order of precedence of :func:`worst`."""

    OK = 0
    FAILED = 1  # a regression, or a case whose kernel is incorrect
    USAGE = 2  # bad input; nothing was started
    INCOMPLETE = 3  # some case ended as oom, crashed, timeout, error or throttled
    MAX_TIME = 124  # --max-time reached; the run can be resumed
    INTERRUPTED = 130  # Ctrl-C; the run can be resumed


_PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.MAX_TIME,
    ExitCode.USAGE,
    ExitCode.FAILED,
    ExitCode.INCOMPLETE,
    ExitCode.OK,
)


def worst(*codes: int) -> ExitCode:
    """Return the exit code that wins when several apply."""
    for code in _PRECEDENCE:
        if code in codes:
            return code
    return ExitCode.OK


#: Words in the message of a CUDA error after which the context cannot be used again.
_POISON = ("illegal memory access", "misaligned address", "illegal instruction", "unspecified launch failure",
           "device-side assert", "launch timed out", "invalid program counter", "cuda error: unknown",
           "uncorrectable", "hardware stack error")  # fmt: skip


class PerfkitError(Exception):
    """An error with a one-line message and an exit code."""

    exit_code: ExitCode = ExitCode.INCOMPLETE


class InputError(PerfkitError):
    """Bad input. The message is one line: file, field, value, what is allowed.

    >>> print(InputError("must be at least 1", field="--batch", value=0))
    --batch: 0: must be at least 1
    """

    exit_code = ExitCode.USAGE

    def __init__(
        self,
        message: str,
        *,
        file: str | Path | None = None,
        field: str | None = None,
        value: Any = None,
        allowed: Any = None,
    ) -> None:
        parts = [str(part) for part in (file, field) if part is not None]
        if value is not None:
            text = repr(value) if isinstance(value, str) else str(value)
            parts.append(text if len(text) <= 80 else text[:77] + "...")
        line = ": ".join([*parts, message])
        if allowed is not None:
            options = allowed if isinstance(allowed, str) else ", ".join(str(item) for item in allowed)
            line += f" (allowed: {options})"
        super().__init__(" ".join(line.split()))


class WriteError(InputError):
    """A file cannot be written: the disk is full, or the folder read-only. Before anything ran, that is bad input."""


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, its type's name where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def one_line(error: BaseException, limit: int = 200) -> str:
    """Return ``Type: message`` on one line of at most ``limit`` characters."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def poisoned(reason: str) -> bool:
    """Say whether a reason tells of a CUDA error after which nothing more can run in the process."""
    lowered = reason.lower()
    return any(word in lowered for word in _POISON)


class DeviceError(PerfkitError):
    """The GPU, its driver or a profiler is missing, busy or refuses; the message says what to do next."""


class IncorrectError(PerfkitError):
    """A kernel disagrees with its oracle."""

    exit_code = ExitCode.FAILED
