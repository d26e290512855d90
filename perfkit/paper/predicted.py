"""Published cells that the model predicts: whole steps, serving, and others' kernels carried over from another GPU."""

from __future__ import annotations

from perfkit.paper.fit import is_fitted
from perfkit.paper.kernels import carried_by_efficiency_us, carried_us
from perfkit.paper.ours import Predicted
from perfkit.paper.serving import serving_cause, serving_value
from perfkit.paper.steps import step_cause, step_value
from perfkit.profiles.published import PaperCell

FITTED = "the engine's time is fitted to this cell among others"
ELSEWHERE = "not predicted; its kernel was timed on no other GPU"


def predicted_value(cell: PaperCell) -> Predicted | str:
    """Return ours for a published whole step, throughput or kernel time, or why there is none."""
    if cell.quantity.startswith("serving_"):
        return serving_value(cell)
    if cell.quantity == "kernel_us":
        carried = carried_us(cell)
        if carried is None:
            return ELSEWHERE
        low, high, gpu = carried
        return Predicted(low=low, high=high, basis=f"its times on {gpu}, carried over; its own here are left out")
    found = step_value(cell)
    if isinstance(found, Predicted) and is_fitted(cell):
        return Predicted(low=found.low, high=found.high, basis=found.basis, reasons=(FITTED,))
    return found


def predicted_cause(cell: PaperCell, ours: Predicted) -> str | None:
    """Return what a cell that is off would be under other assumptions; None where none is computed."""
    if cell.quantity.startswith("serving_"):
        return serving_cause(cell)
    if cell.quantity == "kernel_us":
        low, high = (f"{end:.0f}" for end in carried_by_efficiency_us(cell))
        return f"the same share of the roof on both GPUs would give {low if low == high else f'{low}..{high}'}"
    return step_cause(cell, ours)
