"""Hugging Face ``config.json`` files into models: one file a group of model types, the dispatch here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.checks import check_model
from perfkit.profiles.importers.bamba import import_bamba
from perfkit.profiles.importers.config import Config, Draft
from perfkit.profiles.importers.falcon_h1 import import_falcon_h1
from perfkit.profiles.importers.granitemoehybrid import import_granitemoehybrid
from perfkit.profiles.importers.kimi_linear import import_kimi_linear
from perfkit.profiles.importers.mamba2 import import_mamba2
from perfkit.profiles.importers.mamba_ssm import import_mamba_ssm
from perfkit.profiles.importers.nemotron_h import import_nemotron_h
from perfkit.profiles.importers.qwen3_5 import import_qwen3_5
from perfkit.profiles.importers.qwen3_next import import_qwen3_next
from perfkit.profiles.importers.zamba2 import import_zamba2
from perfkit.profiles.schema import Model
from perfkit.profiles.yamlfile import read_text

IMPORTERS: Mapping[str, Callable[[Config], Draft]] = MappingProxyType(
    {
        "nemotron_h": import_nemotron_h,
        "qwen3_5": import_qwen3_5,
        "qwen3_5_moe": import_qwen3_5,
        "qwen3_5_text": import_qwen3_5,
        "qwen3_5_moe_text": import_qwen3_5,
        "qwen3_next": import_qwen3_next,
        "kimi_linear": import_kimi_linear,
        "falcon_h1": import_falcon_h1,
        "bamba": import_bamba,
        "granitemoehybrid": import_granitemoehybrid,
        "zamba2": import_zamba2,
        "mamba2": import_mamba2,
    }
)

#: Types with recurrent state that perfkit does not import.
_OTHER_RECURRENT = frozenset(
    {
        "zamba",
        "mamba",
        "falcon_mamba",
        "jamba",
        "plamo2",
        "rwkv",
        "minimax",
        "recurrent_gemma",
        "kimi_k3",
    }
)
#: What stands in a config of the mamba_ssm package, which has no model_type.
_MAMBA_SSM = ("ssm_cfg", "d_model", "n_layer")


def import_config(path: str | Path) -> Model:
    """Return the model that a Hugging Face ``config.json`` describes.

    The key is the folder's name if the file is called config.json, else the file's.

    Raises:
        InputError: not such a file, a type that is not supported, or a field that is missing or contradicts another.
    """
    path = Path(path)
    try:
        data = json.loads(read_text(path))  # Python's parser takes the Infinity that some files hold
    except json.JSONDecodeError as error:
        raise InputError(f"not valid JSON: {error.msg}", file=path, field=f"line {error.lineno}") from None
    except (RecursionError, ValueError):
        raise InputError("not valid JSON: nested too deeply, or a number of thousands of digits", file=path) from None
    if not isinstance(data, dict):
        kind = {"list": "a list", "str": "a text", "NoneType": "null"}.get(type(data).__name__, "a number")
        raise InputError(f"must be a JSON object, as Hugging Face's config.json is, not {kind}", file=path)
    config = Config(data, path)
    model = _importer(config)(config).model(_key(path), f"imported from {path.name}")
    return check_model(replace(model, max_context=_max_context(config)), file=path)


def _max_context(config: Config) -> int | None:
    """Return the longest sequence that the model takes; None where the config does not say."""
    body = config.part("text_config") if config.has("text_config") else config
    names = ("max_position_embeddings", "model_max_length")
    return body.whole(*names) if any(body.has(name) for name in names) else None


def _importer(config: Config) -> Callable[[Config], Draft]:
    model_type: Any = config.data.get("model_type")
    if model_type is None:
        if any(name in config.data for name in _MAMBA_SSM):
            return import_mamba_ssm
        raise InputError("missing", file=config.path, field="model_type", allowed=tuple(IMPORTERS))
    if isinstance(model_type, str) and model_type in IMPORTERS:
        return IMPORTERS[model_type]
    if isinstance(model_type, str) and model_type in _OTHER_RECURRENT:
        raise InputError("this type cannot be imported: write a profile (.yaml) instead", file=config.path,
                         field="model_type", value=model_type, allowed=tuple(IMPORTERS))  # fmt: skip
    raise InputError("not a type with state-space layers that perfkit can import", file=config.path,
                     field="model_type", value=str(model_type), allowed=tuple(IMPORTERS))  # fmt: skip


def _key(path: Path) -> str:
    name = path.resolve().parent.name if path.name == "config.json" else path.name.removesuffix(".json")
    slug = re.sub(r"[^a-z0-9._-]+", "-", name.removesuffix(".config").casefold()).strip("-._")
    return slug or "imported"
