"""An engine's own time per step and row, fitted to published whole steps: the cells of the fit, and those of the test.

Fitted are the whole steps of Nemotron-3 Nano 4B on one H100 of which the kernel's speedup is published at the same
batch, state and baseline: all with an FP16 state, and those with an FP32 state at B = 8. Those with an FP32 state at
other batches over the tuned baseline are what `perfkit reproduce` and the tests hold the result against; those over the
default one have the same replay step in them, and so are left out of both. At B = 1 a step of milliseconds hardly shows
a kernel of some 10 us, and an isolated kernel's launch and ramp overlap with its neighbours' there: left out as well.
What a draft pass costs is not determined: no publication has a step with drafts, its acceptance and its kernel.

Source: vLLM pull request 48018.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.paper.kernels import kernel_speedup
from perfkit.paper.steps import step_speedup
from perfkit.profiles.published import PaperCell, load_paper
from perfkit.roofline.overheads import Overheads

MODEL, GPU = "nemotron-3-nano-4b", "h100-sxm"
#: Batches of FP32 whole steps over the tuned baseline that the fit does not see.
TEST_BATCHES = (1, 32, 128, 256, 512)
CONFIDENCE = 0.95


def fit_cells() -> tuple[PaperCell, ...]:
    """Return the cells that the engine's time is fitted to."""
    return tuple(cell for cell in load_paper("table6").cells if is_fitted(cell))


def is_fitted(cell: PaperCell) -> bool:
    """Say whether a published cell is one of those that the engine's time is fitted to."""
    if cell.quantity != "step_speedup" or cell.models != (MODEL,) or cell.gpu != GPU or cell.is_range:
        return False
    batch, state, baseline = cell.batches[0], str(cell.state_dtype), str(cell.baseline)
    return (
        batch > 1
        and (state == "float16" or batch not in TEST_BATCHES)
        and kernel_speedup(MODEL, GPU, batch, state, baseline) is not None
    )


def fit_overheads(cells: Sequence[PaperCell] | None = None) -> Overheads:
    """Fit a step's and a row's time by relative least squares of the speedups; intervals are of 95 %.

    Args:
        cells: published whole steps; those of :func:`fit_cells` if None.
    """
    from scipy.optimize import least_squares
    from scipy.special import stdtrit

    used = list(fit_cells() if cells is None else cells)
    published = np.array([cell.low for cell in used], dtype=np.float64)

    def errors(values: Iterable[float]) -> NDArray[np.float64]:
        step_us, row_us = map(float, values)
        given = Overheads(step_us=step_us, row_us=row_us)
        ours: list[Any] = [step_speedup(cell, overheads=given) for cell in used]
        return np.array([one[0] for one in ours]) / published - 1.0

    found = least_squares(errors, (1000.0, 5.0), bounds=((0.0, 0.0), (1e5, 1e3)), x_scale=(1000.0, 5.0))
    free = len(used) - 2
    rms = sqrt(float(np.sum(found.fun**2)) / free)
    slopes: NDArray[np.float64] = np.asarray(found.jac, dtype=np.float64)
    half = float(stdtrit(free, 0.5 + CONFIDENCE / 2)) * rms * np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)))
    step_us, row_us = map(float, found.x)
    ends = [(max(float(value - reach), 0.0), float(value + reach)) for value, reach in zip(found.x, half, strict=True)]
    intervals = (("step_us", *ends[0]), ("row_us", *ends[1]))
    return replace(Overheads(step_us=step_us, row_us=row_us), intervals=intervals,
                   source=f"fitted to {len(used)} whole steps")  # fmt: skip
