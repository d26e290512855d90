"""What tests need to compile kernels for GPUs that are not here: a child that compiles, with either Triton."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from perfkit.compile import SHARED_LIMIT, Compiled
from perfkit.method import Case

ROOT = Path(__file__).resolve().parent.parent
PINNED, OLD = "pinned", "3.6.0"


def python_with(triton_version: str) -> str:
    """Return a Python that has the given Triton, or skip."""
    if triton_version == PINNED:
        return sys.executable
    path = Path(os.environ.get("PERFKIT_TRITON36") or ROOT / ".venv-triton36" / "bin" / "python")
    if not path.exists():
        pytest.skip(f"no environment with Triton 3.6.0 at {path}: make compile-36, or set PERFKIT_TRITON36")
    return str(path)


def compiled(
    triton_version: str, cases: Iterable[Case], targets: Sequence[int], configs: str
) -> dict[str, list[tuple[Compiled, str]]]:
    """Return what a child compiles, with the launch configuration of each kernel, by case id.

    ``configs``: default, all or usable. A test's time bounds what the child does.
    """
    request = {"op": "compile", "group_id": "test", "targets": list(targets), "configs": configs,
               "cases": [case.to_dict() for case in cases]}  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    found: dict[str, list[tuple[Compiled, str]]] = {}
    command = [python_with(triton_version), "-m", "perfkit.worker", "--mode", "compile"]
    # The worker ends at once when its stdin closes, so that stays open until the last answer is read.
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
        for line in child.stdout:
            event = json.loads(line)
            assert event["event"] != "error", event
            if event["event"] == "result":
                assert event["status"] == "ok", event["reason"]
                found[event["case_id"]] = [
                    (Compiled(**{name: value for name, value in row.items() if name != "launch_config"}),
                     row["launch_config"]) for row in event["row"]["compiled"]
                ]  # fmt: skip
            if event["event"] == "done":
                break
        child.stdin.write('{"op": "quit"}\n')
    assert child.returncode == 0
    return found


def check_limits(item: Compiled) -> None:
    """Assert that a kernel fits into its target."""
    assert 0 < item.registers <= 255
    assert item.shared_bytes <= SHARED_LIMIT[item.cc], item
