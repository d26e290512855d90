"""Profiles that users write: what is converted, what is refused, and that the message says where and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from perfkit.errors import InputError
from perfkit.profiles import load_gpu, load_model
from perfkit.profiles.loader import GPUS, MODELS, read_gpu, read_model

SUPER = MODELS / "nemotron-3-super-120b-a12b.yaml"
H200 = GPUS / "h200-sxm.yaml"


def _model(tmp_path: Path, **changes: Any) -> Path:
    """Super's profile with some fields changed; ... removes one."""
    data = yaml.safe_load(SUPER.read_text(encoding="utf-8"))
    data |= changes
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in data.items() if v is not ...}), encoding="utf-8")
    return path


def _gpu(tmp_path: Path, **changes: Any) -> Path:
    data = yaml.safe_load(H200.read_text(encoding="utf-8"))
    data |= changes
    path = tmp_path / "gpu.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in data.items() if v is not ...}), encoding="utf-8")
    return path


def _message(load: Any, path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and "\n" not in message
    return message.removeprefix(f"{path}: ")


def test_a_users_profile_loads_by_path(tmp_path: Path) -> None:
    path = _model(tmp_path, key="mine", aliases=[])
    assert load_model(str(path)).key == "mine"
    assert load_gpu(str(_gpu(tmp_path, key="other"))).key == "other"


def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    assert load_model(str(_model(tmp_path, key="first"))).key == "first"
    assert load_model(str(_model(tmp_path, key="the-second"))).key == "the-second"


@pytest.mark.parametrize("text", ["4.8e3", "4800", "4_800", "4.8E+3", " 4800 "])
def test_numbers_that_yaml_takes_for_text(tmp_path: Path, text: str) -> None:
    assert read_gpu(_gpu(tmp_path, bandwidth_gb_s={"value": text, "source": "x"})).bandwidth_gb_s == 4800.0


def test_pyyaml_reads_an_exponent_without_a_sign_as_text(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    text = SUPER.read_text(encoding="utf-8").replace("params_total: 120668707840", "params_total: 1.2e11")
    path.write_text(text, encoding="utf-8")
    assert isinstance(yaml.safe_load(text)["params_total"], str)  # the trap
    assert read_model(path).params_total == 120_000_000_000


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("n_layers", True, "n_layers: True: must be a number"),
        ("n_layers", "many", "n_layers: 'many': must be a number"),
        ("n_layers", float("nan"), "n_layers: nan: must be a finite number"),
        ("n_layers", float("inf"), "n_layers: inf: must be a finite number"),
        ("n_layers", "1e999", "n_layers: '1e999': must be a finite number"),
        ("n_layers", -1, "n_layers: -1: must be at least 1"),
        ("n_layers", 0, "n_layers: 0: must be at least 1"),
        ("n_layers", 88.5, "n_layers: 88.5: must be a whole number"),
        ("n_layers", [88], "n_layers: [88]: must be a number"),
        ("n_layers", None, "n_layers: must not be empty"),
        ("n_layers", 87, "n_layers: 87: must be 88 (characters of layer_pattern)"),
        ("n_layers", ..., "n_layers: missing"),
        ("n_ssm_layers", 41, "n_ssm_layers: 41: must be 40 (M and P of layer_pattern)"),
        ("n_attn_layers", 9, "n_attn_layers: 9: must be 8 (* and P of layer_pattern)"),
        ("n_moe_layers", 39, "n_moe_layers: 39: must be 40 (E of layer_pattern)"),
        ("conv_channels", 8192, "conv_channels: 8192: must be 10240 (n_v_heads · d_v + 2 · n_k_heads · d_k)"),
        ("kv_elements_per_token", 512, "kv_elements_per_token: 512: must be 4096"),
        ("n_k_heads", 7, "n_v_heads: 128: must be a multiple of n_k_heads = 7"),
        ("family", "rwkv", "family: 'rwkv': unknown value (allowed: mamba2, gdn, kda)"),
        ("family", 3, "family: 3: must be a text that is not empty"),
        ("state_dtype", "fp33", "state_dtype: 'fp33': unknown dtype (allowed: float32, float16, bfloat16,"),
        ("state_dtype", "int32", "state_dtype: 'int32': unknown dtype"),
        ("tied_embeddings", "no", "tied_embeddings: 'no': must be true or false"),
        ("layer_pattern", "MX", "layer_pattern: 'MX': has 'X' (allowed: M state space, * attention"),
        ("key", "My Model", "key: 'My Model': not a key (allowed: a-z 0-9 . _ -)"),
        ("ffn_size", 100, "ffn_size: 100: must be left out, since n_mlp_layers is 0"),
        ("moe_experts", ..., "moe_experts: must be given, since n_moe_layers is 40"),
        ("moe_top_k", 513, "moe_top_k: 513: must be at most moe_experts = 512"),
        ("aliases", {"a": 1}, "aliases: {'a': 1}: must be a list of texts"),
        ("uncertain", ["d_v"], "uncertain: must be a mapping of a field to the reason"),
        ("uncertain", {"width": "why"}, "uncertain: 'width': names no field"),
        ("uncertain", {"d_v": ""}, "reasons.d_v: '': must be a text that is not empty"),
        ("hiden_size", 4096, "hiden_size: unknown field; did you mean hidden_size?"),
        ("zzz", 1, "zzz: unknown field (allowed: key, name,"),
    ],
)
def test_a_bad_field_of_a_model_is_named(tmp_path: Path, field: str, value: Any, expected: str) -> None:
    assert _message(read_model, _model(tmp_path, **{field: value})).startswith(expected)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("bandwidth_gb_s", 4800, "bandwidth_gb_s: every number needs a source, as {value: …, source: …}"),
        ("bandwidth_gb_s", {"value": 4800}, "bandwidth_gb_s: every number needs a source"),
        ("bandwidth_gb_s", {"value": True, "source": "x"}, "bandwidth_gb_s: True: must be a number"),
        ("bandwidth_gb_s", {"value": "4.8 TB/s", "source": "x"}, "bandwidth_gb_s: '4.8 TB/s': must be a number"),
        ("bandwidth_gb_s", {"value": -1, "source": "x"}, "bandwidth_gb_s: -1: must be at least 0"),
        ("bandwidth_gb_s", {"value": 0, "source": "x"}, "bandwidth_gb_s: 0: must be above 0"),
        ("bandwidth_gb_s", {"value": float("inf"), "source": "x"}, "bandwidth_gb_s: inf: must be a finite number"),
        ("bandwidth_gb_s", {"val": 1}, "bandwidth_gb_s.val: unknown part of a number (allowed: value, source, unc"),
        ("bandwidth_gb_s", {"value": 1, "source": 3}, "bandwidth_gb_s.source: 3: must be a text"),
        ("bandwidth_gb_s", ..., "bandwidth_gb_s: missing"),
        ("compute_capability", 9.0, "compute_capability: 9.0: must be a text that is not empty"),
        ("compute_capability", "sm_90", "compute_capability: 'sm_90': not a compute capability"),
        ("bandwith_gb_s", {"value": 1, "source": "x"}, "bandwith_gb_s: unknown field; did you mean bandwidth_gb_s?"),
        ("references", ["a"], "references: must be a mapping of texts"),
        ("sources", {"l2_mb": "x"}, "sources: belongs to its number"),
    ],
)
def test_a_bad_field_of_a_gpu_is_named(tmp_path: Path, field: str, value: Any, expected: str) -> None:
    assert _message(read_gpu, _gpu(tmp_path, **{field: value})).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("key: a\nname: [1, 2\n", "line 3: not valid YAML:"),
        ("key: a\n\tname: b\n", "line 2: not valid YAML:"),
        ("key: a\nname: b\nkey: c\n", "line 3: not valid YAML: duplicate key 'key'"),
        ("a: {b: 1, b: 2}\n", "line 1: not valid YAML: duplicate key 'b'"),
        ("", "must be a mapping of fields, not empty"),
        ("- a\n", "must be a mapping of fields, not a list"),
        ("key\n", "must be a mapping of fields, not a str"),
        ("key: !!python/object:os.system x\n", "line 1: not valid YAML:"),
        ("? [a]\n: b\n", "line 1: not valid YAML:"),
        ("key: \x01\n", "not valid YAML:"),
        ("key: 2026-99-99\n", "not valid YAML:"),
        ("{" * 5000, "not valid YAML:"),
    ],
)
def test_malformed_yaml_is_one_line_with_its_number(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text, encoding="utf-8")
    for load in (read_model, read_gpu):
        assert expected in _message(load, path)


def test_files_that_are_none(tmp_path: Path) -> None:
    assert _message(read_model, tmp_path / "none.yaml") == "no such file"
    folder = tmp_path / "folder.yaml"
    folder.mkdir()
    assert _message(read_model, folder) == "is a directory, not a file"
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    assert _message(read_model, binary) == "is not UTF-8 text"
