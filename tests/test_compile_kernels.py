"""All kernels, compiled for GPUs that are not here, by both supported Triton versions: no spills.

Children compile (this process interprets) what does not ship compiled. What is compiled stands in compileparts.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from compilehelp import ROOT, check_limits, compiled, kernels
from compileparts import FALLBACKS, MAMBA2, OLD, PARTS, PINNED, POINTS, SUPER, cases, methods_of

from perfkit.compile import TARGETS, assert_no_spills
from perfkit.method import Phase

PHASES: tuple[Phase, ...] = ("decode", "verify")
#: Bytes a thread that a default of Mamba-2 stores because registers ran out, at most, by (part, model, kernel, target).
#: Replay verify's defaults are the fastest that were measured on compute capability 9.0, where they spill nothing. The
#: tuner drops what spills on the GPU at hand, and a configuration that spills nothing there is offered.
ALLOWED = {
    ("verify, other GPUs", SUPER, "_replay_output_kernel", 100): 36,
    ("verify, other GPUs", SUPER, "_replay_output_kernel", 103): 28,
    ("verify, other GPUs", SUPER, "_replay_output_kernel", 120): 40,
}


@pytest.mark.parametrize(("part", "model", "key"), [names for names in POINTS if names[0] != FALLBACKS])
def test_no_spills(part: str, model: str, key: str) -> None:
    found = [item for item, _ in kernels(part, model, key)]
    assert {item.cc for item in found} == set(PARTS[part].targets)
    for item in found:
        check_limits(item)
        assert PARTS[part].triton in (PINNED, item.triton)
    allowed = {item: ALLOWED.get((part, model, item.kernel, item.cc), 0) for item in found}
    assert_no_spills(item for item, bytes_ in allowed.items() if item.spill_stores > bytes_ or not bytes_)


def test_what_is_allowed_still_spills_and_spills_nothing_on_the_gpu_that_was_measured() -> None:
    for (part, model, kernel, cc), stored in ALLOWED.items():
        assert cc != 90
        found = [item for item, _ in kernels(part, model, "replay") if (item.kernel, item.cc) == (kernel, cc)]
        assert 0 < max(item.spill_stores for item in found) <= stored, (part, model, kernel, cc)


def test_where_a_default_spills_another_configuration_does_not() -> None:
    for found in compiled(FALLBACKS, SUPER, "replay").values():
        spills: Counter[tuple[int, str]] = Counter()
        for item, config in found:
            check_limits(item)
            spills[item.cc, config] += item.spills
        assert {cc for (cc, _), spilled in spills.items() if not spilled} == set(PARTS[FALLBACKS].targets), spills


@pytest.mark.parametrize(("part", "model", "key"), [names for names in POINTS if PARTS[names[0]].targets == (90,)
                                                    and PARTS[names[0]].configs == "all"])  # fmt: skip
def test_every_configuration_of_the_tuner_is_compiled(part: str, model: str, key: str) -> None:
    method = next(method for method in methods_of(part, model) if method.key == key)
    wanted = {str(config) for case in cases(part, model, key) for config in method.configs(case)}
    assert {config for _, config in kernels(part, model, key)} == wanted
    assert len(wanted) > (3 if model in MAMBA2 else 0)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("version", "targets"), [(PINNED, set(TARGETS)), (OLD, {90})])
def test_targets_are_all_covered(version: str, targets: set[int], phase: Phase) -> None:
    for family in ("mamba2", "gdn", "kda"):
        found = [part for part, model, _ in POINTS if family_of(part, model) == family]
        parts = [PARTS[part] for part in found if (PARTS[part].triton, PARTS[part].phase) == (version, phase)]
        assert {cc for part in parts for cc in part.targets} == targets


def family_of(part: str, model: str) -> str:
    return methods_of(part, model)[0].family


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
    own = next(item for item, _ in kernels("decode", SUPER, "conventional") if f"  {item.registers} " in line)
    assert own.spills == 0


def test_table_refuses_an_unknown_model_in_one_line() -> None:
    done = run_table("--model", "no-such-model")
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and "no-such-model" in done.stderr
