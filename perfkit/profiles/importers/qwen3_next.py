"""qwen3_next: Gated DeltaNet, gated attention and experts as qwen3_5's, in a flat file that leaves more out."""

from __future__ import annotations

from types import MappingProxyType

from perfkit.profiles.importers.config import Config, Draft
from perfkit.profiles.importers.qwen3_5 import fill_gdn

#: Source: transformers' Qwen3NextConfig. Its KV heads and head dimension are not those that attention elsewhere falls
#: back to (one KV head a head, hidden_size / heads), and published files have full_attention_interval, no layer_types.
_DEFAULTS = MappingProxyType(
    {
        "full_attention_interval": (4, "layer_pattern"),
        "linear_key_head_dim": (128, "d_k"),
        "linear_value_head_dim": (128, "d_v"),
        "linear_conv_kernel_dim": (4, "conv_kernel"),
        "num_key_value_heads": (2, "n_kv_heads"),
        "head_dim": (256, "attn_head_dim"),
    }
)


def import_qwen3_next(config: Config) -> Draft:
    """Return the draft of a qwen3_next model; its intermediate_size counts only where a layer has no experts.

    Raises:
        InputError: a field is missing or refused.
    """
    draft = Draft(config)
    defaults = dict(_DEFAULTS)
    if config.has("layer_types"):
        del defaults["full_attention_interval"]  # not read, so nothing rests on it
    body = draft.with_defaults(config, defaults)
    body.whole("num_experts", minimum=0)  # dense or not is no guess
    fill_gdn(draft, body)
    n_mtp_layers = config.whole("num_nextn_predict_layers", minimum=0, default=1)
    draft.values |= {"model_type": "qwen3_next", "n_mtp_layers": n_mtp_layers}
    if not config.has("num_nextn_predict_layers"):
        why = "no key in the config; published checkpoints hold one such layer, copies that transformers saved none"
        draft.doubt("n_mtp_layers", why)
    own = draft.weights(config)
    draft.tied(config)
    dtype = config.dtype("mamba_ssm_dtype")
    if dtype is None:
        draft.auto_state_dtype(own)
    else:
        draft.values["state_dtype"] = dtype
    return draft
