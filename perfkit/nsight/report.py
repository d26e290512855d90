"""A report of Nsight Compute to launches: through ``ncu_report``, else through the CSV that ``ncu`` makes of it."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from perfkit.errors import DeviceError
from perfkit.nsight.metrics import is_own, to_base
from perfkit.nsight.tool import Tool

#: Seconds that reading a report may take.
READ_S = 180
#: A cell of NVTX ranges: the thread, then "domain:range:…" for each range.
_RANGE = re.compile(r'"([^":]*):([^":]*)(?=[:"])')


@dataclass(frozen=True, slots=True)
class Profiled:
    """One launch as Nsight Compute saw it.

    Attributes:
        kernel: its name.
        ranges: names of the NVTX push/pop ranges around it.
        values: by metric name; perfkit's own in base units (bytes, µs, %), any others as they came.
        units: of those others.
    """

    kernel: str
    ranges: tuple[str, ...]
    values: Mapping[str, float | None]
    units: Mapping[str, str]

    @classmethod
    def of(cls, kernel: str, ranges: Sequence[str], raw: Mapping[str, tuple[float | None, str]]) -> Profiled:
        """Build a launch from values with their units."""
        values = {name: to_base(value, unit) if is_own(name) else value for name, (value, unit) in raw.items()}
        return cls(kernel, tuple(ranges), values, {name: unit for name, (_, unit) in raw.items() if not is_own(name)})


def read_report(tool: Tool, report: Path, metrics: Sequence[str]) -> tuple[list[Profiled], str]:
    """Return the launches of a report in the order in which they ran, and how it was read: ``ncu_report`` or ``csv``.

    Args:
        tool: that made the report.
        report: ``.ncu-rep``.
        metrics: names to keep.

    Raises:
        DeviceError: neither way works; has the reasons of both.
    """
    reason = "ncu_report was not found beside it"
    if tool.python is not None:
        try:
            return _keep(_by_module(tool.python, report), metrics), "ncu_report"
        except DeviceError as error:
            reason = str(error)
    try:
        return _keep(_by_csv(tool, report), metrics), "csv"
    except DeviceError as error:
        raise DeviceError(f"{report} cannot be read: {reason}; as CSV: {error}") from error


def _keep(launches: list[Profiled], metrics: Sequence[str]) -> list[Profiled]:
    """Leave out what was not asked for: reports hold some hundred facts about device and launch."""
    wanted = set(metrics)
    return [
        Profiled(launch.kernel, launch.ranges, {k: v for k, v in launch.values.items() if k in wanted},
                 {k: v for k, v in launch.units.items() if k in wanted})
        for launch in launches
    ]  # fmt: skip


def _by_module(folder: Path, report: Path) -> list[Profiled]:
    env = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [env.get("PYTHONPATH")])])
    text = _output([sys.executable, "-m", "perfkit.nsight.reader", str(folder), str(report)], env)
    try:
        return [
            Profiled.of(item["kernel"], item["ranges"],
                        {name: (float(value), str(unit)) for name, (value, unit) in item["values"].items()})
            for item in json.loads(text)
        ]  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise DeviceError(f"ncu_report: {type(error).__name__}: {error}") from error


def _by_csv(tool: Tool, report: Path) -> list[Profiled]:
    command = [tool.path, "--config-file", "off", "--import", str(report), "--csv", "--page", "raw",
               "--print-units", "base"]  # fmt: skip
    return parse_csv(_output(command, os.environ | {"LC_ALL": "C"}))


def _output(command: Sequence[str], env: Mapping[str, str]) -> str:
    """Return what a program prints on stdout.

    Raises:
        DeviceError: it does not start, fails, or takes too long; has its last line.
    """
    try:
        done = subprocess.run(list(command), env=dict(env), capture_output=True, text=True, errors="replace",
                              timeout=READ_S, stdin=subprocess.DEVNULL)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeviceError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise DeviceError(f"exit code {done.returncode}: {last[:200]}")
    return done.stdout


def parse_csv(text: str) -> list[Profiled]:
    """Return the launches of ``ncu --csv --page raw``: messages, a header, a line of units, a line a launch.

    Raises:
        DeviceError: there is no such table in the text.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("==")]
    rows = list(csv.reader(StringIO("\n".join(lines))))
    at = next((index for index, row in enumerate(rows) if "Kernel Name" in row), None)
    if at is None:
        raise DeviceError("ncu printed no table of launches")
    header, body = rows[at], rows[at + 1 :]
    units = body.pop(0) if body and body[0] and not body[0][0] else [""] * len(header)
    launches = []
    for row in body:
        if len(row) != len(header):
            raise DeviceError(f"a line of the table has {len(row)} cells, not {len(header)}")
        cells = dict(zip(header, row, strict=True))
        raw = {name: (_number(cell), unit) for name, cell, unit in zip(header, row, units, strict=True)
               if "__" in name}  # fmt: skip
        launches.append(Profiled.of(cells["Kernel Name"], _ranges(cells), raw))
    return launches


def _ranges(cells: Mapping[str, Any]) -> list[str]:
    return [name for column, cell in cells.items() if "Push/Pop_Range" in column
            for _, name in _RANGE.findall(cell)]  # fmt: skip


def _number(cell: str) -> float | None:
    try:
        value = float(cell.replace(",", ""))
    except ValueError:  # "n/a", an empty cell
        return None
    return value if math.isfinite(value) else None
