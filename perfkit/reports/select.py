"""From a frame of results to what figures and sentences need: typed columns, gains, sections, series.

Three kinds of evidence stay apart from here on: ``measured`` in this run, ``recorded`` earlier and shipped, and
``predicted`` by the byte model. A gain compares two times of one kind, one run and one group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.derive import bound_interval
from perfkit.reports.text import is_missing, microseconds, times, window_text

if TYPE_CHECKING:
    import pandas as pd

#: Kinds of evidence that are times.
TIMED = ("measured", "recorded")
SOURCES = (*TIMED, "predicted")
BASELINES = ("conventional", "snapshot")
REFERENCE_BATCH = 256

_TEXT = (
    "run", "case_id", "group_id", "model", "family", "gpu", "method", "phase", "acceptance", "tree", "flush_phase",
    "input_dtype", "state_dtype", "read_dtype", "source", "status", "reason", "checked", "stop_reason", "roof_source",
    "limit", "baseline", "launch_config", "l2_state", "options",
)  # fmt: skip
_NUMBERS = (
    "batch", "n_layers", "window", "draft_len", "accepted", "time_us", "time_us_lo", "time_us_hi", "n_samples",
    "n_throttled", "bytes_read_model", "bytes_write_model", "flops_model", "intensity", "roof_gb_s", "roof_fraction",
    "predicted_us", "predicted_lo", "predicted_hi", "prediction_error", "speedup", "speedup_lo", "speedup_hi",
    "bandwidth_gb_s", "aa_difference", "sm_clock_mhz", "n_v_heads", "n_k_heads", "d_v", "d_k",
)  # fmt: skip
#: What must agree for two times to stand in one figure.
WORKLOAD = (
    "phase", "draft_len", "acceptance", "flush_phase", "tree", "input_dtype", "state_dtype", "n_layers",
)  # fmt: skip
#: What else tells two lines of one figure apart; a label names the ones that differ.
VARIANT = ("model", "gpu", *WORKLOAD, "read_dtype", "options", "l2_state", "run")


@dataclass(frozen=True, slots=True)
class Series:
    """The rows of one line: one method and window and one kind of evidence, over batch.

    ``rows`` is sorted by batch and has a unique batch per row. ``label`` names the method and what differs.
    """

    method: str
    window: float | None
    source: str
    label: str
    rows: pd.DataFrame


def prepare(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a copy with every column that reports read, typed, and the derived ones added.

    Added: ``us, us_lo, us_hi`` (the time of a row that is ok and timed, µs), ``model_us, model_lo, model_hi`` (the
    prediction, µs), ``gain, gain_lo, gain_hi`` and ``model_gain, model_gain_lo, model_gain_hi`` (baseline over this
    row). Frames that have been prepared are returned as they are.
    """
    import pandas as pd

    if "model_gain" in frame.columns:
        return frame
    data = frame.copy().reset_index(drop=True)
    for name in _TEXT:
        column = data[name].astype(object) if name in data else pd.Series([None] * len(data), dtype=object)
        data[name] = pd.Series([None if is_missing(v) else str(v) for v in column], index=data.index, dtype=object)
    for name in _NUMBERS:
        values = data[name] if name in data else pd.Series(np.nan, index=data.index)
        data[name] = pd.to_numeric(values, errors="coerce").astype(float)
    data["source"] = [value or "measured" for value in data["source"]]
    data["status"] = [value or "ok" for value in data["status"]]
    data["method"] = [value or "unnamed" for value in data["method"]]
    ok = data["status"].eq("ok")
    timed = ok & data["source"].isin(TIMED) & data["time_us"].gt(0)
    for name in ("us", "us_lo", "us_hi"):
        data[name] = data[f"time_{name}"].where(timed)
    # A predicted row may give its prediction as its time.
    own = ok & data["source"].eq("predicted") & data["predicted_us"].isna()
    for end, own_time in (("us", "time_us"), ("lo", "time_us_lo"), ("hi", "time_us_hi")):
        data[f"model_{end}"] = data[f"predicted_{end}"].where(~own, data[own_time]).where(ok)
    # An interval that reaches 0 bounds no ratio and has no place on a logarithmic axis: that end counts as missing.
    for name in ("us_lo", "us_hi", "model_lo", "model_hi"):
        data[name] = data[name].where(data[name].gt(0))
    _add_gains(data, "us", "gain")
    _add_gains(data, "model", "model_gain")
    # A saved speedup stands in where its baseline is not among the rows, and its interval, paired by round, is
    # narrower than the one from two separate intervals. It holds only as long as it agrees with the times.
    data["gain"] = data["gain"].where(data["gain"].notna(), data["speedup"].where(timed))
    agrees = (data["gain"] / data["speedup"] - 1).abs().lt(1e-3) & data["speedup_lo"].gt(0) & data["speedup_hi"].gt(0)
    for end in ("lo", "hi"):
        data[f"gain_{end}"] = data[f"gain_{end}"].where(~agrees, data[f"speedup_{end}"])
    return data


def _add_gains(data: pd.DataFrame, time: str, gain: str) -> None:
    """Add baseline/row of one kind of time, with a 95 % interval from both intervals taken as independent.

    Times compare within one kind of evidence; predictions ride on rows of any source and compare with each other.
    """
    value, low, high = ("us", "us_lo", "us_hi") if time == "us" else ("model_us", "model_lo", "model_hi")
    kind = list(data["source"]) if time == "us" else ["predicted"] * len(data)
    records = list(
        zip(data["run"], kind, data["case_id"], data["group_id"], data["method"], data["baseline"],
            data[value], data[low], data[high], strict=True)
    )  # fmt: skip
    # A recorded row may share its case_id with a predicted one; only rows that have the time can be a baseline.
    able = [(i, record) for i, record in enumerate(records) if record[6] > 0]
    by_id = {(run, source, case): i for i, (run, source, case, *_) in able if case is not None}
    by_group: dict[tuple[Any, ...], int] = {}
    for method in reversed(BASELINES):
        for i, (run, source, _, group, name, *_rest) in able:
            if name == method and group is not None:
                by_group[run, source, group] = i
    ratios = np.full((len(records), 3), np.nan)
    for i, (run, source, _, group, _, baseline, t, lo, hi) in enumerate(records):
        j = by_id.get((run, source, baseline)) if baseline is not None else by_group.get((run, source, group))
        if j is None or not t > 0 or not records[j][6] > 0:
            continue
        base, base_lo, base_hi = records[j][6:9]
        if kind[i] == "predicted" and bound_interval(base, base_lo, base_hi) != bound_interval(t, lo, hi):
            continue  # a bound from bytes beside a time with a kernel's efficiency is no comparison
        ratios[i, 0] = base / t
        if i == j:
            continue
        widths = [np.hypot(np.log(base / base_lo), np.log(hi / t)), np.hypot(np.log(base_hi / base), np.log(t / lo))]
        ratios[i, 1:] = base / t * np.exp([-widths[0], widths[1]])
    data[gain], data[f"{gain}_lo"], data[f"{gain}_hi"] = ratios.T


def is_baseline(data: pd.DataFrame) -> pd.Series[bool]:
    """Mark the rows that are the control of their group."""
    named = data["case_id"].notna() & data["case_id"].eq(data["baseline"])
    return named | (data["baseline"].isna() & data["method"].isin(BASELINES) & data["window"].isna())


def sections(data: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield (model, gpu, rows) in the order of first appearance."""
    keys = list(dict.fromkeys(zip(data["model"], data["gpu"], strict=True)))
    for model, gpu in keys:
        rows = data[_equals(data["model"], model) & _equals(data["gpu"], gpu)]
        yield model or "unnamed model", gpu or "unnamed GPU", rows


def workloads(data: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield (description of what sets it apart, rows) for each workload of a section."""
    columns = [data[name] for name in WORKLOAD]
    keys = list(zip(*(_filled(column) for column in columns), strict=True)) if len(data) else []
    differ = [i for i in range(len(WORKLOAD)) if len({key[i] for key in keys}) > 1]
    for key in dict.fromkeys(keys):
        mask = [other == key for other in keys]
        # Beside verify steps, decode says it all: one position, one way to accept it, no tree.
        fixed = ("draft_len", "acceptance", "tree") if 0 in differ and key[0] == "decode" else ()
        yield ", ".join(describe(WORKLOAD[i], key[i]) for i in differ if WORKLOAD[i] not in fixed), data[mask]


def describe(name: str, value: Any) -> str:
    """Write the value of a column as a part of a label."""
    if value is None or is_missing(value):
        return f"no {name.replace('_', ' ')}"
    if name == "draft_len":
        return f"T = {round(float(value))}"
    if name == "n_layers":
        return f"{round(float(value))} layers"
    names = {"acceptance": f"accepted {value}", "input_dtype": f"{value} inputs", "state_dtype": f"{value} state",
             "read_dtype": f"{value} reads", "l2_state": f"{value} L2", "tree": f"tree {value}"}  # fmt: skip
    return names.get(name, str(value))


def series(data: pd.DataFrame, value: str, sources: tuple[str, ...] = TIMED) -> list[Series]:
    """Split rows into lines over batch; ``value`` is the column that must be present.

    Predictions ride on rows of every source and agree between them, so ``sources=("predicted",)`` takes the first row
    of each batch whatever its source, predicted rows first.
    """
    predicted = sources == ("predicted",)
    rows = data[data[value].notna() & data["batch"].gt(0)]
    if not predicted:
        rows = rows[rows["source"].isin(sources)]
    shown = [name for name in VARIANT if len(set(_filled(data[name])) - {None}) > 1]
    if not len(rows):
        return []
    result: dict[tuple[Any, ...], list[int]] = {}
    keys = zip(rows["method"], _filled(rows["window"]), rows["source"], *(_filled(rows[n]) for n in shown), strict=True)
    for position, (method, window, source, *variant) in enumerate(keys):
        result.setdefault((method, window, "predicted" if predicted else source, *variant), []).append(position)
    lines = []
    for (method, window, source, *variant), positions in result.items():
        part = rows.iloc[positions]
        if predicted:
            part = part.assign(_first=part["source"].ne("predicted")).sort_values("_first", kind="stable")
        part = part.drop_duplicates("batch").sort_values("batch")
        parts = [f"{method} {window_text(window)}".strip()]
        parts += [describe(name, entry) for name, entry in zip(shown, variant, strict=True) if entry is not None]
        lines.append(Series(method, window, source, ", ".join(parts), part))
    order = {name: i for i, name in enumerate(SOURCES)}
    return sorted(lines, key=lambda s: (s.method not in BASELINES, s.method, s.window or 0.0, order.get(s.source, 9)))


def reference_batch(data: pd.DataFrame, value: str = "us") -> float | None:
    """Return the batch that sentences speak of: 256, or else the largest with a time, preferring compared ones."""
    rows = data[data[value].notna()]
    others = rows[~is_baseline(rows)]
    batches = sorted(set((others if len(others) else rows)["batch"].dropna()))
    if not batches:
        return None
    return float(REFERENCE_BATCH) if REFERENCE_BATCH in batches else float(batches[-1])


def evidence(data: pd.DataFrame) -> str | None:
    """Return the best kind of evidence that the rows hold: measured, recorded, predicted or None."""
    for source in TIMED:
        if data.loc[data["source"].eq(source), "us"].notna().any():
            return source
    return "predicted" if data["model_us"].notna().any() else None


def as_evidence(data: pd.DataFrame, source: str) -> pd.DataFrame:
    """Return the rows of one kind of evidence with its time and gain in ``us…`` and ``gain…``."""
    if source != "predicted":
        return data[data["source"].eq(source)]
    first = data.assign(_first=data["source"].ne("predicted")).sort_values("_first", kind="stable")
    rows = first[first["model_us"].notna()]
    keys = ["method", "window", "batch", "model", "gpu", *WORKLOAD, "read_dtype", "options"]
    rows = rows.drop_duplicates(keys).drop(columns="_first").sort_index()
    rows = rows.assign(us=rows["model_us"], us_lo=rows["model_lo"], us_hi=rows["model_hi"])
    return rows.assign(gain=rows["model_gain"], gain_lo=rows["model_gain_lo"], gain_hi=rows["model_gain_hi"])


def hover(row: Any, source: str, label: str) -> str:
    """Return the hover text of a row: what it is, its numbers, and which kind of evidence it is."""
    from perfkit.reports.text import integer, interval, percent, plot_text

    lines = [f"<b>{plot_text(label)}</b>, {source}", f"B = {integer(row.batch)}"]
    if source == "predicted":
        band = interval(row.model_lo, row.model_hi)
        lines.append(f"{microseconds(row.model_us)} {band}".strip())
        lines.append(f"{times(row.model_gain)} the baseline's speed" if not is_missing(row.model_gain) else "")
    else:
        lines.append(f"{microseconds(row.us)} {interval(row.us_lo, row.us_hi)}".strip())
        lines.append(f"{times(row.gain)} the baseline's speed" if not is_missing(row.gain) else "")
        lines.append(f"{percent(row.roof_fraction, 0)} of the roof" if not is_missing(row.roof_fraction) else "")
        lines.append(f"{integer(row.n_samples)} samples" if not is_missing(row.n_samples) else "")
    return "<br>".join(line for line in lines if line)


def row_at(rows: pd.DataFrame, column: str, *, largest: bool) -> pd.Series[Any]:
    """Return the row with the largest or the smallest value of a column; missing values do not count."""
    values = rows[column].to_numpy(dtype=float)
    return rows.iloc[int(np.nanargmax(values) if largest else np.nanargmin(values))]


def _filled(column: pd.Series[Any]) -> list[Any]:
    """Return a column as a list in which missing values are None, so that they compare equal."""
    return [None if is_missing(value) else value for value in column]


def _equals(column: pd.Series[Any], value: str | None) -> pd.Series[bool]:
    return column.isna() if value is None else column.eq(value)
