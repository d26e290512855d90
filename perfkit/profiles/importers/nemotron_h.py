"""nemotron_h: a layer is a Mamba-2 mixer, attention, an MLP or experts, and nothing else."""

from __future__ import annotations

from perfkit.profiles.importers.config import Config, Draft, attention, layers, mamba2_conv

_BLOCKS = {"mamba": "M", "attention": "*", "mlp": "-", "moe": "E"}


def import_nemotron_h(config: Config) -> Draft:
    """Return the draft of a nemotron_h model.

    Raises:
        InputError: a field is missing or refused.
    """
    draft = Draft(config)
    pattern = _pattern(config)
    heads, head_dim = config.whole("mamba_num_heads"), config.whole("mamba_head_dim")
    # n_group is the router's and something else
    groups = config.whole("n_groups", "mamba_n_groups", "mamba_num_groups")
    state = config.whole("ssm_state_size", "mamba_d_state")
    hidden = config.whole("hidden_size")
    draft.values |= layers(pattern) | {
        "family": "mamba2", "model_type": "nemotron_h", "n_v_heads": heads, "n_k_heads": groups, "d_v": head_dim,
        "d_k": state, "conv_kernel": config.whole("conv_kernel", "mamba_d_conv"),
        "conv_channels": mamba2_conv(heads, head_dim, groups, state), "hidden_size": hidden,
        "vocab_size": config.whole("vocab_size"), "ffn_gated": False,  # relu2
        "n_mtp_layers": config.whole("num_nextn_predict_layers", minimum=0, default=0),
    }  # fmt: skip
    draft.values |= attention(config, pattern.count("*"), "head_dim", "attention_head_dim")
    if "*" in pattern and not (config.has("head_dim") or config.has("attention_head_dim")):
        draft.doubt("attn_head_dim", "neither head_dim nor attention_head_dim is there; hidden_size / heads")
    _ffn(config, draft, pattern)
    draft.weights(config)
    draft.tied(config)
    dtype = config.dtype("mamba_ssm_cache_dtype")
    draft.values["state_dtype"] = dtype or "float32"
    if dtype is None:
        draft.doubt("state_dtype", "no mamba_ssm_cache_dtype in the config; vLLM then takes float32 for nemotron_h")
    draft.count = {"conv_bias": config.flag("use_conv_bias", True)}
    if config.flag("use_bias", False) or config.flag("mlp_bias", False) or config.flag("attention_bias", False):
        draft.count = None
    return draft


def _pattern(config: Config) -> str:
    blocks = config.items("layers_block_type")
    text = config.data.get("hybrid_override_pattern")
    if text is not None:
        name = "hybrid_override_pattern"
        if not isinstance(text, str):
            raise config.error(name, "must be a text", str(text))
        for place, char in enumerate(text):
            if char not in _BLOCKS.values():
                raise config.error(name, f"has {char!r} at place {place}", text, "M * - E")
        pattern = text
    elif blocks is not None:
        name = "layers_block_type"
        for block in blocks:
            if block not in _BLOCKS:
                raise config.error(name, "unknown layer", str(block), tuple(_BLOCKS))
        pattern = "".join(_BLOCKS[block] for block in blocks)
    else:
        raise config.error("hybrid_override_pattern", "missing (or layers_block_type)")
    n_layers = config.layers("num_hidden_layers", default=len(pattern))
    if len(pattern) != n_layers:
        raise config.error(name, f"has {len(pattern)} layers, but num_hidden_layers is {n_layers}")
    return pattern


def _ffn(config: Config, draft: Draft, pattern: str) -> None:
    if "-" in pattern:  # else intermediate_size means nothing
        draft.values["ffn_size"] = _mlp_width(config, draft, pattern)
    if "E" not in pattern:
        return
    shared = config.whole("n_shared_experts", minimum=0, default=0)
    width = config.whole("moe_shared_expert_intermediate_size", minimum=0, default=0) if shared else 0
    draft.values |= {
        "moe_experts": config.whole("n_routed_experts"),
        "moe_top_k": config.whole("num_experts_per_tok"),
        "moe_size": config.whole("moe_intermediate_size"),
        "moe_shared_size": shared * width or None,
        "moe_latent_size": config.whole("moe_latent_size", minimum=0, default=0) or None,
    }


def _mlp_width(config: Config, draft: Draft, pattern: str) -> int:
    """A pruned checkpoint lists a width per layer; the mean stands for them."""
    widths = config.data.get("intermediate_size")
    if not isinstance(widths, list):
        return config.whole("intermediate_size")
    if len(widths) == len(pattern):
        widths = [width for width, char in zip(widths, pattern, strict=True) if char == "-"]
    if len(widths) != pattern.count("-"):
        raise config.error("intermediate_size", f"lists {len(widths)} widths for {pattern.count('-')} MLP layers")
    parts = [Config({"w": width}, config.path, "intermediate_size.").whole("w") for width in widths]
    if len(set(parts)) > 1:
        draft.doubt("ffn_size", f"intermediate_size differs from layer to layer ({min(parts)} to {max(parts)}); mean")
    return round(sum(parts) / len(parts))
