#!/usr/bin/env python3
"""Print what a replay step takes by the records that it finds: scripts/steps_by_h.py RUN [--method KEY].

From the step times of a finished run (samples, ``step_us``) with constant acceptance and aligned rows: a cycle starts
at h = a and its last step flushes. One line a case: T, a, then h: median µs, the flush marked with *. Small cases run
as several copies, which leave L2 cold; their times lie between each other's, so those lines mean nothing.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from perfkit import results
from perfkit.errors import PerfkitError
from perfkit.roofline.cursor import cycle, period


def by_h(steps: list[float], window: int, draft_len: int, accepted: int) -> list[tuple[int, float]]:
    """Return (h, median µs) of each step of a cycle; ``steps`` are whole cycles."""
    length = int(period(window, draft_len, accepted))
    return [(int(h), statistics.median(steps[at::length])) for at, h in enumerate(cycle(window, draft_len, accepted))]


def main(argv: list[str] | None = None) -> int:
    """Print one line for each case that has step times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--method", default="replay")
    given = parser.parse_args(argv)
    try:
        frame = results.load_run(given.run)
        for row in frame.to_dict("records"):
            constant = float(row["accepted"]).is_integer() and row["flush_phase"] == "aligned"
            if row["method"] != given.method or row["phase"] != "verify" or row["status"] != "ok" or not constant:
                continue
            steps = results.read_samples(given.run, row["case_id"]).get("step_us") or []
            if not isinstance(row["tree"], str) and steps:
                found = by_h(steps, int(row["window"]), int(row["draft_len"]), int(row["accepted"]))
                words = " ".join(f"{h}:{us:.1f}" for h, us in found)
                print(f"T{row['draft_len']} a{row['accepted']:.0f} L{row['window']:.0f}  {words}*")
    except PerfkitError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
