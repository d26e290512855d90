"""Importing Hugging Face's config.json: field by field on published files, and against the shipped profiles."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from perfkit.profiles import load_model
from perfkit.profiles.importers import import_config
from perfkit.profiles.schema import Model

CONFIGS = Path(__file__).parent / "data" / "configs"

#: File name (without .config.json) -> what its model is, typed from the file by hand.
EXPECTED: dict[str, dict[str, object]] = {
    "nemotron-3-super-120b-a12b-nvfp4": {
        "family": "mamba2", "model_type": "nemotron_h", "n_layers": 88, "n_ssm_layers": 40, "n_attn_layers": 8,
        "n_mlp_layers": 0, "n_moe_layers": 40, "n_mtp_layers": 1, "n_v_heads": 128, "n_k_heads": 8, "d_v": 64,
        "d_k": 128, "conv_kernel": 4, "conv_channels": 10240, "state_dtype": "float32", "n_attn_heads": 32,
        "n_kv_heads": 2, "attn_head_dim": 128, "mla": False, "kv_elements_per_token": 4096, "hidden_size": 4096,
        "ffn_size": None, "ffn_gated": False, "moe_experts": 512, "moe_top_k": 22, "moe_size": 2688,
        "moe_shared_size": 5376, "moe_latent_size": 1024,
        "max_context": 262_144, "vocab_size": 131072, "tied_embeddings": False,
        "params_total": 120_668_707_840, "weight_dtype": "bfloat16", "dense_weight_dtype": None, "uncertain": (),
    },
    "nemotron-3-nano-30b-a3b": {
        "family": "mamba2", "model_type": "nemotron_h", "n_layers": 52, "n_ssm_layers": 23, "n_attn_layers": 6,
        "n_mlp_layers": 0, "n_moe_layers": 23, "n_mtp_layers": 0, "n_v_heads": 64, "n_k_heads": 8, "d_v": 64,
        "d_k": 128, "conv_kernel": 4, "conv_channels": 6144, "state_dtype": "float32", "n_attn_heads": 32,
        "n_kv_heads": 2, "attn_head_dim": 128, "mla": False, "kv_elements_per_token": 3072, "hidden_size": 2688,
        "ffn_size": None, "ffn_gated": False, "moe_experts": 128, "moe_top_k": 6, "moe_size": 1856,
        "moe_shared_size": 3712, "moe_latent_size": None,
        "max_context": 262_144, "vocab_size": 131072, "tied_embeddings": False,
        "params_total": 31_577_940_288, "weight_dtype": "bfloat16", "dense_weight_dtype": None, "uncertain": (),
    },
    "qwen3.5-122b-a10b-nvfp4": {
        "family": "gdn", "model_type": "qwen3_5_moe", "n_layers": 48, "n_ssm_layers": 36, "n_attn_layers": 12,
        "n_mlp_layers": 0, "n_moe_layers": 48, "n_mtp_layers": 1, "n_v_heads": 64, "n_k_heads": 16, "d_v": 128,
        "d_k": 128, "conv_kernel": 4, "conv_channels": 12288, "state_dtype": "float32", "n_attn_heads": 32,
        "n_kv_heads": 2, "attn_head_dim": 256, "mla": False, "kv_elements_per_token": 12288, "hidden_size": 3072,
        "ffn_size": None, "ffn_gated": True, "moe_experts": 256, "moe_top_k": 8, "moe_size": 1024,
        "moe_shared_size": 1024, "moe_latent_size": None,
        "max_context": 262_144, "vocab_size": 248320, "tied_embeddings": False,
        "params_total": 122_111_526_912, "weight_dtype": "float4_e2m1", "dense_weight_dtype": "bfloat16",
        "uncertain": (),
    },
    "qwen3.5-27b": {
        "family": "gdn", "model_type": "qwen3_5", "n_layers": 64, "n_ssm_layers": 48, "n_attn_layers": 16,
        "n_mlp_layers": 64, "n_moe_layers": 0, "n_mtp_layers": 1, "n_v_heads": 48, "n_k_heads": 16, "d_v": 128,
        "d_k": 128, "conv_kernel": 4, "conv_channels": 10240, "state_dtype": "float32", "n_attn_heads": 24,
        "n_kv_heads": 4, "attn_head_dim": 256, "mla": False, "kv_elements_per_token": 32768, "hidden_size": 5120,
        "ffn_size": 17408, "ffn_gated": True, "moe_experts": None, "moe_top_k": None, "moe_size": None,
        "moe_shared_size": None, "moe_latent_size": None,
        "max_context": 262_144, "vocab_size": 248320, "tied_embeddings": False,
        "params_total": 26_895_998_464, "weight_dtype": "bfloat16", "dense_weight_dtype": None, "uncertain": (),
    },
    "kimi-linear-48b-a3b-mlx4bit": {
        "family": "kda", "model_type": "kimi_linear", "n_layers": 27, "n_ssm_layers": 20, "n_attn_layers": 7,
        "layer_pattern": "MMM*MMM*MMM*MMM*MMM*MMM*MM*", "n_mlp_layers": 1, "n_moe_layers": 26, "n_mtp_layers": 0,
        "n_v_heads": 32, "n_k_heads": 32, "d_v": 128, "d_k": 128, "conv_kernel": 4, "conv_channels": 12288,
        "state_dtype": "float32", "n_attn_heads": 32, "n_kv_heads": 1, "attn_head_dim": 576, "mla": True,
        "kv_elements_per_token": 4032, "hidden_size": 2304, "ffn_size": 9216, "ffn_gated": True, "moe_experts": 256,
        "moe_top_k": 8, "moe_size": 1024, "moe_shared_size": 1024, "moe_latent_size": None,
        "max_context": 1_048_576, "vocab_size": 163840,
        "tied_embeddings": False, "params_total": 49_122_681_728, "weight_dtype": "bfloat16",
        "dense_weight_dtype": None, "uncertain": ("weight_dtype",),
    },
    "falcon-h1-34b-instruct": {
        "family": "mamba2", "model_type": "falcon_h1", "n_layers": 72, "n_ssm_layers": 72, "n_attn_layers": 72,
        "layer_pattern": "P" * 72, "n_mlp_layers": 72, "n_moe_layers": 0, "n_mtp_layers": 0, "n_v_heads": 32,
        "n_k_heads": 2, "d_v": 128, "d_k": 256, "conv_kernel": 4, "conv_channels": 5120, "state_dtype": "bfloat16",
        "n_attn_heads": 20, "n_kv_heads": 4, "attn_head_dim": 128, "mla": False, "kv_elements_per_token": 73728,
        "hidden_size": 5120, "ffn_size": 21504, "ffn_gated": True, "moe_experts": None, "moe_top_k": None,
        "moe_size": None, "moe_shared_size": None, "moe_latent_size": None,
        "max_context": 262_144, "vocab_size": 261120,
        "tied_embeddings": False, "params_total": 33_642_516_224, "weight_dtype": "bfloat16",
        "dense_weight_dtype": None, "uncertain": ("state_dtype",),
    },
    "bamba-9b": {
        "family": "mamba2", "model_type": "bamba", "n_layers": 32, "n_ssm_layers": 29, "n_attn_layers": 3,
        "layer_pattern": "MMMMMMMMM*MMMMMMMM*MMMMMMMM*MMMM", "n_mlp_layers": 32, "n_moe_layers": 0,
        "n_mtp_layers": 0, "n_v_heads": 128, "n_k_heads": 1, "d_v": 64, "d_k": 128, "conv_kernel": 4,
        "conv_channels": 8448, "state_dtype": "bfloat16", "n_attn_heads": 32, "n_kv_heads": 8, "attn_head_dim": 128,
        "mla": False, "kv_elements_per_token": 6144, "hidden_size": 4096, "ffn_size": 14336, "ffn_gated": True,
        "moe_experts": None, "moe_top_k": None, "moe_size": None, "moe_shared_size": None, "moe_latent_size": None,
        "max_context": None, "vocab_size": 128256, "tied_embeddings": False, "params_total": 9_780_235_392,
        "weight_dtype": "bfloat16",
        "dense_weight_dtype": None, "uncertain": ("weight_dtype", "state_dtype"),
    },
    "mamba-codestral-7b-v0.1": {
        "family": "mamba2", "model_type": "mamba2", "n_layers": 64, "n_ssm_layers": 64, "n_attn_layers": 0,
        "layer_pattern": "M" * 64, "n_mlp_layers": 0, "n_moe_layers": 0, "n_mtp_layers": 0, "n_v_heads": 128,
        "n_k_heads": 8, "d_v": 64, "d_k": 128, "conv_kernel": 4, "conv_channels": 10240, "state_dtype": "bfloat16",
        "n_attn_heads": 0, "n_kv_heads": 0, "attn_head_dim": None, "mla": False, "kv_elements_per_token": 0,
        "hidden_size": 4096, "ffn_size": None, "ffn_gated": None, "moe_experts": None, "moe_top_k": None,
        "moe_size": None, "moe_shared_size": None, "moe_latent_size": None,
        "max_context": None, "vocab_size": 32768,
        "tied_embeddings": False, "params_total": 7_285_403_648, "weight_dtype": "bfloat16",
        "dense_weight_dtype": None, "uncertain": ("state_dtype",),
    },
}  # fmt: skip

#: The shipped profile of the same model, and the fields in which the two may differ: Super's file has no
#: quantization_config.
SHIPPED = {
    "nemotron-3-super-120b-a12b-nvfp4": ("nemotron-3-super-120b-a12b", {"weight_dtype", "dense_weight_dtype"}),
    "nemotron-3-nano-30b-a3b": ("nemotron-3-nano-30b-a3b", set()),
    "qwen3.5-122b-a10b-nvfp4": ("qwen3.5-122b-a10b", set()),
    "qwen3.5-27b": ("qwen3.5-27b", set()),
    "kimi-linear-48b-a3b-mlx4bit": ("kimi-linear-48b-a3b", set()),
    "falcon-h1-34b-instruct": ("falcon-h1-34b", set()),
    "bamba-9b": ("bamba-9b", set()),
    "mamba-codestral-7b-v0.1": ("codestral-mamba-7b", set()),
}
_ABOUT = {"key", "name", "aliases", "source", "notes", "uncertain", "reasons"}


def _load(stem: str) -> Model:
    return load_model(str(CONFIGS / f"{stem}.config.json"))


def test_every_file_is_tested() -> None:
    assert {path.name.removesuffix(".config.json") for path in CONFIGS.glob("*.json")} == set(EXPECTED) == set(SHIPPED)


@pytest.mark.parametrize("stem", EXPECTED)
def test_field_by_field(stem: str) -> None:
    model = _load(stem)
    assert {name: getattr(model, name) for name in EXPECTED[stem]} == EXPECTED[stem]
    checked = set(EXPECTED[stem]) | _ABOUT | {"layer_pattern", "params_active"}
    assert checked == {item.name for item in fields(Model)}
    assert set(model.reasons) == set(model.uncertain)


@pytest.mark.parametrize("stem", SHIPPED)
def test_the_shipped_profile_agrees(stem: str) -> None:
    key, may_differ = SHIPPED[stem]
    imported, shipped = _load(stem), load_model(key)
    names = {item.name for item in fields(Model)} - _ABOUT
    assert {name for name in names if getattr(imported, name) != getattr(shipped, name)} == may_differ


def test_the_key_comes_from_the_file_or_its_folder(tmp_path: Path) -> None:
    assert _load("qwen3.5-27b").key == "qwen3.5-27b"
    folder = tmp_path / "My Fine_Tune v2"
    folder.mkdir()
    (folder / "config.json").write_bytes((CONFIGS / "qwen3.5-27b.config.json").read_bytes())
    assert import_config(folder / "config.json").key == "my-fine_tune-v2"
