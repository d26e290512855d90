"""Pareto front of a plan: throughput of all requests against the speed that one of them sees."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from perfkit.plan.words import rate
from perfkit.reports import select, theme
from perfkit.reports.figures import base
from perfkit.reports.figures.plan_rows import (
    DASHES,
    add_line,
    choices,
    chosen_row,
    command,
    named,
    state,
    tokens_axis,
    typed,
)
from perfkit.reports.text import count, integer, join, number, plot_text, window_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

X, Y = "user_tokens_per_s", "tokens_per_s"


def plan_front(frame: pd.DataFrame) -> go.Figure:
    """Draw what batch, T, method and precision allow together, of a plan's frame ``front``.

    >>> from perfkit import plan
    >>> from perfkit.profiles import load_gpu, load_model
    >>> from perfkit.reports import figures
    >>> from perfkit.roofline import roofs_for
    >>> gpu = load_gpu("b300")
    >>> question = plan.make_question(load_model("nemotron-super"), gpu, roofs_for(gpu), concurrency=256)
    >>> figures.plan_front(plan.frames(plan.answer(question)).front).show()  # doctest: +SKIP
    """
    data = typed(frame, ("batch", X, Y), ("step_ms", "p99_ms"))
    states = list(dict.fromkeys(data["state_dtype"]))
    others = join(state({"state_dtype": name}) for name in states[1:])
    caption = (
        "How to read it: up is more throughput, right is a faster answer to each request; along a line the batch grows "
        "from right to left, and nothing lies beyond the wide line, the front: it takes the best method, T and window "
        "at each batch. Numbers are batches. Lines are predicted, each of one method and T; faint ones never reach the "
        "front. What the table says of the doubt holds in both directions."
        f"{f' Dashed is {others}, as far as it reaches its own front.' if others else ''}"
    )
    figure = base.new_figure(_title(data), caption)
    if not len(data):
        return base.empty(figure, "a plan compares what may be chosen", command(frame))
    for i, name in enumerate(states):
        part = data[data["state_dtype"].eq(name)]
        _add_front(figure, part)
        for line in choices(part):
            on = bool(line["on_front"].any())
            if on or i == 0:
                rows = line.sort_values("batch")
                add_line(figure, rows, X, Y, name=_line_name(rows.iloc[0]), dash=DASHES[i % len(DASHES)], faint=not on,
                         hover=[_hover(row) for row in rows.to_dict("records")], in_legend=on)  # fmt: skip
    answer = chosen_row(data)
    if answer is not None:
        _mark(figure, answer)
    _label(figure, data, states[0])
    figure.update_xaxes(**base.log_axis(data[X].min(), data[X].max()), title={"text": "tokens per second of a request"})
    figure.update_yaxes(**tokens_axis(data[Y].min(), data[Y].max()), title={"text": "tokens per second of all"})
    return base.finish(figure)


def _line_name(row: Any) -> str:
    return ", ".join(filter(None, (named(row, window=False), state(row))))


def _hover(row: dict[Any, Any]) -> str:
    parts = [f"B = {integer(row['batch'])}", window_text(row["window"])]
    lines = [", ".join(filter(None, parts)), f"{rate(row[Y])} tokens/s, {number(row[X])} of a request",
             f"step {number(row['step_ms'])} ms, p99 {number(row['p99_ms'])} ms",
             "on the front" if row["on_front"] else ""]  # fmt: skip
    return "<br>".join(filter(None, lines))


def _add_front(figure: go.Figure, part: pd.DataFrame) -> None:
    rows = part[part["on_front"]].sort_values(X)
    if not len(rows):
        return
    figure.add_scatter(
        x=rows[X].tolist(), y=rows[Y].tolist(), mode="lines", line={"color": theme.translucent(theme.ACCENT[0]),
                                                                    "width": 12},
        name=f"front, {plot_text(state(rows.iloc[0])) or 'all'}, predicted", hoverinfo="skip",
        legendgroup=f"front {rows['state_dtype'].iloc[0]}", meta={"source": "predicted", "front": True},
    )  # fmt: skip


def _label(figure: go.Figure, data: pd.DataFrame, first: str) -> None:
    """Write the batch beside each point of the front of the first precision."""
    rows = data[data["state_dtype"].eq(first) & data["on_front"]]
    base.add_annotations(figure, [
        {"x": math.log10(row[X]), "y": math.log10(row[Y]), "text": integer(row["batch"]), "showarrow": False,
         "xanchor": "right", "yanchor": "top", "xshift": -3, "yshift": -4, "name": "point-label",
         "font": {"size": 11, "color": theme.method_style(row["method"]).light}}
        for row in rows.to_dict("records")
    ])  # fmt: skip


def _mark(figure: go.Figure, row: dict[Any, Any]) -> None:
    """Mark the answer."""
    figure.add_scatter(
        x=[row[X]], y=[row[Y]], mode="markers", name=f"the answer, B = {integer(row['batch'])}, predicted",
        marker={"symbol": "x-thin-open", "size": 13, "color": theme.ACCENT[0], "line": {"width": 3}}, hoverinfo="text",
        hovertext=[f"<b>the answer</b>, predicted<br>{plot_text(_line_name(row))}<br>{_hover(row)}"],
        meta={"source": "predicted", "method": row["method"]},
    )  # fmt: skip


def _title(data: pd.DataFrame) -> str:
    """Say where the front begins and ends, and where the answer lies."""
    if not len(data):
        return "Nothing was compared over batch, T and precision"
    best = data[data["on_front"] & data["state_dtype"].eq(data["state_dtype"].iloc[0])]
    best = best if len(best) else data
    alone, most = (select.row_at(best, name, largest=True) for name in (X, Y))
    said = (f"{count(round(alone['batch']), 'request')} alone {'gets' if alone['batch'] == 1 else 'get'} "
            f"{rate(alone[Y])} tokens/s ({named(alone, window=False)}), {integer(most['batch'])} together "
            f"{rate(most[Y])} ({named(most, window=False)})")  # fmt: skip
    answer = chosen_row(data)
    if answer is not None:
        where = "on the front" if answer["on_front"] else "behind the front"
        said += f"; the answer, {rate(answer[Y])} of {integer(answer['batch'])}, is {where}"
    return f"{said} (predicted)"
