"""The matrix products of a step: which weights it reads, at which share, and how many FLOPs a row makes of them.

Three kinds of weights run one after the other, each in its own format: what every row uses (mixers, attention, MLPs,
shared experts, routers, latent projections), routed experts, and the LM head. Of the input embedding a step reads a row
a token, which is left out. zamba2's shared blocks are stored once or twice and read at every use: the blocks of 13 uses
do not stay in any L2.

A draft pass of a model's own multi-token-prediction layer reads that layer and the LM head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from perfkit.errors import InputError
from perfkit.profiles.params import count_params
from perfkit.profiles.schema import Model
from perfkit.roofline.weights import (
    PLAIN_DTYPE,
    QUANTIZED_DTYPES,
    WEIGHT_BYTES,
    drafter_params,
    expert_params,
    weight_bytes,
)
from perfkit.shape import dtype_name


class GpuLike(Protocol):
    """What this module reads of ``perfkit.profiles.Gpu``: dense rates in 10^12 FLOPs per second, None where absent."""

    @property
    def key(self) -> str:
        """Short name."""

    @property
    def fp32_tflops(self) -> float:
        """Of the CUDA cores."""

    @property
    def tf32_tflops(self) -> float | None:
        """TF32."""

    @property
    def bf16_tflops(self) -> float:
        """BF16 and FP16."""

    @property
    def fp8_tflops(self) -> float | None:
        """FP8."""

    @property
    def fp4_tflops(self) -> float | None:
        """FP4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatMul:
    """Weights that are read together and multiplied in one format, on one GPU.

    Attributes:
        name: dense, experts or head.
        bytes: all of them, as stored, times how often a step reads them.
        flops: of one token row.
        tflops: the rate of their format, 10^12 FLOPs per second.
        routed: whether rows pick some of them; the rest is read by any row.
    """

    name: str
    bytes: float
    flops: float
    tflops: float
    routed: bool = False

    def bytes_read(self, hit: Any) -> Any:
        """Return the bytes read where rows touch the share ``hit`` of what is routed."""
        return self.bytes * np.asarray(hit, dtype=np.float64) if self.routed else self.bytes

    def time_us(self, rows: Any, hit: Any, read_gb_s: float) -> Any:
        """Return the longer of reading the weights and multiplying ``rows`` rows with them, in microseconds."""
        memory = self.bytes_read(hit) / (read_gb_s * 1e3)
        return np.maximum(memory, np.multiply(rows, self.flops / (self.tflops * 1e6)))


def tensor_tflops(gpu: GpuLike, dtype: str, measured: float | None = None) -> float:
    """Return the dense rate at which a GPU multiplies weights of a format, 10^12 FLOPs per second.

    Formats that the GPU has no unit for are widened to BF16, which engines do in registers.

    Args:
        gpu: its datasheet rates.
        dtype: of the weights.
        measured: a measured rate of BF16 products (:meth:`perfkit.roofline.Roofs.rate`), in place of the datasheet's
            wherever products run in BF16.
    """
    own = {"float4_e2m1": gpu.fp4_tflops, "float8_e4m3fn": gpu.fp8_tflops,
           "float32": gpu.tf32_tflops or gpu.fp32_tflops}.get(dtype)  # fmt: skip
    return own or measured or gpu.bf16_tflops


def step_matmuls(
    model: Model, gpu: GpuLike, *, tp: int = 1, expert_dtype: str | None = None, dense_dtype: str | None = None,
    bf16_tflops: float | None = None,
) -> tuple[MatMul, ...]:  # fmt: skip
    """Return the matrix products of one pass through the model, on each of ``tp`` GPUs.

    Args:
        model: the whole model.
        gpu: its rates.
        tp: GPUs that share the model.
        expert_dtype: format of the routed experts, in place of the model's.
        dense_dtype: format of the rest, in place of the model's.
        bf16_tflops: a measured rate of BF16 products.

    Raises:
        InputError: as :func:`perfkit.roofline.weights.weight_bytes`.
    """
    stored = weight_bytes(model, tp=tp, expert_dtype=expert_dtype, dense_dtype=dense_dtype)
    formats = _formats(model, expert_dtype, dense_dtype)
    experts, again = expert_params(model), _read_again(model)
    dense = (model.params_total or 0) - experts - model.params_embedding
    rate = {kind: tensor_tflops(gpu, dtype, bf16_tflops) for kind, dtype in formats.items()}
    found = [MatMul(name="dense", bytes=stored.dense + again * WEIGHT_BYTES[formats["dense"]] / tp,
                    flops=2 * (dense + again) / tp, tflops=rate["dense"])]  # fmt: skip
    if experts:
        found.append(_routed(model, stored.experts, experts / tp, rate["experts"]))
    return (*found, _head(model, formats["head"], rate["head"], tp))


def draft_matmuls(
    model: Model, gpu: GpuLike, *, tp: int = 1, expert_dtype: str | None = None, bf16_tflops: float | None = None
) -> tuple[MatMul, ...]:
    """Return the matrix products of one pass of the model's own draft layers; () without any.

    Quantized checkpoints leave draft layers in BF16; arguments are those of :func:`step_matmuls`.

    Raises:
        InputError: as :func:`perfkit.roofline.weights.drafter_params`.
    """
    params = drafter_params(model)
    if not params:
        return ()
    plain = _formats(model, expert_dtype, None)["head"]
    rate, element = tensor_tflops(gpu, plain, bf16_tflops), WEIGHT_BYTES[plain]
    experts = model.n_mtp_layers * expert_params(model) // model.n_moe_layers if model.n_moe_layers else 0
    # Several layers draft one position each: a pass runs one of them.
    share = 1 / (model.n_mtp_layers * tp)
    dense = (params - experts) * share
    found = [MatMul(name="dense", bytes=dense * element, flops=2 * dense, tflops=rate)]
    if experts:
        found.append(_routed(model, experts * share * element, experts * share, rate))
    return (*found, _head(model, plain, rate, tp))


def _formats(model: Model, expert_dtype: str | None, dense_dtype: str | None) -> dict[str, str]:
    """Return the format of each kind of weights, by the rules of :func:`perfkit.roofline.weights.weight_bytes`."""
    experts = dtype_name(expert_dtype or model.weight_dtype or "")
    dense = dtype_name(dense_dtype or model.dense_weight_dtype or experts)
    return {"experts": experts, "dense": dense, "head": PLAIN_DTYPE if experts in QUANTIZED_DTYPES else experts}


def _routed(model: Model, stored: float, params: float, tflops: float) -> MatMul:
    if not model.moe_top_k or not model.moe_experts:
        raise InputError("how many experts a row picks is not known", field="model", value=model.key)
    return MatMul(name="experts", bytes=stored, flops=2 * params * model.moe_top_k / model.moe_experts, tflops=tflops,
                  routed=True)  # fmt: skip


def _head(model: Model, dtype: str, tflops: float, tp: int) -> MatMul:
    params = model.vocab_size * model.hidden_size / tp
    return MatMul(name="head", bytes=params * WEIGHT_BYTES[dtype], flops=2 * params, tflops=tflops)


def _read_again(model: Model) -> int:
    """Return the parameters that a pass uses once more than they are stored: zamba2's shared blocks.

    How many copies there are is what the total leaves room for beside everything that is not a block: adapters, which
    the model does not list, are smaller than a block altogether.
    """
    if model.model_type != "zamba2" or not model.n_attn_layers or model.params_total is None:
        return 0
    without = count_params(model, shared_blocks=(0, 0, False))[0]
    block = count_params(model, shared_blocks=(1, 0, False))[0] - without
    copies = min(max((model.params_total - without) // block, 1), model.n_attn_layers)
    return (model.n_attn_layers - copies) * block
