"""The traps of the types that synthetic files stand for: defaults, older and newer names, contradictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.confighelp import changed, imported, refusal, write

QWEN = "synthetic-qwen3-next"
GRANITE = "synthetic-granite-h-small"
MICRO = "synthetic-granite-h-micro"
ZAMBA = "synthetic-zamba2"
OLD = "synthetic-zamba2-old-names"
MAMBA = "synthetic-mamba2"
ATTN = "synthetic-mamba2attn"

# qwen3_next


def test_defaults_of_qwen3_next_are_its_class_own(tmp_path: Path) -> None:
    """Two KV heads of 256 where the file says nothing, not one a head and hidden_size / heads."""
    left_out = ("num_key_value_heads", "head_dim", "full_attention_interval", "linear_key_head_dim",
                "linear_value_head_dim", "linear_conv_kernel_dim")  # fmt: skip
    model, whole = imported(tmp_path, QWEN, **dict.fromkeys(left_out, ...)), imported(tmp_path, QWEN)
    assert (model.n_kv_heads, model.attn_head_dim, model.layer_pattern) == (2, 256, 12 * "MMM*")
    assert (model.shape, model.conv_kernel, model.params_total) == (whole.shape, 4, whole.params_total)
    guessed = {"n_kv_heads", "attn_head_dim", "layer_pattern", "d_k", "d_v", "conv_kernel"}
    assert set(model.uncertain) - set(whole.uncertain) == guessed
    assert model.reasons["attn_head_dim"] == "no head_dim in the config; 256, its class's default"


def test_layer_types_of_qwen3_next_come_before_the_interval(tmp_path: Path) -> None:
    types = 24 * ["linear_attention", "full_attention"]
    model = imported(tmp_path, QWEN, layer_types=types, full_attention_interval=...)
    assert model.layer_pattern == 24 * "M*" and "layer_pattern" not in model.uncertain
    assert refusal(changed(tmp_path, QWEN, layer_types=types[1:])) == (
        "layer_types: has 47 layers, but num_hidden_layers is 48"
    )


def test_layers_without_experts_have_the_wide_mlp(tmp_path: Path) -> None:
    assert imported(tmp_path, QWEN, intermediate_size=...).ffn_size is None  # every layer has experts: not read
    model = imported(tmp_path, QWEN, decoder_sparse_step=2, mlp_only_layers=[1])  # layers 1, 3, 5 … but for 1
    assert (model.n_moe_layers, model.n_mlp_layers, model.ffn_size) == (23, 25, 5120)
    model = imported(tmp_path, QWEN, num_experts=0)
    assert (model.n_moe_layers, model.n_mlp_layers, model.moe_top_k) == (0, 48, None)


def test_mtp_layers_of_qwen3_next_are_in_the_weights_alone(tmp_path: Path) -> None:
    assert "n_mtp_layers" in imported(tmp_path, QWEN).uncertain
    model = imported(tmp_path, QWEN, num_nextn_predict_layers=0)
    assert model.n_mtp_layers == 0 and "n_mtp_layers" not in model.uncertain


def test_state_dtype_of_qwen3_next_differs_between_engines(tmp_path: Path) -> None:
    assert "vLLM takes the model's bfloat16, SGLang float32" in imported(tmp_path, QWEN).reasons["state_dtype"]
    assert imported(tmp_path, QWEN, mamba_ssm_dtype="float32").state_dtype == "float32"


# granitemoehybrid


def test_granites_layer_types_count_and_its_mamba_fields_do_not(tmp_path: Path) -> None:
    message = refusal(changed(tmp_path, MICRO, layer_types=40 * ["attention"]))
    assert message == "layer_types: names no mamba layer: the model has no state-space layers"
    assert (
        imported(tmp_path, GRANITE, layer_types=..., layers_block_type=39 * ["mamba"] + ["attention"]).n_ssm_layers
        == 39
    )
    assert refusal(changed(tmp_path, GRANITE, layer_types=...)) == "layer_types: missing (or layers_block_type)"


def test_granite_without_experts_takes_the_shared_width(tmp_path: Path) -> None:
    """intermediate_size is one expert's width: without experts nothing has it."""
    model = imported(tmp_path, GRANITE, num_local_experts=0)
    assert (model.n_mlp_layers, model.n_moe_layers, model.ffn_size, model.moe_size) == (40, 0, 1536, None)
    assert imported(tmp_path, MICRO, intermediate_size=..., num_experts_per_tok=...).ffn_size == 8192


def test_granites_head_dimension_may_be_auto_and_must_fill_the_inner_width(tmp_path: Path) -> None:
    assert imported(tmp_path, GRANITE, mamba_d_head="auto").d_v == 2 * 4096 // 128
    assert refusal(changed(tmp_path, GRANITE, mamba_d_head=32)) == (
        "mamba_d_head: 32: times mamba_n_heads = 128 must be mamba_expand · hidden_size = 8192"
    )


def test_granites_multipliers_change_nothing(tmp_path: Path) -> None:
    names = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    before = imported(tmp_path, GRANITE)
    assert imported(tmp_path, GRANITE, **dict.fromkeys(names, 3.5)) == before
    assert imported(tmp_path, GRANITE, **dict.fromkeys(names, ...)) == before


def test_granites_class_defaults_where_published_models_agree(tmp_path: Path) -> None:
    model = imported(tmp_path, GRANITE, mamba_n_groups=..., mamba_d_conv=..., mamba_expand=..., mamba_d_head=...)
    assert (model.n_k_heads, model.conv_kernel, model.d_v) == (1, 4, 64)
    assert {"n_k_heads", "conv_kernel", "d_v"} < set(model.uncertain)
    assert imported(tmp_path, GRANITE, num_key_value_heads=None).n_kv_heads == 32


# zamba2


def test_each_use_of_a_shared_block_has_its_own_cache(tmp_path: Path) -> None:
    one, two = imported(tmp_path, ZAMBA, num_mem_blocks=1), imported(tmp_path, ZAMBA)
    assert one.kv_elements_per_token == two.kv_elements_per_token == 13 * 2 * 32 * 224
    block = 3 * 7168 * 7168 + 7168 * 3584 + 3584 * 3 * 14336 + 7168 + 3584  # q, k, v; out; MLP; two norms
    assert (two.params_total or 0) - (one.params_total or 0) == block


def test_attention_adapters_of_zamba2_add_parameters(tmp_path: Path) -> None:
    plain, adapted = imported(tmp_path, ZAMBA), imported(tmp_path, ZAMBA, use_shared_attention_adapter=True)
    assert (adapted.params_total or 0) - (plain.params_total or 0) == 13 * 3 * 128 * (7168 + 7168)
    assert imported(tmp_path, OLD, use_shared_block_lora=False).params_total is None  # not counted rather than wrong
    assert imported(tmp_path, ZAMBA, add_bias_linear=True).params_total is None


def test_layers_of_zamba2_by_three_vocabularies_or_by_number(tmp_path: Path) -> None:
    pattern = imported(tmp_path, ZAMBA).layer_pattern
    names = ["hybrid" if char == "P" else "linear_attention" for char in pattern]
    assert imported(tmp_path, ZAMBA, layers_block_type=names).layer_pattern == pattern
    assert imported(tmp_path, ZAMBA, layers_block_type=...).layer_pattern == pattern
    assert imported(tmp_path, ZAMBA, hybrid_layer_ids=..., num_hidden_layers=...).layer_pattern == pattern
    assert refusal(changed(tmp_path, ZAMBA, layers_block_type=..., hybrid_layer_ids=...)) == (
        "layers_block_type: missing (or hybrid_layer_ids)"
    )


def test_heads_of_zamba2_follow_from_either_field(tmp_path: Path) -> None:
    for left_out in ("n_mamba_heads", "mamba_headdim"):
        model = imported(tmp_path, ZAMBA, **{left_out: ...})
        assert (model.n_v_heads, model.d_v) == (112, 64)
    assert refusal(changed(tmp_path, ZAMBA, n_mamba_heads=..., mamba_headdim=...)) == (
        "n_mamba_heads: missing (or mamba_headdim)"
    )


def test_defaults_of_zamba2(tmp_path: Path) -> None:
    left_out = ("mamba_d_state", "mamba_d_conv", "mamba_expand", "adapter_rank", "intermediate_size",
                "attention_head_dim", "attention_hidden_size", "num_key_value_heads")  # fmt: skip
    model, whole = imported(tmp_path, ZAMBA, **dict.fromkeys(left_out, ...)), imported(tmp_path, ZAMBA)
    assert (model.shape, model.conv_kernel, model.ffn_size) == (whole.shape, 4, 4 * 3584)
    assert (model.attn_head_dim, model.n_kv_heads, model.params_total) == (224, 32, whole.params_total)
    assert {"d_k", "conv_kernel", "n_v_heads", "params_total"} < set(model.uncertain)
    assert imported(tmp_path, ZAMBA, mamba_ngroups=...).n_k_heads == 1
    assert imported(tmp_path, ZAMBA, tie_word_embeddings=False).tied_embeddings is False


def test_zamba2_without_a_hybrid_layer(tmp_path: Path) -> None:
    model = imported(tmp_path, ZAMBA, layers_block_type=81 * ["mamba"], hybrid_layer_ids=[])
    assert (model.n_ssm_layers, model.n_attn_layers, model.kv_elements_per_token, model.notes) == (81, 0, 0, "")


# the mamba_ssm package


def test_the_mamba_ssm_package_fills_in_its_own_defaults(tmp_path: Path) -> None:
    model = imported(tmp_path, MAMBA, pad_vocab_size_multiple=...)
    assert model.vocab_size == 50280  # to a multiple of 8
    ssm = {"layer": "Mamba2", "d_state": 64, "headdim": 128, "expand": 4, "ngroups": 8, "d_conv": 2}
    model = imported(tmp_path, MAMBA, ssm_cfg=ssm, tie_embeddings=False)
    assert (model.n_v_heads, model.n_k_heads, model.d_v, model.d_k) == (80, 8, 128, 64)
    assert (model.conv_kernel, model.conv_channels, model.tied_embeddings) == (2, 10240 + 2 * 8 * 64, False)
    model = imported(tmp_path, MAMBA, ssm_cfg__d_ssm=1280)  # the rest of the inner width is an MLP
    assert (model.n_v_heads, model.conv_channels, model.params_total) == (20, 1280 + 256, None)


def test_attention_of_the_mamba_ssm_package(tmp_path: Path) -> None:
    model = imported(tmp_path, ATTN, attn_cfg={"num_heads": 20, "num_heads_kv": 4})
    assert (model.attn_head_dim, model.n_kv_heads, model.kv_elements_per_token) == (128, 4, 6 * 2 * 4 * 128)
    assert model.notes == ""  # no convolution
    bare = imported(tmp_path, ATTN, attn_cfg={"num_heads": 20, "qkv_proj_bias": False, "out_proj_bias": False})
    full = imported(tmp_path, ATTN, attn_cfg={"num_heads": 20})  # with biases, as where nothing is said
    assert (full.params_total or 0) - (bare.params_total or 0) == 6 * (60 * 128 + 2560)
    assert imported(tmp_path, MAMBA, attn_cfg=...).n_attn_layers == 0  # not read without such layers


def test_the_mlp_of_the_mamba_ssm_package_is_rounded_up(tmp_path: Path) -> None:
    model = imported(tmp_path, MAMBA, d_intermediate=5000)
    assert (model.n_mlp_layers, model.ffn_size, model.ffn_gated) == (64, 5120, True)
    assert (model.params_total or 0) - 2_702_599_680 == 64 * (3 * 5120 * 2560 + 2560)  # and a second norm


def test_a_file_of_the_mamba_ssm_package_is_known_by_any_of_its_names(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, {"d_model": 2560, "n_layer": 64})) == "ssm_cfg: missing"


# what is refused


@pytest.mark.parametrize(
    ("stem", "field"),
    [
        (QWEN, "linear_num_value_heads"), (QWEN, "linear_num_key_heads"), (QWEN, "num_experts"),
        (QWEN, "num_experts_per_tok"), (QWEN, "moe_intermediate_size"), (QWEN, "num_hidden_layers"),
        (QWEN, "num_attention_heads"), (QWEN, "hidden_size"), (QWEN, "vocab_size"),
        (GRANITE, "mamba_n_heads"), (GRANITE, "mamba_d_state"), (GRANITE, "num_local_experts"),
        (GRANITE, "num_experts_per_tok"), (GRANITE, "intermediate_size"), (GRANITE, "shared_intermediate_size"),
        (GRANITE, "num_attention_heads"), (GRANITE, "hidden_size"), (GRANITE, "vocab_size"),
        (MICRO, "shared_intermediate_size"), (ZAMBA, "num_attention_heads"), (ZAMBA, "hidden_size"),
        (ZAMBA, "vocab_size"), (MAMBA, "d_model"), (MAMBA, "n_layer"), (MAMBA, "vocab_size"), (MAMBA, "ssm_cfg"),
        (ATTN, "attn_cfg"), (ATTN, "attn_cfg.num_heads"),
    ],
)  # fmt: skip
def test_a_missing_field_is_named(tmp_path: Path, stem: str, field: str) -> None:
    assert refusal(changed(tmp_path, stem, **{field.replace(".", "__"): ...})).startswith(f"{field}: missing")


@pytest.mark.parametrize(
    ("stem", "field", "value", "expected"),
    [
        (QWEN, "linear_num_value_heads", 24, "linear_num_value_heads: 24: must be a multiple of linear"),
        (QWEN, "mlp_only_layers", [48], "mlp_only_layers: '48': is not a layer (allowed: 0 to 47)"),
        (QWEN, "num_experts_per_tok", 513, "moe_top_k: 513: must be at most moe_experts = 512"),
        (QWEN, "layer_types", 48 * ["mamba"], "layer_types: 'mamba': unknown layer (allowed: linear_attention, full_"),
        (QWEN, "decoder_sparse_step", 0, "decoder_sparse_step: 0: must be at least 1"),
        (GRANITE, "layer_types", 40 * ["hybrid"], "layer_types: 'hybrid': unknown layer (allowed: mamba, att"),
        (GRANITE, "layer_types", "mamba", "layer_types: 'mamba': must be a list"),
        (GRANITE, "num_hidden_layers", 39, "layer_types: has 40 layers, but num_hidden_layers is 39"),
        (GRANITE, "mamba_n_heads", 96, "mamba_d_head: 64: times mamba_n_heads = 96 must be mamba_expand"),
        (GRANITE, "num_local_experts", -1, "num_local_experts: -1: must be at least 0"),
        (GRANITE, "num_attention_heads", 24, "num_attention_heads: 24: must divide hidden_size = 4096"),
        (ZAMBA, "layers_block_type", 81 * ["attention"], "layers_block_type: 'attention': unknown layer (allowed: mam"),
        (ZAMBA, "hybrid_layer_ids", [6], "hybrid_layer_ids: '[6]': must be the hybrid layers of layers_block_type, [6"),
        (ZAMBA, "hybrid_layer_ids", [81], "hybrid_layer_ids: '81': is not a layer (allowed: 0 to 80)"),
        (ZAMBA, "mamba_headdim", 32, "mamba_headdim: 32: must be mamba_expand · hidden_size / n_mamba_heads = 64"),
        (ZAMBA, "n_mamba_heads", 100, "n_mamba_heads: 100: must divide mamba_expand · hidden_size = 7168"),
        (OLD, "mamba_headdim", 100, "mamba_headdim: 100: must divide mamba_expand · hidden_size = 7168"),
        (ZAMBA, "attention_head_dim", 112, "attention_head_dim: 112: must be 224 (2 · hidden_size / num_att"),
        (ZAMBA, "attention_hidden_size", 3584, "attention_hidden_size: 3584: must be 7168 (2 · hidden_size)"),
        (OLD, "kv_channels", 224, "kv_channels: 224: must be 112 (hidden_size / num_attention_heads, half a head)"),
        (ZAMBA, "num_mem_blocks", 14, "num_mem_blocks: 14: must be at most the number of hybrid layers, 13"),
        (ZAMBA, "state_size", 128, "state_size: 128: must be mamba_d_state = 64"),
        (MAMBA, "ssm_cfg", {}, "ssm_cfg.layer: 'Mamba1': unknown layer (allowed: Mamba2)"),
        (MAMBA, "ssm_cfg__layer", "Mamba3", "ssm_cfg.layer: 'Mamba3': unknown layer (allowed: Mamba2)"),
        (MAMBA, "ssm_cfg__headdim", 96, "ssm_cfg.headdim: 96: must divide expand · d_model = 5120"),
        (MAMBA, "ssm_cfg__d_ssm", 100, "ssm_cfg.headdim: 64: must divide d_ssm = 100"),
        (MAMBA, "moe_layer_idx", [0], "moe_layer_idx: '[0]': experts cannot be imported (allowed: [])"),
        (ATTN, "attn_layer_idx", [64], "attn_layer_idx: '64': is not a layer (allowed: 0 to 63)"),
        (ATTN, "attn_cfg__num_heads_kv", 4, "attn_cfg.num_heads_kv: 4: must divide num_heads = 30"),
        (ATTN, "attn_cfg__head_dim", None, "attn_cfg.num_heads: 30: must divide d_model = 2560, since the"),
        (ATTN, "attn_cfg__mlp_dim", 64, "attn_cfg.mlp_dim: 64: an MLP inside attention cannot be imported (al"),
        (ATTN, "attn_layer_idx", list(range(64)), "model_type: 'mamba2': the model has no state-space layers"),
    ],
)  # fmt: skip
def test_a_contradiction_is_named(tmp_path: Path, stem: str, field: str, value: Any, expected: str) -> None:
    assert refusal(changed(tmp_path, stem, **{field: value})).startswith(expected)
