"""The program that Nsight Compute watches: runs the counted steps of some cases, each in its NVTX range.

``python -m perfkit.nsight.target PLAN``: PLAN is JSON {events, device, seed, cases: [{case, config}]}. What happens is
told as one JSON object a line in the file ``events``, since ``ncu`` and kernels may print::

    {"event": "ready", "pid", "gpu", "l2_bytes", "nvtx"}           once; nvtx: which module marks ranges
    {"event": "begin", "case_id"}                                  the case in flight
    {"event": "step", "case_id", "range", "launches", "whole"}     a counted step ran; whole: each launch is one kernel
    {"event": "done", "case_id", "config", "config_source"}        config_source: given, tuned or default
    {"event": "failed", "case_id", "status", "reason", "fatal"}    fatal: nothing more runs in this process
    {"event": "error", "reason"}                                   nothing can run
    {"event": "end"}

Kernels are compiled, rows are handed over and primed, and the cursors are walked to the counted step outside the
ranges. Between the cases all memory goes back: Nsight Compute saves what a kernel may write before it runs it again.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from perfkit.cuda import Cuda, others_memory, out_of_memory
from perfkit.errors import DeviceError, PerfkitError, first_line, one_line
from perfkit.method import Case, Config
from perfkit.nsight.command import COUNTED
from perfkit.nsight.steps import counted_steps, range_name
from perfkit.priming import prime
from perfkit.ranges import DOMAIN
from perfkit.results import version
from perfkit.session import Session
from perfkit.tune import Store
from perfkit.tuning import Place, known

Emit = Callable[[dict[str, Any]], None]
Marker = Callable[[str], contextlib.AbstractContextManager[Any]]


def marker() -> tuple[str, Marker]:
    """Return the module that marks ranges, and what does it: nvtx in perfkit's domain, else torch's in the default one.

    Raises:
        DeviceError: neither can.
    """
    try:
        import nvtx
    except ImportError:
        try:
            with torch.cuda.nvtx.range(COUNTED):
                pass
        except RuntimeError as error:
            remedy = f"{sys.executable} -m pip install nvtx"
            raise DeviceError(f"NVTX ranges cannot be marked, so no launch would be found: {remedy}") from error
        return "torch", torch.cuda.nvtx.range
    return "nvtx", partial(nvtx.annotate, domain=DOMAIN)


class Target:
    """Runs the cases of a plan on one device.

    Args:
        device: a torch device.
        seed: as a sweep's.
        emit: takes events.
        mark: marks a range.
        place: where tuned configurations are looked up; None for nowhere.
    """

    def __init__(self, device: str, seed: int, emit: Emit, mark: Marker, place: Place | None) -> None:
        self._device, self._seed, self._emit, self._mark, self._place = device, seed, emit, mark, place

    def run(self, case: Case, given: Config | None) -> bool:
        """Run one case; return whether the process can go on."""
        self._emit({"event": "begin", "case_id": case.id})
        try:
            with torch.no_grad():
                facts = self._count(case, given)
            self._emit({"event": "done", "case_id": case.id, **facts})
            fatal = False
        except Exception as error:
            memory = out_of_memory(error)
            reason = first_line(error) + others_memory() if memory else one_line(error)
            fatal = self._poisoned()
            self._emit({"event": "failed", "case_id": case.id, "status": "oom" if memory else "error",
                        "reason": reason, "fatal": fatal})  # fmt: skip
        self._release()
        return not fatal

    def _count(self, case: Case, given: Config | None) -> dict[str, Any]:
        session = Session(case, self._device, config=given, seed=self._seed)
        source = "given"
        if given is None:
            found = known(session, self._place) if self._place is not None else None
            source = "default" if found is None or len(session.method.configs(case)) == 1 else "tuned"
            session.config = found.config if found is not None else session.config
        prime(session, self._seed)
        counted = {step.index: step for step in counted_steps(case, session.method)}
        for index in range(max(counted) + 1):
            if index not in counted:
                session.step(index)
                continue
            name = range_name(case, counted[index].kind)
            self._synchronize()
            launches = session.method.launches(case, session.config, session.tensors, index)
            with self._mark(COUNTED), self._mark(name):
                launched = [launch() for launch in launches]
                self._synchronize()
            whole = all(hasattr(kernel, "n_regs") for kernel in launched)  # Triton's; anything else may launch several
            self._emit({"event": "step", "case_id": case.id, "range": name, "launches": len(launched), "whole": whole})
        return {"config": str(session.config), "config_source": source}

    def _synchronize(self) -> None:
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _poisoned(self) -> bool:
        """Say whether the device's context is lost."""
        try:
            self._synchronize()
        except Exception:
            return True
        return False

    def _release(self) -> None:
        gc.collect()
        if self._device == "cuda":
            with contextlib.suppress(Exception):
                torch.cuda.empty_cache()


def main(argv: list[str]) -> int:
    """Run the plan."""
    plan: Mapping[str, Any] = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    with Path(plan["events"]).open("a", encoding="utf-8") as file:

        def emit(event: dict[str, Any]) -> None:
            file.write(json.dumps(event) + "\n")
            file.flush()

        device = plan["device"]
        try:
            kind, mark = marker()
            ready: dict[str, Any] = {"event": "ready", "pid": os.getpid(), "nvtx": kind, "gpu": None, "l2_bytes": None}
            place = None
            if device == "cuda":
                gpu = Cuda()
                ready |= {"gpu": gpu.name, "l2_bytes": gpu.l2_bytes}
                versions = {"torch": torch.__version__, "triton": version("triton")}
                place = Place(gpu.name, versions, gpu.clock, Store())
        except PerfkitError as error:
            emit({"event": "error", "reason": str(error)})
            return int(error.exit_code)
        emit(ready)
        target = Target(device, int(plan["seed"]), emit, mark, place)
        for item in plan["cases"]:
            config = Config.parse(item["config"]) if item.get("config") else None
            if not target.run(Case.from_dict(item["case"]), config):
                return 3
        emit({"event": "end"})
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
