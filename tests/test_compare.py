"""Statistics of comparing two runs, against textbook values and simulated truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from perfkit.compare import holm
from perfkit.compare.evidence import Change, Evidence, change, from_row, from_samples, trimmed
from perfkit.compare.verdicts import ALPHA, is_regression, margin, may_be_regression, verdict

LN2 = 0.6931471805599453


def evidence(log_ratio: float, error: float = 0.001, freedom: float = 9.0) -> Evidence:
    return Evidence(log_ratio, error, freedom, round(freedom) + 1, "samples")


def series(times, rounds=None) -> dict:
    return {"time_us": list(times), "round": list(range(len(times)) if rounds is None else rounds)}


# -- evidence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(10, 10), (12, 31), (25, 40)])
def test_trimmed_mean_and_its_error_are_those_of_yuens_test(sizes):
    rng = np.random.default_rng(1)
    first, second = (rng.standard_t(3, size) for size in sizes)
    (mean1, error1, freedom1), (mean2, error2, freedom2) = trimmed(first), trimmed(second)
    expected = stats.ttest_ind(first, second, equal_var=False, trim=0.1)
    assert (mean1 - mean2) / math.hypot(error1, error2) == pytest.approx(expected.statistic)
    assert (freedom1, freedom2) == tuple(size - 2 * (size // 10) - 1 for size in sizes)


def test_below_ten_samples_nothing_is_trimmed():
    values = [1.0, 2.0, 4.0, 9.0, 4.0]
    assert trimmed(values) == pytest.approx((4.0, stats.sem(values), 4.0))


def test_an_outlier_among_ten_samples_changes_nothing():
    values = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9]
    assert trimmed([*values[:-1], 500.0]) == trimmed(values)


def test_ratios_are_taken_within_rounds_so_that_a_drift_of_both_cancels():
    drift = np.linspace(100, 150, 20)
    found = from_samples(series(2 * drift), series(drift))
    assert (found.log_ratio, found.error, found.n) == (pytest.approx(LN2), pytest.approx(0.0, abs=1e-12), 20)
    assert found.ratio == pytest.approx(2.0)


def test_a_round_counts_if_both_of_its_samples_are_there():
    case, control = series([2.0, 8.0, 4.0], [0, 2, 3]), series([1.0, 1.0, 2.0, 5.0], [0, 1, 3, 4])
    found = from_samples(case, control)
    assert (found.n, found.log_ratio) == (2, pytest.approx(LN2))


@pytest.mark.parametrize(
    ("case", "control"),
    [({}, series([1.0])), (series([1.0]), {}), ({"time_us": [1.0, 2.0]}, series([1.0, 2.0])),
     (series([1.0], [0]), series([1.0], [1])), (series([None, 2.0]), series([1.0], [0]))],
)  # fmt: skip
def test_no_evidence_without_rounds_in_common(case, control):
    assert from_samples(case, control) is None


def test_one_sample_says_nothing_of_its_error():
    found = from_samples(series([2.0]), series([1.0]))
    assert (found.n, found.error) == (1, math.inf)
    seen = change(found, evidence(0.0), 0.005)
    assert (seen.value, seen.lo, seen.hi, seen.p) == (pytest.approx(-0.5), -math.inf, math.inf, 1.0)
    assert verdict(seen, seen.p) == "ambiguous"


def test_a_stored_interval_of_the_speedup_becomes_the_error_of_the_ratio():
    row = {"speedup": 2.0, "speedup_lo": 1.9, "speedup_hi": 2.1, "n_samples": 10}
    found = from_row(row, {})
    assert found.ratio == pytest.approx(0.5)
    assert found.error == pytest.approx(math.log(2.1 / 1.9) / 2 / 1.959964)
    assert (found.freedom, found.n, found.kind) == (9.0, 10, "intervals")


def test_without_an_interval_of_the_speedup_those_of_both_times_do():
    row = {"time_us": 300.0, "time_us_lo": 297.0, "time_us_hi": 303.0, "speedup": 1.8}
    control = {"time_us": 600.0, "time_us_lo": 592.0, "time_us_hi": 608.0}
    found = from_row(row, control)
    assert found.ratio == pytest.approx(0.5)
    assert found.error == pytest.approx(math.hypot(0.01, 8 / 600) / 1.959964, rel=1e-3)
    assert found.freedom == math.inf
    assert from_row({**row, "time_us_lo": None}, control).error == math.inf
    assert from_row({}, control) is None


# -- changes ---------------------------------------------------------------------------------------------------------


def test_without_a_floor_the_p_value_is_the_two_sided_t_test():
    base, new = evidence(0.0, 0.003, 9.0), evidence(0.02, 0.004, 30.0)
    found = change(base, new, 0.0)
    # The error is 0.005, so t = 4, with the nine degrees of freedom of the side that has fewer.
    assert found.p == pytest.approx(2 * stats.t.sf(4.0, 9))
    assert found.value == pytest.approx(math.expm1(0.02))
    assert math.log1p(found.lo) == pytest.approx(0.02 - 2.262157 * 0.005)
    assert math.log1p(found.hi) == pytest.approx(0.02 + 2.262157 * 0.005)


def test_the_floor_widens_the_interval_on_both_sides_and_is_no_change():
    base, new = evidence(0.0), evidence(0.005)
    bare, found = change(base, new, 0.0), change(base, new, 0.005)
    assert math.log1p(found.hi) - math.log1p(bare.hi) == pytest.approx(math.log(1.005))
    assert math.log1p(bare.lo) - math.log1p(found.lo) == pytest.approx(math.log(1.005))
    assert bare.p < 0.01
    assert found.p > 0.4


@pytest.mark.parametrize(("off", "expected"), [(0.004, "same"), (0.02, "slower"), (-0.02, "faster")])
def test_runs_without_noise_differ_where_they_differ_by_more_than_the_floor(off, expected):
    found = change(evidence(0.0, 0.0), evidence(off, 0.0), 0.005)
    assert found.p in (0.0, 1.0)
    assert verdict(found, found.p) == expected


# -- verdicts --------------------------------------------------------------------------------------------------------


def test_holm_is_the_textbook_correction():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def made(value: float, lo: float, hi: float, floor: float = 0.005) -> Change:
    return Change(value, lo, hi, floor, 1.0)


@pytest.mark.parametrize(
    ("found", "p", "expected"),
    [
        (made(0.04, 0.03, 0.05), 0.0099, "slower"),
        (made(-0.04, -0.05, -0.03), 0.0099, "faster"),
        (made(0.04, 0.03, 0.05), 0.0101, "ambiguous"),  # not significant, not within the margin either
        (made(0.0, -0.0195, 0.0195), 1.0, "same"),
        (made(0.0, -0.0195, 0.0205), 1.0, "ambiguous"),
        (made(0.0, -0.0205, 0.0195), 1.0, "ambiguous"),
        (made(0.0, -0.035, 0.035, 0.01), 1.0, "same"),  # four floors
        (made(0.008, 0.001, 0.015), 0.001, "slower"),  # small, and there beyond doubt
        (made(0.0, -1.0, math.inf), 1.0, "ambiguous"),
    ],
)
def test_a_verdict_is_a_significant_change_or_an_interval_within_the_margin(found, p, expected):
    assert verdict(found, p) == expected


def test_the_margin_is_two_percent_or_four_floors():
    assert (margin(0.0), margin(0.005), margin(0.02)) == (0.02, 0.02, 0.08)


@pytest.mark.parametrize(
    ("found", "judged", "fails", "may"),
    [
        (made(0.04, 0.035, 0.045), "slower", True, False),  # all of the interval above 3 %
        (made(0.035, 0.02, 0.05), "slower", True, False),  # its middle above 3 %
        (made(0.025, 0.015, 0.035), "slower", False, True),  # slower, and rather by less
        (made(0.02, 0.015, 0.025), "slower", False, False),
        (made(0.05, -0.01, 0.12), "ambiguous", False, True),  # not known to be slower
        (made(-0.05, -0.06, -0.04), "faster", False, False),
        (made(0.0, -0.01, 0.01), "same", False, False),
        (made(0.0, -0.035, 0.035, 0.01), "same", False, True),  # by a floor that is above the limit
    ],
)
def test_a_regression_is_slower_by_more_than_the_limit_in_the_middle_of_its_interval(found, judged, fails, may):
    assert is_regression(found, judged, 3.0) is fails
    assert may_be_regression(found, judged, 3.0) is may


@pytest.mark.parametrize(
    ("noise", "sizes"),
    [(lambda rng, n: rng.standard_normal(n), (10, 10)), (lambda rng, n: rng.standard_t(3, n), (10, 40)),
     (lambda rng, n: rng.exponential(size=n), (6, 25))],
    ids=["normal", "heavy tails", "skewed"],
)  # fmt: skip
def test_runs_of_the_same_code_raise_an_alarm_in_one_of_a_hundred_comparisons_at_most(noise, sizes):
    """Without a floor: the test and the correction alone hold the rate of comparisons of 40 cases with any alarm."""
    rng, alarms, total = np.random.default_rng(5), 0, 50
    for _ in range(total):
        p_values = []
        for _ in range(40):
            base, new = (Evidence(*trimmed(0.01 * noise(rng, n)), n, "samples") for n in sizes)
            p_values.append(change(base, new, 0.0).p)
        alarms += min(holm(p_values)) < ALPHA
    assert alarms <= 3  # half of one is expected at the limit; four or more have a chance of one in five hundred


def test_what_runs_differ_by_unseen_is_an_alarm_without_the_floor_and_none_with_it():
    rng = np.random.default_rng(6)
    found = {0.0: 0, 0.005: 0}
    for _ in range(20):
        shifts = 0.001 * rng.standard_normal(12)  # the truth has not changed; each run is off by something of its own
        for floor in found:
            p_values = [change(evidence(0.0, 1e-4), evidence(shift, 1e-4), floor).p for shift in shifts]
            found[floor] += min(holm(p_values)) < ALPHA
    assert found[0.0] > 10
    assert found[0.005] == 0
