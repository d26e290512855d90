"""Whole decode steps of published cells: vLLM's step with the published speedup of the kernel in it.

What goes in: shapes and formats of the models, datasheet rates, the published bandwidth of vLLM's kernels
(:func:`perfkit.paper.kernels.bandwidth_gb_s`, for weights, keys and values too), the published speedup of the kernel,
and the engine's own time, fitted to other cells (:mod:`perfkit.paper.fit`). Nothing is adjusted to the cell itself.

Whole steps ran one prompt of a dozen tokens B times for 1,000 steps (benchmarks/replayssm/e2e_decode_speedup.py of the
authors' fork), so rows pick the same experts, and a request has 513 tokens on average.

Source: paper, App. E.2.1; vLLM pull requests 48018, 48792.
"""

from __future__ import annotations

from functools import cache

from perfkit.paper.kernels import TUNED, bandwidth_gb_s, conventional_us, kernel_speedup, nearest_speedup, speedup_range
from perfkit.paper.ours import Predicted
from perfkit.profiles import load_gpu, load_model
from perfkit.profiles.published import PaperCell
from perfkit.roofline import (
    NO_OVERHEADS,
    OVERHEAD_ESTIMATES,
    Overheads,
    StepModel,
    WholeStep,
    shipped_roofs,
    step_model,
)

VLLM = OVERHEAD_ESTIMATES["vllm"]
#: Tokens of a request in a whole step, on average.
CONTEXT = 513
#: The kernel's speedup levels off from here on (paper, E.2.1).
PLATEAU = 128
SINGLE_MODELS = "not predicted; a range over models, each of which stands by itself"
NO_KERNEL = "not predicted; the kernel's speedup there is not published"


@cache
def vllm_step(model: str, gpu: str, overheads: Overheads = VLLM) -> StepModel:
    """Return what a step of vLLM is made of, for a model on a GPU of the paper."""
    # Formats of keys and values: what the checkpoints say.
    kv_dtype = "float8_e4m3fn" if load_model(model).weight_dtype == "float4_e2m1" else "bfloat16"
    return step_model(load_model(model), load_gpu(gpu), read_gb_s=bandwidth_gb_s(gpu), kv_dtype=kv_dtype,
                      overheads=overheads)  # fmt: skip


def step_value(cell: PaperCell) -> Predicted | str:
    """Return ours for a published whole step, or why there is none."""
    if cell.quantity == "step_crossover_tokens":
        tokens = _crossover(cell)
        return Predicted(low=tokens, high=tokens, basis="vLLM's conventional kernel at its published bandwidth, "
                         "attention at the datasheet's read roof")  # fmt: skip
    if len(cell.models) > 1:
        return SINGLE_MODELS
    found = step_speedup(cell)
    if found is None:
        return NO_KERNEL
    return Predicted(low=found[0], high=found[1], basis=_basis(cell))


def step_speedup(
    cell: PaperCell, *, overheads: Overheads = VLLM, routing: str | None = None, slowdown: float = 1.0
) -> tuple[float, float] | None:
    """Return the least and largest whole-step speedup by what is published of the kernel; None where nothing is.

    Args:
        cell: a published whole step of one model.
        overheads: the engine's own time.
        routing: how rows pick experts, in place of the published way.
        slowdown: of the conventional kernel inside the model, and of that alone.
    """
    kernels = _kernels(cell)
    if not kernels:
        return None
    found = []
    for tuned, over in kernels:
        step, replay = _step(cell, overheads, routing or str(cell.routing), tuned)
        base = step.rest + replay * over * slowdown
        found.append(float(base / (step.rest + replay)))
    return min(found), max(found)


def _step(cell: PaperCell, overheads: Overheads, routing: str, tuned: float) -> tuple[WholeStep, float]:
    """Return a step of the tuned baseline, and the time of all layers' replay kernels that are ``tuned`` as fast."""
    model, gpu, batch = cell.models[0], str(cell.gpu), cell.batches[0]
    layer = conventional_us(model, gpu, batch, str(cell.state_dtype))
    step = vllm_step(model, gpu, overheads).step(layer, batch, context=CONTEXT, routing=routing)
    return step, float(step.ssm) / tuned


def _kernels(cell: PaperCell) -> list[tuple[float, float]]:
    """Return (speedup over the tuned baseline, speedup over the cell's), one pair or the two ends of a range."""
    at = (cell.models[0], str(cell.gpu), cell.batches[0], str(cell.state_dtype))
    tuned, over = (_speedup(at, baseline) for baseline in (TUNED, str(cell.baseline)))
    if tuned and over:
        return [(tuned[0], over[0])]
    if cell.baseline == TUNED and cell.state_dtype == "float32" and cell.batches[0] >= PLATEAU:
        least, most = speedup_range()
        # Qwen3.5-122B levels off by what is published of its kernel at B = 512.
        own = kernel_speedup(at[0], at[1], 512, at[3], TUNED)
        return [(end, end) for end in (least, own or most)]
    return []


def _speedup(at: tuple[str, str, int, str], baseline: str) -> tuple[float, int] | None:
    """Return the published speedup at the batch, or where it has levelled off, and the batch that it is of."""
    found = nearest_speedup(*at, baseline)
    return found if found and (found[1] == at[2] or found[1] >= PLATEAU) else None


def _basis(cell: PaperCell) -> str | None:
    batch = cell.batches[0]
    found = _speedup((cell.models[0], str(cell.gpu), batch, str(cell.state_dtype)), str(cell.baseline))
    if found is None or (found[1] != batch and len(_kernels(cell)) > 1):
        low, high = (end for _, end in _kernels(cell))
        most = "the most" if high == speedup_range()[1] else "its own at B = 512"
        return (f"the kernel's speedup is not published: {low:g}, the least of the four models' at B = 256, to "
                f"{high:g}, {most}")  # fmt: skip
    if found[1] != batch:
        return f"the kernel's speedup is not published at B = {batch}: {found[0]:g} at {found[1]} stands in"
    return None


def step_cause(cell: PaperCell, ours: Predicted) -> str | None:
    """Say what the same step gives under other assumptions, and what it would take where none of them is enough."""
    if cell.low is None or cell.quantity != "step_speedup":
        return None
    said = []
    if load_model(cell.models[0]).n_moe_layers:
        other = "independent" if cell.routing == "identical" else "identical"
        said.append(f"{other} routing would give {_range(step_speedup(cell, routing=other))}")
    said.append(f"no engine's time {_range(step_speedup(cell, overheads=NO_OVERHEADS))}")
    if ours.high < cell.low:
        most = max(over for _, over in _kernels(cell))
        said.append(f"{_slowdown(cell):.2f} times the conventional kernel's time inside the model would land it")
        if cell.low > most:
            said.append(f"no step gains more than its kernel, {most:g}")
    return "; ".join(said)


def _slowdown(cell: PaperCell) -> float:
    """Return by how much the conventional kernel alone would have to be slower for the published speedup."""
    assert cell.low is not None
    tuned, over = max(_kernels(cell), key=lambda pair: pair[1])
    step, replay = _step(cell, VLLM, str(cell.routing), tuned)
    return float((cell.low * (step.rest + replay) - step.rest) / (replay * over))


def _range(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return "-"
    low, high = (f"{end:.2f}" for end in ends)
    return low if low == high else f"{low}..{high}"


def _crossover(cell: PaperCell) -> float:
    model, gpu = load_model(cell.models[0]), load_gpu(str(cell.gpu))
    step = step_model(model, gpu, roofs=shipped_roofs(gpu))
    layer = conventional_us(model.key, gpu.key, cell.batches[0], str(cell.state_dtype))
    return float(step.crossover_tokens(layer, cell.batches[0]))
