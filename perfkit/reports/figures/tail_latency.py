"""Tail latency: the mean of a step beside its 99th percentile, with rows that flush together and rows that do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perfkit.reports import findings, select, theme
from perfkit.reports.figures import base
from perfkit.reports.figures.rows import lines, numbers, origin, place, present, workloads
from perfkit.reports.text import count, join, microseconds, percent, plot_text, sentence

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

PHASES = ("aligned", "staggered")
#: More lines than this do not fit: of a method that was run at many windows the best one stays.
MAX_LINES = 14
#: Times further apart than this factor stand on a logarithmic axis.
WIDE = 8
_ALONG = ("flush_phase",)


def tail_latency(frame: pd.DataFrame) -> go.Figure:
    """Draw the mean, the step without a flush and the 99th percentile of each method, aligned and staggered.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.tail_latency(load_run("runs/my-run")).show()  # doctest: +SKIP
    """
    data = numbers(select.prepare(frame), "time_p99_us", "time_nonflush_us", "time_flush_us")
    data = data.assign(p99=data["time_p99_us"].where(data["us"].notna()))
    # With a flush in each hundred steps or more the 99th percentile of steps is no less than one that flushes.
    wrong = data["flush_phase"].eq("aligned") & data["window"].lt(100) & data["p99"].lt(0.95 * data["time_flush_us"])
    rows = _one_workload(data[data["p99"].gt(0) & ~wrong])
    found = lines(rows, "p99", select.TIMED, _ALONG)
    best = findings.answer(rows[rows["flush_phase"].eq(rows["flush_phase"].iloc[0])]).window if len(rows) else None
    found = base.highlighted(found, best)[: MAX_LINES // len(PHASES)]
    missing = [phase for phase in PHASES if not rows["flush_phase"].eq(phase).any()]
    caption = (
        "How to read it: of each method the marker is the mean of a step and layer, flushes included, and the bar goes "
        "from a step without a flush, the usual one, to the 99th percentile of single steps, the upright stroke. "
        "Aligned rows flush in the same step; under continuous batching they are staggered. "
        f"{base.drawn(rows, 'us', None)}"
    )
    command = base.sweep_command(rows if len(rows) else data, "--flush-phase", missing[-1] if missing else PHASES[0])
    if len(rows) and missing:
        caption += f" {sentence(missing[0])} flushes were not run: {command} adds them."
    if wrong.any():
        caption += (
            f" {sentence(count(int(wrong.sum()), 'row'))} left out: their 99th percentile is below their own time of a "
            "step that flushes, so it is not one of single steps."
        )
    figure = base.new_figure(_title(rows, found), caption)
    if not found:
        return base.empty(figure, "no case has times of single steps", command)
    for line in found:
        _add(figure, line, several=len(missing) < len(PHASES) - 1)
    names = ("us_lo", "us_hi", "us", "p99", "time_nonflush_us")
    values = [value for line in found for value in present(line.rows, *names)]
    wide = max(values) > WIDE * min(values)
    axis = base.log_axis(min(values), max(values)) if wide else {"range": [0, 1.05 * max(values)], "nticks": 5}
    figure.update_xaxes(**axis, title={"text": "time per step and layer (µs)"}, tickangle=0)
    figure.update_yaxes(type="category", autorange="reversed", title={"text": "method and flushes"}, automargin=True,
                        dtick=1)  # fmt: skip
    return base.finish(figure)


def _add(figure: go.Figure, line: select.Series, *, several: bool) -> None:
    colour = theme.method_style(line.method).light
    rows = line.rows.assign(place=[
        f"{plot_text(line.label)}<br>{plot_text(phase)}" if several and phase else plot_text(line.label)
        for phase in line.rows["flush_phase"]
    ])  # fmt: skip
    for row in rows.to_dict("records"):
        least = min(value for value in (row["time_nonflush_us"], row["us"]) if value > 0)
        figure.add_scatter(
            x=[least, row["p99"]], y=[row["place"]] * 2, mode="lines+markers",
            line={"color": theme.translucent(colour), "width": 6},
            marker={"symbol": "line-ns-open", "size": [0, 18], "color": colour, "line": {"width": 2}},
            hovertext=[_hover(row)] * 2, hoverinfo="text", showlegend=False, legendgroup=f"{line.label} {line.source}",
            name=plot_text(row["place"]), meta={"tail": line.method},
        )  # fmt: skip
    base.add_timed(
        figure, replace(line, rows=rows), "us", None, x="place", guide=False, more=lambda row: _tail(row._asdict())
    )
    trace = figure.data[-1]
    low, high = ((rows[end] - rows["us"]).abs().fillna(0.0).tolist() for end in ("us_lo", "us_hi"))
    trace.update(x=trace.y, y=trace.x, error_x={"type": "data", "symmetric": False, "array": high, "arrayminus": low,
                                                "thickness": 1.4, "width": 4, "color": colour})  # fmt: skip


def _tail(row: Mapping[Any, Any]) -> str:
    return f"p99 {microseconds(row['p99'])}, {percent(row['p99'] / row['us'] - 1)} above the mean"


def _hover(row: Mapping[Any, Any]) -> str:
    lines = [f"<b>{row['place']}</b>, {row['source']}", plot_text(place(row)), f"mean {microseconds(row['us'])}"]
    lines += [_tail(row), f"without a flush {microseconds(row['time_nonflush_us'])}", plot_text(origin(row))]
    return "<br>".join(filter(None, lines))


def _one_workload(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at one batch of the one workload that has most of the flush phases and methods."""
    batch = select.reference_batch(rows, "p99") if len(rows) else None
    if batch is None:
        return rows
    here = rows[rows["batch"].eq(batch)]
    parts = workloads(here, besides="flush_phase")
    ranks = [(part["flush_phase"].nunique(), part["method"].nunique(), part["draft_len"].max(), part["accepted"].max())
             for part in parts]  # fmt: skip
    return parts[ranks.index(max(ranks))]


def _title(rows: pd.DataFrame, found: list[select.Series]) -> str:
    """Say by how much the 99th percentile exceeds the mean, of the method with the longest tail, in each phase."""
    if not found:
        return "No case has a 99th percentile of single steps"
    source = next(kind for kind in select.TIMED if any(line.source == kind for line in found))
    mine = [line for line in found if line.source == source]
    excess = {line.label: (line.rows["p99"] / line.rows["us"] - 1).groupby(line.rows["flush_phase"].fillna("")).max()
              for line in mine}  # fmt: skip
    longest = max(excess, key=lambda label: float(excess[label].max()))
    phases = [
        percent(value, 0) + (f" with {phase} flushes" if phase else "") for phase, value in excess[longest].items()
    ]
    text = f"The 99th percentile of {longest} exceeds its mean by {join(phases)} at {place(rows.iloc[0])}"
    control = next((label for line in mine if line.method in select.BASELINES and (label := line.label) != longest), "")
    if control:
        text += f", that of {control} by {percent(float(excess[control].max()), 0)}"
    return f"{text} ({source})"
