"""Where the error of a rounded recurrent state settles, at constant decay and independent errors.

Each rounding adds an error with bias b and variance s2 per element; the recurrence decays it by alpha a token, and
alpha^L lies between two roundings when the state is stored once per window of L. A conventional update is L = 1.
With separate precisions the rounded copy never enters the recurrence: the output error is one rounding.

Source: paper, Eq. 17, App. C.6. It predicts how error scales with decay and window, not its magnitude.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from perfkit.errors import InputError


def bias_limit(bias: Any, alpha: Any, window: Any = 1) -> Any:
    """Return the mean deviation that round-to-nearest settles at: b / (1 - alpha^L); infinite at alpha = 1."""
    return _limit(bias, alpha, window)


def variance_limit(variance: Any, alpha: Any, window: Any = 1) -> Any:
    """Return the variance that stochastic rounding settles at: s2 / (1 - alpha^(2L)); infinite at alpha = 1."""
    return _limit(variance, alpha, 2 * np.asarray(window))


def separate_limits(bias: Any, variance: Any) -> tuple[Any, Any]:
    """Return bias and variance with a low-precision read copy beside an exact recurrence: one rounding, any alpha."""
    return bias, variance


def settling_steps(alpha: Any) -> Any:
    """Return the order of magnitude of steps after which the limits are reached: 1 / (1 - alpha)."""
    return _limit(1.0, alpha, 1)


def nearest_bias_bound(spacing: Any) -> Any:
    """Return the largest error of round-to-nearest: half the distance of two neighbours."""
    return spacing / 2


def stochastic_variance_bound(spacing: Any) -> Any:
    """Return the largest variance of stochastic rounding: p(1-p) spacing^2 at p = 1/2."""
    return spacing * spacing / 4


def _limit(value: Any, alpha: Any, exponent: Any) -> Any:
    """Return value / (1 - alpha^exponent) without cancellation near alpha = 1; nothing rounded stays nothing."""
    alpha = np.asarray(alpha, dtype=np.float64)
    if np.any(~(alpha >= 0) | (alpha > 1)):
        raise InputError("decay must lie between 0 and 1", field="alpha", value=alpha.tolist())
    if np.any(np.asarray(exponent) < 1):
        raise InputError("must be at least 1", field="window", value=np.asarray(exponent).tolist())
    with np.errstate(divide="ignore", invalid="ignore"):
        forgotten = np.abs(np.expm1(exponent * np.log(alpha)))
        return np.where(np.asarray(value) == 0, 0.0, value / forgotten)
