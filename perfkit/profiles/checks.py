"""What fields must say of each other. A profile that contradicts itself is refused, whoever wrote it."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from perfkit.errors import InputError
from perfkit.profiles.schema import PATTERN, Gpu, Model

_KEY = re.compile(r"[a-z0-9][a-z0-9._-]*")


def check_key(key: str, *, file: str | Path | None) -> None:
    """Refuse a key that could not be typed on a command line or be a file name.

    Raises:
        InputError: the key has other characters.
    """
    if not _KEY.fullmatch(key):
        raise InputError("not a key", file=file, field="key", value=key, allowed="a-z 0-9 . _ -")


def check_model(model: Model, *, file: str | Path | None) -> Model:
    """Return ``model`` if its fields agree with each other.

    Raises:
        InputError: a count that the layer pattern contradicts, a derived size that is wrong, or an expert or MLP
            field that is there without such layers or missing with them.
    """
    check_key(model.key, file=file)
    if unknown := sorted(set(model.layer_pattern) - set(PATTERN)):
        raise InputError(f"has {unknown[0]!r}", file=file, field="layer_pattern", value=model.layer_pattern,
                         allowed=", ".join(f"{char} {what}" for char, what in PATTERN.items()))  # fmt: skip
    if model.n_v_heads % model.n_k_heads:
        raise InputError(f"must be a multiple of n_k_heads = {model.n_k_heads}", file=file, field="n_v_heads",
                         value=model.n_v_heads)  # fmt: skip
    count = model.layer_pattern.count
    must = {
        "n_layers": (len(model.layer_pattern), "characters of layer_pattern"),
        "n_ssm_layers": (count("M") + count("P"), "M and P of layer_pattern"),
        "n_attn_layers": (count("*") + count("P"), "* and P of layer_pattern"),
        "conv_channels": (model.shape.conv_channels, "n_v_heads · d_v + 2 · n_k_heads · d_k"),
        "kv_elements_per_token": (_kv_elements(model), "attention layers × their cache per token"),
    }
    if count("-") + count("E"):  # the FFN is a layer of its own
        must["n_mlp_layers"] = (count("-"), "- of layer_pattern")
        must["n_moe_layers"] = (count("E"), "E of layer_pattern")
    for name, (expected, rule) in must.items():
        if getattr(model, name) != expected:
            raise InputError(f"must be {expected} ({rule})", file=file, field=name, value=getattr(model, name))
    if max(model.n_mlp_layers, model.n_moe_layers) > model.n_layers:
        name = "n_mlp_layers" if model.n_mlp_layers > model.n_layers else "n_moe_layers"
        raise InputError(f"must be at most n_layers = {model.n_layers}", file=file, field=name,
                         value=getattr(model, name))  # fmt: skip
    _together(model, ("n_attn_heads", "n_kv_heads", "attn_head_dim"), "n_attn_layers", file)
    _together(model, ("ffn_size",), "n_mlp_layers", file)
    _together(model, ("moe_experts", "moe_top_k", "moe_size"), "n_moe_layers", file)
    if model.moe_experts and model.moe_top_k and model.moe_top_k > model.moe_experts:
        raise InputError(f"must be at most moe_experts = {model.moe_experts}", file=file, field="moe_top_k",
                         value=model.moe_top_k)  # fmt: skip
    _check_uncertain(model, file)
    return model


def check_gpu(gpu: Gpu, *, file: str | Path | None) -> Gpu:
    """Return ``gpu`` if every number has a source and the fields agree.

    Raises:
        InputError: a number without a source, or a compute capability that is none.
    """
    check_key(gpu.key, file=file)
    if not re.fullmatch(r"\d+\.\d", gpu.compute_capability):
        raise InputError("not a compute capability", file=file, field="compute_capability",
                         value=gpu.compute_capability, allowed='a text such as "9.0"')  # fmt: skip
    for item in fields(Gpu):
        kind = item.metadata["rule"].kind
        if kind in ("whole", "number") and getattr(gpu, item.name) is not None and item.name not in gpu.sources:
            raise InputError("every number needs a source, as {value: …, source: …}", file=file, field=item.name)
    _check_uncertain(gpu, file)
    return gpu


def _kv_elements(model: Model) -> int:
    per_layer = (model.attn_head_dim or 0) * (1 if model.mla else 2 * model.n_kv_heads)
    return model.n_attn_layers * per_layer


def _together(model: Model, names: tuple[str, ...], layers: str, file: str | Path | None) -> None:
    for name in names:
        if bool(getattr(model, name)) != bool(getattr(model, layers)):
            there = "must be given" if getattr(model, layers) else "must be left out"
            raise InputError(f"{there}, since {layers} is {getattr(model, layers)}", file=file, field=name,
                             value=getattr(model, name))  # fmt: skip


def _check_uncertain(profile: Model | Gpu, file: str | Path | None) -> None:
    known = {item.name for item in fields(profile)}
    for name in profile.uncertain:
        if name not in known:
            raise InputError("names no field", file=file, field="uncertain", value=name)
        if name not in profile.reasons:
            raise InputError("needs a reason", file=file, field="uncertain", value=name)
