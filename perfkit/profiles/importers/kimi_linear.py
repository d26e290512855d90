"""kimi_linear: Kimi Delta Attention and multi-head latent attention (MLA), experts in all layers but the first."""

from __future__ import annotations

from perfkit.profiles.importers.config import Config, Draft, layers


def import_kimi_linear(config: Config) -> Draft:
    """Return the draft of a kimi_linear model.

    Its num_key_value_heads and head_dim do not describe the cache: MLA keeps kv_lora_rank + qk_rope_head_dim elements
    a token, once.

    Raises:
        InputError: a field is missing or refused.
    """
    draft = Draft(config)
    linear = config.part("linear_attn_config")
    pattern = _pattern(config, linear)
    heads, dim = linear.whole("num_heads"), linear.whole("head_dim")
    draft.values |= {
        "family": "kda", "model_type": "kimi_linear", "n_v_heads": heads, "n_k_heads": heads, "d_v": dim, "d_k": dim,
        "conv_kernel": linear.whole("short_conv_kernel_size"), "conv_channels": 3 * heads * dim,
        "hidden_size": config.whole("hidden_size"), "vocab_size": config.whole("vocab_size"), "ffn_gated": True,
        "state_dtype": "float32",  # always, in vLLM
        "n_mtp_layers": config.whole("num_nextn_predict_layers", minimum=0, default=0),
    }  # fmt: skip
    _attention(config, draft, pattern.count("*"))
    _ffn(config, draft, pattern)
    draft.weights(config)
    draft.tied(config)
    if config.has("quantization"):
        draft.doubt("weight_dtype", "an MLX quantization block is there; the model's own dtype is given")
    return draft


def _pattern(config: Config, linear: Config) -> str:
    n_layers = config.layers("num_hidden_layers")
    full = linear.indices("full_attn_layers", n_layers, first=1)  # these lists count from 1
    kda = linear.indices("kda_layers", n_layers, first=1)
    for name, value in (("full_attn_layers", full), ("kda_layers", kda)):
        if value is None:
            raise linear.error(name, "missing")
    both, either = set(full or ()) & set(kda or ()), set(full or ()) | set(kda or ())
    if both:
        raise linear.error("kda_layers", "is in full_attn_layers too", str(min(both)))
    if len(either) != n_layers:
        missing = min(set(range(1, n_layers + 1)) - either)
        raise linear.error("kda_layers", f"layer {missing} is in neither list (layers count from 1 to {n_layers})")
    return "".join("*" if layer in (full or ()) else "M" for layer in range(1, n_layers + 1))


def _attention(config: Config, draft: Draft, n_layers: int) -> None:
    if n_layers == 0:
        draft.values |= {"n_attn_heads": 0, "n_kv_heads": 0, "mla": False, "kv_elements_per_token": 0}
        return
    rank, rope = config.whole("kv_lora_rank"), config.whole("qk_rope_head_dim")
    draft.values |= {
        "n_attn_heads": config.whole("num_attention_heads"), "n_kv_heads": 1, "attn_head_dim": rank + rope,
        "mla": True, "kv_elements_per_token": n_layers * (rank + rope),
    }  # fmt: skip
    if config.has("q_lora_rank") or not (config.has("qk_nope_head_dim") and config.has("v_head_dim")):
        draft.count = None
    else:
        draft.count = {"mla_dims": (rank, rope, config.whole("qk_nope_head_dim"), config.whole("v_head_dim"))}


def _ffn(config: Config, draft: Draft, pattern: str) -> None:
    n_layers = len(pattern)
    if not config.has("num_experts"):
        draft.values |= layers(pattern, mlp=n_layers, moe=0) | {"ffn_size": config.whole("intermediate_size")}
        return
    first = config.whole("first_k_dense_replace", minimum=0, default=0)
    every = config.whole("moe_layer_freq", default=1)
    moe = sum(layer >= first and layer % every == 0 for layer in range(n_layers))
    shared = config.whole("num_shared_experts", minimum=0, default=0)
    width = config.whole("moe_intermediate_size")
    draft.values |= layers(pattern, mlp=n_layers - moe, moe=moe) | {
        "moe_experts": config.whole("num_experts"),
        "moe_top_k": config.whole("num_experts_per_token", "num_experts_per_tok"),
        "moe_size": width,
        "moe_shared_size": shared * width or None,
    }
    if moe < n_layers:
        draft.values["ffn_size"] = config.whole("intermediate_size")
