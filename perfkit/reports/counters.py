"""Runs of ``perfkit profile`` beside others: the bytes that DRAM moved, in the rows of the same cases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfkit.reports.text import count, join

if TYPE_CHECKING:
    from perfkit.reports.runs import Run

BYTES = ("bytes_read_dram", "bytes_write_dram")


def join_counters(runs: Sequence[Run]) -> list[Run]:
    """Return the runs without those that only counted, whose bytes fill the rows of the same case and GPU.

    The manifest of a run that got some says under ``counters`` where they are from. Runs that only counted stay if
    there are no others.
    """
    counted = [run for run in runs if run.manifest.get("command") == "profile"]
    others = [run for run in runs if run.manifest.get("command") != "profile"]
    return [_filled(run, counted) for run in others] if counted and others else list(runs)


def _filled(run: Run, counted: Sequence[Run]) -> Run:
    import pandas as pd

    frame, sources = run.frame.copy(), []
    for other in counted:
        rows = other.frame[other.frame[BYTES[0]].notna()].drop_duplicates(["case_id", "gpu"])
        found = frame[["case_id", "gpu"]].merge(rows[["case_id", "gpu", *BYTES]], how="left", on=["case_id", "gpu"])
        filled = found[BYTES[0]].notna().to_numpy()
        if not filled.any():
            continue
        for name in BYTES:
            values = pd.Series(found[name].to_numpy(), index=frame.index)
            frame[name] = values.where(filled, frame[name])
        sources.append(f"{count(int(filled.sum()), 'row')} by {other.name}, ncu {other.manifest.get('ncu') or '?'}")
    return replace(run, frame=frame, manifest={**run.manifest, "counters": join(sources)}) if sources else run
