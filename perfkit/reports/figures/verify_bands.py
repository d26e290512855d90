"""Verify steps in units of one conventional decode step, over draft length, from one accepted token to all."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.reports import findings, select, theme
from perfkit.reports.figures import base
from perfkit.reports.figures.rows import add_ratios, case_name, lines, numbers, present
from perfkit.reports.text import integer, interval, join, number, sentence

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: What two times must share for one to be the unit of the other: one GPU, and one kind of evidence of one run.
_UNIT = ("model", "gpu", "batch", "n_layers", "input_dtype", "state_dtype", "run")
_TIMED = (*_UNIT, "source", "gpu_uuid")
_ALONG = ("draft_len", "acceptance")
#: Methods stand side by side at each T: the next one so much to the right.
_ASIDE = 1.014
#: Width kept free at the right for the names of methods, as a share of the rest.
ROOM = 0.16


def verify_bands(frame: pd.DataFrame) -> go.Figure:
    """Draw what a verify step costs in conventional decode steps, a band for each method from a = 1 to a = T.

    Source: paper, Figures 4, 7 and 10.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.verify_bands(load_run("runs/my-verify-run")).show()  # doctest: +SKIP
    """
    data = in_steps(select.prepare(frame))
    rows = data[data["phase"].eq("verify") & data["tree"].isna() & data["draft_len"].gt(1)]
    rows = rows[rows["steps"].notna() | rows["model_steps"].notna()]
    batch = next((b for value in ("steps", "model_steps") if (b := select.reference_batch(rows, value))), None)
    rows = rows[rows["batch"].eq(np.nan if batch is None else batch)]
    where = f" at B = {integer(batch)}" if batch is not None else ""
    caption = (
        f"How to read it: lower is cheaper; 1 is one conventional decode step{where}, and a step that commits a tokens "
        "pays off below a. A band runs from the cheapest to the dearest acceptance that was run, a "
        "marker is one of them; both axes are logarithmic, and methods stand side by side at each T. "
        f"{base.drawn(rows, 'steps', None)}"
        + (" Lines are predicted, at the dearest acceptance." if rows["model_steps"].notna().any() else "")
    )
    source = next((kind for kind in select.TIMED if rows.loc[rows["source"].eq(kind), "steps"].notna().any()), None)
    figure = base.new_figure(_title(rows, source, batch), caption)
    if not len(rows):
        return base.empty(figure, "no verify step beside a conventional decode step",
                          base.sweep_command(data, "--preset verify"))  # fmt: skip
    best = findings.answer(rows).window
    timed = base.highlighted(lines(rows, "steps", select.TIMED, _ALONG), best)
    predicted = base.highlighted(lines(rows, "model_steps", ("predicted",), _ALONG), best)
    names = list(dict.fromkeys((line.method, line.window) for line in (*timed, *predicted)))
    several = Counter(method for method, _ in names)
    ends: dict[str, base.EndLabel] = {}
    values = [1.0]
    predicted, timed = ([_placed(line, names) for line in found] for found in (predicted, timed))
    for line in predicted:
        _add_band(figure, line, "model_steps", "predicted")
        top = line.rows.sort_values(["place", "model_steps"]).drop_duplicates("place", keep="last")
        base.add_predicted(
            figure, replace(line, rows=top), "model_steps", None, x="place", name=case_name, more=_steps("model_steps")
        )
    for line in timed:
        _add_band(figure, line, "steps", line.source)
        base.add_timed(figure, line, "steps", ("steps_lo", "steps_hi"), x="place", guide=False, name=case_name,
                       more=_steps("steps"))  # fmt: skip
    for line, value in [(line, "model_steps") for line in predicted] + [(line, "steps") for line in timed]:
        values += present(line.rows, value, f"{value}_lo", f"{value}_hi")
        last = line.rows[line.rows["place"].eq(line.rows["place"].max())]
        name = line.label.split(",")[0] if several[line.method] > 1 else line.method
        middle = math.sqrt(last[value].min() * last[value].max())
        ends[line.label] = base.EndLabel(
            name, float(last["draft_len"].iloc[0]) * _ASIDE ** len(names), middle, line.method, False
        )
    drafts = sorted(set(rows["draft_len"]))
    figure.update_xaxes(
        type="log", title={"text": "draft length T (positions per step)"}, tickmode="array", tickvals=drafts,
        ticktext=[integer(draft) for draft in drafts],
        range=_room(drafts[0] / 1.12, drafts[-1] * _ASIDE ** len(names) * 1.04),
    )  # fmt: skip
    axis = base.log_axis(min(values), max(values))
    figure.update_yaxes(**axis, title={"text": "conventional decode steps"})
    figure.add_shape(type="line", xref="paper", x0=0, x1=1 - ROOM / (1 + ROOM), y0=1, y1=1,
                     line={"color": theme.MUTED[0], "width": 1.5, "dash": "dash"})  # fmt: skip
    base.end_labels(figure, ends.values(), tuple(axis["range"]), log=True)
    return base.finish(figure)


def in_steps(data: pd.DataFrame) -> pd.DataFrame:
    """Add ``steps, steps_lo, steps_hi`` and ``model_steps…``: times over that of the conventional decode step.

    Where that step is not among the rows, a saved ``conventional_steps`` stands in. A bound from bytes is not divided
    by a time with a kernel's efficiency.
    """
    data = numbers(data, "conventional_steps")
    units = data["phase"].eq("decode") & data["method"].eq("conventional") & data["window"].isna()
    add_ratios(data, units, _TIMED, "us", "steps")
    add_ratios(data, units, _UNIT, "model", "model_steps")
    saved = data["steps"].isna() & data["us"].notna()
    data["steps"] = data["steps"].where(~saved, data["conventional_steps"])
    for end in ("lo", "hi"):
        own = data["steps"] * data[f"us_{end}"] / data["us"]
        data[f"steps_{end}"] = data[f"steps_{end}"].where(~saved, own)
    return data


def _placed(line: select.Series, names: list[tuple[str, float | None]]) -> select.Series:
    """Return a line with ``place``, where its method stands at each T."""
    aside = _ASIDE ** names.index((line.method, line.window))
    return replace(line, rows=line.rows.assign(place=line.rows["draft_len"] * aside))


def _room(low: float, high: float) -> list[float]:
    """Return a logarithmic axis with room at its right for the names of methods, which are long for the margin."""
    return [math.log10(low), math.log10(high) + ROOM * math.log10(high / low)]


def _steps(value: str) -> Any:
    """Return how a hover box says the cost of a row."""

    def text(row: Any) -> str:
        ends = interval(getattr(row, f"{value}_lo"), getattr(row, f"{value}_hi"))
        return f"{number(getattr(row, value))} conventional steps {ends}".strip()

    return text


def _add_band(figure: go.Figure, line: select.Series, value: str, source: str) -> None:
    """Fill from the cheapest to the dearest acceptance; at a single T there is only a bar."""
    ends = line.rows.groupby("place")[value].agg(["min", "max"])
    xs, low, high = ends.index.tolist(), ends["min"].tolist(), ends["max"].tolist()
    colour = theme.method_style(line.method).light
    if len(xs) == 1:
        xs, low, high = [xs[0] / 1.004, xs[0] * 1.004], low * 2, high * 2
    base.add_area(figure, xs, low, high, colour, f"{line.label} {source}", edge=1)


def _title(rows: pd.DataFrame, source: str | None, batch: float | None) -> str:
    """Say which method is cheapest at each T, by its dearest acceptance, and what a step costs at the largest T."""
    value = "steps" if source else "model_steps"
    here = rows[(rows["source"].eq(source) if source else True) & rows[value].notna()] if len(rows) else rows
    if not len(here):
        return "No verify step stands beside a conventional decode step of its run"
    cheapest: dict[str, dict[float, float]] = {}
    ends = here.assign(window=here["window"].fillna(-1.0)).groupby(["draft_len", "method", "window"])[value]
    tops, lows = ends.max(), ends.min()
    drafts = sorted(set(here["draft_len"]))
    for draft in drafts:
        method, window = tops.loc[draft].idxmin()
        cheapest.setdefault(method, {})[draft] = window
    said = source or "predicted"
    parts = []
    for method, found in cheapest.items():
        windows = join((integer(window) for window in sorted(set(found.values())) if window > 0), "or")
        at = f"T = {join(map(integer, found))}"
        if len(cheapest) == 1 < len(drafts):
            at = f"every T ({join(map(integer, drafts))})"
        name = f"{method} at L = {windows}" if windows else method
        parts.append(f"{name} {findings.verb(said)} the cheapest at {at}")
    last = max(here["draft_len"])
    costs: dict[str, str] = {}
    for method, window in sorted(tops.loc[last].index, key=lambda key: tops.loc[(last, *key)]):
        low, high = (float(side.loc[(last, method, window)]) for side in (lows, tops))
        text = number(low) if number(low) == number(high) else f"{number(low)} to {number(high)}"
        costs.setdefault(method, text)
    shown = [name for name in dict.fromkeys([next(iter(costs)), "snapshot"]) if name in costs]
    words = join(f"{name} {costs[name]}" for name in shown)
    return (
        f"{sentence(join(parts))} at B = {integer(batch)}; a step of T = {integer(last)} costs {words} conventional "
        f"steps ({said})"
    )
