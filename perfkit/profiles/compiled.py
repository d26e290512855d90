"""What compiling yields, shipped: registers, shared memory and spills of kernels on GPUs that are not here.

``compiled/<Triton version>.csv`` has a row for each kernel, launch configuration and compute capability. The key is a
digest of all that the compiler is given (:mod:`perfkit.specialize`): a kernel that was changed has another one, so a
row is found for the very kernel that it was made from, or not at all. ``make compiled`` writes the files.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from io import StringIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.fields import text
from perfkit.profiles.measured import read_cells

COMPILED = Path(__file__).parent / "compiled"
_KEY = re.compile(r"[0-9a-f]{32}")


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
        cubin_bytes: size of the binary, most of it the table of source lines, which holds the file's path: it differs
            between checkouts by some hundred bytes.
        triton: version that compiled it; registers differ between versions.
        key: digest of all that the compiler was given, 32 hexadecimal digits.
        ptx: the assembly, to look for matrix instructions and conversions; "" of a shipped row.
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
    key: str
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


#: Columns of a file, in order; the version of Triton is its name.
COLUMNS = ("key", "kernel", "cc", "config", "num_warps", "registers", "shared_bytes", "spill_stores", "spill_loads",
           "stack_bytes", "cubin_bytes")  # fmt: skip
_TEXTS = ("key", "kernel", "config")


def compiled_files(directory: Path | None = None) -> dict[str, Path]:
    """Return the shipped files by version of Triton."""
    return {path.stem: path for path in sorted((directory or COMPILED).glob("*.csv"))}


@cache
def shipped(triton_version: str) -> Mapping[str, Compiled]:
    """Return what :func:`load_compiled` does of the tables that ship, read once.

    Raises:
        InputError: as it.
    """
    return MappingProxyType(load_compiled(triton_version))


def load_compiled(triton_version: str, directory: Path | None = None) -> dict[str, Compiled]:
    """Return the rows of a version of Triton by key; none if there is no table of it.

    Raises:
        InputError: other columns, a ragged line, a cell that is not of its column's type, or a key that is there twice.
    """
    path = compiled_files(directory).get(triton_version)
    found: dict[str, Compiled] = {}
    for number, cells in read_cells(path) if path is not None else ():
        assert path is not None
        where = f"line {number}"
        if tuple(cells) != COLUMNS:
            raise InputError("has other columns", file=path, field="line 1", value=",".join(cells), allowed=COLUMNS)
        values: dict[str, Any] = {
            name: cell if name in _TEXTS else _whole(cell, path, f"{where}: {name}") for name, cell in cells.items()
        }
        text(values["kernel"], file=path, field=f"{where}: kernel")
        row = Compiled(**values, triton=triton_version)
        if not _KEY.fullmatch(row.key):
            raise InputError("not 32 hexadecimal digits", file=path, field=f"{where}: key", value=row.key)
        if row.key in found:
            raise InputError("is there twice", file=path, field=f"{where}: key", value=row.key)
        found[row.key] = row
    return found


def compiled_text(rows: Iterable[Compiled]) -> str:
    """Return rows as CSV: sorted, so that what changes is near what it replaces."""
    file = StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    ordered = sorted(rows, key=lambda row: (row.kernel, row.cc, row.config, row.key))
    writer.writerows([getattr(row, name) for name in COLUMNS] for row in ordered)
    return file.getvalue()


def _whole(cell: str, path: Path, where: str) -> int:
    if not (cell.isascii() and cell.isdigit()):
        raise InputError("must be a whole number", file=path, field=where, value=cell)
    return int(cell)
