"""Memory per request and how many fit, against the arithmetic and the counts that vLLM's pull request 47576 publishes.

The published counts are of one B300 at 2,048 tokens, T = 4, L = 16, an FP8 KV cache and an FP32 state. Typed literals
are those of the publication; nothing here is fitted to them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import InputError
from perfkit.profiles import Model, load_gpu, load_model
from perfkit.roofline.capacity import (
    Budget,
    Capacity,
    Waves,
    n_waves,
    request_budget,
    requests_that_fit,
    usable_bytes,
)
from perfkit.roofline.engines import ENGINES, Engine, RequestMemory, find_engine, group_size, request_memory
from perfkit.roofline.weights import Weights

CONTEXT, DRAFT, WINDOW = 2048, 4, 16
#: vLLM's attention kernels take pages of a multiple of 16 tokens; the published arithmetic takes whole tokens.
ALIGNED = replace(ENGINES["vllm"], page_tokens=16)
#: The published plain sum has the ring of vLLM's pages, 16 slots; a ring of L + T would have 20.
PLAIN = replace(ENGINES["bytes"], ring_drafts=False)
NO_WEIGHTS = Weights(0, 0, 0)


def _memory(model: Model, method: str, engine: str | Engine = "vllm", **options: object) -> RequestMemory:
    window = WINDOW if method == "replay" else None
    given = {"context": CONTEXT, "draft_len": DRAFT, "window": window, "engine": engine} | options
    return request_memory(model, method, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "method", "blocks", "group", "page", "megabytes"),
    [
        ("nemotron-super", "snapshot", 21, 8, 4_317_184, 725.3),
        ("nemotron-super", "replay", 6, 8, 4_620_288, 221.8),
        ("qwen3.5-122b", "snapshot", 13, 12, 4_341_760, 677.3),
        ("qwen3.5-122b", "replay", 4, 12, 4_673_536, 224.3),
    ],
)
def test_published_pages(key: str, method: str, blocks: int, group: int, page: int, megabytes: float) -> None:
    memory = _memory(load_model(key), method)
    assert (memory.blocks, memory.group, memory.page) == (blocks, group, page)
    assert memory.total == blocks * group * page
    assert memory.total / 1e6 == pytest.approx(megabytes, abs=0.05)
    assert memory.ring_slots == (16 if method == "replay" else 0)


@pytest.mark.parametrize(("key", "paged", "plain"), [("nemotron-super", 3.27, 3.62), ("qwen3.5-122b", 3.02, 3.36)])
def test_published_ratios(key: str, paged: float, plain: float) -> None:
    model = load_model(key)
    for engine, ratio in (("vllm", paged), (PLAIN, plain)):
        ours = _memory(model, "snapshot", engine).total / _memory(model, "replay", engine).total
        assert ours == pytest.approx(ratio, abs=0.005)


def _pool(model: Model, method: str, requests: int, engine: Engine = ENGINES["vllm"]) -> tuple[int, int]:
    """Return the memory for requests into which exactly so many fit: the least, and one byte more than the most."""
    total = _memory(model, method, engine).total
    return requests * total, (requests + 1) * total


def _fits(model: Model, method: str, memory: int) -> int:
    return Capacity(Budget(memory, NO_WEIGHTS), _memory(model, method)).fits


@pytest.mark.parametrize(("key", "snapshots", "replay"), [("nemotron-super", 213, 694), ("qwen3.5-122b", 233, 702)])
def test_published_requests_on_one_b300(key: str, snapshots: int, replay: int) -> None:
    """The publication says "a fixed HBM budget" and not which: each count states it for the other, within 1 %."""
    model = load_model(key)
    for edge in _pool(model, "snapshot", snapshots):
        assert _fits(model, "replay", edge - 1) == pytest.approx(replay, rel=0.01)
        assert _fits(model, "snapshot", edge - 1) == pytest.approx(snapshots, rel=0.01)
    for edge in _pool(model, "replay", replay):
        assert _fits(model, "snapshot", edge - 1) == pytest.approx(snapshots, rel=0.01)


def test_the_two_counts_of_qwen_are_of_one_budget_with_pages_of_16_tokens() -> None:
    """Whole tokens leave the two 0.1 % apart. Pages of 16 tokens, as kernels ask for, give the published 3.01."""
    model = load_model("qwen3.5-122b")
    low, high = zip(_pool(model, "snapshot", 233), _pool(model, "replay", 702), strict=True)
    assert max(low) > min(high)
    low, high = zip(_pool(model, "snapshot", 233, ALIGNED), _pool(model, "replay", 702, ALIGNED), strict=True)
    assert max(low) < min(high)
    ratio = _memory(model, "snapshot", ALIGNED).total / _memory(model, "replay", ALIGNED).total
    assert ratio == pytest.approx(3.01, abs=0.005)
    # Super's pages are of 16 tokens anyhow; what its two counts differ by, 0.2 % of the budget, stays unexplained
    # (each mode profiles its own activations and graphs).
    super_ = load_model("nemotron-super")
    assert _memory(super_, "replay", ALIGNED).total == _memory(super_, "replay").total
    assert _pool(super_, "snapshot", 213)[0] / _pool(super_, "replay", 694)[1] == pytest.approx(1.0023, abs=1e-4)


@pytest.mark.parametrize(
    ("key", "method", "requests"),
    [("nemotron-super", "snapshot", 213), ("nemotron-super", "replay", 694), ("qwen3.5-122b", "snapshot", 233),
     ("qwen3.5-122b", "replay", 702)],
)  # fmt: skip
def test_from_the_gpu_and_the_weights_it_is_a_bound_within_five_percent(key: str, method: str, requests: int) -> None:
    """0.9 of 275,040 MiB (the authors' script) less weights and draft layers is 3 to 5 % above all four counts.

    What is missing is what the engine sets aside, 5 to 8 GB here by these counts, which no source states: activations,
    CUDA graphs up to batch * T, the vision tower of Qwen (0.9 GB), Super's layers in BF16. The drafter's own attention
    layer is one of G in these runs; the published formula, G of the model alone, would be 16 to 21 % above.
    """
    model, gpu = load_model(key), load_gpu("b300")
    budget = request_budget(model, gpu, drafter=True)
    assert budget.memory == int(0.9 * 275_040 * 2**20)
    assert 1.03 < Capacity(budget, _memory(model, method, drafter=True)).fits / requests < 1.05
    alone = Capacity(request_budget(model, gpu), _memory(model, method))
    assert 1.15 < alone.fits / requests < 1.22


def test_drafters_attention_layers_are_in_the_groups() -> None:
    memory = _memory(load_model("nemotron-super"), "snapshot", drafter=True)
    assert (memory.group, memory.blocks, memory.page) == (9, 21, 4_317_184)  # ceil(40 / 9) is still 5
    assert memory.kv == 9 * 512 * 2048
    assert _memory(load_model("nemotron-nano-4b"), "snapshot", drafter=True) == _memory(
        load_model("nemotron-nano-4b"), "snapshot"
    )


def test_the_plain_sum_by_hand() -> None:
    """Super: 4 MiB a state, 20 records of 18,944 bytes, 10,240 channels of 3 + 3 BF16 inputs, 129 cursors."""
    memory = _memory(load_model("nemotron-super"), "replay", "bytes")
    assert (memory.state, memory.conv) == (40 * 4_194_304, 40 * 122_880)
    assert memory.records == 40 * (20 * 18_944 + 129 * 4)
    assert memory.kv == 2048 * 4096
    assert memory.total == memory.state + memory.conv + memory.records + memory.kv
    assert (memory.padding, memory.page, memory.ring_slots) == (0, None, 20)
    paged = _memory(load_model("nemotron-super"), "replay")
    assert paged.padding == paged.total - paged.state - paged.records - paged.conv - paged.kv > 0


def test_context_takes_blocks_where_it_passes_a_page() -> None:
    model = load_model("nemotron-super")
    memory = _memory(model, "replay")
    assert memory.page_tokens == 9024  # 4,620,288 bytes of 512 a token
    assert _memory(model, "replay", context=9024).blocks == 6
    assert _memory(model, "replay", context=9025).blocks == 7
    assert _memory(model, "replay", kv_dtype="bf16").page_tokens == 4512


def test_a_model_without_attention_has_no_blocks_of_context() -> None:
    model = load_model("codestral-mamba-7b")
    memory = request_memory(model, "conventional", context=100_000)
    assert (memory.group, memory.blocks, memory.page_tokens, memory.kv) == (64, 1, None, 0)
    assert memory.total == 64 * memory.page == memory.state + memory.conv


def test_groups() -> None:
    assert [group_size(*kinds) for kinds in ((40, 8), (36, 12), (29, 3), (72, 72), (81, 13), (64, 0))] == [
        8, 12, 3, 72, 13, 64,
    ]  # fmt: skip
    assert [group_size(12, 13), group_size(13, 12), group_size(10, 8), group_size(4, 20)] == [13, 13, 8, 4]


def test_ring_slots() -> None:
    assert [ENGINES["vllm"].ring_slots(window, 4) for window in (16, 17, 12, 1)] == [16, 32, 16, 1]
    assert ENGINES["bytes"].ring_slots(16, 4) == 20
    assert replace(ENGINES["vllm"], ring_drafts=True).ring_slots(16, 4) == 32  # vLLM's later kernels


def test_two_checkpoints_and_small_states() -> None:
    model = load_model("nemotron-super")
    one, half = _memory(model, "replay"), _memory(model, "replay", state_dtype="fp16")
    assert one.state == 2 * half.state
    two = _memory(model, "replay", read_dtype="fp16")
    assert two.state == one.state + half.state
    assert two.total > one.total > half.total


@given(st.integers(1, 8), st.integers(1, 16), st.integers(1, 9000), st.sampled_from(["vllm", "bytes"]))
def test_allocations_hold_what_is_kept_and_grow(draft: int, extra: int, context: int, engine: str) -> None:
    model = load_model("qwen3.5-4b")
    window = draft + extra
    memory = request_memory(model, "replay", context=context, draft_len=draft, window=window, engine=engine)
    assert memory.padding >= 0
    later = request_memory(model, "replay", context=context + 1, draft_len=draft, window=window, engine=engine)
    assert later.total >= memory.total
    more = request_memory(model, "replay", context=context + 1, draft_len=draft, window=window + 1, engine=engine)
    assert more.total - more.padding >= memory.total - memory.padding
    if engine == "bytes" or more.page == memory.page:
        assert more.total >= memory.total
    snapshots = request_memory(model, "snapshot", context=context, draft_len=draft, engine=engine)
    assert snapshots.padding >= 0


def test_larger_pages_can_take_less_in_all() -> None:
    """A ring of twice the length makes larger pages, and 1,147 tokens fill one of them instead of two."""
    model = load_model("qwen3.5-4b")
    small, large = (request_memory(model, "replay", context=1146 + more, draft_len=1, window=16 + more, engine="vllm")
                    for more in (0, 1))  # fmt: skip
    assert (small.page_tokens, large.page_tokens) == (1145, 1242)
    assert (small.blocks, large.blocks) == (5, 4)
    assert large.page > small.page and large.total < small.total
    assert large.total - large.padding > small.total - small.padding


def test_requests_that_fit() -> None:
    assert requests_that_fit(7 * 100 + 99, 100) == 7
    assert requests_that_fit(-5, 100) == 0
    assert requests_that_fit(np.array([50, 250]), np.array([[100], [25]])).tolist() == [[0, 2], [2, 10]]


def test_waves() -> None:
    """213 snapshots of Super fit: 256 requests take two waves; 512 replay ones run at once under 694."""
    waves = Waves(256, 213)
    assert (waves.count, waves.runs, waves.saturated, waves.mean_running) == (2, 213, True, 128)
    assert waves.spans == (range(213), range(213, 256))
    fits = Waves(512, 694)
    assert (fits.count, fits.runs, fits.saturated, fits.spans) == (1, 512, False, (range(512),))
    assert n_waves(np.array([213, 214, 639, 640]), 213).tolist() == [1, 2, 3, 4]


@given(st.integers(1, 2000), st.integers(1, 300))
def test_each_request_runs_in_one_wave(concurrency: int, fits: int) -> None:
    waves = Waves(concurrency, fits)
    assert [number for span in waves.spans for number in span] == list(range(concurrency))
    assert len(waves.spans) == waves.count
    assert max(map(len, waves.spans)) == waves.runs


def test_memory_of_a_gpu() -> None:
    assert usable_bytes(load_gpu("b300")) == 275_040 * 2**20
    assert usable_bytes(replace(load_gpu("b300"), usable_mib=None)) == 288 * 10**9


def test_budget() -> None:
    model = load_model("nemotron-nano-4b")
    budget = request_budget(model, memory_gb=80, utilization=0.5, reserve_gb=2)
    assert budget.requests == 40 * 10**9 - 2 * 10**9 - 2 * 3_973_556_832
    assert request_budget(model, load_gpu("h100"), engine="bytes").memory == usable_bytes(load_gpu("h100"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_gb": -80}, "memory: -80: must be above 0 GB"),
        ({"memory_gb": float("nan")}, "memory: nan: must be above 0 GB"),
        ({"memory_gb": 80, "utilization": 1.2}, "utilization: 1.2: is a share of the GPU's memory"),
        ({"memory_gb": 80, "reserve_gb": -1}, "reserve: -1: must be at least 0 GB"),
        ({}, "gpu: name a GPU, or its memory in GB"),
        ({"memory_gb": 80, "engine": "sglang"}, "engine: 'sglang': unknown engine (allowed: bytes, vllm)"),
        ({"memory_gb": 80}, "memory: 80: the weights of nemotron-3-super-120b-a12b, 72.4 GB on each GPU, do not fit "
                            "into 72.0 GB: use --tp 2, or a smaller format of weights or a larger GPU"),
        ({"memory_gb": 1, "reserve_gb": 5}, "and 5 GB set aside do not fit into 0.9 GB: use a smaller format"),
    ],
)  # fmt: skip
def test_bad_budgets_get_one_line(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        request_budget(load_model("nemotron-super"), **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_weights_that_do_not_fit_name_the_gpu() -> None:
    with pytest.raises(
        InputError, match=r"^gpu: 'h100-sxm': the weights of qwen3.5-122b-a10b, 77.5 GB on each GPU, do"
    ):
        request_budget(load_model("qwen3.5-122b"), load_gpu("h100"))


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("replay", {"context": 262_145}, "longer than nemotron-3-super-120b-a12b takes (allowed: 1..262144)"),
        ("replay", {"context": 0}, "context: 0: must be at least 1 token"),
        ("replay", {"window": 3}, "window: 3: T = 4 is more than the window holds (allowed: at least 4)"),
        ("replay", {"window": None}, "window: replay needs a window"),
        ("snapshot", {"window": 16}, "window: 16: snapshot has no replay buffer"),
        ("conventional", {}, "draft: 4: conventional decodes one token a step"),
        ("replay", {"draft_len": 0}, "draft: 0: must be at least 1"),
        ("replay", {"kv_dtype": "fp3"}, "kv_dtype: 'fp3': unknown dtype"),
        ("replay", {"read_dtype": "fp3"}, "read_dtype: 'fp3': unknown dtype"),
        ("snapshot", {"read_dtype": "fp8"}, "snapshot reads the checkpoint that it updates"),
        ("magic", {}, "method: 'magic': no memory per request known"),
        ("replay", {"tp": 3}, "tp: 3: nemotron-3-super-120b-a12b's n_v_heads = 128 does not split evenly"),
    ],
)  # fmt: skip
def test_bad_requests_get_one_line(method: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        _memory(load_model("nemotron-super"), method, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_where_not_one_request_fits() -> None:
    found = Capacity(Budget(10**6, NO_WEIGHTS), _memory(load_model("nemotron-super"), "snapshot"))
    assert found.fits == 0
    with pytest.raises(InputError, match=r"^concurrency: 8: one request needs 725.3 MB, and 1.0 MB are left"):
        found.waves(8)
    with pytest.raises(InputError, match="concurrency: 0: must be at least 1"):
        found.waves(0)
    assert Capacity(Budget(10**9, NO_WEIGHTS), found.memory).waves(8) == Waves(8, 1)


def test_find_engine() -> None:
    assert find_engine("vllm") is ENGINES["vllm"]
    assert find_engine(ALIGNED) is ALIGNED
