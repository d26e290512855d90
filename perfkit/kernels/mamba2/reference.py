"""Mamba-2's inputs, their random data, and the sequential float64 oracle.

What a layer hands to the update, as serving engines do: x, k (Mamba's B) and q (its C) are views into the packed
output of the short convolution, dt is raw, and the update itself applies dt's bias and softplus and the D skip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfkit.method import ACCEPTANCE_STEPS, Buffer, Case, Family

#: Prefix of the buffers that hold the inputs of the step before, for a method that processes them again.
PAST = "past_"


def packed_inputs(case: Case, rows: tuple[int, ...], prefix: str = "") -> dict[str, Buffer]:
    """Return x, k and q as views of ``packed`` [*rows, conv_channels], and dt [*rows, n_v_heads]."""
    shape, dtype, row = case.shape, case.input_dtype, case.shape.conv_channels
    values, keys = shape.n_v_heads * shape.d_v, shape.n_k_heads * shape.d_k
    outer = (row,) if len(rows) == 1 else (rows[1] * row, row)

    def view(heads: int, width: int, offset: int) -> Buffer:
        return Buffer((*rows, heads, width), dtype, "input", (*outer, width, 1), f"{prefix}packed", offset)

    return {
        f"{prefix}packed": Buffer((*rows, row), dtype, "input"),
        f"{prefix}x": view(shape.n_v_heads, shape.d_v, 0),
        f"{prefix}k": view(shape.n_k_heads, shape.d_k, values),
        f"{prefix}q": view(shape.n_k_heads, shape.d_k, values + keys),
        f"{prefix}dt": Buffer((*rows, shape.n_v_heads), dtype, "input"),
    }


class Mamba2(Family):
    """The family ``mamba2``."""

    name = "mamba2"

    per_token = ("x", "k", "q", "dt")

    def inputs(self, case: Case) -> dict[str, Buffer]:
        """Return the buffers of one step.

        x [batch, n_v_heads, d_v], k and q [batch, n_k_heads, d_k]: views of ``packed`` [batch, conv_channels];
        dt [batch, n_v_heads] raw; a, dt_bias, d_skip [n_v_heads] float32, a < 0; slots [batch] int32, −1 for a
        padded row; out [batch, n_v_heads, d_v] written. x, k, q, dt and out have the case's input dtype. A verify
        step's x, k, q, dt, packed and out have dimension [batch, T, …]; what else it has is said at
        :meth:`perfkit.method.Family.inputs`.
        """
        shape, batch, dtype = case.shape, case.batch, case.input_dtype
        rows = (batch,) if case.phase == "decode" else (batch, case.draft_len)

        def param() -> Buffer:
            return Buffer((shape.n_v_heads,), "float32", "param")

        found = {
            **packed_inputs(case, rows),
            "a": param(),
            "dt_bias": param(),
            "d_skip": param(),
            "slots": Buffer((batch,), "int32", "input"),
            "out": Buffer((*rows, shape.n_v_heads, shape.d_v), dtype, "output"),
        }
        if case.phase == "verify":
            found["drafts"] = Buffer((batch,), "int32", "input")
            found["accepted"] = Buffer((ACCEPTANCE_STEPS, batch), "int32", "input")
        if case.tree is not None:
            found["ancestors"] = Buffer((batch, case.draft_len), "int32", "input")
            found["path"] = Buffer((ACCEPTANCE_STEPS, batch), "int32", "input")
        return found

    def fill_params(self, tensors: Mapping[str, Any], seed: int) -> None:
        """Fill a, dt_bias and d_skip as Mamba-2 initializes them.

        a is −exp(U(log 1, log 16)) and the bias puts dt = softplus(dt + bias) at about 0.001..0.1, log-uniform:
        decays between 0.2 and 0.999, so states neither vanish nor grow.
        """
        import torch

        generator, device = _generator(tensors["a"], seed)

        def uniform(low: float, high: float) -> Any:
            return torch.rand(tensors["a"].shape, generator=generator, device=device) * (high - low) + low

        tensors["a"].copy_(-torch.exp(uniform(0.0, math.log(16.0))))
        dt = torch.exp(uniform(math.log(1e-3), math.log(1e-1)))
        tensors["dt_bias"].copy_(dt + torch.log(-torch.expm1(-dt)))  # softplus of it is dt
        tensors["d_skip"].copy_(torch.randn(tensors["d_skip"].shape, generator=generator, device=device))

    def fill_inputs(self, tensors: Mapping[str, Any], seed: int) -> None:
        """Fill x with standard normals, k and q with normals of variance 1/d_k, dt with normals of variance 1/4.

        The same for the inputs of the step before, where a method takes them again (:data:`PAST`).
        """
        import torch

        generator, device = _generator(tensors["packed"], seed)
        for prefix in ("", PAST):
            if prefix + "packed" not in tensors:
                continue
            for name in ("packed", "dt"):
                values = tensors[prefix + name]
                values.copy_(torch.randn(values.shape, generator=generator, device=device))
            for name in ("k", "q"):
                tensors[prefix + name].mul_(tensors[prefix + name].shape[-1] ** -0.5)
            tensors[prefix + "dt"].mul_(0.5)

    def reference(self, state: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Advance by one token in float64: S = exp(a·dt) S + (dt·x) kᵀ, o = S q + D x.

        Source: paper, Eq. 1; dt = softplus(dt_raw + bias) and the skip as in Mamba-2.
        """
        import torch

        def wide(name: str) -> Any:
            return inputs[name].double()

        dt = torch.nn.functional.softplus(wide("dt") + wide("dt_bias"), threshold=700.0)  # [batch, n_v_heads]
        group = state.shape[1] // inputs["k"].shape[1]
        k = wide("k").repeat_interleave(group, dim=1)
        q = wide("q").repeat_interleave(group, dim=1)
        x = wide("x")
        decay = torch.exp(wide("a") * dt)[..., None, None]
        state = state * decay + (dt[..., None] * x)[..., None] * k[..., None, :]
        out = (state * q[..., None, :]).sum(-1) + wide("d_skip")[:, None] * x
        return state, out


def _generator(like: Any, seed: int) -> tuple[Any, Any]:
    import torch

    return torch.Generator(device=like.device).manual_seed(seed), like.device


FAMILY = Mamba2()
