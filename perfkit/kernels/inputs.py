"""Input buffers that families have in common: views of the convolution's output, and what steps of drafts bring."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from perfkit.method import ACCEPTANCE_STEPS, Buffer, Case

#: Prefix of the buffers that hold the inputs of the step before, for a method that processes them again.
PAST = "past_"


def step_rows(case: Case) -> tuple[int, ...]:
    """Return the outer dimensions of a step's inputs: [batch] of decode, [batch, T] of verify."""
    return (case.batch,) if case.phase == "decode" else (case.batch, case.draft_len)


def packed_views(
    case: Case, rows: tuple[int, ...], parts: Sequence[tuple[str, int, int]], prefix: str = ""
) -> dict[str, Buffer]:
    """Return ``packed`` [*rows, conv_channels] and its parts side by side, as serving engines hand them over.

    Args:
        case: whose inputs they are.
        rows: of :func:`step_rows`.
        parts: (name, heads, width) of each part in order; a view [*rows, heads, width].
        prefix: of the names, such as :data:`PAST`.
    """
    dtype, row = case.input_dtype, case.shape.conv_channels
    outer = (row,) if len(rows) == 1 else (rows[1] * row, row)
    found = {f"{prefix}packed": Buffer((*rows, row), dtype, "input")}
    offset = 0
    for name, heads, width in parts:
        extents, strides = (*rows, heads, width), (*outer, width, 1)
        found[prefix + name] = Buffer(extents, dtype, "input", strides, f"{prefix}packed", offset)
        offset += heads * width
    return found


def row_inputs(case: Case) -> dict[str, Buffer]:
    """Return what a step brings a row: its slot, of verify its drafts and acceptance, of a tree its masks and path.

    See :meth:`perfkit.method.Family.inputs`.
    """
    found = {"slots": Buffer((case.batch,), "int32", "input")}
    if case.phase == "verify":
        found["drafts"] = Buffer((case.batch,), "int32", "input")
        found["accepted"] = Buffer((ACCEPTANCE_STEPS, case.batch), "int32", "input")
    if case.tree is not None:
        found["ancestors"] = Buffer((case.batch, case.draft_len), "int32", "input")
        found["path"] = Buffer((ACCEPTANCE_STEPS, case.batch), "int32", "input")
    return found


def head_param(case: Case) -> Buffer:
    """Return a parameter of each value head, [n_v_heads] float32."""
    return Buffer((case.shape.n_v_heads,), "float32", "param")


def generator(like: Any, seed: int) -> tuple[Any, Any]:
    """Return a seeded generator on a tensor's device, and the device."""
    import torch

    return torch.Generator(device=like.device).manual_seed(seed), like.device


def uniform(like: Any, random: Any, low: float, high: float) -> Any:
    """Return uniform FP32 numbers of a tensor's shape, on its device."""
    import torch

    return torch.rand(like.shape, generator=random, device=like.device) * (high - low) + low


def fill_dt_bias(bias: Any, random: Any) -> None:
    """Fill a bias so that softplus of it is 0.001..0.1, log-uniform, as Mamba-2 initializes it."""
    import torch

    dt = torch.exp(uniform(bias, random, math.log(1e-3), math.log(1e-1)))
    bias.copy_(dt + torch.log(-torch.expm1(-dt)))
