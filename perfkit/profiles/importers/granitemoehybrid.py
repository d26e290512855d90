"""granitemoehybrid: a Mamba-2 mixer or attention in each layer, then experts with a shared MLP, or the MLP alone."""

from __future__ import annotations

from types import MappingProxyType

from perfkit.profiles.importers.config import (
    Config,
    Draft,
    attention,
    auto_head_dim,
    layers,
    mamba2_conv,
    named_layers,
)

#: The second word of each is what transformers 5 writes.
_TYPES = MappingProxyType({"mamba": "M", "attention": "*", "linear_attention": "M", "full_attention": "*"})
#: Source: transformers' GraniteMoeHybridConfig, as far as published models agree with it. Its mamba_d_state 256,
#: 128 heads and 8 experts are no published model's: those fields must be there.
_DEFAULTS = MappingProxyType(
    {"mamba_n_groups": (1, "n_k_heads"), "mamba_d_conv": (4, "conv_kernel"), "mamba_expand": (2, "d_v")}
)


def import_granitemoehybrid(config: Config) -> Draft:
    """Return the draft of a granitemoehybrid model.

    Its layer_types count, not its mamba_ fields, which models of attention alone carry too. Its multipliers
    (embedding_, attention_, residual_multiplier, logits_scaling) scale values and move no bytes: they are not read.

    Raises:
        InputError: a field is missing or refused, the heads are not the inner width, or no layer is recurrent.
    """
    draft = Draft(config)
    pattern = named_layers(config, _TYPES, "layer_types", "layers_block_type")
    if pattern is None:  # the class would take Mamba-2 for all, which no published model is
        raise config.error("layer_types", "missing (or layers_block_type)")
    if "M" not in pattern:
        raise config.error("layer_types", "names no mamba layer: the model has no state-space layers")
    config = draft.with_defaults(config, _DEFAULTS)
    hidden, heads = config.whole("hidden_size"), config.whole("mamba_n_heads")
    inner = config.whole("mamba_expand") * hidden
    head_dim = auto_head_dim(config, "mamba_d_head", "mamba_n_heads", inner)
    if heads * head_dim != inner:
        message = f"times mamba_n_heads = {heads} must be mamba_expand · hidden_size = {inner}"
        raise config.error("mamba_d_head", message, head_dim)
    groups, state = config.whole("mamba_n_groups"), config.whole("mamba_d_state")
    draft.values |= {
        "family": "mamba2", "model_type": "granitemoehybrid", "n_v_heads": heads, "n_k_heads": groups,
        "d_v": head_dim, "d_k": state, "conv_kernel": config.whole("mamba_d_conv"),
        "conv_channels": mamba2_conv(heads, head_dim, groups, state), "hidden_size": hidden,
        "vocab_size": config.whole("vocab_size"), "n_mtp_layers": 0, "ffn_gated": True,
    }  # fmt: skip
    draft.values |= attention(config, pattern.count("*"), "head_dim")  # seldom there: hidden_size / heads
    _ffn(config, draft, pattern)
    draft.auto_state_dtype(draft.weights(config))
    draft.tied(config)
    draft.count = {"conv_bias": config.flag("mamba_conv_bias", True)}
    if config.flag("attention_bias", False) or config.flag("mamba_proj_bias", False):
        draft.count = None
    return draft


def _ffn(config: Config, draft: Draft, pattern: str) -> None:
    """With experts intermediate_size is one expert's width; without, it means nothing and the shared MLP is the MLP."""
    n_layers, experts = len(pattern), config.whole("num_local_experts", minimum=0)
    if experts == 0:
        draft.values |= layers(pattern, mlp=n_layers, moe=0) | {"ffn_size": config.whole("shared_intermediate_size")}
        return
    draft.values |= layers(pattern, mlp=0, moe=n_layers) | {
        "moe_experts": experts,
        "moe_top_k": config.whole("num_experts_per_tok"),
        "moe_size": config.whole("intermediate_size"),
        "moe_shared_size": config.whole("shared_intermediate_size", minimum=0) or None,
    }
