"""Bytes of weights in mixed formats, and models split over GPUs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfkit.errors import InputError
from perfkit.profiles import Model, list_models, load_model
from perfkit.roofline.engines import request_memory
from perfkit.roofline.split import part_of, tp_sizes
from perfkit.roofline.weights import drafter_params, expert_params, weight_bytes


def test_mixed_formats_by_hand() -> None:
    """Qwen3.5-122B: 48 layers of 256 experts of 3 * 3072 * 1024 in NVFP4, 9 bytes per 16 weights; the rest in BF16."""
    model = load_model("qwen3.5-122b")
    assert expert_params(model) == 48 * 256 * 3 * 3072 * 1024 == 115_964_116_992
    weights = weight_bytes(model)
    assert weights.experts == 115_964_116_992 * 9 // 16
    assert weights.embedding == 2 * 2 * 248_320 * 3072
    assert weights.dense + weights.embedding == 2 * (122_111_526_912 - 115_964_116_992)
    assert (weights.drafter, weights.total) == (0, weights.dense + weights.experts + weights.embedding)


def test_latent_experts_and_other_formats() -> None:
    """Super's routed experts are of 1024 x 2688, two matrices each: 112.7 * 10^9 of 120.7 * 10^9 parameters."""
    model = load_model("nemotron-super")
    assert expert_params(model) == 40 * 512 * 2 * 1024 * 2688
    plain = weight_bytes(model, expert_dtype="bf16", dense_dtype="bf16")
    assert plain.total == 2 * 120_668_707_840
    assert weight_bytes(model).experts * 32 == plain.experts * 9
    assert weight_bytes(model).embedding == plain.embedding  # left in BF16
    full = weight_bytes(model, expert_dtype="fp32", dense_dtype="fp32", drafter=True)
    assert full.total == 4 * (120_668_707_840 + drafter_params(model))


def test_dense_models_have_one_format() -> None:
    assert weight_bytes(load_model("nemotron-nano-4b")).total == 2 * 3_973_556_832
    assert weight_bytes(load_model("nemotron-nano-4b")).experts == 0


def test_draft_layers() -> None:
    """Published totals with draft layers less those without: tensors of Qwen3-Next, GGUF of Super (123.61 * 10^9)."""
    assert drafter_params(load_model("qwen3-next")) == 81_324_862_720 - 79_674_391_296
    assert 120_668_707_840 + drafter_params(load_model("nemotron-super")) == pytest.approx(123.61e9, abs=5e6)
    assert drafter_params(load_model("nemotron-nano-4b")) == 0
    assert weight_bytes(load_model("qwen3-next"), drafter=True).drafter == 2 * 1_650_471_424


def test_unknown_numbers_get_one_line() -> None:
    model = load_model("qwen3.5-4b")
    with pytest.raises(InputError, match=r"model: 'qwen3.5-4b': its number of parameters is not known"):
        weight_bytes(replace(model, params_total=None))
    with pytest.raises(InputError, match="the format of its weights is not known: name one"):
        weight_bytes(replace(model, weight_dtype=None))
    with pytest.raises(InputError, match="expert_dtype: 'int3': unknown dtype"):
        weight_bytes(model, expert_dtype="int3")


def test_a_gpus_part() -> None:
    part = part_of(load_model("nemotron-super"), 8)
    assert (part.n_v_heads, part.n_k_heads, part.conv_channels, part.n_attn_heads) == (16, 1, 1280, 4)
    assert (part.n_kv_heads, part.kv_elements_per_token) == (1, 2048)  # 2 KV heads on 8 GPUs: one on each
    assert (part.moe_size, part.moe_shared_size) == (336, 672)
    assert part_of(load_model("kimi-linear"), 4).kv_elements_per_token == 4032  # the latent of MLA is on each
    granite = part_of(load_model("granite-4.0-h-small"), 4)
    assert (granite.n_v_heads, granite.n_k_heads) == (32, 1)  # the one group is on each


@pytest.mark.parametrize("model", list_models(), ids=lambda model: model.key)
def test_parts_make_up_the_model(model: Model) -> None:
    assert part_of(model, 1) is model
    for tp in tp_sizes(model)[1:]:
        part = part_of(model, tp)
        assert part.shape.state_elements * tp == model.shape.state_elements
        assert part.kv_elements_per_token * tp >= model.kv_elements_per_token
        one, share = (weight_bytes(model, tp=size, expert_dtype="bf16") for size in (1, tp))
        assert one.total <= share.total * tp <= one.total + 4 * tp


def test_memory_on_two_gpus_is_half() -> None:
    model = load_model("qwen3.5-122b")
    for engine in ("vllm", "bytes"):
        whole, half = (request_memory(model, "replay", context=2048, draft_len=4, window=16, tp=tp, engine=engine)
                       for tp in (1, 2))  # fmt: skip
        # But for the cursor of a request, 4 bytes a layer, which either GPU has.
        once = 4 * model.n_ssm_layers if engine == "bytes" else 0
        assert whole.total == 2 * half.total - once


@pytest.mark.parametrize(
    ("key", "tp", "message"),
    [
        (
            "qwen3.5-122b",
            3,
            "tp: 3: qwen3.5-122b-a10b's n_v_heads = 64 does not split evenly (allowed: 1, 2, 4, 8, 16)",
        ),
        ("qwen3.5-122b", 32, "n_k_heads = 16 does not split evenly"),
        ("nemotron-super", 16, "n_k_heads = 8 does not split evenly"),
        ("falcon-h1-34b", 8, "tp: 8: falcon-h1-34b's n_k_heads = 2 does not split evenly (allowed: 1, 2)"),
        ("bamba-9b", 64, "n_attn_heads = 32 does not split evenly"),
        ("qwen3.5-4b", 0, "tp: 0: must be a whole number of at least 1"),
        ("qwen3.5-4b", -2, "tp: -2: must be a whole number of at least 1"),
    ],
)
def test_what_does_not_split_gets_one_line(key: str, tp: int, message: str) -> None:
    with pytest.raises(InputError) as caught:
        weight_bytes(load_model(key), tp=tp)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
