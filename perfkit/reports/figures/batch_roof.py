"""Batch sweep, fraction of the roof."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfkit.reports import findings, select, theme
from perfkit.reports.figures import base

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


def batch_roof(frame: pd.DataFrame) -> go.Figure:
    """Draw the fraction of the roof that each method reaches over batch.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.batch_roof(load_run("runs/my-run")).show()  # doctest: +SKIP
    """
    data = select.prepare(frame)
    best = findings.answer(data).window
    caption = (
        "How to read it: 100 % would be the useful minimum of bytes at the full bandwidth of their mix of reads and "
        "writes; above it the roof or the count is wrong, or the data came from a cache. "
        f"{base.drawn(data[data['status'].eq('ok')], 'roof_fraction', None, band=False)}"
    )
    figure = base.new_figure(findings.roof_title(data), caption)
    usable = data[data["status"].eq("ok")]
    predicted = base.highlighted(
        select.series(usable[usable["source"].eq("predicted")], "roof_fraction", ("predicted",)), best
    )
    timed = base.highlighted(select.series(usable, "roof_fraction"), best)
    if not predicted and not timed:
        return base.empty(figure, "no case has a fraction of its roof", base.sweep_command(data))
    ends: dict[str, base.EndLabel] = {}
    values = []
    for line in predicted:
        base.add_predicted(figure, line, "roof_fraction", None, faint=base.is_faint(line, best))
    for line in timed:
        base.add_timed(figure, line, "roof_fraction", None, faint=base.is_faint(line, best))
    for line in (*predicted, *timed):
        values += line.rows["roof_fraction"].tolist()
        ends[line.label] = base.end_label(line, "roof_fraction", best)
    span = (0.0, max(1.06, max(values) + 0.06))
    figure.update_yaxes(range=list(span), title={"text": "fraction of the roof"}, tickformat=".0%", dtick=0.2)
    base.batch_axis(figure, [b for line in (*predicted, *timed) for b in line.rows["batch"]])
    figure.add_hline(y=1, line={"color": theme.ACCENT[0], "width": 1.5})
    base.end_labels(figure, ends.values(), span, log=False)
    return base.finish(figure)
