"""Batch sweep, time: µs per step and layer over batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.reports import findings, select
from perfkit.reports.figures import base

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def batch_time(frame: pd.DataFrame) -> go.Figure:
    """Draw the time of a step and layer over batch, one line per method and window.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.batch_time(load_run("runs/my-run")).show()  # doctest: +SKIP
    """
    data = select.prepare(frame)
    best = findings.answer(data).window
    caption = (
        f"How to read it: lower is faster; both axes are logarithmic. {base.drawn(data, 'us', 'model_us')} "
        "A time covers one step of one layer, flushes included."
    )
    figure = base.new_figure(findings.batch_time_title(data), caption)
    predicted = base.highlighted(select.series(data, "model_us", ("predicted",)), best)
    timed = base.highlighted(select.series(data, "us"), best)
    if not predicted and not timed:
        return base.empty(figure, "no case has a time", base.sweep_command(data))
    values: list[float] = []
    ends: dict[str, base.EndLabel] = {}
    for line in predicted:
        base.add_predicted(figure, line, "model_us", ("model_lo", "model_hi"), faint=base.is_faint(line, best))
    for line in timed:
        base.add_timed(figure, line, "us", ("us_lo", "us_hi"), faint=base.is_faint(line, best))
    for line, value in [(line, "model_us") for line in predicted] + [(line, "us") for line in timed]:
        stem = value.removesuffix("_us")
        for name in (value, f"{stem}_lo", f"{stem}_hi"):
            values += line.rows[name].dropna().tolist()
        if line.window is None or line.window == best:
            ends[line.label] = base.end_label(line, value, best)
    axis = base.log_axis(min(values), max(values))
    figure.update_yaxes(**axis, title={"text": "time per step and layer (µs)"})
    base.batch_axis(figure, [b for line in (*predicted, *timed) for b in line.rows["batch"]])
    base.end_labels(figure, ends.values(), tuple(axis["range"]), log=True)
    return base.finish(figure)
