"""What the figures of a plan share: typed columns of its frames, names of choices, and how a prediction is drawn."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from perfkit.plan.words import choice, dtype
from perfkit.reports import theme
from perfkit.reports.figures import base
from perfkit.reports.figures.rows import numbers
from perfkit.reports.text import is_missing, plot_text

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: What makes a choice of a plan; L goes with the load.
CHOICE = ("method", "draft_len", "state_dtype")
_TEXT = ("model", "gpu", "method", "state_dtype")
_FLAGS = ("asked", "chosen", "on_front")
DASHES = ("solid", "dash", "dot", "dashdot")


def typed(frame: pd.DataFrame, above_0: Sequence[str], others: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows of a plan's frame of which all of ``above_0`` is known, typed; columns that lack are missing."""
    data = numbers(frame, "draft_len", "window", *above_0, *others).replace([math.inf, -math.inf], math.nan)
    for name in _TEXT:
        column = data[name] if name in data else [None] * len(data)
        data[name] = [None if is_missing(value) else str(value) for value in column]
    for name in _FLAGS:
        data[name] = [value is True or str(value) == "True" for value in data[name]] if name in data else False
    data["state_dtype"] = data["state_dtype"].fillna("")
    known = data[list(above_0)].gt(0).all(axis=1) & data["method"].notna()
    return data[known].reset_index(drop=True)


def choices(data: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield the rows of each choice, in the order of first appearance."""
    yield from (part for _, part in data.groupby(list(CHOICE), sort=False, dropna=False))


def chosen_row(data: pd.DataFrame) -> dict[Any, Any] | None:
    """Return the first row of the answer; None where no row is marked."""
    rows = data[data["chosen"]]
    return rows.iloc[0].to_dict() if len(rows) else None


def named(row: Any, window: bool = True) -> str:
    """Name a row's choice as the sentences of a plan do; of a row without T as decode."""
    draft_len, length = (None if is_missing(row[name]) else round(row[name]) for name in ("draft_len", "window"))
    return choice(row["method"], draft_len or 1, length if window else None)


def state(row: Any) -> str:
    """Name the precision of a row's state, ``FP32 state``."""
    return f"{dtype(row['state_dtype'])} state" if row["state_dtype"] else ""


def command(data: pd.DataFrame) -> str:
    """Return the plan that gives a frame its rows."""
    names = [next((value for value in data[name] if not is_missing(value)), "KEY") if name in data else "KEY"
             for name in ("model", "gpu")]  # fmt: skip
    return plan_command(*map(str, names))


def plan_command(model: str, gpu: str) -> str:
    """Return the command that writes the page of a plan."""
    return shlex.join(["perfkit", "plan", "--model", model, "--gpu", gpu, "-o", "plan.html"])


def tokens_axis(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis of tokens per second, in thousands where there are: there is room for few digits."""
    axis = base.log_axis(low, high)
    return axis | {"ticktext": [f"{tick / 1e3:g}k" if tick >= 1e3 else f"{tick:g}" for tick in axis["tickvals"]]}


def headroom(low: float, high: float) -> float:
    """Return where a logarithmic axis ends that has room for names above its lines."""
    return float(high * (high / low) ** 0.15)


def add_line(
    figure: go.Figure, rows: pd.DataFrame, x: str, y: str, *, name: str, hover: Sequence[str],
    ends: tuple[str, str] | None = None, colour: str | None = None, dash: str = "solid", faint: bool = False,
    in_legend: bool = True, axis: str = "y",
) -> None:  # fmt: skip
    """Draw a prediction of one choice: a line in the colour of its method, and its band where all of it has ends."""
    method = str(rows["method"].iloc[0])
    colour = colour or theme.method_style(method).light
    group = f"{name} {axis}"
    if ends is not None and len(rows) > 1 and rows[list(ends)].gt(0).all(axis=None):
        low, high = (rows[end].tolist() for end in ends)
        base.add_area(figure, rows[x].tolist(), low, high, colour, group)
    figure.add_scatter(
        x=rows[x].tolist(), y=rows[y].tolist(), mode="lines" if len(rows) > 1 else "lines+markers",
        line={"color": colour, "width": 1.2 if faint else 2, "dash": dash}, opacity=base.FAINT if faint else 1,
        marker={"symbol": "line-ew-open", "size": 14, "color": colour, "line": {"width": 2}},
        name=f"{plot_text(name)}, predicted", legendgroup=group, showlegend=in_legend, yaxis=axis,
        hovertext=[f"<b>{plot_text(name)}</b>, predicted<br>{text}" for text in hover], hoverinfo="text",
        meta={"source": "predicted", "method": method},
    )  # fmt: skip


def add_upright(figure: go.Figure, x: float, text: str, height: float, *, left: bool = False) -> None:
    """Mark a place on a logarithmic x axis by a line over the figure, with its name at ``height``, a share of it."""
    figure.add_shape(type="line", xref="x", yref="paper", x0=x, x1=x, y0=0, y1=height,
                     line={"color": theme.ACCENT[0], "width": 1.5, "dash": "dot"})  # fmt: skip
    base.add_annotations(figure, [{
        "x": math.log10(x), "y": height, "yref": "paper", "text": plot_text(text), "showarrow": False,
        "yanchor": "top", "xanchor": "right" if left else "left", "xshift": -5 if left else 5,
        "font": {"size": 12, "color": theme.ACCENT[0]}, "bgcolor": theme.PLATE[0], "name": "mark-label",
    }])  # fmt: skip
