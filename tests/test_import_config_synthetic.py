"""Importing types of which no published file is kept here: field by field on synthetic files, marked as such."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from perfkit.cli.app import run
from perfkit.profiles import load_model
from perfkit.profiles.schema import Model
from tests.confighelp import SYNTHETIC, read

_DENSE = {"moe_experts": None, "moe_top_k": None, "moe_size": None, "moe_shared_size": None, "moe_latent_size": None}
_GRANITE = "MMMMM*MMMMMMMMM*MMMMMMMMM*MMMMMMMMM*MMMM"
_ZAMBA2: dict[str, object] = {
    "family": "mamba2", "model_type": "zamba2", "n_layers": 81, "n_ssm_layers": 81, "n_attn_layers": 13,
    "layer_pattern": "MMMMMMPMMMMP" + 11 * "MMMMMP" + "MMM", "n_mlp_layers": 13, "n_moe_layers": 0, "n_mtp_layers": 0,
    "n_v_heads": 112, "n_k_heads": 2, "d_v": 64, "d_k": 64, "conv_kernel": 4, "conv_channels": 7424,
    "state_dtype": "bfloat16", "n_attn_heads": 32, "n_kv_heads": 32, "attn_head_dim": 224, "mla": False,
    "kv_elements_per_token": 186368, "hidden_size": 3584, "ffn_size": 14336, "ffn_gated": True, **_DENSE,
    "vocab_size": 32000, "max_context": 4096, "tied_embeddings": True, "params_total": 7_356_749_648,
    "params_active": 7_242_061_648, "weight_dtype": "bfloat16", "dense_weight_dtype": None,
    "uncertain": ("state_dtype", "tied_embeddings"),
}  # fmt: skip
_MAMBA_SSM: dict[str, object] = {
    "family": "mamba2", "model_type": "mamba2", "n_moe_layers": 0, "n_mtp_layers": 0, "n_k_heads": 1, "d_v": 64,
    "d_k": 128, "conv_kernel": 4, "state_dtype": "bfloat16", "mla": False, **_DENSE, "max_context": None,
    "weight_dtype": "bfloat16", "dense_weight_dtype": None, "uncertain": ("weight_dtype", "state_dtype"),
}  # fmt: skip

#: File name (without .config.json) -> what its model is, worked out from the file by hand.
EXPECTED: dict[str, dict[str, object]] = {
    "synthetic-qwen3-next": {
        "family": "gdn", "model_type": "qwen3_next", "layer_pattern": 12 * "MMM*", "n_layers": 48, "n_ssm_layers": 36,
        "n_attn_layers": 12, "n_mlp_layers": 0, "n_moe_layers": 48, "n_mtp_layers": 1, "n_v_heads": 32,
        "n_k_heads": 16, "d_v": 128, "d_k": 128, "conv_kernel": 4, "conv_channels": 8192, "state_dtype": "bfloat16",
        "n_attn_heads": 16, "n_kv_heads": 2, "attn_head_dim": 256, "mla": False, "kv_elements_per_token": 12288,
        "hidden_size": 2048, "ffn_size": None, "ffn_gated": True, "moe_experts": 512, "moe_top_k": 10,
        "moe_size": 512, "moe_shared_size": 512, "moe_latent_size": None, "vocab_size": 151936, "max_context": 262_144,
        "tied_embeddings": False, "params_total": 79_674_391_296, "params_active": 3_252_599_552,
        "weight_dtype": "bfloat16", "dense_weight_dtype": None, "uncertain": ("n_mtp_layers", "state_dtype"),
    },
    "synthetic-granite-h-small": {
        "family": "mamba2", "model_type": "granitemoehybrid", "layer_pattern": _GRANITE, "n_layers": 40,
        "n_ssm_layers": 36, "n_attn_layers": 4, "n_mlp_layers": 0, "n_moe_layers": 40, "n_mtp_layers": 0,
        "n_v_heads": 128, "n_k_heads": 1, "d_v": 64, "d_k": 128, "conv_kernel": 4, "conv_channels": 8448,
        "state_dtype": "bfloat16", "n_attn_heads": 32, "n_kv_heads": 8, "attn_head_dim": 128, "mla": False,
        "kv_elements_per_token": 8192, "hidden_size": 4096, "ffn_size": None, "ffn_gated": True, "moe_experts": 72,
        "moe_top_k": 10, "moe_size": 768, "moe_shared_size": 1536, "moe_latent_size": None, "vocab_size": 100352,
        "max_context": None, "tied_embeddings": True, "params_total": 32_207_337_984,
        "params_active": 8_392_079_872,
        "weight_dtype": "bfloat16", "dense_weight_dtype": None, "uncertain": ("state_dtype",),
    },
    "synthetic-granite-h-micro": {
        "family": "mamba2", "model_type": "granitemoehybrid", "layer_pattern": _GRANITE, "n_layers": 40,
        "n_ssm_layers": 36, "n_attn_layers": 4, "n_mlp_layers": 40, "n_moe_layers": 0, "n_mtp_layers": 0,
        "n_v_heads": 64, "n_k_heads": 1, "d_v": 64, "d_k": 128, "conv_kernel": 4, "conv_channels": 4352,
        "state_dtype": "bfloat16", "n_attn_heads": 32, "n_kv_heads": 8, "attn_head_dim": 64, "mla": False,
        "kv_elements_per_token": 4096, "hidden_size": 2048, "ffn_size": 8192, "ffn_gated": True, **_DENSE,
        "vocab_size": 100352, "max_context": None, "tied_embeddings": True, "params_total": 3_191_396_096,
        "params_active": 2_985_875_200, "weight_dtype": "bfloat16", "dense_weight_dtype": None,
        "uncertain": ("state_dtype",),
    },
    "synthetic-zamba2": _ZAMBA2,
    "synthetic-zamba2-old-names": _ZAMBA2,
    "synthetic-mamba2": {
        **_MAMBA_SSM, "layer_pattern": 64 * "M", "n_layers": 64, "n_ssm_layers": 64, "n_attn_layers": 0,
        "n_mlp_layers": 0, "n_v_heads": 80, "conv_channels": 5376, "n_attn_heads": 0, "n_kv_heads": 0,
        "attn_head_dim": None, "kv_elements_per_token": 0, "hidden_size": 2560, "ffn_size": None, "ffn_gated": None,
        "vocab_size": 50288, "tied_embeddings": True, "params_total": 2_702_599_680, "params_active": 2_573_862_400,
    },
    "synthetic-mamba2attn": {
        **_MAMBA_SSM, "layer_pattern": "MMMMMMMMM" + 4 * "*MMMMMMMM" + "*MMMMMMMMMM*MMMMMMM", "n_layers": 64,
        "n_ssm_layers": 58, "n_attn_layers": 6, "n_mlp_layers": 0, "n_v_heads": 80, "conv_channels": 5376,
        "n_attn_heads": 30, "n_kv_heads": 30, "attn_head_dim": 128, "kv_elements_per_token": 46080,
        "hidden_size": 2560, "ffn_size": None, "ffn_gated": None, "vocab_size": 50288, "tied_embeddings": True,
        "params_total": 2_697_590_880, "params_active": 2_568_853_600,
    },
    "synthetic-mamba-ssm-bamba": {
        **_MAMBA_SSM, "layer_pattern": "MMMMMMMMM*MMMMMMMM*MMMMMMMM*MMMM", "n_layers": 32, "n_ssm_layers": 29,
        "n_attn_layers": 3, "n_mlp_layers": 32, "n_v_heads": 128, "conv_channels": 8448, "n_attn_heads": 32,
        "n_kv_heads": 8, "attn_head_dim": 128, "kv_elements_per_token": 6144, "hidden_size": 4096, "ffn_size": 14336,
        "ffn_gated": True, "vocab_size": 128256, "tied_embeddings": False, "params_total": 9_780_235_392,
        "params_active": 8_729_562_240,
    },
}  # fmt: skip

#: The shipped profile of the model whose sizes the file has, and the fields in which the two differ.
SHIPPED = {
    "synthetic-qwen3-next": ("qwen3-next-80b-a3b", {"max_context"}),
    "synthetic-granite-h-small": ("granite-4.0-h-small", set()),
    "synthetic-granite-h-micro": ("granite-4.0-h-micro", set()),
    # the profile counts by hand, to 0.01 %, and says neither what is active nor the weights' dtype
    "synthetic-zamba2": ("zamba2-7b", {"params_total", "params_active", "weight_dtype", "max_context"}),
    "synthetic-mamba2": ("mamba2-2.7b", {"weight_dtype"}),
    "synthetic-mamba-ssm-bamba": ("bamba-9b", {"model_type"}),  # one model in two formats
}
_ABOUT = {"key", "name", "aliases", "source", "notes", "uncertain", "reasons"}


def _load(stem: str) -> Model:
    return load_model(str(SYNTHETIC / f"{stem}.config.json"))


def test_every_file_is_tested_and_says_that_it_is_synthetic() -> None:
    assert {path.name.removesuffix(".config.json") for path in SYNTHETIC.glob("*.json")} == set(EXPECTED)
    for stem in EXPECTED:
        assert stem.startswith("synthetic-") and read(stem)["_synthetic"].startswith("Not a published file")
        assert _load(stem).key == stem  # so that what is printed says it too


@pytest.mark.parametrize("stem", EXPECTED)
def test_field_by_field(stem: str) -> None:
    model = _load(stem)
    assert {name: getattr(model, name) for name in EXPECTED[stem]} == EXPECTED[stem]
    assert set(EXPECTED[stem]) | _ABOUT == {item.name for item in fields(Model)}
    assert set(model.reasons) == set(model.uncertain)


@pytest.mark.parametrize("stem", SHIPPED)
def test_the_shipped_profile_of_those_sizes_agrees(stem: str) -> None:
    key, differ = SHIPPED[stem]
    imported, shipped = _load(stem), load_model(key)
    names = {item.name for item in fields(Model)} - _ABOUT
    assert {name for name in names if getattr(imported, name) != getattr(shipped, name)} == differ


def test_parameters_of_shared_blocks_count_once() -> None:
    """Zamba2-7B part by part; the shipped profile's count by hand is within 0.01 %."""
    mixer = 3584 * (7168 + 7424 + 112) + 7424 * 5 + 3 * 112 + 7168 + 7168 * 3584  # in; conv; A, D, dt; norm; out
    attention, mlp = 7168 * 3 * 7168 + 7168 * 3584, 3584 * 3 * 14336  # reads 7168 wide, writes 3584
    block = attention + mlp + 7168 + 3584  # a norm of each width
    use = 3584 * 3584 + 128 * (3584 + 2 * 14336)  # back into the model; the adapter of gate and up
    total = 32000 * 3584 + 3584 + 81 * (mixer + 3584) + 2 * block + 13 * use
    model = _load("synthetic-zamba2")
    assert model.params_total == total == pytest.approx(load_model("zamba2-7b").params_total, rel=1e-4)
    assert "2 shared blocks that 13 layers call" in model.notes


def test_parameters_of_attention_with_a_convolution() -> None:
    """mamba2attn-2.7b part by part: six attention layers in the place of Mamba-2's."""
    mixer = 2560 * (2 * 5120 + 256 + 80) + 5376 * 5 + 3 * 80 + 5120 + 5120 * 2560
    attention = 2560 * 11520 + 11520 * 5 + 3840 * 2560  # 11520 = (30 + 2 · 30) · 128; kernel and bias; out
    model = _load("synthetic-mamba2attn")
    assert model.params_total == 50288 * 2560 + 2560 + 58 * mixer + 6 * attention + 64 * 2560
    assert "11520 channels over 4 tokens" in model.notes


@pytest.mark.parametrize("stem", ["synthetic-qwen3-next", "synthetic-zamba2", "synthetic-mamba2attn"])
def test_traffic_takes_such_a_file(stem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["traffic", "--model", str(SYNTHETIC / f"{stem}.config.json"), "--json"]) == 0
    assert stem in json.dumps(json.loads(capsys.readouterr().out))
