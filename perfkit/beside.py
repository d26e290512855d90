"""Times that are reported beside a case's main one: of steps that flush and that do not, warm ones, the slowest steps.

One of them that fails leaves its columns empty: the case has its main time already.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import torch

from perfkit.errors import first_line
from perfkit.measure import Clock, interleave
from perfkit.pacing import flush_cycle
from perfkit.session import Session
from perfkit.stats import Stopping, p99
from perfkit.steptimes import step_times

Saved = list[dict[str, torch.Tensor]]
Columns = dict[str, Any]
#: Samples of what is reported beside the main time.
SIDE_SAMPLES = 12
#: Steps in the graph of a warm session: it has one copy, whose steps are short.
WARM_STEPS = 128


def beside(
    session: Session, saved: Saved, clock: Clock, monitor: Any, mean_us: float, l2_bytes: int, seed: int = 0
) -> tuple[Columns, Columns]:
    """Return all columns that a case has beside its main time, and the samples that are kept of them.

    Args:
        session: its kernels have been launched once.
        saved: its state at step 0, where a cycle begins.
        clock: times samples.
        monitor: of the GPU's clocks and throttling.
        mean_us: the main time: per step over whole periods.
        l2_bytes: size of L2.
        seed: of intervals.
    """
    columns: Columns = {}
    samples: Columns = {}

    def steps() -> Columns:
        found, times = single_steps(session, saved, clock, monitor)
        samples.update(times)
        return found

    parts: dict[str, Callable[[], Columns]] = {
        "flush": lambda: flush_times(session, saved, clock, mean_us, seed),
        "warm": lambda: warm_time(session, saved, clock, l2_bytes, seed),
        "step": steps,
    }
    for name, part in parts.items():
        try:
            session.restore(saved)
            columns |= part()
        except Exception as error:
            logging.getLogger(__name__).warning("%s: no %s times: %s", session.case.id, name, first_line(error))
    return columns, samples


def flush_times(session: Session, saved: Saved, clock: Clock, mean_us: float, seed: int = 0) -> Columns:
    """Return the time of a step that does not flush and of one that does, where all rows flush together."""
    cycle = flush_cycle(session.case, session.method)
    if cycle is None:
        return {}
    if cycle == 1:
        return {"time_flush_us": mean_us}
    nonflush = _median(session, range(cycle - 1), saved, clock, seed)
    return {"time_nonflush_us": nonflush, "time_flush_us": cycle * mean_us - (cycle - 1) * nonflush}


def warm_time(session: Session, saved: Saved, clock: Clock, l2_bytes: int, seed: int = 0) -> Columns:
    """Return the time with everything in L2, of a case small enough that it takes several copies to be cold."""
    copies, case = session.copies, session.case
    if session.nbytes / len(copies) > l2_bytes / 2 or len(copies) <= case.n_layers:
        return {}
    period = session.method.period(case)
    session.copies = copies[:1]
    try:
        return {
            "time_warm_us": _median(session, range(period * math.ceil(WARM_STEPS / period)), saved[:1], clock, seed)
        }
    finally:
        session.copies = copies


def single_steps(session: Session, saved: Saved, clock: Clock, monitor: Any = None) -> tuple[Columns, Columns]:
    """Return the 99th percentile of the times of single steps, and those times as samples."""
    found = step_times(session, saved, clock, monitor)
    samples = {"step_us": [round(time, 3) for time in found.times_us]}
    if found.stamp_us is not None:
        samples["stamp_us"] = [found.stamp_us]
    return {"time_p99_us": p99(found.times_us)}, samples


def _median(session: Session, steps: range, saved: Saved, clock: Clock, seed: int) -> float:
    subject = session.subject("beside", steps, saved)
    rule = Stopping(min_samples=SIDE_SAMPLES, max_samples=SIDE_SAMPLES, max_seconds=20.0)
    return interleave([subject], rule, clock)["beside"].interval(seed).value
