"""Capacity of a plan: throughput and the requests that run at once, over the requests that come together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from perfkit.reports import theme
from perfkit.reports.figures import base
from perfkit.reports.figures.plan_rows import (
    add_line,
    add_upright,
    choices,
    command,
    headroom,
    named,
    state,
    tokens_axis,
    typed,
)
from perfkit.reports.figures.rows import present
from perfkit.reports.text import count, integer, interval, join, number

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_TOKENS = ("tokens_per_s", "tokens_per_s_lo", "tokens_per_s_hi")


def plan_capacity(frame: pd.DataFrame) -> go.Figure:
    """Draw tokens per second and requests that run, over concurrency, of a plan's frame ``capacity``.

    Of each method the best choice is drawn, and the answer.

    >>> from perfkit import plan
    >>> from perfkit.profiles import load_gpu, load_model
    >>> from perfkit.reports import figures
    >>> from perfkit.roofline import roofs_for
    >>> gpu = load_gpu("b300")
    >>> question = plan.make_question(load_model("nemotron-super"), gpu, roofs_for(gpu), concurrency=256)
    >>> figures.plan_capacity(plan.frames(plan.answer(question)).capacity).show()  # doctest: +SKIP
    """
    data = typed(frame, ("concurrency", "runs", "fits", "tokens_per_s"),
                 (*_TOKENS[1:], "waits", "waves", "together_tokens_per_s", "context"))  # fmt: skip
    lines = _drawn(data)
    caption = (
        "How to read it: above, tokens per second while requests that do not fit wait for those that run, so a line is "
        "level from the requests that fit on; dotted, from there on, of as many requests that come together and run in "
        "waves to the end of the last. Below, how many run at once: the thin line is all of them, and what lies under "
        "it waits. Lines are predicted"
        f"{', with a band for kernels and roofs' if data['tokens_per_s_lo'].notna().any() else ''}; of each method the "
        "best T is drawn."
    )
    figure = base.new_figure(_title(data, lines), caption)
    if not lines:
        return base.empty(figure, "a plan says what fits", command(frame))
    for rows in lines:
        name = _name(rows.iloc[0], data)
        hover = [_hover(row) for row in rows.to_dict("records")]
        add_line(figure, rows, "concurrency", "tokens_per_s", name=name, hover=hover, ends=_TOKENS[1:])
        waiting = rows[rows["waves"].gt(1) & rows["together_tokens_per_s"].gt(0)]
        if len(waiting):
            add_line(figure, waiting, "concurrency", "together_tokens_per_s", name=f"{name}, in waves", dash="dot",
                     hover=[_hover(row) for row in waiting.to_dict("records")], in_legend=False)  # fmt: skip
        add_line(figure, rows, "concurrency", "runs", name=f"{name}, running", hover=hover, in_legend=False, axis="y2")
    drawn = [row for rows in lines for row in rows.to_dict("records")]
    loads = sorted({row["concurrency"] for row in drawn})
    figure.add_scatter(x=loads, y=loads, mode="lines", yaxis="y2", line={"color": theme.MUTED[0], "width": 1},
                       name="all run", hoverinfo="skip", showlegend=False)  # fmt: skip
    base.lower_panel(figure, {"text": "requests that run"})
    tokens = [value for rows in lines for value in present(rows, *_TOKENS, "together_tokens_per_s") if value > 0]
    top = headroom(min(tokens), max(tokens))
    figure.update_layout(yaxis={**tokens_axis(min(tokens), top), "title": {"text": "tokens per second"}},
                         yaxis2=_decades(max(row["runs"] for row in drawn)))  # fmt: skip
    base.batch_axis(figure, loads)
    figure.update_xaxes(title={"text": "concurrency (requests)"})
    _label(figure, lines)
    asked = data[data["asked"]]
    if len(asked):
        load = float(asked["concurrency"].iloc[0])
        add_upright(figure, load, f"asked for: {integer(load)}", 1.0, left=load**2 > loads[0] * loads[-1])
    return base.finish(figure)


def _decades(high: float) -> dict[str, Any]:
    """Return a logarithmic axis from 1 with a tick at each power of ten: the panel is low."""
    ticks = [10**power for power in range(math.ceil(math.log10(max(high, 10))))]
    return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": [integer(tick) for tick in ticks],
            "range": [-0.1, math.log10(max(high, 2)) + 0.15]}  # fmt: skip


def _drawn(data: pd.DataFrame) -> list[pd.DataFrame]:
    """Return the rows of the first choice of each method, which is its best, and of the answer."""
    found: dict[Any, pd.DataFrame] = {}
    for part in choices(data):
        part = part.drop_duplicates("concurrency").sort_values("concurrency")
        if part["chosen"].any() or part["method"].iloc[0] not in found:
            found[part["method"].iloc[0]] = part
    return list(found.values())


def _name(row: Any, data: pd.DataFrame) -> str:
    several = data["state_dtype"].nunique() > 1
    return ", ".join(filter(None, (named(row), state(row) if several else "")))


def _hover(row: dict[Any, Any]) -> str:
    ends = interval(row["tokens_per_s_lo"], row["tokens_per_s_hi"])
    lines = [
        f"{count(round(row['concurrency']), 'request')}: {integer(row['fits'])} fit, {integer(row['runs'])} run, "
        f"{integer(row['waits'])} wait",
        f"{number(row['tokens_per_s'])} tokens/s {ends}".strip(),
    ]
    if row["waves"] > 1:
        lines.append(f"{integer(row['waves'])} waves, {number(row['together_tokens_per_s'])} tokens/s to the end")
    return "<br>".join(lines)


def _label(figure: go.Figure, lines: list[pd.DataFrame]) -> None:
    """Write how many requests fit where each line of the lower panel becomes level, apart from each other."""
    tops = sorted(((float(rows["fits"].iloc[0]), str(rows["method"].iloc[0])) for rows in lines), reverse=True)
    low, high = figure.layout.yaxis2.range
    panel = base.AREA_PX * (figure.layout.yaxis2.domain[1] - figure.layout.yaxis2.domain[0])
    wanted = sorted((math.log10(fits) - low) / (high - low) * panel for fits, _ in tops)
    places = base.spread(wanted, base.LABEL_PX)
    base.add_annotations(figure, [
        {"x": figure.layout.xaxis.range[1], "xanchor": "left", "xshift": 6, "y": math.log10(fits), "yref": "y2",
         "yshift": place - at, "text": f"{integer(fits)} fit", "showarrow": False, "name": "end-label",
         "font": {"size": 12, "color": theme.method_style(method).light}}
        for (fits, method), at, place in zip(reversed(tops), wanted, places, strict=True)
    ])  # fmt: skip


def _title(data: pd.DataFrame, lines: list[pd.DataFrame]) -> str:
    """Say what fits with each choice that is drawn, and what waits of the load that was asked for."""
    if not lines:
        return "Nothing says how many requests fit"
    first = [rows.iloc[0] for rows in lines]
    first.sort(key=lambda row: not row["chosen"])
    fits = join(f"{integer(row['fits'])} with {_name(row, data)}" for row in first)
    context = data["context"].iloc[0]
    of = f" of {integer(context)} tokens" if context > 0 else ""
    said = f"Requests{of} that fit: {fits}"
    waits = [row for rows in lines for row in rows[rows["asked"]].to_dict("records") if row["waits"] > 0]
    load = data.loc[data["asked"], "concurrency"]
    if waits:
        each = join(f"{integer(row['waits'])} wait with {_name(row, data)}" for row in waits)
        said += f"; of {integer(load.iloc[0])}, {each}"
    elif len(load):
        said += f"; no request waits of the {integer(load.iloc[0])} asked for"
    return f"{said} (predicted)"
