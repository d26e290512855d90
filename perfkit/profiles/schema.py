"""What a model and a GPU are to perfkit: two frozen records, and the rules that their fields obey.

The rules sit beside the fields (:class:`Rule` in the dataclass metadata), so that reading a YAML file, importing a
``config.json`` and the error messages of both need no second list. :mod:`perfkit.profiles.fields` applies them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from perfkit.shape import FAMILIES, Shape

Kind = Literal["text", "texts", "whole", "number", "flag", "dtype", "table"]

#: One character per layer. P is a layer with state-space *and* attention mixers, side by side or in turn.
PATTERN = {"M": "state space", "*": "attention", "P": "state space and attention", "-": "MLP", "E": "experts"}
#: Dtypes of a recurrent state and of weights.
STATE_DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float4_e2m1")


@dataclass(frozen=True, slots=True)
class Rule:
    """What one field accepts: a kind, its lower bound, the words allowed, and whether it may be absent."""

    kind: Kind
    minimum: float = 0
    optional: bool = False
    allowed: tuple[str, ...] | None = None


def _rule(kind: Kind, minimum: float = 0, *, optional: bool = False, allowed: tuple[str, ...] | None = None) -> Any:
    metadata = {"rule": Rule(kind, minimum, optional, allowed)}
    if kind == "table":  # a plain dict is not hashable: equality sees it, the hash does not
        return field(metadata=metadata, default_factory=dict, hash=False)
    if optional:
        return field(metadata=metadata, default=() if kind == "texts" else "" if kind == "text" else None)
    return field(metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model: the shape of its state-space layers and what else decides its memory and traffic.

    Counts of MLP and MoE layers are of layers that *contain* one; in ``nemotron_h`` such a layer contains nothing
    else. ``kv_elements_per_token`` is for one token of one sequence, all attention layers together, keys and values
    (with MLA the latent, once). ``params_total`` counts the text model with its embeddings, without vision tower and
    multi-token-prediction layers; ``params_active`` is what one token uses of it, without ``params_embedding``.
    ``max_context`` is the longest sequence in tokens that the model takes. ``weight_dtype`` is that of the routed
    experts (of all weights where there are none), ``dense_weight_dtype`` that of the rest where it differs.
    ``uncertain`` names the fields that could not be confirmed; ``reasons`` says why, by field.
    """

    key: str = _rule("text")
    name: str = _rule("text")
    family: str = _rule("text", allowed=FAMILIES)
    model_type: str = _rule("text")
    aliases: tuple[str, ...] = _rule("texts", optional=True)

    layer_pattern: str = _rule("text")
    n_layers: int = _rule("whole", 1)
    n_ssm_layers: int = _rule("whole", 1)
    n_attn_layers: int = _rule("whole")
    n_mlp_layers: int = _rule("whole")
    n_moe_layers: int = _rule("whole")
    n_mtp_layers: int = _rule("whole")

    n_v_heads: int = _rule("whole", 1)
    n_k_heads: int = _rule("whole", 1)
    d_v: int = _rule("whole", 1)
    d_k: int = _rule("whole", 1)
    conv_kernel: int = _rule("whole", 1)
    conv_channels: int = _rule("whole", 1)
    state_dtype: str = _rule("dtype", allowed=STATE_DTYPES)

    n_attn_heads: int = _rule("whole")
    n_kv_heads: int = _rule("whole")
    attn_head_dim: int | None = _rule("whole", 1, optional=True)
    mla: bool = _rule("flag")
    kv_elements_per_token: int = _rule("whole")

    hidden_size: int = _rule("whole", 1)
    ffn_size: int | None = _rule("whole", 1, optional=True)
    ffn_gated: bool | None = _rule("flag", optional=True)
    moe_experts: int | None = _rule("whole", 1, optional=True)
    moe_top_k: int | None = _rule("whole", 1, optional=True)
    moe_size: int | None = _rule("whole", 1, optional=True)
    moe_shared_size: int | None = _rule("whole", 1, optional=True)
    moe_latent_size: int | None = _rule("whole", 1, optional=True)

    vocab_size: int = _rule("whole", 1)
    max_context: int | None = _rule("whole", 1, optional=True)
    tied_embeddings: bool = _rule("flag")
    params_total: int | None = _rule("whole", 1, optional=True)
    params_active: int | None = _rule("whole", 1, optional=True)
    weight_dtype: str | None = _rule("dtype", optional=True, allowed=STATE_DTYPES)
    dense_weight_dtype: str | None = _rule("dtype", optional=True, allowed=STATE_DTYPES)

    source: str = _rule("text")
    notes: str = _rule("text", optional=True)
    uncertain: tuple[str, ...] = _rule("texts", optional=True)
    reasons: Mapping[str, str] = _rule("table", optional=True)

    @property
    def shape(self) -> Shape:
        """The shape of one state-space layer."""
        return Shape(self.family, self.n_v_heads, self.n_k_heads, self.d_v, self.d_k)

    @property
    def state_elements_per_sequence(self) -> int:
        """Elements of one sequence's recurrent state, all state-space layers together."""
        return self.n_ssm_layers * self.shape.state_elements

    @property
    def params_embedding(self) -> int:
        """Parameters of the input embedding and, if it is not the same matrix, of the LM head."""
        return self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One GPU as its datasheet and its driver describe it. None: unknown, or the GPU lacks it.

    Tensor peaks are dense and accumulate in FP32. ``mem_capacity_gb`` is the marketing figure, ``usable_mib`` what
    CUDA reports. ``l2_mb`` is in MiB as CUDA reports it; shared memory is in KiB. ``nvml_names`` are the product
    names that NVML gives. ``sources`` has one entry for every number.
    """

    key: str = _rule("text")
    name: str = _rule("text")
    aliases: tuple[str, ...] = _rule("texts", optional=True)
    nvml_names: tuple[str, ...] = _rule("texts", optional=True)
    arch: str = _rule("text")
    compute_capability: str = _rule("text")
    mem_type: str = _rule("text")

    sm_count: int = _rule("whole", 1)
    mem_capacity_gb: float = _rule("number")
    bandwidth_gb_s: float = _rule("number")
    l2_mb: float = _rule("number")
    fp32_tflops: float = _rule("number")
    tf32_tflops: float | None = _rule("number", optional=True)
    bf16_tflops: float = _rule("number")
    fp8_tflops: float | None = _rule("number", optional=True)
    fp4_tflops: float | None = _rule("number", optional=True)
    boost_clock_mhz: float | None = _rule("number", optional=True)
    tdp_w: float | None = _rule("number", optional=True)
    smem_per_sm_kb: int = _rule("whole", 1)
    max_smem_per_block_kb: int = _rule("whole", 1)
    regs_per_sm: int = _rule("whole", 1)
    max_warps_per_sm: int = _rule("whole", 1)
    max_blocks_per_sm: int = _rule("whole", 1)
    usable_mib: int | None = _rule("whole", 1, optional=True)

    notes: str = _rule("text", optional=True)
    sources: Mapping[str, str] = _rule("table", optional=True)
    uncertain: tuple[str, ...] = _rule("texts", optional=True)
    reasons: Mapping[str, str] = _rule("table", optional=True)
