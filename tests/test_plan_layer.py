"""Times of many windows and batches at once: those of single cases, their quantiles, and how long they take."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit import registry
from perfkit.derive import model_case
from perfkit.method import Case
from perfkit.plan import Layer, make_layer, parse_drafts
from perfkit.plan.methods import built_in
from perfkit.profiles import load_gpu, load_model
from perfkit.roofline import efficiency_for, shipped_roofs

MODELS = {"mamba2": "nemotron-super", "gdn": "qwen3.5-122b", "kda": "kimi-linear"}
WINDOWS = (8, 13, 32)


def layer(
    family: str, key: str, draft_len: int, acceptance: str | None, *, gpu: str = "b300", windows: object = WINDOWS,
    state_dtype: str = "float32", aligned: bool = False,
) -> Layer:  # fmt: skip
    method = built_in(family, key, "decode" if draft_len == 1 else "verify")
    assert method is not None
    profile = load_gpu(gpu)
    return make_layer(
        method, load_model(MODELS[family]).shape, profile, shipped_roofs(profile), draft_len=draft_len,
        windows=windows if method.windowed else None, pmf=parse_drafts(acceptance, [draft_len]).pmf(draft_len),
        state_dtype=state_dtype, aligned=aligned,
        efficiency=efficiency_for(family, key, method.phase, profile.key),
    )  # fmt: skip


@pytest.mark.parametrize("family", MODELS)
@pytest.mark.parametrize("phase", ["aligned", "staggered"])
def test_they_are_those_of_single_cases(family: str, phase: str) -> None:
    """Every method at random batches, on a GPU with measured roofs and on one without."""
    rng = np.random.default_rng(5)
    shape = load_model(MODELS[family]).shape
    for gpu in ("h200-sxm", "b300"):
        profile = load_gpu(gpu)
        roofs = shipped_roofs(profile)
        for draft_len, acceptance in ((1, None), (4, ".9,.6,.4"), (3, "T")):
            for method in registry.methods(family, "decode" if draft_len == 1 else "verify"):
                batch, state = int(rng.integers(1, 600)), str(rng.choice(["float32", "float16"]))
                ours = layer(family, method.key, draft_len, acceptance, gpu=gpu, state_dtype=state,
                             aligned=phase == "aligned").times(batch)  # fmt: skip
                text = parse_drafts(acceptance, [draft_len]).text(draft_len)
                for at, window in enumerate(WINDOWS if method.windowed else (None,)):
                    case = Case(shape, method.key, batch, window, draft_len, text, flush_phase=phase, state_dtype=state)
                    alone = model_case(case, profile, roofs).time
                    assert alone is not None
                    found = (ours.us[at], ours.lo[at], ours.hi[at])
                    assert found == pytest.approx((alone.us, alone.lo, alone.hi), rel=1e-9), case


def test_methods_are_the_registrys() -> None:
    """A plan loads one family's files alone; what it finds is what the registry has."""
    for method in registry.methods():
        assert built_in(method.family, method.key, method.phase) is method
    assert built_in("gdn", "stree", "verify") is None
    assert built_in("rwkv", "replay", "decode") is None


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)), st.integers(1, 6), st.floats(0, 1), st.booleans(),
    st.lists(st.integers(1, 4000), min_size=1, max_size=4),
)  # fmt: skip
def test_quantiles_and_intervals_are_in_order(
    family: str, draft_len: int, rate: float, aligned: bool, batches: list[int]
) -> None:
    acceptance = ",".join(f"{rate ** (i + 1):.6f}" for i in range(draft_len - 1)) or None
    found = layer(family, "replay", draft_len, acceptance, aligned=aligned, windows=(6, 16, 64))
    times = found.times(np.sort(batches)[:, None])
    assert times.us.shape == (len(batches), 3)
    assert np.all((times.lo <= times.us) & (times.us <= times.hi))
    assert np.all((times.kernel_lo <= times.us * (1 + 1e-12)) & (times.us <= times.kernel_hi * (1 + 1e-12)))
    assert np.all((times.lo <= times.kernel_lo) & (times.kernel_hi <= times.hi))
    assert np.all(times.p99 >= times.us)
    assert np.all(times.p50 <= times.p99 * (1 + 1e-12))
    assert np.all(np.diff(times.us, axis=0) >= 0)  # more rows take no less time
    assert found.mean_us(np.sort(batches)[:, None]) == pytest.approx(times.us)


def test_the_slow_steps_are_those_that_flush() -> None:
    """Together, one step in 16 flushes all rows; spread, 16 of 256 do on average and 26 in one step of a hundred."""
    together = layer("mamba2", "replay", 1, None, windows=(16,), aligned=True).times(256)
    spread = layer("mamba2", "replay", 1, None, windows=(16,)).times(256)
    assert together.us[0] == pytest.approx((15 * together.p50[0] + together.p99[0]) / 16)
    written = 256 * 2**22 / 1e3  # of the checkpoint, in GB/s
    roofs = shipped_roofs(load_gpu("b300"))
    assert together.p99[0] - together.p50[0] > 0.7 * written / roofs.write_gb_s
    assert spread.us[0] < spread.p99[0] < spread.us[0] * 1.08 < together.p99[0]
    assert spread.p50[0] == pytest.approx(spread.us[0], rel=1e-6)


def test_one_row_flushes_or_does_not() -> None:
    one = layer("mamba2", "replay", 1, None, windows=(16,)).times(1)
    aligned = layer("mamba2", "replay", 1, None, windows=(16,), aligned=True).times(1)
    # What a fit adds to flushing rows is in the mean of mixed steps already: 2 % here.
    assert one.p99[0] == pytest.approx(aligned.p99[0], rel=0.03)
    assert one.p50[0] == pytest.approx(aligned.p50[0], rel=0.03)


@pytest.mark.parametrize(("draft_len", "rates"), [(4, ".83,.8,.3"), (5, ".96,.37,.29,.14"), (3, ".68,.18")])
@pytest.mark.parametrize("batch", [1, 64])
def test_where_every_step_flushes_there_is_one_kind(draft_len: int, rates: str, batch: int) -> None:
    """At L = T, whatever is accepted and however its probabilities round; beside a window with two kinds of step."""
    times = layer("mamba2", "replay", draft_len, rates, windows=(draft_len, 32)).times(batch)
    assert times.p50[0] == pytest.approx(times.us[0]) and times.p99[0] == pytest.approx(times.us[0])
    assert times.p50[1] < times.p99[1]


def test_the_slowest_step_is_never_faster_than_the_median() -> None:
    """Of one request with a small state, a step that flushes is predicted to be no slower than one that does not."""
    times = layer("gdn", "replay", 2, ".33", windows=(4, 8, 16, 32), state_dtype="bfloat16").times(1)
    assert np.all(times.p50 <= times.p99)


def test_methods_without_a_window_have_one_kind_of_step() -> None:
    for key, draft_len, acceptance in (("conventional", 1, None), ("snapshot", 4, ".9,.5,.2")):
        times = layer("gdn", key, draft_len, acceptance).times(64)
        assert times.p50 == times.p99 == times.us


def test_what_is_not_known_of_kernels_is_less_than_what_is_not_known() -> None:
    """A datasheet's roof is in lo and hi, and not in what a ratio of two methods takes."""
    found = layer("mamba2", "conventional", 1, None)
    times = found.times(256)
    same = replace(found, roofs=replace(found.roofs, source="measured")).times(256)
    assert (times.kernel_lo, times.kernel_hi) == (same.lo, same.hi)
    assert times.lo < 0.9 * times.kernel_lo


def test_a_hundred_thousand_configurations_take_half_a_second() -> None:
    """Measured 1.5 s for 10^6 on two cores; four times that here, for busy machines."""
    start, count = time.perf_counter(), 0
    for draft_len in (1, 2, 4, 6, 8):
        windows = np.arange(max(draft_len, 2), 65)
        found = layer("mamba2", "replay", draft_len, "T" if draft_len > 1 else None, windows=windows)
        count += found.times(np.arange(1, 341)[:, None]).us.size
    assert count > 100_000
    assert time.perf_counter() - start < 2.0
