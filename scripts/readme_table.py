#!/usr/bin/env python3
"""Print the README's tables of measured times from the shipped rows: scripts/readme_table.py [MODEL …].

The README holds what this prints; tests/test_shipped.py compares the two.
"""

from __future__ import annotations

import sys
from typing import Any

from perfkit.profiles import load_measured, load_model

MODELS = ("nemotron-super", "nemotron-nano")
GPU = "h200-sxm"
BATCHES = (1, 4, 16, 64, 256, 512)
#: The table of verify steps: one batch and window, every T and acceptance that was measured.
VERIFY_BATCH, VERIFY_WINDOW = 256, 16
VERIFY_METHODS = (
    "snapshot", "replay", "stree", "fused_recovery", "activation_replay", "joint_attainment", "stree_released",
)  # fmt: skip


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


def verify_table(name: str, gpu: str = GPU) -> str:
    """Return the Markdown table of one model's verify steps: µs per step and layer; replay also in other units."""
    model = load_model(name)
    points: dict[tuple[int, int], dict[str, dict[str, Any]]] = {}
    for row in load_measured(model.key, gpu):
        plain = row["tree"] is None and row["flush_phase"] == "aligned" and float(row["accepted"] or 0).is_integer()
        there = row["batch"] == VERIFY_BATCH and row["window"] in (None, VERIFY_WINDOW)
        if row["phase"] == "verify" and row["status"] == "ok" and plain and there:
            points.setdefault((row["draft_len"], int(row["accepted"])), {})[row["method"]] = row
    lines = [
        f"| {model.key}: T | a | " + " | ".join(VERIFY_METHODS) + " | replay over snapshot | in conventional steps |",
        "|--:|--:|" + "--:|" * (len(VERIFY_METHODS) + 2),
    ]
    for (draft_len, accepted), rows in sorted(points.items()):
        if "replay" not in rows:
            continue
        times = " | ".join(f"{rows[key]['time_us']:.0f}" if key in rows else "–" for key in VERIFY_METHODS)
        replay = rows["replay"]
        lines.append(f"| {draft_len} | {accepted} | {times} | {replay['speedup']:.2f}× |"
                     f" {replay['conventional_steps']:.2f} |")  # fmt: skip
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Print the tables of the models named, or of all that are shown in the README."""
    print("\n\n".join(make(name) for make in (table, verify_table) for name in argv or MODELS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
