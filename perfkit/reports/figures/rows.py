"""The rows of a figure: typed columns beyond those of every figure, lines over another axis than batch, and names."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.derive import bound_interval
from perfkit.reports import select
from perfkit.reports.text import integer, is_missing, window_text

if TYPE_CHECKING:
    import pandas as pd


def numbers(data: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return prepared rows with more columns as numbers; a column that is not there is all missing."""
    import pandas as pd

    return data.assign(
        **{
            name: pd.to_numeric(data[name], errors="coerce").astype(float) if name in data else np.nan
            for name in names
        }
    )  # fmt: skip


def present(data: pd.DataFrame, *names: str) -> list[float]:
    """Return all values of some columns that are not missing."""
    return [float(value) for name in names for value in data[name].dropna()]


def workloads(data: pd.DataFrame, besides: str | None = None) -> list[pd.DataFrame]:
    """Return the rows of each model, GPU and workload; workloads that differ in ``besides`` alone stay together."""
    return [
        data.loc[part.index]
        for *_, section in select.sections(data)
        for _, part in select.workloads(section.assign(**({besides: None} if besides else {})))
    ]


def lines(
    data: pd.DataFrame, value: str, sources: tuple[str, ...], along: tuple[str, ...], *, every: bool = False
) -> list[select.Series]:
    """Split rows into lines as :func:`perfkit.reports.select.series` does; ``along`` names what changes within a line.

    A line has one row at each place, a predicted one where predictions are asked for, or ``every`` row.
    """
    slim = data[list(dict.fromkeys(("method", "window", "source", value, *select.VARIANT)))]
    places = np.arange(1.0, len(data) + 1)  # to series each row is a batch of its own
    blank = slim.assign(**dict.fromkeys(along), batch=places)
    found = []
    for line in select.series(blank, value, sources):
        rows = data.loc[line.rows.index]
        if sources == ("predicted",):
            rows = rows.loc[rows["source"].ne("predicted").sort_values(kind="stable").index]
        rows = rows if every else rows.drop_duplicates(["batch", *along]).sort_index()
        found.append(replace(line, rows=rows))
    return found


def add_ratios(data: pd.DataFrame, units: pd.Series[bool], same: tuple[str, ...], time: str, into: str) -> None:
    """Add ``into``: a row's time over that of the row among ``units`` with which it shares the columns ``same``.

    ``time`` is ``us`` or ``model``. Also added are ``into_lo`` and ``into_hi``, 95 % from both intervals taken as
    independent. A bound from bytes and a time with a kernel's efficiency are not divided by each other.
    """
    value, low, high = ("us", "us_lo", "us_hi") if time == "us" else ("model_us", "model_lo", "model_hi")
    keys = list(zip(*(_comparable(data, name) for name in same), strict=True)) if len(data) else []
    times = list(zip(data[value], data[low].where(data[low].gt(0)), data[high], strict=True))
    known: dict[tuple[Any, ...], tuple[float, float, float]] = {}
    for key, entry, is_unit in zip(keys, times, units, strict=True):
        if is_unit and entry[0] > 0:
            known.setdefault(key, entry)
    found = np.full((len(data), 3), np.nan)
    for i, (key, (us, lo, hi)) in enumerate(zip(keys, times, strict=True)):
        unit = known.get(key)
        if unit is None or not us > 0 or (time == "model" and bound_interval(*unit) != bound_interval(us, lo, hi)):
            continue
        down = np.hypot(np.log(us / lo), np.log(unit[2] / unit[0]))
        up = np.hypot(np.log(hi / us), np.log(unit[0] / unit[1]))
        found[i] = us / unit[0] * np.exp([0.0, -down, up])
    data[into], data[f"{into}_lo"], data[f"{into}_hi"] = found.T


def _comparable(data: pd.DataFrame, name: str) -> list[Any]:
    """Return a column in which missing values are equal; a column that is not there is all missing."""
    return [None if is_missing(value) else value for value in data[name]] if name in data else [None] * len(data)


def records(rows: pd.DataFrame) -> list[Any]:
    """Return the rows as named tuples; on short frames of many columns ``itertuples`` takes many times as long."""
    kind = _row_type(tuple(map(str, rows.columns)))
    return [kind(*values) for values in rows.to_numpy(dtype=object)]


@lru_cache(maxsize=64)
def _row_type(columns: tuple[str, ...]) -> Any:
    return namedtuple("Row", columns, rename=True)


def case_name(row: Any) -> str:
    """Name a row of :func:`records` among all of its model: method, window, T, acceptance, dtypes other than FP32."""
    parts = [f"{row.method} {window_text(row.window)}".strip(), *step_words(row._asdict())]
    parts += [select.describe(name, value) for name in ("state_dtype", "read_dtype")
              if (value := getattr(row, name)) not in (None, "float32")]  # fmt: skip
    return ", ".join(parts)


def place(row: Mapping[Any, Any] | pd.Series[Any]) -> str:
    """Say at which batch a row is, and of a verify step at which T and acceptance."""
    return ", ".join([f"B = {integer(row['batch'])}", *step_words(row)])


def step_words(row: Mapping[Any, Any] | pd.Series[Any]) -> list[str]:
    """Name a verify step by its T, or its tree, and its acceptance; [] of decode."""
    if row["phase"] != "verify":
        return []
    drafts = f"tree {row['tree']}" if row["tree"] else f"T = {integer(row['draft_len'])}"
    return [drafts] if is_missing(row["accepted"]) else [drafts, f"a = {float(row['accepted']):.3g}"]


def origin(row: Mapping[Any, Any]) -> str:
    """Say when, where and with which commit a recorded row was measured, as far as that is known."""
    manifest = shipped_manifest(row)
    gpu, git = manifest.get("gpu") or {}, manifest.get("git") or {}
    parts = [
        str(manifest.get("started") or "")[:10],
        str(gpu.get("name") or gpu.get("key") or ""),
        f"commit {str(git['revision'])[:8]}" if git.get("revision") else "",
    ]
    return ", ".join(filter(None, parts))


def shipped_manifest(row: Mapping[Any, Any]) -> Mapping[str, Any]:
    """Return the manifest of the shipped run that a recorded row is from; empty if there is none."""
    return _shipped().get((row["case_id"], row["us"]), {}) if row["source"] == "recorded" else {}


@cache
def _shipped() -> Mapping[tuple[str, float], Mapping[str, Any]]:
    from perfkit.profiles import load_measured

    return {(row["case_id"], row["time_us"]): row["manifest"] for row in load_measured() if row.get("time_us")}
