#!/usr/bin/env python3
"""Print the README's tables and sentences of measured times from the shipped rows: scripts/readme_table.py [MODEL …].

The README holds what this prints; tests/test_shipped.py compares the two.
"""

from __future__ import annotations

import sys
from typing import Any

from perfkit.profiles import load_measured, load_model
from perfkit.registry import methods

#: Models of Mamba-2, which the README compares with each other; those of the delta rule have a part of their own.
MODELS = ("nemotron-super", "nemotron-nano")
DELTA_MODELS = ("qwen3.5-122b", "qwen3.5-4b", "kimi-linear")
GPU = "h200-sxm"
BATCHES = (1, 4, 16, 64, 256, 512)
#: The table of verify steps: one batch and window, every T and acceptance that was measured.
VERIFY_BATCH, VERIFY_WINDOW, MOST_DRAFTS = 256, 16, 8
VERIFY_METHODS = (
    "snapshot", "replay", "stree", "fused_recovery", "activation_replay", "joint_attainment", "stree_released",
)  # fmt: skip
#: The table of trees and of long drafts: the methods that take trees.
DRAFT_METHODS = ("snapshot", "replay", "stree", "stree_released")


def cell(row: dict[str, Any] | None) -> str:
    """Return one case's time and speedup."""
    if row is None or row["status"] != "ok":
        return "–"
    time = f"{row['time_us']:.3g}" if row["time_us"] < 100 else f"{row['time_us']:.0f}"
    return f"{time} ({row['speedup']:.2f}×)"


def decode_rows(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the decode rows by method, batch and window; a conventional step from a run without replay is left out.

    Runs of verify steps time one conventional step too, which belongs to their own groups.
    """
    decode = [row for row in rows if row["phase"] == "decode"]
    runs = {row["manifest"]["hash"] for row in decode if row["method"] == "replay"}
    return {(row["method"], row["batch"], row["window"]): row for row in decode if row["manifest"]["hash"] in runs}


def table(name: str, gpu: str = GPU) -> str:
    """Return the Markdown table of one model: µs per step and layer, speedup over the tuned conventional step."""
    model = load_model(name)
    rows = decode_rows(load_measured(model.key, gpu))
    lines = [
        f"| B | {model.key}: conventional | replay L = 8 | L = 16 | L = 32 | roof at L = 16 |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for batch in BATCHES:
        control = rows.get(("conventional", batch, None))
        best = rows.get(("replay", batch, 16))
        if control is None or best is None:
            continue
        time = f"{control['time_us']:.3g}" if control["time_us"] < 100 else f"{control['time_us']:.0f}"
        replay = " | ".join(cell(rows.get(("replay", batch, window))) for window in (8, 16, 32))
        lines.append(f"| {batch} | {time} | {replay} | {best['roof_fraction']:.0%} |")
    return "\n".join(lines)


def verify_points(name: str, gpu: str = GPU) -> dict[tuple[int, str, float, int], dict[str, dict[str, Any]]]:
    """Return what replay was timed against: by T, tree (a chain is ""), tokens committed and L, the rows by method.

    Of a method that the run of replay lacks, the row is of another run of the same group.
    """
    rows = [row for row in load_measured(load_model(name).key, gpu) if row["phase"] == "verify"]
    rows = [row for row in rows if row["status"] == "ok" and row["flush_phase"] == "aligned"]
    rows = [row for row in rows if row["batch"] == VERIFY_BATCH]
    points: dict[tuple[int, str, float, int], dict[str, dict[str, Any]]] = {}
    for replay in rows:
        if replay["method"] == "replay":
            same = [row for row in rows if row["group_id"] == replay["group_id"]]
            same.sort(key=lambda row: bool(row["manifest"] == replay["manifest"]))
            key = (replay["draft_len"], replay["tree"] or "", replay["accepted"], replay["window"])
            points[key] = {row["method"]: row for row in same if row["window"] in (None, replay["window"])}
    return dict(sorted(points.items()))


def verify_methods(name: str) -> list[str]:
    """Return the methods that verify drafts of the model's family, in the order of the table's columns."""
    known = {method.key for method in methods(load_model(name).family, "verify")}
    return [key for key in VERIFY_METHODS if key in known]


def in_verify_table(point: tuple[int, str, float, int]) -> bool:
    """Say whether a point is a line of :func:`verify_table`: a chain at its window, of no more than eight positions."""
    draft_len, tree, accepted, window = point
    return not tree and window == VERIFY_WINDOW and accepted.is_integer() and draft_len <= MOST_DRAFTS


def steps_cell(row: dict[str, Any]) -> str:
    """Return a row's conventional steps; none where its run has no time of such a step."""
    return "–" if row["conventional_steps"] is None else f"{row['conventional_steps']:.2f}"


def verify_table(name: str, gpu: str = GPU) -> str:
    """Return the Markdown table of one model's verify steps: µs per step and layer; replay also in other units.

    Empty if there are none.
    """
    keys = verify_methods(name)
    lines = [
        f"| {load_model(name).key}: T | a | " + " | ".join(keys) + " | replay over snapshot | in conventional steps |",
        "|--:|--:|" + "--:|" * (len(keys) + 2),
    ]
    for point, rows in verify_points(name, gpu).items():
        if in_verify_table(point):
            times = " | ".join(f"{rows[key]['time_us']:.0f}" if key in rows else "–" for key in keys)
            replay = rows["replay"]
            lines.append(f"| {point[0]} | {point[2]:.0f} | {times} | {replay['speedup']:.2f}× |"
                         f" {steps_cell(replay)} |")  # fmt: skip
    return "\n".join(lines) if len(lines) > 2 else ""


def draft_table(name: str, gpu: str = GPU) -> str:
    """Return the Markdown table of the points that :func:`verify_table` leaves out: trees, longer drafts, more windows.

    Each method has µs per step and layer and the exact count of bytes, reads and writes. Empty if there are none.
    """
    lines = [
        f"| {load_model(name).key}: draft | T | a | L | "
        + " | ".join(f"{key}: µs (GB)" for key in DRAFT_METHODS)
        + " | replay over snapshot | over stree | in conventional steps | least samples | throttled |",
        "|:--|--:|--:|--:|" + "--:|" * (len(DRAFT_METHODS) + 5),
    ]
    for point, rows in verify_points(name, gpu).items():
        if in_verify_table(point):
            continue
        draft_len, tree, accepted, window = point
        cells = [f"`{tree}`" if tree else "chain", draft_len, f"{accepted:.3g}", window]
        for key in DRAFT_METHODS:
            row = rows.get(key)
            moved = (row["bytes_read_model"] + row["bytes_write_model"]) / 1e9 if row else 0.0
            cells.append(f"{row['time_us']:.0f} ({moved:.2f})" if row else "–")
        replay, stree = rows["replay"], rows.get("stree")
        shown = [rows[key] for key in DRAFT_METHODS if key in rows]
        cells += [f"{replay['speedup']:.2f}×", f"{stree['time_us'] / replay['time_us']:.2f}×" if stree else "–",
                  steps_cell(replay), min(row["n_samples"] for row in shown),
                  sum(row["n_throttled"] for row in shown)]  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) if len(lines) > 2 else ""


def notes(gpu: str = GPU) -> list[str]:
    """Return the README's sentences about what the rows of verify steps reach; lines may break anywhere in them."""
    snapshots, trees, steps = [], [], []
    for name in MODELS:
        for point, rows in verify_points(name, gpu).items():
            if in_verify_table(point):
                snapshots.append(rows["snapshot"]["roof_fraction"])
                if name == MODELS[0]:
                    steps.append(rows["replay"])
            elif point[1]:
                trees.append(rows["snapshot"]["roof_fraction"])
    plain, flush = ([row[f"time_{kind}_us"] for row in steps] for kind in ("nonflush", "flush"))
    return [
        f"Snapshots of these chains run at {min(snapshots) * 100:.0f} to {max(snapshots) * 100:.0f} % of the roof of"
        " their mix (one read, T writes)",
        f"A replay step of {MODELS[0]} that does not flush takes {min(plain):.0f} to {max(plain):.0f} µs, one that"
        f" does {min(flush):.0f} to {max(flush):.0f}",
        f"Snapshots of trees reach {' and '.join(f'{one * 100:.0f}' for one in trees)} % of the roof by their count",
    ]


def samples_note(gpu: str = GPU) -> str:
    """Return the README's sentence about how many samples the times of :func:`verify_table` are of, at worst."""
    rows = [(load_model(name).key, point, row) for name in (*MODELS, *DELTA_MODELS)
            for point, found in verify_points(name, gpu).items() if in_verify_table(point) for row in found.values()
            if row["status"] == "ok"]  # fmt: skip
    key, point, worst = max(rows, key=lambda item: item[2]["n_throttled"])
    return (f"Times of verify steps are of {min(row['n_samples'] for *_, row in rows)} samples or more; the power cap"
            f" took {worst['n_throttled']} at most, of {key} at T = {point[0]}, a = {point[2]:.0f}")  # fmt: skip


def delta_notes(name: str, gpu: str = GPU) -> list[str]:
    """Return the README's sentences about a model of the delta rule: where replay pays, how near roofs kernels are."""
    key, rows = load_model(name).key, decode_rows(load_measured(load_model(name).key, gpu))
    best = {batch: max(row["speedup"] for (method, at, _), row in rows.items() if method == "replay" and at == batch)
            for batch in BATCHES}  # fmt: skip
    loses = [str(batch) for batch in BATCHES if best[batch] < 1]
    points = {at: found for at, found in verify_points(name, gpu).items() if in_verify_table(at)}
    speedups = {(at[0], at[2]): found["replay"]["speedup"] for at, found in points.items()}
    pays = [f"T = {t}, a = {a:.0f}" for (t, a), speedup in speedups.items() if speedup > 1]
    reach = {method: [round(100 * found[method]["roof_fraction"]) for found in points.values()]
             for method in ("replay", "snapshot")}  # fmt: skip
    said = [
        f"Decode of {key} by replay is {rows['replay', VERIFY_BATCH, VERIFY_WINDOW]['speedup']:.2f}× as fast as the"
        f" conventional step at B = {VERIFY_BATCH} and L = {VERIFY_WINDOW}, and slower at B = {', '.join(loses)}"
    ]
    if points:
        span = f"{min(speedups.values()):.2f}× to {max(speedups.values()):.2f}×"
        where = f"slower than snapshots except at {'; '.join(pays) or 'no point'} ({span})"
        said.append(
            f"Its verify by replay is {where if len(pays) < len(points) else f'{span} as fast as snapshots'}: the"
            f" kernel runs at {_span(reach['replay'])} % of its roof, snapshots at {_span(reach['snapshot'])} %"
        )
    return said


def _span(values: list[int]) -> str:
    return " to ".join(map(str, sorted({min(values), max(values)})))


def main(argv: list[str]) -> int:
    """Print the tables of the models named, or of all that are shown in the README, and the sentences about them."""
    made = [make(name) for make in (table, verify_table, draft_table) for name in argv or (*MODELS, *DELTA_MODELS)]
    sentences = [*notes(), samples_note(), *(one for name in DELTA_MODELS for one in delta_notes(name))]
    print("\n\n".join(text for text in (*made, *sentences) if text))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
