"""Kernels against the oracle: outputs, states, cursors, untouched memory and bytes, step by step.

Each step is compared with one float64 step from the state that the buffers stood for before it, so that a tolerance
of a few roundings holds at every step of a long run and low-precision states need no special oracle; since the run
starts from a known state, agreement at every step is agreement with the sequential recurrence. A second oracle is
never re-anchored and bounds the drift.

On the way: rows start at different places of their rings and sit out steps until they are desynchronized, one row is
padded throughout and another handed over to a new request, buffers start as NaN, checkpoints change at flushes and at
no other step, slots that nobody owns must come out bit-equal, and in the interpreter the bytes touched must equal what
the method declares, to the byte. Afterwards the state and each kind of record is perturbed, and outputs must change.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from perfkit.checker import Wrong
from perfkit.method import Case, Config
from perfkit.ranges import case_name, mark
from perfkit.registry import get_method
from perfkit.samples import CONFIG, STEPS
from perfkit.tolerance import DRIFT_TOLERANCE, STEP_TOLERANCE, excess_error, half_ulp
from perfkit.verify_checker import make_checker

__all__ = [
    "DRIFT_TOLERANCE",
    "STEP_TOLERANCE",
    "Outcome",
    "check_case",
    "check_group",
    "check_once",
    "excess_error",
    "half_ulp",
]

#: Steps that name three parts of a check of a verify case at the batch of a sweep, whose rows are many; samples of a
#: few rows take more.
SWEEP_STEPS = 24
#: Fewest steps of each part of a check (three, on a GPU four); longer windows take a window each.
MIN_STEPS = 3
#: The same of a check of verify steps, whose windows last fewer steps than they have tokens; on a GPU more.
VERIFY_STEPS, GPU_VERIFY_STEPS = 4, 14


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check found.

    Attributes:
        rel_error: relative Frobenius error of the outputs beyond their own rounding, worst step.
        reason: None, or what is wrong: the first finding.
        steps: steps compared.
        covered: what was checked, in words.
    """

    rel_error: float
    reason: str | None
    steps: int
    covered: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return self.reason is None


def check_case(
    case: Case,
    device: str,
    config: Config | None = None,
    *,
    seed: int = 0,
    count_bytes: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Outcome:
    """Check one case: desynchronize for a window, run two or three more, look at what must not change, perturb.

    On a GPU the three windows after the first are replays of two CUDA graphs, one a parity, captured once.

    Args:
        case: what to check.
        device: ``cpu`` interprets (the process must have been started so), ``cuda`` runs.
        config: the launch configuration, the default one if None.
        seed: of all random data.
        count_bytes: compare bytes to the byte; by default in the interpreter, with the steps of one window. Launches
            that are not Triton's cannot be counted, and the outcome does not say that they were.
        progress: told (steps done, steps in all).
    """
    checker = make_checker(case, device, config, seed)
    part = _part(case, checker.interprets)
    counting = checker.interprets if count_bytes is None else count_bytes
    live = np.flatnonzero(checker.live)
    graphed = not checker.interprets
    total = (4 if graphed else 3) * part
    said = {
        "outputs": True, "states": True, "flush times": checker.method.windowed, "bytes": counting,
        "acceptance": case.phase == "verify", "hand-over": True, "padding": checker.padded is not None,
        "out of step": len(live) > 1, "one graph": graphed, "perturbed": True,
    }  # fmt: skip
    covered = tuple(what for what, true in said.items() if true)
    try:
        for index in range(total):
            idle = checker.desynchronize(index, part) if index < part else None
            if graphed and index == part:
                checker.capture()
            if index == 2 * part - 1:
                checker.restart(int(live[0]))
            if index == part and case.phase == "verify":  # a step of the other parity
                checker.restart(int(live[-1]))
            checker.step(idle, counting and part - 1 <= index < 2 * part)
            if progress is not None:
                progress(index + 1, total)
        checker.finish()
        steps = checker.index
        for name in checker.remembered():
            if not checker.sees(name):
                raise Wrong(f"outputs do not change when {name} is perturbed")
    except Wrong as finding:
        return Outcome(checker.worst, str(finding), checker.index, covered)
    if not checker.counted:
        covered = tuple(what for what in covered if what != "bytes")
    return Outcome(checker.worst, None, steps, covered)


def _part(case: Case, interprets: bool) -> int:
    """Return the steps of each part of a check."""
    if case.phase == "decode":
        return max(case.window or 0, MIN_STEPS)
    steps = case.option(STEPS)
    if steps is not None:
        return max(int(steps) // 3, MIN_STEPS)
    return VERIFY_STEPS if interprets else GPU_VERIFY_STEPS


@cache
def _outcomes() -> dict[tuple[Case, str, Config, int], Outcome]:
    """Return the good outcomes of this process."""
    return {}


def check_once(
    case: Case, device: str, config: Config, *, seed: int = 0, progress: Callable[[int, int], None] | None = None
) -> Outcome:
    """Check a case unless this process has found the same kernels right at the same point; see :func:`check_case`.

    A check draws its own acceptance and puts rows out of step itself, so cases that differ in nothing else share it.
    """
    options = tuple(pair for pair in case.options if pair[0] != "alias")
    plain = replace(case, acceptance="1", flush_phase="aligned", n_layers=1, options=options)
    key = (plain, device, config, seed)
    fewer = replace(case, options=((STEPS, SWEEP_STEPS), *case.options)) if case.phase == "verify" else case
    found = _outcomes().get(key) or check_case(fewer, device, config, seed=seed, progress=progress)
    if found.ok:
        _outcomes()[key] = found
    return found


def check_group(request: Mapping[str, Any], emit: Callable[[dict[str, Any]], None], device: str) -> None:
    """Check each case of a worker's request on a device; emit one result per case.

    A case's option ``config`` names its launch configuration; without it the default one is checked.
    """
    settings = request.get("settings") or {}
    seed = int(settings.get("seed") or 0)
    for data in request["cases"]:
        case = Case.from_dict(data)

        def progress(done: int, total: int, case_id: str = case.id) -> None:
            emit({"event": "phase", "case_id": case_id, "phase": "check", "done": done, "total": total})

        progress(0, 1)
        method = get_method(case.shape.family, case.method, case.phase)
        event: dict[str, Any] = {"event": "result", "case_id": case.id, "samples": {}, "row": {}}
        reason = method.supports(case)
        if reason is not None:
            emit({**event, "status": "skipped", "reason": reason})
            continue
        chosen = case.option(CONFIG)
        config = Config.parse(chosen) if chosen else method.configs(case)[0]
        with mark(f"check/{case_name(case)}", case_id=case.id):
            outcome = check_case(case, device, config, seed=seed, progress=progress)
        row = {
            "checked": "interpreter" if device == "cpu" else "gpu", "launch_config": str(config),
            "rel_error": outcome.rel_error if outcome.ok else None, "steps": outcome.steps,
            "covered": list(outcome.covered),
        }  # fmt: skip
        gc.collect()
        emit({**event, "status": "ok" if outcome.ok else "incorrect", "reason": outcome.reason, "row": row})


def run_group(request: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Serve a request of a worker that interprets."""
    torch.set_num_threads(1)
    check_group(request, emit, "cpu")
