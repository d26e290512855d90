"""Kernels on a real GPU, in a process that does not interpret: ``python tests/gpu_checks.py PROBE``.

Prints one JSON document, a list of findings, as its last line. ``tests/test_check_gpu.py`` reads it.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch

from perfkit.check import check_case, check_group
from perfkit.checker import Checker, Wrong
from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.method import Case
from perfkit.registry import get_method, methods
from perfkit.samples import all_configs, gpu_cases
from perfkit.session import Session
from perfkit.shape import Shape
from perfkit.tolerance import DRIFT_TOLERANCE, excess_error

PLANTED = Path(__file__).resolve().with_name("planted_methods.py")
SUPER = Shape("mamba2", 128, 8, 64, 128)
GROUPED = Shape("mamba2", 16, 2, 64, 128)
Finding = dict[str, Any]


@triton.jit
def _softplus_kernel(src, dst, n, tile: tl.constexpr):
    at = tl.program_id(0) * tile + tl.arange(0, tile)
    tl.store(dst + at, softplus(tl.load(src + at, mask=at < n, other=0.0)), mask=at < n)


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def cases() -> list[Finding]:
    """Every sample of every method, in the configuration that it names, through the worker's own code."""
    found: list[Finding] = []
    for method in methods("mamba2", "decode"):
        for case in gpu_cases(method):
            name = f"{case.method} {case.shape} B{case.batch} L{case.window} {case.input_dtype} {case.state_dtype}"
            events: list[Finding] = []
            check_group({"cases": [case.to_dict()], "settings": {}}, events.append, "cuda")
            result = events[-1]
            found.append({
                "case": f"{name} {case.option('config')}", "input_dtype": case.input_dtype, "method": case.method,
                "status": result["status"], "reason": result["reason"], "checked": result["row"].get("checked"),
                "rel_error": result["row"].get("rel_error"),
            })  # fmt: skip
            free()
    return found


def _finding(name: str, run: Callable[[], Any]) -> Finding:
    try:
        return {"case": name, "status": "ok", "detail": run()}
    except Wrong as wrong:
        return {"case": name, "status": "incorrect", "detail": str(wrong)}
    finally:
        free()


def _replayed(case: Case, config: Any) -> list[int]:
    """One captured step, replayed for 3L steps with new inputs each, rows at different places of their windows."""
    checker = Checker(case, "cuda", config)
    span = case.window or 4
    for index in range(span):
        checker.step(checker.desynchronize(index, span))
    checker.capture()
    started = checker.h[checker.live].tolist()
    for _ in range(3 * span):
        checker.step()
    checker.finish()
    return [int(h) for h in started]


def _in_one_graph(case: Case, config: Any) -> float:
    """3L steps captured into one graph, replayed once; inputs stay as they are."""
    session = Session(case, "cuda", config)
    tensors, method, steps = session.tensors, session.method, 3 * (case.window or 4)
    rows = torch.arange(case.batch, device="cuda")
    origin = rows % ((case.window or 1) + 1)
    method.start(case, tensors, torch.randn(case.batch, *tensors["state"].shape[1:], device="cuda") * 0.1, origin)
    home = tensors["slots"].clone()
    for index in range(case.batch):  # row i sits out i steps
        tensors["slots"].copy_(torch.where(rows <= index, home, torch.full_like(home, -1)))
        session.step(index)
    tensors["slots"].copy_(home)
    torch.cuda.synchronize()
    state = method.committed(case, tensors, case.batch)
    graph = session.capture(range(case.batch, case.batch + steps))
    tensors["out"].fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    for _ in range(steps):
        state, out = session.family.reference(state, tensors)
    found = method.committed(case, tensors, case.batch + steps)
    error = max(excess_error(found, state, tensors["state"].dtype),
                excess_error(tensors["out"].double(), out, tensors["out"].dtype))  # fmt: skip
    if not error <= DRIFT_TOLERANCE:
        raise Wrong(f"error {error:.1e} after {steps} steps in one graph")
    return error


def graphs() -> list[Finding]:
    """Graphs serve rows that flush and rows that do not."""
    found = []
    for method in methods("mamba2", "decode"):
        case = Case(GROUPED, method.key, 6, 5 if method.windowed else None)
        for config in all_configs(method, case):
            for how in (_replayed, _in_one_graph):
                name = f"{method.key} [{config}] {how.__name__}"
                found.append(_finding(name, partial(how, case, config)))
    return found


def programs() -> list[Finding]:
    """More programs than a grid's second dimension may have, 65,535, whatever the heads per program."""
    found = []
    for method in methods("mamba2", "decode"):
        case = Case(Shape("mamba2", 128, 8, 16, 16), method.key, 5000, 3 if method.windowed else None)
        tensors = Session(case, "cuda").tensors
        launches = list(method.launches(case, method.configs(case)[0], tensors, 0))
        largest = max(int(np.prod(launch.grid)) for launch in launches)
        del tensors, launches
        free()
        outcome = check_case(case, "cuda")
        found.append({"case": method.key, "status": "ok" if outcome.ok else "incorrect", "detail": outcome.reason,
                      "programs": largest})  # fmt: skip
        free()
    return found


def _far(case: Case) -> list[int]:
    checker = Checker(case, "cuda")
    home = checker.home.tolist()
    by_slot = sorted((row for row in range(case.batch) if home[row] >= 0), key=lambda row: home[row])
    chosen = sorted([*by_slot[:2], *by_slot[-4:]])  # the lowest slots and the highest
    checker.rows = torch.tensor(chosen, device="cuda")
    checker.anchor = checker.committed()
    checker.drift = checker.anchor.clone()
    for _ in range(2 * (case.window or 4)):
        checker.step()
    checker.finish()
    return [home[row] for row in chosen]


def offsets() -> list[Finding]:
    """States past 2**31 elements: slots from 2048 on at Super's shape. Needs about 45 GB at its peak."""
    available, _ = torch.cuda.mem_get_info()
    if available < 60e9:
        return [{"case": "offsets", "status": "skipped", "detail": f"{available / 1e9:.0f} GB free, 60 needed"}]
    found = []
    for method in methods("mamba2", "decode"):
        case = Case(SUPER, method.key, 2100, 4 if method.windowed else None)
        found.append(_finding(method.key, partial(_far, case)))
    return found


def planted() -> list[Finding]:
    """Faults are found on a GPU too, where no bytes are counted."""
    found = []
    windowed = ("RIGHT", "FLUSHES_LATE", "FLUSHES_EARLY", "KEEPS_OLD_RECORDS", "ROUNDS_DT",
                "DEAF_X", "DEAF_K", "DEAF_DT", "DEAF_STATE")  # fmt: skip
    plain = ("SKIPS_A_LAUNCH", "CLOBBERS_SPARE_SLOT", "SERVES_PADDED_ROWS", "FORGETS_SKIP")
    for name in (*windowed, *plain):
        case = Case(GROUPED, f"{PLANTED}:{name}", 3, 4 if name in windowed else None)
        outcome = check_case(case, "cuda")
        found.append({"case": name, "status": "ok" if outcome.ok else "incorrect", "detail": outcome.reason})
        free()
    return found


def gates() -> list[Finding]:
    """softplus with the GPU's own exponential and division."""
    x = torch.linspace(-20, 30, 200_001, device="cuda")
    out = torch.empty_like(x)
    _softplus_kernel[(triton.cdiv(len(x), 1024),)](x, out, len(x), tile=1024)
    exact = np.logaddexp(0.0, x.double().cpu().numpy())
    error = np.abs(out.double().cpu().numpy() / exact - 1)
    at = x.cpu().numpy()
    return [{"case": f"softplus from {low}", "status": "ok", "detail": float(error[at >= low].max())}
            for low in (-20, -10, -7, 0)]  # fmt: skip


PROBES: dict[str, Callable[[], list[Finding]]] = {
    probe.__name__: probe for probe in (cases, graphs, programs, offsets, planted, gates)
}


def main(arguments: Sequence[str]) -> None:
    assert torch.cuda.is_available(), "torch sees no CUDA device"
    assert get_method("mamba2", "conventional").key == "conventional"
    with torch.no_grad():
        found = PROBES[arguments[0]]()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
