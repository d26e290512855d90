"""The whole step as arithmetic: experts that rows hit, weights that are read, terms by hand, waves, and speed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import InputError
from perfkit.profiles import Model, load_gpu, load_model
from perfkit.roofline import (
    NO_OVERHEADS,
    OVERHEAD_ESTIMATES,
    TERMS,
    Overheads,
    StepModel,
    crossover_tokens,
    distinct_rows,
    hit_share,
    served_tokens_per_s,
    shipped_roofs,
    state_bytes_per_sequence,
    step_model,
    tp_sizes,
    waves_us,
    weight_bytes,
)
from perfkit.roofline.matmuls import MatMul, draft_matmuls, step_matmuls, tensor_tflops

B300, H100, A100 = load_gpu("b300"), load_gpu("h100"), load_gpu("a100-80-sxm")
SUPER, QWEN, NANO = load_model("nemotron-super"), load_model("qwen3.5-122b"), load_model("nemotron-nano-4b")
ZAMBA = replace(load_model("zamba2"), weight_dtype="bfloat16")
BETA = 6460.5
MILLION = 1_000_000


def _step(model: Model = SUPER, **options: Any) -> StepModel:
    return step_model(model, B300, read_gb_s=BETA, **options)


def _part(matmuls: tuple[MatMul, ...], name: str) -> MatMul:
    return next(part for part in matmuls if part.name == name)


# --- experts


def test_hit_share_by_hand() -> None:
    assert hit_share(1, 22, 512) == pytest.approx(22 / 512)
    assert hit_share(2, 1, 2) == pytest.approx(0.75)
    assert hit_share(256, 22, 512) == pytest.approx(0.99999, abs=5e-6)
    assert hit_share(256, 8, 256) == pytest.approx(0.9997, abs=5e-5)
    assert hit_share(np.array([1, 5]), 4, 4).tolist() == [1.0, 1.0]
    with pytest.raises(InputError, match="moe_top_k"):
        hit_share(1, 0, 8)


@pytest.mark.parametrize(("rows", "top_k", "experts"), [(1, 8, 256), (6, 8, 256), (40, 8, 256), (12, 22, 512)])
def test_hit_share_against_picking(rows: int, top_k: int, experts: int) -> None:
    rng = np.random.default_rng(7)
    shares = []
    for _ in range(200):
        hit = {int(expert) for _ in range(rows) for expert in rng.choice(experts, top_k, replace=False)}
        shares.append(len(hit) / experts)
    assert hit_share(rows, top_k, experts) == pytest.approx(np.mean(shares), rel=0.02)


@given(st.integers(1, 5000), st.integers(1, 64), st.integers(0, 512))
def test_hit_share_is_bounded_and_grows(rows: int, top_k: int, more: int) -> None:
    experts = top_k + more
    share = hit_share(rows, top_k, experts)
    assert top_k / experts * (1 - 1e-12) <= share <= min(1.0, rows * top_k / experts) * (1 + 1e-12)
    assert hit_share(rows + 1, top_k, experts) >= share


def test_distinct_rows() -> None:
    assert distinct_rows("independent", 256, 4) == 1024
    assert distinct_rows("identical", 256, 4) == 4
    assert distinct_rows("identical", np.array([1, 256])).tolist() == [1, 1]
    with pytest.raises(InputError, match=r"routing: 'some': .*allowed: independent, identical"):
        distinct_rows("some", 1)


# --- weights


@pytest.mark.parametrize("key", ["nemotron-super", "qwen3.5-122b", "nemotron-nano-4b", "qwen3.5-4b", "kimi-linear"])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_step_reads_what_is_stored_without_the_input_embedding(key: str, tp: int) -> None:
    model = load_model(key)
    stored = weight_bytes(model, tp=tp, drafter=True)
    head = stored.embedding / (1 if model.tied_embeddings else 2)
    matmuls = step_matmuls(model, B300, tp=tp)
    assert sum(part.bytes for part in matmuls) == pytest.approx(stored.dense + stored.experts + head, abs=4)
    drafts = draft_matmuls(model, B300, tp=tp)
    assert sum(part.bytes for part in drafts) == pytest.approx(stored.drafter + (head if drafts else 0), abs=4)


@pytest.mark.parametrize("key", ["nemotron-super", "qwen3.5-122b", "nemotron-nano-4b", "kimi-linear"])
def test_flops_of_a_row_are_those_of_active_parameters(key: str) -> None:
    model = load_model(key)
    head = model.vocab_size * model.hidden_size
    flops = sum(part.flops for part in step_matmuls(model, B300))
    assert model.params_active is not None
    assert flops == pytest.approx(2 * (model.params_active + head), rel=1e-6)


def test_super_reads_experts_of_the_latent_width() -> None:
    """40 layers of 512 experts of two matrices 1024 x 2688 in NVFP4; a quarter of the hidden width."""
    experts = _part(step_matmuls(SUPER, B300), "experts")
    assert experts.bytes == 40 * 512 * 2 * 1024 * 2688 * 0.5625
    assert experts.flops == 2 * 40 * 22 * 2 * 1024 * 2688
    step = _step()
    one, all_of_them = step.weight_bytes_read(1), step.weight_bytes_read(1e9)
    assert all_of_them - one == pytest.approx(experts.bytes * 490 / 512)
    # Published: reading every expert of Super takes about 11.4 ms on a B300.
    assert all_of_them / BETA / 1e3 == pytest.approx(11_400, rel=0.04)


def test_formats_go_to_their_own_units() -> None:
    by_name = {part.name: part.tflops for part in step_matmuls(SUPER, B300)}
    assert by_name == {"dense": B300.fp8_tflops, "experts": B300.fp4_tflops, "head": B300.bf16_tflops}
    assert tensor_tflops(H100, "float4_e2m1") == H100.bf16_tflops  # no FP4 units: widened
    assert tensor_tflops(A100, "float8_e4m3fn", 250.0) == 250.0
    assert tensor_tflops(H100, "float8_e4m3fn", 700.0) == H100.fp8_tflops
    assert tensor_tflops(H100, "float32") == H100.tf32_tflops
    halved = _part(step_matmuls(SUPER, B300, dense_dtype="fp4"), "dense").bytes
    assert halved == pytest.approx(0.5625 * _part(step_matmuls(SUPER, B300), "dense").bytes, abs=1)


def test_shared_blocks_of_zamba2_are_read_at_every_use() -> None:
    """Two blocks, 13 uses: attention 7168 -> 7168 (q, k, v) -> 3584, MLP 3584 -> 2 x 14336 -> 3584, two norms."""
    block = 7168 * 3 * 7168 + 7168 * 3584 + 3584 * 3 * 14336 + 7168 + 3584
    stored = weight_bytes(ZAMBA)
    dense = _part(step_matmuls(ZAMBA, B300), "dense")
    assert dense.bytes == stored.dense + 11 * block * 2
    assert dense.flops == stored.dense + 2 * 11 * block  # two bytes a parameter, two FLOPs a parameter


def test_a_drafters_pass_reads_its_layer_and_the_head() -> None:
    drafts = draft_matmuls(QWEN, B300)
    experts = 256 * 3 * 3072 * 1024
    assert _part(drafts, "experts").bytes == experts * 2
    assert _part(drafts, "head").bytes == 248_320 * 3072 * 2
    assert draft_matmuls(NANO, B300) == ()


# --- terms


def test_terms_by_hand() -> None:
    """A made-up model of round numbers: 1 GB dense, 10 experts of 1 GB of which a row picks 1, one draft layer."""
    step = StepModel(
        model="made-up", n_ssm=10, matmuls=(
            MatMul(name="dense", bytes=1e9, flops=1e9, tflops=100.0),
            MatMul(name="experts", bytes=10e9, flops=1e9, tflops=1000.0, routed=True),
        ), draft_matmuls=(MatMul(name="dense", bytes=2e9, flops=0.0, tflops=1.0),), kv_bytes=1000.0, kv_flops=0.0,
        draft_kv=0.5, kv_tflops=1.0, read_gb_s=1000.0, top_k=1, experts=10, max_context=8192,
        overheads=Overheads(step_us=7.0, row_us=2.0, pass_us=5.0, source="made up"),
    )  # fmt: skip
    took = step.step(100.0, 2, draft_len=3, context=4000, slowdown=1.5, comm_us=11.0)
    assert took.ssm == 10 * 100 * 1.5
    hit = 1 - 0.9**6
    assert took.weights == pytest.approx(1000 + 10_000 * hit)
    assert took.kv == pytest.approx(1000 * 4000 * 2 / 1e6)  # T rows share one read
    assert took.draft == pytest.approx(2 * (2000 + 0.5 * 8 + 5))
    assert (took.rows, took.fixed, took.comm) == (12, 7, 11)
    assert took.us == pytest.approx(sum(took.terms.values()))
    assert tuple(took.terms) == TERMS
    assert took.ssm_share == pytest.approx(1500 / took.us)
    # At 1,000 rows the dense products take 10 us each: multiplying passes reading.
    assert step.step(1.0, 1000, routing="identical").weights == pytest.approx(10_000 + 1000)


def test_speedup_of_a_step_is_amdahls() -> None:
    took = _step().step(332.0, 256)
    assert took.speedup(1.0) == 1.0
    assert took.speedup(2.0) == pytest.approx(1 / (1 - took.ssm_share / 2))
    assert took.speedup(1e12) == pytest.approx(took.speedup_limit)
    assert took.speedup(0.5) < 1
    assert took.with_kernel_speedup(2.0).ssm == took.ssm / 2
    with pytest.raises(InputError, match="ratio: -1"):
        took.speedup(-1)


def test_throughput_and_latency() -> None:
    took = _step().step(332.0, 256, draft_len=4)
    assert took.user_tokens_per_s(3.0) == pytest.approx(3e6 / took.us)
    assert took.tokens_per_s(3.0) == pytest.approx(256 * 3e6 / took.us)
    with pytest.raises(InputError, match=r"accepted: 4\.5: must be 1\.\.T"):
        took.tokens_per_s(4.5)


def test_crossover_is_the_papers_where_bandwidths_are_the_same() -> None:
    layer = 2 * state_bytes_per_sequence(SUPER) / SUPER.n_ssm_layers / BETA / 1e3
    step = _step(drafter=False)
    tokens = step.crossover_tokens(256 * layer, 256)
    assert tokens == pytest.approx(81_920)
    assert tokens == pytest.approx(crossover_tokens(SUPER))
    there = step.step(256 * layer, 256, context=81_920)
    assert there.kv == pytest.approx(there.ssm)
    assert step.crossover_tokens(256 * layer / 2, 256) == pytest.approx(81_920 / 2)
    no_attention = replace(load_model("mamba2-2.7b"), weight_dtype="bfloat16")
    assert _step(no_attention).crossover_tokens(100.0, 8) == np.inf


def test_keys_and_values_by_kind_of_attention() -> None:
    kimi = load_model("kimi-linear")
    assert _step(kimi, kv_dtype="bf16").kv_bytes == 7 * (512 + 64) * 2  # MLA: a latent, once
    assert _step(NANO, kv_dtype="bf16").kv_bytes == 4 * 2 * 8 * 128 * 2
    # 32 heads of 4 rows over one latent: 128 products for each byte pair, 295 balance an H100; 16 rows pass it.
    step = step_model(kimi, H100, read_gb_s=3000.0, kv_dtype="bf16")
    few, many = (step.step(1.0, 8, draft_len=rows, context=4096).kv for rows in (1, 32))
    assert many > 2 * few


def test_sharing_a_model_divides_it() -> None:
    assert 4 in tp_sizes(QWEN)
    one, four = _step(QWEN), _step(QWEN, tp=4)
    assert four.weight_bytes_read(64) == pytest.approx(one.weight_bytes_read(64) / 4, rel=1e-6)
    assert four.kv_bytes == one.kv_bytes / 2  # two KV heads, four GPUs
    assert four.kv_flops == one.kv_flops / 4


def test_drafts_cost_what_they_read() -> None:
    step = _step(QWEN)
    took = step.step(100.0, 256, draft_len=np.array([1, 2, 4]), context=256)
    assert took.draft[0] == 0
    assert took.draft[2] == pytest.approx(3 * took.draft[1])
    assert took.draft[1] > 5.9e9 / BETA / 1e3  # experts, attention and head: 6.6 GB at 256 rows
    external = _step(QWEN, drafter=False, overheads=Overheads(pass_us=50.0, source="made up"))
    assert external.step(100.0, 256, draft_len=4).draft == 150


def test_nothing_is_hidden() -> None:
    took = _step().step(332.0, 256, draft_len=4)
    assert (took.rows, took.fixed, took.comm) == (0, 0, 0)
    assert (NO_OVERHEADS.step_us, NO_OVERHEADS.row_us, NO_OVERHEADS.pass_us) == (0, 0, 0)
    for estimate in OVERHEAD_ESTIMATES.values():
        assert "vLLM pull request" in estimate.source


def test_a_measured_rate_and_roof_stand_in() -> None:
    gpu = load_gpu("h200")
    roofs = shipped_roofs(gpu)
    step = step_model(NANO, gpu, roofs=roofs)
    assert step.read_gb_s == roofs.read_gb_s
    assert {part.tflops for part in step.matmuls} == {roofs.rate("bf16") or gpu.bf16_tflops}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch: 0: must be at least 1"),
        ({"batch": np.array([4, 0])}, "batch: 0: must be at least 1"),
        ({"layer_us": 0.0}, "layer_us: 0.0: must be above 0"),
        ({"layer_us": float("nan")}, "layer_us: nan: must be above 0"),
        ({"draft_len": 0}, "draft: 0"),
        ({"context": -1}, "context: -1"),
        ({"context": 300_000}, "context: 300000: longer than nemotron-3-super-120b-a12b takes"),
        ({"slowdown": 0.9}, "slowdown: 0.9"),
        ({"comm_us": -1.0}, "comm_us"),
        ({"routing": "none"}, "routing: 'none'"),
    ],
)
def test_bad_numbers_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        _step().step(**({"layer_us": 332.0, "batch": 256} | options))


def test_bad_models_are_one_line() -> None:
    with pytest.raises(InputError, match="read_gb_s: give a bandwidth"):
        step_model(SUPER, B300)
    with pytest.raises(InputError, match=r"read_gb_s: 0\.0: must be above 0 GB/s"):
        step_model(SUPER, B300, read_gb_s=0.0)
    with pytest.raises(InputError, match="format of its weights"):
        step_model(load_model("zamba2"), B300, read_gb_s=BETA)
    with pytest.raises(InputError, match="row_us: -1"):
        Overheads(row_us=-1.0, source="made up")


# --- waves


def test_waves_by_hand() -> None:
    def step_us(batch: Any) -> Any:
        return 10.0 + np.asarray(batch)

    assert waves_us(step_us, 100, 200) == 110
    assert waves_us(step_us, 200, 200) == 210
    assert waves_us(step_us, 256, 100) == 2 * 110 + 66
    assert waves_us(step_us, np.array([100, 256]), 100).tolist() == [110, 286]
    assert served_tokens_per_s(step_us, 256, 100, accepted=2.0) == pytest.approx(256 * 2 / 286e-6)
    slower = served_tokens_per_s(step_us, 256, 100, accepted=2.0, tokens=64, request_us=5.0)
    assert slower == pytest.approx(256 * 64 / (32 * 286e-6 + 256 * 5e-6))
    with pytest.raises(InputError, match="fits: 0"):
        waves_us(step_us, 4, 0)
    with pytest.raises(InputError, match="tokens"):
        served_tokens_per_s(step_us, 256, 100, request_us=5.0)


def test_throughput_saturates_past_the_cap() -> None:
    step = _step()

    def step_us(batch: Any) -> Any:
        return step.step(1.3 * np.asarray(batch), batch, draft_len=4).us

    at_cap, twice = served_tokens_per_s(step_us, np.array([213, 426]), 213)
    assert twice == pytest.approx(at_cap)
    assert served_tokens_per_s(step_us, 256, 213) < at_cap  # the last 43 read all weights for few


def test_a_million_configurations() -> None:
    rng = np.random.default_rng(0)
    batch, draft = rng.integers(1, 1024, MILLION), rng.integers(1, 9, MILLION)
    context, layer = rng.integers(0, 262_144, MILLION), rng.random(MILLION) * 500 + 1
    step = _step(QWEN, overheads=OVERHEAD_ESTIMATES["vllm"])
    start = time.process_time()
    took = step.step(layer, batch, draft_len=draft, context=context)
    speed, served = took.speedup(1.5), took.tokens_per_s(1 + 0.5 * (draft - 1))
    assert time.process_time() - start < 2.0  # 0.3 s on an idle core; the bound is loose because test machines are busy
    for values in (took.us, speed, served):
        assert values.shape == (MILLION,)
        assert np.all(np.isfinite(values))
    some = 4321
    alone = step.step(layer[some], int(batch[some]), draft_len=int(draft[some]), context=int(context[some]))
    assert alone.us == pytest.approx(took.us[some])
