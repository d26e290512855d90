"""Parameter counts from a model's own numbers: exact for every family whose published count is known.

The totals reproduce the published tensor counts of Nemotron-3 Super and Nano-4B, Qwen3.5-4B and -122B, Kimi-Linear,
Falcon-H1-34B, Bamba-9B and Codestral-Mamba to the last parameter; a test holds them.
"""

from __future__ import annotations

from perfkit.profiles.schema import Model


def count_params(
    model: Model, *, ssm_norm: bool = True, conv_bias: bool = True, mla_dims: tuple[int, int, int, int] | None = None,
    attn_extra: int = 0, shared_blocks: tuple[int, int, bool] | None = None,
) -> tuple[int, int]:  # fmt: skip
    """Return (total, active) parameters of the text model, without vision tower and MTP layers.

    ``active`` is what one token uses, without the embedding matrices and the experts that it is not routed to.

    Args:
        model: its numbers; ``params_total`` and ``params_active`` are ignored.
        ssm_norm: Mamba-2: a gated norm follows the scan.
        conv_bias: Mamba-2: the short convolution has a bias.
        mla_dims: MLA's (kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim).
        attn_extra: what an attention layer has besides its projections: biases, a convolution.
        shared_blocks: zamba2: blocks of attention and MLP that the layers share, the rank of the adapters that each
            use has, and whether queries, keys and values have them as well as the MLP.
    """
    if shared_blocks is not None:
        total = _zamba2(model, ssm_norm, conv_bias, *shared_blocks)
        return total, total - model.params_embedding
    hidden, gated = model.hidden_size, 3 if model.ffn_gated else 2
    mixer = _mamba2(model, ssm_norm, conv_bias) if model.family == "mamba2" else (
        _gdn(model) if model.family == "gdn" else _kda(model))  # fmt: skip
    total = hidden + model.params_embedding + model.n_ssm_layers * mixer + model.n_attn_layers * (
        _attn(model, mla_dims) + attn_extra)  # fmt: skip
    # one norm before each mixer or FFN: nemotron_h's layers hold one of them, the others' both
    separate = "-" in model.layer_pattern or "E" in model.layer_pattern or model.n_mlp_layers + model.n_moe_layers == 0
    total += model.n_layers * hidden * (1 if separate else 2)
    total += model.n_mlp_layers * gated * hidden * (model.ffn_size or 0)
    idle = 0
    if model.moe_experts and model.moe_top_k and model.moe_size:
        expert = gated * (model.moe_latent_size or hidden) * model.moe_size
        router = model.moe_experts * hidden
        # a score correction bias per expert (nemotron_h, kimi_linear), or a gate on the shared expert (Qwen)
        router += {"nemotron_h": model.moe_experts, "kimi_linear": model.moe_experts}.get(model.model_type, 0)
        router += hidden if model.family == "gdn" else 0
        shared = gated * hidden * (model.moe_shared_size or 0) + 2 * hidden * (model.moe_latent_size or 0)
        total += model.n_moe_layers * (model.moe_experts * expert + router + shared)
        idle = model.n_moe_layers * (model.moe_experts - model.moe_top_k) * expert
    return total, total - model.params_embedding - idle


def _mamba2(model: Model, norm: bool, bias: bool) -> int:
    inner = model.n_v_heads * model.d_v
    project_in = model.hidden_size * (inner + model.conv_channels + model.n_v_heads)  # gate; x, B, C; dt
    conv = model.conv_channels * (model.conv_kernel + bias)
    return project_in + conv + 3 * model.n_v_heads + norm * inner + inner * model.hidden_size  # A, D, dt bias


def _zamba2(model: Model, norm: bool, bias: bool, blocks: int, rank: int, adapted: bool) -> int:
    """Blocks count once; a use adds its adapters and the linear layer that leads back into the model."""
    hidden, wide, ffn, gated = model.hidden_size, 2 * model.hidden_size, model.ffn_size or 0, model.ffn_gated or False
    queries, keys = model.n_attn_heads * (model.attn_head_dim or 0), model.n_kv_heads * (model.attn_head_dim or 0)
    up = (1 + gated) * ffn
    block = wide * (queries + 2 * keys) + queries * hidden + hidden * (up + ffn) + wide + hidden  # two norms
    use = hidden * hidden + rank * (hidden + up) + adapted * 3 * rank * 2 * wide
    return (hidden + model.params_embedding + model.n_ssm_layers * (_mamba2(model, norm, bias) + hidden)
            + blocks * block + model.n_attn_layers * use)  # fmt: skip


def _gdn(model: Model) -> int:
    inner = model.n_v_heads * model.d_v
    project_in = model.hidden_size * (model.conv_channels + inner + 2 * model.n_v_heads)  # q, k, v; gate; a, b
    return project_in + model.conv_channels * model.conv_kernel + 2 * model.n_v_heads + model.d_v + (
        inner * model.hidden_size)  # fmt: skip


def _kda(model: Model) -> int:
    hidden, inner = model.hidden_size, model.n_v_heads * model.d_v
    low_rank = 2 * (hidden * model.d_v + model.d_v * inner)  # decay and output gate
    return (hidden * model.conv_channels + model.conv_channels * model.conv_kernel + low_rank + inner
            + model.n_v_heads + hidden * model.n_v_heads + model.d_v + inner * hidden)  # fmt: skip


def _attn(model: Model, mla_dims: tuple[int, int, int, int] | None) -> int:
    hidden, heads, dim = model.hidden_size, model.n_attn_heads, model.attn_head_dim or 0
    if mla_dims is not None:
        rank, rope, nope, v_dim = mla_dims
        return (hidden * heads * (nope + rope) + hidden * (rank + rope) + rank + rank * heads * (nope + v_dim)
                + heads * v_dim * hidden)  # fmt: skip
    gate = hidden * heads * dim + 2 * dim if model.family == "gdn" else 0  # Qwen: output gate, norms of q and k
    return 2 * hidden * heads * dim + 2 * hidden * model.n_kv_heads * dim + gate
