"""Mamba-2's inputs, their random data, and the sequential float64 oracle.

What a layer hands to the update, as serving engines do: x, k (Mamba's B) and q (its C) are views into the packed
output of the short convolution, dt is raw, and the update itself applies dt's bias and softplus and the D skip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfkit.kernels.inputs import (
    PAST,
    fill_dt_bias,
    generator,
    head_param,
    packed_views,
    row_inputs,
    step_rows,
    uniform,
)
from perfkit.method import Buffer, Case, Family

__all__ = ["FAMILY", "PAST", "Mamba2", "packed_inputs"]


def packed_inputs(case: Case, rows: tuple[int, ...], prefix: str = "") -> dict[str, Buffer]:
    """Return x, k and q as views of ``packed`` [*rows, conv_channels], and dt [*rows, n_v_heads]."""
    shape = case.shape
    values, keys = (shape.n_v_heads, shape.d_v), (shape.n_k_heads, shape.d_k)
    return {
        **packed_views(case, rows, (("x", *values), ("k", *keys), ("q", *keys)), prefix),
        f"{prefix}dt": Buffer((*rows, shape.n_v_heads), case.input_dtype, "input"),
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
        rows, shape = step_rows(case), case.shape
        return {
            **packed_inputs(case, rows),
            "a": head_param(case),
            "dt_bias": head_param(case),
            "d_skip": head_param(case),
            **row_inputs(case),
            "out": Buffer((*rows, shape.n_v_heads, shape.d_v), case.input_dtype, "output"),
        }

    def fill_params(self, tensors: Mapping[str, Any], seed: int) -> None:
        """Fill a, dt_bias and d_skip as Mamba-2 initializes them.

        a is −exp(U(log 1, log 16)) and the bias puts dt = softplus(dt + bias) at about 0.001..0.1, log-uniform:
        decays between 0.2 and 0.999, so states neither vanish nor grow.
        """
        import torch

        random, device = generator(tensors["a"], seed)
        tensors["a"].copy_(-torch.exp(uniform(tensors["a"], random, 0.0, math.log(16.0))))
        fill_dt_bias(tensors["dt_bias"], random)
        tensors["d_skip"].copy_(torch.randn(tensors["d_skip"].shape, generator=random, device=device))

    def fill_inputs(self, tensors: Mapping[str, Any], seed: int) -> None:
        """Fill x with standard normals, k and q with normals of variance 1/d_k, dt with normals of variance 1/4.

        The same for the inputs of the step before, where a method takes them again (:data:`PAST`).
        """
        import torch

        random, device = generator(tensors["packed"], seed)
        for prefix in ("", PAST):
            if prefix + "packed" not in tensors:
                continue
            for name in ("packed", "dt"):
                values = tensors[prefix + name]
                values.copy_(torch.randn(values.shape, generator=random, device=device))
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
        x = wide("x")
        decay = torch.exp(wide("a") * dt)[..., None, None]
        state = state * decay + (dt[..., None] * x)[..., None] * k[..., None, :]
        out = (state * self.query(inputs)[..., None, :]).sum(-1) + wide("d_skip")[:, None] * x
        return state, out

    def query(self, inputs: Mapping[str, Any]) -> Any:
        """Return the value heads' queries [batch, n_v_heads, d_k]."""
        q = inputs["q"].double()
        return q.repeat_interleave(inputs["x"].shape[1] // q.shape[1], dim=1)


FAMILY = Mamba2()
