"""Precision of the state and of what is read of it: what a step gains over FP32, and the error of its outputs."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from perfkit.reports import findings, select, theme
from perfkit.reports.figures import base
from perfkit.reports.figures.rows import add_ratios, lines, numbers, place, present, workloads
from perfkit.reports.text import interval, join, method_text, plot_text, sentence, times

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

REFERENCE = "float32"
_SHORT = {"float32": "FP32", "float16": "FP16", "bfloat16": "BF16", "float8_e4m3fn": "FP8", "float8_e5m2": "FP8"}
_ALONG = ("state_dtype", "read_dtype")
#: What two rows of different dtypes must share for their times to be compared.
_SAME = ("run", "model", "gpu", "method", "window", "batch", "n_layers", "phase", "draft_len", "acceptance",
         "flush_phase", "tree", "input_dtype", "options")  # fmt: skip
#: Methods stand side by side at each precision, this far apart.
_ASIDE = 0.07


def precision(frame: pd.DataFrame) -> go.Figure:
    """Draw the speed of each state and read dtype over FP32, and below it the error of the outputs where it is known.

    >>> from perfkit.reports import figures
    >>> from perfkit.results import load_run
    >>> figures.precision(load_run("runs/my-run")).show()  # doctest: +SKIP
    """
    data = _against_reference(select.prepare(frame))
    rows = _one_workload(data)
    kinds = _kinds(rows)
    has_error = bool(rows["rel_error"].gt(0).any())
    caption = (
        f"How to read it: above 1 is faster than FP32 state and reads of the same method{_at(rows)}; times of two "
        "dtypes are of one run and GPU, but not of interleaved rounds. "
        + ("Below, the largest error of one step beside a float64 oracle that starts from the same state: it shows "
           "rounding of inputs and state at a step, not what adds up over a long run. " if has_error else "")
        + base.drawn(rows, "fp32_gain", "model_fp32_gain", band=True)
    ).strip()  # fmt: skip
    figure = base.new_figure(_title(data, rows), caption)
    if len(kinds) < 2:
        return base.empty(figure, "run two dtypes or more to compare them",
                          base.sweep_command(data, "--state-dtype fp32,fp16"))  # fmt: skip
    best = findings.answer(rows).window
    drawn: list[tuple[select.Series, str]] = []
    for value, sources in (("model_fp32_gain", ("predicted",)), ("fp32_gain", select.TIMED)):
        drawn += [(line, value) for line in base.highlighted(lines(rows, value, sources, _ALONG), best)]
    names = list(dict.fromkeys((line.method, line.window) for line, _ in drawn))
    values, placed = [1.0], []
    for line, value in drawn:
        aside = _ASIDE * (names.index((line.method, line.window)) - (len(names) - 1) / 2)
        at = [kinds.index(kind) + aside for kind in line.rows["kind"]]
        shown = replace(line, rows=line.rows.assign(place=at).sort_values("place"))
        ends = (f"{value}_lo", f"{value}_hi")
        values += present(line.rows, value, *ends)
        faint = base.is_faint(line, best)
        if value == "fp32_gain":
            base.add_timed(figure, shown, value, ends, x="place", faint=faint, more=partial(_said, value))
        else:
            base.add_predicted(figure, shown, value, ends, x="place", faint=faint, more=partial(_said, value))
        placed.append(shown)
    figure.update_xaxes(
        title={"text": "dtype of the state and of its reads"}, range=[-0.5, len(kinds) - 0.5], tickangle=0,
        tickmode="array", tickvals=list(range(len(kinds))),
        ticktext=["<br>".join(map(plot_text, kind.split(" with "))) for kind in kinds],
    )  # fmt: skip
    figure.update_yaxes(title={"text": "speed over FP32 (×)"}, range=[min(0.9, *values) - 0.05, max(values) + 0.1])
    figure.add_hline(y=1, line={"color": theme.MUTED[0], "width": 1.5, "dash": "dash"})
    if has_error:
        _add_errors(figure, [line for line in placed if line.source != "predicted"] or placed)
    return base.finish(figure)


def _against_reference(data: pd.DataFrame) -> pd.DataFrame:
    """Add ``kind`` (dtypes in words), ``fp32_gain…`` and ``model_fp32_gain…``: the time with FP32 over the row's."""
    data = numbers(data, "rel_error")
    data["rel_error"] = data["rel_error"].where(data["status"].eq("ok"))
    data["kind"] = [_kind(state, read) for state, read in zip(data["state_dtype"], data["read_dtype"], strict=True)]
    plain = data["kind"].eq(_kind(REFERENCE, REFERENCE))
    add_ratios(data, plain, (*_SAME, "source", "gpu_uuid"), "us", "cost")
    add_ratios(data, plain, _SAME, "model", "model_cost")
    for cost, gain in (("cost", "fp32_gain"), ("model_cost", "model_fp32_gain")):
        data[gain], data[f"{gain}_lo"], data[f"{gain}_hi"] = (1 / data[f"{cost}{end}"] for end in ("", "_hi", "_lo"))
    return data


def _kind(state: str | None, read: str | None) -> str:
    state = state or REFERENCE
    words = f"{_SHORT.get(state, state)} state"
    return words if read in (None, state) else f"{words} with {_SHORT.get(str(read), str(read))} reads"


def _kinds(rows: pd.DataFrame) -> list[str]:
    """Return the dtypes that rows can be compared at, FP32 first."""
    first = _kind(REFERENCE, REFERENCE)
    known = rows[rows[["fp32_gain", "model_fp32_gain"]].notna().any(axis=1)]
    return sorted(set(known["kind"]), key=lambda kind: (kind != first, kind))


def _one_workload(data: pd.DataFrame) -> pd.DataFrame:
    """Return the rows at one batch of the one workload that has most dtypes, then methods."""
    known = data[data[["fp32_gain", "model_fp32_gain"]].notna().any(axis=1)]
    parts = workloads(known, besides="state_dtype")
    if not parts:
        return known
    best = max(parts, key=lambda part: (part["kind"].nunique(), part["method"].nunique()))
    lowered = best[best["kind"].ne(_kind(REFERENCE, REFERENCE))]
    value = "fp32_gain" if best["fp32_gain"].notna().any() else "model_fp32_gain"
    batch = select.reference_batch(lowered if lowered[value].notna().any() else best, value)
    return best if batch is None else best[best["batch"].eq(batch)]


def _at(rows: pd.DataFrame) -> str:
    return f" at {place(rows.iloc[0])}" if len(rows) else ""


def _said(value: str, row: Any) -> str:
    ends = interval(getattr(row, f"{value}_lo"), getattr(row, f"{value}_hi"), lambda end: f"{end:.2f}")
    return f"{row.kind}: {times(getattr(row, value))} FP32's speed {ends}".strip()


def _add_errors(figure: go.Figure, shown: list[select.Series]) -> None:
    """Draw the errors in a panel below; which kernels they are of does not depend on how their times are known."""
    base.lower_panel(figure, {"text": "relative error"})
    values: list[float] = []
    for line in shown:
        rows = line.rows[line.rows["rel_error"].gt(0)].sort_values("place")
        values += rows["rel_error"].tolist()
        if len(rows):
            base.add_timed(figure, replace(line, rows=rows), "rel_error", None, x="place", guide=False,
                           more=lambda row: f"{row.kind}: relative error {row.rel_error:.2g}")  # fmt: skip
            figure.data[-1].update(yaxis="y2", showlegend=False, name=f"{plot_text(line.label)} error, {line.source}")
    low, high = math.log10(min(values)), math.log10(max(values))
    pad = 0.12 * max(1.0, high - low)
    ticks = range(math.floor(low), math.ceil(high) + 1, max(1, round((high - low) / 3)))
    places, texts = [10.0**tick for tick in ticks], [f"1e{tick}" for tick in ticks]
    figure.update_layout(yaxis2={"type": "log", "range": [low - pad, high + pad], "tickmode": "array",
                                 "tickvals": places, "ticktext": texts})  # fmt: skip


def _title(data: pd.DataFrame, rows: pd.DataFrame) -> str:
    """Say what the fastest low precision gains over FP32, and where."""
    lowered = rows[rows["kind"].ne(_kind(REFERENCE, REFERENCE))]
    source = next((kind for kind in select.TIMED if lowered.loc[lowered["source"].eq(kind), "fp32_gain"].notna().any()),
                  "predicted")  # fmt: skip
    value = "model_fp32_gain" if source == "predicted" else "fp32_gain"
    here = lowered[lowered[value].notna()]
    here = here if source == "predicted" else here[here["source"].eq(source)]
    if not len(here):
        kinds = join(dict.fromkeys(data["kind"]))
        return f"No case has a lower precision beside FP32 to compare with{f': only {kinds} was run' if kinds else ''}"
    parts = []
    for kind, part in here.groupby("kind", sort=False):
        row = select.row_at(part, value, largest=True)
        method = method_text(row["method"], row["window"])
        parts.append(f"{kind!s} {findings.verb(source)} {times(row[value])} FP32's speed ({method})")
    return f"{sentence(join(parts))} at {place(here.iloc[0])} ({source})"
