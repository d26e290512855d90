"""Ours for a published number of a kernel: from rows of sweeps, shipped ones or a run's.

A ratio is of two rows of one group, which were timed in the same rounds. A range over points is ours only if all of
its points are there, on one GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import Any

from perfkit.paper.ours import IMPLEMENTATION, Kind, Ours
from perfkit.profiles import load_gpu
from perfkit.profiles.published import PaperCell

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows with their manifests: of runs that were named (measured), or the shipped ones (recorded)."""

    kind: Kind
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a cell; ``accepted`` is None where the publication does not state it, or nothing depends on it."""

    model: str
    batch: int
    draft_len: int
    accepted: int | None


def points(cell: PaperCell) -> list[Point]:
    """Return the points that a cell is of."""
    return [
        Point(model, batch, draft, _accepted(text, draft))
        for model, batch, draft, text in product(
            cell.models, cell.batches, cell.draft_lens or (1,), cell.acceptances or (None,)
        )
    ]


def kernel_value(cell: PaperCell, rows: Rows) -> Ours | None:
    """Return ours for a cell that rows of a sweep can fill, None where some point is not there.

    Rows on the published GPU go before others, then later runs before earlier ones.
    """
    if cell.method is None or cell.quantity not in _VALUES:
        return None
    timed = [row for row in rows.rows if _usable(row, cell)]
    for gpu in _gpus(timed, cell):
        found = [_at(point, cell, [row for row in timed if row["gpu"] == gpu]) for point in points(cell)]
        if found and all(found):
            return _join(cell, rows.kind, [one for group in found for one in group])
    return None


def _usable(row: Row, cell: PaperCell) -> bool:
    return (
        row.get("status") == "ok"
        and row.get("source") in ("measured", "recorded")
        and bool(row.get("time_us"))
        and row.get("tree") is None
        and row.get("flush_phase") == "aligned"
        and row.get("model") in cell.models
    )


def _gpus(rows: Iterable[Row], cell: PaperCell) -> list[str]:
    """Return the GPUs of rows, the published one first, then by the latest run."""
    latest: dict[str, str] = {}
    for row in rows:
        latest[row["gpu"]] = max(latest.get(row["gpu"], ""), _started(row))
    ranked = sorted(sorted(latest), key=lambda gpu: latest[gpu], reverse=True)
    return sorted(ranked, key=lambda gpu: gpu != cell.gpu)


def _at(point: Point, cell: PaperCell, rows: Sequence[Row]) -> list[tuple[float, Row]]:
    """Return the value at a point of each acceptance that fits, from the latest run that has any; [] if none has."""
    values: dict[str, list[tuple[float, Row]]] = {}
    for row in rows:
        if row["method"] == cell.method and _is_of(row, point, cell):
            value = _VALUES[cell.quantity](row, cell, rows)
            if value is not None:
                values.setdefault(_started(row), []).append((value, row))
    return values[max(values)] if values else []


def _is_of(row: Row, point: Point, cell: PaperCell) -> bool:
    state = cell.state_dtype or "float32"
    window = row.get("window")
    return (
        (row["model"], row["batch"], row["draft_len"]) == (point.model, point.batch, point.draft_len)
        and (row.get("state_dtype"), row.get("read_dtype")) == (state, cell.read_dtype or state)
        and (window is None or not cell.windows or window == cell.windows[0] or cell.quantity == "kernel_best_window")
        and (point.draft_len == 1 or _fits(row, point.accepted))
    )


def _fits(row: Row, accepted: int | None) -> bool:
    """Whether a row commits so many tokens at every step; any constant number fits where none is stated."""
    text = str(row.get("acceptance"))
    here = _accepted(text, row["draft_len"]) if text in ("T", "T-1") or text.isdecimal() else None
    return here is not None and accepted in (None, here)


def _accepted(text: str | None, draft_len: int) -> int | None:
    if text is None:
        return None
    return {"T": draft_len, "T-1": draft_len - 1}.get(text) or int(text)


def _partner(row: Row, method: str, rows: Iterable[Row]) -> Row | None:
    """Return the row of another method in the same group of the same run."""
    return next((other for other in rows if other["method"] == method
                 and (other["group_id"], _run(other)) == (row["group_id"], _run(row))), None)  # fmt: skip


def _speedup(row: Row, cell: PaperCell, rows: Sequence[Row]) -> float | None:
    """Return the baseline's time over the row's; of the row's own baseline, what the run says."""
    method, _, how = (cell.baseline or "").partition(", ")
    other = _partner(row, method, rows)
    if other is None or how not in ("tuned", "default"):
        return None
    if how == "tuned" and row.get("speedup") and row.get("baseline") == other["case_id"]:
        return float(row["speedup"])
    time = other["time_us"] if how == "tuned" else other.get("time_default_us")
    return None if time is None else float(time) / float(row["time_us"])


def _cost(row: Row, cell: PaperCell, rows: Sequence[Row]) -> float | None:
    speedup = _speedup(row, cell, rows)
    return None if speedup is None else 1 / speedup


def _best_window(row: Row, cell: PaperCell, rows: Sequence[Row]) -> float | None:
    """Return the fastest window of the row's group; None unless all that were published are there, and at one row."""
    group = [other for other in rows if other["method"] == cell.method and _run(other) == _run(row)
             and other["group_id"] == row["group_id"] and other.get("window") in cell.windows]  # fmt: skip
    if {other["window"] for other in group} != set(cell.windows) or row["window"] != cell.windows[0]:
        return None
    return float(min(group, key=lambda other: float(other["time_us"]))["window"])


def _tuning_gain(row: Row, cell: PaperCell, rows: Sequence[Row]) -> float | None:
    default = row.get("time_default_us")
    return None if default is None else float(default) / float(row["time_us"])


def _bandwidth_share(row: Row, cell: PaperCell, rows: Sequence[Row]) -> float | None:
    moved = row.get("bandwidth_gb_s")
    return None if moved is None else 100 * float(moved) / load_gpu(row["gpu"]).bandwidth_gb_s


def _column(name: str) -> Callable[[Row, PaperCell, Sequence[Row]], float | None]:
    def read(row: Row, cell: PaperCell, rows: Sequence[Row]) -> float | None:
        return None if row.get(name) is None else float(row[name])

    return read


#: How each quantity comes from a row, the cell and the rows on the same GPU.
_VALUES: Mapping[str, Callable[[Row, PaperCell, Sequence[Row]], float | None]] = MappingProxyType(
    {
        "kernel_speedup": _speedup,
        "kernel_cost": _cost,
        "kernel_steps": _column("conventional_steps"),
        "kernel_us": _column("time_us"),
        "kernel_default_us": _column("time_default_us"),
        "kernel_tuning_gain": _tuning_gain,
        "kernel_bandwidth_share": _bandwidth_share,
        "kernel_best_window": _best_window,
    }
)


def _join(cell: PaperCell, kind: Kind, found: Sequence[tuple[float, Row]]) -> Ours:
    values, rows = [value for value, _ in found], [row for _, row in found]

    def each(read: Callable[[Row], Any]) -> str | None:
        return ", ".join(sorted({str(read(row)) for row in rows if read(row)})) or None

    return Ours(
        kind=kind, low=min(values), high=max(values), gpu=each(lambda row: row["gpu"]),
        implementation=each(lambda row: row.get("implementation") or IMPLEMENTATION) or IMPLEMENTATION,
        baseline=_baseline(cell, rows), routing=each(lambda row: row.get("routing")),
        date=each(lambda row: _started(row)[:10]), run=each(lambda row: row.get("run")),
    )  # fmt: skip


def _baseline(cell: PaperCell, rows: Sequence[Row]) -> str | None:
    """Return the baseline that ours is over: the published one's method, in the configuration that the run gave it."""
    if cell.baseline is None:
        return None
    method, _, how = cell.baseline.partition(", ")
    if how == "tuned" and any(not _manifest(row).get("settings", {}).get("tune") for row in rows):
        how = "default"
    return f"{method}, {how}"


def _manifest(row: Row) -> Mapping[str, Any]:
    return row.get("manifest") or {}


def _started(row: Row) -> str:
    return str(_manifest(row).get("started") or "")


def _run(row: Row) -> Any:
    return _manifest(row).get("hash")
