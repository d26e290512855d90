"""How far a kernel's numbers may lie from float64's: rounding to the stored dtype does not count, all else does."""

from __future__ import annotations

import torch

#: Relative Frobenius error of one step in FP32, beyond the rounding of the dtype that is stored.
STEP_TOLERANCE = 2e-6
#: The same of the worst single head, whose few numbers may cancel where a whole layer's do not.
HEAD_TOLERANCE = 5e-5
#: Heads whose norm is below this share of the layer's root mean square are measured against that.
HEAD_FLOOR = 1e-2
#: As STEP_TOLERANCE, after a whole run of an FP32 state.
DRIFT_TOLERANCE = 1e-5


def drift_tolerance(rounds: str | None) -> float:
    """Return the error of an FP32 state after a whole run, of records that are rounded to ``rounds``.

    Errors do not grow in a delta rule, which only ever shrinks what a state is off: that of each record remains, half
    an ulp of what it added.
    """
    dtype = getattr(torch, rounds) if rounds else torch.float32
    return DRIFT_TOLERANCE + (0.0 if dtype == torch.float32 else 0.5 * torch.finfo(dtype).eps)


def half_ulp(values: torch.Tensor, dtype: torch.dtype, factor: float = 1.0) -> torch.Tensor:
    """Return half the spacing of ``dtype`` at each float64 value: the largest error of rounding to nearest.

    FP32 and wider are given none: their rounding is what the tolerances are made of. ``factor`` 2 allows truncation.
    """
    if dtype in (torch.float32, torch.float64):
        return torch.zeros_like(values)
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps  # the spacing of subnormal numbers, and so of zero
    exponent = torch.frexp(values).exponent - 1
    spacing = torch.where(values == 0, smallest, torch.exp2(exponent.double()) * info.eps)
    return 0.5 * factor * spacing.clamp(min=smallest)


def excess_error(
    found: torch.Tensor,
    expected: torch.Tensor,
    dtype: torch.dtype,
    factor: float = 1.0,
    slack: torch.Tensor | float = 0,
) -> float:
    """Return ‖max(|found − expected| − half an ulp − slack, 0)‖ / ‖expected‖; NaN or infinity gives infinity."""
    beyond = _beyond(found, expected, dtype, factor, slack)
    norm = float(torch.linalg.vector_norm(expected))
    error = float(torch.linalg.vector_norm(beyond)) / max(norm, 1e-30)
    return error if error == error else float("inf")


def _beyond(
    found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype, factor: float, slack: torch.Tensor | float
) -> torch.Tensor:
    return ((found - expected).abs() - half_ulp(expected, dtype, factor) - slack).clamp(min=0.0)


def head_error(
    found: torch.Tensor,
    expected: torch.Tensor,
    dtype: torch.dtype,
    factor: float = 1.0,
    slack: torch.Tensor | float = 0,
    least: torch.Tensor | None = None,
) -> float:
    """Return :func:`excess_error` of the worst head: a small head must not hide behind large ones.

    Args:
        found: [rows, heads, …] float64.
        expected: the same shape.
        dtype: what ``found`` was stored as.
        factor: 2 where storing truncates.
        slack: what else is allowed, of each element.
        least: [rows, heads] float64, norms that those of ``expected`` count as at least.
    """
    if not expected.numel():
        return 0.0
    beyond = _beyond(found, expected, dtype, factor, slack)
    norms = torch.linalg.vector_norm(expected.flatten(2), dim=2)
    errors = torch.linalg.vector_norm(beyond.flatten(2), dim=2)
    floor = HEAD_FLOOR * float(norms.square().mean().sqrt())
    if least is not None:
        norms = torch.maximum(norms, least)
    worst = float((errors / norms.clamp(min=max(floor, 1e-30))).max())
    return worst if worst == worst else float("inf")


def output_size(state: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Return ‖Σ |S| |q|‖ / √d_k of each head: about what its output would be if the query had no particular direction.

    A query at right angles to most of what a state holds gives a small output, whose error is still that of the sum
    that cancelled: a state of one record gives u (k·q).

    Args:
        state: [rows, heads, d_v, d_k] float64, the one that is read.
        query: [rows, heads, d_k] float64.

    Returns:
        [rows, heads] float64.
    """
    seen = (state.abs() * query.abs()[..., None, :]).sum(-1)
    return torch.as_tensor(torch.linalg.vector_norm(seen, dim=-1) / query.shape[-1] ** 0.5)
