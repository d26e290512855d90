"""zamba2: Mamba-2 in every layer; some layers first call one of a few attention and MLP blocks that they share."""

from __future__ import annotations

from types import MappingProxyType

from perfkit.profiles.importers.config import Config, Draft, attention, layers, mamba2_conv, named_layers

#: A hybrid layer has both mixers. "m" and "g" are the oldest words, "linear_attention" is what transformers 5 writes.
_TYPES = MappingProxyType({"mamba": "M", "hybrid": "P", "linear_attention": "M", "m": "M", "g": "P"})
#: Source: transformers' Zamba2Config. Its 8 heads are no published model's: heads or their dimension must be there.
_DEFAULTS = MappingProxyType(
    {
        "mamba_d_state": (64, "d_k"),
        "mamba_d_conv": (4, "conv_kernel"),
        "mamba_expand": (2, "n_v_heads"),
        "mamba_ngroups": (1, "n_k_heads"),
        "num_mem_blocks": (1, "params_total"),
        "adapter_rank": (128, "params_total"),
    }
)
#: What files from before transformers took the type up call the same.
_OLD_NAMES = MappingProxyType(
    {
        "state_size": "mamba_d_state",
        "conv_dimension": "mamba_d_conv",
        "expansion_factor": "mamba_expand",
        "ffn_hidden_size": "intermediate_size",
        "lora_rank": "adapter_rank",
        "use_shared_attention_lora": "use_shared_attention_adapter",
    }
)


def import_zamba2(config: Config) -> Draft:
    """Return the draft of a zamba2 model.

    Blocks are shared, their KV caches are not: each hybrid layer has one, and reads its block's weights again.
    params_total and params_active count each block once.

    Raises:
        InputError: a field is missing or refused, two names of a field differ, or heads are not the width they split.
    """
    draft = Draft(config)
    config = draft.with_defaults(_renamed(config), _DEFAULTS)
    pattern, hidden = _pattern(config), config.whole("hidden_size")
    heads, head_dim = _heads(config, config.whole("mamba_expand") * hidden)
    groups, state = config.whole("mamba_ngroups"), config.whole("mamba_d_state")
    uses = pattern.count("P")
    draft.values |= layers(pattern, mlp=uses, moe=0) | {
        "family": "mamba2", "model_type": "zamba2", "n_v_heads": heads, "n_k_heads": groups, "d_v": head_dim,
        "d_k": state, "conv_kernel": config.whole("mamba_d_conv"),
        "conv_channels": mamba2_conv(heads, head_dim, groups, state), "hidden_size": hidden,
        "vocab_size": config.whole("vocab_size"), "n_mtp_layers": 0,
    }  # fmt: skip
    draft.values |= _attention(config, uses)
    if uses:
        gated = config.flag("gated_linear_unit", True)
        draft.values |= {"ffn_size": config.whole("intermediate_size", default=4 * hidden), "ffn_gated": gated}
    draft.auto_state_dtype(draft.weights(config))
    draft.tied(config, default=True)
    _count(config, draft, uses)
    return draft


def _renamed(config: Config) -> Config:
    data = dict(config.data)
    for old, new in _OLD_NAMES.items():
        if not config.has(old):
            continue
        if config.has(new) and config.data[new] != config.data[old]:
            raise config.error(old, f"must be {new} = {config.data[new]}", config.data[old])
        data[new] = data[old]
    return Config(data, config.path)


def _pattern(config: Config) -> str:
    pattern = named_layers(config, _TYPES, "layers_block_type", "layer_types")
    n_layers = config.layers("num_hidden_layers") if pattern is None else len(pattern)
    ids = config.indices("hybrid_layer_ids", n_layers)
    if pattern is None:
        if ids is None:
            raise config.error("layers_block_type", "missing (or hybrid_layer_ids)")
        return "".join("P" if layer in ids else "M" for layer in range(n_layers))
    hybrid = [layer for layer, char in enumerate(pattern) if char == "P"]
    if ids is not None and sorted(ids) != hybrid:
        raise config.error("hybrid_layer_ids", f"must be the hybrid layers of layers_block_type, {hybrid}", str(ids))
    return pattern


def _heads(config: Config, inner: int) -> tuple[int, int]:
    """Newer files give the heads and older ones their dimension; the inner width fixes the other."""
    name = "n_mamba_heads" if config.has("n_mamba_heads") else "mamba_headdim"
    if not config.has(name):
        raise config.error("n_mamba_heads", "missing (or mamba_headdim)")
    given = config.whole(name)
    if inner % given:
        raise config.error(name, f"must divide mamba_expand · hidden_size = {inner}", given)
    heads, dim = (given, inner // given) if name == "n_mamba_heads" else (inner // given, given)
    if config.whole("mamba_headdim", default=dim) != dim:
        raise config.error("mamba_headdim", f"must be mamba_expand · hidden_size / n_mamba_heads = {dim}",
                           config.data["mamba_headdim"])  # fmt: skip
    return heads, dim


def _attention(config: Config, uses: int) -> dict[str, object]:
    """Attention reads the hidden state beside the embedding, so it is twice as wide as the model."""
    if not uses:
        return attention(config, 0)
    wide, heads = 2 * config.whole("hidden_size"), config.whole("num_attention_heads")
    if wide % heads:
        raise config.error("num_attention_heads", f"must divide 2 · hidden_size = {wide}", heads)
    must = {"attention_hidden_size": (wide, "2 · hidden_size"),
            "attention_head_dim": (wide // heads, "2 · hidden_size / num_attention_heads"),
            "kv_channels": (wide // 2 // heads, "hidden_size / num_attention_heads, half a head")}  # fmt: skip
    for name, (value, rule) in must.items():
        if config.whole(name, default=value) != value:
            raise config.error(name, f"must be {value} ({rule})", config.data[name])
    filled = Config({**config.data, "attention_head_dim": wide // heads}, config.path)
    return attention(filled, uses, "attention_head_dim")


def _count(config: Config, draft: Draft, uses: int) -> None:
    blocks, rank = config.whole("num_mem_blocks"), config.whole("adapter_rank")
    if uses and blocks > uses:
        raise config.error("num_mem_blocks", f"must be at most the number of hybrid layers, {uses}", blocks)
    adapted = config.flag("use_shared_attention_adapter", False)
    draft.count = {"shared_blocks": (blocks, rank, adapted)} if uses else {}
    if config.flag("add_bias_linear", False) or not config.flag("use_shared_block_lora", True):
        draft.count = None
    if uses:
        draft.notes.append(
            f"Attention and MLP are {blocks} shared {'block' if blocks == 1 else 'blocks'} that {uses} layers call: "
            "parameters count once, and each call reads them again and has a KV cache of its own."
        )
