"""Run by tests in a process that compiles, with either Triton; prints what it found as JSON. No GPU is needed.

As ``worker`` it goes on to answer requests, as a worker of perfkit does, of configurations that are named too.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from perfkit import compile as compiling
from perfkit import worker
from perfkit.compile import Finder, compile_case, compile_launch
from perfkit.errors import PerfkitError
from perfkit.kernels import l2
from perfkit.kernels.stamp import _stamp_kernel
from perfkit.kernels.stream import CONFIGS, PLACE, STREAMS
from perfkit.method import Case, Launch
from perfkit.registry import family, get_method
from perfkit.spec import Spec


class Hopper:
    """Stands for the driver of a GPU that is not here: enough to compile, nothing to launch."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


def stamps(targets: Sequence[int]) -> dict[str, Any]:
    """The stamp for each target, for indices that Triton might specialize."""
    found = []
    for cc in targets:
        for index in (0, 1, 5, 16):
            launch = Launch(_stamp_kernel, (1,), (Spec((64,), "int64", (1,)), index), {})
            made = compile_launch(launch, cc, assembly=True)
            found.append({"cc": cc, "timer": made.ptx.count("%globaltimer"), "stores": made.ptx.count("st.global"),
                          "spills": made.spill_stores + made.spill_loads, "kernel": made.ptx})  # fmt: skip
    kinds = {(item["cc"], item.pop("kernel")) for item in found}
    return {"kernels": len(kinds), "found": found}


def l2_reads(targets: Sequence[int]) -> list[dict[str, Any]]:
    """Reads that stay in L2, for each target and configuration: how wide they are, and what an SM must hold at once."""
    found = []
    for cc in targets:
        for config in l2.CONFIGS:
            args = (Spec((1 << 20,), "float32", (1,)), Spec((1056,), "float32", (1,)), (1 << 20) // config["tile"], 99)
            launch = Launch(l2._l2_read_kernel, (1056,), args, {"TILE": config["tile"]},
                            {"num_warps": config["warps"]})  # fmt: skip
            made = compile_launch(launch, cc, assembly=True)
            loads = re.findall(r"ld\.global[^ ]*", made.ptx)
            threads = 32 * config["warps"] * config["programs"]
            found.append({"cc": cc, "kind": "l2", "config": str(config), "accesses": len(loads),
                          "wide": sum(".cg" in load and ".v4." in load for load in loads),
                          "registers_of_sm": threads * -(-made.registers // 8) * 8,
                          "spills": made.spill_stores + made.spill_loads})  # fmt: skip
    return found


def streams(targets: Sequence[int]) -> dict[str, Any]:
    """Streams of several places: how wide their accesses are, and spills; all configurations for 9.0."""
    found = l2_reads(targets)
    for kind, cc in [*(("1r8w", cc) for cc in targets), ("4r1w", 90)]:
        kernel, places = STREAMS[kind].kernel, STREAMS[kind].places
        a = Spec((places * PLACE,), "float32", (1,))
        for config in CONFIGS if cc == 90 else CONFIGS[:1]:
            tile = {"TILE": config["tile"], "PLACES": places}
            launch = Launch(kernel, (PLACE // config["tile"],), (a, a, PLACE), tile, {"num_warps": config["warps"]})
            made = compile_launch(launch, cc, assembly=True)
            accesses = re.findall(r"(?:ld|st)\.global[^ ]*", made.ptx)
            found.append({"cc": cc, "kind": kind, "config": str(config), "accesses": len(accesses),
                          "loads": sum(access.startswith("ld") for access in accesses),
                          "wide": sum(".v4." in access for access in accesses),
                          "first": sum("evict_first" in access for access in accesses),
                          "spills": made.spill_stores + made.spill_loads})  # fmt: skip
    return {"found": found}


def ahead() -> dict[str, Any]:
    """Launches compiled in threads; one of them cannot be, one is not Triton's."""
    from perfkit.tuning import compile_launches

    driver.set_active(Hopper())
    import torch

    kernel = STREAMS["copy"].kernel
    a = torch.zeros(4096)
    launches = [Launch(kernel, (1,), (a, a, 4096), {"TILE": 1024}, {"num_warps": warps}) for warps in (1, 2, 4, 4)]
    launches.append(Launch(kernel, (1,), (a, a, 4096), {"TILE": 1000}, {"num_warps": 4}))  # not a power of two
    launches.append(Launch(print, (), ()))
    compile_launches(launches)
    cache = next(iter(kernel.device_caches.values()))[0]
    made = [item for item in cache.values() if type(item).__name__ == "CompiledKernel"]
    return {"kernels": len(made), "warps": sorted(item.metadata.num_warps for item in made)}


def run_group(request: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Answer a compile request as perfkit's worker does; ``configs`` may also name those of each case."""
    if not isinstance(request.get("configs"), list):
        compiling.run_group(request, emit)
        return
    for data, names in zip(request["cases"], request["configs"], strict=True):
        case, find = Case.from_dict(data), Finder(bool(request.get("compile", True)))
        event: dict[str, Any] = {"event": "result", "case_id": case.id, "status": "ok", "reason": None, "row": {}}
        try:
            event["row"] = {"compiled": named(case, names, request["targets"], find), "passed_over": [],
                            "missing": sorted(find.missing)}  # fmt: skip
        except PerfkitError as error:
            event |= {"status": "error", "reason": str(error)}
        emit(event)


def named(case: Case, names: Sequence[str], targets: Sequence[int], find: Finder) -> list[dict[str, Any]]:
    """What a case's kernels compile to in configurations by name, which its method has to offer."""
    method = get_method(case.shape.family, case.method, case.phase)
    offered = {str(config): config for config in method.configs(case)}
    of = family(case.shape.family)
    return [{**item.row(), "launch_config": name} for name in names
            for item in compile_case(case, method, of, offered[name], targets, find)]  # fmt: skip


if __name__ == "__main__":
    what, *given = sys.argv[1:]
    if what == "worker":
        worker.run("compile", lambda: sys.modules[__name__])
        raise SystemExit(0)
    asked = [int(cc) for cc in given]
    print(json.dumps({"stamps": partial(stamps, asked), "streams": partial(streams, asked), "ahead": ahead}[what]()))
