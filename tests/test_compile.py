"""Compiling for GPUs that are not here: spills are seen, the specialization is the JIT's, results are kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfkit import ptxas
from perfkit.cache import load, save
from perfkit.compile import Compiled, assert_no_spills, compile_launch, exempt
from perfkit.compiled import cache_dir, table
from perfkit.errors import DeviceError, IncorrectError
from perfkit.method import Case, Config, Launch
from perfkit.shape import Shape

SUPER = Shape("mamba2", 128, 8, 64, 128)
PLANTED = Path(__file__).with_name("planted_kernels.py")


def compiled(data: dict[str, Any]) -> Compiled:
    assert "error" not in data, data
    return Compiled(**data)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a child that does not interpret compiled, cold."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PERFKIT_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    done = subprocess.run([sys.executable, str(PLANTED)], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_planted_spill_is_reported_and_fails_the_check(planted: dict[str, Any]) -> None:
    bad = compiled(planted["spilling"])
    assert bad.spill_stores > 100 and bad.spill_loads > 100 and bad.stack_bytes > 100
    with pytest.raises(IncorrectError, match=r"_spilling_kernel sm_90 .*num_warps=1\] spills \d+\+\d+ bytes"):
        assert_no_spills([compiled(planted["clean 90"]), bad])


def test_the_same_tile_on_eight_warps_does_not_spill(planted: dict[str, Any]) -> None:
    good = compiled(planted["spilling, 8 warps"])
    assert good.spills == 0 and good.registers < 255 and good.num_warps == 8
    assert_no_spills([good])


@pytest.mark.parametrize("cc", [80, 90, 100, 103, 120])
def test_every_target_compiles(planted: dict[str, Any], cc: int) -> None:
    found = compiled(planted[f"clean {cc}"])
    assert found.cc == cc and found.kernel == "_clean_kernel"
    assert f".target sm_{cc}" in found.ptx
    assert 8 <= found.registers <= 64 and found.cubin_bytes > 1000
    assert_no_spills([found])


def parameters(ptx: str) -> int:
    """Parameters of the kernel that are the caller's: Triton appends two scratch pointers."""
    head = ptx[ptx.index(".entry") : ptx.index("{")]
    return head.count(".param") - 2


def test_specialization_is_the_jits(planted: dict[str, Any]) -> None:
    """A stride of 1 becomes a constant unless excluded, and 16-byte alignment gives 16-byte loads."""
    assert parameters(planted["stride 512"]["ptx"]) == 3
    assert parameters(planted["stride 1"]["ptx"]) == 2
    assert parameters(planted["stride 1, general"]["ptx"]) == 3
    assert "ld.global.v4" in planted["stride 512"]["ptx"]
    assert "ld.global.v4" not in planted["shifted"]["ptx"]
    assert "ld.global.v4" not in planted["stride 1"]["ptx"]


def test_fp8_needs_a_newer_target(planted: dict[str, Any]) -> None:
    assert planted["fp8 on 80"]["error"] == "DeviceError"
    assert "_whole_kernel does not compile for sm_80" in planted["fp8 on 80"]["message"]
    assert compiled(planted["fp8 on 90"]).registers > 0
    fp8 = Case(SUPER, "replay", 1, window=16, read_dtype="float8_e4m3fn")
    assert exempt(fp8, 80) == "float8_e4m3fn needs compute capability 8.9, not 8.0"
    assert exempt(fp8, 90) is None and exempt(Case(SUPER, "conventional", 1), 80) is None


def test_callables_are_refused(planted: dict[str, Any]) -> None:
    assert planted["a callable"] == {
        "error": "InputError",
        "message": "kernel: 'print': is not a Triton function, so it cannot be compiled ahead",
    }


def test_results_are_kept_and_a_broken_file_is_made_anew(planted: dict[str, Any]) -> None:
    assert planted["cache"]["files"] == sum("kernel" in item for item in planted.values())
    assert planted["cache"]["unchanged"] and planted["cache"]["equal"]


def test_an_interpreting_process_refuses() -> None:
    import triton

    @triton.jit
    def _any_kernel(src):
        pass

    with pytest.raises(DeviceError, match="interprets kernels and cannot compile"):
        compile_launch(Launch(_any_kernel, (1,), (1,)), 90)


LOG = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_flush_kernel' for 'sm_90a'
ptxas info    : Function properties for _flush_kernel
    1064 bytes stack frame, 1408 bytes spill stores, 1512 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 1064 bytes cumulative stack size, 2048 bytes smem
ptxas info    : Compile time = 8.929 ms
"""


def test_ptxas_log() -> None:
    assert ptxas.parse(LOG) == ptxas.Resources(255, 1408, 1512, 1064, 2048)
    clean = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n Used 32 registers, used 1 barriers"
    assert ptxas.parse(clean) == ptxas.Resources(32, 0, 0, 0, 0)


@pytest.mark.parametrize("log", ["", "ptxas info : 0 bytes gmem", "Used 32 registers"])
def test_a_silent_log_is_not_no_spills(log: str) -> None:
    with pytest.raises(DeviceError, match="printed no resources"):
        ptxas.parse(log)


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "perfkit" / "compiled"
    monkeypatch.setenv("PERFKIT_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own" / "compiled"


def test_cache_files(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "key.json"
    assert load(path) is None
    save(path, {"registers": 40})
    assert load(path) == {"registers": 40} and [item.name for item in path.parent.iterdir()] == ["key.json"]
    path.write_text("[1]", encoding="utf-8")
    assert load(path) is None
    blocked = tmp_path / "file"
    blocked.touch()
    save(blocked / "key.json", {})  # a cache that cannot be written is no error


def test_table() -> None:
    row = {"kernel": "_k", "cc": 90, "registers": 40, "spill_stores": 0, "spill_loads": 8, "triton": "3.7.1"}
    head, line = table([row]).splitlines()
    assert head.split()[:4] == ["kernel", "cc", "launch_config", "registers"]
    assert line.split() == ["_k", "90", "40", "0", "8", "3.7.1"]
    assert head.index("registers") == line.index("40")


def test_a_target_where_the_default_spills_is_judged_by_what_the_tuner_would_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from perfkit import compile as compiling
    from perfkit.registry import get_method

    method = get_method("mamba2", "conventional")
    case = Case(Shape("mamba2", 2, 1, 16, 16), "conventional", 3)
    first, second, *_ = method.configs(case)
    spilling = {(first, 100), (first, 120), (second, 120)}

    @dataclass(frozen=True)
    class Made:
        registers: int
        spill_stores: int
        spill_loads: int = 0

    def made(_case: Case, _method: Any, _family: Any, config: Config, targets: Sequence[int], _find: Any) -> list[Made]:
        return [Made(255, 8 if (config, target) in spilling or target == 80 else 0) for target in targets]

    monkeypatch.setattr(compiling, "compile_case", made)
    found = compiling._compiled(case, method, (90, 100, 120, 80), "usable", compile_launch)
    assert [item.spill_stores for item in found[first]] == [0, 8]  # on 90, and on 80, where all of them spill
    assert [item.spill_stores for item in found[second]] == [0]  # on 100
    third = next(config for config in found if config not in (first, second))
    assert [item.spill_stores for item in found[third]] == [0]  # on 120
