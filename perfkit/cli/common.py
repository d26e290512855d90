"""What commands share: options, JSON on stdout, tables, everything else on stderr."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfkit.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of a table that goes to a file or a pipe: wide enough that no cell is cut.
PIPE_WIDTH = 240

ModelOption = Annotated[
    str | None,
    typer.Option("--model", metavar="KEY|FILE", help="A model's key (`perfkit list models`) or a config.json."),
]
GpuOption = Annotated[str | None, typer.Option("--gpu", metavar="KEY", help="A GPU's key (`perfkit list gpus`).")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
FlushPhaseOption = Annotated[
    str | None, typer.Option("--flush-phase", metavar="aligned|staggered", help="Rows flush together, or spread.")
]
StateDtypeOption = Annotated[
    str | None, typer.Option("--state-dtype", metavar="LIST", help="fp32, fp16, bf16; default: the model's.")
]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Run folder, new or empty.")]
ResumeOption = Annotated[
    Path | None, typer.Option("--resume", metavar="DIR", help="Go on with a run; takes everything from it.")
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout", metavar="S", help="Seconds a case may take. Default: 300.")
]
MaxTimeOption = Annotated[
    float | None, typer.Option("--max-time", metavar="S", help="Stop after S seconds; exit 124, resumable.")
]


def check_seed(seed: int) -> int:
    """Return a seed that every random generator here takes.

    Raises:
        InputError: below 0, or above 31 bits.
    """
    if not 0 <= seed < 2**31:
        raise InputError("must be a whole number from 0 to 2147483647", field="--seed", value=seed)
    return seed


def to_plain(data: Any) -> Any:
    """Return ``data`` as JSON can hold it: NaN and infinities become null, arrays lists, paths and enums text.

    Raises:
        TypeError: an object of any other kind; a silent ``str`` would hide a mistake.
    """
    if data is None or isinstance(data, (bool, str)):
        return data
    if isinstance(data, Enum):
        return to_plain(data.value)
    if isinstance(data, int):
        return int(data)
    if isinstance(data, float):
        return float(data) if math.isfinite(data) else None
    if isinstance(data, PurePath):
        return str(data)
    if dataclasses.is_dataclass(data) and not isinstance(data, type):
        return {item.name: to_plain(getattr(data, item.name)) for item in dataclasses.fields(data)}
    if isinstance(data, Mapping):
        return {str(key): to_plain(value) for key, value in data.items()}
    if hasattr(data, "tolist"):  # numpy scalars and arrays, without importing numpy
        return to_plain(data.tolist())
    if isinstance(data, (set, frozenset)):
        return sorted((to_plain(item) for item in data), key=str)
    if hasattr(data, "isoformat"):
        return data.isoformat()
    if isinstance(data, Iterable):
        return [to_plain(item) for item in data]
    raise TypeError(f"no JSON for {type(data).__name__}")


def print_json(data: Any) -> None:
    """Print one JSON document on stdout, ASCII only, so that no terminal's encoding matters."""
    sys.stdout.write(json.dumps(to_plain(data), indent=2, allow_nan=False) + "\n")


def _console(stderr: bool) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # rich reads NO_COLOR and COLUMNS itself; without a terminal it would assume 80 columns and cut cells.
    width = None if stream.isatty() or os.environ.get("COLUMNS") else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def out_console() -> Console:
    """Return a console on stdout, for results."""
    return _console(stderr=False)


def err_console() -> Console:
    """Return a console on stderr, for progress, notes and warnings."""
    return _console(stderr=True)


def say(text: str) -> None:
    """Print one line on stderr at once: a note, a warning."""
    print(text, file=sys.stderr, flush=True)


def cell(value: Any) -> str:
    """Return a table cell's text: ``-`` for nothing, thousands grouped, floats in at most four digits."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(cell(item) for item in value) or "-"
    return str(value)


def column_widths(lines: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the width of each column: the widest are folded until all fit into ``width``, but no word is cut.

    Args:
        lines: the header and the rows, as text.
        width: of the terminal; two columns of it go between columns.
    """
    columns = list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in columns]
    words = [max(len(word) for text in column for word in text.split() or [""]) for column in columns]
    words[0] = widths[0]  # what a row is about stays on one line
    while sum(widths) + 2 * len(widths) > width:
        foldable = [index for index, wide in enumerate(widths) if wide > words[index]]
        if not foldable:
            break
        widths[max(foldable, key=widths.__getitem__)] -= 1
    return widths


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print a plain table on stdout; a column of numbers is aligned to the right.

    Text is folded to the terminal's width. No number or word is cut: a terminal too narrow for them wraps the lines.
    """
    from rich.table import Table
    from rich.text import Text

    body = [list(row) for row in rows]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    console = out_console()
    widths = column_widths([list(columns), *([cell(value) for value in row] for row in body)], console.width)
    for index, name in enumerate(columns):
        values = [row[index] for row in body if row[index] is not None]
        numeric = bool(values) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
        table.add_column(Text(name), justify="right" if numeric else "left", width=widths[index])
    for row in body:
        table.add_row(*(Text(cell(value)) for value in row))
    console.width = max(console.width, sum(widths) + 2 * len(widths))
    console.print(table)


def check_limits(timeout: float | None, max_time: float | None) -> None:
    """Refuse a limit that leaves no time.

    Raises:
        InputError: one of them is not above 0, or not finite.
    """
    for flag, number in (("--timeout", timeout), ("--max-time", max_time)):
        if number is not None and not 0 < number < float("inf"):
            raise InputError("must be above 0", field=flag, value=number)
