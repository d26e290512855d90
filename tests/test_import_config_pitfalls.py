"""The traps of config.json files: older names, defaults, contradictions, and types that are not supported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfkit.profiles.importers import import_config
from perfkit.profiles.importers.config import MAX_LAYERS
from tests.confighelp import CONFIGS, read
from tests.confighelp import changed as _changed
from tests.confighelp import imported as _import
from tests.confighelp import refusal as _refusal
from tests.confighelp import write as _write

SUPER = "nemotron-3-super-120b-a12b-nvfp4"
NANO = "nemotron-3-nano-30b-a3b"
QWEN = "qwen3.5-27b"
QWEN_MOE = "qwen3.5-122b-a10b-nvfp4"
KIMI = "kimi-linear-48b-a3b-mlx4bit"
FALCON = "falcon-h1-34b-instruct"
BAMBA = "bamba-9b"
MAMBA = "mamba-codestral-7b-v0.1"


# nemotron_h


def test_expand_never_decides_the_inner_width(tmp_path: Path) -> None:
    assert _import(tmp_path, SUPER, expand=7).conv_channels == 10240
    assert _import(tmp_path, MAMBA, expand=7, intermediate_size=1).conv_channels == 10240


def test_n_group_is_the_routers(tmp_path: Path) -> None:
    assert _import(tmp_path, SUPER, n_group=4).n_k_heads == 8
    assert _refusal(_changed(tmp_path, SUPER, n_groups=...)).startswith("n_groups: missing")


def test_layers_block_type_and_no_num_hidden_layers(tmp_path: Path) -> None:
    names = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}
    before = _import(tmp_path, SUPER)
    blocks = [names[char] for char in before.layer_pattern]
    after = _import(tmp_path, SUPER, hybrid_override_pattern=..., num_hidden_layers=..., layers_block_type=blocks)
    assert after.layer_pattern == before.layer_pattern
    assert (after.n_layers, after.n_ssm_layers, after.n_attn_layers) == (88, 40, 8)


def test_older_names_of_attention_and_groups(tmp_path: Path) -> None:
    model = _import(tmp_path, NANO, head_dim=..., attention_head_dim=96, n_groups=..., mamba_num_groups=4)
    assert (model.attn_head_dim, model.n_k_heads) == (96, 4)
    model = _import(tmp_path, NANO, head_dim=...)
    assert model.attn_head_dim == 2688 // 32 and "attn_head_dim" in model.uncertain


@pytest.mark.parametrize(
    ("value", "dtype", "uncertain"),
    [
        ("float32", "float32", False),
        ("torch.float16", "float16", False),
        ("auto", "float32", True),
        (..., "float32", True),
    ],
)  # fmt: skip
def test_state_dtype_of_nemotron(tmp_path: Path, value: Any, dtype: str, uncertain: bool) -> None:
    model = _import(tmp_path, SUPER, mamba_ssm_cache_dtype=value)
    assert model.state_dtype == dtype
    assert ("state_dtype" in model.uncertain) is uncertain


def test_intermediate_size_counts_only_with_mlp_layers_and_may_be_a_list(tmp_path: Path) -> None:
    base: dict[str, Any] = {"hybrid_override_pattern": "M-M*-", "num_hidden_layers": 5}
    model = _import(tmp_path, NANO, **base, intermediate_size=12544)
    assert (model.ffn_size, model.n_mlp_layers, model.moe_experts, model.uncertain) == (12544, 2, None, ())
    model = _import(tmp_path, NANO, **base, intermediate_size=[0, 100, 0, 0, 300])
    assert model.ffn_size == 200 and "100 to 300" in model.reasons["ffn_size"]
    assert _import(tmp_path, NANO, **base, intermediate_size=[64, 64]).ffn_size == 64
    message = _refusal(_changed(tmp_path, NANO, **base, intermediate_size=[64, 64, 64]))
    assert message == "intermediate_size: lists 3 widths for 2 MLP layers"
    assert _import(tmp_path, SUPER, intermediate_size=[]).ffn_size is None  # no MLP layer: not read


def test_infinity_is_accepted(tmp_path: Path) -> None:
    assert "Infinity" in (CONFIGS / f"{SUPER}.config.json").read_text(encoding="utf-8")
    assert _import(tmp_path, SUPER).n_ssm_layers == 40
    message = _refusal(_changed(tmp_path, SUPER, mamba_num_heads=float("inf")))
    assert message == "mamba_num_heads: inf: must be a finite number"


# qwen3_5


def test_text_only_derivatives_are_flat(tmp_path: Path) -> None:
    for stem, model_type in ((QWEN, "qwen3_5"), (QWEN_MOE, "qwen3_5_moe")):
        nested = _import(tmp_path, stem)
        data = read(stem)
        flat = {**data["text_config"], "tie_word_embeddings": False}
        assert flat["model_type"] == f"{model_type}_text"
        model = import_config(_write(tmp_path, flat))
        assert model.model_type == nested.model_type == model_type
        assert (model.shape, model.layer_pattern, model.params_total) == (
            nested.shape, nested.layer_pattern, nested.params_total)  # fmt: skip


def test_the_wrapper_says_whether_embeddings_are_tied(tmp_path: Path) -> None:
    model = _import(tmp_path, QWEN_MOE, tie_word_embeddings=True, text_config__tie_word_embeddings=False)
    assert model.tied_embeddings is True and model.params_total == 122_111_526_912 - 248320 * 3072
    model = _import(tmp_path, QWEN_MOE, tie_word_embeddings=..., text_config__tie_word_embeddings=True)
    assert model.tied_embeddings is True and "tied_embeddings" not in model.uncertain
    assert "tied_embeddings" in _import(tmp_path, QWEN, tie_word_embeddings=...).uncertain


def test_full_attention_interval_is_the_fallback(tmp_path: Path) -> None:
    model = _import(tmp_path, QWEN, text_config__layer_types=...)
    assert model.layer_pattern == "MMM*" * 16
    message = _refusal(_changed(tmp_path, QWEN, text_config__layer_types=..., text_config__full_attention_interval=...))
    assert message == "text_config.full_attention_interval: missing"


@pytest.mark.parametrize(
    ("value", "dtype", "uncertain"),
    [("float32", "float32", False), ("auto", "bfloat16", True), (..., "bfloat16", True)],
)
def test_state_dtype_of_qwen(tmp_path: Path, value: Any, dtype: str, uncertain: bool) -> None:
    model = _import(tmp_path, QWEN, text_config__mamba_ssm_dtype=value)
    assert model.state_dtype == dtype and ("state_dtype" in model.uncertain) is uncertain


def test_what_a_quantization_leaves_out(tmp_path: Path) -> None:
    everything = _import(tmp_path, QWEN_MOE, quantization_config__ignore=["lm_head"])
    assert (everything.weight_dtype, everything.dense_weight_dtype) == ("float4_e2m1", None)
    other = _import(tmp_path, QWEN_MOE, quantization_config={"quant_method": "gptq", "bits": 4})
    assert other.weight_dtype == "bfloat16" and "gptq" in other.reasons["weight_dtype"]


# kimi_linear


def test_mla_cache_is_the_latent_once(tmp_path: Path) -> None:
    model = _import(tmp_path, KIMI, num_key_value_heads=1, head_dim=1)
    assert model.kv_elements_per_token == 7 * (512 + 64)
    assert _import(tmp_path, KIMI, kv_lora_rank=256).kv_elements_per_token == 7 * (256 + 64)
    assert _refusal(_changed(tmp_path, KIMI, kv_lora_rank=...)) == "kv_lora_rank: missing"


@pytest.mark.parametrize(
    ("full", "kda", "expected"),
    [
        ([0, 2], [1, 3], "linear_attn_config.full_attn_layers: '0': is not a layer (allowed: 1 to 4)"),
        ([4], [1, 2, 3, 4], "linear_attn_config.kda_layers: '4': is in full_attn_layers too"),
        ([4], [1, 2], "linear_attn_config.kda_layers: layer 3 is in neither list (layers count from 1 to 4)"),
        ([4, 4], [1, 2, 3], "linear_attn_config.full_attn_layers: '4': names a layer twice"),
        (..., [1, 2, 3], "linear_attn_config.full_attn_layers: missing"),
        ("4", [1, 2, 3], "linear_attn_config.full_attn_layers: '4': must be a list"),
    ],
)
def test_kimis_lists_count_from_one_and_cover_the_layers(tmp_path: Path, full: Any, kda: Any, expected: str) -> None:
    changes = {"linear_attn_config__full_attn_layers": full, "linear_attn_config__kda_layers": kda}
    assert _refusal(_changed(tmp_path, KIMI, num_hidden_layers=4, **changes)) == expected


def test_first_k_dense_replace(tmp_path: Path) -> None:
    model = _import(tmp_path, KIMI, first_k_dense_replace=3)
    assert (model.n_mlp_layers, model.n_moe_layers) == (3, 24)
    model = _import(tmp_path, KIMI, first_k_dense_replace=0, intermediate_size=...)
    assert (model.n_mlp_layers, model.n_moe_layers, model.ffn_size) == (0, 27, None)


# falcon_h1, bamba, mamba2


def test_mamba_d_ssm_counts_and_expand_does_not(tmp_path: Path) -> None:
    assert _import(tmp_path, FALCON, mamba_expand=9).conv_channels == 5120
    model = _import(tmp_path, FALCON, mamba_d_ssm=None, mamba_n_heads=80)  # null: expand · hidden_size = 10240
    assert (model.n_v_heads, model.d_v) == (80, 128)
    assert _import(tmp_path, FALCON, mamba_d_head="auto").d_v == 4096 // 32
    message = _refusal(_changed(tmp_path, FALCON, mamba_d_ssm=4000))
    assert message == "mamba_d_ssm: 4000: must be mamba_n_heads · mamba_d_head = 4096"


def test_attention_of_falcon_may_be_in_some_layers(tmp_path: Path) -> None:
    model = _import(tmp_path, FALCON, attn_layer_indices=[0, 71])
    assert (model.n_ssm_layers, model.n_attn_layers) == (72, 2)
    assert model.kv_elements_per_token == 2 * 2 * 4 * 128


def test_bamba_auto_head_dimension_and_indices(tmp_path: Path) -> None:
    assert _import(tmp_path, BAMBA, mamba_d_head="auto").d_v == 2 * 4096 // 128
    message = _refusal(_changed(tmp_path, BAMBA, mamba_d_head="auto", mamba_n_heads=96))
    assert message == "mamba_d_head: is auto, but mamba_n_heads = 96 does not divide the inner width 8192"
    assert _refusal(_changed(tmp_path, BAMBA, attn_layer_indices=...)) == "attn_layer_indices: missing"
    message = _refusal(_changed(tmp_path, BAMBA, attn_layer_indices=[32]))
    assert message == "attn_layer_indices: '32': is not a layer (allowed: 0 to 31)"


def test_auto_state_dtype_is_the_models_own(tmp_path: Path) -> None:
    assert _import(tmp_path, FALCON, torch_dtype="float32").state_dtype == "float32"
    assert _import(tmp_path, MAMBA, torch_dtype=..., dtype="float16").state_dtype == "float16"
    assert "SGLang float32" in _import(tmp_path, MAMBA).reasons["state_dtype"]


# what is refused

_TYPES = (
    "(allowed: nemotron_h, qwen3_5, qwen3_5_moe, qwen3_5_text, qwen3_5_moe_text, qwen3_next, kimi_linear, falcon_h1, "
    "bamba, granitemoehybrid, zamba2, mamba2)"
)


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("llama", "model_type: 'llama': not a type with state-space layers that perfkit can import"),
        ("qwen3", "model_type: 'qwen3': not a type with state-space layers"),
        ("zamba", "model_type: 'zamba': this type cannot be imported: write a profile (.yaml) instead"),
        ("mamba", "model_type: 'mamba': this type cannot be imported"),
        (["llama"], "model_type: \"['llama']\": not a type"),
        (None, "model_type: missing"),
    ],
)  # fmt: skip
def test_other_types_name_those_that_are_supported(tmp_path: Path, model_type: Any, expected: str) -> None:
    message = _refusal(_write(tmp_path, {"model_type": model_type, "hidden_size": 4096}))
    assert message.startswith(expected) and message.endswith(_TYPES)


def test_a_model_without_state_space_layers(tmp_path: Path) -> None:
    message = _refusal(_changed(tmp_path, NANO, hybrid_override_pattern="*-*-", num_hidden_layers=4))
    assert message == "model_type: 'nemotron_h': the model has no state-space layers"
    all_attention = ["full_attention"] * 64
    message = _refusal(_changed(tmp_path, QWEN, text_config__layer_types=all_attention))
    assert message == "model_type: 'qwen3_5': the model has no state-space layers"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]", "must be a JSON object, as Hugging Face's config.json is, not a list"),
        ('"text"', "must be a JSON object, as Hugging Face's config.json is, not a text"),
        ("null", "must be a JSON object, as Hugging Face's config.json is, not null"),
        ("3", "must be a JSON object, as Hugging Face's config.json is, not a number"),
        ("", "line 1: not valid JSON: Expecting value"),
        ('{\n"a": 1,\n}', "line 3: not valid JSON:"),
        ("{'a': 1}", "line 1: not valid JSON:"),
        ("[" * 100_000, "not valid JSON: nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "not valid JSON: nested too deeply, or a number of thousands of digits"),
    ],
)
def test_files_that_are_no_config(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    message = _refusal(path)
    assert message.startswith(expected) or ("line 2" in message and expected.startswith("line 3"))  # by Python version


def test_paths_that_are_no_file(tmp_path: Path) -> None:
    assert _refusal(tmp_path / "none.json") == "no such file"
    assert _refusal(tmp_path) == f"is a directory (allowed: a file, such as {tmp_path / 'config.json'})"
    folder = tmp_path / "config.json"
    folder.mkdir()
    assert _refusal(folder) == "is a directory, not a file"
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    assert _refusal(binary) == "is not UTF-8 text"


@pytest.mark.parametrize(
    ("stem", "field"),
    [
        (SUPER, "mamba_num_heads"), (SUPER, "mamba_head_dim"), (SUPER, "ssm_state_size"), (SUPER, "conv_kernel"),
        (SUPER, "hybrid_override_pattern"), (SUPER, "num_attention_heads"), (SUPER, "hidden_size"),
        (SUPER, "vocab_size"), (SUPER, "n_routed_experts"), (SUPER, "moe_intermediate_size"),
        (QWEN, "text_config.linear_num_value_heads"), (QWEN, "text_config.linear_key_head_dim"),
        (QWEN, "text_config.linear_conv_kernel_dim"), (QWEN, "text_config.intermediate_size"), (QWEN, "text_config"),
        (QWEN_MOE, "text_config.num_experts_per_tok"), (KIMI, "linear_attn_config"),
        (KIMI, "linear_attn_config.num_heads"), (KIMI, "linear_attn_config.short_conv_kernel_size"),
        (KIMI, "num_hidden_layers"), (FALCON, "mamba_n_heads"), (FALCON, "mamba_d_state"), (FALCON, "mamba_d_conv"),
        (BAMBA, "mamba_n_groups"), (BAMBA, "intermediate_size"), (MAMBA, "num_heads"), (MAMBA, "state_size"),
        (MAMBA, "n_groups"),
    ],
)  # fmt: skip
def test_a_missing_field_is_named(tmp_path: Path, stem: str, field: str) -> None:
    path = _changed(tmp_path, stem, **{field.replace(".", "__"): ...})
    assert _refusal(path).startswith(f"{field}: missing")


@pytest.mark.parametrize(
    ("stem", "field", "value", "expected"),
    [
        (SUPER, "mamba_num_heads", "128", "mamba_num_heads: '128': must be a whole number"),
        (SUPER, "mamba_num_heads", True, "mamba_num_heads: True: must be a number"),
        (SUPER, "mamba_num_heads", 0, "mamba_num_heads: 0: must be at least 1"),
        (SUPER, "mamba_num_heads", 127, "n_v_heads: 127: must be a multiple of n_k_heads = 8"),
        (SUPER, "mamba_num_heads", 1.5, "mamba_num_heads: 1.5: must be a whole number"),
        (SUPER, "num_hidden_layers", 87, "hybrid_override_pattern: has 88 layers, but num_hidden_layers is 87"),
        (SUPER, "hybrid_override_pattern", "MEMX", "hybrid_override_pattern: 'MEMX': has 'X' at place 3 (allowed: M"),
        (SUPER, "hybrid_override_pattern", 5, "hybrid_override_pattern: '5': must be a text"),
        (SUPER, "mamba_ssm_cache_dtype", "float33", "mamba_ssm_cache_dtype: 'float33': unknown dtype (allowed: "),
        (SUPER, "tie_word_embeddings", "no", "tie_word_embeddings: 'no': must be true or false"),
        (SUPER, "num_key_value_heads", 3, "num_key_value_heads: 3: must divide num_attention_heads = 32"),
        (QWEN, "text_config", [], "text_config: must be an object"),
        (QWEN, "text_config__layer_types", ["linear"] * 64, "text_config.layer_types: 'linear': unknown layer"),
        (QWEN, "text_config__num_hidden_layers", 63, "text_config.layer_types: has 64 layers, but num_hidden"),
        (QWEN, "text_config__linear_num_key_heads", 5, "text_config.linear_num_value_heads: 48: must be a multiple"),
        (BAMBA, "num_attention_heads", 24, "num_attention_heads: 24: must divide hidden_size = 4096"),
        (MAMBA, "num_hidden_layers", 10**12, f"num_hidden_layers: {10**12}: is too many layers (allowed: 1 to"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(tmp_path: Path, stem: str, field: str, value: Any, expected: str) -> None:
    assert _refusal(_changed(tmp_path, stem, **{field: value})).startswith(expected)
    assert MAX_LAYERS > 1000
