"""What every importer uses: typed reading of a config.json, and the draft of a model that it fills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from perfkit.errors import InputError
from perfkit.profiles.fields import record, whole
from perfkit.profiles.params import count_params
from perfkit.profiles.schema import STATE_DTYPES, Model
from perfkit.shape import dtype_name

_MISSING = object()
#: A layer pattern is built with one character a layer, so a slip of the pen must not fill the memory.
MAX_LAYERS = 10_000


@dataclass(frozen=True)
class Config:
    """A config.json, or one of its parts: ``prefix`` is what stands before a field in messages."""

    data: Mapping[str, Any]
    path: Path
    prefix: str = ""

    def error(self, name: str, message: str, value: Any = None, allowed: Any = None) -> InputError:
        """Return the error of one field."""
        return InputError(message, file=self.path, field=self.prefix + name, value=value, allowed=allowed)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.data.get(name) is not None

    def whole(self, *names: str, minimum: int = 1, default: Any = _MISSING) -> int:
        """Return the whole number under the first of ``names`` that is there.

        Raises:
            InputError: none is there and there is no default, or not a whole number of at least ``minimum``.
        """
        for name in names:
            if self.has(name):
                if isinstance(self.data[name], str):
                    raise self.error(name, "must be a whole number", self.data[name])
                return whole(self.data[name], file=self.path, field=self.prefix + name, minimum=minimum)
        if default is _MISSING:
            raise self.error(names[0], f"missing{' (or ' + ', '.join(names[1:]) + ')' if names[1:] else ''}")
        return int(default)

    def layers(self, name: str, default: Any = _MISSING) -> int:
        """Return a number of layers.

        Raises:
            InputError: as :meth:`whole`, or more layers than any model has.
        """
        value = self.whole(name, default=default)
        if value > MAX_LAYERS:
            raise self.error(name, "is too many layers", value, f"1 to {MAX_LAYERS}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return a boolean.

        Raises:
            InputError: there, and not a boolean.
        """
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false", str(value))
        return value

    def items(self, name: str) -> list[Any] | None:
        """Return a list, or None where there is none.

        Raises:
            InputError: there, and not a list.
        """
        value = self.data.get(name)
        if value is not None and not isinstance(value, list):
            raise self.error(name, "must be a list", str(value))
        return value

    def indices(self, name: str, n_layers: int, first: int = 0) -> list[int] | None:
        """Return a list of layer numbers counted from ``first``, each once, or None where there is none.

        Raises:
            InputError: not a list, a number outside the layers, or one twice.
        """
        values = self.items(name)
        if values is None:
            return None
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or not first <= value < n_layers + first:
                raise self.error(name, "is not a layer", str(value), f"{first} to {n_layers + first - 1}")
            if values.count(value) > 1:
                raise self.error(name, "names a layer twice", str(value))
        return values

    def part(self, name: str) -> Config:
        """Return a nested object.

        Raises:
            InputError: missing, or not an object.
        """
        value = self.data.get(name)
        if not isinstance(value, Mapping):
            raise self.error(name, "missing" if value is None else "must be an object")
        return Config(value, self.path, f"{self.prefix}{name}.")

    def dtype(self, *names: str) -> str | None:
        """Return the dtype under the first of ``names`` that is there and not "auto", or None.

        Raises:
            InputError: not a dtype that perfkit knows.
        """
        for name in names:
            value = self.data.get(name)
            if value is None or value == "auto":
                continue
            try:
                return dtype_name(str(value).removeprefix("torch."), allowed=STATE_DTYPES)
            except InputError:
                raise self.error(name, "unknown dtype", str(value), STATE_DTYPES) from None
        return None


@dataclass
class Draft:
    """A model being filled by its importer: fields, notes, and the fields that rest on a guess."""

    config: Config
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    uncertain: dict[str, str] = field(default_factory=dict)
    count: dict[str, Any] | None = field(default_factory=dict)  # arguments of count_params; None: not countable

    def doubt(self, name: str, why: str) -> None:
        """Mark a field as a guess."""
        self.uncertain[name] = why

    def with_defaults(self, config: Config, defaults: Mapping[str, tuple[int, str]]) -> Config:
        """Return ``config`` with what it leaves out filled in, and mark what rests on that as a guess.

        Args:
            config: the config.
            defaults: by field of the config, the value that its configuration class takes and the model's field.
        """
        absent = {name: value for name, (value, _) in defaults.items() if not config.has(name)}
        for name, value in absent.items():
            self.doubt(defaults[name][1], f"no {config.prefix}{name} in the config; {value}, its class's default")
        return replace(config, data={**config.data, **absent})

    def weights(self, config: Config) -> str:
        """Fill the weight dtypes from ``config`` or the file's top level; return the model's own dtype."""
        own = config.dtype("dtype", "torch_dtype") or self.config.dtype("dtype", "torch_dtype")
        if own is None:
            own = "bfloat16"
            self.doubt("weight_dtype", "the config names no dtype; bfloat16 is assumed")
        self.values |= {"weight_dtype": own, "dense_weight_dtype": None}
        quantization = self.config.data.get("quantization_config")
        if isinstance(quantization, Mapping):
            self._quantized(quantization, own)
        return own

    def _quantized(self, quantization: Mapping[str, Any], own: str) -> None:
        algorithm = str(quantization.get("quant_algo") or quantization.get("quant_method") or "").casefold()
        dtype = {"nvfp4": "float4_e2m1", "fp8": "float8_e4m3fn"}.get(algorithm)
        if dtype is None:
            self.doubt("weight_dtype", f"quantization {algorithm or 'of an unknown kind'} is not modelled")
            return
        self.values["weight_dtype"] = dtype
        ignored = quantization.get("ignore") or quantization.get("exclude_modules") or []
        if any(mixer in str(entry) for entry in ignored for mixer in ("linear_attn", "self_attn", "mixer")):
            self.values["dense_weight_dtype"] = own
            self.notes.append("The mixers are left out of the quantization.")

    def tied(self, *configs: Config, default: bool = False) -> None:
        """Fill ``tied_embeddings`` from the first config that says, else with its class's default."""
        for config in configs:
            if config.has("tie_word_embeddings"):
                self.values["tied_embeddings"] = config.flag("tie_word_embeddings", False)
                return
        self.values["tied_embeddings"] = default
        self.doubt("tied_embeddings", f"the config does not say; {'tied' if default else 'untied'} is assumed")

    def auto_state_dtype(self, own: str) -> None:
        """Fill ``state_dtype`` with the model's dtype, as vLLM's "auto" does for this type."""
        self.values["state_dtype"] = own
        self.doubt("state_dtype", f"the config does not say; vLLM takes the model's {own}, SGLang float32")

    def model(self, key: str, source: str) -> Model:
        """Return the model.

        Raises:
            InputError: a value that the schema refuses.
        """
        path = self.config.path
        if self.values["n_ssm_layers"] == 0:
            raise InputError("the model has no state-space layers", file=path, field="model_type",
                             value=self.values["model_type"])  # fmt: skip
        data = {
            "key": key,
            "name": key,
            "source": source,
            "notes": " ".join(self.notes) or None,
            "uncertain": list(self.uncertain),
            "reasons": dict(self.uncertain),
            **self.values,
        }
        model = record(Model, data, file=path)
        if self.count is None:
            return model
        total, active = count_params(model, **self.count)
        return replace(model, params_total=total, params_active=active)


def attention(config: Config, n_layers: int, *head_dims: str) -> dict[str, Any]:
    """Return the attention fields of ``n_layers`` layers with keys and values per KV head.

    The head dimension is the first of ``head_dims`` that is there, else hidden_size / num_attention_heads.

    Raises:
        InputError: a field is missing, or the heads do not divide.
    """
    if n_layers == 0:
        return {"n_attn_heads": 0, "n_kv_heads": 0, "attn_head_dim": None, "mla": False, "kv_elements_per_token": 0}
    heads = config.whole("num_attention_heads")
    kv_heads = config.whole("num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"must divide num_attention_heads = {heads}", kv_heads)
    hidden = config.whole("hidden_size")
    if not any(config.has(name) for name in head_dims) and hidden % heads:
        raise config.error("num_attention_heads", f"must divide hidden_size = {hidden}", heads)
    dim = config.whole(*head_dims, default=hidden // heads)
    return {"n_attn_heads": heads, "n_kv_heads": kv_heads, "attn_head_dim": dim, "mla": False,
            "kv_elements_per_token": n_layers * 2 * kv_heads * dim}  # fmt: skip


def layers(pattern: str, *, mlp: int | None = None, moe: int | None = None) -> dict[str, Any]:
    """Return the layer counts of a pattern; ``mlp`` and ``moe`` where the FFN sits inside the layers."""
    count = pattern.count
    return {
        "layer_pattern": pattern,
        "n_layers": len(pattern),
        "n_ssm_layers": count("M") + count("P"),
        "n_attn_layers": count("*") + count("P"),
        "n_mlp_layers": count("-") if mlp is None else mlp,
        "n_moe_layers": count("E") if moe is None else moe,
    }


def named_layers(config: Config, words: Mapping[str, str], *names: str) -> str | None:
    """Return the pattern of the first list of layer types under ``names``, or None where there is none.

    Args:
        config: the config; its num_hidden_layers may be left out.
        words: the character of the pattern for each type.
        names: the fields to look under, the current name first.

    Raises:
        InputError: a type that is not in ``words``, or not as many types as layers.
    """
    name = next((name for name in names if config.has(name)), None)
    if name is None:
        return None
    types = config.items(name) or []
    for word in types:
        if not isinstance(word, str) or word not in words:
            raise config.error(name, "unknown layer", str(word), tuple(words))
    n_layers = config.layers("num_hidden_layers", default=len(types))
    if len(types) != n_layers:
        raise config.error(name, f"has {len(types)} layers, but num_hidden_layers is {n_layers}")
    return "".join(words[word] for word in types)


def mamba2_conv(heads: int, head_dim: int, groups: int, state: int) -> int:
    """Channels of Mamba-2's convolution: x, B and C. Heads times head dimension, never expand times hidden size."""
    return heads * head_dim + 2 * groups * state


def auto_head_dim(config: Config, name: str, heads_name: str, inner: int) -> int:
    """Return the SSM head dimension, which may be "auto": the inner width over the heads.

    Raises:
        InputError: the heads do not divide the inner width.
    """
    heads = config.whole(heads_name)
    if config.data.get(name) not in (None, "auto"):
        return config.whole(name)
    if inner % heads:
        raise config.error(name, f"is auto, but {heads_name} = {heads} does not divide the inner width {inner}")
    return inner // heads
