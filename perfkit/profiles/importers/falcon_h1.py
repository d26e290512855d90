"""falcon_h1: a Mamba-2 mixer and attention side by side in each layer, then an MLP."""

from __future__ import annotations

from perfkit.profiles.importers.config import Config, Draft, attention, auto_head_dim, layers, mamba2_conv


def import_falcon_h1(config: Config) -> Draft:
    """Return the draft of a falcon_h1 model.

    Raises:
        InputError: a field is missing or refused, or mamba_d_ssm is not heads times head dimension.
    """
    draft = Draft(config)
    n_layers, hidden = config.layers("num_hidden_layers"), config.whole("hidden_size")
    with_attention = config.indices("attn_layer_indices", n_layers)  # null: all
    pattern = "".join("P" if with_attention is None or layer in with_attention else "M" for layer in range(n_layers))
    # where mamba_d_ssm is given, mamba_expand is ignored
    inner = config.whole("mamba_d_ssm") if config.has("mamba_d_ssm") else config.whole("mamba_expand") * hidden
    heads, groups = config.whole("mamba_n_heads"), config.whole("mamba_n_groups")
    head_dim = auto_head_dim(config, "mamba_d_head", "mamba_n_heads", inner)
    if heads * head_dim != inner:
        raise config.error("mamba_d_ssm", f"must be mamba_n_heads · mamba_d_head = {heads * head_dim}", inner)
    state = config.whole("mamba_d_state")
    with_mlp = config.flag("mamba_use_mlp", True)
    draft.values |= layers(pattern, mlp=n_layers if with_mlp else 0, moe=0) | {
        "family": "mamba2", "model_type": "falcon_h1", "n_v_heads": heads, "n_k_heads": groups, "d_v": head_dim,
        "d_k": state, "conv_kernel": config.whole("mamba_d_conv"),
        "conv_channels": mamba2_conv(heads, head_dim, groups, state), "hidden_size": hidden,
        "vocab_size": config.whole("vocab_size"), "n_mtp_layers": 0,
        "ffn_size": config.whole("intermediate_size") if with_mlp else None, "ffn_gated": True if with_mlp else None,
    }  # fmt: skip
    draft.values |= attention(config, pattern.count("P"), "head_dim")
    draft.auto_state_dtype(draft.weights(config))
    draft.tied(config)
    draft.count = {"ssm_norm": config.flag("mamba_rms_norm", True), "conv_bias": config.flag("mamba_conv_bias", True)}
    biased = ("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias")
    if any(config.flag(name, False) for name in biased) or not with_mlp:
        draft.count = None
    return draft
