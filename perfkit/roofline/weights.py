"""Bytes of a model's weights: routed experts, embeddings, the rest and the draft layers, each in its own format.

Checkpoints that are called NVFP4 mix formats: routed experts in four bits, what surrounds them in FP8 or BF16,
embeddings and LM head in BF16, draft (multi-token-prediction) layers in BF16. Vision towers are not counted.

Source: hf_quant_config of nvidia/Qwen3.5-122B-A10B-NVFP4 (everything but routed experts is left out); NVIDIA-NeMo
Nemotron, docs/nemotron/super3/quantization.md (formats by layer).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.params import count_params
from perfkit.profiles.schema import STATE_DTYPES, Model
from perfkit.roofline.split import part_of
from perfkit.shape import DTYPE_BYTES, dtype_name

#: Bytes of a stored weight. NVFP4 has an FP8 scale for every 16 weights; FP8's scales, one a matrix, are not counted.
WEIGHT_BYTES = MappingProxyType({**DTYPE_BYTES, "float4_e2m1": 0.5 + 1 / 16})
QUANTIZED_DTYPES = ("float8_e4m3fn", "float4_e2m1")
#: Quantized checkpoints leave embeddings, LM head and draft layers in this format; others have one for all.
PLAIN_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True)
class Weights:
    """Bytes on one GPU.

    Attributes:
        dense: mixers, attention, MLPs, shared experts, routers, norms.
        experts: routed experts, all of them.
        embedding: input embedding and LM head (one matrix where they are tied).
        drafter: the multi-token-prediction layers; 0 where they are not loaded.
    """

    dense: int
    experts: int
    embedding: int
    drafter: int = 0

    @property
    def total(self) -> int:
        """Their sum."""
        return self.dense + self.experts + self.embedding + self.drafter


def weight_bytes(
    model: Model,
    *,
    tp: int = 1,
    drafter: bool = False,
    expert_dtype: str | None = None,
    dense_dtype: str | None = None,
) -> Weights:
    """Return the bytes of a model's weights on each of ``tp`` GPUs.

    Args:
        model: the model.
        tp: GPUs that share it. Norms, routers and latent projections, which engines copy to each, count as split.
        drafter: whether the model's own draft layers are loaded; none if it has none.
        expert_dtype: format of the routed experts, and of all weights of a dense model; the model's if None.
        dense_dtype: format of the rest without embeddings; the model's if None, else that of the experts.

    Raises:
        InputError: the number of parameters or their format is not known, or the model does not split evenly.
    """
    part_of(model, tp)
    if model.params_total is None:
        raise InputError("its number of parameters is not known", field="model", value=model.key)
    named = expert_dtype or model.weight_dtype
    if named is None:
        raise InputError("the format of its weights is not known: name one", field="model", value=model.key,
                         allowed=STATE_DTYPES)  # fmt: skip
    expert_format = dtype_name(named, field="expert_dtype", allowed=STATE_DTYPES)
    dense_format = dtype_name(dense_dtype or model.dense_weight_dtype or expert_format, field="dense_dtype",
                              allowed=STATE_DTYPES)  # fmt: skip
    plain = WEIGHT_BYTES[PLAIN_DTYPE if expert_format in QUANTIZED_DTYPES else expert_format]
    experts, embedding = expert_params(model), model.params_embedding
    dense = model.params_total - experts - embedding

    def share(params: int, element: float) -> int:
        return -(-int(params * element) // tp)

    return Weights(
        dense=share(dense, WEIGHT_BYTES[dense_format]),
        experts=share(experts, WEIGHT_BYTES[expert_format]),
        embedding=share(embedding, plain),
        drafter=share(drafter_params(model), plain) if drafter else 0,
    )


def expert_params(model: Model) -> int:
    """Return the parameters of all routed experts; 0 for a dense model."""
    if not (model.moe_experts and model.moe_size):
        return 0
    matrices = 3 if model.ffn_gated else 2
    one = matrices * (model.moe_latent_size or model.hidden_size) * model.moe_size
    return model.n_moe_layers * model.moe_experts * one


def drafter_params(model: Model) -> int:
    """Return the parameters of the model's multi-token-prediction layers, which share its embeddings; 0 without any.

    Each is a layer of attention and FFN, a projection from two hidden states to one, and three norms. It gives the
    1,650,471,424 of Qwen3-Next (its tensors' total, 81,324,862,720, less 79,674,391,296) and the 2.94 * 10^9 of
    Nemotron-3 Super (123.61 * 10^9 less 120.67).
    """
    if not model.n_mtp_layers:
        return 0
    if model.mla:
        raise InputError("draft layers with latent attention are not counted", field="model", value=model.key)
    pattern = model.layer_pattern
    separate = "E" in pattern or "-" in pattern
    moe = model.n_moe_layers > 0
    more: dict[str, Any] = {
        "layer_pattern": pattern + ("*" + ("E" if moe else "-") if separate else "*"),
        "n_layers": model.n_layers + (2 if separate else 1),
        "n_attn_layers": model.n_attn_layers + 1,
        "n_moe_layers": model.n_moe_layers + moe,
        "n_mlp_layers": model.n_mlp_layers + (not moe),
    }
    layer = count_params(replace(model, **more))[0] - count_params(model)[0]
    return model.n_mtp_layers * (layer + 2 * model.hidden_size**2 + 3 * model.hidden_size)
