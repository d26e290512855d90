"""What a sweep comes to, every figure computed from its rows: data for the last lines and for ``--json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.cases import draft_words
from perfkit.derive import Row, alias, is_bound, is_control, predicts_bound
from perfkit.method import Case
from perfkit.verify_table import REFERENCE_BATCH, model_window, verify_table

if TYPE_CHECKING:
    from perfkit.profiles import Gpu
    from perfkit.roofline import Efficiency, Roofs

#: Of fewer windows that were timed none can be far off.
MIN_WINDOWS = 3


def summarize(rows: Sequence[Row], cases: Mapping[str, Case], gpu: Gpu | None, roofs: Roofs | None) -> dict[str, Any]:
    """Return what the rows of a sweep come to: counts, the best of each group, the best window, the model's errors.

    Args:
        rows: finished rows of :func:`perfkit.derive.derive`; of a prediction also the recorded ones.
        cases: the cases of the rows that are of this run, by id.
        gpu: the profile that times were predicted with, if there is one.
        roofs: of that GPU.
    """
    own = [row for row in rows if row["source"] != "recorded"]
    recorded = [row for row in rows if row["source"] == "recorded"]
    control = _control(own)
    return {
        "source": own[0]["source"] if own else None,
        "total": len(own),
        "statuses": _statuses(own),
        "reasons": _reasons(own),
        "throttled_samples": _throttled_samples(own),
        "throttle_reasons": sorted({str(row["throttle_reasons"]) for row in own if row.get("throttle_reasons")}),
        "checked": sorted({row["checked"] for row in own if row["status"] != "skipped"}),
        "l2_states": sorted({row["l2_state"] for row in own if row.get("l2_state")}),
        "aa_floor": aa_floor(own),
        "aa_reference": aa_floor(_reference(own)),
        "best": best_rows(own),
        "recorded": len(recorded),
        "recorded_best": best_rows(recorded, has_verify(rows)),
        "control": control,
        "failed_controls": failed_controls(own),
        "best_window": best_window(own, cases, gpu, roofs),
        "model": model_errors(own if own and own[0]["source"] == "measured" else recorded),
        "break_even": break_even(own),
        "recorded_control": _control(recorded),
        "recorded_break_even": break_even(recorded),
        "recorded_window": recorded_window(recorded),
        "window_choice": window_choice(own) or window_choice(recorded),
        "fits": fits_used(own, cases, roofs),
        "loans": loans_used(own, cases, roofs),
        "roofs": roofs.provenance() if roofs is not None else None,
        "verify": verify_table(recorded, cases, gpu, roofs) or verify_table(own, cases, gpu, roofs),
    }


def _statuses(rows: Sequence[Row]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["status"]] = counts.get(row["status"], 0) + 1
    return counts


def _throttled_samples(rows: Sequence[Row]) -> int | None:
    """Return how many samples were dropped; None where there are times of which the driver does not say."""
    if any(row.get("n_throttled") is None for row in _timed(rows) if row["source"] == "measured"):
        return None
    return int(sum(row.get("n_throttled") or 0 for row in rows))


def _reasons(rows: Sequence[Row]) -> dict[str, str]:
    """Return the first reason of each status that is not ok."""
    found: dict[str, str] = {}
    for row in rows:
        if row["status"] != "ok" and row.get("reason"):
            found.setdefault(row["status"], str(row["reason"]))
    return found


def _timed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["status"] == "ok" and row.get("time_us")]


def _groups(rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["group_id"], []).append(row)
    return groups


def fits_used(rows: Sequence[Row], cases: Mapping[str, Case], roofs: Roofs | None) -> dict[str, str | None]:
    """Return the key of the GPU that each method's efficiency was fitted on; None for a method without a fit.

    A method of another phase than decode has its phase in its name here.
    """
    return {name: known.gpu if known is not None else None for name, known in _efficiencies(rows, cases, roofs).items()}


def loans_used(rows: Sequence[Row], cases: Mapping[str, Case], roofs: Roofs | None) -> dict[str, str]:
    """Return the family that each method's efficiency is borrowed from, of methods that were not timed in their own."""
    found = _efficiencies(rows, cases, roofs)
    return {name: known.lender for name, known in found.items() if known is not None and known.lender is not None}


def _efficiencies(rows: Sequence[Row], cases: Mapping[str, Case], roofs: Roofs | None) -> dict[str, Efficiency | None]:
    from perfkit.roofline import efficiency_for

    found: dict[str, Efficiency | None] = {}
    for row in rows:
        case = cases.get(row["case_id"])
        if case is None or roofs is None or row["status"] == "skipped":
            continue
        name = case.method if case.phase == "decode" else f"{case.method} {case.phase}"
        if name not in found:  # a run is of one model, whose kernels are of one family
            found[name] = efficiency_for(case.shape.family, case.method, case.phase, roofs.gpu)
    return found


def aa_floor(rows: Sequence[Row]) -> float | None:
    """Return the largest relative difference between two series of the same method: no gain below it means anything.

    None where nothing was timed: a prediction does not differ from itself.
    """
    rows = [row for row in rows if row["source"] != "predicted"]
    found = [abs(row["aa_difference"]) for row in rows if row.get("aa_difference") is not None]
    for group in _groups(_timed(rows)).values():
        named = {alias(row): row["time_us"] for row in group if alias(row)}
        if {"A", "B"} <= set(named):
            found.append(abs(named["B"] / named["A"] - 1))
    return max(found, default=None)


def has_verify(rows: Sequence[Row]) -> bool:
    """Say whether verify steps are among the rows."""
    return any(row["phase"] == "verify" for row in rows)


def best_rows(rows: Sequence[Row], verify: bool | None = None) -> list[Row]:
    """Return of each group the row that is fastest per committed token, the control left out if there is another.

    Times are not compared with bounds: where a group has both, the fastest is among the times. The conventional decode
    step of a verify sweep stands alone in its group and is left out; ``verify`` says whether it is one, by default from
    the rows.
    """
    found = []
    verify = has_verify(rows) if verify is None else verify
    for group in _groups(_timed(rows)).values():
        others = [row for row in group if not is_control(row) and not alias(row)]
        times = [row for row in others if not is_bound(row)]
        if others or group[0]["phase"] == "verify" or not verify:
            found.append(min(times or others or group, key=lambda row: row["time_us"] / row["accepted"]))
    return found


def _reference(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one group that figures are quoted at."""
    groups = list(_groups(_timed(rows)).values())
    if not groups:
        return []
    return max(groups, key=lambda group: (len(group) > 1, group[0]["batch"] == REFERENCE_BATCH, group[0]["batch"]))


def point_text(row: Mapping[str, Any]) -> str:
    """Return at which point a group is: ``B=256``, of verify steps ``B=256 T4 a1``."""
    return " ".join([f"B={row['batch']}", *_words(row)])


def _words(row: Mapping[str, Any]) -> list[str]:
    return draft_words(row["draft_len"], row["acceptance"], row["tree"])


def _control(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return the control's times at the reference group; of verify steps also the time of a conventional step."""
    for row in _reference(rows):
        if is_control(row):
            names = ("method", "batch", "time_us", "time_default_us", "launch_config")
            found: dict[str, Any] = {name: row.get(name) for name in names}
            steps = row.get("conventional_steps") if row["phase"] == "verify" else None
            return found | {"point": point_text(row), "unit_us": row["time_us"] / steps if steps else None}
    return None


def failed_controls(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the batches at which other methods have a time and the control has none, by what became of it."""
    found: dict[tuple[str, str | None], list[int]] = {}
    timed = _groups(_timed(rows))
    for row in rows:
        others = timed.get(row["group_id"], [])
        if is_control(row) and others and not any(map(is_control, others)):
            batches = found.setdefault((row["status"], row.get("reason")), [])
            if row["batch"] not in batches:
                batches.append(row["batch"])
    return [{"status": status, "reason": reason, "batches": batches} for (status, reason), batches in found.items()]


def best_window(
    rows: Sequence[Row], cases: Mapping[str, Case], gpu: Gpu | None, roofs: Roofs | None
) -> dict[str, Any] | None:
    """Return the best window at the reference group: among the sweep's, by the exact model, and by Eq. 16.

    ``cost`` is what Eq. 16's window, rounded, costs more than the exact model's best, by the model.
    """
    windowed = [row for row in _reference(rows) if row.get("window") is not None]
    if not windowed:
        return None
    best = min(windowed, key=lambda row: row["time_us"] / row["accepted"])
    tried = sorted({row["window"] for row in windowed if row["method"] == best["method"]})
    result: dict[str, Any] = {"batch": best["batch"], "method": best["method"], "tried": tried,
                              "window": best["window"] if len(tried) > 1 else None, "source": best["source"],
                              "phase": best["phase"], "model": None, "eq16": None, "cost": None}  # fmt: skip
    case = cases.get(best["case_id"])
    return result | model_window(case, gpu, roofs) if case is not None else result


def recorded_window(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return the fastest recorded window at the reference group, and those that were recorded; None if all are one."""
    windowed = [row for row in _reference(rows) if row.get("window") is not None]
    if len({row["window"] for row in windowed}) < 2:
        return None
    best = min(windowed, key=lambda row: row["time_us"] / row["accepted"])
    return {"batch": best["batch"], "window": best["window"], "tried": sorted({row["window"] for row in windowed})}


def window_choice(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return what the model's choice among the windows that were timed costs over the fastest of them, at worst.

    ``cost`` is a fraction of the fastest's time per token, in the case that ``chosen`` and ``fastest`` are windows of;
    ``groups`` is how many cases had three windows or more. None where no case had, or nothing was timed.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in _timed(rows):
        if row["source"] != "predicted" and row.get("window") and row.get("predicted_us") and not predicts_bound(row):
            key = tuple(row.get(name) for name in ("group_id", "method", "read_dtype", "options"))
            groups.setdefault(key, []).append(row)
    worst: dict[str, Any] | None = None
    compared = [group for group in groups.values() if len({row["window"] for row in group}) >= MIN_WINDOWS]
    for group in compared:
        fastest = min(group, key=lambda row: row["time_us"] / row["accepted"])
        chosen = min(group, key=lambda row: row["predicted_us"] / row["accepted"])
        cost = chosen["time_us"] / chosen["accepted"] / (fastest["time_us"] / fastest["accepted"]) - 1
        if worst is None or cost > worst["cost"]:
            worst = {"cost": cost, "chosen": chosen["window"], "fastest": fastest["window"], "batch": chosen["batch"],
                     "draft_len": chosen["draft_len"], "acceptance": chosen["acceptance"],
                     "source": chosen["source"], "groups": len(compared)}  # fmt: skip
    return worst


def model_errors(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return how far predictions are from times of real runs: median and 95th percentile of |error|, the worst row.

    Bounds are no predictions: ``n_bounds`` rows have only one, and ``bounds`` is its error in the median, a negative
    number as long as no time is below its bound. None where no row has either.
    """
    timed = [row for row in _timed(rows) if row.get("prediction_error") is not None]
    errors = [(row["prediction_error"], row) for row in timed if not predicts_bound(row)]
    bounds = [row["prediction_error"] for row in timed if predicts_bound(row)]
    if not timed:
        return None
    found: dict[str, Any] = {"n": len(errors), "median": None, "p95": None, "worst": None, "worst_batch": None,
                             "worst_case": None, "source": timed[0]["source"], "n_bounds": len(bounds),
                             "bounds": float(np.median(bounds)) if bounds else None}  # fmt: skip
    if errors:
        sizes = np.abs([error for error, _ in errors])
        worst, row = max(errors, key=lambda item: abs(item[0]))
        found |= {"median": float(np.median(sizes)), "p95": float(np.quantile(sizes, 0.95)), "worst": worst,
                  "worst_batch": row["batch"], "worst_case": row["case_id"]}  # fmt: skip
    return found


def break_even(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Return the batch from which the best method is faster than its control, with its interval.

    None unless one series of at least two batches is there; with several dtypes or drafts, the one with the most.
    """
    from perfkit import stats

    series: dict[tuple[Any, ...], list[Row]] = {}
    for row in best_rows(rows):
        if row.get("speedup") and not is_control(row):
            key = tuple(
                row[name] for name in ("draft_len", "acceptance", "tree", "input_dtype", "state_dtype", "n_layers")
            )
            series.setdefault(key, []).append(row)
    points = max(series.values(), key=len, default=[])
    if len({row["batch"] for row in points}) < 2 or len({row["batch"] for row in points}) != len(points):
        return None
    controls = {row["group_id"]: row for row in _timed(rows) if is_control(row)}
    bounds = [_speedup_bounds(row, controls.get(row["group_id"])) for row in points]
    found = stats.break_even([row["batch"] for row in points], [row["speedup"] for row in points],
                             [low for low, _ in bounds], [high for _, high in bounds])  # fmt: skip
    return {"batch": found.batch, "lo": found.lo, "hi": found.hi, "at_most": found.at_most,
            "source": points[0]["source"], "point": " ".join(_words(points[0])),
            "smallest": min(row["batch"] for row in points),
            "largest": max(row["batch"] for row in points)}  # fmt: skip


def _speedup_bounds(row: Row, control: Row | None) -> tuple[float, float]:
    """Return the speedup's interval: paired by round where the worker gave it, else from both times' intervals."""
    value = row["speedup"]
    if row.get("speedup_lo") and row.get("speedup_hi"):
        return row["speedup_lo"], row["speedup_hi"]
    if control is None:
        return value, value
    if row["source"] == "predicted":  # the model errs by kernel, so a ratio is no surer than a time
        return value * row["time_us"] / row["time_us_hi"], value * row["time_us_hi"] / row["time_us"]
    width = math.hypot(_relative(row), _relative(control))
    return value / (1 + width), value * (1 + width)


def _relative(row: Row) -> float:
    low, high = row.get("time_us_lo"), row.get("time_us_hi")
    return (high - low) / 2 / row["time_us"] if low and high else 0.0


def plain(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary for ``--json``: rows by their case_id."""
    data = dict(summary)
    for name in ("best", "recorded_best"):
        data[name] = [row["case_id"] for row in summary[name]]
    return json.loads(json.dumps(data))  # type: ignore[no-any-return]
