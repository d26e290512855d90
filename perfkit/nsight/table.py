"""Bytes by the paper's count, by the exact count and by DRAM counters: a line for each method, T and kind of step.

Source: paper, App. A.1, Table 3, whose cells are lost; these are ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.nsight.verdict import judge
from perfkit.roofline import STATE_TRAFFIC

COLUMNS = ("T", "method", "step", "h", "launches", "R+W", "paper GB", "exact read", "DRAM read", "off %", "exact write",
           "DRAM write", "off MB", "DRAM GB", "counters")  # fmt: skip


def ordered(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return rows by point, T and method in the paper's order, steps that flush after those that do not."""
    methods, steps = list(STATE_TRAFFIC), ("nonflush", "mixed", "flush")

    def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        place = methods.index(row["method"]) if row["method"] in methods else len(methods)
        return (row["model"] or "", row["batch"], row["draft_len"], row["tree"] or "", row["acceptance"], place,
                row["method"], row["window"] or 0, steps.index(row["step"]))  # fmt: skip

    return sorted(rows, key=key)


def line(row: Mapping[str, Any]) -> list[Any]:
    """Return one line of the table under :data:`COLUMNS`: GB are 10^9 bytes, and MB, by which writes are off, 10^6."""
    declared = row["bytes_read_model"], row["bytes_write_model"]
    counted = row["bytes_read_dram"], row["bytes_write_dram"]
    paper = row["bytes_read_paper"] + row["bytes_write_paper"]
    return [
        row["draft_len"], method_name(row), row["step"], row["h"], row["launches"], state_units(row), paper / 1e9,
        declared[0] / 1e9, counted[0] / 1e9, round(100 * (counted[0] / declared[0] - 1), 2) if declared[0] else None,
        declared[1] / 1e9, counted[1] / 1e9, round((counted[1] - declared[1]) / 1e6, 1), sum(counted) / 1e9, judge(row),
    ]  # fmt: skip


def lines(rows: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return the table's lines in order."""
    return [line(row) for row in ordered(rows)]


def state_units(row: Mapping[str, Any]) -> str:
    """Return the paper's count in full reads and writes of the state: ``1R + 4W``; - where it has none."""
    traffic = STATE_TRAFFIC.get(row["method"])
    if traffic is None or row["step"] == "mixed":
        return "-"
    reads, writes = traffic.counts(row["draft_len"], int(row["step"] == "flush"))
    return f"{reads}R + {writes}W" if writes else f"{reads}R"


def as_json(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows in the table's order, each with its verdict."""
    return [{**row, "verdict": judge(row)} for row in ordered(rows)]


def method_name(row: Mapping[str, Any]) -> str:
    """Return a method with its window, ``replay L=16``."""
    name = str(row["method"]).rsplit("/", 1)[-1]
    return f"{name} L={row['window']}" if row["window"] is not None else name
