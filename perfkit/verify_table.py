"""What a sweep of verify steps comes to: times of methods over draft lengths and acceptances, at one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfkit.cases import draft_words
from perfkit.derive import WINDOWS, Row, alias, is_bound, is_control, window_cost
from perfkit.method import Case

if TYPE_CHECKING:
    from perfkit.profiles import Gpu
    from perfkit.roofline import Roofs

#: The batch that figures are quoted at, if the sweep has it; else its largest.
REFERENCE_BATCH = 256
#: Columns at most; the other points are counted.
MAX_POINTS = 12
#: Columns that rows of one table share.
_SAME = ("batch", "input_dtype", "state_dtype", "n_layers", "flush_phase")


def verify_table(
    rows: Sequence[Row], cases: Mapping[str, Case], gpu: Gpu | None, roofs: Roofs | None
) -> dict[str, Any] | None:
    """Return the times of verify steps as a table, None without any: a row for each method, a column for each point.

    Args:
        rows: finished rows of one source.
        cases: the cases of the rows, by id, for the windows of the model.
        gpu: the profile that times were predicted with, if there is one.
        roofs: of that GPU.

    Returns:
        batch, source and ``points``, names such as ``T4 a1``; ``times`` by method, µs at each point with its best
        window; ``bounds`` by method, whether that is what the bytes allow at best; ``windows``: at each point the
        fastest of several windows that were run, the exact model's best and Eq. 16's, each None where unknown; and
        ``more``, the points left out.
    """
    timed = [row for row in rows if row["phase"] == "verify" and row["status"] == "ok" and row.get("time_us")]
    timed = [row for row in timed if alias(row) in (None, "A")]
    if not timed:
        return None
    tables: dict[tuple[Any, ...], list[Row]] = {}
    for row in timed:
        tables.setdefault(tuple(row[name] for name in _SAME), []).append(row)
    chosen = max(tables.values(), key=lambda found: (found[0]["batch"] == REFERENCE_BATCH, found[0]["batch"]))
    groups: dict[str, list[Row]] = {}
    for row in sorted(chosen, key=lambda row: (row["tree"] is not None, row["draft_len"])):
        groups.setdefault(row["group_id"], []).append(row)
    points = list(groups.values())[:MAX_POINTS]
    keys = {row["method"]: not is_control(row) for group in points for row in group}
    methods = sorted(keys, key=lambda key: (keys[key], key))  # the control first
    best = {key: [_fastest(group, key) for group in points] for key in methods}
    return {
        "batch": chosen[0]["batch"],
        "source": chosen[0]["source"],
        "points": _names([group[0] for group in points]),
        "times": {key: [row["time_us"] if row else None for row in found] for key, found in best.items()},
        "bounds": {key: any(row is not None and is_bound(row) for row in found) for key, found in best.items()},
        "windows": _windows(points, cases, gpu, roofs),
        "more": len(groups) - len(points),
    }


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the names of points; trees of as many nodes are told apart by a number."""
    trees = list(dict.fromkeys(row["tree"] for row in rows if row["tree"]))
    names = []
    for row in rows:
        words = draft_words(row["draft_len"], row["acceptance"], row["tree"])
        alike = [tree for tree in trees if row["tree"] and tree.count(",") == row["tree"].count(",")]
        if len(alike) > 1:
            words[0] += f"#{alike.index(row['tree']) + 1}"
        names.append(" ".join(words))
    return names


def _fastest(rows: Sequence[Row], method: str | None = None) -> Row | None:
    found = [row for row in rows if method in (None, row["method"])]
    return min(found, key=lambda row: row["time_us"], default=None)


def _windows(
    points: Sequence[Sequence[Row]], cases: Mapping[str, Case], gpu: Gpu | None, roofs: Roofs | None
) -> dict[str, list[Any]]:
    """Return the best window at each point, three ways."""
    found: dict[str, list[Any]] = {"run": [], "model": [], "eq16": []}
    for group in points:
        windowed = [row for row in group if row.get("window") is not None]
        best = _fastest(windowed)
        tried = {row["window"] for row in windowed if best is not None and row["method"] == best["method"]}
        found["run"].append(best["window"] if best is not None and len(tried) > 1 else None)
        case = cases.get(best["case_id"]) if best is not None else None
        modelled = model_window(case, gpu, roofs) if case is not None else {}
        found["model"].append(modelled.get("model"))
        found["eq16"].append(modelled.get("eq16"))
    return found


def model_window(case: Case, gpu: Gpu | None, roofs: Roofs | None) -> dict[str, Any]:
    """Return the best window of a case by the exact model and by Eq. 16, and what the latter, rounded, costs more.

    ``eq16`` is None where that formula has no optimum; ``model`` and ``cost`` without roofs.
    """
    from perfkit import roofline
    from perfkit.shape import DTYPE_BYTES

    result: dict[str, Any] = {"model": None, "eq16": None, "cost": None}
    if case.shape.family == "kda":
        return result
    accepted = roofline.mean_accepted(case.acceptance, case.depth)
    record = roofline.record_bytes(case.shape, DTYPE_BYTES[case.input_dtype])
    star = float(roofline.l_star(case.shape, case.draft_len, accepted, record, DTYPE_BYTES[case.state_dtype]))
    result["eq16"] = star or None
    if gpu is None or roofs is None:
        return result
    candidates = np.array([window for window in WINDOWS if window >= case.depth])
    try:
        cost = window_cost(case, gpu, roofs)
        result["model"] = roofline.best_window(cost, candidates)
        if star:
            rounded = min(max(round(star), case.depth, 1), WINDOWS[-1])
            result["cost"] = roofline.off_cost(cost, rounded, candidates)
    except Exception:  # a plug-in's byte model that does not take arrays
        return result
    return result
