#!/usr/bin/env python3
"""Print the README's table of measured times from the shipped rows: scripts/readme_table.py [MODEL …].

The README holds what this prints; tests/test_shipped.py compares the two.
"""

from __future__ import annotations

import sys
from typing import Any

from perfkit.profiles import load_measured, load_model

MODELS = ("nemotron-super", "nemotron-nano")
GPU = "h200-sxm"
BATCHES = (1, 4, 16, 64, 256, 512)


def cell(row: dict[str, Any] | None) -> str:
    """Return one case's time and speedup."""
    if row is None or row["status"] != "ok":
        return "–"
    time = f"{row['time_us']:.3g}" if row["time_us"] < 100 else f"{row['time_us']:.0f}"
    return f"{time} ({row['speedup']:.2f}×)"


def table(name: str, gpu: str = GPU) -> str:
    """Return the Markdown table of one model: µs per step and layer, speedup over the tuned conventional step."""
    model = load_model(name)
    rows = {(row["method"], row["batch"], row["window"]): row for row in load_measured(model.key, gpu)}
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


def main(argv: list[str]) -> int:
    """Print the tables of the models named, or of all that are shown in the README."""
    print("\n\n".join(table(name) for name in argv or MODELS))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
