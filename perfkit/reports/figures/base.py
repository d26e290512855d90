"""What the figures share: the layout, how each kind of evidence is drawn, and labels that do not overlap.

Measured is a filled marker with its interval, recorded a hollow marker with its interval, predicted a line with a band.
"""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from perfkit.reports import theme
from perfkit.reports.figures.rows import origin, records
from perfkit.reports.select import BASELINES, Series, hover
from perfkit.reports.text import integer, is_missing, join, plot_text, sentence, window_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: Height of the plot area itself, whatever the legend needs: direct labels are placed for it.
AREA_PX = 350
MARGIN = {"l": 62, "r": 96, "t": 16, "b": 52}
#: The width for which a figure is laid out where its place is not known.
WIDTH_PX = 960
LEGEND_ROW_PX = 21
LABEL_PX = 15  # least vertical distance of two direct labels
_MARKER_SIZE = 9
FAINT = 0.4
#: A figure with more windows than this draws the best one, the smallest and the largest.
MAX_WINDOWS = 4
_DRAWN = MappingProxyType(
    {"measured": "filled markers are measured", "recorded": "hollow markers were recorded earlier"}
)


def drawn(data: pd.DataFrame, value: str, predicted: str | None, band: bool = True) -> str:
    """Say how each kind of evidence in a figure is drawn; kinds that the rows lack are not mentioned."""
    words = [text for source, text in _DRAWN.items() if data.loc[data["source"].eq(source), value].notna().any()]
    words = [f"{join(words)}{', with 95 % intervals' if band else ''}"] if words else []
    if predicted is not None and data[predicted].notna().any():
        has_band = band and data["model_lo"].notna().any()
        words.append(f"lines are predicted{', with a 95 % band' if has_band else ''}")
    text = "; ".join(words)
    return sentence(text) + "." if text else ""


def new_figure(title: str, caption: str) -> go.Figure:
    """Return an empty figure with the common layout; title and caption are plain text."""
    import plotly.graph_objects as go

    figure = go.Figure()
    wrapped = "<br>".join(plot_text(line) for line in textwrap.wrap(title, 96))
    figure.update_layout(
        template="none",
        meta={"title": title, "caption": caption, "add": None},
        title={"text": wrapped, "x": 0, "xanchor": "left", "xref": "paper", "y": 1, "yref": "container",
               "yanchor": "top", "pad": {"t": 14}, "font": {"size": 16}},
        margin=MARGIN,
        font={"family": "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", "size": 13, "color": theme.TEXT[0]},
        paper_bgcolor=theme.BACKGROUND[0],
        plot_bgcolor=theme.BACKGROUND[0],
        hovermode="closest",
        hoverlabel={"bgcolor": theme.BACKGROUND[0], "bordercolor": theme.AXIS[0], "font": {"color": theme.TEXT[0]},
                    "align": "left"},
        legend={"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom",
                "font": {"size": 12}, "bgcolor": "rgba(0,0,0,0)", "itemsizing": "trace", "tracegroupgap": 0},
    )  # fmt: skip
    for axis in (figure.update_xaxes, figure.update_yaxes):
        axis(
            gridcolor=theme.GRID[0], linecolor=theme.AXIS[0], zeroline=False, showline=True, ticks="outside",
            tickcolor=theme.AXIS[0], ticklen=4, automargin=False, title={"standoff": 8, "font": {"size": 13}},
        )  # fmt: skip
    return figure


def lower_panel(figure: go.Figure, title: dict[str, Any]) -> None:
    """Make room for a second panel below the first over the same x axis: its traces have ``yaxis="y2"``."""
    upper = figure.layout.yaxis
    style = {name: upper[name] for name in ("gridcolor", "linecolor", "tickcolor", "zeroline", "showline", "ticks",
                                            "ticklen")}  # fmt: skip
    figure.update_yaxes(domain=[0.42, 1])
    figure.update_xaxes(anchor="y2")
    figure.update_layout(yaxis2={**style, "anchor": "x", "domain": [0, 0.34], "title": {
        **title, "standoff": 8, "font": {"size": 13}}})  # fmt: skip


def batch_axis(figure: go.Figure, batches: Sequence[float]) -> None:
    """Make x the batch: logarithmic, a tick at each power of two."""
    low, high = min(batches), max(batches)
    ticks = [2**i for i in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)]
    pad = 0.06 * max(1.0, math.log10(high / low))
    figure.update_xaxes(
        type="log", title={"text": "batch B (sequences)"}, tickmode="array", tickvals=ticks,
        ticktext=[integer(tick) for tick in ticks], range=[math.log10(low) - pad, math.log10(high) + pad],
    )  # fmt: skip


def log_axis(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis from below ``low`` to above ``high`` with plain numbers at 1, 2 and 5."""
    low, high = low / 1.25, high * 1.25
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 2e3 else (1,)
    ticks = [m * 10.0**d for d in decades for m in steps if low <= m * 10.0**d <= high]
    text = [f"{tick:,.10g}" for tick in ticks]
    return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": text,
            "range": [math.log10(low), math.log10(high)]}  # fmt: skip


def highlighted(lines: Sequence[Series], best: float | None) -> list[Series]:
    """Return the lines to draw: all of them, or of many windows the best, the smallest and the largest."""
    windows = sorted({line.window for line in lines if line.window is not None})
    if len(windows) <= MAX_WINDOWS:
        return list(lines)
    keep = {windows[0], windows[-1], best if best in windows else windows[len(windows) // 2]}
    return [line for line in lines if line.window is None or line.window in keep]


def add_area(figure: go.Figure, x: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str,
             group: str, edge: float = 0) -> None:  # fmt: skip
    """Fill from ``low`` to ``high`` in a translucent colour, with an edge so many pixels wide.

    ``group`` is that of the legend's entry with which it comes and goes.
    """
    figure.add_scatter(
        x=[*x, *reversed(x)], y=[*high, *reversed(low)], mode="lines", fill="toself",
        line={"width": edge, "color": theme.translucent(colour)}, fillcolor=theme.translucent(colour),
        hoverinfo="skip", showlegend=False, legendgroup=group, name="band",
    )  # fmt: skip


def add_predicted(
    figure: go.Figure, line: Series, value: str, band: tuple[str, str] | None, *, faint: bool = False, x: str = "batch",
    name: Callable[[Any], str] | None = None, more: Callable[[Any], str] | None = None,
) -> None:  # fmt: skip
    """Draw a prediction: a line, and its band where the rows have one; ``name`` and ``more`` are for hover boxes."""
    style = theme.method_style(line.method)
    rows = line.rows
    if band is not None and rows[list(band)].notna().all(axis=None) and len(rows) > 1 and not faint:
        low, high = (rows[end].tolist() for end in band)
        add_area(figure, rows[x].tolist(), low, high, style.light, f"{line.label} predicted")
    figure.add_scatter(
        x=rows[x].tolist(), y=rows[value].tolist(), mode="lines" if len(rows) > 1 else "lines+markers",
        line={"color": style.light, "width": 1.2 if faint else 2}, opacity=FAINT if faint else 1,
        marker={"symbol": "line-ew-open", "size": 14, "color": style.light, "line": {"width": 2}},
        name=f"{plot_text(line.label)}, predicted", legendgroup=f"{line.label} predicted",
        hovertext=_hovers(line, "predicted", name, more), hoverinfo="text",
        meta={"source": "predicted", "method": line.method},
    )  # fmt: skip


def add_timed(
    figure: go.Figure, line: Series, value: str, ends: tuple[str, str] | None, *, faint: bool = False, x: str = "batch",
    guide: bool = True, name: Callable[[Any], str] | None = None, more: Callable[[Any], str] | None = None,
) -> None:  # fmt: skip
    """Draw measured rows (filled) or recorded rows (hollow), joined by a dotted guide.

    In hover boxes ``name`` names a row, by default as the line is named, and ``more`` gives a line of text more.
    """
    style = theme.method_style(line.method)
    rows = line.rows
    hollow = line.source == "recorded"
    bars = None
    if ends is not None:
        low, high = ((rows[end] - rows[value]).abs().fillna(0.0).tolist() for end in ends)
        bars = {"type": "data", "symmetric": False, "array": high, "arrayminus": low, "thickness": 1.4, "width": 4,
                "color": style.light}  # fmt: skip
    figure.add_scatter(
        x=rows[x].tolist(), y=rows[value].tolist(), mode="lines+markers" if guide and len(rows) > 1 else "markers",
        line={"color": style.light, "width": 1, "dash": "dot"}, opacity=FAINT if faint else 1, error_y=bars,
        marker={"symbol": style.marker + ("-open" if hollow else ""), "size": _MARKER_SIZE, "color": style.light,
                "line": {"width": 2 if hollow else 0, "color": style.light}},
        name=f"{plot_text(line.label)}, {line.source}", legendgroup=f"{line.label} {line.source}",
        hovertext=_hovers(line, line.source, name, more), hoverinfo="text",
        meta={"source": line.source, "method": line.method},
    )  # fmt: skip


def _hovers(
    line: Series, source: str, name: Callable[[Any], str] | None, more: Callable[[Any], str] | None
) -> list[str]:
    texts = []
    for row in records(line.rows):
        parts = [hover(row, source, name(row) if name else line.label), plot_text(more(row)) if more else ""]
        parts.append(plot_text(origin(row._asdict())) if source == "recorded" else "")
        texts.append("<br>".join(filter(None, parts)))
    return texts


@dataclass(frozen=True, slots=True)
class EndLabel:
    """The name of a line at its right end."""

    text: str
    batch: float
    y: float
    method: str
    faint: bool


def end_label(line: Series, value: str, best: float | None) -> EndLabel:
    """Return the label of a line: its window, or its method, at its largest batch."""
    last = line.rows.iloc[-1]
    text = window_text(line.window) or line.method
    return EndLabel(text, float(last["batch"]), float(last[value]), line.method, is_faint(line, best))


def end_labels(figure: go.Figure, labels: Iterable[EndLabel], span: tuple[float, float], log: bool) -> None:
    """Name lines at their right ends, moved apart vertically so that no two labels overlap.

    Args:
        figure: the figure to write on; its height is fixed, so that distances in pixels are known.
        labels: one per line.
        span: the range of the y axis, in axis units.
        log: y is logarithmic.
    """
    pixels = []
    for label in labels:
        value = math.log10(label.y) if log else label.y
        pixels.append(((value - span[0]) / (span[1] - span[0]) * AREA_PX, value, label))
    pixels.sort(key=lambda item: item[0])
    places = spread([item[0] for item in pixels], LABEL_PX)
    add_annotations(
        figure,
        [
            {"x": math.log10(label.batch), "y": value, "text": plot_text(label.text), "showarrow": False,
             "xanchor": "left", "xshift": 9, "yshift": place - true,
             "font": {"size": 12, "color": theme.method_style(label.method).light},
             "opacity": 0.7 if label.faint else 1, "name": "end-label"}
            for (true, value, label), place in zip(pixels, places, strict=True)
        ],
    )  # fmt: skip


def add_annotations(figure: go.Figure, annotations: Iterable[dict[str, Any]]) -> None:
    """Add annotations all at once: Plotly checks all that there are again with each that is added."""
    figure.update_layout(annotations=[*figure.layout.annotations, *annotations])


def spread(positions: Sequence[float], distance: float) -> list[float]:
    """Move sorted positions apart until neighbours are ``distance`` apart, each block staying centred."""
    blocks: list[list[float]] = []  # [sum of the wanted starts, count]
    for i, position in enumerate(positions):
        blocks.append([position - i * distance, 1.0])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    starts = [total / count for total, count in blocks for _ in range(int(count))]
    return [start + i * distance for i, start in enumerate(starts)]


def finish(figure: go.Figure) -> go.Figure:
    """Give the legend the rows that it needs and the figure the height for them."""
    names = [str(trace.name) for trace in figure.data if trace.showlegend is not False]
    width = round(6.3 * max((len(name) for name in names), default=0)) + 6
    per_row = max(1, (WIDTH_PX - MARGIN["l"] - MARGIN["r"]) // (width + 40))
    top = (
        MARGIN["t"] + LEGEND_ROW_PX * -(-len(names) // per_row) + 26 + 20 * (figure.layout.title.text.count("<br>") + 1)
    )
    figure.update_layout(
        legend={"entrywidth": width, "entrywidthmode": "pixels"},
        margin={"t": top},
        height=AREA_PX + top + MARGIN["b"],
    )
    return figure


def is_faint(line: Series, best: float | None) -> bool:
    """True for lines that stand behind the recommended one: other windows of the methods."""
    return line.method not in BASELINES and best is not None and not is_missing(line.window) and line.window != best


def sweep_command(data: pd.DataFrame, *options: str) -> str:
    """Return the sweep of the rows' model and kind of step, with some options more."""
    model = next((value for value in data["model"] if value is not None), "KEY")
    words = ["perfkit sweep --model", shlex.quote(model)]
    named = " ".join(options)
    trees = [value for value in data["tree"] if value is not None]
    drafts = sorted({round(value) for value in data.loc[data["tree"].isna(), "draft_len"].dropna() if value > 1})
    if len(trees) == len(data) > 0:
        words.append(f"--tree {shlex.quote(trees[0])}")
    elif drafts and "--draft" not in named and "--preset" not in named:
        words.append(f"--draft {','.join(map(str, drafts))}")
    return " ".join([*words, *options])


def empty(figure: go.Figure, text: str, add: str | None = None) -> go.Figure:
    """Write on a figure why it shows nothing; ``add`` is the command that adds what it lacks."""
    figure.layout.meta = {**figure.layout.meta, "add": add}
    figure.add_annotation(text=plot_text(text), x=0.5, y=0.5, xref="paper", yref="paper", showarrow=False,
                          font={"color": theme.MUTED[0], "size": 14})  # fmt: skip
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return finish(figure)
