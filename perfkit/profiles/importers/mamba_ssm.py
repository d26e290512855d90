"""Checkpoints of the mamba_ssm package (state-spaces/mamba2-2.7b): no model_type, and names of their own."""

from __future__ import annotations

from types import MappingProxyType

from perfkit.profiles.importers.config import Config, Draft, attention, layers, mamba2_conv

#: What the package's Mamba2 module takes where ssm_cfg leaves a value out, as published files do; no guess.
_SSM_DEFAULTS = MappingProxyType({"d_state": 128, "headdim": 64, "expand": 2, "ngroups": 1, "d_conv": 4})
#: The package rounds widths up to these: its MLP's, and the vocabulary where pad_vocab_size_multiple is not there.
_MLP_MULTIPLE, _VOCAB_MULTIPLE = 128, 8


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
    with_attention = config.indices("attn_layer_idx", n_layers) or []  # counted from 0
    if config.data.get("moe_layer_idx"):
        raise config.error("moe_layer_idx", "experts cannot be imported", str(config.data["moe_layer_idx"]), "[]")
    size = {name: ssm.whole(name, default=default) for name, default in _SSM_DEFAULTS.items()}
    inner, name = size["expand"] * hidden, "expand · d_model"
    if ssm.has("d_ssm"):  # the rest of the inner width is a gated MLP
        inner, name = ssm.whole("d_ssm"), "d_ssm"
    if inner % size["headdim"]:
        raise ssm.error("headdim", f"must divide {name} = {inner}", size["headdim"])
    heads, mlp = inner // size["headdim"], config.whole("d_intermediate", minimum=0, default=0)
    pattern = "".join("*" if layer in with_attention else "M" for layer in range(n_layers))
    draft.values |= layers(pattern, mlp=n_layers if mlp else 0, moe=0) | {
        "family": "mamba2", "model_type": "mamba2", "n_v_heads": heads, "n_k_heads": size["ngroups"],
        "d_v": size["headdim"], "d_k": size["d_state"], "conv_kernel": size["d_conv"],
        "conv_channels": mamba2_conv(heads, size["headdim"], size["ngroups"], size["d_state"]), "hidden_size": hidden,
        "vocab_size": _up(config.whole("vocab_size"), config.whole("pad_vocab_size_multiple", default=_VOCAB_MULTIPLE)),
        "n_mtp_layers": 0, "tied_embeddings": config.flag("tie_embeddings", True),
        "ffn_size": _up(mlp, _MLP_MULTIPLE) or None, "ffn_gated": True if mlp else None,
    }  # fmt: skip
    draft.count = {"ssm_norm": ssm.flag("rmsnorm", True), "conv_bias": ssm.flag("conv_bias", True)}
    _attention(config, draft, len(with_attention))
    draft.auto_state_dtype(draft.weights(config))
    if ssm.has("d_ssm") or ssm.flag("bias", False) or not config.flag("rms_norm", True):
        draft.count = None
    return draft


def _attention(config: Config, draft: Draft, n_layers: int) -> None:
    if n_layers == 0:  # attn_cfg then means nothing
        draft.values |= attention(config, 0)
        return
    part = config.part("attn_cfg")
    if part.whole("mlp_dim", minimum=0, default=0):
        raise part.error("mlp_dim", "an MLP inside attention cannot be imported", part.data["mlp_dim"], "0")
    heads, hidden = part.whole("num_heads"), config.whole("d_model")
    kv_heads = part.whole("num_heads_kv", default=heads)
    if heads % kv_heads:
        raise part.error("num_heads_kv", f"must divide num_heads = {heads}", kv_heads)
    if not part.has("head_dim") and hidden % heads:
        raise part.error("num_heads", f"must divide d_model = {hidden}, since there is no head_dim", heads)
    dim = part.whole("head_dim", default=hidden // heads)
    draft.values |= {
        "n_attn_heads": heads, "n_kv_heads": kv_heads, "attn_head_dim": dim, "mla": False,
        "kv_elements_per_token": n_layers * 2 * kv_heads * dim,
    }  # fmt: skip
    channels, kernel = (heads + 2 * kv_heads) * dim, part.whole("d_conv", minimum=0, default=0)
    extra = channels * (kernel + 1) if kernel else 0  # with a bias
    extra += channels if part.flag("qkv_proj_bias", True) else 0
    extra += hidden if part.flag("out_proj_bias", True) else 0
    draft.count = {**(draft.count or {}), "attn_extra": extra}
    if kernel:
        draft.notes.append(
            f"Queries, keys and values of each attention layer pass a convolution of their own, {channels} channels "
            f"over {kernel} tokens; its state is in none of the sizes."
        )


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
