"""Roofline: achieved FLOP/s over intensity, under the memory roofs and the FP32 peak."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from perfkit.reports import findings, select, theme
from perfkit.reports.figures import base
from perfkit.reports.roofs import known_roofs
from perfkit.reports.text import integer, number, plot_text, window_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: The plot area for which labels are placed, in pixels: narrower ones hide the labels of points.
_AREA = (780, base.AREA_PX)
_DASHES = ("solid", "dash", "dashdot", "longdash")


def roofline(frame: pd.DataFrame) -> go.Figure:
    """Draw TFLOP/s over FLOP per byte; the roofs reach past the points on both sides."""
    data = select.prepare(frame)
    roofs = known_roofs(data)
    caption = (
        "How to read it: both axes are logarithmic; a point under a sloping roof is bound by bytes, and the distance "
        "to the roof is what is left to gain. Each method and window is a column of points; upwards the batch grows. "
        f"FLOPs and bytes are the exact counts. {base.drawn(data, 'us', 'model_us', band=False)}"
    )
    figure = base.new_figure(findings.roofline_title(data, roofs.ridge), caption)
    data = data.assign(
        tflops=data["flops_model"] / data["us"] * 1e-6, model_tflops=data["flops_model"] / data["model_us"] * 1e-6
    )
    data = data[data["intensity"].gt(0)]
    predicted = select.series(data, "model_tflops", ("predicted",))
    timed = select.series(data, "tflops")
    if not predicted and not timed:
        return base.empty(figure, "no case has both a time and an intensity", base.sweep_command(data))
    points: list[tuple[float, float]] = []
    edges: list[tuple[float, float]] = []  # where lines run
    named: set[str] = set()
    for line, value in [(line, "model_tflops") for line in predicted] + [(line, "tflops") for line in timed]:
        # Windows of a method stand side by side here; one entry in the legend names them all.
        line = replace(line, label=", ".join([line.method, *line.label.split(", ")[1:]]))
        if value == "tflops":
            base.add_timed(figure, line, value, None, x="intensity", guide=False)
        else:
            base.add_predicted(figure, line, value, None, x="intensity")
        figure.data[-1].showlegend = figure.data[-1].name not in named
        named.add(figure.data[-1].name)
        here = list(zip(line.rows["intensity"], line.rows[value], strict=True))
        points += here
        for (x0, y0), (x1, y1) in pairwise(here if value == "model_tflops" else []):
            edges += zip(_steps(x0, x1, 12), _steps(y0, y1, 12), strict=True)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right = min(xs) / 4, max([max(xs) * 4, (roofs.ridge or 0) * 4])
    top = max([max(ys) * 2, (roofs.peak_tflops or 0) * 2])
    _add_roofs(figure, roofs.memory, roofs.peak_tflops, left, right)
    x_range, y_range = (math.log10(left), math.log10(right)), (math.log10(min(ys) / 2.5), math.log10(top))
    figure.update_xaxes(**base.log_axis(left, right) | {"range": list(x_range)},
                        title={"text": "intensity (FLOP per byte)"})  # fmt: skip
    figure.update_yaxes(**base.log_axis(min(ys) / 2.5, top) | {"range": list(y_range)},
                        title={"text": "achieved (TFLOP/s)"})  # fmt: skip
    edges += [
        (x, min(gb_s * x * 1e-3, roofs.peak_tflops or math.inf))
        for _, gb_s in roofs.memory
        for x in _steps(left, right, 200)
    ]
    _label_points(figure, timed or predicted, "tflops" if timed else "model_tflops", points, edges, x_range, y_range)
    return base.finish(figure)


def _steps(low: float, high: float, n: int) -> list[float]:
    """Return n positions from low to high, evenly spaced on a logarithmic axis."""
    return [low * (high / low) ** (i / (n - 1)) for i in range(n)]


def _add_roofs(
    figure: go.Figure, memory: tuple[tuple[str, float], ...], peak: float | None, left: float, right: float
) -> None:
    for i, (name, gb_s) in enumerate(memory):
        ridge = peak * 1e3 / gb_s if peak else right
        x = [left, min(ridge, right)]
        figure.add_scatter(
            x=x, y=[gb_s * value * 1e-3 for value in x], mode="lines",
            name=f"{plot_text(name)}, {number(gb_s / 1e3)} TB/s",
            line={"color": theme.MUTED[0], "width": 1.8, "dash": _DASHES[i % len(_DASHES)]},
            hoverinfo="name", meta={"roof": name},
        )  # fmt: skip
    if peak:
        start = peak * 1e3 / memory[0][1] if memory else left
        figure.add_scatter(
            x=[start, right], y=[peak, peak], mode="lines", name=f"FP32 peak, {number(peak)} TFLOP/s",
            line={"color": theme.MUTED[0], "width": 1.8}, hoverinfo="name", meta={"roof": "FP32 peak"},
        )  # fmt: skip


def _label_points(
    figure: go.Figure, lines: list[select.Series], value: str, points: list[tuple[float, float]],
    edges: list[tuple[float, float]], x_range: tuple[float, float], y_range: tuple[float, float],
) -> None:  # fmt: skip
    """Name points beside them where there is room: the largest batch of each line first, then its smallest.

    A label touches neither another label nor a point nor a line (``edges``); one that fits nowhere is left out.
    """

    def pixel(x: float, y: float) -> tuple[float, float]:
        return (
            (math.log10(x) - x_range[0]) / (x_range[1] - x_range[0]) * _AREA[0],
            (math.log10(y) - y_range[0]) / (y_range[1] - y_range[0]) * _AREA[1],
        )

    taken = [(px - 7, py - 6, px + 7, py + 6) for px, py in (pixel(*point) for point in points)]
    taken += [(px - 2, py - 3, px + 2, py + 3) for px, py in (pixel(*edge) for edge in edges)]
    wanted: dict[str, tuple[float, float, str]] = {}
    for position in (-1, 0):
        for line in lines:
            row = line.rows.iloc[position]
            name = window_text(line.window) or line.method
            wanted.setdefault(f"{name}, B = {integer(row['batch'])}", (row["intensity"], row[value], line.method))
    for text, (x, y, method) in wanted.items():
        px, py = pixel(x, y)
        width, height = 6.6 * len(text), 15
        for dx, dy, anchor in _PLACES:
            x0 = px + dx - (width if anchor == "right" else width / 2 if anchor == "center" else 0)
            box = (x0, py + dy - height / 2, x0 + width, py + dy + height / 2)
            if box[0] < 0 or box[2] > _AREA[0] or box[1] < 0 or box[3] > _AREA[1]:
                continue
            if any(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken):
                continue
            taken.append(box)
            figure.add_annotation(
                x=math.log10(x), y=math.log10(y), text=plot_text(text), showarrow=False, xanchor=anchor,
                yanchor="middle", xshift=dx, yshift=dy, font={"size": 11, "color": theme.method_style(method).light},
                name="point-label",
            )  # fmt: skip
            break


#: Where a label may stand: pixels to the right and upwards, and which end of the text stands there.
_PLACES = (
    (10, 0, "left"), (-10, 0, "right"), (10, -15, "left"), (-10, -15, "right"), (10, 15, "left"), (-10, 15, "right"),
    (0, -18, "center"), (0, 18, "center"),
)  # fmt: skip
