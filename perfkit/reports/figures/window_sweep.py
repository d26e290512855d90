"""Window sweep: time over window at one batch, with Eq. 16, the byte model's optimum and the timed optimum."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from perfkit.reports import findings, select, theme
from perfkit.reports.figures import base
from perfkit.reports.text import integer, number, plot_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from perfkit.shape import Shape


def window_sweep(frame: pd.DataFrame, shape: Shape | None = None, batch: float | None = None) -> go.Figure:
    """Draw time over window at ``batch`` (256 if it was run, else the largest).

    ``shape`` is the layer's shape for Eq. 16; by default the rows' own, else that of the model's profile. Where neither
    is known the figure goes without Eq. 16.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.window_sweep(load_run("runs/my-run"), batch=64).show()  # doctest: +SKIP
    """
    data = select.prepare(frame)
    found = findings.windows(data, shape, batch)
    where = f" at B = {integer(found.batch)}" if found else ""
    caption = (
        f"How to read it: lower is faster; time per step and layer{where}, flushes included; the axis does not "
        "start at 0. "
        f"{base.drawn(data[data['window'].notna()], 'us', 'model_us')} "
        "Upright lines mark the best windows: the fastest one timed, the lowest prediction of the byte model among the "
        "windows run, and Eq. 16's continuous optimum of the paper's byte count."
    )
    figure = base.new_figure(findings.window_title(found), caption)
    if found is None:
        return base.empty(
            figure, "run two windows or more to compare them", base.sweep_command(data, "--window 8,16,32")
        )
    here = data[data["batch"].eq(found.batch)]
    windowed = here[here["window"].notna()]
    values: list[float] = []
    windows: list[float] = []
    for sources, value, band in ((("predicted",), "model_us", "model"), (select.TIMED, "us", "us")):
        for line in _over_window(windowed, value, sources):
            if value == "us":
                base.add_timed(figure, line, value, (f"{band}_lo", f"{band}_hi"), x="window")
            else:
                base.add_predicted(figure, line, value, (f"{band}_lo", f"{band}_hi"), x="window")
            for name in (value, f"{band}_lo", f"{band}_hi"):
                values += line.rows[name].dropna().tolist()
            windows += line.rows["window"].tolist()
    low, high = min(windows), max(windows)
    marks = _marks(found)
    low, high = min([low, *(x for x, _ in marks)]), max([high, *(x for x, _ in marks)])
    lefts = [_stands_left(x, [other for other, _ in marks], low, high) for x, _ in marks]
    low = min([low, *(_start_for(x, high) for (x, _), left in zip(marks, lefts, strict=True) if left)])
    pad = 0.08 * max(math.log10(high / low), 0.3)
    figure.update_xaxes(
        type="log", title={"text": "window L (committed tokens)"}, tickmode="array", tickvals=sorted(set(windows)),
        ticktext=[integer(w) for w in sorted(set(windows))], range=[math.log10(low) - pad, math.log10(high) + pad],
    )  # fmt: skip
    bottom, top = min(values), max(values)
    room = max(top - bottom, 0.02 * top)
    # The upper third is kept free for the names of the upright lines.
    figure.update_yaxes(range=[bottom - 0.15 * room, top + (0.2 + 0.16 * len(marks)) * room],
                        title={"text": "time per step and layer (µs)"})  # fmt: skip
    for i, ((x, text), left) in enumerate(zip(marks, lefts, strict=True)):
        height = 1 - 0.075 * i
        stroke = {"color": theme.ACCENT[0], "width": 1.5, "dash": ("solid", "dash", "dot")[i]}
        figure.add_shape(type="line", xref="x", yref="paper", x0=x, x1=x, y0=0, y1=height, line=stroke)
        figure.add_annotation(
            x=math.log10(x), y=height, yref="paper", text=plot_text(text), showarrow=False, yanchor="top",
            xanchor="right" if left else "left", xshift=-5 if left else 5, font={"size": 12, "color": theme.ACCENT[0]},
            bgcolor=theme.PLATE[0], name="mark-label",
        )  # fmt: skip
    return base.finish(figure)


def _marks(found: findings.Windows) -> list[tuple[float, str]]:
    """Return (window, label) of the optima that are known, in a fixed order."""
    marks = []
    if found.timed is not None:
        marks.append((found.timed, f"{found.source} optimum, L = {integer(found.timed)}"))
    if found.exact is not None:
        marks.append((found.exact, f"byte model, L = {integer(found.exact)}"))
    if found.eq16 is not None:
        marks.append((found.eq16, f"Eq. 16, L* = {number(found.eq16)}"))
    return marks


def _stands_left(x: float, marks: list[float], low: float, high: float) -> bool:
    """True if the name of the mark at ``x`` should stand to its left: away from the other marks, inside the axis."""
    share = math.log(x / low) / math.log(high / low) if high > low else 0.0
    if share < 0.25 or share > 0.75:
        return share > 0.75
    return sum(other > x for other in marks) > sum(other < x for other in marks)


def _start_for(x: float, high: float) -> float:
    """Return where the axis must start for a name to the left of ``x`` to fit on a phone: in two fifths of the axis."""
    share = 0.4
    return float((x / high**share) ** (1 / (1 - share)))


def _over_window(rows: pd.DataFrame, value: str, sources: tuple[str, ...]) -> list[select.Series]:
    """Return lines over window: the series over batch, joined per method."""
    import pandas as pd

    joined: dict[tuple[str, str, str], list[select.Series]] = {}
    for line in select.series(rows, value, sources):
        label = ", ".join([line.method, *line.label.split(", ")[1:]])
        joined.setdefault((line.method, line.source, label), []).append(line)
    return [
        select.Series(method, None, source, label, pd.concat([line.rows for line in lines]).sort_values("window"))
        for (method, source, label), lines in joined.items()
    ]
