"""Intervals against known truth, the stopping rule, paired ratios and the break-even batch."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from perfkit.errors import InputError
from perfkit.stats import (
    Interval,
    Stopping,
    aa_difference,
    aa_floor,
    break_even,
    by_round,
    median_interval,
    p99,
    ratio_interval,
)


def lognormal(rng: np.random.Generator, n: int, median: float = 300.0, sigma: float = 0.02) -> np.ndarray:
    return median * np.exp(sigma * rng.standard_normal(n))


@pytest.mark.parametrize("n", [20, 60])
def test_interval_covers_the_true_median_as_often_as_it_says(n):
    rng = np.random.default_rng(7)
    hits = sum(300.0 in median_interval(lognormal(rng, n), seed=i, resamples=1000) for i in range(600))
    assert 0.90 <= hits / 600 <= 0.98


def test_interval_agrees_with_a_plain_bootstrap():
    samples = lognormal(np.random.default_rng(1), 60)
    draws = np.random.default_rng(2).choice(samples, size=(20000, 60))
    lo, hi = np.quantile(np.median(draws, axis=1), (0.025, 0.975))
    ours = median_interval(samples, resamples=20000)
    assert ours.value == np.median(samples)
    assert ours.lo == pytest.approx(lo, rel=5e-4)
    assert ours.hi == pytest.approx(hi, rel=5e-4)


def test_even_number_of_samples_averages_the_two_middle_ones():
    assert median_interval([1.0, 2.0, 3.0, 10.0]).value == 2.5


def test_same_samples_and_seed_give_the_same_interval():
    samples = lognormal(np.random.default_rng(1), 40)
    assert median_interval(samples, seed=3) == median_interval(samples, seed=3)
    assert len({median_interval(samples, seed=seed) for seed in range(10)}) > 1


def test_order_of_samples_does_not_matter_and_nan_is_left_out():
    samples = lognormal(np.random.default_rng(1), 40)
    assert median_interval([*samples[::-1], math.nan, math.inf]) == median_interval(samples)


def test_one_sample_says_nothing_and_none_is_an_error():
    only = median_interval([5.0])
    assert (only.value, only.lo, only.hi) == (5.0, -math.inf, math.inf)
    assert only.half_width == math.inf
    with pytest.raises(ValueError, match="no finite sample"):
        median_interval([math.nan])


def test_interval_is_fast():
    samples = lognormal(np.random.default_rng(1), 60)
    median_interval(samples)
    best = min(_timed(lambda: median_interval(samples)) for _ in range(7))
    assert best < 0.02  # a few milliseconds; the limit leaves room for a busy machine


def _timed(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_half_width_is_relative():
    assert Interval(200.0, 199.0, 201.0).half_width == pytest.approx(0.005)


def test_p99():
    assert p99(np.arange(101.0)) == 99.0
    assert p99([3.0]) == 3.0
    with pytest.raises(ValueError, match="no finite"):
        p99([])


def test_stops_as_converged_on_quiet_samples_but_never_before_the_minimum():
    rule = Stopping(min_samples=10)
    assert not rule.decide([100.0] * 9, 0.0).stop
    decision = rule.decide([100.0] * 10, 0.0)
    assert (decision.reason, decision.interval) == ("converged", Interval(100.0, 100.0, 100.0))


def test_stops_at_the_limits_and_says_which():
    noisy = list(lognormal(np.random.default_rng(0), 50, sigma=0.3))
    rule = Stopping(max_samples=50, max_seconds=2.0)
    assert rule.decide(noisy[:49], 1.9).reason is None
    assert rule.decide(noisy, 1.9).reason == "max_samples"
    late = rule.decide(noisy[:3], 2.0)
    assert late.reason == "max_time"
    assert late.interval is not None and late.interval.half_width > 0.005
    assert rule.decide([100.0] * 3, 2.0).reason == "max_time"  # quiet, but too few to call converged
    nothing = rule.decide([], 2.0)
    assert (nothing.reason, nothing.interval) == ("max_time", None)


def test_interval_is_looked_at_every_few_samples_only():
    rule = Stopping(min_samples=10, check_every=5)
    looked = [n for n in range(1, 26) if rule.decide([100.0] * n, 0.0).interval is not None]
    assert looked == [10, 15, 20, 25]


def test_coverage_survives_stopping_early():
    rng = np.random.default_rng(11)
    rule, hits, reasons = Stopping(target_half_width=0.005), 0, set()
    for _ in range(200):
        stream = lognormal(rng, 200, sigma=0.015)
        n = 2
        while not (decision := rule.decide(stream[:n], 0.0)).stop:
            n += 1
        reasons.add(decision.reason)
        hits += 300.0 in decision.interval
    assert reasons == {"converged"}
    assert 0.86 <= hits / 200 <= 0.99  # stopping on the narrow side costs a few points of the nominal 95 %


def test_rule_from_settings_ignores_other_keys_and_nulls():
    rule = Stopping.of({"seed": 1, "min_samples": 4, "max_samples": None, "max_case_s": 9.0, "target_half_width": 0.01})
    assert rule == Stopping(target_half_width=0.01, min_samples=4, max_samples=200, max_seconds=9.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("target_half_width", 0.0), ("min_samples", 1), ("max_samples", 3), ("max_case_s", 0.0), ("max_samples", 70000)],
)
def test_bad_rule_is_bad_input(field, value):
    with pytest.raises(InputError, match=rf"^{field}: {value}: must be"):
        Stopping.of({field: value})


def test_ratio_covers_truth_and_pairing_removes_common_drift():
    rng = np.random.default_rng(5)
    hits, paired, unpaired = 0, [], []
    for i in range(300):
        drift = np.exp(0.05 * np.sin(np.arange(60) / 9 + i))
        base, new = drift * lognormal(rng, 60, 559, 0.01), drift * lognormal(rng, 60, 302, 0.01)
        ratio = ratio_interval(base, new, seed=i)
        hits += 559 / 302 in ratio
        paired.append(ratio.half_width)
        unpaired.append(ratio_interval(base, rng.permutation(new), seed=i).half_width)
    assert 0.90 <= hits / 300 <= 0.98
    assert np.median(paired) < np.median(unpaired) / 2


def test_ratio_uses_the_rounds_that_both_have():
    base = by_round([0, 2, 3], [10.0, 30.0, 8.0], 4)
    new = by_round([0, 1, 2], [5.0, 1.0, 10.0], 4)
    np.testing.assert_array_equal(base, [10, math.nan, 30, 8])
    assert ratio_interval(base, new).value == 2.5  # median of 10/5 and 30/10
    with pytest.raises(ValueError, match="differ"):
        ratio_interval([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="2 rounds but 1 times"):
        by_round([0, 1], [1.0])
    assert len(by_round([], [])) == 0


def test_aa_difference_holds_zero_and_shows_a_planted_bias():
    rng = np.random.default_rng(3)
    first, second = lognormal(rng, 100, sigma=0.003), lognormal(rng, 100, sigma=0.003)
    same = aa_difference(first, second)
    assert 0.0 in same and abs(same.value) < 0.002
    biased = aa_difference(first * 1.02, second)
    assert 0.0 not in biased and biased.value == pytest.approx(0.02, abs=0.002)
    assert aa_floor([same, biased]) == biased.value
    assert aa_floor([]) is None


def test_break_even_interpolates_in_log_batch():
    result = break_even([4, 1, 16], [1.1, 0.9, 1.4])
    assert result.batch == pytest.approx(2.0)  # half way between 1 and 4 in log2
    assert (result.lo, result.hi) == (result.batch, result.batch)
    assert not result.at_most


def test_break_even_takes_the_last_crossing():
    assert break_even([1, 2, 4, 8], [1.2, 0.9, 0.9, 1.1]).batch == pytest.approx(4 * 2**0.5)


def test_break_even_at_the_ends():
    always = break_even([2, 4], [1.3, 1.4], [1.2, 1.3], [1.4, 1.5])
    assert (always.batch, always.lo, always.hi, always.at_most) == (2.0, 2.0, 2.0, True)
    never = break_even([2, 4], [1.3, 0.8], [1.2, 0.79], [1.4, 0.81])
    assert (never.batch, never.lo, never.hi) == (None, None, None)
    unsure = break_even([1, 2, 4], [0.8, 0.9, 1.01], [0.79, 0.89, 0.9], [0.81, 0.91, 1.13])
    assert unsure.batch is not None and unsure.hi is None
    assert break_even([8], [1.5]).batch == 8.0


def test_break_even_interval_covers_truth():
    rng = np.random.default_rng(9)
    batches = np.array([1, 2, 4, 8, 16])
    truth = 0.8 + 0.1 * np.log2(batches)  # crosses 1 at batch 4
    hits = 0
    for i in range(200):
        seen = truth * np.exp(0.01 * rng.standard_normal(5))
        result = break_even(batches, seen, seen * np.exp(-0.0196), seen * np.exp(0.0196), seed=i, resamples=500)
        hits += result.lo <= 4 <= result.hi
    assert hits / 200 >= 0.90


@pytest.mark.parametrize("args", [([], []), ([1, 1], [1.0, 2.0]), ([1, 2], [1.0]), ([1], [0.0])])
def test_break_even_refuses_nonsense(args):
    with pytest.raises(ValueError):
        break_even(*args)
