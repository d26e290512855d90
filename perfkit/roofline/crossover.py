"""Where attention's KV cache overtakes the state: bytes per decode step of a hybrid model. Source: paper, App. C.2."""

from __future__ import annotations

from typing import Protocol

from perfkit.shape import DTYPE_BYTES, Shape, dtype_name

#: What engines store keys and values in; C.2 counts FP8.
KV_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1")


class HybridModel(Protocol):
    """What this module reads of ``perfkit.profiles.Model``."""

    @property
    def shape(self) -> Shape:
        """The shape of its state-space layers."""

    @property
    def n_ssm_layers(self) -> int:
        """State-space layers."""

    @property
    def n_attn_layers(self) -> int:
        """Attention layers."""

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of one token's keys and values in all attention layers together."""

    @property
    def state_dtype(self) -> str:
        """The dtype that the state is kept in."""


def state_bytes_per_sequence(model: HybridModel, state_dtype: str | None = None) -> int:
    """Return the bytes of one sequence's state in all layers: 167,772,160 for Nemotron-3-Super in FP32."""
    name = dtype_name(state_dtype or model.state_dtype, field="state_dtype")
    return int(model.n_ssm_layers * model.shape.state_elements * DTYPE_BYTES[name])


def kv_bytes_per_token(model: HybridModel, kv_dtype: str = "float8_e4m3fn") -> float:
    """Return the bytes of one token's keys and values in all attention layers; 0 without attention."""
    name = dtype_name(kv_dtype, field="kv_dtype", allowed=KV_DTYPES)
    return (model.kv_elements_per_token or 0) * DTYPE_BYTES[name] if model.n_attn_layers else 0.0


def crossover_tokens(
    model: HybridModel, kv_dtype: str = "float8_e4m3fn", state_dtype: str | None = None
) -> float | None:
    """Return the context at which reading the KV cache moves as many bytes as loading and storing the state.

    Batching does not move it. Nemotron-3-Super with an FP8 cache: 81,920 tokens. None for a model without attention.

    Raises:
        InputError: an unknown dtype.
    """
    per_token = kv_bytes_per_token(model, kv_dtype)
    return 2 * state_bytes_per_sequence(model, state_dtype) / per_token if per_token else None
