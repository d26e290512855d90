"""Bytes of a step, counted three ways: as the paper counts, exactly, and by DRAM counters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.reports import findings, select, theme
from perfkit.reports.figures import base
from perfkit.reports.figures.rows import numbers, origin, place, workloads
from perfkit.reports.text import count, is_missing, join, number, percent, plot_text, sentence, times

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

#: Counters that are off by more than this share of the declared bytes contradict them.
TOLERANCE = 0.01
#: More bars than this do not fit: the best window of a method, the smallest and the largest go first.
MAX_BARS = 9
_COUNTS = (("paper", "paper's count"), ("model", "exact count"), ("dram", "DRAM counters"))
_SUMS = ("gb_dram", "gb_model", "gb_paper")
Bar = tuple[str, dict[str, Any]]


def traffic_bars(frame: pd.DataFrame) -> go.Figure:
    """Draw the bytes that a step of each method moves in one layer: paper's count, exact count, DRAM counters.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.traffic_bars(load_run("runs/my-run")).show()  # doctest: +SKIP
    """
    data = numbers(select.prepare(frame), *(f"bytes_{way}_{kind}" for kind, _ in _COUNTS for way in ("read", "write")))
    for kind, _ in _COUNTS:
        data[f"gb_{kind}"] = (data[f"bytes_read_{kind}"] + data[f"bytes_write_{kind}"]) / 1e9
    rows, others = _one_workload(data[data[list(_SUMS)].gt(0).any(axis=1)])
    bars = _bars(rows)
    figure = base.new_figure(_title(bars), _caption(data, bars, others))
    if not bars:
        return base.empty(figure, "no case says how many bytes it moves", base.sweep_command(data))
    for kind, title in _COUNTS:
        shown = [(label, row) for label, row in bars if row[f"gb_{kind}"] > 0]
        if not shown:
            continue
        colours = [theme.method_style(row["method"]).light for _, row in shown]
        figure.add_bar(
            y=[plot_text(label) for label, _ in shown], x=[row[f"gb_{kind}"] for _, row in shown], orientation="h",
            marker={"color": [_fill(kind, row) for _, row in shown], "line": {"color": colours, "width": 1.5},
                    "pattern": {"shape": "/" if kind == "paper" else "", "fgcolor": colours, "size": 6}},
            name=title, hovertext=[_hover(bar, kind, title) for bar in shown], hoverinfo="text",
            meta={"count": kind, "methods": [row["method"] for _, row in shown]},
        )  # fmt: skip
    figure.update_xaxes(title={"text": "bytes per step and layer (GB)"}, rangemode="tozero")
    figure.update_yaxes(type="category", autorange="reversed", title={"text": "method"}, automargin=True, dtick=1)
    figure.update_layout(barmode="group", bargap=0.25, bargroupgap=0.08)
    return base.finish(figure)


def _one_workload(rows: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Return the rows at one batch of one workload, that with the most counters, and how many workloads are left."""
    if not len(rows):
        return rows, 0
    value = "gb_dram" if rows["gb_dram"].gt(0).any() else "gb_model"
    batch = select.reference_batch(rows, value)
    here = rows if batch is None else rows[rows["batch"].eq(batch)]
    parts = workloads(here)
    best = max(parts, key=lambda part: (int(part["gb_dram"].gt(0).sum()), int(part["method"].nunique())))
    return best, len(parts) - 1


def _bars(rows: pd.DataFrame) -> list[Bar]:
    """Return (label, row) of the cases to draw; a row with counters goes before one of the same case without."""
    if not len(rows):
        return []
    order = {source: place for place, source in enumerate(select.SOURCES)}
    ranked = rows.assign(_shown=rows[list(_SUMS)].bfill(axis=1)["gb_dram"], _late=rows["source"].map(order).fillna(9))
    ranked = ranked.assign(_late=ranked["_late"] + 10 * ~ranked["gb_dram"].gt(0)).sort_values("_late", kind="stable")
    # Bytes are no times: rows of any source stand beside each other, each case once.
    lines = select.series(ranked.assign(source="measured"), "_shown")
    if len(lines) > MAX_BARS:
        lines = base.highlighted(lines, findings.answer(rows).window)
    return [
        (line.label, {str(name): value for name, value in rows.loc[line.rows.index[0]].items()})
        for line in lines[:MAX_BARS]
    ]


def _fill(kind: str, row: dict[str, Any]) -> str:
    """Counters of this run are filled, recorded ones hollow as everywhere; counts by a model are translucent."""
    colour = theme.method_style(row["method"]).light
    if kind == "dram":
        return theme.BACKGROUND[0] if row["source"] == "recorded" else colour
    return theme.translucent(colour)


def _hover(bar: Bar, kind: str, title: str) -> str:
    label, row = bar
    total = number(row[f"gb_{kind}"])
    ways = [f"{way} {number(row[f'bytes_{way}_{kind}'] / 1e9)} GB" for way in ("read", "write")]
    lines = [f"<b>{plot_text(label)}</b>, {title}", plot_text(place(row)), f"{total} GB: {join(ways)}"]
    off = _off(row)
    if kind == "dram" and off is not None:
        lines += [f"{off:+.1%} off the exact count", plot_text(origin(row))]
    return "<br>".join(filter(None, lines))


def _off(row: dict[str, Any]) -> float | None:
    """Return by which share counters are off the exact count: the worse of reads and writes, None without both.

    What a kernel leaves dirty in L2 is not in DRAM yet: writes may differ by one L2 without being off.
    """
    found = []
    for way, slack in (("read", 0.0), ("write", _l2_bytes(row["gpu"]))):
        declared, counted = row[f"bytes_{way}_model"], row[f"bytes_{way}_dram"]
        if declared > 0 and not is_missing(counted):
            excess = counted - declared
            found.append(float(np.sign(excess) * max(0.0, abs(excess) - slack) / declared))
    return max(found, key=abs, default=None)


def _l2_bytes(gpu: str | None) -> float:
    from perfkit.errors import InputError
    from perfkit.profiles import load_gpu

    try:
        return load_gpu(gpu).l2_mb * 2**20 if gpu is not None else 0.0
    except InputError:  # a GPU without a profile
        return 0.0


def _title(bars: list[Bar]) -> str:
    """Name what counters contradict; without counters say which method moves least, and the baseline beside it."""
    if not bars:
        return "No case says how many bytes it moves"
    where = place(bars[0][1])
    offs = {label: off for label, row in bars if (off := _off(row)) is not None}
    wrong = {label: off for label, off in offs.items() if abs(off) > TOLERANCE}
    if wrong:
        words = join(f"{label} ({off:+.1%})" for label, off in wrong.items())
        return f"DRAM counters contradict the exact count of {words} at {where}; {len(wrong)} of {len(offs)} cases"
    if offs:
        share = percent(TOLERANCE, 0)
        return f"DRAM counters agree within {share} with the exact count of {count(len(offs), 'case')} at {where}"
    kind, name = next((kind, name) for kind, name in (("gb_model", "exact count"), ("gb_paper", "paper's count"),
                                                      ("gb_dram", "DRAM counters"))
                      if any(row[kind] > 0 for _, row in bars))  # fmt: skip
    counted = [bar for bar in bars if bar[1][kind] > 0]
    least, row = min(counted, key=lambda bar: float(bar[1][kind]))
    text = f"{sentence(least)} moves the least, {number(row[kind])} GB a step and layer at {where}"
    control = next((row for _, row in counted if row["method"] in select.BASELINES), row)
    if control is not row:
        text += f"; {control['method']} moves {times(control[kind] / row[kind])} as much"
    return f"{text} ({name}{'' if kind == 'gb_dram' else '; no DRAM counters'})"


def _caption(data: pd.DataFrame, bars: list[Bar], others: int) -> str:
    sources = {row["source"] for _, row in bars if row["gb_dram"] > 0}
    looks = ["hatched is the paper's count", "translucent the exact one"]
    looks += ["solid what counters of this run say"] if sources - {"recorded"} else []
    looks += ["hollow what was counted earlier"] if "recorded" in sources else []
    parts = [
        "How to read it: bytes of one step and layer, reads and writes together, flushes at their share of the steps. "
        "The paper counts states and records alone; the exact count has inputs, outputs and cursors too, an address "
        f"once a launch, and counters must show it; {join(looks)}."
    ]
    if others:
        parts.append(f"{count(others, 'other workload')} left out here.")
    if bars and not sources:
        command = base.sweep_command(data).replace("perfkit sweep", "perfkit profile", 1)
        parts.append(f"{command} adds the counters.")
    return " ".join(parts)
