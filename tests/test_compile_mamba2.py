"""The shipped Mamba-2 kernels, compiled for GPUs that are not here, by both supported Triton versions: no spills.

A child process per Triton version compiles (this one interprets). Every configuration that the tuner may choose is
compiled for compute capability 9.0, the defaults also for 8.0, 10.0, 10.3 and 12.0.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfkit.compile import SHARED_LIMIT, TARGETS, Compiled, assert_no_spills
from perfkit.method import Case
from perfkit.registry import methods
from perfkit.shape import Shape

ROOT = Path(__file__).resolve().parent.parent
SHAPES = {"nemotron-super": Shape("mamba2", 128, 8, 64, 128), "nemotron-nano": Shape("mamba2", 96, 8, 80, 128)}
MODELS = tuple(SHAPES)


@dataclass(frozen=True)
class Part:
    """What one request compiles; batches 1 and 256, which have different configurations."""

    triton: str
    targets: tuple[int, ...]
    configs: str
    windows: tuple[int, ...] = (16,)
    models: tuple[str, ...] = MODELS


PINNED, OLD = "pinned", "3.6.0"
#: A kernel takes about 0.3 s to compile, so the old Triton does less: defaults, and one shape for other GPUs.
PARTS = {
    "tuned": Part(PINNED, (90,), "all"),
    "other GPUs": Part(PINNED, (80, 100, 103, 120), "default"),
    "other windows": Part(PINNED, (90,), "default", (8, 32)),
    "old Triton": Part(OLD, (90,), "default"),
    "old Triton, other GPUs": Part(OLD, (80, 100, 103, 120), "default", models=("nemotron-super",)),
}
METHODS = {method.key: method for method in methods("mamba2", "decode")}
POINTS = [(part, model, key) for part in PARTS for model in PARTS[part].models for key in METHODS]


def cases(part: str, model: str, key: str) -> list[Case]:
    windows = PARTS[part].windows if METHODS[key].windowed else (None,)
    return [Case(SHAPES[model], key, batch, window) for batch in (1, 256) for window in windows]


def python_with(triton_version: str) -> str:
    """Return a Python that has the given Triton, or skip."""
    if triton_version == PINNED:
        return sys.executable
    path = Path(os.environ.get("PERFKIT_TRITON36") or ROOT / ".venv-triton36" / "bin" / "python")
    if not path.exists():
        pytest.skip(f"no environment with Triton 3.6.0 at {path}: make compile-36, or set PERFKIT_TRITON36")
    return str(path)


@functools.cache
def compiled(triton_version: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Compile everything with one Triton, in one child; returns events by (part, case id)."""
    requests = [
        {"op": "compile", "group_id": name, "targets": part.targets, "configs": part.configs,
         "cases": [case.to_dict() for model in part.models for key in METHODS for case in cases(name, model, key)]}
        for name, part in PARTS.items() if part.triton == triton_version
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(ROOT)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    command = [python_with(triton_version), "-m", "perfkit.worker", "--mode", "compile"]
    # The worker ends at once when its stdin closes, so that stays open until the last answer is read.
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        for request in requests:
            child.stdin.write(json.dumps(request) + "\n")
            child.stdin.flush()
            for line in child.stdout:
                event = json.loads(line)
                assert event["event"] != "error", event
                if event["event"] == "result":
                    found[request["group_id"], event["case_id"]] = event
                if event["event"] == "done":
                    break
        child.stdin.write('{"op": "quit"}\n')
    assert child.returncode == 0
    return found


def kernels(part: str, model: str, key: str) -> list[tuple[Compiled, str]]:
    rows = []
    for case in cases(part, model, key):
        event = compiled(PARTS[part].triton)[part, case.id]
        assert event["status"] == "ok", event["reason"]
        rows += event["row"]["compiled"]
    return [(Compiled(**{k: v for k, v in row.items() if k != "launch_config"}), row["launch_config"]) for row in rows]


@pytest.mark.parametrize(("part", "model", "key"), POINTS)
def test_no_spills(part: str, model: str, key: str) -> None:
    found = kernels(part, model, key)
    assert {item.cc for item, _ in found} == set(PARTS[part].targets)
    assert_no_spills(dict.fromkeys(item for item, _ in found))
    for item, _ in found:
        assert 0 < item.registers <= 255
        assert item.shared_bytes <= SHARED_LIMIT[item.cc], item
        assert PARTS[part].triton in (PINNED, item.triton)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("key", METHODS)
def test_every_configuration_of_the_tuner_is_compiled(model: str, key: str) -> None:
    wanted = {str(config) for case in cases("tuned", model, key) for config in METHODS[key].configs(case)}
    assert {config for _, config in kernels("tuned", model, key)} == wanted
    assert len(wanted) > 3


@pytest.mark.parametrize("version", [PINNED, OLD])
def test_targets_are_all_covered(version: str) -> None:
    assert {cc for part in PARTS.values() if part.triton == version for cc in part.targets} == set(TARGETS)


def run_table(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "perfkit.compile", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


def test_table_of_registers() -> None:
    done = run_table("--table", "--method", "conventional", "--targets", "90")
    assert done.returncode == 0, done.stderr
    head, line = done.stdout.splitlines()
    columns = ["kernel", "cc", "launch_config", "registers", "shared_bytes", "spill_stores", "spill_loads"]
    assert head.split()[:7] == columns
    assert line.startswith("_conventional_decode_kernel  90  ")
    own = next(item for item, _ in kernels("tuned", "nemotron-super", "conventional") if f"  {item.registers} " in line)
    assert own.spills == 0


def test_table_refuses_an_unknown_model_in_one_line() -> None:
    done = run_table("--model", "no-such-model")
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "no-such-model" in done.stderr
