"""Ours over what the paper published, for each of its kernel numbers that the rows can stand beside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

from perfkit.reports import select, theme
from perfkit.reports.figures import base
from perfkit.reports.figures.rows import shipped_manifest
from perfkit.reports.text import count, join, number, percent, plot_text, sentence, times

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

    from perfkit.paper import Compared
    from perfkit.profiles.published import PaperCell

_KINDS: tuple[Literal["measured", "recorded"], ...] = ("measured", "recorded")
#: What a comparison reads of a row.
_COLUMNS = (
    "case_id", "group_id", "model", "gpu", "method", "batch", "window", "draft_len", "acceptance", "tree",
    "flush_phase", "state_dtype", "read_dtype", "source", "status", "time_us", "us", "time_default_us", "baseline",
    "speedup", "conventional_steps", "bandwidth_gb_s", "implementation", "routing", "run",
)  # fmt: skip
#: More lines than this do not fit; misses go first.
MAX_LINES = 10


def paper_table(frame: pd.DataFrame) -> go.Figure:
    """Draw ours over published for the paper's numbers of kernels, misses first.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.paper_table(load_run("runs/my-run")).show()  # doctest: +SKIP
    """
    from perfkit.paper import TOLERANCE

    data = select.prepare(frame)
    items = compare(data)
    shown = items[:MAX_LINES]
    causes = _causes(items)
    caption = (
        "How to read it: each line is a number of the paper, misses first; the marker is ours over it, 1 is the same, "
        f"and the band is ±{percent(TOLERANCE, 0)}, inside which two figures of few digits agree. A range is a line "
        "between two markers. Filled is comparable; hollow is not, whatever our rows are"
        + (f": {causes}. " if causes else ". ")
        + (f"{count(len(items) - len(shown), 'further number')} left out here. " if len(items) > len(shown) else "")
    ).strip()
    figure = base.new_figure(_title(items), caption)
    if not shown:
        return base.empty(figure, "no number of the paper stands beside these rows", _command(data))
    names = _names(shown)
    _add_guides(figure)
    for name, item in zip(names, shown, strict=True):
        _add(figure, name, item)
    ends = [1 / (1 + 2 * TOLERANCE), 1 + 2 * TOLERANCE, *(end for item in shown for end in item.ratio or ())]
    axis = base.log_axis(min(ends), max(ends))
    figure.update_xaxes(**axis, title={"text": "ours over published (×)"}, tickangle=0)
    figure.update_yaxes(type="category", range=[len(names) - 0.4, -0.6], title={"text": "published number"},
                        categoryorder="array", categoryarray=names, automargin=True, dtick=1)  # fmt: skip
    return base.finish(figure)


def compare(data: pd.DataFrame) -> list[Compared]:
    """Return the paper's numbers of kernels that the rows have a value for, misses first; each kind of row by itself.

    A frame has no manifest: rows that say what the default configuration takes were tuned.
    """
    from perfkit.paper.ours import compared
    from perfkit.paper.rows import Rows, kernel_value

    models = {model for model in data["model"] if model is not None}
    cells = [cell for cell in _cells() if models & set(cell.models)]
    found = []
    for kind in _KINDS:
        rows: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for row in _plain(data[data["source"].eq(kind) & data["us"].notna()]) if cells else ():
            rows.setdefault((row["model"], row["method"], row["batch"]), []).append(row)
        for cell in cells:
            methods = (cell.method, (cell.baseline or "").partition(",")[0])
            # Only these rows can be looked at; the others would cost time in a frame of thousands.
            near = [row for key in product(cell.models, methods, cell.batches) for row in rows.get(key, ())]
            item = compared(cell, kernel_value(cell, Rows(kind, tuple(near))), None)
            if item.ratio is not None:
                found.append(item)
    return sorted(found, key=lambda item: item.order)


@cache
def _cells() -> tuple[PaperCell, ...]:
    """Return the published numbers of kernels; those of several models are of their range, which no frame has."""
    from perfkit.profiles.published import load_paper, paper_names

    cells = [cell for name in paper_names() for cell in load_paper(name).cells]
    # Figures and tables share numbers: a cell of the same thing is drawn once.
    seen: dict[Any, PaperCell] = {}
    for cell in cells:
        if cell.kind == "kernel" and cell.lost is None and len(cell.models) == 1:
            key = (cell.quantity, cell.method, cell.baseline, cell.models, cell.batches, cell.draft_lens, cell.windows,
                   cell.acceptances, cell.state_dtype, cell.read_dtype, cell.step, cell.low, cell.high)  # fmt: skip
            seen.setdefault(key, cell)
    return tuple(seen.values())


def _plain(rows: pd.DataFrame) -> Iterable[Mapping[str, Any]]:
    from perfkit.results import plain_rows

    rows = rows[[name for name in _COLUMNS if name in rows]]
    for row in plain_rows(rows):
        manifest = shipped_manifest(row) or {
            "settings": {"tune": row.get("time_default_us") is not None},
            "hash": row.get("run"),
        }
        yield row | {"manifest": manifest}


def _names(items: Sequence[Compared]) -> list[str]:
    """Name each line by what tells it apart; the same words twice are numbered, since an axis joins equal names."""
    words = [f"{plot_text(first)}<br>{plot_text(second)}" for first, second in map(_words, items)]
    numbered = enumerate(words, 1)
    return [word if words.count(word) == 1 else f"{word} ({words[:at].count(word)})" for at, word in numbered]


def _words(item: Compared) -> tuple[str, str]:
    """Return what a number is of, and at which point."""
    cell = item.cell
    window = f" L={cell.windows[0]}" if len(cell.windows) == 1 else ""
    point = [f"{name}={_span(values)}" for name, values in (("B", cell.batches), ("T", cell.draft_lens)) if values]
    point += [f"a={cell.acceptances[0]}"] if len(cell.acceptances) == 1 else []
    return f"{cell.method}{window} {_QUANTITIES[cell.quantity]}", " ".join(point)


_QUANTITIES = {
    "kernel_speedup": "speedup", "kernel_cost": "cost", "kernel_steps": "steps", "kernel_us": "µs",
    "kernel_default_us": "µs, default", "kernel_tuning_gain": "tuning gain", "kernel_bandwidth_share": "% of peak",
    "kernel_best_window": "best window", "kernel_nonflush_speedup": "speedup without flushes",
}  # fmt: skip


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if len(values) == 1 else f"{min(values)}..{max(values)}"


def _add_guides(figure: go.Figure) -> None:
    from perfkit.paper import TOLERANCE

    colour = theme.METHOD_STYLES["conventional"].light
    figure.add_vrect(x0=1 / (1 + TOLERANCE), x1=1 + TOLERANCE, fillcolor=theme.translucent(colour), line={"width": 0})
    figure.add_vline(x=1, line={"color": theme.MUTED[0], "width": 1.5, "dash": "dash"})


def _add(figure: go.Figure, name: str, item: Compared) -> None:
    assert item.ours is not None and item.ratio is not None
    style = theme.method_style(item.cell.method or "")
    open_ = "-open" if item.reasons else ""
    label = f"{item.cell.method}, {'not comparable' if item.reasons else 'comparable'}"
    figure.add_scatter(
        x=list(dict.fromkeys(item.ratio)), y=[name] * len(set(item.ratio)), mode="lines+markers",
        line={"color": style.light, "width": 2},
        marker={"symbol": style.marker + open_, "size": 9, "color": style.light,
                "line": {"width": 2 if open_ else 0, "color": style.light}},
        name=plot_text(label), legendgroup=label, hovertext=_hover(name, item), hoverinfo="text",
        showlegend=label not in {trace.legendgroup for trace in figure.data},
        meta={"comparable": not item.reasons, "method": item.cell.method, "source": item.ours.kind},
    )  # fmt: skip


def _hover(name: str, item: Compared) -> str:
    assert item.ours is not None and item.ratio is not None
    cell, ours = item.cell, item.ours
    lines = [
        f"<b>{name}</b>: {item.verdict}",
        plot_text(f"published {_number(cell.low, cell.high)} {cell.unit}, {cell.where}, {cell.gpu or 'no GPU named'}"),
        plot_text(f"ours {_number(ours.low, ours.high)} {cell.unit}, {ours.kind} {ours.date or ''} on {ours.gpu}"),
        f"ratio {_ratio(item)}",
        *(plot_text(reason) for reason in item.reasons),
        plot_text(cell.note or ""),
    ]
    return "<br>".join(filter(None, lines))


def _number(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"at least {number(low)}" if low is not None else f"at most {number(high)}"
    return number(low) if low == high else f"{number(low)} to {number(high)}"


def _ratio(item: Compared) -> str:
    assert item.ratio is not None
    low, high = (times(end) for end in item.ratio)
    return low if low == high else f"{low} to {high}"


def _title(items: Sequence[Compared]) -> str:
    """Count misses, agreements and what cannot be compared; name the worst of each, misses first."""
    from perfkit.paper import TOLERANCE

    if not items:
        return "No number of the paper stands beside these rows"
    comparable = [item for item in items if not item.reasons]
    others = [item for item in items if item.reasons]
    misses = [item for item in comparable if item.verdict == "miss"]
    parts = []
    if comparable:
        numbers = count(len(comparable), "comparable number")
        parts.append(f"{len(misses)} of {numbers} of the paper missed by more than {percent(TOLERANCE, 0)}")
    if misses:
        parts[-1] += f", the furthest {' '.join(_words(misses[0]))} at {_ratio(misses[0])} the published one"
    if others:
        middle = math.exp(sum(abs(item.off) for item in others) / len(others)) - 1
        lead = "" if comparable else "no number of the paper is comparable; "
        parts.append(
            f"{lead}{count(len(others), 'number')} under other conditions {'are' if len(others) > 1 else 'is'} "
            f"{percent(middle, 0)} off on average, the furthest {' '.join(_words(others[0]))} at {_ratio(others[0])}"
        )
    return sentence("; ".join(parts))


def _causes(items: Iterable[Compared]) -> str:
    """Say why numbers are not comparable: what ours has, then all that the paper has instead."""
    found: dict[str, dict[str, None]] = {}
    for reason in dict.fromkeys(reason for item in items for reason in item.reasons):
        ours, _, theirs = reason.partition(", not ")
        found.setdefault(ours, {})[theirs] = None
    return "; ".join(f"{ours}, not {join(theirs, 'or')}" for ours, theirs in found.items())


def _command(data: pd.DataFrame) -> str | None:
    """Return the sweep that makes ours for the most of the paper's numbers of the rows' model, if it has any."""
    from perfkit.paper.commands import missing_commands

    models = {model for model in data["model"] if model is not None}
    cells = [cell for cell in _cells() if models & set(cell.models) and cell.quantity == "kernel_speedup"]
    commands = list(missing_commands("fig8", cells).values())
    return max(commands, key=commands.count).split(" && ")[0] if commands else None
