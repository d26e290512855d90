"""How much a timed graph holds: copies that keep L2 cold, steps that make whole periods, and when a case flushes."""

from __future__ import annotations

import math

from perfkit.method import Case, Method, Point, Step, constant_acceptance
from perfkit.roofline import cursor

#: Bytes that a graph touches before it returns to the same buffer, in units of L2.
COLD_L2 = 7
MAX_COPIES = 256
#: Fewest steps in a timed graph: what a graph's launch adds is divided by steps times copies.
MIN_STEPS = 16
#: Declared traffic of a graph after which it is long enough with fewer steps: 5 ms or so of a large GPU.
GRAPH_BYTES = 20e9
#: Declared traffic after which a longer run goes on in another graph, after a rest: 64 steps of 13 GB in one graph ran
#: into the power cap of an H200, runs of 20 ms do not.
PART_BYTES = 60e9
#: Steps of random acceptance that compare launch configurations.
FEW_STEPS = 8


def typical_step(case: Case, method: Method) -> Step:
    """Return the counts of a step that does not flush, after one that committed the mean of its acceptance."""
    point = Point.of(case)
    return method.step(case.shape, point, round(float(point.accepted)) if case.phase == "verify" else 0, False)


def cold_copies(case: Case, method: Method, l2_bytes: int) -> int:
    """Return how many copies keep L2 cold: a graph touches COLD_L2 times L2 before it comes back to a buffer."""
    touched = float(typical_step(case, method).bytes_read)
    return max(case.n_layers, min(MAX_COPIES, math.ceil(COLD_L2 * l2_bytes / touched)))


def graph_steps(case: Case, method: Method, copies: int) -> int:
    """Return the steps of a timed graph: whole periods, MIN_STEPS or more.

    Long steps take fewer, as many as move GRAPH_BYTES, but a whole period and two steps at least.
    """
    period, step = method.period(case), typical_step(case, method)
    affordable = max(2, int(GRAPH_BYTES // (float(step.bytes_read + step.bytes_write) * copies)))
    if affordable >= MIN_STEPS:
        return period * math.ceil(MIN_STEPS / period)
    return period * max(affordable // period, math.ceil(2 / period))


def tuning_steps(case: Case, method: Method, copies: int) -> int:
    """Return the steps of a graph that compares launch configurations: as timed, of random acceptance a few."""
    steps = graph_steps(case, method, copies)
    if constant_acceptance(case) is not None:
        return steps
    return min(steps, max(FEW_STEPS, part_steps(case, method, copies)))


def part_steps(case: Case, method: Method, copies: int) -> int:
    """Return the steps after which a long timed run rests, two at least: as many as move PART_BYTES."""
    step = typical_step(case, method)
    return max(2, int(PART_BYTES // (float(step.bytes_read + step.bytes_write) * copies)))


def flush_cycle(case: Case, method: Method) -> int | None:
    """Return the steps from one flush to the next where all rows flush together, None where they do not, or never.

    Of a cycle the last step flushes. Source: paper, Alg. 1 (decode), App. D.1 (verify).
    """
    accepted = constant_acceptance(case)
    if not method.windowed or case.window is None or case.flush_phase != "aligned" or accepted is None:
        return None
    return case.window if case.phase == "decode" else int(cursor.period(case.window, case.depth, accepted))
