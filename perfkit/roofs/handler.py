"""The worker mode ``roofs``: measures this process's GPU and tells the parent as it goes.

The request is a group without cases; its settings are ``quick``, the GPU's key ``gpu``, and what the driver says of it,
``facts``. Events beside those of every worker::

    {"event": "figure", "name", "text", "total"}     one measurement, of ``total``
    {"event": "roofs", "found": {…}}                 everything, with the fields of a roofs file
    {"event": "failed", "reason"}                    why not
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from perfkit.errors import PerfkitError, one_line
from perfkit.results import version
from perfkit.roofs.document import found_data
from perfkit.roofs.points import FULL, QUICK, Bench, Plan, measure

Emit = Callable[[dict[str, Any]], None]


def info() -> dict[str, Any]:
    """Return the device's facts for the ready event.

    Raises:
        DeviceError: torch sees no GPU.
    """
    from perfkit import cuda

    return cuda.info()


def run_group(request: dict[str, Any], emit: Emit) -> None:
    """Measure, and emit what was found or why nothing was."""
    try:
        _measure(request["settings"], emit)
    except PerfkitError as error:
        emit({"event": "failed", "reason": str(error)})
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        emit({"event": "failed", "reason": one_line(error)})


def _measure(settings: dict[str, Any], emit: Emit) -> None:
    from perfkit.cuda import Cuda
    from perfkit.roofs.bench import GpuBench

    plan = QUICK if settings.get("quick") else FULL
    with Cuda().monitor() as monitor:
        answer(GpuBench(monitor, max(plan.sizes)), plan, settings, emit)


def answer(bench: Bench, plan: Plan, settings: dict[str, Any], emit: Emit) -> None:
    """Measure on a bench and emit the events."""

    def tell(name: str, text: str, total: int) -> None:
        emit({"event": "figure", "name": name, "text": text, "total": total})

    versions = {name: version(name) for name in ("torch", "triton")}
    found = measure(bench, plan, tell)
    emit({"event": "roofs", "found": found_data(settings["gpu"], {**settings["facts"], **versions}, found)})
