"""Batch sweep, speedup over the tuned baseline of the same group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.reports import findings, select, theme
from perfkit.reports.figures import base

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def batch_speedup(frame: pd.DataFrame) -> go.Figure:
    """Draw the speedup over batch; the baseline is the line at 1.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.batch_speedup(load_run("runs/my-run")).show()  # doctest: +SKIP
    """
    data = select.prepare(frame)
    said = findings.answer(data)
    caption = (
        f"How to read it: above 1 is faster than {said.baseline or 'the baseline'} of the same group and run. "
        f"{base.drawn(data, 'gain', 'model_gain')}"
    )
    figure = base.new_figure(findings.speedup_title(data), caption)
    others = data[~select.is_baseline(data)]
    predicted = base.highlighted(select.series(others, "model_gain", ("predicted",)), said.window)
    timed = base.highlighted(select.series(others, "gain"), said.window)
    if not predicted and not timed:
        return base.empty(figure, "no case has a baseline to compare it with", base.sweep_command(data))
    values = [1.0]
    ends: dict[str, base.EndLabel] = {}
    for line in predicted:
        faint = base.is_faint(line, said.window)
        base.add_predicted(figure, line, "model_gain", ("model_gain_lo", "model_gain_hi"), faint=faint)
    for line in timed:
        base.add_timed(figure, line, "gain", ("gain_lo", "gain_hi"), faint=base.is_faint(line, said.window))
    for line, value in [(line, "model_gain") for line in predicted] + [(line, "gain") for line in timed]:
        rows = line.rows
        for name in (value, f"{value}_lo", f"{value}_hi"):
            values += rows[name].dropna().tolist()
        ends[line.label] = base.end_label(line, value, said.window)
    span = (min(0.0 if min(values) < 0.4 else 0.4, 0.9), max(values) + 0.15)
    figure.update_yaxes(range=list(span), title={"text": f"speedup over {said.baseline or 'the baseline'} (×)"})
    base.batch_axis(figure, [b for line in (*predicted, *timed) for b in line.rows["batch"]])
    figure.add_hline(y=1, line={"color": theme.MUTED[0], "width": 1.5, "dash": "dash"})
    base.end_labels(figure, ends.values(), span, log=False)
    return base.finish(figure)
