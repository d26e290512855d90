"""What compiling a kernel yields, and where it is kept: compiling takes a second, reading it back a millisecond."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perfkit.cache import cache_root
from perfkit.errors import IncorrectError


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel compiled for one GPU architecture.

    Attributes:
        kernel: its name.
        cc: the compute capability as two digits and one: 90, 103.
        config: the launch configuration it was compiled with, as text.
        num_warps: warps per program.
        registers: per thread.
        shared_bytes: per program.
        spill_stores: bytes per thread stored to local memory because registers ran out; 0 is wanted.
        spill_loads: bytes per thread loaded back.
        stack_bytes: stack frame per thread.
        cubin_bytes: size of the binary.
        triton: version that compiled it; registers differ between versions.
        ptx: the assembly, to look for matrix instructions and conversions.
    """

    kernel: str
    cc: int
    config: str
    num_warps: int
    registers: int
    shared_bytes: int
    spill_stores: int
    spill_loads: int
    stack_bytes: int
    cubin_bytes: int
    triton: str
    ptx: str = field(repr=False, compare=False, default="")

    @property
    def spills(self) -> int:
        """Bytes per thread that move because registers ran out."""
        return self.spill_stores + self.spill_loads

    def row(self) -> dict[str, Any]:
        """Return plain JSON data without the assembly."""
        data = asdict(self)
        del data["ptx"]
        return data


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
