"""An engine's own times, fitted to published figures: the cells of the fits, and those of the test.

**A step's and a row's time.** Fitted are whole steps of Nemotron-3 Nano 4B on one H100 of which the kernel's speedup
is published at the same batch, state and baseline: all with an FP16 state, and those with an FP32 state at B = 8. Those
with an FP32 state at other batches over the tuned baseline are what ``perfkit reproduce`` and the tests hold the result
against; those over the default one have the same replay step in them, and so are left out of the fit. At B = 1 a step
of milliseconds hardly shows a kernel of some 10 us, and an isolated kernel's launch and ramp overlap with its
neighbours' there: left out of it as well.

**A draft pass.** No publication has the acceptance, so one rate for all drafts and the time of a pass are fitted
together, to replay's throughput over standard decoding of Qwen3.5-122B on a B300 at B = 1 and 32, T = 2 to 8. Replay
over snapshots, and over standard decoding at other batches, are the test.

Source: vLLM pull requests 48018, 49887.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfkit.paper.kernels import kernel_speedup
from perfkit.paper.serving import REFERENCES, STANDARD, Drafts, values
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
    used = list(fit_cells() if cells is None else cells)
    published = np.array([cell.low for cell in used], dtype=np.float64)

    def errors(found: Iterable[float]) -> NDArray[np.float64]:
        step_us, row_us = map(float, found)
        given = Overheads(step_us=step_us, row_us=row_us)
        ours: list[Any] = [step_speedup(cell, overheads=given) for cell in used]
        return np.array([one[0] for one in ours]) / published - 1.0

    (step_us, step_ends), (row_us, row_ends) = _solve(errors, (1000.0, 5.0), (1e5, 1e3))
    return Overheads(step_us=step_us, row_us=row_us, intervals=(("step_us", *step_ends), ("row_us", *row_ends)),
                     source=f"fitted to {len(used)} whole steps")  # fmt: skip


def fit_drafts() -> tuple[Drafts, tuple[float, float]]:
    """Fit the rate of acceptance and the time of a draft pass; return them and the 95 % interval of that time."""
    used = [cell for cell in load_paper("table9").cells
            if cell.baseline == STANDARD and cell.batches[0] in REFERENCES and cell.low is not None]  # fmt: skip
    published = np.array([cell.low for cell in used], dtype=np.float64)

    def errors(found: Iterable[float]) -> NDArray[np.float64]:
        rate, pass_us = map(float, found)
        drafts = Drafts(rate=rate, pass_us=pass_us)
        return np.array([np.mean(values(cell, drafts)) for cell in used]) / published - 1.0

    (rate, rates), (pass_us, ends) = _solve(errors, (0.7, 100.0), (1.0, 1e5))
    return Drafts(rate=rate, pass_us=pass_us, rate_interval=rates), ends


def _solve(
    errors: Callable[[Iterable[float]], NDArray[np.float64]], start: tuple[float, float], most: tuple[float, float]
) -> list[tuple[float, tuple[float, float]]]:
    """Return two parameters by least squares, at least 0, each with its 95 % interval."""
    from scipy.optimize import least_squares
    from scipy.special import stdtrit

    found = least_squares(errors, start, bounds=((0.0, 0.0), most), x_scale=start)
    free = len(found.fun) - len(start)
    rms = sqrt(float(np.sum(found.fun**2)) / free)
    slopes: NDArray[np.float64] = np.asarray(found.jac, dtype=np.float64)
    half = float(stdtrit(free, 0.5 + CONFIDENCE / 2)) * rms * np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes)))
    return [(float(value), (max(float(value - reach), 0.0), min(float(value + reach), limit)))
            for value, reach, limit in zip(found.x, half, most, strict=True)]  # fmt: skip
