"""One GPU's part of a model under tensor parallelism: heads split evenly, the rest of the arithmetic stays the same.

Copied, not split, are MLA's latent, KV heads where there are fewer than GPUs and they divide their number, and the one
group of a Mamba-2 layer that has one. Source: vLLM, model_executor/layers/mamba/mamba_utils.py and
model_executor/layers/linear.py (heads divided by the size of the group, KV heads and a single group repeated).
"""

from __future__ import annotations

from dataclasses import replace

from perfkit.errors import InputError
from perfkit.profiles.schema import Model

#: Sizes that an error proposes.
_SIZES = (1, 2, 4, 8, 16, 32)


def part_of(model: Model, tp: int) -> Model:
    """Return the model that one of ``tp`` GPUs holds: its heads, convolution channels, FFN widths and KV elements.

    Parameters, vocabulary and experts stay those of the whole model; :func:`perfkit.roofline.weights.weight_bytes`
    divides them.

    Raises:
        InputError: something does not split evenly.
    """
    if isinstance(tp, bool) or not isinstance(tp, int) or tp < 1:
        raise InputError("must be a whole number of at least 1", field="tp", value=tp)
    if tp == 1:
        return model
    if (uneven := _uneven(model, tp)) is not None:
        raise InputError(f"{model.key}'s {uneven} = {getattr(model, uneven)} does not split evenly", field="tp",
                         value=tp, allowed=tp_sizes(model))  # fmt: skip
    kv_heads = max(model.n_kv_heads // tp, 1) if model.n_attn_layers else 0
    kv = model.kv_elements_per_token
    if model.n_attn_layers and not model.mla:
        kv = kv * kv_heads // model.n_kv_heads
    part = replace(
        model, n_v_heads=model.n_v_heads // tp, n_k_heads=max(model.n_k_heads // tp, 1),
        n_attn_heads=model.n_attn_heads // tp, n_kv_heads=model.n_kv_heads if model.mla else kv_heads,
        kv_elements_per_token=kv, ffn_size=_share(model.ffn_size, tp), moe_size=_share(model.moe_size, tp),
        moe_shared_size=_share(model.moe_shared_size, tp),
    )  # fmt: skip
    return replace(part, conv_channels=part.shape.conv_channels)


def tp_sizes(model: Model) -> tuple[int, ...]:
    """Return the numbers of GPUs, powers of two up to 32, over which the model splits evenly."""
    return tuple(size for size in _SIZES if _uneven(model, size) is None)


def _uneven(model: Model, tp: int) -> str | None:
    """Return the field that does not split over ``tp`` GPUs."""
    single_group = model.family == "mamba2" and model.n_k_heads == 1
    names = ["n_v_heads", *([] if single_group else ["n_k_heads"])]
    names += ["n_attn_heads"] if model.n_attn_layers else []
    names += [name for name in ("ffn_size", "moe_size", "moe_shared_size") if getattr(model, name)]
    for name in names:
        if getattr(model, name) % tp:
            return name
    if model.n_attn_layers and not model.mla and model.n_kv_heads % tp and tp % model.n_kv_heads:
        return "n_kv_heads"
    return None


def _share(size: int | None, tp: int) -> int | None:
    return None if size is None else size // tp
