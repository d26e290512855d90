"""mamba2, in Hugging Face's format and in that of the mamba_ssm package (state-spaces/mamba2-2.7b)."""

from __future__ import annotations

from types import MappingProxyType

from perfkit.profiles.importers.config import Config, Draft, attention, layers, mamba2_conv

#: mamba_ssm's Mamba2 module, where ssm_cfg leaves a value out. Source: state-spaces/mamba mamba_ssm/modules/mamba2.py.
_DEFAULTS = MappingProxyType({"d_state": 128, "headdim": 64, "expand": 2, "ngroups": 1, "d_conv": 4})


def import_mamba2(config: Config) -> Draft:
    """Return the draft of a mamba2 model; its head_dim is the state's, its intermediate_size no MLP.

    Raises:
        InputError: a field is missing or refused.
    """
    draft = Draft(config)
    heads, head_dim, groups, state = (
        config.whole(name) for name in ("num_heads", "head_dim", "n_groups", "state_size")
    )
    draft.values |= _values("M" * config.layers("num_hidden_layers"), heads, head_dim, groups, state) | {
        "conv_kernel": config.whole("conv_kernel"),
        "hidden_size": config.whole("hidden_size"),
        "vocab_size": config.whole("vocab_size"),
    }
    draft.values |= attention(config, 0)
    draft.auto_state_dtype(draft.weights(config))
    draft.tied(config)
    draft.count = {"conv_bias": config.flag("use_conv_bias", True), "ssm_norm": config.flag("rms_norm", True)}
    if config.flag("use_bias", False):
        draft.count = None
    return draft


def import_mamba_ssm(config: Config) -> Draft:
    """Return the draft of a model of the mamba_ssm package, whose config has no model_type.

    Raises:
        InputError: a field is missing or refused, or the layer is not Mamba2.
    """
    draft = Draft(config)
    ssm = config.part("ssm_cfg")
    if ssm.data.get("layer") != "Mamba2":
        raise ssm.error("layer", "unknown layer", str(ssm.data.get("layer", "Mamba1")), "Mamba2")
    n_layers, hidden = config.layers("n_layer"), config.whole("d_model")
    if config.whole("d_intermediate", minimum=0, default=0):
        raise config.error("d_intermediate", "an MLP cannot be imported", config.data["d_intermediate"], "0")
    if config.items("attn_layer_idx"):
        raise config.error("attn_layer_idx", "attention layers cannot be imported", str(config.data["attn_layer_idx"]))
    size = {name: ssm.whole(name, default=default) for name, default in _DEFAULTS.items()}
    inner = size["expand"] * hidden
    if inner % size["headdim"]:
        raise ssm.error("headdim", f"must divide expand · d_model = {inner}", size["headdim"])
    multiple = config.whole("pad_vocab_size_multiple", default=1)
    draft.values |= _values("M" * n_layers, inner // size["headdim"], size["headdim"], size["ngroups"], size["d_state"])
    draft.values |= attention(config, 0) | {
        "conv_kernel": size["d_conv"],
        "hidden_size": hidden,
        "vocab_size": -(-config.whole("vocab_size") // multiple) * multiple,
        "tied_embeddings": config.flag("tie_embeddings", True),
    }
    draft.auto_state_dtype(draft.weights(config))
    return draft


def _values(pattern: str, heads: int, head_dim: int, groups: int, state: int) -> dict[str, object]:
    return layers(pattern, mlp=0, moe=0) | {
        "family": "mamba2", "model_type": "mamba2", "n_v_heads": heads, "n_k_heads": groups, "d_v": head_dim,
        "d_k": state, "conv_channels": mamba2_conv(heads, head_dim, groups, state), "n_mtp_layers": 0,
    }  # fmt: skip
