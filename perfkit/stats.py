"""Medians with bootstrap intervals, the stopping rule, speedups paired by round, and the break-even batch.

Timing noise is skewed and has outliers, so a time is a median and its uncertainty a bootstrap percentile interval.
Methods of a group are timed in interleaved rounds; a speedup is the median over rounds of the ratio within a round,
so that a drift of the clock, which both methods see, cancels. All resampling is seeded: the same samples give the
same interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfkit.errors import InputError

LEVEL = 0.95
RESAMPLES = 2000
#: Standard deviations on each side of the mean that hold 95 % of a normal distribution.
_Z95 = 1.959963984540054

STOP_REASONS = ("converged", "max_samples", "max_time")


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval, in the unit of the samples."""

    value: float
    lo: float
    hi: float

    @property
    def half_width(self) -> float:
        """Half the width of the interval relative to the value; infinite where the value is zero."""
        return (self.hi - self.lo) / 2 / abs(self.value) if self.value else math.inf

    def __contains__(self, value: float) -> bool:
        return self.lo <= value <= self.hi


def _finite(samples: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(samples, dtype=np.float64).ravel()
    return values[np.isfinite(values)]


def median_interval(samples: ArrayLike, *, seed: int = 0, level: float = LEVEL, resamples: int = RESAMPLES) -> Interval:
    """Return the median and its bootstrap percentile interval. Samples that are not finite are left out.

    A resample's median depends on the samples through their ranks alone, so the indices are drawn as ranks of the
    sorted samples: one partition of small integers instead of one of floats.

    Raises:
        ValueError: no finite sample. With one sample the interval is unbounded: n = 1 says nothing about noise.
    """
    values = np.sort(_finite(samples))
    n = len(values)
    if n == 0:
        raise ValueError("no finite sample")
    if n == 1:
        return Interval(float(values[0]), -math.inf, math.inf)
    ranks = np.random.default_rng(seed).integers(0, n, size=(resamples, n), dtype=np.uint16)
    upper = n // 2
    lower = (n - 1) // 2
    ranks.partition((lower, upper), axis=1)
    medians = (values[ranks[:, lower]] + values[ranks[:, upper]]) / 2
    tail = (1 - level) / 2
    lo, hi = np.quantile(medians, (tail, 1 - tail))
    return Interval(float(np.median(values)), float(lo), float(hi))


def p99(samples: ArrayLike) -> float:
    """Return the 99th percentile, linear between order statistics; with under 100 samples that is close to the maximum.

    Raises:
        ValueError: no finite sample.
    """
    values = _finite(samples)
    if len(values) == 0:
        raise ValueError("no finite sample")
    return float(np.quantile(values, 0.99))


@dataclass(frozen=True, slots=True)
class Decision:
    """What the stopping rule says after some samples; ``reason`` is None while sampling goes on."""

    reason: str | None
    interval: Interval | None

    @property
    def stop(self) -> bool:
        """True when sampling ends."""
        return self.reason is not None


@dataclass(frozen=True, slots=True)
class Stopping:
    """Stop when the interval's relative half-width reaches the target, or at a limit, and say which.

    The interval is looked at every ``check_every`` samples only: looking after each one would stop on lucky streaks,
    and its cost would leave the GPU idle between samples.

    Attributes:
        target_half_width: relative; 0.005 is ±0.5 %.
        min_samples: never converged with fewer.
        max_samples: kept samples after which sampling ends.
        max_seconds: wall-clock seconds after which it ends, however few the samples.
        check_every: samples between two looks at the interval.
    """

    target_half_width: float = 0.005
    min_samples: int = 10
    max_samples: int = 200
    max_seconds: float = 60.0
    check_every: int = 5

    def __post_init__(self) -> None:
        if not self.target_half_width > 0:
            raise InputError("must be above 0", field="target_half_width", value=self.target_half_width)
        if self.min_samples < 2:
            raise InputError("must be at least 2", field="min_samples", value=self.min_samples)
        if not self.min_samples <= self.max_samples <= np.iinfo(np.uint16).max:
            raise InputError(f"must be from min_samples = {self.min_samples} to 65535", field="max_samples",
                             value=self.max_samples)  # fmt: skip
        if not self.max_seconds > 0:
            raise InputError("must be above 0", field="max_case_s", value=self.max_seconds)
        if self.check_every < 1:
            raise InputError("must be at least 1", field="check_every", value=self.check_every)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Stopping:
        """Return the rule of a request's settings: target_half_width, min_samples, max_samples, max_case_s."""
        names = {"target_half_width": "target_half_width", "min_samples": "min_samples",
                 "max_samples": "max_samples", "max_case_s": "max_seconds"}  # fmt: skip
        return cls(**{field: settings[name] for name, field in names.items() if settings.get(name) is not None})

    def decide(self, samples: Sequence[float], elapsed_s: float, *, seed: int = 0) -> Decision:
        """Decide after each sample. ``samples`` are the kept ones, ``elapsed_s`` the seconds spent on the case.

        Returns:
            A decision; its interval is None where the samples are too few or it was not looked at.
        """
        n = len(samples)
        full = n >= self.max_samples
        late = elapsed_s >= self.max_seconds
        due = n >= self.min_samples and (n - self.min_samples) % self.check_every == 0
        interval = median_interval(samples, seed=seed) if n >= 2 and (due or full or late) else None
        if interval is not None and n >= self.min_samples and interval.half_width <= self.target_half_width:
            return Decision("converged", interval)
        if full:
            return Decision("max_samples", interval)
        return Decision("max_time" if late else None, interval)


def ratio_interval(base: ArrayLike, new: ArrayLike, *, seed: int = 0, level: float = LEVEL) -> Interval:
    """Return the speedup of ``new`` over ``base``: the median over rounds of base/new, with its interval.

    Args:
        base: one time per interleaved round; NaN where the round's sample was dropped.
        new: the same rounds. A round counts if both of its samples are there.

    Raises:
        ValueError: lengths differ, or no round has both.
    """
    numerator, denominator = np.asarray(base, np.float64), np.asarray(new, np.float64)
    if numerator.shape != denominator.shape or numerator.ndim != 1:
        raise ValueError(f"series of rounds differ: {numerator.shape} and {denominator.shape}")
    return median_interval(numerator / denominator, seed=seed, level=level)


def by_round(rounds: Sequence[int], times: Sequence[float], n_rounds: int | None = None) -> NDArray[np.float64]:
    """Return times laid out by round, NaN where a round has no kept sample: what :func:`ratio_interval` takes.

    Args:
        rounds: the round of each kept sample, from 0.
        times: the kept samples.
        n_rounds: length of the result; by default up to the last round seen.
    """
    if len(rounds) != len(times):
        raise ValueError(f"{len(rounds)} rounds but {len(times)} times")
    out = np.full(n_rounds if n_rounds is not None else (max(rounds) + 1 if rounds else 0), np.nan)
    out[list(rounds)] = times
    return out


def aa_difference(first: ArrayLike, second: ArrayLike, *, seed: int = 0) -> Interval:
    """Return the relative difference between two interleaved series of the *same* method; 0 is no difference.

    Its size is the floor under every speedup of the same group: a smaller gain cannot be told from noise.
    """
    ratio = ratio_interval(first, second, seed=seed)
    return Interval(ratio.value - 1, ratio.lo - 1, ratio.hi - 1)


def aa_floor(differences: Sequence[Interval]) -> float | None:
    """Return the largest absolute A/A difference, None if there is none."""
    return max((abs(item.value) for item in differences), default=None)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """The batch from which a method is faster than its baseline, with its 95 % interval.

    Attributes:
        batch: interpolated; None when the method does not win at the largest batch measured.
        lo: lower end; the smallest batch measured when the method may win everywhere.
        hi: upper end; None when it may never win.
        at_most: True when it already wins at the smallest batch measured, so that ``batch`` is only an upper bound.
    """

    batch: float | None
    lo: float | None
    hi: float | None
    at_most: bool = False


def _crossings(log_batch: NDArray[np.float64], speedups: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log2 of the last upward crossing of 1 of each row: [rows, n] -> [rows]; -inf at most, +inf never."""
    loses = speedups < 1
    n = speedups.shape[1]
    last = np.where(loses.any(axis=1), n - 1 - np.argmax(loses[:, ::-1], axis=1), -1)  # last batch that loses
    inside = (last >= 0) & (last < n - 1)
    left = np.clip(last, 0, max(n - 2, 0))
    rows = np.arange(len(speedups))
    right = np.minimum(left + 1, n - 1)
    y0, y1 = speedups[rows, left], speedups[rows, right]
    x0, x1 = log_batch[left], log_batch[right]
    slope = np.where(inside, y1 - y0, 1.0)
    crossing = x0 + (x1 - x0) * (1 - y0) / slope
    return np.where(inside, crossing, np.where(last < 0, -np.inf, np.inf))


def break_even(
    batches: Sequence[int],
    speedups: Sequence[float],
    lo: Sequence[float] | None = None,
    hi: Sequence[float] | None = None,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> BreakEven:
    """Return the batch above which every measured speedup is at least 1, linear in log2(batch) between points.

    Args:
        batches: distinct batches, any order.
        speedups: one per batch.
        lo: lower ends of the 95 % intervals of the speedups; without them the interval is the point.
        hi: upper ends.
        seed: of the resampling; each speedup is redrawn from a lognormal with the width of its interval.
        resamples: number of redrawn curves.

    Raises:
        ValueError: no point, lengths that differ, a batch twice, or a speedup that is not positive.
    """
    order = np.argsort(np.asarray(batches))
    x = np.asarray(batches, np.float64)[order]
    if len(x) == 0 or len(speedups) != len(x) or (np.diff(x) == 0).any():
        raise ValueError("needs one speedup for each of at least one distinct batches")
    y = np.asarray(speedups, np.float64)[order]
    if not (y > 0).all():
        raise ValueError("speedups must be positive")
    log_batch = np.log2(x)
    point = float(_crossings(log_batch, y[None])[0])
    draws = np.array([point])
    if lo is not None and hi is not None:
        low, high = np.asarray(lo, np.float64)[order], np.asarray(hi, np.float64)[order]
        sigma = np.log(np.maximum(high, y) / np.maximum(np.minimum(low, y), 1e-9)) / (2 * _Z95)
        noise = np.random.default_rng(seed).standard_normal((resamples, len(x)))
        draws = _crossings(log_batch, y * np.exp(sigma * noise))
    tail = (1 - LEVEL) / 2
    # Order statistics: between a number and infinity there is no quantile to interpolate.
    draws.sort()
    left, right = draws[round(tail * (len(draws) - 1))], draws[round((1 - tail) * (len(draws) - 1))]

    def batch_at(log: float) -> float | None:
        return None if log == math.inf else float(x[0]) if log == -math.inf else float(2**log)

    return BreakEven(batch_at(point), batch_at(float(left)), batch_at(float(right)), at_most=point == -math.inf)
