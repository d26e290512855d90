"""Kernels on a real GPU, in a process that does not interpret: ``python tests/gpu_checks.py PROBE [FAMILY METHOD]``.

A probe of verify steps takes the family and key of one method: each compiles for a minute or more.

Prints one JSON document, a list of findings, as its last line. ``tests/test_check_gpu.py`` reads it.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from planted_verify import FAULTS, TREE

from perfkit.check import check_case, check_group
from perfkit.checker import Wrong
from perfkit.checking import describe
from perfkit.kernels.gates import softplus
from perfkit.kernels.lang import tl, triton
from perfkit.method import Case, Method
from perfkit.registry import get_method, methods
from perfkit.samples import all_configs, gpu_cases, layer_shape
from perfkit.session import Session, state_extents
from perfkit.shape import Shape
from perfkit.tolerance import drift_tolerance, excess_error
from perfkit.verify_checker import PAST, make_checker

PLANTED = Path(__file__).resolve().with_name("planted_methods.py")
PLANTED_VERIFY = PLANTED.with_name("planted_verify.py")
SUPER = Shape("mamba2", 128, 8, 64, 128)
GROUPED = Shape("mamba2", 16, 2, 64, 128)
Finding = dict[str, Any]


@triton.jit
def _softplus_kernel(src, dst, n, tile: tl.constexpr):
    at = tl.program_id(0) * tile + tl.arange(0, tile)
    tl.store(dst + at, softplus(tl.load(src + at, mask=at < n, other=0.0)), mask=at < n)


def grouped(method: Method) -> Shape:
    """A layer of two groups at the width of real ones."""
    return layer_shape(method.family, 16, 2, 64, 128)


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def _cases(method: Method) -> list[Finding]:
    """Every sample of a method, in the configuration that it names, through the worker's own code."""
    found: list[Finding] = []
    for case in gpu_cases(method):
        events: list[Finding] = []
        check_group({"cases": [case.to_dict()], "settings": {}}, events.append, "cuda")
        result = events[-1]
        found.append({
            "case": describe(case), "input_dtype": case.input_dtype, "method": case.method, "tree": case.tree,
            "status": result["status"], "reason": result["reason"], "checked": result["row"].get("checked"),
            "rel_error": result["row"].get("rel_error"),
        })  # fmt: skip
        free()
    return found


def cases() -> list[Finding]:
    """Every sample of every decode method."""
    return [item for method in methods(phase="decode") for item in _cases(method)]


def verify_cases(family: str, key: str) -> list[Finding]:
    """Every sample of one verify method, trees among them where it takes them."""
    return _cases(get_method(family, key, "verify"))


def _finding(name: str, run: Callable[[], Any]) -> Finding:
    try:
        return {"case": name, "status": "ok", "detail": run()}
    except Wrong as wrong:
        return {"case": name, "status": "incorrect", "detail": str(wrong)}
    finally:
        free()


def _replayed(case: Case, config: Any) -> list[int]:
    """One captured step, replayed for 3L steps with new inputs each, rows at different places of their windows."""
    checker = make_checker(case, "cuda", config)
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
    if not error <= drift_tolerance(method.rounds(case)):
        raise Wrong(f"error {error:.1e} after {steps} steps in one graph")
    return error


def _verify_in_one_graph(case: Case, config: Any, device: str = "cuda", steps: int = 40) -> float:
    """Steps of random acceptance captured into one graph, replayed once; inputs stay as they are.

    Each step of the graph must read the acceptance of its own index. Row i sits out i steps before that.
    """
    session = Session(case, device, config)
    tensors, method, batch, tree = session.tensors, session.method, case.batch, case.nodes
    for name in session.tensors:
        if name.startswith(PAST):
            tensors[name].copy_(tensors[name.removeprefix(PAST)])
    rows = torch.arange(batch, device=device)
    ring = (case.window or 1) + case.draft_len
    method.start(case, tensors, torch.randn(batch, *state_extents(case.shape), device=device) * 0.1, rows % ring)
    every = tensors["accepted"].shape[0]
    random = np.random.default_rng(5)
    paths = np.array(tree.ancestors, dtype=np.int32)[random.integers(0, len(tree), (every, batch))]
    paths[np.arange(every)[:, None] <= np.arange(batch)] = 0  # row i first runs at step i
    masks = torch.as_tensor(paths, device=device)
    tensors["accepted"].copy_(sum((masks >> node) & 1 for node in range(len(tree))))
    if "path" in tensors:
        tensors["path"].copy_(masks)

    def follow(state: torch.Tensor, index: int) -> torch.Tensor:
        for node in range(len(tree)):
            new, _ = session.family.reference(state, session.family.token(tensors, node))
            state = torch.where(((masks[index % every] >> node) & 1 == 1)[:, None, None, None], new, state)
        return state

    home = tensors["slots"].clone()
    state = method.committed(case, tensors, 0)
    for index in range(batch):
        tensors["slots"].copy_(torch.where(rows <= index, home, torch.full_like(home, -1)))
        session.step(index)
    tensors["slots"].copy_(home)
    graph = session.capture(range(batch, batch + steps))
    tensors["out"].fill_(float("nan"))
    graph.replay()
    for index in range(batch + steps):
        state = follow(state, index)
    states: list[torch.Tensor] = []
    outs: list[torch.Tensor] = []
    for node, parent in enumerate(tree.parents):
        before = state if parent < 0 else states[parent]
        after, out = session.family.reference(before, session.family.token(tensors, node))
        states.append(after)
        outs.append(out)
    found = method.committed(case, tensors, batch + steps)
    error = max(excess_error(found, follow(state, batch + steps), tensors["state"].dtype),
                excess_error(tensors["out"].double(), torch.stack(outs, 1), tensors["out"].dtype))  # fmt: skip
    if not error <= drift_tolerance(method.rounds(case)):
        raise Wrong(f"error {error:.1e} after {steps} steps in one graph")
    return error


def verify_graphs(family: str, key: str) -> list[Finding]:
    """Graphs serve rows that flush and rows that do not, and read the acceptance of each of their steps."""
    method = get_method(family, key, "verify")
    found = []
    for tree in (None, TREE) if method.trees else (None,):
        case = Case(grouped(method), key, 6, 8 if method.windowed else None, 5 if tree else 4, tree=tree)
        configs = all_configs(method, case)
        for config in configs if tree is None else configs[:1]:
            found.append(_finding(f"{describe(case)} [{config}]", partial(_verify_in_one_graph, case, config)))
        found.append(_finding(f"{describe(case)} replayed", partial(_replayed, case, configs[0])))
    return found


def graphs() -> list[Finding]:
    """Graphs serve rows that flush and rows that do not."""
    found = []
    for method in methods(phase="decode"):
        case = Case(grouped(method), method.key, 6, 5 if method.windowed else None)
        for config in all_configs(method, case):
            for how in (_replayed, _in_one_graph):
                name = f"{method.key} {method.family} [{config}] {how.__name__}"
                found.append(_finding(name, partial(how, case, config)))
    return found


def _programs(method: Method) -> Finding:
    """More programs than a grid's second dimension may have, 65,535, whatever the heads per program."""
    decode = method.phase == "decode"
    case = Case(
        layer_shape(method.family, 128, 8, 16, 16), method.key, 5000, 3 if method.windowed else None, 1 if decode else 2
    )
    tensors = Session(case, "cuda").tensors
    launches = list(method.launches(case, method.configs(case)[0], tensors, 0))
    largest = max(int(np.prod(launch.grid)) for launch in launches)
    del tensors, launches
    free()
    outcome = check_case(case, "cuda")
    free()
    return {"case": f"{method.key} {method.family}", "status": "ok" if outcome.ok else "incorrect",
            "detail": outcome.reason, "programs": largest}  # fmt: skip


def programs() -> list[Finding]:
    """Large grids of every method, decode and verify."""
    return [_programs(method) for method in methods()]


def _far(case: Case, elements: int) -> list[int]:
    """Check the rows of the lowest and the highest slots; return where their states start, in elements."""
    checker = make_checker(case, "cuda")
    home = checker.home.tolist()
    by_slot = sorted((row for row in range(case.batch) if home[row] >= 0), key=lambda row: home[row])
    chosen = sorted([*by_slot[:2], *by_slot[-4:]])
    checker.rows = torch.tensor(chosen, device="cuda")
    checker.anchor = checker.committed()
    checker.drift = checker.anchor.clone()
    for _ in range(2 * (case.window or 4)):
        checker.step()
    checker.finish()
    return [home[row] * elements for row in chosen]


def offsets() -> list[Finding]:
    """States past 2**31 elements, at Super's shape: 2,048 states. Needs about 45 GB at its peak."""
    available, _ = torch.cuda.mem_get_info()
    if available < 60e9:
        return [{"case": "offsets", "status": "skipped", "detail": f"{available / 1e9:.0f} GB free, 60 needed"}]
    found = []
    for method in methods():
        case = Case(
            layer_shape(method.family, 128, 8, 64, 128),
            method.key,
            2100,
            4 if method.windowed else None,
            1 if method.phase == "decode" else 2,
        )
        state = method.buffers(case)["state"]
        each = state.elements // state.shape[0]
        case = replace(case, batch=2**31 // each + 50)
        found.append(_finding(f"{method.key} {method.family} {method.phase}", partial(_far, case, each)))
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


def planted_verify() -> list[Finding]:
    """The same for verify steps. What a check should find comes along."""
    found = []
    for name, window, tree, finding in (("RIGHT", None, None, ""), ("RIGHT", None, TREE, ""), *FAULTS):
        case = Case(GROUPED, f"{PLANTED_VERIFY}:{name}", 3, window, 5, tree=tree)
        outcome = check_case(case, "cuda")
        found.append({"case": name, "status": "ok" if outcome.ok else "incorrect", "detail": outcome.reason or "",
                      "finding": finding})  # fmt: skip
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


PROBES: dict[str, Callable[..., list[Finding]]] = {
    probe.__name__: probe
    for probe in (cases, verify_cases, graphs, verify_graphs, programs, offsets, planted, planted_verify, gates)
}


def main(arguments: Sequence[str]) -> None:
    assert torch.cuda.is_available(), "torch sees no CUDA device"
    assert get_method("mamba2", "conventional").key == "conventional"
    with torch.no_grad():
        found = PROBES[arguments[0]](*arguments[1:])
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
