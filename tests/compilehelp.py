"""What tests need to compile kernels for GPUs that are not here: children that compile, one with each Triton."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from compileparts import PINNED, Asked, point

from perfkit.child import Child, Ended, worker_env
from perfkit.compile import SHARED_LIMIT, TARGETS, Compiled
from perfkit.errors import DeviceError

ROOT = Path(__file__).resolve().parent.parent
#: Seconds that a child may take to start, and between two looks for an answer, which the time of a test bounds.
START_S, WAIT_S = 60.0, 60.0


def old_python() -> Path:
    """Return where a Python that has Triton 3.6.0 is, if there is one."""
    return Path(os.environ.get("PERFKIT_TRITON36") or ROOT / ".venv-triton36" / "bin" / "python")


def python_with(triton_version: str) -> str:
    """Return a Python that has the given Triton, or skip."""
    if triton_version == PINNED:
        return sys.executable
    if not old_python().exists():
        pytest.skip(f"no environment with Triton 3.6.0 at {old_python()}: make compile-36, or set PERFKIT_TRITON36")
    return str(old_python())


def targets_of(triton_version: str) -> tuple[int, ...]:
    """Return what a Triton compiles for: the older one is what machines with compute capability 9.0 run."""
    return TARGETS if triton_version == PINNED else (90,)


def run_child(python: str, file: str, *arguments: str) -> dict[str, Any]:
    """Return what a file of the tests prints, run in a process that does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    done = subprocess.run([python, str(ROOT / "tests" / file), *arguments], env=environment, cwd=ROOT,
                          capture_output=True, text=True, timeout=250)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def start(python: str) -> Child:
    """Start a worker that compiles."""
    child = Child([python, str(ROOT / "tests" / "compile_child.py"), "worker"], worker_env("compile"))
    child.wait_ready(START_S)
    return child


def ask(child: Child, asked: Asked, **more: Any) -> dict[str, Mapping[str, Any]]:
    """Return the row of each case that a child compiled, by case id.

    Raises:
        DeviceError: a case does not compile, or the child died.
    """
    request = {"op": "compile", "group_id": asked.name, "targets": asked.targets, "configs": asked.configs,
               "cases": [case.to_dict() for case in asked.cases], **more}  # fmt: skip
    found = {}
    try:
        child.send(request)
        while (event := child.next_event(WAIT_S)) is None or event["event"] != "done":
            if event is not None and event["event"] in ("result", "error"):
                if event.get("status") != "ok":
                    raise DeviceError(f"{asked.name}: {event['reason']}")
                found[event["case_id"]] = event["row"]
    except Ended:
        raise DeviceError(f"{asked.name}: {child.death()}") from None
    return found


@functools.cache
def _child(triton_version: str) -> Child:
    """One for all tests of this process: starting takes a second."""
    child = start(python_with(triton_version))
    atexit.register(child.stop)
    return child


@functools.cache
def compiled(part: str, model: str, key: str) -> dict[str, list[tuple[Compiled, str]]]:
    """Return the kernels of a point, each with its launch configuration, by case id."""
    return answer(point(part, model, key))


def answer(asked: Asked) -> dict[str, list[tuple[Compiled, str]]]:
    """Return the kernels that are asked for, each with its launch configuration, by case id."""
    child = _child(asked.triton)
    try:
        rows = ask(child, asked)
    except BaseException:  # a test that ran out of time too: its answers are not the next one's
        child.kill()
        _child.cache_clear()
        raise
    return {case_id: [_split(item) for item in row["compiled"]] for case_id, row in rows.items()}


def kernels(part: str, model: str, key: str) -> list[tuple[Compiled, str]]:
    """Return the kernels of all cases of a point, each with its launch configuration."""
    return [item for found in compiled(part, model, key).values() for item in found]


def _split(row: Mapping[str, Any]) -> tuple[Compiled, str]:
    return Compiled(**{name: value for name, value in row.items() if name != "launch_config"}), row["launch_config"]


def check_limits(item: Compiled) -> None:
    """Assert that a kernel fits into its target."""
    assert 0 < item.registers <= 255
    assert item.shared_bytes <= SHARED_LIMIT[item.cc], item
