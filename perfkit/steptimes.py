"""What each step of a case takes by itself: the tail that a mean over whole periods hides.

On a GPU the steps are captured in a graph of their own with a time stamp between them (:mod:`perfkit.kernels.stamp`);
the graph that the main time comes from has none. What a stamp costs is measured in a graph of stamps alone and
subtracted from each step. Elsewhere each step is timed by the clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from perfkit.kernels.stamp import stamp
from perfkit.measure import Clock, capture
from perfkit.session import Session

#: Fewest step times that one replay gives; the graph holds whole periods.
STEPS_A_REPLAY = 32
#: Step times in all, as far as MIN_REPLAYS..MAX_REPLAYS allow: the 99th percentile of a hundred is their maximum.
STEP_TIMES = 200
MIN_REPLAYS, MAX_REPLAYS = 3, 16
#: Up to this many step times a replay, a period runs before the first stamp: restoring the state leaves L2 dirty, and
#: the first step then pays for it.
LEAD_BELOW = 1000
#: Stamps in the graph that says what a stamp costs.
STAMPS_ALONE = 65


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times of single steps of single copies, in microseconds.

    Attributes:
        times_us: in the order in which the steps ran; whole periods.
        stamp_us: what a stamp costs, already subtracted; None if there were none.
    """

    times_us: list[float]
    stamp_us: float | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps before the first stamp, steps between stamps, and replays."""

    lead: int
    steps: int
    replays: int

    @classmethod
    def of(cls, period: int, copies: int) -> Plan:
        """Return the plan for steps of this period, each of ``copies`` copies."""
        steps = period * math.ceil(STEPS_A_REPLAY / copies / period)
        times = steps * copies
        replays = min(MAX_REPLAYS, max(MIN_REPLAYS, math.ceil(STEP_TIMES / times)))
        return cls(period if times < LEAD_BELOW else 0, steps, replays)


def step_times(session: Session, saved: list[dict[str, torch.Tensor]], clock: Clock, monitor: Any = None) -> StepTimes:
    """Time the steps of a session one by one, from its saved state; the state is restored before each replay.

    Args:
        session: its kernels have been launched once.
        saved: its state at step 0.
        clock: times the steps where the device has no timer.
        monitor: a :class:`perfkit.device.Monitor`; replays while the GPU throttles are dropped, unless all are.
    """
    plan = Plan.of(session.method.period(session.case), len(session.copies))
    if session.device.type == "cuda":
        return _stamped(session, plan, saved, monitor)
    found: list[float] = []
    for _ in range(plan.replays):
        session.restore(saved)
        session.run(range(plan.lead))
        for index in range(plan.lead, plan.lead + plan.steps):
            for copy in range(len(session.copies)):
                found.append(clock.time_us(partial(session.step, index, copy)))
    return StepTimes(found)


def _stamped(session: Session, plan: Plan, saved: list[dict[str, torch.Tensor]], monitor: Any) -> StepTimes:
    count = plan.steps * len(session.copies) + 1
    stamps = torch.zeros(max(count, STAMPS_ALONE), dtype=torch.int64, device=session.device)
    stamp(stamps, 0)  # compiled before it is captured

    def work() -> None:
        session.run(range(plan.lead))
        stamp(stamps, 0)
        at = 0
        for index in range(plan.lead, plan.lead + plan.steps):
            for copy in range(len(session.copies)):
                session.step(index, copy)
                at += 1
                stamp(stamps, at)

    graph = capture(work)
    alone = capture(lambda: [stamp(stamps, at) for at in range(STAMPS_ALONE)])
    cost = min(_mean(_replayed(alone.replay, stamps, STAMPS_ALONE)) for _ in range(MIN_REPLAYS))
    kept: list[list[float]] = []
    dropped: list[list[float]] = []
    for _ in range(plan.replays):
        session.restore(saved)
        before = monitor.snapshot() if monitor is not None else None
        times = _replayed(graph.replay, stamps, count)
        spoiled = monitor is not None and monitor.judge(before, monitor.snapshot()).throttled
        (dropped if spoiled else kept).append(times)
    return StepTimes([time - cost for times in kept or dropped for time in times], cost)


def _replayed(replay: Callable[[], None], stamps: torch.Tensor, count: int) -> list[float]:
    """Return the microseconds between neighbouring stamps of one replay."""
    replay()
    at: list[int] = stamps[:count].tolist()  # waits for the device
    return [(after - before) / 1e3 for before, after in pairwise(at)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
