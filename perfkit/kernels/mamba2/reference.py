"""Mamba-2's inputs, their random data, and the sequential float64 oracle.

What a layer hands to the update, as serving engines do: x, k (Mamba's B) and q (its C) are views into the packed
output of the short convolution, dt is raw, and the update itself applies dt's bias and softplus and the D skip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perfkit.method import Buffer, Case, Family


class Mamba2(Family):
    """The family ``mamba2``."""

    name = "mamba2"

    def inputs(self, case: Case) -> dict[str, Buffer]:
        """Return the buffers of one step.

        x [batch, n_v_heads, d_v], k and q [batch, n_k_heads, d_k]: views of ``packed`` [batch, conv_channels];
        dt [batch, n_v_heads] raw; a, dt_bias, d_skip [n_v_heads] float32, a < 0; slots [batch] int32, −1 for a
        padded row; out [batch, n_v_heads, d_v] written. x, k, q, dt and out have the case's input dtype.
        """
        shape, batch, dtype = case.shape, case.batch, case.input_dtype
        row = shape.conv_channels
        values, keys = shape.n_v_heads * shape.d_v, shape.n_k_heads * shape.d_k

        def view(heads: int, width: int, offset: int) -> Buffer:
            return Buffer((batch, heads, width), dtype, "input", (row, width, 1), "packed", offset)

        def param() -> Buffer:
            return Buffer((shape.n_v_heads,), "float32", "param")

        return {
            "packed": Buffer((batch, row), dtype, "input"),
            "x": view(shape.n_v_heads, shape.d_v, 0),
            "k": view(shape.n_k_heads, shape.d_k, values),
            "q": view(shape.n_k_heads, shape.d_k, values + keys),
            "dt": Buffer((batch, shape.n_v_heads), dtype, "input"),
            "a": param(),
            "dt_bias": param(),
            "d_skip": param(),
            "slots": Buffer((batch,), "int32", "input"),
            "out": Buffer((batch, shape.n_v_heads, shape.d_v), dtype, "output"),
        }

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
        """Fill x with standard normals, k and q with normals of variance 1/d_k, dt with normals of variance 1/4."""
        import torch

        generator, device = _generator(tensors["packed"], seed)
        for name in ("packed", "dt"):
            tensors[name].copy_(torch.randn(tensors[name].shape, generator=generator, device=device))
        for name in ("k", "q"):
            tensors[name].mul_(tensors[name].shape[-1] ** -0.5)
        tensors["dt"].mul_(0.5)

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
