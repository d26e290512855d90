"""Rounding limits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import InputError
from perfkit.roofline.rounding import (
    bias_limit,
    nearest_bias_bound,
    separate_limits,
    settling_steps,
    stochastic_variance_bound,
    variance_limit,
)


def test_limits_by_hand() -> None:  # paper, C.6
    assert bias_limit(1.0, 0.5) == pytest.approx(2.0)  # b / (1 - alpha)
    assert bias_limit(1.0, 0.5, 2) == pytest.approx(4 / 3)  # b / (1 - alpha^L)
    assert variance_limit(1.0, 0.5) == pytest.approx(4 / 3)  # s2 / (1 - alpha^2)
    assert variance_limit(1.0, 0.5, 2) == pytest.approx(16 / 15)  # s2 / (1 - alpha^2L)
    assert separate_limits(0.25, 0.5) == (0.25, 0.5)  # one rounding
    assert settling_steps(0.999) == pytest.approx(1000)
    assert nearest_bias_bound(0.5) == 0.25
    assert stochastic_variance_bound(0.5) == 0.0625


def test_limits_at_the_ends() -> None:
    assert bias_limit(1.0, 1.0, 16) == np.inf
    assert bias_limit(0.0, 1.0, 16) == 0
    assert bias_limit(1.0, 0.0, 16) == 1
    assert bias_limit(1.0, np.array([0.5, 1.0])).tolist() == [2.0, np.inf]
    with pytest.raises(InputError, match="alpha"):
        bias_limit(1.0, 1.1)
    with pytest.raises(InputError, match="alpha"):
        variance_limit(1.0, float("nan"))
    with pytest.raises(InputError, match="window"):
        variance_limit(1.0, 0.9, 0)


@given(st.floats(0.5, 0.9999), st.integers(1, 64))
def test_recurrence_reaches_the_bias_limit(alpha: float, window: int) -> None:
    deviation = 0.0
    for _ in range(int(40 / (1 - alpha) / window) + 2):
        deviation = alpha**window * deviation + 1.0
    assert bias_limit(1.0, alpha, window) == pytest.approx(deviation, rel=1e-6)
    assert bias_limit(1.0, alpha, window) <= bias_limit(1.0, alpha) * (1 + 1e-12)


def test_simulated_variance() -> None:
    rng = np.random.default_rng(3)
    deviation = np.zeros(40_000)
    for _ in range(60):
        deviation = 0.9**4 * deviation + rng.normal(size=deviation.size)
    assert deviation.var() == pytest.approx(float(variance_limit(1.0, 0.9, 4)), rel=0.03)
