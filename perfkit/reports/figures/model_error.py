"""Predictions beside times: how far off, and whether the stated intervals hold the times."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.derive import bound_interval
from perfkit.reports import select, theme
from perfkit.reports.figures import base
from perfkit.reports.figures.rows import case_name, lines, records
from perfkit.reports.text import count, integer, interval, microseconds, percent, plot_text, sentence

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: The band around y = x.
BAND = 0.10


def model_error(frame: pd.DataFrame) -> go.Figure:
    """Draw the predicted time over the timed one, and below it the prediction's error.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.model_error(load_run("runs/my-run")).show()  # doctest: +SKIP
    """
    data = select.prepare(frame)
    rows = data[data["us"].gt(0) & data["model_us"].gt(0) & data["source"].isin(select.TIMED)]
    rows = rows.assign(
        error=rows["model_us"] / rows["us"] - 1,
        bound=[bound_interval(*entry) for entry in zip(rows["model_us"], rows["model_lo"], rows["model_hi"],
                                                       strict=True)],
    )  # fmt: skip
    recorded = rows["source"].eq("recorded").any()
    caption = (
        f"How to read it: a marker on the line is predicted exactly; the band is ±{percent(BAND, 0)}, and upright bars "
        "are the predictions' own 95 % intervals. Below, the error: above 0 the prediction is too long. Faint markers "
        "have only a bound from bytes beside them, no fit of the kernel. "
        f"{base.drawn(rows, 'us', None, band=False)}"
        + (" The model was fitted to recorded rows; measured ones it has not seen." if recorded else "")
    ).strip()
    figure = base.new_figure(_title(rows), caption)
    if not len(rows):
        return base.empty(figure, "no case has both a time and a prediction", base.sweep_command(data))
    low = float(min(rows["us"].min(), rows["model_us"].min())) / 1.2
    high = float(max(rows["us"].max(), rows["model_us"].max())) * 1.2
    _add_guides(figure, low, high)
    base.lower_panel(figure, {"text": "error"})
    along = ("window", *select.VARIANT)
    for bound in (True, False):
        for line in lines(rows[rows["bound"].eq(bound)], "model_us", select.TIMED, along, every=True):
            _add(figure, line, faint=bound)
    figure.update_xaxes(**base.log_axis(low, high), title={"text": "time per step and layer (µs)"}, tickangle=0)
    reach = max(0.12, 1.15 * float(rows["error"].abs().max()))
    figure.update_layout(
        yaxis=base.log_axis(low, high) | {"title": {"text": "predicted (µs)"}},
        yaxis2={"range": [-min(reach, 1.0), reach], "tickformat": "+.0%", "nticks": 5},
    )
    return base.finish(figure)


def _add_guides(figure: go.Figure, low: float, high: float) -> None:
    """Draw y = x with its band in the upper panel, and 0 with the same band in the lower one."""
    ends = [low / 2, high * 2]
    for lower in (False, True):
        axis = {"yaxis": "y2"} if lower else {}
        bottom = [-BAND] * 2 if lower else [x * (1 - BAND) for x in ends]
        top = [BAND] * 2 if lower else [x * (1 + BAND) for x in ends]
        base.add_area(figure, ends, bottom, top, theme.METHOD_STYLES["conventional"].light, "guide")
        figure.data[-1].update(axis)
        figure.add_scatter(
            x=ends, y=[0, 0] if lower else ends, mode="lines",
            line={"color": theme.MUTED[0], "width": 1.5, "dash": "dash"},
            name="no error" if lower else "as predicted", hoverinfo="skip", showlegend=False, **axis,
        )  # fmt: skip


def _add(figure: go.Figure, line: select.Series, *, faint: bool) -> None:
    shown = replace(line, rows=line.rows.sort_values("us"))
    named = {trace.name for trace in figure.data}
    ends = None if faint else ("model_lo", "model_hi")
    base.add_timed(figure, shown, "model_us", ends, x="us", guide=False, faint=faint, name=case_name, more=_said)
    figure.data[-1].update(showlegend=figure.data[-1].name not in named)
    base.add_timed(figure, shown, "error", None, x="us", guide=False, faint=faint, name=case_name, more=_said)
    # The marker above has the numbers; thousands of rows would have them twice.
    figure.data[-1].update(
        yaxis="y2", showlegend=False, name=f"{plot_text(line.label)} error, {line.source}",
        hovertext=[f"{plot_text(case_name(row))}, B = {integer(row.batch)}: {row.error:+.1%}"
                   for row in records(shown.rows)],
    )  # fmt: skip


def _said(row: Any) -> str:
    ends = interval(row.model_lo, row.model_hi)
    return f"predicted {microseconds(row.model_us)} {ends}: {row.error:+.1%}".replace(" :", ":")


def _title(rows: pd.DataFrame) -> str:
    """Say the median error and how many times lie inside their intervals, of each kind of evidence by itself."""
    if not len(rows):
        return "No case has both a time and a prediction"
    parts = []
    for source in select.TIMED:
        here = rows[rows["source"].eq(source)]
        fitted, bounds = here[~here["bound"]], here[here["bound"]]
        if len(fitted):
            stated = fitted[fitted["model_lo"].notna() & fitted["model_hi"].notna()]
            inside = int(stated["us"].between(stated["model_lo"], stated["model_hi"]).sum())
            text = (
                f"predictions are off by {percent(fitted['error'].abs().median())} in the median, "
                f"{percent(np.percentile(fitted['error'].abs(), 95), 0)} at the 95th percentile"
            )
            held = f"; {inside} of {count(len(stated), f'{source} time')} inside the stated 95 % interval"
            parts.append(text + (held if len(stated) else f" ({source})"))
        if len(bounds):
            off = float(bounds["error"].median())
            side = f"{percent(abs(off), 0)} {'below' if off < 0 else 'above'}"
            parts.append(f"bounds from bytes are {side} {count(len(bounds), f'{source} time')} in the median")
    return sentence("; ".join(parts))
