"""Kimi Delta Attention's inputs, their random data, and the sequential float64 oracle.

A token first decays the state's channels, then overwrites what the decayed state D = S diag(α) returns for its key:

    S' = D (I − β k kᵀ) + β v kᵀ = D + β (v − D k) kᵀ = S diag(α) + u kᵀ        u = β (v − S (α ⊙ k))

since D k = S diag(α) k = S (α ⊙ k). Where all channels of α agree, that is Gated DeltaNet (paper, Eq. 2 and 3). The
decays multiply from the right and commute, so that unrolled over tokens 1 to t, with G_t = Σ g_i the summed log decays
of each channel,

    S_t = S_0 diag(e^{G_t}) + Σ_j u_j (k_j ⊙ e^{G_t − G_j})ᵀ

whose exponents G_t − G_j = g_{j+1} + … + g_t are sums of numbers below 0: they can be formed without G_j, whose own
exponential underflows. The product of record j with a key or query x at t is Σ_c k_jc e^{(G_t − G_j)_c} x_c; it does
not factor into a weight and k·x, as it does for a scalar decay.

Source: arXiv 2510.26692.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from perfkit.kernels.gdn.reference import normalized
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


def packed_inputs(case: Case, rows: tuple[int, ...], prefix: str = "") -> dict[str, Buffer]:
    """Return q, k and v as views of ``packed`` [*rows, conv_channels]; gate and beta in full."""
    shape, dtype = case.shape, case.input_dtype
    values, keys = (shape.n_v_heads, shape.d_v), (shape.n_k_heads, shape.d_k)
    return {
        **packed_views(case, rows, (("q", *keys), ("k", *keys), ("v", *values)), prefix),
        f"{prefix}gate": Buffer((*rows, shape.n_v_heads, shape.d_k), dtype, "input"),
        f"{prefix}beta": Buffer((*rows, shape.n_v_heads), dtype, "input"),
    }


class Kda(Family):
    """The family ``kda``."""

    name = "kda"

    per_token = ("q", "k", "v", "gate", "beta")

    def inputs(self, case: Case) -> dict[str, Buffer]:
        """Return the buffers of one step.

        q and k [batch, n_heads, d_k], v [batch, n_heads, d_v]: views of ``packed`` [batch, conv_channels] in this
        order; gate [batch, n_heads, d_k] and beta [batch, n_heads] raw; a_log [n_heads] and dt_bias [n_heads, d_k]
        float32; slots [batch] int32, −1 for a padded row; out [batch, n_heads, d_v] written. q, k, v, gate, beta and
        out have the case's input dtype. A verify step's have dimension [batch, T, …]; what else it has is said at
        :meth:`perfkit.method.Family.inputs`.
        """
        rows, shape = step_rows(case), case.shape
        return {
            **packed_inputs(case, rows),
            "a_log": head_param(case),
            "dt_bias": Buffer((shape.n_v_heads, shape.d_k), "float32", "param"),
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
        """Advance by one token in float64: u = β (v − S (α ⊙ k)), S = S diag(α) + u kᵀ, o = S q."""
        decay, u, k, q = self.update(state, inputs)
        state = state * decay[..., None, :] + u[..., None] * k[..., None, :]
        return state, (state * q[..., None, :]).sum(-1)

    def query(self, inputs: Mapping[str, Any]) -> Any:
        """Return the queries [batch, n_heads, d_k]: normalized and scaled by d_k^(−1/2)."""
        q = normalized(inputs["q"].double())
        return q * q.shape[-1] ** -0.5

    def slack(self, state: Any, inputs: Mapping[str, Any], off: Callable[[Any], Any], before: Any) -> Any:
        """Return before·diag(α) + off(u) |k|ᵀ: records round u, and keep k and g as they are."""
        decay, u, k, _ = self.update(state, inputs)
        return before * decay[..., None, :] + off(u)[..., None] * k.abs()[..., None, :]

    def update(self, state: Any, inputs: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
        """Return in float64 what a token does to a state.

        Returns:
            α [batch, n_heads, d_k], u [batch, n_heads, d_v], normalized k and normalized, scaled q [batch, n_heads,
            d_k].
        """
        import torch

        def wide(name: str) -> Any:
            return inputs[name].double()

        k = normalized(wide("k"))
        dt = torch.nn.functional.softplus(wide("gate") + wide("dt_bias"), threshold=700.0)
        decay = torch.exp(-torch.exp(wide("a_log"))[..., None] * dt)
        held = (state * (decay * k)[..., None, :]).sum(-1)
        return decay, torch.sigmoid(wide("beta"))[..., None] * (wide("v") - held), k, self.query(inputs)


FAMILY = Kda()
