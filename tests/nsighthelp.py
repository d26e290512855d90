"""What tests of counters share: an installed stand-in for Nsight Compute, and a small plan on a made-up GPU."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perfkit.cases import Group, build_groups, parse_spec
from perfkit.nsight.metrics import select
from perfkit.nsight.steps import counted_steps, exact_step, range_name
from perfkit.profiles import load_model, to_dict
from perfkit.profiling import asked_alone, method_of
from perfkit.sweep import Sweep

ROOT = Path(__file__).resolve().parent.parent
GPU = {"key": "h200-sxm", "name": "NVIDIA H200", "uuid": "GPU-1a2b3c4d", "driver": "580.159"}
#: The stub of Nsight Compute's module: the same calls, over the stand-in's JSON.
STUB = """
import json


def load_report(path):
    with open(path) as file:
        return Context(json.load(file))


class Context:
    def __init__(self, launches):
        self._launches = launches

    def num_ranges(self):
        return 1

    def range_by_idx(self, index):
        return self

    def num_actions(self):
        return len(self._launches)

    def action_by_idx(self, index):
        return Action(self._launches[index])


class Action:
    def __init__(self, launch):
        self._launch = launch

    def name(self):
        return self._launch["kernel"]

    def metric_names(self):
        return tuple(self._launch["values"])

    def metric_by_name(self, name):
        return Metric(*self._launch["values"][name]) if name in self._launch["values"] else None

    def nvtx_state(self):
        return State(self._launch["ranges"])


class Metric:
    def __init__(self, value, unit):
        self._value, self._unit = value, unit

    def value(self):
        return self._value

    def unit(self):
        return self._unit


class State:
    def __init__(self, ranges):
        self._ranges = ranges

    def domains(self):
        return (0, 7)

    def domain_by_id(self, domain):
        return Domain(self._ranges if domain == 7 else ())


class Domain:
    def __init__(self, ranges):
        self._ranges = ranges

    def name(self):
        return "perfkit" if self._ranges else "<default domain>"

    def push_pop_ranges(self):
        return tuple(self._ranges)
"""


def install(folder: Path) -> Path:
    """Install the stand-in under a folder as Nsight Compute would be; return the path of its ncu."""
    home = folder / "nsight-compute-2025.3.1"
    (home / "extras/python").mkdir(parents=True)
    (home / "extras/python/ncu_report.py").write_text(STUB)
    ncu = home / "ncu"
    version = "NVIDIA (R) Nsight Compute Command Line Profiler\nVersion 2025.3.1.0 (build 36398880) (public-release)"
    ncu.write_text(f"#!/bin/sh\nif [ \"$1\" = --version ]; then echo '{version}'; exit 0; fi\n"
                   f"exec {sys.executable} {ROOT}/tests/standin_ncu.py \"$@\"\n")  # fmt: skip
    ncu.chmod(0o755)
    return ncu


def small_plan(
    method: str = "all", draft: str = "1,2", *, batch: str = "64", accepted: str = "1", **settings: Any
) -> Sweep:
    """A plan of few cases on a made-up H200."""
    model = load_model("nemotron-super")
    spec = parse_spec(preset="default", method=method, batch=batch, window="16", draft=draft,
                      accepted=accepted if draft != "1" else None, model_state_dtype=model.state_dtype)  # fmt: skip
    groups = asked_alone(build_groups(model.shape, spec), spec.methods, spec.drafts)
    defaults = {"seed": 0, "cache_control": "all", "clock_control": "none", "metrics": list(select("all")),
                "configs": {}}  # fmt: skip
    return Sweep("measure", "cuda", to_dict(model), GPU, groups, defaults | settings)


def facts(path: Path, groups: Iterable[Group]) -> Path:
    """Write what the stand-in plays: of each case its counted steps, as methods declare them."""
    found = {}
    for case in (case for group in groups for case in group.cases):
        method = method_of(case)
        steps = []
        for step in counted_steps(case, method):
            exact = exact_step(case, method, step, 0)
            steps.append({"kind": step.kind, "range": range_name(case, step.kind), "launches": int(exact.launches),
                          "read": float(exact.bytes_read), "write": float(exact.bytes_write)})  # fmt: skip
        found[json.dumps(case.to_dict(), sort_keys=True)] = {
            "case_id": case.id, "method": case.method, "config": str(method.configs(case)[0]), "steps": steps,
        }  # fmt: skip
    path.write_text(json.dumps(found))
    return path


def alive(pids: Path, within_s: float = 5.0) -> list[int]:
    """Which of the processes in a file still run; one that nobody has waited for yet does not.

    A signal takes its time on a busy machine.
    """
    until = time.monotonic() + within_s
    found = list(map(int, pids.read_text().split() if pids.exists() else ()))
    while found and time.monotonic() < until:
        found = [pid for pid in found if _runs(Path(f"/proc/{pid}/stat"))]
        time.sleep(0.02)
    return found


def _runs(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
