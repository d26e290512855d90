"""Golden values: every literal was read from the paper, or worked out by hand from a released model's shape."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import InputError
from perfkit.roofline import (
    acceptance_pmf,
    crossover_tokens,
    flops,
    kv_bytes_per_token,
    l_star,
    m_conv,
    m_replay,
    ratio_paper,
    record_bytes,
    state_bytes_per_sequence,
    state_traffic,
    traffic_per_token,
)
from perfkit.roofline.traffic import layer_record_bytes, layer_state_bytes, replay_decode_counts
from perfkit.shape import Shape

# Shapes: paper, Table 5 (n_v_heads, n_k_heads, d_v, d_k).
SUPER = Shape("mamba2", 128, 8, 64, 128)
NANO = Shape("mamba2", 96, 8, 80, 128)
QWEN = Shape("gdn", 32, 16, 128, 128)
KDA = Shape("kda", 32, 32, 128, 128)
SUPER_MODEL = SimpleNamespace(
    shape=SUPER, n_ssm_layers=40, n_attn_layers=8, kv_elements_per_token=4096, state_dtype="float32"
)


def test_intensity_eq_12() -> None:
    assert flops.conventional_intensity(64, 128) == pytest.approx(0.624, abs=5e-4)  # paper: about 0.63 = 5/8
    assert flops.conventional_intensity(80, 128, 2) == pytest.approx(1.248, abs=5e-4)  # FP16: about 1.25
    assert flops.conventional_flops(64, 128) == 40_896  # 5 * 8192 - 64


def test_record_bytes() -> None:
    assert record_bytes(SUPER) == 388  # paper, C.3: 2 d_v + 2 d_k + 4
    assert record_bytes(NANO) == 420
    assert record_bytes(QWEN) == 516
    assert record_bytes(SUPER, 4) == 772
    assert record_bytes(KDA) == 1024  # 2 d_v + 6 d_k: an FP32 decay per channel
    assert record_bytes(KDA, raw_gate=True) == 768
    with pytest.raises(InputError):
        record_bytes(SUPER, raw_gate=True)


def test_eq_13_totals() -> None:
    assert m_conv(SUPER, 16) == 1_048_576  # 8 * 16 * 8192
    assert m_replay(SUPER, 16) == 609_436  # 4 * 17 * 8192 + 15 * 18 / 2 * 388 = 557,056 + 52,380


@pytest.mark.parametrize(
    ("shape", "ratio"),
    [(SUPER, 0.5812), (NANO, 0.575), (QWEN, 0.564)],  # paper, C.3: 0.58 for Super, a 1.7x reduction
)
def test_ratio_at_window_16(shape: Shape, ratio: float) -> None:
    assert ratio_paper(shape, 16) == pytest.approx(ratio, abs=5.1e-4)
    assert m_replay(shape, 16) / m_conv(shape, 16) == ratio_paper(shape, 16)


def test_super_ratio_to_four_places() -> None:
    assert round(float(ratio_paper(SUPER, 16)), 4) == 0.5812


def test_kda_golden() -> None:
    assert 4 * 128 * 128 / record_bytes(KDA) == 64
    assert l_star(KDA) == pytest.approx(11.2, abs=0.05)
    assert ratio_paper(KDA, 16) == pytest.approx(0.597, abs=5e-4)
    raw = record_bytes(KDA, raw_gate=True)
    assert l_star(KDA, record_bytes=raw) == pytest.approx(12.99, abs=5e-3)
    assert ratio_paper(KDA, 16, record=raw) == pytest.approx(0.581, abs=5e-4)


@pytest.mark.parametrize(
    ("shape", "draft_len", "accepted", "star", "tolerance"),
    [
        (SUPER, 1, 1.0, 12.92, 5e-3),  # paper, C.5: about 13
        (SUPER, 4, 3.5, 23.73, 5e-3),  # paper, C.5: about 24
        (NANO, 1, 1.0, 13.9, 5e-2),
        (QWEN, 1, 1.0, 15.9, 5e-2),
    ],
)
def test_l_star_eq_16(shape: Shape, draft_len: int, accepted: float, star: float, tolerance: float) -> None:
    assert l_star(shape, draft_len, accepted) == pytest.approx(star, abs=tolerance)


def test_state_to_record_ratio() -> None:
    assert 4 * 64 * 128 / record_bytes(SUPER) == pytest.approx(84.5, abs=0.05)  # paper, C.5: 84


def test_crossover_c_2() -> None:
    assert layer_state_bytes(SUPER) == 4 * 2**20  # 4 MiB
    assert state_bytes_per_sequence(SUPER_MODEL) == 167_772_160
    assert kv_bytes_per_token(SUPER_MODEL, "fp8") == 8 * 512  # 0.5 KiB a layer
    assert layer_state_bytes(SUPER) / 512 == 8192  # one state equals the cache of 8192 tokens
    assert crossover_tokens(SUPER_MODEL, "fp8") == 81_920
    assert crossover_tokens(SUPER_MODEL) == 81_920
    assert crossover_tokens(SUPER_MODEL, "bf16") == 40_960
    assert crossover_tokens(SUPER_MODEL, "fp8", "fp16") == 40_960


def test_crossover_without_attention() -> None:
    pure = SimpleNamespace(**{**vars(SUPER_MODEL), "n_attn_layers": 0, "kv_elements_per_token": 0})
    assert crossover_tokens(pure) is None
    with pytest.raises(InputError, match="kv_dtype"):
        crossover_tokens(SUPER_MODEL, "int3")


def test_output_only_c_4() -> None:
    assert flops.record_term_factor(64, 128) == pytest.approx(42.7, abs=0.05)  # paper: about 43
    materialized = flops.materialized_verify_flops(64, 128, 12, 4)
    output_only = flops.output_only_verify_flops(64, 128, 12, 4)
    assert materialized == 393_216  # (24 + 4 + 20) * 8192
    assert output_only == 90_112  # 8 * 8192 + 8 * 16 * 192
    assert materialized / output_only == pytest.approx(4.36, abs=5e-3)  # paper: over 4x


def test_output_only_decode_c_4() -> None:
    assert flops.materialized_decode_flops(64, 128, 7) == 163_840  # 2 * 10 * 8192
    assert flops.output_only_decode_flops(64, 128, 7) == 19_456  # 2 * 8192 + 2 * 8 * 192
    saved = flops.materialized_decode_flops(64, 128, 7) - 4 * 64 * 128  # the decayed checkpoint, the readout
    assert saved / (2 * 8 * 192) == flops.record_term_factor(64, 128)


def test_the_delta_rule_reads_the_state_once_more() -> None:
    """Eq. 3 by the rules of App. C.1 and C.4, counted by hand: a multiplication or addition at a time."""
    d_v, d_k, h, n = 3, 4, 5, 2
    delta = flops.FLOPS["gdn"]
    dot, onto = 2 * d_k - 1, 2 * d_v * d_k  # of one row with a vector; u kᵀ onto a state
    correction = d_v * (dot + 3)
    assert delta.conventional(d_v, d_k) == correction + d_v * d_k + onto + d_v * dot
    assert delta.conventional(128, 128) == 114_816
    assert delta.materialized_decode(d_v, d_k, h) == 2 * (h + 4) * d_v * d_k
    pair = 2 * (d_v + d_k)  # its k·q, and its value's part of the output
    assert delta.output_only_decode(d_v, d_k, h) == 4 * d_v * d_k + (2 * h + 1) * pair
    assert delta.materialized_verify(d_v, d_k, h, n) == (2 * h + 4 + 7 * n) * d_v * d_k
    pairs = n * (h + n) + n * h + 1  # of queries as the paper counts them; of keys with the drafts before them
    assert delta.output_only_verify(d_v, d_k, h, n) == 4 * n * d_v * d_k + pairs * pair
    assert delta.recovery(d_v, d_k, n) == n * (correction + d_v * d_k + onto)  # a step without its readout
    assert flops.FLOPS["mamba2"].conventional is flops.conventional_flops


@pytest.mark.parametrize(
    ("key", "draft_len", "reads", "writes", "launches", "serial"),
    [  # paper, App. A.1
        ("conventional", 1, 1, 1, 1, 1),
        ("snapshot", 4, 1, 4, 1, 4),
        ("fused_recovery", 4, 1, 2, 1, 7),
        ("activation_replay", 4, 3, 3, 3, 8),
        ("joint_attainment", 4, 3, 4, 2, 7),
        ("stree", 4, 2, 1, 2, 4),
        ("stree_released", 4, 5, 4, 5, 4),  # the self-copy is a gather and a copy back
        ("replay", 4, 1, 0, 1, 0),
    ],
)
def test_state_traffic_table(key: str, draft_len: int, reads: int, writes: int, launches: int, serial: int) -> None:
    row = state_traffic(key)
    assert row.counts(draft_len) == (reads, writes)
    assert (row.launches, row.chain(draft_len)) == (launches, serial)


def test_state_traffic_of_a_flush() -> None:
    assert state_traffic("replay").counts(4, 1.0) == (1, 1.0)
    assert state_traffic("replay").counts(1, 1 / 16) == (1, 0.0625)
    reads, writes = state_traffic("snapshot").counts(np.array([2, 4, 8]))
    assert reads.tolist() == [1, 1, 1]
    assert writes.tolist() == [2, 4, 8]
    with pytest.raises(InputError, match="nothing"):
        state_traffic("nothing")


def test_exact_records_share_keys() -> None:
    # Super: x 128 * 64 * 2, k 8 * 128 * 2, dt 128 * 4 bytes; the paper counts the key 128 times.
    assert layer_record_bytes(SUPER) == 16_384 + 2_048 + 512
    assert 128 * record_bytes(SUPER) == 49_664
    assert layer_record_bytes(KDA) == 32 * 1024  # KDA shares no key


def test_shared_keys_reach_the_bound_above_the_paper() -> None:
    # Nano was measured at 1.80x where Eq. 13 says 1.74x; with the key shared by 12 heads the bound is 1.82x.
    shared = layer_record_bytes(NANO) / NANO.n_v_heads
    assert 1 / ratio_paper(NANO, 16) == pytest.approx(1.74, abs=5e-3)
    assert 1 / ratio_paper(NANO, 16, record=shared) == pytest.approx(1.82, abs=5e-3)


shapes = st.builds(
    lambda family, heads, d_v, d_k: Shape(family, heads, heads, d_v, d_k),
    st.sampled_from(["mamba2", "gdn", "kda"]),
    st.integers(1, 8),
    st.integers(1, 256),
    st.integers(1, 256),
)


@given(shapes, st.integers(1, 512), st.sampled_from([4.0, 2.0, 1.0, 0.5]))
def test_eq_15_is_eq_13_per_token_at_one(shape: Shape, window: int, element: float) -> None:
    per_token = traffic_per_token(shape, window, 1, 1, element)
    assert per_token == pytest.approx(m_replay(shape, window, element) / window, rel=1e-12)


@given(shapes, st.integers(1, 512))
def test_eq_13_is_the_sum_over_the_cycle(shape: Shape, window: int) -> None:
    counts = replay_decode_counts(shape, window)
    state, record = 4 * shape.d_v * shape.d_k, record_bytes(shape)
    reads = sum(state + h * record for h in range(window))
    writes = state + (window - 1) * record
    assert counts.bytes_read * window == pytest.approx(reads, rel=1e-12)
    assert counts.bytes_write * window == pytest.approx(writes, rel=1e-12)


@given(shapes, st.integers(1, 8), st.data())
def test_l_star_is_the_minimum_of_eq_15(shape: Shape, draft_len: int, data: st.DataObject) -> None:
    accepted = data.draw(st.floats(1, draft_len))
    star = float(l_star(shape, draft_len, accepted))
    if star == 0:
        assert traffic_per_token(shape, 1, draft_len, accepted) <= traffic_per_token(shape, 2, draft_len, accepted)
        return
    least = traffic_per_token(shape, star, draft_len, accepted)
    assert least <= traffic_per_token(shape, star * 1.05, draft_len, accepted) * (1 + 1e-12)
    assert least <= traffic_per_token(shape, star * 0.95, draft_len, accepted) * (1 + 1e-12)


def test_acceptance_of_the_golden_point() -> None:
    assert acceptance_pmf("3.5", 4) @ np.arange(1, 5) == pytest.approx(3.5, abs=1e-9)
