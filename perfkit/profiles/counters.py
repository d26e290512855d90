"""Tables of hardware counters: a row for each counted step of a case, written by ``perfkit profile``.

They ship beside the times as ``<name>-counters.csv`` with a manifest. Times under the profiler are in a column of their
own, ``profiled_us``: they are no times of a kernel as it is served.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.measured import COUNTERS_SUFFIX, MEASURED, read_cells, read_manifest

#: Column -> its type and what it means. A row has all of them; a value that is not known is None.
COLUMNS: Mapping[str, tuple[type, str]] = MappingProxyType(
    {
        "case_id": (str, "the case, as in results"),
        "model": (str, "model key"),
        "family": (str, "mamba2, gdn or kda"),
        "gpu": (str, "GPU key"),
        "gpu_uuid": (str, "UUID of the GPU"),
        "method": (str, "method key"),
        "phase": (str, "decode or verify"),
        "batch": (int, "sequences per step"),
        "window": (int, "L; empty for methods without a replay buffer"),
        "draft_len": (int, "T"),
        "acceptance": (str, "tokens that each step commits, as in results"),
        "tree": (str, "draft tree; empty for a chain"),
        "flush_phase": (str, "aligned or staggered"),
        "input_dtype": (str, "dtype of the inputs"),
        "state_dtype": (str, "dtype of the state"),
        "read_dtype": (str, "dtype in which steps that do not flush read the checkpoint"),
        "step": (str, "nonflush, flush, or mixed where rows are out of step"),
        "share": (float, "of the steps in the long run that are of this kind"),
        "h": (int, "committed records before the step; empty of a mix"),
        "launches": (int, "kernels of the step"),
        "launch_config": (str, "launch configuration"),
        "config_source": (str, "tuned, default or given"),
        "bytes_read_paper": (float, "whole states read, the paper's count"),
        "bytes_write_paper": (float, "whole states written, the paper's count"),
        "bytes_read_model": (float, "bytes that the method declares to read, each address once a launch"),
        "bytes_write_model": (float, "the same, written"),
        "bytes_read_dram": (float, "dram__bytes_read.sum, added up over the launches of the step"),
        "bytes_write_dram": (float, "dram__bytes_write.sum, the same"),
        "profiled_us": (float, "gpu__time_duration.sum, the same; under the profiler"),
        "l2_bytes": (float, "lts__t_bytes.sum, the same"),
        "l2_hit_pct": (float, "lts__t_sector_hit_rate.pct, mean weighted by L2 bytes"),
        "occupancy_pct": (float, "sm__warps_active, % of peak while active, mean weighted by time"),
        "dram_pct": (float, "dram__throughput, % of peak, mean weighted by time"),
        "sm_pct": (float, "sm__throughput, % of peak, mean weighted by time"),
        "registers": (int, "per thread, the most of any launch"),
        "l2_capacity": (int, "bytes of L2: writes may be short by what of it is dirty at the end"),
        "cache_control": (str, "all: L2 flushed before each launch; none: as the launch before left it"),
        "clock_control": (str, "none: clocks as they are"),
        "ncu": (str, "version of Nsight Compute"),
        "read_by": (str, "ncu_report or csv"),
    }
)
STEPS = ("nonflush", "flush", "mixed")


def write_counters(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV: a header, Unix line ends, nothing for None.

    Raises:
        KeyError: a row lacks a column.
    """
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([row[name] for name in COLUMNS] for row in rows)


def read_counters(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table of counters; columns that it lacks, of an earlier version, are None.

    Raises:
        InputError: no such file, a ragged line, or a cell that is not of its column's type.
    """
    if not path.is_file():
        raise InputError("no such table of counters", file=path)
    rows = []
    for number, cells in read_cells(path):
        row = {name: _cell(cells.get(name, ""), name, path, number) for name in COLUMNS}
        if row["case_id"] is None or row["step"] not in STEPS:
            raise InputError("is not a table of counters: needs case_id and step", file=path, field=f"line {number}")
        rows.append(row)
    return rows


def load_counters(
    model_key: str | None = None, gpu_key: str | None = None, directory: Path | None = None
) -> list[dict[str, Any]]:
    """Return the shipped counters of a model and a GPU (None: of all), each with its run's manifest as ``manifest``.

    Raises:
        InputError: see :func:`read_counters`; or a table without its manifest.
    """
    found: list[dict[str, Any]] = []
    for path in sorted((directory or MEASURED).glob(f"*{COUNTERS_SUFFIX}.csv")):
        manifest = read_manifest(path.with_name(f"{path.stem}.manifest.json"))
        rows = read_counters(path)
        found += [{**row, "manifest": manifest} for row in rows
                  if model_key in (None, row["model"]) and gpu_key in (None, row["gpu"])]  # fmt: skip
    return found


def case_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the columns of results that the counted steps of one case fill: per step, mean over a period.

    Both are None unless the steps stand for all steps of the case.
    """
    shares = sum(row["share"] for row in rows)
    names = ("bytes_read_dram", "bytes_write_dram")
    if abs(shares - 1) > 1e-6:
        return dict.fromkeys(names)
    return {name: sum(row["share"] * row[name] for row in rows) for name in names}


def _cell(cell: str, column: str, path: Path, number: int) -> Any:
    if cell == "":
        return None
    kind = COLUMNS[column][0]
    try:
        return kind(cell)
    except ValueError:
        raise InputError(f"not {kind.__name__}", file=path, field=f"line {number}: {column}", value=cell) from None
