"""Whether counters agree with the bytes that a method declares, and what may lie between the two.

A kernel's writes go to L2 first. What of them is still dirty when it ends has not been written to DRAM yet, so a
counter of DRAM writes may be short by up to one L2. Under ``--cache-control all`` Nsight Compute flushes L2 before it
starts each launch, outside what it counts: every launch of a step may then leave its own dirty lines uncounted, and a
step of n launches be short by up to n L2. Were a flush counted with the launch that follows it, a step would begin with
what the step before left dirty: up to one L2 too much. So within 1 % plus one L2 either way counters agree; short by
more, but by less than an L2 for each launch, dirty lines may be all there is to it, and the row says so. Each launch
finds L2 cold, as the model counts it, an address once a launch: reads agree within 1 %.

Under ``--cache-control none`` a launch may find up to one L2 of what the one before it left: reads may be short by that
for each launch, and a first launch finds what came before the step.

Below one L2 in all a step says nothing: its writes need not reach DRAM, and what else a GPU reads is no longer little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Verdict = Literal["agrees", "dirty lines", "cached lines", "too small", "contradicts"]
#: Share of the declared bytes that counters may be off by, beside L2.
TOLERANCE = 0.01
#: From the best to the worst.
ORDER: tuple[Verdict, ...] = ("agrees", "too small", "cached lines", "dirty lines", "contradicts")


def judge_read(row: Mapping[str, Any]) -> Verdict:
    """Return the verdict on the bytes read of a counted step (a row of :mod:`perfkit.profiles.counters`)."""
    declared, l2 = row["bytes_read_model"], row["l2_capacity"] or 0
    off = row["bytes_read_dram"] - declared
    if _too_small(row):
        return "too small"
    if abs(off) <= TOLERANCE * declared:
        return "agrees"
    if row["cache_control"] == "none" and -TOLERANCE * declared - row["launches"] * l2 <= off < 0:
        return "cached lines"
    return "contradicts"


def judge_write(row: Mapping[str, Any]) -> Verdict:
    """Return the verdict on the bytes written of a counted step."""
    declared, l2 = row["bytes_write_model"], row["l2_capacity"] or 0
    off = row["bytes_write_dram"] - declared
    if _too_small(row):
        return "too small"
    if abs(off) <= TOLERANCE * declared + l2:
        return "agrees"
    if -TOLERANCE * declared - row["launches"] * l2 <= off < 0:
        return "dirty lines"
    return "contradicts"


def judge(row: Mapping[str, Any]) -> Verdict:
    """Return the worse of both verdicts."""
    return max(judge_read(row), judge_write(row), key=ORDER.index)


def contradicted(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each declared count that counters contradict: what, declared, counted, and by how much."""
    lines = []
    for row in rows:
        for verb, verdict in (("read", judge_read(row)), ("write", judge_write(row))):
            if verdict == "contradicts":
                declared, counted = row[f"bytes_{verb}_model"], row[f"bytes_{verb}_dram"]
                share = f", {(counted - declared) / declared:+.1%}" if declared else ""
                lines.append(f"{row['method']} {row['phase']} T={row['draft_len']} {row['step']}: declares to {verb} "
                             f"{declared / 1e9:.4g} GB, DRAM counted {counted / 1e9:.4g}{share}")  # fmt: skip
    return lines


def _too_small(row: Mapping[str, Any]) -> bool:
    return bool(row["bytes_read_model"] + row["bytes_write_model"] < (row["l2_capacity"] or 0))
