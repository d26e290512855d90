"""Which steps of a case are counted, what each must move by the declared count, and the name of its NVTX range.

Where rows flush together, a step that flushes and one that does not are two measurements: the flush, and of the others
the one whose h is nearest their mean, so that both, weighted by how often they happen, make the mean step to within
half a record. Where rows are out of step (random acceptance, staggered starts) any step is a mix of both.

Source: paper, Alg. 1, App. D.1 (when a step flushes).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perfkit.method import ACCEPTANCE_STEPS, Case, Method, Point, Step, constant_acceptance
from perfkit.ranges import case_name
from perfkit.roofline import STATE_TRAFFIC, cursor
from perfkit.roofline.cursor import flushes
from perfkit.shape import DTYPE_BYTES

Kind = Literal["nonflush", "flush", "mixed"]
#: Steps before the first counted one: each kernel of a step is then compiled, for either parity of the step.
WARM_UP = 2


@dataclass(frozen=True, slots=True)
class CountedStep:
    """One step to count.

    Attributes:
        kind: whether its rows flush; of rows that are out of step some do.
        index: of the step, 0 where timing would start.
        h: committed records of every row before it; None of a mix.
        share: of all steps, in the long run, that it stands for.
    """

    kind: Kind
    index: int
    h: int | None
    share: float


def counted_steps(case: Case, method: Method) -> tuple[CountedStep, ...]:
    """Return the steps of a case that are counted: one of each kind that it has."""
    accepted = constant_acceptance(case)
    if not method.windowed or case.window is None:
        held = accepted if case.phase == "verify" else 0
        return (CountedStep("mixed" if held is None else "nonflush", WARM_UP, held, 1.0),)
    if accepted is None or case.flush_phase != "aligned":
        return (CountedStep("mixed", WARM_UP, None, 1.0),)
    if case.phase == "decode":
        records = np.arange(case.window)
    else:
        records = cursor.cycle(case.window, case.depth, accepted)
    period = len(records)
    start = period * math.ceil(WARM_UP / period)
    others = records[:-1]
    found = []
    if len(others):
        middle = int(np.abs(others - others.mean()).argmin())
        found.append(CountedStep("nonflush", start + middle, int(others[middle]), 1 - 1 / period))
    return (*found, CountedStep("flush", start + period - 1, int(records[-1]), 1 / period))


def exact_step(case: Case, method: Method, step: CountedStep, seed: int) -> Step:
    """Return what the method declares for one counted step of the whole batch."""
    point = Point.of(case)
    if step.kind != "mixed":
        return method.step(case.shape, point, step.h or 0, step.kind == "flush")
    held, flush = rows_before(case, method, step.index, seed)
    each = method.step(case.shape, replace(point, batch=1), held, flush)

    def over_rows(values: Any, shared: Any) -> float:
        return float(np.sum(np.broadcast_to(values - shared, held.shape)) + np.max(shared))

    return Step(
        bytes_read=over_rows(each.bytes_read, each.shared_read),
        bytes_write=over_rows(each.bytes_write, each.shared_write),
        flops=over_rows(each.flops, 0),
        launches=each.launches,
        serial=float(np.max(each.serial)),
        shared_read=each.shared_read,
        shared_write=each.shared_write,
    )


def rows_before(case: Case, method: Method, index: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return h [batch] of every row before a step, and whether it flushes [batch], as the primed session has them.

    Follows the cursors from the hand-over through the priming steps; see :mod:`perfkit.priming`, whose draws of the
    acceptance they are.
    """
    from perfkit.priming import Schedule, draw, schedule

    accepted = draw(case, seed).accepted if case.phase == "verify" else None
    plan = schedule(case, method) or Schedule(1, 0)
    turn = np.arange(case.batch) % plan.spread
    kept = np.zeros(case.batch, np.int64)  # records that the cursors hold
    held, flush = kept, np.zeros(case.batch, bool)
    for done in range(plan.steps + index + 1):
        took = np.zeros(case.batch, np.int64)
        if accepted is not None:
            took = np.where(done > turn, accepted[(done - plan.steps) % ACCEPTANCE_STEPS], 0)
        held = took + (kept if method.windowed else 0)
        if method.windowed:
            flush = np.asarray(flushes(held, case.window, case.depth))
            after = np.where(flush, 0, held + (case.phase == "decode"))
            kept = np.where(done >= turn, after, 0)
    return held, flush


def paper_bytes(case: Case, method: Method, step: CountedStep) -> tuple[float, float]:
    """Return the bytes read and written by the paper's count of such a step: whole states alone, as in its Table 3.

    Of a mix, and of methods that the paper's table does not have, the method's own count in the paper's convention.

    Source: paper, App. A.1; decode: App. C.1.
    """
    traffic = STATE_TRAFFIC.get(case.method)
    if traffic is None or step.kind == "mixed":
        counted = method.paper(case.shape, Point.of(case))
        return float(counted.bytes_read), float(counted.bytes_write)
    reads, writes = traffic.counts(case.draft_len, float(step.kind == "flush"))
    state = case.batch * case.shape.state_elements * DTYPE_BYTES[case.state_dtype]
    return float(reads * state), float(writes * state)


def range_name(case: Case, kind: str) -> str:
    """Return the name of a counted step's range: ``perfkit/<method>/<phase>/<kind>/B256-L16-T4-a3``."""
    method, _, point = case_name(case).rpartition("/")
    # Lists of ranges in CSV have colons and quotes of their own.
    return re.sub(r"[^A-Za-z0-9_./-]+", "-", f"perfkit/{method}/{kind}/{point}")
