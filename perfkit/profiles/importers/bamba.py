"""bamba: a Mamba-2 mixer or attention in each layer, and an MLP in every one."""

from __future__ import annotations

from perfkit.profiles.importers.config import Config, Draft, attention, auto_head_dim, layers, mamba2_conv


def import_bamba(config: Config) -> Draft:
    """Return the draft of a bamba model.

    Raises:
        InputError: a field is missing or refused.
    """
    draft = Draft(config)
    n_layers, hidden = config.layers("num_hidden_layers"), config.whole("hidden_size")
    if "attn_layer_indices" not in config.data:
        raise config.error("attn_layer_indices", "missing")
    with_attention = config.indices("attn_layer_indices", n_layers) or []  # counted from 0
    pattern = "".join("*" if layer in with_attention else "M" for layer in range(n_layers))
    heads, groups, state = (config.whole(f"mamba_{name}") for name in ("n_heads", "n_groups", "d_state"))
    head_dim = config.data.get("mamba_d_head")
    inner = config.whole("mamba_expand") * hidden if head_dim in (None, "auto") else 0
    head_dim = auto_head_dim(config, "mamba_d_head", "mamba_n_heads", inner)
    draft.values |= layers(pattern, mlp=n_layers, moe=0) | {
        "family": "mamba2", "model_type": "bamba", "n_v_heads": heads, "n_k_heads": groups, "d_v": head_dim,
        "d_k": state, "conv_kernel": config.whole("mamba_d_conv"),
        "conv_channels": mamba2_conv(heads, head_dim, groups, state), "hidden_size": hidden,
        "vocab_size": config.whole("vocab_size"), "n_mtp_layers": 0,
        "ffn_size": config.whole("intermediate_size"), "ffn_gated": True,
    }  # fmt: skip
    draft.values |= attention(config, pattern.count("*"), "head_dim")  # never there: hidden_size / heads
    draft.auto_state_dtype(draft.weights(config))
    draft.tied(config)
    draft.count = {"conv_bias": config.flag("mamba_conv_bias", True)}
    if any(config.flag(name, False) for name in ("attention_bias", "mlp_bias", "mamba_proj_bias")):
        draft.count = None
    return draft
