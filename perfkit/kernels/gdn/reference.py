"""Gated DeltaNet's inputs, their random data, and the sequential float64 oracle.

What a layer hands to the update, as serving engines do: q, k and v are views into the packed output of the short
convolution, gate and beta are raw, and the update itself applies gates, normalization and scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

#: Added to the sum of squares under the root of a norm, as Qwen's layers do.
NORM_EPSILON = 1e-6


def packed_inputs(case: Case, rows: tuple[int, ...], prefix: str = "") -> dict[str, Buffer]:
    """Return q, k and v as views of ``packed`` [*rows, conv_channels]; gate and beta [*rows, n_v_heads]."""
    shape = case.shape
    values, keys = (shape.n_v_heads, shape.d_v), (shape.n_k_heads, shape.d_k)
    gates = Buffer((*rows, shape.n_v_heads), case.input_dtype, "input")
    return {
        **packed_views(case, rows, (("q", *keys), ("k", *keys), ("v", *values)), prefix),
        f"{prefix}gate": gates,
        f"{prefix}beta": gates,
    }


class Gdn(Family):
    """The family ``gdn``."""

    name = "gdn"

    per_token = ("q", "k", "v", "gate", "beta")

    def inputs(self, case: Case) -> dict[str, Buffer]:
        """Return the buffers of one step.

        q and k [batch, n_k_heads, d_k], v [batch, n_v_heads, d_v]: views of ``packed`` [batch, conv_channels] in this
        order; gate and beta [batch, n_v_heads] raw; a_log and dt_bias [n_v_heads] float32; slots [batch] int32, −1 for
        a padded row; out [batch, n_v_heads, d_v] written. q, k, v, gate, beta and out have the case's input dtype. A
        verify step's have dimension [batch, T, …]; what else it has is said at
        :meth:`perfkit.method.Family.inputs`.
        """
        rows, shape = step_rows(case), case.shape
        return {
            **packed_inputs(case, rows),
            "a_log": head_param(case),
            "dt_bias": head_param(case),
            **row_inputs(case),
            "out": Buffer((*rows, shape.n_v_heads, shape.d_v), case.input_dtype, "output"),
        }

    def fill_params(self, tensors: Mapping[str, Any], seed: int) -> None:
        """Fill a_log with log U(1, 16), and dt_bias as Mamba-2's: decays between 0.2 and 0.999."""
        import torch

        random, _ = generator(tensors["a_log"], seed)
        tensors["a_log"].copy_(torch.log(uniform(tensors["a_log"], random, 1.0, 16.0)))
        fill_dt_bias(tensors["dt_bias"], random)

    def fill_inputs(self, tensors: Mapping[str, Any], seed: int) -> None:
        """Fill q, k, v and beta with standard normals, gate with normals of variance 1/4.

        The same for the inputs of the step before, where a method takes them again
        (:data:`perfkit.kernels.inputs.PAST`).
        """
        import torch

        random, device = generator(tensors["packed"], seed)
        for prefix in ("", PAST):
            if prefix + "packed" not in tensors:
                continue
            for name in ("packed", "gate", "beta"):
                values = tensors[prefix + name]
                values.copy_(torch.randn(values.shape, generator=random, device=device))
            tensors[prefix + "gate"].mul_(0.5)

    def reference(self, state: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Advance by one token in float64: u = β (v − α S k), S = α S + u kᵀ, o = S q.

        Source: paper, Eq. 2 and 3; gates, normalization and scale as in Qwen3.5.
        """
        decay, u, k, q = self.update(state, inputs)
        state = state * decay[..., None, None] + u[..., None] * k[..., None, :]
        return state, (state * q[..., None, :]).sum(-1)

    def query(self, inputs: Mapping[str, Any]) -> Any:
        """Return the value heads' queries [batch, n_v_heads, d_k]: normalized and scaled by d_k^(−1/2)."""
        q = normalized(inputs["q"].double())
        return q.repeat_interleave(inputs["v"].shape[1] // q.shape[1], dim=1) * q.shape[-1] ** -0.5

    def slack(self, state: Any, inputs: Mapping[str, Any], off: Callable[[Any], Any], before: Any) -> Any:
        """Return α·before + off(u) |k|ᵀ: records round u, and keep k and g as they are."""
        decay, u, k, _ = self.update(state, inputs)
        return before * decay[..., None, None] + off(u)[..., None] * k.abs()[..., None, :]

    def update(self, state: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
        """Return in float64 what a token does to a state.

        Returns:
            α [batch, n_v_heads], u [batch, n_v_heads, d_v], and the value heads' normalized k and normalized, scaled q
            [batch, n_v_heads, d_k].
        """
        import torch

        def wide(name: str) -> Any:
            return inputs[name].double()

        group = state.shape[1] // inputs["k"].shape[1]
        k = normalized(wide("k")).repeat_interleave(group, dim=1)
        dt = torch.nn.functional.softplus(wide("gate") + wide("dt_bias"), threshold=700.0)
        decay = torch.exp(-torch.exp(wide("a_log")) * dt)
        held = decay[..., None] * (state * k[..., None, :]).sum(-1)
        return decay, torch.sigmoid(wide("beta"))[..., None] * (wide("v") - held), k, self.query(inputs)


def normalized(x: Any) -> Any:
    """Return vectors [..., d_k] divided by their norm: x / √(Σ x² + 1e-6)."""
    return x / (x.square().sum(-1, keepdim=True) + NORM_EPSILON).sqrt()


FAMILY = Gdn()
