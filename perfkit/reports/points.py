"""What a figure shows, as CSV: a line for each point with its series, its kind of evidence and its interval."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perfkit.reports.text import is_missing

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: The name of the area between the ends of the intervals of a line; its points stand beside those of the line.
BAND = "band"


def points_csv(figure: go.Figure) -> str:
    """Return the points of a figure as CSV with full precision.

    Columns: ``series``, ``evidence`` (measured, recorded, predicted, or empty for what is no case, a roof say), x and y
    named by their axes, the ends of what is drawn around the point (``low``, ``high``; an interval along x is
    ``x_low``, ``x_high``), and ``details``, the text of the hover box. Columns that no point fills are left out. A
    table's columns are its own.
    """
    tables = [trace for trace in figure.data if trace.type == "table"]
    if tables:
        return _write([[_plain(name) for name in _values(tables[0].header.values)], *_cells(tables[0])])
    bands = {trace.legendgroup: _band(trace) for trace in figure.data if trace.name == BAND}
    body = [point for trace in figure.data if trace.name != BAND for point in _points(trace, bands)]
    names = ["series", "evidence", _title(figure.layout.xaxis, "x"), _title(figure.layout.yaxis, "y"),
             "low", "high", "x_low", "x_high", "details"]  # fmt: skip
    kept = [i for i in range(len(names)) if i < 4 or any(point[i] not in (None, "") for point in body)]
    return _write([[line[i] for i in kept] for line in [names, *body]])


def _points(trace: Any, bands: dict[str, dict[Any, tuple[Any, Any]]]) -> Iterator[list[Any]]:
    meta = trace.meta if isinstance(trace.meta, dict) else {}
    source = str(meta.get("source") or "")
    name = _plain(trace.name or "").removesuffix(f", {source}")
    xs, ys = _values(trace.x), _values(trace.y)
    hovers = trace.hovertext if isinstance(trace.hovertext, (list, tuple)) else [trace.hovertext] * len(xs)
    upright, level = _ends(trace.error_y, ys), _ends(trace.error_x, xs)
    band = bands.get(trace.legendgroup, {})
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        low, high = upright[i] if upright else band.get(x, (None, None))
        # The first line of a hover box names the series.
        details = "; ".join(_plain(line) for line in str(hovers[i] or "").split("<br>")[1:])
        yield [name, source, _plain(x), _plain(y), low, high, *(level[i] if level else (None, None)), details]


def _ends(bars: Any, middle: list[Any]) -> list[tuple[Any, Any]]:
    """Return the ends of error bars, empty where there are none."""
    if bars is None or bars.array is None:
        return []
    above = _values(bars.array)
    below = above if bars.arrayminus is None else _values(bars.arrayminus)
    return [
        (None, None) if any(map(is_missing, (value, less, more))) else (value - less, value + more)
        for value, less, more in zip(middle, below, above, strict=True)
    ]


def _band(trace: Any) -> dict[Any, tuple[Any, Any]]:
    """Return the lower and the upper end at each x of an area, which runs there along its top and back below."""
    xs, ys = _values(trace.x), _values(trace.y)
    half = len(xs) // 2
    return {x: (low, high) for x, high, low in zip(xs[:half], ys[:half], reversed(ys[half:]), strict=True)}


def _cells(table: Any) -> list[list[Any]]:
    columns = [[_plain(value) for value in _values(column)] for column in table.cells.values]
    return [list(row) for row in zip(*columns, strict=True)]


def _values(items: Any) -> list[Any]:
    return [] if items is None else items.tolist() if hasattr(items, "tolist") else list(items)


def _title(axis: Any, default: str) -> str:
    return str(_plain(axis.title.text or default))


def _plain(value: Any) -> Any:
    """Return text without Plotly's markup; numbers as they are."""
    return html.unescape(re.sub(r"</?\w+[^<>]*>", "", value)) if isinstance(value, str) else value


def _write(lines: list[list[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(["" if is_missing(v) else v for v in line] for line in lines)
    return file.getvalue()
