"""What compiling a kernel yields: checked, printed, and kept for this user's next run.

Compiling takes a second, reading it back a millisecond. What ships is in :mod:`perfkit.profiles.compiled`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from perfkit.cache import cache_root
from perfkit.errors import IncorrectError
from perfkit.profiles.compiled import Compiled

__all__ = ["Compiled", "assert_no_spills", "cache_dir", "locked", "table"]


def assert_no_spills(compiled: Iterable[Compiled]) -> None:
    """Check that nothing spills.

    Raises:
        IncorrectError: some kernel does; names each, with bytes and registers.
    """
    bad = [
        f"{item.kernel} sm_{item.cc} [{item.config}] spills {item.spill_stores}+{item.spill_loads} bytes a thread "
        f"at {item.registers} registers"
        for item in compiled
        if item.spills
    ]
    if bad:
        raise IncorrectError("; ".join(bad))


def cache_dir() -> Path:
    """Return the folder that keeps compiled results."""
    return cache_root() / "compiled"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of one result, so that of several processes one compiles and the others wait for it."""
    from filelock import FileLock

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a folder that cannot be written: everyone compiles for themselves
            path.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(FileLock(path.with_suffix(".lock")))
        yield


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return aligned text of rows of :meth:`Compiled.row`."""
    columns = ("kernel", "cc", "launch_config", "registers", "shared_bytes", "spill_stores", "spill_loads",
               "stack_bytes", "cubin_bytes", "triton")  # fmt: skip
    lines = [columns, *(tuple(str(row.get(name, "")) for name in columns) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                     for line in lines)  # fmt: skip
