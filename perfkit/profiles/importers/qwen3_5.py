"""qwen3_5 and qwen3_5_moe, nested under text_config or flat: Gated DeltaNet, gated attention, an FFN in each layer."""

from __future__ import annotations

from perfkit.profiles.importers.config import Config, Draft, attention, layers, named_layers

_TYPES = {"linear_attention": "M", "full_attention": "*"}


def import_qwen3_5(config: Config) -> Draft:
    """Return the draft of a qwen3_5 model; vision tower and MTP layers are left out of the counts.

    Raises:
        InputError: a field is missing or refused.
    """
    draft = Draft(config)
    model_type = str(config.data["model_type"]).removesuffix("_text")
    body = config
    if config.has("text_config"):
        body = config.part("text_config")
    elif not config.has("linear_num_value_heads"):  # neither nested nor flat
        raise config.error("text_config", "missing")
    fill_gdn(draft, body)
    draft.values |= {
        "model_type": model_type,
        "n_mtp_layers": body.whole("mtp_num_hidden_layers", minimum=0, default=0),
    }
    own = draft.weights(body)
    draft.tied(config, body)  # the wrapper's word counts
    dtype = body.dtype("mamba_ssm_dtype") or config.dtype("mamba_ssm_dtype")
    if dtype is None:
        draft.auto_state_dtype(own)
    else:
        draft.values["state_dtype"] = dtype
    return draft


def fill_gdn(draft: Draft, body: Config) -> None:
    """Fill what qwen3_5 and qwen3_next name alike: layers, Gated DeltaNet, gated attention and the FFN.

    Raises:
        InputError: a field is missing or refused.
    """
    pattern = _pattern(body)
    keys, values = body.whole("linear_num_key_heads"), body.whole("linear_num_value_heads")
    d_k, d_v = body.whole("linear_key_head_dim"), body.whole("linear_value_head_dim")
    if values % keys:
        raise body.error("linear_num_value_heads", f"must be a multiple of linear_num_key_heads = {keys}", values)
    draft.values |= {
        "family": "gdn", "n_v_heads": values, "n_k_heads": keys, "d_v": d_v, "d_k": d_k,
        "conv_kernel": body.whole("linear_conv_kernel_dim"), "conv_channels": 2 * keys * d_k + values * d_v,
        "hidden_size": body.whole("hidden_size"), "vocab_size": body.whole("vocab_size"), "ffn_gated": True,
    }  # fmt: skip
    _ffn(body, draft, pattern)
    draft.values |= attention(body, pattern.count("*"), "head_dim")
    if body.flag("attention_bias", False) or not body.flag("attn_output_gate", True):
        draft.count = None


def _pattern(body: Config) -> str:
    pattern = named_layers(body, _TYPES, "layer_types")
    if pattern is not None:
        return pattern
    interval = body.whole("full_attention_interval")
    return "".join("*" if (layer + 1) % interval == 0 else "M" for layer in range(body.layers("num_hidden_layers")))


def _ffn(body: Config, draft: Draft, pattern: str) -> None:
    n_layers = len(pattern)
    dense = body.indices("mlp_only_layers", n_layers) or []
    step = body.whole("decoder_sparse_step", default=1)
    experts = body.whole("num_experts", minimum=0, default=0)
    moe = sum(layer not in dense and (layer + 1) % step == 0 for layer in range(n_layers)) if experts else 0
    draft.values |= layers(pattern, mlp=n_layers - moe, moe=moe)
    if moe:
        draft.values |= {
            "moe_experts": experts,
            "moe_top_k": body.whole("num_experts_per_tok"),
            "moe_size": body.whole("moe_intermediate_size"),
            "moe_shared_size": body.whole("shared_expert_intermediate_size", minimum=0, default=0) or None,
        }
    if moe < n_layers:
        draft.values["ffn_size"] = body.whole("intermediate_size")
