"""Others' kernels where they were published: bandwidths, decode steps, speedups, and times carried to another GPU.

Source: paper, App. A, App. E.2.1; vLLM pull requests 48018, 48792.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from perfkit.profiles import Gpu, load_gpu, load_model
from perfkit.profiles.implementations import Timed, read_implementations
from perfkit.profiles.published import PaperCell, load_paper
from perfkit.roofline import shipped_roofs
from perfkit.roofline.implementations import bound, carried_over, load_implementations, step_counts
from perfkit.shape import DTYPE_BYTES

#: The publications' name of each implementation whose kernels of another GPU are known.
NAMES = {
    "vLLM": "vllm",
    "STree (b9a0c24)": "stree",
    "Snakes and Ladders in STree (b9a0c24)": "stree",
    "The Mamba in the Llama (b702a3e)": "mamba-in-the-llama",
}
TUNED = "conventional, tuned"


@cache
def bandwidth_gb_s(gpu: str) -> float:
    """Return the bandwidth that vLLM's kernels reach at large batches on a GPU of the paper, 10^9 bytes per second.

    H100: 0.85 of 3.35 TB/s, conventional decode. B300: 6.5 TB/s, 831 us of snapshots at T = 4.
    """
    timed = max((one for one in read_implementations() if one.impl == "vllm" and one.gpu == gpu),
                key=lambda one: one.batch)  # fmt: skip
    moved = step_counts(load_model(timed.model).shape, timed.method, timed.batch, timed.draft_len).total
    return float(moved) / bound(timed).time_us / 1e3


def conventional_us(model: str, gpu: str, batch: int, state_dtype: str = "float32") -> float:
    """Return the time of vLLM's tuned conventional decode step of one layer.

    Where the kernel was timed on the GPU by batch, the fit to that; an FP16 state counts as reaching the same share of
    the roof. Where it was not, bytes over :func:`bandwidth_gb_s`, which is too fast for small batches.
    """
    shape, roofs = load_model(model).shape, shipped_roofs(load_gpu(gpu))
    counts = step_counts(shape, "conventional", batch, element_bytes=DTYPE_BYTES[state_dtype])
    for fit in _fits():
        if (fit["gpu"], fit["method"]) == (gpu, "conventional"):
            own = {name: item["value"] for name, item in fit["parameters"].items()}
            body = float(roofs.time_us(*counts)) / own["efficiency"]
            return float(roofs.graph_node_us + own.get("overhead_us", 0.0) + body)
    return float(counts.total) / bandwidth_gb_s(gpu) / 1e3


@cache
def _fits() -> tuple[dict[str, Any], ...]:
    return load_implementations("vllm")


def kernel_speedup(model: str, gpu: str, batch: int, state_dtype: str, baseline: str) -> float | None:
    """Return the published speedup of replay's decode kernel in vLLM at L = 16; None where there is none."""
    return _speedups().get((model, gpu, batch, state_dtype, baseline))


def nearest_speedup(model: str, gpu: str, batch: int, state_dtype: str, baseline: str) -> tuple[float, int] | None:
    """Return the speedup at the largest published batch up to ``batch``, and that batch; None where there is none."""
    known = {key[2]: value for key, value in _speedups().items()
             if (*key[:2], *key[3:]) == (model, gpu, state_dtype, baseline) and key[2] <= batch}  # fmt: skip
    return (known[max(known)], max(known)) if known else None


@cache
def _speedups() -> dict[tuple[str, str, int, str, str], float]:
    return {
        (cell.models[0], str(cell.gpu), cell.batches[0], str(cell.state_dtype), str(cell.baseline)): cell.low
        for cell in load_paper("table7").cells
        if cell.low is not None and not cell.is_range and len(cell.models) == 1
        and cell.implementation == "ReplaySSM in vLLM"
    }  # fmt: skip


def speedup_range() -> tuple[float, float]:
    """Return the published range of the kernel's speedup at B = 256 over the paper's four models: 1.46 to 1.80."""
    (cell,) = (one for one in load_paper("fig2").cells if one.quantity == "kernel_speedup" and len(one.models) > 1)
    assert cell.low is not None and cell.high is not None
    return cell.low, cell.high


def carried_us(cell: PaperCell) -> tuple[float, float, str] | None:
    """Return the least and largest time of a published kernel by its figures on another GPU, and that GPU's key.

    The cell's own figure is left out. None where its kernel was timed on no other GPU. A range is over acceptances,
    where the publication does not state one.
    """
    timed = [one for one in read_implementations() if _is_of(one, cell)]
    if not timed:
        return None
    gpu = load_gpu(str(cell.gpu))
    times = [_time_us(one, gpu, carried_over(bound(one), gpu)) for one in timed]
    return min(times), max(times), timed[0].gpu


def carried_by_efficiency_us(cell: PaperCell) -> tuple[float, float]:
    """Return the least and largest time if the kernel reached the same share of the roof on both GPUs."""
    gpu = load_gpu(str(cell.gpu))
    times = [_time_us(one, gpu, bound(one).efficiency) for one in read_implementations() if _is_of(one, cell)]
    return min(times), max(times)


def _time_us(timed: Timed, gpu: Gpu, efficiency: float) -> float:
    there = bound(timed, gpu)
    return there.launch_us + there.body_us / efficiency


def _is_of(timed: Timed, cell: PaperCell) -> bool:
    return (
        timed.impl == NAMES.get(cell.implementation)
        and timed.gpu != cell.gpu
        and timed.method == cell.method
        and (timed.model,) == cell.models
        and (timed.batch,) == cell.batches
        and (timed.draft_len,) == cell.draft_lens
        and (not cell.acceptances or timed.acceptance in cell.acceptances)
    )
