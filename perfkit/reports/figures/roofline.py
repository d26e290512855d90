"""Roofline: achieved FLOP/s over intensity, under the memory roofs and the FP32 peak."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from perfkit.reports import findings, select, theme
from perfkit.reports.figures import base
from perfkit.reports.figures.point_labels import Point, label_points
from perfkit.reports.figures.rows import case_name, records, step_words
from perfkit.reports.roofs import known_roofs
from perfkit.reports.text import number, plot_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_DASHES = ("solid", "dash", "dashdot", "longdash")


def roofline(frame: pd.DataFrame) -> go.Figure:
    """Draw TFLOP/s over FLOP per byte; the roofs reach past the points on both sides.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.roofline(load_run("runs/my-run")).show()  # doctest: +SKIP
    """
    data = select.prepare(frame)
    roofs = known_roofs(data)
    memory = tuple(sorted((*roofs.memory, *_measured_reads(data)), key=lambda roof: -roof[1]))
    caption = (
        "How to read it: both axes are logarithmic; a point under a sloping roof is bound by bytes, and the distance "
        "to the roof is what is left to gain. Each method and window is a column of points; upwards the batch grows. "
        "The roof of these bytes knows how many of them are writes, which are slower beside reads; the other memory "
        "roofs are of reads alone and of the datasheet. "
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
    cases: list[Point] = []
    edges: list[tuple[float, float]] = []  # where lines run
    named: set[str] = set()
    for line, value in [(line, "model_tflops") for line in predicted] + [(line, "tflops") for line in timed]:
        # Windows and workloads of a method stand side by side here; one entry in the legend names them all.
        line = replace(line, label=line.method)
        if value == "tflops":
            base.add_timed(figure, line, value, None, x="intensity", guide=False, name=case_name)
        else:
            base.add_predicted(figure, line, value, None, x="intensity", name=case_name)
        figure.data[-1].showlegend = figure.data[-1].name not in named
        named.add(figure.data[-1].name)
        here = list(zip(line.rows["intensity"], line.rows[value], strict=True))
        points += here
        if value == ("tflops" if timed else "model_tflops"):
            cases += [Point(x, y, line.method, line.window, row.batch, ", ".join(step_words(row._asdict())))
                      for (x, y), row in zip(here, records(line.rows), strict=True)]  # fmt: skip
        for (x0, y0), (x1, y1) in pairwise(here if value == "model_tflops" else []):
            edges += zip(_steps(x0, x1, 12), _steps(y0, y1, 12), strict=True)
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right = min(xs) / 2.5, max([max(xs) * 4, (roofs.ridge or 0) * 2])
    top = max([max(ys) * 2, (roofs.peak_tflops or 0) * 1.6])
    _add_roofs(figure, memory, roofs.peak_tflops, left, right)
    x_range, y_range = (math.log10(left), math.log10(right)), (math.log10(min(ys) / 2.5), math.log10(top))
    figure.update_xaxes(**base.log_axis(left, right) | {"range": list(x_range)},
                        title={"text": "intensity (FLOP per byte)"})  # fmt: skip
    figure.update_yaxes(**base.log_axis(min(ys) / 2.5, top) | {"range": list(y_range)},
                        title={"text": "achieved (TFLOP/s)"})  # fmt: skip
    edges += [
        (x, min(gb_s * x * 1e-3, roofs.peak_tflops or math.inf)) for _, gb_s in memory for x in _steps(left, right, 200)
    ]
    label_points(figure, cases, edges, x_range, y_range)
    return base.finish(figure)


def _measured_reads(data: pd.DataFrame) -> list[tuple[str, float]]:
    """Return what large reads alone reach on the rows' GPU, if that was measured and ships; [] otherwise."""
    from perfkit.errors import InputError
    from perfkit.profiles import load_gpu
    from perfkit.roofline.roof import shipped_roofs

    key = next((value for value in data["gpu"] if value is not None), None)
    try:
        found = shipped_roofs(load_gpu(key)) if key is not None else None
    except InputError:  # a GPU without a profile, or without a bandwidth
        return []
    return [("measured reads alone", found.read_gb_s)] if found is not None and found.calibrated else []


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
