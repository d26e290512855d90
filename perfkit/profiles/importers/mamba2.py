"""mamba2 in Hugging Face's format: Mamba-2 mixers alone."""

from __future__ import annotations

from perfkit.profiles.importers.config import Config, Draft, attention, layers, mamba2_conv


def import_mamba2(config: Config) -> Draft:
    """Return the draft of a mamba2 model; its head_dim is the state's, its intermediate_size no MLP.

    Raises:
        InputError: a field is missing or refused.
    """
    draft = Draft(config)
    heads, head_dim, groups, state = (
        config.whole(name) for name in ("num_heads", "head_dim", "n_groups", "state_size")
    )
    draft.values |= layers("M" * config.layers("num_hidden_layers"), mlp=0, moe=0) | {
        "family": "mamba2", "model_type": "mamba2", "n_v_heads": heads, "n_k_heads": groups, "d_v": head_dim,
        "d_k": state, "conv_kernel": config.whole("conv_kernel"),
        "conv_channels": mamba2_conv(heads, head_dim, groups, state), "hidden_size": config.whole("hidden_size"),
        "vocab_size": config.whole("vocab_size"), "n_mtp_layers": 0,
    }  # fmt: skip
    draft.values |= attention(config, 0)
    draft.auto_state_dtype(draft.weights(config))
    draft.tied(config)
    draft.count = {"conv_bias": config.flag("use_conv_bias", True), "ssm_norm": config.flag("rms_norm", True)}
    if config.flag("use_bias", False):
        draft.count = None
    return draft
